"""Metrics of runs as event files of TensorBoard."""

from pathlib import Path

from raybio.core.extras import from_extra
from raybio.core.files import atomic_folder
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import reports_for


def write_events(folder: RunFolder, out: Path) -> int:
    """Write the metrics of a run, finished or not, into ``out/NAME``; replace older files.

    Steps and times come from the run's log. Values that are not finite are omitted.

    Args:
        folder: the run's folder.
        out: the folder that TensorBoard shows.

    Returns:
        The number of values.

    Raises:
        ConfigError: if the folder is not a run, or the extra ``tensorboard`` is not installed.
    """
    reports = reports_for("tensorboard", folder.metrics)
    with from_extra("tensorboard", "tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
    num_values = 0
    with atomic_folder(out / folder.name) as events, SummaryWriter(str(events)) as writer:
        for report in reports:
            for name, value in report["metrics"].items():
                writer.add_scalar(name, value, report["step"], walltime=report["time_ms"] / 1000)
                num_values += 1
    return num_values
