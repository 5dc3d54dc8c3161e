"""The commands of ``jobs/prepare.py``: source files in, a store out, and what was set aside shown."""

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from raybio.cli.app import meanings, settings_of
from raybio.cli.options import fraction
from raybio.cli.prepare_benchmarks import benchmarks
from raybio.cli.prepare_graphs import graphs
from raybio.cli.prepared import Force, Out, matching, show_store
from raybio.core.errors import ConfigError
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.formats.download import download_pubmed
from raybio.methods.biostransformers.formats.medline_parts import FileReport, parse_file
from raybio.methods.biostransformers.prepare import parse_here, prepare_medline, prepare_pairs
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mtb.config import PairCountConfig
from raybio.methods.mtb_mccl.mtb.recurring_pairs import (
    PairCount,
    count_in_process,
    save_recurring_pairs,
)
from raybio.methods.relation_graphs.prepare import (
    prepare_words,
    statistics_of_words,
    word_statistics_markdown,
)
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.formats import Tables
from raybio.methods.sppt.proteins.tree_of_life import TreeOfLife
from raybio.runtime.map_rows import map_rows
from raybio.store.store import open_store

app = typer.Typer(
    help="Prepare a store or a benchmark from source files.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


app.add_typer(benchmarks)


app.add_typer(graphs)


PROTEINS, PROTEIN_HELP = PrepareConfig(), meanings(PrepareConfig)


ARTICLES, ARTICLE_HELP = ArticleConfig(), meanings(ArticleConfig)


COUNTS, COUNT_HELP = PairCountConfig(), meanings(PairCountConfig)


DEV_SHARE = (
    "in place of --dev: keep this share of the --input documents with relations to choose settings on, drawn by their "
    "ids; documents without any stay in training, for nothing tells whether they were labelled"
)


ValidationShare = Annotated[
    float, typer.Option(parser=fraction, metavar="FLOAT", help=ARTICLE_HELP["validation_share"])
]


ArticleSeed = Annotated[int, typer.Option(help=ARTICLE_HELP["seed"])]


ArticleBadShare = Annotated[
    float, typer.Option(parser=fraction, metavar="FLOAT", help=ARTICLE_HELP["max_bad_share"])
]


@app.command()
def proteins(
    out: Out,
    interactomes: Annotated[
        Path | None, typer.Option(help="folder with <taxid>.txt (SNAP Tree-of-life)")
    ] = None,
    species: Annotated[Path | None, typer.Option(help="treeoflife.species.tsv")] = None,
    sequences: Annotated[
        Path | None, typer.Option(help="FASTA file, or folder with <taxid>.fa[.gz]")
    ] = None,
    edges: Annotated[Path | None, typer.Option(help="table: protein_a, protein_b")] = None,
    proteins: Annotated[
        Path | None, typer.Option(help="table: protein_id, species_taxid (a number), sequence")
    ] = None,
    heldout_share: Annotated[
        float, typer.Option(parser=fraction, metavar="FLOAT", help=PROTEIN_HELP["heldout_share"])
    ] = PROTEINS.heldout_share,
    seed: Annotated[int, typer.Option(help=PROTEIN_HELP["seed"])] = PROTEINS.seed,
    strip_stop: Annotated[
        bool, typer.Option(help=PROTEIN_HELP["strip_stop"])
    ] = PROTEINS.strip_stop,
    max_length: Annotated[int, typer.Option(help=PROTEIN_HELP["max_length"])] = PROTEINS.max_length,
    max_bad_share: Annotated[
        float, typer.Option(parser=fraction, metavar="FLOAT", help=PROTEIN_HELP["max_bad_share"])
    ] = PROTEINS.max_bad_share,
    force: Force = False,
) -> None:
    """Protein sequences and their links: a Tree-of-life download, or two tables (.gz too)."""
    config, started = settings_of(PrepareConfig, locals()), time.perf_counter()
    tree_of_life, tables = (interactomes, species, sequences), (edges, proteins)
    if all(tree_of_life) == all(tables) or (any(tree_of_life) and any(tables)):
        raise ConfigError(
            "want either --interactomes, --species and --sequences, or --edges and --proteins"
        )
    source = TreeOfLife(*tree_of_life) if all(tree_of_life) else Tables(*tables)  # type: ignore[arg-type]
    show_store(prepare_proteins(out, source, config, force=force), started)


@app.command()
def medline(
    source: Annotated[
        list[str], typer.Option("--input", help="files or patterns, oldest first; quote patterns")
    ],
    out: Out,
    validation_share: ValidationShare = ARTICLES.validation_share,
    seed: ArticleSeed = ARTICLES.seed,
    max_bad_share: ArticleBadShare = ARTICLES.max_bad_share,
    parts: Annotated[
        Path | None,
        typer.Option(
            help="folder that keeps the parsed files; default: beside the store until it is done"
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(min=0, help="parse so many files at once, by Ray Data; 0: here, without Ray"),
    ] = 0,
    force: Force = False,
) -> None:
    """Articles from PubMed baseline and update files (.xml, .xml.gz): titles, abstracts, MeSH terms."""
    config, started = settings_of(ArticleConfig, locals()), time.perf_counter()
    parse_all = partial(_parse_by_ray_data, workers) if workers else parse_here
    show_store(
        prepare_medline(
            out, matching(source), config, force=force, parse_all=parse_all, parts=parts
        ),
        started,
    )


@app.command()
def pairs(
    source: Annotated[
        list[str], typer.Option("--input", help="tables or patterns, oldest first; quote patterns")
    ],
    out: Out,
    validation_share: ValidationShare = ARTICLES.validation_share,
    seed: ArticleSeed = ARTICLES.seed,
    max_bad_share: ArticleBadShare = ARTICLES.max_bad_share,
    force: Force = False,
) -> None:
    """Articles from tables: the BioSTransformers authors' layouts, text,label files, or PubMedQA's JSON (.gz too)."""
    config, started = settings_of(ArticleConfig, locals()), time.perf_counter()
    show_store(prepare_pairs(out, matching(source), config, force=force), started)


@app.command()
def documents(
    source: Annotated[
        list[str], typer.Option("--input", help="files to train on, or patterns; quote patterns")
    ],
    out: Out,
    dev: Annotated[list[str] | None, typer.Option(help="files to choose settings on")] = None,
    dev_share: Annotated[
        float | None, typer.Option(parser=fraction, metavar="FLOAT", help=DEV_SHARE)
    ] = None,
    test: Annotated[list[str] | None, typer.Option(help="files to report on")] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="keep the documents of these files out of training")
    ] = None,
    relation_names: Annotated[
        Path | None, typer.Option(help="JSON object id -> name, as DocRED's rel_info.json")
    ] = None,
    min_type_pair_relations: Annotated[
        int,
        typer.Option(
            min=1, help="pairs of entity types with fewer training relations are no candidates"
        ),
    ] = 2,
    seed: Annotated[int, typer.Option(min=0, help="which documents --dev-share takes")] = 0,
    max_bad_share: Annotated[
        float, typer.Option(parser=fraction, metavar="FLOAT", help=ARTICLE_HELP["max_bad_share"])
    ] = 0.1,
    force: Force = False,
) -> None:
    """Documents with entities and relations: PubTator's format, BioC XML or JSON, DocRED's JSON (.gz too)."""
    started = time.perf_counter()
    store = prepare_documents(
        out,
        matching(source),
        dev=matching(dev or (), "--dev"),
        test=matching(test or (), "--test"),
        exclude=matching(exclude or (), "--exclude"),
        relation_names=relation_names,
        dev_share=dev_share,
        seed=seed,
        force=force,
        min_type_pair_relations=min_type_pair_relations,
        max_bad_share=max_bad_share,
    )
    show_store(store, started)
    if dev_share is not None:
        num_drawn, num_left = (
            store.manifest["counts"][f"{split}_documents"] for split in ("dev", "train")
        )
        print(
            f"drawn from --input to choose settings on: {num_drawn:,} documents; {num_left:,} are left to train on"
        )


@app.command()
def recurring_pairs(
    store: Annotated[Path, typer.Option(help="prepared documents")],
    min_documents: Annotated[
        int, typer.Option(help=COUNT_HELP["min_documents"])
    ] = COUNTS.min_documents,
    num_pairs: Annotated[int, typer.Option(help=COUNT_HELP["num_pairs"])] = COUNTS.num_pairs,
    workers: Annotated[
        int, typer.Option(min=0, help="count so many parts at once, by Ray Data; 0: here")
    ] = 0,
) -> None:
    """The pairs of entities that MTB trains on, counted once for all runs with these settings: for large corpora."""
    config, started = settings_of(PairCountConfig, locals()), time.perf_counter()
    count_parts = partial(_count_by_ray_data, workers) if workers else count_in_process
    pairs = save_recurring_pairs(open_store(store, DocumentStore), config, count_parts)
    print(
        f"{len(pairs):,} pairs in {pairs.count_K.min():,} to {pairs.count_K.max():,} documents each; left in {store} "
        f"({time.perf_counter() - started:.1f} s). Train with --set pairs.min_documents={min_documents} "
        f"--set pairs.num_pairs={num_pairs}"
    )


@app.command()
def download(
    out: Annotated[Path, typer.Option(help="folder of the files")],
    url: Annotated[
        str, typer.Option(help="the folder's address")
    ] = "https://ftp.ncbi.nlm.nih.gov/pubmed/baseline/",
    first: Annotated[int | None, typer.Option(min=0, help="number of the first file")] = None,
    last: Annotated[int | None, typer.Option(min=0, help="number of the last file")] = None,
) -> None:
    """PubMed baseline or update files: resumable, md5 sums checked."""
    if first is not None and last is not None and first > last:
        raise ConfigError(
            f"--first {first} comes after --last {last}; want the first number and then the last"
        )
    print(f"asking {url} for its files")

    def show(name: str, num_done: int, num_files: int) -> None:
        print(f"{num_done:,}/{num_files:,} {name}")

    files = download_pubmed(url, out, first=first, last=last, progress=show)
    print(
        f"{len(files):,} files in {out}; next: python jobs/prepare.py medline --input '{out}/*.xml.gz' --out STORE"
    )


@app.command()
def ade(
    source: Annotated[list[str], typer.Option("--input", help="files or patterns; quote patterns")],
    out: Out,
    splits: Annotated[
        Path | None, typer.Option(help="folds of a cross-validation, as ADE's cv_splits.json")
    ] = None,
    dev: Annotated[
        list[str] | None, typer.Option(help="without --splits: files to choose settings on")
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option(help="without --splits: files to report on")
    ] = None,
    max_bad_share: Annotated[
        float, typer.Option(parser=fraction, metavar="FLOAT", help=ARTICLE_HELP["max_bad_share"])
    ] = 0.1,
    force: Force = False,
) -> None:
    """Sentences whose words carry entities and relations: SpERT-layout JSON of any corpus, ADE or others (.gz too)."""
    started = time.perf_counter()
    store = prepare_words(
        out,
        matching(source),
        splits=splits,
        dev=matching(dev or (), "--dev"),
        test=matching(test or (), "--test"),
        force=force,
        max_bad_share=max_bad_share,
    )
    show_store(store, started)


@app.command()
def word_statistics(
    store: Annotated[Path, typer.Option(help="prepared sentences (the command ade)")],
    batch: Annotated[int, typer.Option(min=1, help="sentences of the batch of Table 5")] = 16,
) -> None:
    """What prepared sentences are made of, as Markdown: the CLDR paper's Tables 1, 5 and 6."""
    print(word_statistics_markdown(statistics_of_words(open_store(store, WordStore), batch)))


def _parse_by_ray_data(workers: int, files: Sequence[Path], parts: Path) -> list[FileReport]:
    rows = [{"path": str(path.absolute())} for path in files]
    parsed = map_rows(workers, rows, partial(_parse_row, str(parts.absolute())))
    found = {
        report.path: report
        for report in (FileReport(**json.loads(row["report"])) for row in parsed)
    }
    return [found[str(path.absolute())] for path in files]


def _parse_row(parts: str, row: dict[str, Any]) -> dict[str, Any]:
    # As text: reports differ in what they hold, and Arrow would want one type for all.
    return {"report": json.dumps(parse_file(row["path"], parts)._asdict())}


def _count_by_ray_data(workers: int, count: PairCount) -> list[tuple[np.ndarray, np.ndarray]]:
    rows = [{"part": part} for part in range(count.num_parts)]
    counted = {row["part"]: row for row in map_rows(workers, rows, partial(_count_row, count))}
    return [
        (
            np.frombuffer(counted[part]["pair"], np.int64),
            np.frombuffer(counted[part]["count"], np.int64),
        )
        for part in range(count.num_parts)
    ]


def _count_row(count: PairCount, row: dict[str, Any]) -> dict[str, Any]:
    pair_U, count_U = count(row["part"])
    return {"part": row["part"], "pair": pair_U.tobytes(), "count": count_U.tobytes()}
