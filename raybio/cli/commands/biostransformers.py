"""Commands of BioSTransformers: stores of articles, and zero-shot retrieval."""

import json
import os
import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raybio.cli.options import (
    LocationType,
    PrecisionOption,
    encoders_in,
    location_option,
    model_option,
    sources_option,
)
from raybio.cli.settings import with_settings
from raybio.cli.stores import (
    Force,
    NewStore,
    Out,
    local_copy,
    matching,
)
from raybio.core.errors import ClusterError
from raybio.core.files import check_writable_folder, replace_text
from raybio.core.records import write_record
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.zero_shot.names import DATA_SETS, task_names
from raybio.runtime.model_paths import model_folder

if TYPE_CHECKING:
    from raybio.methods.biostransformers.formats.medline_parts import FileReport

evaluate = typer.Typer()
prepare = typer.Typer()

TASKS = "; ".join(f"{name}: {', '.join(data_set.tasks)}" for name, data_set in DATA_SETS.items())


@evaluate.command()
def zero_shot(
    model: Annotated[
        list[str],
        model_option("run, its export/, or any model folder or hub id; repeatable"),
    ],
    data: Annotated[
        LocationType, location_option("folder with hallmarks_of_cancer/, pubmedqa/, bioasq_7b/")
    ],
    out: Annotated[Path, typer.Option(help="folder of the report")],
    tasks: Annotated[
        str, typer.Option(help=f"data sets or single tasks, separated by commas ({TASKS})")
    ] = ",".join(DATA_SETS),
    hoc_pmids: Annotated[
        LocationType | None,
        location_option("file with one PMID a line: run hoc tasks on these abstracts too"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the intervals and tests")] = 0,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=3, help="maximum tokens of a text; default: what the model's folder states"
        ),
    ] = None,
    precision: PrecisionOption = "fp32",
) -> None:
    """Rank documents by cosine similarity; compare with TF-IDF, BM25, chance and the paper.

    Example: raybio evaluate zero-shot --model runs/bios --data DIR --out report/
    """
    names = task_names([name.strip() for name in tasks.split(",") if name.strip()])
    check_writable_folder(out)
    folders = [model_folder(path, "--model") for path in model]
    data_folder = local_copy(data, "--data")
    pmids = None if hoc_pmids is None else local_copy(hoc_pmids, "--hoc-pmids")
    from raybio.encoders.sources import weights_of_models
    from raybio.methods.biostransformers.zero_shot.evaluate import evaluate_zero_shot
    from raybio.methods.biostransformers.zero_shot.report import report_data, report_markdown

    with encoders_in(precision):
        results = evaluate_zero_shot(
            folders,
            names,
            data_folder,
            seed=seed,
            max_length=max_length,
            hoc_pmids=pmids,
            report=lambda task: print(f"evaluating {task}"),
        )
    settings = {
        "models": model,
        "weights": weights_of_models(dict(zip(model, folders, strict=True))),
        "data": str(data),
        "seed": seed,
        "max_length": max_length,
    }
    settings["precision"] = precision
    if hoc_pmids is not None:
        settings["hoc_pmids"] = str(hoc_pmids)
    out.mkdir(parents=True, exist_ok=True)
    write_record(out / "report.json", "report", report_data(results, settings))
    report = report_markdown(results, settings)
    replace_text(out / "report.md", report + "\n")
    print(report)
    print(f"report: {out / 'report.md'}, {out / 'report.json'}")


@prepare.command()
@with_settings(ArticleConfig)
def medline(
    source: Annotated[
        list[str],
        sources_option(
            "files or patterns; quote patterns. Files with PubMed's names (pubmed26n0001.xml.gz) "
            "are read by number, others as given: oldest first",
            "--input",
        ),
    ],
    out: Out,
    config: ArticleConfig,
    parts: Annotated[
        Path | None,
        typer.Option(help="folder of the parsed files; default: next to the store until done"),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="files parsed in parallel by Ray Data; 0: without Ray")
    ] = 0,
    force: Force = False,
) -> None:
    """PubMed baseline and update files (.xml, .xml.gz): titles, abstracts, MeSH terms.

    Example: raybio prepare medline --input 'baseline/*.xml.gz' --out STORE
    """
    new_store = NewStore(out, force=force)
    files = matching(source)
    from raybio.methods.biostransformers.prepare import parse_here, prepare_medline

    parse_all = partial(parse_by_ray_data, workers) if workers else parse_here

    new_store.write(
        prepare_medline,
        files=files,
        config=config,
        parse_all=parse_all,
        parts=parts,
    )


@prepare.command()
@with_settings(ArticleConfig)
def pairs(
    source: Annotated[
        list[str],
        sources_option("tables or patterns, oldest first; quote patterns", "--input"),
    ],
    out: Out,
    config: ArticleConfig,
    force: Force = False,
) -> None:
    """Tables of articles with terms, or of texts with labels, in any form; PubMedQA's JSON.

    Example: raybio prepare pairs --input articles.tsv.gz --out STORE
    """
    new_store = NewStore(out, force=force)
    files = matching(source)
    from raybio.methods.biostransformers.prepare import prepare_pairs

    new_store.write(prepare_pairs, files=files, config=config)


def parse_by_ray_data(workers: int, files: Sequence[Path], parts: Path) -> "list[FileReport]":
    """Parse files of MEDLINE by Ray Data, and return the report of each file in the given order.

    Raises:
        ClusterError: if a node does not see a file or the folder of the parts, or sees another one.
    """
    from raybio.methods.biostransformers.formats.medline_parts import FileReport
    from raybio.runtime.map_rows import map_rows

    rows = [{"path": str(path.absolute())} for path in files]
    report_by_path = {}
    for row in map_rows(workers, rows, partial(_parse_row, str(parts.absolute()))):
        missing = row["missing"]
        if not missing:
            report = FileReport(**json.loads(row["report"]))
            report_by_path[report.path] = report
            if report.part and not Path(report.part).is_file():
                # The node has its own folder of that name.
                missing = report.part
        if missing:
            raise ClusterError(
                f"{missing}: is not the same on node {row['node']} and here. With --workers, all "
                "nodes must see the files and --parts (by default next to --out) under the same "
                "paths: put them on a shared file system"
            )
    return [report_by_path[row["path"]] for row in rows]


def _parse_row(parts: str, row: dict[str, str]) -> dict[str, str]:
    """Parse a file on a node; return its report as JSON, or a path that the node does not see."""
    from raybio.methods.biostransformers.formats.medline_parts import parse_file

    answer = {"report": "", "missing": "", "node": platform.node()}
    for path in (row["path"], parts):
        if not os.path.exists(path):
            # A file that is missing only on this node must not count as a broken file, which is
            # skipped.
            return answer | {"missing": path}
    report = parse_file(row["path"], parts)
    # Return the report as text, since reports differ in their fields and Arrow needs one type.
    return answer | {"report": json.dumps(report._asdict())}
