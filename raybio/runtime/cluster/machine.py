"""The load of this machine for tracking, and whether a path is on a network file system."""

import logging
import time
from pathlib import Path
from typing import Any

import psutil

SAMPLE_SECONDS = 10.0


_SHARED = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "gluster",
    "afs",
    "sshfs",
    "s3fs",
    "gcsfuse",
)


_log = logging.getLogger(__name__)


class MachineLoad:
    """MLflow's own samplers of CPU, memory, disk, network and GPUs.

    MLflow's thread around them is not used: the first failed request ends it for good, and ending
    it waits for a server that hangs.
    """

    def __init__(self, samplers: list[Any]) -> None:
        """Sample from ``samplers``, for the first time after ten seconds."""
        self._samplers = samplers
        self._due = time.monotonic() + SAMPLE_SECONDS
        psutil.cpu_percent()  # starts the interval that the next call measures

    @classmethod
    def of_this_one(cls, uri: str) -> "MachineLoad | None":
        """Return the load of this machine; None, with a warning, if MLflow cannot read it.

        Nothing is sent to ``uri``.
        """
        try:
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

            return cls(SystemMetricsMonitor(run_id=None, tracking_uri=uri).monitors)
        except Exception as error:  # a missing driver library must not end the tracking of a run
            _log.warning("system metrics are off: %s", error)
            return None

    def sample(self) -> dict[str, float]:
        """Return MLflow's ``system/`` metrics; empty within ten seconds of the last ones."""
        if time.monotonic() < self._due:
            return {}
        self._due = time.monotonic() + SAMPLE_SECONDS
        load: dict[str, float] = {}
        for sampler in self._samplers:
            try:
                sampler.collect_metrics()
                load |= {
                    f"system/{name}": float(value)
                    for name, value in sampler.aggregate_metrics().items()
                }
            except Exception as error:
                _log.warning(
                    "%s: no more system metrics from it: %s", type(sampler).__name__, error
                )
                self._samplers = [other for other in self._samplers if other is not sampler]
                continue
            sampler.clear_metrics()
        return load


def network_file_system(path: Path) -> str | None:
    """Return the kind of the network file system that ``path`` is on; None if it is local."""
    mounted = {
        Path(partition.mountpoint): partition.fstype
        for partition in psutil.disk_partitions(all=True)
    }
    kind = next((mounted[folder] for folder in (path, *path.parents) if folder in mounted), "")
    return kind if kind.removeprefix("fuse.").startswith(_SHARED) else None


def warn_of_network(database: Path) -> None:
    """Warn if a sqlite file is on a file system where its locks do not work."""
    if kind := network_file_system(database):
        _log.warning(
            "%s lies on a network file system (%s), whose locks do not hold between machines: one "
            "driver at a time may write there. For more, name an `mlflow server` on PostgreSQL "
            "with --tracking-uri",
            database,
            kind,
        )
