"""The commands ``raybio tensorboard`` and ``raybio wandb``: metrics of runs for other programs."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from raybio.core.files import check_replaceable_folder
from raybio.runtime.model_paths import check_distinct_names
from raybio.runtime.run.folder import RunFolder

tensorboard_app = typer.Typer(add_completion=False)
wandb_app = typer.Typer(add_completion=False)

TENSORBOARD_HELP = (
    "Write metrics of runs as event files of TensorBoard.\n\n"
    "Finished runs and runs that train: the same command writes what they have by then. Show them "
    "with `tensorboard --logdir FOLDER`. It needs the extra tensorboard of raybio.\n\n"
    "Example: raybio tensorboard runs/first runs/second --out events/"
)

WANDB_HELP = (
    "Write metrics of runs as offline runs of Weights & Biases.\n\n"
    "Finished runs and runs that train: the same command writes what they have by then. Nothing is "
    "sent; `wandb sync FOLDER/RUN/wandb/offline-run-*` uploads one. It needs the extra wandb of "
    "raybio.\n\n"
    "Example: raybio wandb runs/first runs/second --out offline/ --project proteins"
)

Runs = Annotated[list[Path], typer.Argument(metavar="RUN ...", help="folders of runs")]
Out = Annotated[Path, typer.Option(help="folder to write, with a folder for each run")]


@tensorboard_app.command(help=TENSORBOARD_HELP)
def tensorboard(runs: Runs, out: Out) -> None:
    """The command line; ``--help`` is ``TENSORBOARD_HELP``."""

    def write(folder: RunFolder) -> int:
        # Imported here: torch takes seconds to import.
        from raybio.runtime.tracking.tensorboard import write_events

        return write_events(folder, out)

    _write_all(runs, out, "events.out.tfevents.*", write)


@wandb_app.command(help=WANDB_HELP)
def wandb(
    runs: Runs,
    out: Out,
    project: Annotated[str, typer.Option(help="project of Weights & Biases")] = "raybio",
) -> None:
    """The command line; ``--help`` is ``WANDB_HELP``."""

    def write(folder: RunFolder) -> int:
        # Imported here: torch takes seconds to import.
        from raybio.runtime.tracking.wandb import write_offline_run

        return write_offline_run(folder, out, project)

    _write_all(runs, out, "wandb", write)


def _write_all(
    runs: list[Path], out: Path, written: str, write: Callable[[RunFolder], int]
) -> None:
    """Write each run by ``write``, as files named ``written``; it returns its number of values."""
    check_distinct_names(runs)
    paths = [run.expanduser().absolute() for run in runs]
    for path in paths:
        check_replaceable_folder(out / path.name, [written])
    for path in paths:
        num_values = write(RunFolder(path.parent, path.name, None))
        print(f"{out / path.name}: {num_values:,} values")
