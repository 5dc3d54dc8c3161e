"""The commands of ``jobs/evaluate.py``: finished models, judged on data that has gold."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raybio.cli.options import positive
from raybio.core.errors import ConfigError
from raybio.core.files import check_model_sources, check_writable_file, check_writable_folder
from raybio.methods.biostransformers.zero_shot.names import DATA_SETS, task_names
from raybio.runtime.run.folder import model_folder

if TYPE_CHECKING:
    from raybio.methods.mtb_mccl.documents.store import DocumentStore


TASKS = "; ".join(f"{name}: {', '.join(one.tasks)}" for name, one in DATA_SETS.items())


app = typer.Typer(
    help="Evaluate trained models.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


@app.command()
def zero_shot(
    model: Annotated[
        list[str],
        typer.Option(help="model folder (such as export/ of a run) or hub id; repeatable"),
    ],
    data: Annotated[
        Path, typer.Option(help="folder with hallmarks_of_cancer/, pubmedqa/, bioasq_7b/")
    ],
    out: Annotated[Path, typer.Option(help="folder of the report")],
    tasks: Annotated[
        str, typer.Option(help=f"data sets or single tasks, by comma ({TASKS})")
    ] = ",".join(DATA_SETS),
    hoc_pmids: Annotated[
        Path | None,
        typer.Option(
            help="file with one PMID a line: ask hoc tasks over these abstracts alone as well"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the intervals and tests")] = 0,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=3, help="tokens of a text that are read; default: 512, or what the model can read"
        ),
    ] = None,
) -> None:
    """Rank documents for queries by cosine alone; beside it TF-IDF, BM25, chance and the published figures."""
    names = task_names([name.strip() for name in tasks.split(",") if name.strip()])
    check_writable_folder(out)
    # Only now: these import torch and transformers, which takes seconds.
    from raybio.methods.biostransformers.zero_shot.evaluate import zero_shot as evaluate
    from raybio.methods.biostransformers.zero_shot.report import report_data, report_markdown

    results = evaluate(
        model,
        names,
        data,
        seed=seed,
        max_length=max_length,
        hoc_pmids=hoc_pmids,
        say=lambda task: print(f"judging {task}"),
    )
    settings = {"models": model, "data": str(data), "seed": seed, "max_length": max_length}
    if hoc_pmids is not None:
        settings["hoc_pmids"] = str(hoc_pmids)
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(report_data(results, settings), indent=2) + "\n")
    report = report_markdown(results, settings)
    (out / "report.md").write_text(report + "\n")
    print(report)
    print(f"report: {out / 'report.md'}, {out / 'report.json'}")


@app.command()
def relations(
    model: Annotated[str, typer.Option(help="run of relation_finetune, or its export/")],
    store: Annotated[Path, typer.Option(help="prepared documents with the same relations")],
    split: Annotated[str, typer.Option(help="dev or test")] = "test",
    out: Annotated[Path | None, typer.Option(help="write the scores here, as JSON")] = None,
) -> None:
    """Extract relations between entities: F1 with intervals, each relation, what is taken for what."""
    if split not in ("dev", "test"):
        raise ConfigError(
            f"--split: got {split!r}, want dev or test; training pairs are the model's own neighbours"
        )
    if out is not None:
        check_writable_file(out)
    # Only now: these import pyarrow, torch and transformers, which takes seconds.
    from raybio.methods.mtb_mccl.mccl.evaluate import evaluate_relations
    from raybio.methods.mtb_mccl.mccl.report import report_data, report_markdown

    evaluation = evaluate_relations(model_folder(model, "--model"), store, split, say=print)
    data = report_data(
        evaluation.relations,
        evaluation.scores,
        str(evaluation.knn_settings),
        evaluation.confusion_CC,
        chance=evaluation.chance,
        cuts=evaluation.cuts,
    )
    print(report_markdown(data, f"{model} on the {split} documents of {store}"))
    _write(out, data)


@app.command()
def relation_probe(
    model: Annotated[
        str, typer.Option(help="run of mtb_pretrain, its export/, or any model folder or hub id")
    ],
    store: Annotated[
        Path, typer.Option(help="prepared documents with relations: train, dev and test")
    ],
    label_fraction: Annotated[
        float,
        typer.Option(
            parser=positive,
            metavar="FLOAT",
            help="share of the training and validation pairs that keep their label",
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="which pairs these are")] = 0,
    out: Annotated[Path | None, typer.Option(help="write the scores here, as JSON")] = None,
) -> None:
    """Fit softmax, nearest centroid and classwise kNN on frozen pairs: one cluster a relation, or many?"""
    if not 0 < label_fraction <= 1:
        raise ConfigError(
            f"--label-fraction: got {label_fraction:g}, want a number above 0 and up to 1"
        )
    if out is not None:
        check_writable_file(out)
    model = model_folder(model, "--model")
    check_model_sources([model])
    documents = _documents(store, ("train", "dev", "test"))
    # Only now: these import torch and transformers, which takes seconds.
    from raybio.methods.mtb_mccl.mccl.frozen_pairs import truncation_remarks
    from raybio.methods.mtb_mccl.mccl.frozen_probe import probe_relations
    from raybio.methods.mtb_mccl.mccl.probe_report import probe_data, probe_markdown

    cuts = truncation_remarks(model, documents)
    for cut in cuts:
        print(cut)
    probed = probe_relations(model, documents, label_fraction=label_fraction, seed=seed, say=print)
    settings = {"model": model, "store": str(store), "label_fraction": label_fraction, "seed": seed}
    data = probe_data(probed, settings | ({"cut": "; ".join(cuts)} if cuts else {}))
    print(probe_markdown(data))
    _write(out, data)


@app.command()
def relation_map(
    model: Annotated[
        list[str],
        typer.Option(
            help="run, its export/, or any model folder or hub id; repeatable: side by side"
        ),
    ],
    store: Annotated[Path, typer.Option(help="prepared documents with relations")],
    out: Annotated[Path, typer.Option(help="folder of the figure and the table of its points")],
    split: Annotated[str, typer.Option(help="train, dev or test")] = "test",
    seed: Annotated[
        int, typer.Option(min=0, help="which pairs without a relation are drawn; of t-SNE")
    ] = 0,
) -> None:
    """Draw t-SNE maps of pairs: the four most frequent relations, those without any in grey."""
    check_writable_folder(out)
    model = [model_folder(one, "--model") for one in model]
    check_model_sources(model)
    from raybio.store.store import SPLITS

    if split not in SPLITS:
        raise ConfigError(f"--split: got {split!r}, want one of {', '.join(SPLITS)}")
    documents = _documents(store, (split,))
    # Only now: these import torch and transformers, which takes seconds.
    from raybio.methods.mtb_mccl.mccl.plots import plot_relation_maps, write_coordinates
    from raybio.methods.mtb_mccl.mccl.relation_map import relation_maps, select_map_pairs

    shown = select_map_pairs(documents, split, seed)
    position_by_name = relation_maps(model, documents, shown, seed=seed, say=print)
    named = [
        (
            documents.document_id(row),
            *(str(documents.entity_keys[documents.keys(row)[entity]]) for entity in pair),
        )
        for row, *pair in zip(
            shown.row_S.tolist(), shown.head_S.tolist(), shown.tail_S.tolist(), strict=True
        )
    ]
    relation_S = [(*shown.relations, "NA")[group] for group in shown.group_S.tolist()]
    rows = [(*names, relation) for names, relation in zip(named, relation_S, strict=True)]
    table = write_coordinates(rows, position_by_name, out / "relation_map.csv")
    figure = plot_relation_maps(
        position_by_name, shown.group_S, shown.relations, out / "relation_map.png"
    )
    print(f"map: {figure}, {table}")


@app.command()
def entities_relations(
    relations: Annotated[
        str,
        typer.Option(help="run of relation_graphs, or its export/: the space of pairs of words"),
    ],
    entities: Annotated[
        str, typer.Option(help="run with tags (clner, joint), or its export/: the space of words")
    ],
    store: Annotated[Path, typer.Option(help="prepared sentences")],
    out: Annotated[Path | None, typer.Option(help="write the scores here, as JSON")] = None,
) -> None:
    """Find entities and relations in the test sentences of the models' fold: NER, strict RE, RE of pairs of words."""
    if out is not None:
        check_writable_file(out)
    folders = model_folder(relations, "--relations"), model_folder(entities, "--entities")
    # Only now: these import torch and transformers, which takes seconds.
    from raybio.methods.relation_graphs.evaluate import chance_of_fold, judge_together
    from raybio.methods.relation_graphs.report import report_data, report_markdown
    from raybio.methods.relation_graphs.store import WordStore
    from raybio.store.store import open_store

    judged = judge_together(*folders, store, say=print)
    chance = chance_of_fold(folders[0], open_store(store, WordStore))
    intervals, rule = judged.intervals(), judged.rule
    told = f"{rule.pair_neighbours} neighbours vote on pairs, {rule.tag_neighbours} on tags"
    told += f"; a related pair counts {rule.probe_positive_weight:g} times in the linear probe"
    print(
        report_markdown(
            intervals, chance, told, f"relations by {relations}, entities by {entities}, {store}"
        )
    )
    if out is not None:
        data = report_data(
            intervals,
            chance,
            rule._asdict(),
            {"relations": relations, "entities": entities, "store": str(store)},
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


@app.command()
def sentence_graphs(
    model: Annotated[
        list[str],
        typer.Option(help="run of relation_graphs with graphs, or its export/; repeatable"),
    ],
    store: Annotated[Path, typer.Option(help="prepared sentences")],
    negatives: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="false graphs beside each true one, or all that there are; default: as in training",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the intervals")] = 0,
) -> None:
    """How often test sentences (clgs) or related pairs (cldr) have their true graph nearest (the paper's Table 2)."""
    folders = [model_folder(one, "--model") for one in model]
    # Only now: these import torch and transformers, which takes seconds.
    import numpy as np

    from raybio.core.markdown import markdown_table
    from raybio.methods.relation_graphs.evaluate import graph_accuracy_of_sentences
    from raybio.ops.significance import mean_interval

    rows = []
    for one, folder in zip(model, folders, strict=True):
        accuracy_S = graph_accuracy_of_sentences(folder, store, num_negatives=negatives)
        value, low, high = (
            100 * number for number in mean_interval(accuracy_S, np.random.default_rng(seed))
        )
        rows.append([one, f"{value:.2f} [{low:.2f}, {high:.2f}]", f"{len(accuracy_S):,}"])
    print(markdown_table(["model", "true graph nearest, %", "sentences"], rows))
    against = (
        "as many false graphs each as in training"
        if negatives is None
        else f"up to {negatives:,} false graphs each"
    )
    print(f"\n95 % intervals over sentences; against {against}")


@app.command()
def word_maps(
    store: Annotated[Path, typer.Option(help="prepared sentences with entities and relations")],
    out: Annotated[Path, typer.Option(help="folder of the figure and the table of its points")],
    relations: Annotated[
        str | None,
        typer.Option(
            help="a run of relation_graphs, or its export/, with a space of pairs: cldr, clgs, joint"
        ),
    ] = None,
    entities: Annotated[
        str | None,
        typer.Option(help="likewise, with a space of tags: clner, joint; of the same fold"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="which points are drawn; of t-SNE")] = 0,
) -> None:
    """Draw t-SNE maps of the fold's test sentences: pairs and words in the space of pairs, words in that of tags."""
    check_writable_folder(out)
    if relations is None and entities is None:
        raise ConfigError("--relations, --entities: got none of them; want at least one")
    models = {"--relations": relations, "--entities": entities}
    folders = {
        option: None if given is None else model_folder(given, option)
        for option, given in models.items()
    }
    for option, folder in folders.items():
        check_model_sources([] if folder is None else [folder], option)
    from raybio.methods.relation_graphs.store import WordStore
    from raybio.store.store import open_store

    sentences = open_store(store, WordStore)
    # Only now: these import torch and transformers, which takes seconds.
    from raybio.methods.relation_graphs.plots import plot_word_maps, write_word_maps
    from raybio.methods.relation_graphs.word_map import word_maps as lay_out

    panels = lay_out(folders["--relations"], folders["--entities"], sentences, seed=seed, say=print)
    figure = plot_word_maps(panels, out / "word_maps.png")
    print(f"map: {figure}, {write_word_maps(panels, sentences, out / 'word_maps.csv')}")


def _write(out: Path | None, data: Mapping[str, Any]) -> None:
    """What a command found, as JSON, if it is wanted."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _documents(store: Path, splits: Sequence[str]) -> "DocumentStore":
    """The store, if it has relations and these splits."""
    from raybio.methods.mtb_mccl.documents.store import DocumentStore
    from raybio.store.store import open_store

    found = open_store(store, DocumentStore)
    if len(found.relation_names) < 2:
        raise ConfigError(f"--store {store}: its documents have no relations; want labelled ones")
    for split in splits:
        if not len(found.split_rows(split)):
            raise ConfigError(
                f"--store {store}: has no {split} documents; prepare it with --{split}"
            )
    return found


@app.command()
def link_samples(
    model: Annotated[
        list[str], typer.Option(help="run of sppt_mag, model folder or hub id; repeatable")
    ],
    store: Annotated[Path, typer.Option(help="prepared articles and their citations")],
    pooling: Annotated[
        str, typer.Option(help="of models that do not say how: cls, as in the paper, or mean")
    ] = "cls",
    max_length: Annotated[int, typer.Option(min=3, help="tokens of a text that are read")] = 512,
    trials: Annotated[int, typer.Option(min=1, help="test graphs")] = 5,
    samples: Annotated[int, typer.Option(min=1, help="of each test graph")] = 100,
    nodes: Annotated[
        int, typer.Option(min=1, help="drawn for a sample; their neighbours join them")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, help="of test graphs and samples")] = 0,
    out: Annotated[Path | None, typer.Option(help="write the scores here, as JSON")] = None,
) -> None:
    """Link retrieval of text encoders on samples of test graphs, as in the SPPT paper's Table 7."""
    if pooling not in ("mean", "cls"):
        raise ConfigError(f"--pooling: got {pooling!r}, want mean or cls")
    if out is not None:
        check_writable_file(out)
    name_by_folder = {model_folder(one, "--model"): one for one in model}
    check_model_sources(list(name_by_folder))
    # Only now: these import torch and transformers, which takes seconds.
    from raybio.core.markdown import markdown_table
    from raybio.methods.sppt.articles.evaluate import evaluate_link_samples, truncation_remarks
    from raybio.methods.sppt.articles.link_samples import MEASURES

    cuts = truncation_remarks(list(name_by_folder), store, max_length)
    for folder, cut in cuts.items():
        print(f"{name_by_folder[folder]}: {cut}")
    sizes = {"trials": trials, "samples": samples, "nodes": nodes}
    settings = {"pooling": pooling, "max_length": max_length, "seed": seed} | sizes
    found = evaluate_link_samples(list(name_by_folder), store, report=print, **settings)  # type: ignore[arg-type]
    rows = [
        [
            name_by_folder.get(name, name),
            *(f"{100 * one.mean:.2f} ± {100 * one.deviation:.2f}" for one in row.values()),
        ]
        for name, row in found.items()
    ]
    from raybio.methods.sppt.table import LINK_RETRIEVAL

    print(markdown_table(["model", *(LINK_RETRIEVAL.measures[name] for name in MEASURES)], rows))
    print(
        f"\nin %; mean and deviation over {trials} test graphs, of each {samples} samples of {nodes} nodes"
    )
    scores = {
        name_by_folder.get(name, name): {measure: one._asdict() for measure, one in row.items()}
        for name, row in found.items()
    }
    told = {name_by_folder[folder]: cut for folder, cut in cuts.items()}
    _write(out, {"store": str(store), "settings": settings, "scores": scores, "cuts": told})


@app.command()
def task_fit(
    store: Annotated[Path, typer.Option(help="prepared proteins or articles, and their links")],
    labels: Annotated[
        Path, typer.Option(help="table with a header: id and label, tab-separated (.gz too)")
    ],
    numbers: Annotated[
        bool, typer.Option("--numbers", help="labels are numbers, not classes")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="of the shuffled labels")] = 0,
    out: Annotated[Path | None, typer.Option(help="write what was found here, as JSON")] = None,
) -> None:
    """Does a task fit a graph? What neighbours tell of its labels, before anything is trained."""
    if out is not None:
        check_writable_file(out)
    # Only now: scipy takes a second.
    from raybio.methods.sppt.graph_store import open_graph
    from raybio.methods.sppt.task_fit import (
        BesideChance,
        fit_markdown,
        fit_of_classes,
        fit_of_numbers,
        read_node_labels,
    )

    linked = open_graph(store)
    found = read_node_labels(labels, linked.keys)
    if numbers:
        data = fit_of_numbers(linked.graph, found.numbers(), seed=seed)
    else:
        data = fit_of_classes(linked.graph, found.classes()[0], seed=seed)
    data["unknown_ids"] = len(found.unknown)
    print(fit_markdown(data, f"{labels} on the graph of {store}"))
    if found.unknown:
        print(
            f"\n{len(found.unknown):,} ids of the table are not in the store, such as {found.unknown[0]}"
        )
    _write(
        out,
        {
            name: one._asdict() if isinstance(one, BesideChance) else one
            for name, one in data.items()
        },
    )
