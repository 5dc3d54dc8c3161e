"""A run's folder: its files, its locks, and what must stay the same between two starts."""

import contextlib
import errno
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from raybio.core.cache import warn_once
from raybio.core.config import BaseConfig, changed_settings, difference, present_names
from raybio.core.errors import (
    CheckpointError,
    ClusterError,
    ConfigError,
    DiskError,
    HeldError,
    RecordError,
    RecordFormatError,
    common_kind,
)
from raybio.core.files import FULL, RUN, check_local, disk_problem, replace_text, try_lock
from raybio.core.location import Location
from raybio.core.records import (
    FORMATS,
    from_record,
    read_recomputable,
    read_record,
    to_record,
    write_record,
)
from raybio.training.settings import COMPLETE

LAUNCH = "launch.json"
"""Record of the last start of the run: workers, CPUs, tracking; for a sweep, also the budget."""


SHARED_SCORES = ".untrained"
"""Folder next to the runs with scores that they share; no run can have this name."""


WRITTEN_LAST = ("outcome.json", "failure.json", "ended.json", "result.json")
"""Files that mark other files as complete; copies of a run write them last, in this order."""


_log = logging.getLogger(__name__)


_NAME = re.compile(r"\w[\w.+-]{0,99}")


def usual_folder(kind: str, variable: str) -> Path:
    """Return the default folder of runs, stores or sweeps.

    It is the value of the environment variable, or ``kind`` in the working directory. In a Ray job,
    whose working directory is deleted, it is ``~/raybio/kind``.
    """
    # An empty variable counts as unset, like that of the cache.
    if given := os.environ.get(variable):
        return Path(given).expanduser()
    if "runtime_resources" not in Path.cwd().parts:
        return Path(kind)
    return Path.home() / "raybio" / kind


def name_beginning(text: str) -> str:
    """Return a text as the beginning of a run's name: invalid characters become "-"."""
    name = re.sub(r"[^\w.+-]+", "-", text).lstrip(".+-")
    return re.sub(r"\.+", ".", name)[:60] or "run"


class RunFolder:
    """The folder ``runs/<name>`` of a run; workers and driver see it under the same path."""

    def __init__(self, runs: str | Path, name: str, option: str | None = "--name") -> None:
        """Set the path without touching the folder.

        Args:
            runs: folder of runs.
            name: name of the run.
            option: the option that gave the name; None: the name is that of an existing folder and
                is not checked.

        Raises:
            ConfigError: for a name that is not a plain word, naming the option, or a folder of runs
                that is a URI.
        """
        check_local(runs, "folder of runs")
        if option is not None and (not _NAME.fullmatch(name) or ".." in name):
            raise ConfigError(
                f"{option}: got {name!r}, want up to 100 letters, digits, '-', '+', '_' or '.', "
                "beginning with a letter or digit and without '..'"
            )
        self.name = name
        self.path = Path(runs).expanduser().absolute() / name
        self.config = self.path / "config.yaml"
        self.identity = self.path / RUN
        self.launch = self.path / LAUNCH
        self.inputs = self.path / "inputs.json"
        self.metrics = self.path / "metrics.jsonl"
        self.notices = self.path / "notices.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.outcome = self.path / "outcome.json"
        self.unit_scores = self.path / "unit_scores.npz"
        self.failure = self.path / "failure.json"
        self.result = self.path / "result.json"
        self.tracking = self.path / "tracking.json"
        self.plots = self.path / "plots"
        self.export = self.path / "export"
        self.stop = self.path / ".stop"
        self.start = self.path / ".start"
        self.ray = self.path / ".ray"

    @property
    def newest_checkpoint(self) -> Path | None:
        """The checkpoint from which the run resumes, unless it is damaged."""
        # Imported here: it imports torch, which takes seconds.
        from raybio.training.checkpoint import list_checkpoints

        return next(iter(list_checkpoints(self.checkpoints)), None)

    @property
    def max_steps(self) -> int | None:
        """The last step of the run; None for a folder without a run."""
        identity = self.read_identity()
        return None if identity is None else int(identity["config"]["schedule"]["max_steps"])

    @property
    def precision(self) -> str | None:
        """The precision recorded in ``run.json``; None before it is decided."""
        return self._recorded("precision")

    @property
    def data_digest(self) -> str:
        """The digest of the store in ``run.json``; "" before it exists."""
        return self._recorded("data_digest") or ""

    @property
    def encoder(self) -> dict[str, str] | None:
        """The record of the encoder's weights in ``run.json``; None before it is written."""
        return self._recorded("encoder")

    def _recorded(self, name: str) -> Any:
        try:
            return (self.read_identity() or {}).get(name)
        except RecordFormatError:
            raise
        except RecordError:
            # Ignore the error: ``open`` decides whether the folder is refused or replaced.
            return None

    def record_encoder(self, record: dict[str, str] | None) -> None:
        """Record the encoder's initial weights in ``run.json``; None: random ones.

        The caller holds the driver's lock, or is the only one to write the folder.

        Raises:
            CheckpointError: if existing checkpoints began with other weights.
            ClusterError: if the folder cannot be written.
        """
        recorded = (self.read_identity() or {}).get("encoder")
        if record is None or record == recorded:
            return
        if recorded is not None and committed_in(self.checkpoints):
            raise CheckpointError(f"{self.identity}: {changed_encoder(recorded, record)}")
        self._record("encoder", record)

    def record_precision(self, name: str) -> None:
        """Write the run's precision into ``run.json``, once; the caller holds the driver's lock.

        Raises:
            CheckpointError: if another one is recorded.
            ClusterError: if the folder cannot be written.
        """
        recorded = (self.read_identity() or {}).get("precision", name)
        if recorded != name:
            raise CheckpointError(
                f"{self.identity}: the run computes in {recorded}, got {name}. Choose another "
                f"--name to train in {name}"
            )
        self._record("precision", name)

    def _record(self, name: str, value: Any) -> None:
        """Write one entry of ``run.json``."""
        try:
            write_record(self.identity, "run", (self.read_identity() or {}) | {name: value})
        except OSError as error:
            raise self._unwritable(error) from None

    def make(self) -> None:
        """Make the empty folder, so that it can be locked.

        Raises:
            ClusterError: if it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> ClusterError:
        return ClusterError(
            f"{self.path}: the run's folder cannot be written ({error.strerror or error}). Choose "
            "a writable one with --runs or RAYBIO_RUNS"
        )

    def read_identity(self) -> dict[str, Any] | None:
        """Return ``run.json``, or its copy in the newest checkpoint; None if there is no run.

        Its method and settings have their present names.

        Raises:
            CheckpointError: if the newest checkpoint has another format version.
            RecordError: if ``run.json`` is damaged or missing and the checkpoints have no copy of
                it.
        """
        content, damage = self._read(self.identity, "run")
        if damage is not None:
            raise damage
        return None if content is None else with_present_names(content)

    def read_launch(self) -> dict[str, Any]:
        """Return ``launch.json``, or its copy in the newest checkpoint; empty if unknown.

        Raises:
            CheckpointError: if the newest checkpoint has another format version.
            RecordError: if ``launch.json`` is damaged and checkpoints that have no copy of it
                depend on it.
        """
        content, damage = self._read(self.launch, "launch")
        if content is not None:
            return content
        if damage is not None and self.launch.exists() and committed_in(self.checkpoints):
            raise damage
        if damage is not None:
            warn_once(_log, f"{damage}; this start's own options count")
        # Keep the tracking server: another one would get a second MLflow run.
        saved = read_recomputable(self.tracking, "tracking") or {}
        return {"tracking": saved["uri"]} if "uri" in saved else {}

    @property
    def trained_versions(self) -> dict[str, Any]:
        """``used_values`` of the versions that trained the newest checkpoint; empty if unknown.

        ``launch.json`` also names versions of a start that saved no checkpoint and left nothing. It
        is used only if the checkpoint has no copy.

        Raises:
            CheckpointError: if the newest checkpoint has another format version.
            RecordError: as ``read_launch``.
        """
        # Imported here: it imports torch, which takes seconds.
        from raybio.training.checkpoint import newest_manifest

        manifest = newest_manifest(self.checkpoints) or {}
        copy = manifest.get("run", {}).get(self.launch.name)
        if copy is None:
            launch = self.read_launch()
        else:
            launch = from_record(copy, "launch", self.checkpoints)
        return dict(launch.get("versions", {}))

    def records(self) -> dict[str, Any]:
        """Return the records that the run's checkpoints copy, by file name."""
        copies = {}
        for path, kind in ((self.identity, "run"), (self.launch, "launch")):
            content = read_record(path, kind)
            copies[path.name] = None if content is None else to_record(kind, content)
        return copies

    def _read(self, path: Path, kind: str) -> tuple[dict[str, Any] | None, RecordError | None]:
        """Return a record or its copy in the newest checkpoint, or the error if there is neither.

        Raises:
            RecordFormatError: if the record or its copy has another format version.
        """
        try:
            content = read_record(path, kind)
            damage = RecordError(
                f"{path}: missing, although the run has checkpoints. {FORMATS[kind].if_lost}"
            )
        except RecordFormatError:
            raise
        except RecordError as error:
            content = None
            damage = error
        if content is not None:
            return content, None
        if not committed_in(self.checkpoints):
            return None, damage if path.exists() else None
        # Imported here: it imports torch, which takes seconds.
        from raybio.training.checkpoint import newest_manifest

        manifest = newest_manifest(self.checkpoints) or {}
        copies = manifest.get("run", {})
        copy = copies.get(path.name)
        if copy is None:
            was_there = path.exists() or path.name not in copies
            return None, damage if was_there else None
        content = from_record(copy, kind, self.checkpoints)
        state = "damaged" if path.exists() else "missing"
        warn_once(_log, f"{path} is {state}; its copy in the newest checkpoint is used")
        return content, None

    def open(
        self,
        method: str,
        config: BaseConfig,
        store: Location,
        data_digest: str,
        changeable_settings: tuple[str, ...],
    ) -> bool:
        """Create the run, or check that the folder holds this run; return whether it existed.

        The driver calls this while it holds the folder's lock. If an earlier start failed before it
        left anything to keep, a run with other settings replaces it.

        Args:
            method: its name in ``METHODS``.
            config: the whole configuration.
            store: current location of the store.
            data_digest: digest of the store.
            changeable_settings: dotted paths that may differ from the last start.

        Raises:
            CheckpointError: if the folder holds a run of another method, configuration or store,
                with the difference.
            ClusterError: if the folder cannot be written.
            RecordError: if its ``run.json`` is lost, so that the run in the folder is unknown.
        """
        identity = {"method": method, "data_digest": data_digest}
        try:
            old = self.read_identity()
        except RecordFormatError:
            raise
        except RecordError as error:
            if self._has_results:
                raise
            self._begin_anew(str(error))
            old = None
        if old is None and self._has_more_than_checkpoints:
            # A trial of PBT begins with only the checkpoints of another run.
            raise RecordError(
                f"{self.identity}: missing, although the folder holds results. "
                f"{FORMATS['run'].if_lost}"
            )
        if old is not None:
            changes = difference({name: old.get(name) for name in identity}, identity)
            changes += changed_settings(old["config"], config, changeable_settings)
            if changes and self._has_results:
                raise CheckpointError(
                    f"{self.path} holds a run with other settings: {'; '.join(changes)} (then -> "
                    "now). Give the same settings to continue it, or choose another --name"
                )
            if changes:
                self._begin_anew("; ".join(changes))
                old = None
        self.make()
        try:
            mapping = config.to_mapping()
            known = {"config": mapping, "store": str(store), "key": self._key(old)}
            names = ("precision", "encoder")
            kept = {} if old is None else {name: old[name] for name in names if name in old}
            write_record(self.identity, "run", identity | known | kept)
            replace_text(self.config, yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True))
        except OSError as error:
            raise self._unwritable(error) from None
        return old is not None

    def _key(self, old: dict[str, Any] | None) -> str:
        """Return the key that identifies the MLflow run; a new key for a new run."""
        if old is None:
            return uuid.uuid4().hex
        return (
            old.get("key")
            or (read_record(self.tracking, "tracking") or {}).get("key")
            or uuid.uuid4().hex
        )

    @property
    def _has_results(self) -> bool:
        """Return whether the folder holds results that other settings must not replace."""
        return committed_in(self.checkpoints) or self._has_more_than_checkpoints

    @property
    def _has_more_than_checkpoints(self) -> bool:
        if self.export.exists() or (self.path / "trials").exists():
            return True
        try:
            result = (
                read_record(self.result, "result") or read_record(self.outcome, "outcome") or {}
            )
        except RecordError:
            return True
        return result.get("status") in COMPLETE

    def _begin_anew(self, reason: str) -> None:
        """Delete, with a report, the leftovers of a start without a checkpoint, except locks."""
        from raybio.runtime.run.metrics_log import read_reports

        reports = read_reports(self.metrics)
        reached = f" at step {reports[-1]['step']:,}" if reports else ""
        print(
            f"{self.name}: replaces a start that ended{reached} without a checkpoint ({reason})",
            flush=True,
        )
        for path in (self.plots, self.ray, self.checkpoints):
            shutil.rmtree(path, ignore_errors=True)
        # ``run.json`` stays until the new run replaces it. If this start is killed before, the next
        # one still finds another run's record and begins anew.
        files = (
            self.launch,
            self.metrics,
            *self.path.glob("notices*.jsonl"),
            self.inputs,
            self.outcome,
            self.unit_scores,
            self.failure,
            self.result,
            self.tracking,
        )
        for path in files:
            path.unlink(missing_ok=True)

    def begin_start(self) -> str:
        """Record a new start and return its name; workers of earlier starts then end.

        Ray may restart the workers of a failed start after its driver has abandoned it.
        """
        start = uuid.uuid4().hex
        write_record(self.start, "start", {"start": start})
        return start

    def is_newest_start(self, start: str) -> bool:
        """Return whether ``start`` is the latest start of the run."""
        return read_record(self.start, "start") == {"start": start}

    @contextlib.contextmanager
    def lock(self, who: str, timeout_seconds: float) -> Iterator[None]:
        """Hold the folder's "driver" or "writer" lock for a ``with`` block.

        Raises:
            HeldError: if another process holds it for longer than ``timeout_seconds``.
            ClusterError: if the folder cannot be written.
            NoLocksError: if its disk has no file locks.
        """
        with _open_lock(self.path / f".{who}.lock") as file:
            deadline = time.monotonic() + timeout_seconds
            while not try_lock(file):
                if time.monotonic() > deadline:
                    raise HeldError(
                        f"{self.path}: another process is at work on this run (its {who} holds the "
                        f"lock for more than {timeout_seconds:.0f} s). Wait until it ends, stop "
                        "it, or choose another --name"
                    )
                time.sleep(0.2)
            yield


def with_present_names(identity: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``run.json`` with the present names of method and settings.

    Those of a method that is not installed stay as they are. A sweep's search space has other
    classes; ``tune.driver`` renames the settings in it.
    """
    # Imported here: the settings of all methods take half a second to import.
    from raybio.methods import METHODS, present_name

    name = present_name(str(identity.get("method")))
    method = METHODS.get(name)
    config = identity.get("config")
    if method is None or not isinstance(config, dict):
        return identity
    if "space" in config:
        config = config | {"base": present_names(method.config, config.get("base"))}
    else:
        config = present_names(method.config, config)
    return identity | {"method": name, "config": config}


def committed_in(checkpoints: Path) -> bool:
    """Return whether the folder has any checkpoint; torch is not imported.

    Raises:
        ClusterError: if it cannot be read, which does not mean that it is empty.
    """
    try:
        return any(name.startswith("step-") for name in os.listdir(checkpoints))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ClusterError(
            f"{checkpoints}: cannot be read ({error.strerror}). Check its permissions"
        ) from None


def record_failure(folder: RunFolder, error: Exception) -> None:
    """Write ``failure.json`` if a retry cannot cure the error.

    Raises:
        DiskError: in place of the ``OSError`` of a full or read-only disk, on which nothing can be
            written.
    """
    if isinstance(error, OSError):
        if error.errno not in (*FULL, errno.EROFS):
            return
        error = DiskError(disk_problem(error))
    failure = {"kind": common_kind(error), "message": str(error)}
    try:
        write_record(folder.failure, "failure", failure)
    except OSError:
        raise error from None


def changed_encoder(then: dict[str, str], now: dict[str, str]) -> str:
    """Return the text of an error about an encoder with other weights than recorded."""
    return (
        f"the run began with other weights in encoder.source {now['source']!r}: "
        f"{_version_of(then)} then, {_version_of(now)} now. Restore them, or choose another --name"
    )


def _version_of(encoder: dict[str, str]) -> str:
    if "commit" in encoder:
        return f"commit {encoder['commit']}"
    return f"{encoder['weights']} of sha256 {encoder['sha256']}"


def _open_lock(path: Path) -> IO[str]:
    try:
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        raise ClusterError(
            f"{path}: cannot be written ({error.strerror}): workers and driver must share the runs "
            "folder. Choose one that all of them can write with --runs"
        ) from None
