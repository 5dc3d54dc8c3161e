"""How an evaluation metric went over the steps of runs: mean and deviation of those that belong together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from raybio.core.files import check_writable_folder
from raybio.runtime.compare.curves import _unfinished, write_curves
from raybio.runtime.run.folder import RunFolder


def curves(
    run: Annotated[
        list[str],
        typer.Option(help="LABEL=NAME, or NAME alone; repeatable: runs of one label are averaged"),
    ],
    out: Annotated[Path, typer.Option(help="folder of the table and the picture")],
    metric: Annotated[str, typer.Option(help="an evaluation metric")] = "val/acc_at_10",
    runs: Annotated[
        Path | None, typer.Option(help="folder of runs; default: RAYBIO_RUNS or runs/")
    ] = None,
) -> None:
    """A metric over steps, mean ± standard deviation over the runs of a label (seeds, sentence sets).

    Where runs log the agreement of wordings: which step is chosen without gold, overall and by relation (choice.md).
    """
    # Only now: this imports torch, which takes seconds.
    from raybio.runtime.compare.choices import AGREEMENT, HELD_OUT
    from raybio.runtime.run.request import default_folder

    folder = default_folder("runs", "RAYBIO_RUNS") if runs is None else runs
    check_writable_folder(out)
    names_by_label = _runs_by_label(run)
    written = write_curves(folder, names_by_label, metric, out)
    if out / "choice.md" not in written:
        wanted = f"{metric} by relation, and {HELD_OUT} or {AGREEMENT}"
        print(f"no step is chosen without gold; that wants runs that log {wanted}")
    for name in [one for names in names_by_label.values() for one in names]:
        if unfinished := _unfinished(RunFolder(folder, name)):
            print(f"{name}: is not finished ({unfinished}): more may be to come")


def _runs_by_label(run: Sequence[str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for text in run:
        label, _, name = text.rpartition("=")
        names.setdefault(label or name, []).append(name)
    return names
