"""The command ``curves``: an evaluation metric over the steps of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from raybio.cli import options as shared
from raybio.core.errors import ConfigError
from raybio.core.files import check_writable_folder
from raybio.methods.contrastive_probe.method import METHOD
from raybio.runtime.run.options import runs_folder


def curves(
    run: Annotated[
        list[str],
        typer.Option(help="LABEL=NAME or NAME; repeatable: runs of one label are averaged"),
    ],
    out: Annotated[Path, typer.Option(help="folder of the table and the plot")],
    metric: Annotated[str, typer.Option(help="an evaluation metric")] = "val/acc_at_10",
    runs: shared.Runs = None,
) -> None:
    """Plot a metric over steps, mean ± standard deviation over the runs of a label.

    If runs log the agreement of wordings, also write the steps that label-free rules select, for
    all relations and by relation (choice.md).

    Example: raybio evaluate curves --run rewired --out curves/
    """
    check_writable_folder(out)
    names_by_label = _runs_by_label(run)
    all_names = [name for names in names_by_label.values() for name in names]
    folder, bucket = runs_folder(runs)
    if bucket is not None:
        from raybio.runtime.spool.spool import refresh_matching

        names = refresh_matching(folder, bucket, all_names)
        for name in all_names:
            if name.split("/")[0] not in names:
                raise ConfigError(f"--run {name}: no run of that name in {bucket}")
    from raybio.methods.contrastive_probe.step_selection import AGREEMENT, HELD_OUT
    from raybio.runtime.compare.curves import method_of_runs, unfinished_status, write_curves
    from raybio.runtime.run.folder import RunFolder

    method = method_of_runs(folder, all_names)
    written = write_curves(folder, names_by_label, metric, out, method)
    if method is METHOD and out / "choice.md" not in written:
        print(
            f"no label-free step selection by {metric}: want val/acc_at_K or val/hard_acc_at_K, "
            f"and runs that log it by relation, and {HELD_OUT} or {AGREEMENT}"
        )
    for name in all_names:
        status = unfinished_status(RunFolder(folder, name))
        if status:
            print(f"{name}: is not finished ({status}), more evaluations may follow")


def _runs_by_label(run: Sequence[str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for text in run:
        label, _, name = text.rpartition("=")
        names.setdefault(label or name, []).append(name)
    return names
