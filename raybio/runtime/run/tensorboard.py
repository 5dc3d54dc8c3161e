"""Metrics of runs as event files of TensorBoard."""

from pathlib import Path

from raybio.core.errors import ConfigError
from raybio.core.files import atomic_folder
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports


def write_events(folder: RunFolder, out: Path) -> int:
    """Write the metrics of a run, finished or not, into ``out/NAME``; an older one is replaced.

    Steps and times are those of the run's log. Values that are not finite are left out.

    Args:
        folder: the run's.
        out: the folder that TensorBoard shows.

    Returns:
        The number of values.

    Raises:
        ConfigError: if the folder holds no run, or the extra ``tensorboard`` is not installed.
    """
    if not folder.metrics.is_file():
        raise ConfigError(
            f"raybio tensorboard: {folder.path} has no {folder.metrics.name}; want the folder of a "
            "run that has begun, such as runs/first"
        )
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "raybio tensorboard: tensorboard is not installed. Install the extra: pip install "
            "'raybio[tensorboard]'"
        ) from None
    num_values = 0
    with atomic_folder(out / folder.name) as events, SummaryWriter(str(events)) as writer:
        for report in read_reports(folder.metrics):
            for name, value in report["metrics"].items():
                writer.add_scalar(name, value, report["step"], walltime=report["time_ms"] / 1000)
                num_values += 1
    return num_values
