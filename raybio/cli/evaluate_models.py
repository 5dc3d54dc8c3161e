"""Evaluations of any model on the user's own data: retrieval of documents, and of links."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raybio.cli.console import stdout_console
from raybio.cli.options import (
    PRECISION,
    LocationType,
    PoolingOption,
    PrecisionOption,
    encoders_in,
    location_option,
    model_option,
)
from raybio.cli.stores import check_store, local_copy
from raybio.core.distance import Distance
from raybio.core.errors import ConfigError
from raybio.core.files import check_writable_folder
from raybio.core.table_layout import TableLayout
from raybio.encoders.config import Pooling
from raybio.runtime.model_paths import local_model
from raybio.training.settings import EmbeddingPrecision

if TYPE_CHECKING:
    from raybio.core.final_report import FinalReport
    from raybio.evaluation.lexical import TextScorer
    from raybio.training.embedding_model import EmbeddingModel

evaluate = typer.Typer()

Models = Annotated[
    list[str],
    model_option(
        "run, model folder (such as export/ of a run) or hub id; repeatable: the table compares "
        "the first with the others"
    ),
]
Report = Annotated[Path, typer.Option(help="folder of the report")]


@evaluate.command()
def retrieval(
    model: Models,
    corpus: Annotated[
        LocationType, location_option("JSON lines: _id, text and perhaps title (.gz too)")
    ],
    queries: Annotated[LocationType, location_option("JSON lines: _id, text (.gz too)")],
    qrels: Annotated[LocationType, location_option("TSV with header: query-id, corpus-id, score")],
    out: Report,
    pooling: PoolingOption = None,
    precision: PrecisionOption = "fp32",
    seed: Annotated[int, typer.Option(min=0, help="seed of the intervals")] = 0,
) -> None:
    """Rank a corpus for queries (BEIR's files); compare with TF-IDF, BM25 and chance.

    nDCG@10, MRR@10, MAP@100, and accuracy, precision and recall at cut-offs, as of the
    InformationRetrievalEvaluator of sentence-transformers.

    Example: raybio evaluate retrieval --model runs/bios --corpus corpus.jsonl
    --queries queries.jsonl --qrels test.tsv --out report/
    """
    check_writable_folder(out)
    folder_by_name = _folders(model)
    sources = [
        local_copy(source, option)
        for source, option in ((corpus, "--corpus"), (queries, "--queries"), (qrels, "--qrels"))
    ]
    model_by_name = _read_models(folder_by_name, pooling)
    for name, each in model_by_name.items():
        if each.reads != "texts":
            raise ConfigError(f"--model {name}: reads {each.reads}, want an encoder of texts")
    from raybio.evaluation.retrieval import RETRIEVAL, retrieval_report
    from raybio.store.retrieval_files import read_retrieval_files

    embedding = encoders_in(precision)
    files = read_retrieval_files(*sources)
    remarks = list(files.remarks)
    for name, each in model_by_name.items():
        cut = _cut(each, [*files.queries, *files.documents])
        if cut:
            remarks.append(f"{name}: {cut}")
    with embedding:
        report = retrieval_report(
            {name: _scorer(name, each) for name, each in model_by_name.items()},
            files.documents,
            files.queries,
            files.indptr,
            files.indices,
            unit_U=files.position_Q,
            seed=seed,
            remarks=remarks,
        )
    settings = {"models": model, "seed": seed, "precision": precision}
    settings |= {"pooling": _poolings(model_by_name), "weights": _weights(model_by_name)}
    settings |= {"corpus": str(corpus), "queries": str(queries), "qrels": str(qrels)}
    _show(model[0], report, RETRIEVAL, out, settings)


@evaluate.command()
def links(
    model: Models,
    store: Annotated[
        LocationType, location_option("prepared proteins or articles, and their links")
    ],
    out: Report,
    split: Annotated[
        str | None,
        typer.Option(
            help="tables that are shown, separated by commas: train, val, and parts of val "
            "(no_twins, c1, c2, c3); default: all that the store has"
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="nodes drawn from each group, to which their neighbors are added; 0: whole "
            "groups; default: as the run, else whole groups of proteins and 5,000 articles",
        ),
    ] = None,
    metric: Annotated[
        Distance | None, typer.Option(help="default: as the run, else euclidean")
    ] = None,
    gnn: Annotated[
        bool,
        typer.Option(
            "--gnn",
            help="a row by a graph network over the frozen embeddings of the first model (of a "
            "run's: its initial encoder); at most 50,000 nodes",
        ),
    ] = False,
    pooling: PoolingOption = None,
    precision: Annotated[
        EmbeddingPrecision | None,
        typer.Option(help=f"{PRECISION}; default: as the run, else fp32"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="seed of random vectors and intervals; default: the run's, else 0"
        ),
    ] = None,
) -> None:
    """Link retrieval of any model on a store, with the rows of a run's final table.

    If the first model is the export of a run over this store, the settings of that run count: the
    figures are those of its table. Further models have the same settings.

    Example: raybio evaluate links --model runs/first --store STORE --out report/
    """
    from raybio.methods.sppt.table import LINK_RETRIEVAL

    layout = _shown(LINK_RETRIEVAL, split)
    check_writable_folder(out)
    folder_by_name = _folders(model)
    check_store(store)
    model_by_name = _read_models(folder_by_name, pooling)
    from raybio.methods.sppt.model_links import LinkEvaluationOptions, evaluate_model_links

    options = LinkEvaluationOptions(
        nodes=nodes, metric=metric, seed=seed, precision=precision, gnn=gnn or None
    )
    report = evaluate_model_links(model_by_name, store, options, report=print)
    settings: dict[str, Any] = {"models": model, "store": str(store)}
    settings |= {"pooling": _poolings(model_by_name), "weights": _weights(model_by_name)}
    settings |= {"nodes": nodes, "metric": metric, "precision": precision, "seed": seed, "gnn": gnn}
    _show(model[0], report, layout, out, settings)


def _folders(models: Sequence[str]) -> dict[str, str]:
    """Return the local folder of each model, by the name that the user gave."""
    return {name: local_model(name, "--model") for name in models}


def _read_models(
    folder_by_name: Mapping[str, str], pooling: Pooling | None
) -> "dict[str, EmbeddingModel]":
    """Return how each model embeds; no weights are loaded.

    Raises:
        ConfigError: for a model that cannot be read, or if all models state their pooling and one
            differs from ``pooling``.
    """
    # Imported here: torch takes seconds to import.
    from raybio.runtime.model_folders import model_of_folder, refuse_ignored_pooling, states_pooling

    model_by_name = {}
    for name, folder in folder_by_name.items():
        # With several models, --pooling applies to those that do not state theirs.
        own = None if states_pooling(folder) else pooling
        model_by_name[name] = model_of_folder(folder, own)
    refuse_ignored_pooling(folder_by_name.values(), pooling)
    return model_by_name


def _poolings(model_by_name: "Mapping[str, EmbeddingModel]") -> dict[str, str]:
    """Return the pooling of each model."""
    return {name: model.pooling for name, model in model_by_name.items()}


def _weights(model_by_name: "Mapping[str, EmbeddingModel]") -> dict[str, dict[str, str]]:
    """Return the identity of each model: its digest, and its commit if it is from the hub."""
    # Imported here: it imports the hub's client, which takes a second.
    from raybio.encoders.hub import commit_of

    weights = {}
    for name, model in model_by_name.items():
        commit = commit_of(Path(model.folder))
        weights[name] = {"digest": model.digest()} | ({} if commit is None else {"commit": commit})
    return weights


def _scorer(name: str, model: "EmbeddingModel") -> "TextScorer":
    """Return a scorer by cosines of a model's embeddings; the weights are loaded."""
    import torch

    from raybio.ops.retrieval import Scores, cosine_scores
    from raybio.training.embed import check_embeddings
    from raybio.training.precision import default_device

    def score(queries: Sequence[str], documents: Sequence[str]) -> Scores:
        """Return the similarity of each query to each document."""
        print(f"embedding {len(queries):,} queries and {len(documents):,} documents by {name}")
        device = default_device()
        encoder = model.load().to(device)
        embeddings = []
        for texts in (queries, documents):
            embedding_ND = torch.from_numpy(model.embed(encoder, model.contents_of(texts)))
            check_embeddings(embedding_ND, f"--model {name}")
            embeddings.append(embedding_ND.to(device))
        return cosine_scores(*embeddings)

    return score


def _cut(model: "EmbeddingModel", texts: Sequence[str]) -> str:
    """Return a remark on the texts that the model truncates."""
    import pyarrow as pa

    contents = pa.chunked_array([pa.array(model.contents_of(texts), pa.large_binary())])
    return model.input_lengths([contents], 1).remark


def _shown(layout: TableLayout, split: str | None) -> TableLayout:
    """Return the layout with only some of its splits."""
    if split is None:
        return layout
    names = [name.strip() for name in split.split(",")]
    unknown = [name for name in names if name not in layout.splits]
    if unknown:
        raise ConfigError(f"--split {unknown[0]}: want {', '.join(layout.splits)}")
    return replace(layout, splits={name: layout.splits[name] for name in names})


def _show(
    label: str, report: "FinalReport", layout: TableLayout, out: Path, settings: dict[str, Any]
) -> None:
    """Write the report, and print its table."""
    from raybio.runtime.compare.model_report import write_model_report
    from raybio.runtime.compare.table import lines_for_terminal

    scored = report.scores["trained"]
    if not layout.splits.keys() & scored.keys():
        raise ConfigError(f"--split: nothing of it is in the store, which has {', '.join(scored)}")
    table = write_model_report(label, report, layout, out, settings)
    console = stdout_console()
    for renderable in lines_for_terminal(table):
        console.print(renderable)
    print(f"report: {out / 'report.json'}, {out / 'table.md'}")
