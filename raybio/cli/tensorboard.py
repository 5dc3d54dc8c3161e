"""The command ``raybio tensorboard``: metrics of runs as event files."""

from pathlib import Path
from typing import Annotated

import typer

from raybio.core.files import check_writable_folder
from raybio.runtime.model_paths import check_distinct_names
from raybio.runtime.run.folder import RunFolder

app = typer.Typer(add_completion=False)

HELP = (
    "Write metrics of runs as event files of TensorBoard.\n\n"
    "Finished runs and runs that train: the same command writes what they have by then. Show them "
    "with `tensorboard --logdir FOLDER`. It needs the extra tensorboard of raybio.\n\n"
    "Example: raybio tensorboard runs/first runs/second --out events/"
)


@app.command(help=HELP)
def tensorboard(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN ...", help="folders of runs")],
    out: Annotated[Path, typer.Option(help="folder to write, with a folder for each run")],
) -> None:
    """The command line; ``--help`` is ``HELP``."""
    check_writable_folder(out)
    check_distinct_names(runs)
    # Imported here: torch takes seconds to import.
    from raybio.runtime.tracking.tensorboard import write_events

    for run in runs:
        path = run.expanduser().absolute()
        num_values = write_events(RunFolder(path.parent, path.name), out)
        print(f"{out / path.name}: {num_values:,} values")
