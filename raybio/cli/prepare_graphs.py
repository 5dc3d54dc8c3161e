"""The commands of ``jobs/prepare.py`` for graphs of texts: articles that cite each other, sentences with topics."""

import time
from pathlib import Path
from typing import Annotated

import typer

from raybio.cli.app import meanings, settings_of
from raybio.cli.options import fraction
from raybio.cli.prepared import Force, Out, matching, show_store
from raybio.core.errors import ConfigError
from raybio.methods.sppt.articles.formats.cane import Cane
from raybio.methods.sppt.articles.formats.ogb_mag import OgbMag
from raybio.methods.sppt.articles.formats.tables import LinkedTables
from raybio.methods.sppt.config import LinkedTextConfig
from raybio.methods.sppt.prepare import TextSource, prepare_linked_texts
from raybio.methods.sppt.synthetic.config import TopicConfig
from raybio.methods.sppt.synthetic.topics import prepare_topics

graphs = typer.Typer()


TEXTS, TEXT_HELP = LinkedTextConfig(), meanings(LinkedTextConfig)


TOPICS, TOPIC_HELP = TopicConfig(), meanings(TopicConfig)


@graphs.command()
def articles(
    out: Out,
    nodes: Annotated[Path | None, typer.Option(help="table: id, title, abstract")] = None,
    edges: Annotated[Path | None, typer.Option(help="table: citing, cited")] = None,
    cane: Annotated[
        Path | None, typer.Option(help="folder with data.txt and graph.txt, as CANE's sets")
    ] = None,
    mag: Annotated[
        Path | None, typer.Option(help="folder ogbn_mag/ (OGB), with --abstracts")
    ] = None,
    abstracts: Annotated[
        list[str] | None,
        typer.Option(
            help="MAG's PaperAbstractsInvertedIndex.txt, parts or patterns; or a CSV ent idx,abstract"
        ),
    ] = None,
    heldout_share: Annotated[
        float, typer.Option(parser=fraction, metavar="FLOAT", help=TEXT_HELP["heldout_share"])
    ] = TEXTS.heldout_share,
    seed: Annotated[int, typer.Option(help=TEXT_HELP["seed"])] = TEXTS.seed,
    max_bad_share: Annotated[
        float, typer.Option(parser=fraction, metavar="FLOAT", help=TEXT_HELP["max_bad_share"])
    ] = TEXTS.max_bad_share,
    force: Force = False,
) -> None:
    """Articles that cite each other, for SPPT: OGB-MAG, two tables, or CANE's layout (.gz too)."""
    config, started = settings_of(LinkedTextConfig, locals()), time.perf_counter()
    given = {"tables": (nodes, edges), "cane": (cane,), "mag": (mag, abstracts)}
    layouts = [name for name, options in given.items() if any(options)]
    if len(layouts) != 1 or not all(given[layouts[0]]):
        raise ConfigError("want either --nodes and --edges, or --cane, or --mag and --abstracts")
    source: TextSource
    if cane is not None:
        source = Cane(cane)
    elif mag is not None:
        source = OgbMag(mag, matching(abstracts or (), "--abstracts"))
    else:
        source = LinkedTables(nodes, edges)  # type: ignore[arg-type]
    show_store(prepare_linked_texts(out, source, config, force=force), started)


@graphs.command()
def topics(
    source: Annotated[
        list[str], typer.Option("--input", help="files of sentences, one a line; quote patterns")
    ],
    out: Out,
    num_topics: Annotated[int, typer.Option(help=TOPIC_HELP["num_topics"])] = TOPICS.num_topics,
    max_share: Annotated[
        float, typer.Option(parser=fraction, metavar="FLOAT", help=TOPIC_HELP["max_share"])
    ] = TOPICS.max_share,
    min_count: Annotated[int, typer.Option(help=TOPIC_HELP["min_count"])] = TOPICS.min_count,
    min_words: Annotated[int, typer.Option(help=TOPIC_HELP["min_words"])] = TOPICS.min_words,
    num_passes: Annotated[int, typer.Option(help=TOPIC_HELP["num_passes"])] = TOPICS.num_passes,
    seed: Annotated[int, typer.Option(help=TOPIC_HELP["seed"])] = TOPICS.seed,
    force: Force = False,
) -> None:
    """Sentences and their topics, for SPPT's synthetic graphs (.gz too)."""
    config, started = settings_of(TopicConfig, locals()), time.perf_counter()
    store = prepare_topics(out, matching(source), config, force=force)
    show_store(store, started)
    for number, words in enumerate(store.topic_words):
        print(f"topic {number}: {words}")
