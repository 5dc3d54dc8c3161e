"""The files of a probe's report: Markdown, JSON, a CSV file a table, and figures."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raybio.core.csv_table import write_csv
from raybio.core.files import replace_text
from raybio.core.records import write_record
from raybio.methods.contrastive_probe.plots import plot_probe
from raybio.methods.contrastive_probe.report import QuerySetResults, report_data, report_markdown
from raybio.methods.contrastive_probe.report_tables import report_tables


def write_report(
    out: Path, sets: Sequence[QuerySetResults], settings: Mapping[str, Any], *, seed: int
) -> None:
    """Write ``report.md``, ``report.json``, ``tables/*.csv`` and ``plots/*.png``.

    Tables and figures that the earlier ``report.json`` in ``out`` lists are removed, since they may
    belong to other models.

    Args:
        out: the folder, created if missing.
        sets: query sets of one benchmark.
        settings: settings that the figures depend on.
        seed: of intervals, tests and sampled queries.
    """
    data = report_data(sets, settings, seed=seed)
    _remove_earlier(out)
    out.mkdir(parents=True, exist_ok=True)
    replace_text(out / "report.md", report_markdown(data))
    files = []
    for heading, table in report_tables(data).items():
        name = re.sub(r"\W+", "_", heading).strip("_").lower()
        path = out / "tables" / f"{name}.csv"
        write_csv(path, table)
        files.append(path)
    files += plot_probe(data, out / "plots")
    data["files"] = [path.relative_to(out).as_posix() for path in files]
    write_record(out / "report.json", "report", data)


def _remove_earlier(out: Path) -> None:
    try:
        listed = set(json.loads((out / "report.json").read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        # There is no report, or a file of something else.
        return
    for path in [*out.glob("tables/*.csv"), *out.glob("plots/*.png")]:
        if path.relative_to(out).as_posix() in listed:
            path.unlink()
