"""Commands of SPPT: stores of proteins, articles and sentences with topics; links and task fit."""

from typing import Annotated, Any

import typer

from raybio.cli.options import (
    LocationType,
    PrecisionOption,
    encoders_in,
    location_option,
    model_option,
    sources_option,
)
from raybio.cli.scores import ScoresFile, write_scores
from raybio.cli.settings import with_settings
from raybio.cli.stores import (
    Force,
    NewStore,
    Out,
    check_store,
    local_copy,
    matching,
)
from raybio.core.errors import ConfigError
from raybio.core.files import check_model_sources
from raybio.core.location import Location
from raybio.encoders.config import Pooling
from raybio.methods.sppt.config import LinkedTextConfig, PrepareConfig
from raybio.methods.sppt.synthetic.config import TopicConfig
from raybio.runtime.model_paths import model_folder

evaluate = typer.Typer()
prepare = typer.Typer()


@evaluate.command()
def link_samples(
    model: Annotated[
        list[str], model_option("run of sppt_mag, model folder or hub id; repeatable")
    ],
    store: Annotated[LocationType, location_option("prepared articles and their citations")],
    pooling: Annotated[
        Pooling, typer.Option(help="of models whose folder does not state it; the paper: cls")
    ] = "cls",
    max_length: Annotated[int, typer.Option(min=3, help="maximum tokens of a text")] = 512,
    trials: Annotated[int, typer.Option(min=1, help="number of test graphs")] = 5,
    samples: Annotated[int, typer.Option(min=1, help="samples of each test graph")] = 100,
    nodes: Annotated[
        int, typer.Option(min=1, help="nodes drawn for a sample; their neighbors are added")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, help="seed of test graphs and samples")] = 0,
    precision: PrecisionOption = "fp32",
    out: ScoresFile = None,
) -> None:
    """Link retrieval of text encoders on samples of test graphs: the SPPT paper's Table 7.

    For stores of articles only; raybio evaluate links takes proteins too.

    Example: raybio evaluate link-samples --store STORE --model runs/mag
    """
    check_store(store)
    name_by_folder = {model_folder(source, "--model"): source for source in model}
    _check_has_texts(store)
    folders = list(name_by_folder)
    check_model_sources(folders)
    from raybio.core.markdown import markdown_table
    from raybio.methods.sppt.articles.evaluate import evaluate_link_samples, truncation_remarks
    from raybio.methods.sppt.articles.link_samples import MEASURES
    from raybio.methods.sppt.table import LINK_RETRIEVAL

    remarks = {}
    for folder, remark in truncation_remarks(folders, store, max_length).items():
        remarks[name_by_folder[folder]] = remark
        print(f"{name_by_folder[folder]}: {remark}")
    settings: dict[str, Any] = {
        "pooling": pooling,
        "max_length": max_length,
        "seed": seed,
        "trials": trials,
        "samples": samples,
        "nodes": nodes,
    }
    rows = []
    scores = {}
    with encoders_in(precision):
        evaluated = evaluate_link_samples(folders, store, report=print, **settings)
    settings["precision"] = precision
    for folder, score_by_measure in evaluated.items():
        # Baselines have a name but no folder.
        name = name_by_folder.get(folder, folder)
        cells = []
        for measure, score in score_by_measure.items():
            scale, digits = LINK_RETRIEVAL.scale(measure)
            cells.append(f"{scale * score.mean:.{digits}f} ± {scale * score.deviation:.{digits}f}")
        rows.append([name, *cells])
        scores[name] = {measure: score._asdict() for measure, score in score_by_measure.items()}
    titles = [LINK_RETRIEVAL.measures[measure] for measure in MEASURES]
    print(markdown_table(["model", *titles], rows))
    print(
        f"\nMRR as it is, the others in %; mean ± standard deviation over {trials} test graphs, "
        f"{samples} samples of {nodes} nodes each"
    )
    data = {"store": str(store), "settings": settings, "scores": scores, "cuts": remarks}
    write_scores(out, data)


def _check_has_texts(path: Location) -> None:
    """Refuse a prepared store of anything but articles, before a model is read.

    Raises:
        ConfigError: with advice on what to do instead.
        StoreError: for a store that cannot be read.
    """
    from raybio.methods.sppt.articles.store import LinkedTextStore
    from raybio.store.store import open_store

    kind = open_store(path).manifest["kind"]
    if kind != LinkedTextStore.kind:
        raise ConfigError(
            f"--store {path}: is a store of {kind}, want {LinkedTextStore.kind}: this command "
            "embeds texts. For links of proteins use raybio evaluate links: it scores training "
            "and held-out links of the whole store"
        )


@evaluate.command()
def task_fit(
    store: Annotated[
        LocationType, location_option("prepared proteins or articles, and their links")
    ],
    labels: Annotated[
        LocationType,
        location_option("table with a header: id and label, in any form (.gz too)"),
    ],
    numbers: Annotated[
        bool, typer.Option("--numbers", help="labels are numbers, not classes")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="seed of the shuffled labels")] = 0,
    out: ScoresFile = None,
) -> None:
    """Before training, measure label homophily of your graph against shuffled labels.

    Example: raybio evaluate task-fit --store STORE --labels labels.tsv
    """
    check_store(store)
    label_file = local_copy(labels, "--labels")
    from raybio.methods.sppt.graph_store import open_graph
    from raybio.methods.sppt.node_labels import read_node_labels
    from raybio.methods.sppt.task_fit import (
        ChanceComparison,
        class_fit,
        fit_report,
        number_fit,
    )

    linked = open_graph(store)
    read = read_node_labels(label_file, linked.keys)
    if numbers:
        data = number_fit(linked.graph, read.numbers(), seed=seed)
    else:
        data = class_fit(linked.graph, read.classes()[0], seed=seed)
    data["unknown_ids"] = len(read.unknown)
    print(fit_report(data, f"{labels} on the graph of {store}"))
    if read.unknown:
        print(
            f"\n{len(read.unknown):,} ids of the table are not in the store, "
            f"such as {read.unknown[0]}"
        )
    plain = {}
    for name, value in data.items():
        plain[name] = value._asdict() if isinstance(value, ChanceComparison) else value
    write_scores(out, plain)


@prepare.command()
@with_settings(PrepareConfig)
def proteins(
    out: Out,
    *,
    interactomes: Annotated[
        LocationType | None, location_option("folder with <taxid>.txt[.gz] (SNAP Tree-of-life)")
    ] = None,
    species: Annotated[LocationType | None, location_option("treeoflife.species.tsv")] = None,
    sequences: Annotated[
        LocationType | None, location_option("FASTA file, or folder with <taxid>.fa[.gz]")
    ] = None,
    edges: Annotated[
        list[str] | None,
        sources_option(
            "links: two ids a line and perhaps a score, divided by tabs, commas or blanks, with or "
            "without a header; Parquet; JSON lines; STRING's protein.links; quote patterns"
        ),
    ] = None,
    proteins: Annotated[
        list[str] | None,
        sources_option(
            "FASTA (UniProt's, STRING's, others), or tables (TSV, CSV, Parquet, JSON lines): "
            "protein_id, species_taxid, sequence; quote patterns"
        ),
    ] = None,
    config: PrepareConfig,
    force: Force = False,
) -> None:
    """Proteins and their links: FASTA or tables, STRING's files, or the Tree of life (.gz too).

    Example: raybio prepare proteins --edges edges.csv --proteins uniprot.fasta --out STORE
    """
    tree_of_life = (interactomes, species, sequences)
    tables = (edges, proteins)
    if any(tables) and not all(tables) and not any(tree_of_life):
        missing = "--proteins" if edges else "--edges"
        raise ConfigError(f"{missing} is missing: want --edges and --proteins, both")
    if all(tree_of_life) == all(tables) or (any(tree_of_life) and any(tables)):
        by_option = {
            "--interactomes": interactomes,
            "--species": species,
            "--sequences": sequences,
            "--edges": edges,
            "--proteins": proteins,
        }
        got = ", ".join(option for option, given in by_option.items() if given) or "none of them"
        raise ConfigError(
            "want --edges and --proteins (FASTA or a table), or the Tree of life's --interactomes, "
            f"--species and --sequences; got {got}"
        )
    if any(tree_of_life) and (config.strip_prefixes or config.strip_version):
        raise ConfigError(
            "--strip-prefix and --strip-version: want them with --edges and --proteins; ids of the "
            "Tree of life are those of its files"
        )
    new_store = NewStore(out, force=force)
    edge_files = matching(edges or (), "--edges")
    protein_files = matching(proteins or (), "--proteins")
    from raybio.methods.sppt.prepare import ProteinSource, prepare_proteins
    from raybio.methods.sppt.proteins.formats.tables import Tables
    from raybio.methods.sppt.proteins.formats.tree_of_life import TreeOfLife

    source: ProteinSource = Tables(edge_files, protein_files)
    if interactomes is not None and species is not None and sequences is not None:
        source = TreeOfLife(
            local_copy(interactomes, "--interactomes"),
            local_copy(species, "--species"),
            local_copy(sequences, "--sequences"),
        )

    new_store.write(prepare_proteins, source=source, config=config)


@prepare.command()
@with_settings(LinkedTextConfig)
def articles(
    out: Out,
    *,
    nodes: Annotated[
        LocationType | None,
        location_option("table: id, title, abstract; may have year or date; any form of table"),
    ] = None,
    edges: Annotated[LocationType | None, location_option("table: citing, cited")] = None,
    cane: Annotated[
        LocationType | None,
        location_option("folder with data.txt and graph.txt, as CANE's data sets"),
    ] = None,
    mag: Annotated[
        LocationType | None,
        location_option(
            "folder ogbn_mag/ (OGB), or ROOT/mag/ (torch-geometric's OGB_MAG), with --abstracts"
        ),
    ] = None,
    abstracts: Annotated[
        list[str] | None,
        sources_option(
            "OpenAlex's works or MAG's PaperAbstractsInvertedIndex.txt, files or patterns; "
            "or a CSV file with the columns ent idx,abstract"
        ),
    ] = None,
    openalex: Annotated[
        list[str] | None, sources_option("OpenAlex's works, files or patterns; quote patterns")
    ] = None,
    config: LinkedTextConfig,
    force: Force = False,
) -> None:
    """Articles and their citations, for SPPT: OpenAlex, OGB-MAG, two tables, or CANE's layout.

    Example: raybio prepare articles --nodes articles.tsv --edges citations.tsv --out STORE
    """
    given = {"tables": (nodes, edges), "cane": (cane,), "mag": (mag, abstracts)}
    given["openalex"] = (openalex,)
    layouts = [name for name, options in given.items() if any(options)]
    if len(layouts) != 1 or not all(given[layouts[0]]):
        raise ConfigError(
            "want either --nodes and --edges, or --cane, or --mag and --abstracts, or --openalex"
        )
    if config.language and not openalex:
        raise ConfigError(
            f"--language {config.language}: want it with --openalex, whose works have one"
        )
    new_store = NewStore(out, force=force)
    abstract_files = matching(abstracts or (), "--abstracts")
    works = matching(openalex or (), "--openalex")
    from raybio.methods.sppt.articles.formats.cane import Cane
    from raybio.methods.sppt.articles.formats.ogb_mag import (
        CITATIONS,
        MAPPING,
        NUM_NODES,
        YEARS,
        OgbMag,
    )
    from raybio.methods.sppt.articles.formats.openalex import OpenAlex
    from raybio.methods.sppt.articles.formats.tables import LinkedTables
    from raybio.methods.sppt.prepare import TextSource, prepare_linked_texts

    source: TextSource
    if cane is not None:
        source = Cane(local_copy(cane, "--cane"))
    elif mag is not None:
        folder = local_copy(mag, "--mag", (MAPPING, NUM_NODES, CITATIONS, YEARS))
        source = OgbMag(folder, abstract_files)
    elif works:
        source = OpenAlex(works, config.language)
    else:
        assert nodes is not None
        assert edges is not None
        source = LinkedTables(local_copy(nodes, "--nodes"), local_copy(edges, "--edges"))

    new_store.write(prepare_linked_texts, source=source, config=config)


@prepare.command()
@with_settings(TopicConfig)
def topics(
    source: Annotated[
        list[str], sources_option("files of sentences, one a line; quote patterns", "--input")
    ],
    out: Out,
    config: TopicConfig,
    force: Force = False,
) -> None:
    """Sentences and their topics, for SPPT's synthetic graphs (.gz too).

    Example: raybio prepare topics --input sentences.txt --num-topics 100 --out STORE
    """
    new_store = NewStore(out, force=force)
    files = matching(source)
    from raybio.methods.sppt.synthetic.prepare import prepare_topics

    store = new_store.write(prepare_topics, files=files, config=config)
    for number, words in enumerate(store.topic_words):
        print(f"topic {number}: {words}")
