"""The command ``raybio wandb``: metrics of runs as offline runs of Weights & Biases."""

from pathlib import Path
from typing import Annotated

import typer

from raybio.core.files import check_writable_folder
from raybio.runtime.model_paths import check_distinct_names
from raybio.runtime.run.folder import RunFolder

app = typer.Typer(add_completion=False)

HELP = (
    "Write metrics of runs as offline runs of Weights & Biases.\n\n"
    "Finished runs and runs that train: the same command writes what they have by then. Nothing is "
    "sent; `wandb sync FOLDER/RUN/wandb/offline-run-*` uploads one. It needs the extra wandb of "
    "raybio.\n\n"
    "Example: raybio wandb runs/first runs/second --out offline/ --project proteins"
)


@app.command(help=HELP)
def wandb(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN ...", help="folders of runs")],
    out: Annotated[Path, typer.Option(help="folder to write, with a folder for each run")],
    project: Annotated[str, typer.Option(help="project of Weights & Biases")] = "raybio",
) -> None:
    """The command line; ``--help`` is ``HELP``."""
    check_writable_folder(out)
    check_distinct_names(runs)
    # Imported here: torch takes seconds to import.
    from raybio.runtime.tracking.wandb import write_offline_run

    for run in runs:
        path = run.expanduser().absolute()
        num_values = write_offline_run(RunFolder(path.parent, path.name), out, project)
        print(f"{out / path.name}: {num_values:,} values")
