"""Metrics of runs as offline runs of Weights & Biases."""

from pathlib import Path

import yaml

from raybio.core.extras import from_extra
from raybio.core.files import atomic_folder
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import reports_for

TIME = "time"
"""Column with the time of a report, in seconds since 1970; W&B's own is the time of writing."""


def write_offline_run(folder: RunFolder, out: Path, project: str) -> int:
    """Write a run, finished or not, into ``out/NAME``; replace an older one.

    Nothing is sent: ``wandb sync`` uploads the folder. Steps and settings are the run's.

    Args:
        folder: the run's folder.
        out: the output folder, created if missing.
        project: project of W&B.

    Returns:
        The number of values.

    Raises:
        ConfigError: if the folder is not a run, or the extra ``wandb`` is not installed.
    """
    reports = reports_for("wandb", folder.metrics)
    with from_extra("wandb", "wandb"):
        import wandb
    config = {}
    if folder.config.is_file():
        config = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
    num_values = 0
    with atomic_folder(out / folder.name) as path:
        settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
        run = wandb.init(
            project=project,
            name=folder.name,
            # A fixed id, so that a repeated upload replaces the run on the server, and no other run
            # of that name does.
            id=_id_of(folder),
            dir=str(path),
            mode="offline",
            config=config,
            settings=settings,
        )
        for report in reports:
            time = {TIME: report["time_ms"] / 1000}
            run.log(report["metrics"] | time, step=report["step"])
            num_values += len(report["metrics"])
        run.finish()
    return num_values


def _id_of(folder: RunFolder) -> str:
    """Return the run's unique key; its name if it has none."""
    return str((folder.read_identity() or {}).get("key", folder.name))
