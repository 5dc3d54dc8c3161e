"""Commands of MTB and MCCL: stores of documents, extracted relations, probes and maps of pairs."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from raybio.cli.options import (
    LocationType,
    MaxBadShare,
    PrecisionOption,
    encoders_in,
    fraction,
    location_option,
    model_option,
    positive,
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
from raybio.core.files import check_model_sources, check_writable_folder
from raybio.core.location import Location
from raybio.methods.mtb_mccl.mtb.config import PairCountConfig
from raybio.runtime.model_paths import model_folder

if TYPE_CHECKING:
    import numpy as np

    from raybio.methods.mtb_mccl.documents.store import DocumentStore
    from raybio.methods.mtb_mccl.mtb.recurring_pairs import PairCount

evaluate = typer.Typer()
prepare = typer.Typer()

DEV_SHARE = (
    "instead of --dev: share of the --input documents with relations that becomes dev, drawn by "
    "document id; documents without relations stay in training, since they may be unlabeled"
)


@evaluate.command()
def relations(
    model: Annotated[str, model_option("run of relation_finetune, or its export/")],
    store: Annotated[LocationType, location_option("prepared documents with relations")],
    split: Annotated[
        Literal["dev", "test"], typer.Option(help="the model's neighbors are training pairs")
    ] = "test",
    precision: PrecisionOption = "fp32",
    out: ScoresFile = None,
) -> None:
    """Extract relations between entities: F1 with intervals, by relation, and confusions.

    Example: raybio evaluate relations --model runs/mccl --store BIORED --split test
    """
    check_store(store)
    folder = model_folder(model, "--model")
    from raybio.methods.mtb_mccl.mccl.evaluate_export import evaluate_relations
    from raybio.methods.mtb_mccl.mccl.report import report_data, report_markdown

    with encoders_in(precision):
        evaluation = evaluate_relations(folder, store, split, say=print)
    data = report_data(
        evaluation.relations,
        evaluation.scores,
        str(evaluation.knn_settings),
        evaluation.confusion_CC,
        chance=evaluation.chance,
        chance_of=evaluation.chance_of,
        truncation=evaluation.truncation,
    )
    data["precision"] = precision
    print(report_markdown(data, f"{model} on the {split} documents of {store}"))
    write_scores(out, data)


@evaluate.command()
def relation_probe(
    model: Annotated[
        str, model_option("run of mtb_pretrain, its export/, or any model folder or hub id")
    ],
    store: Annotated[LocationType, location_option("prepared documents with relations")],
    label_fraction: Annotated[
        float,
        typer.Option(
            parser=positive,
            metavar="FLOAT",
            help="fraction of the training and validation pairs that keep their label",
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="seed of the labels that are kept")] = 0,
    precision: PrecisionOption = "fp32",
    out: ScoresFile = None,
) -> None:
    """Fit softmax, nearest centroid and classwise kNN on frozen pairs.

    Example: raybio evaluate relation-probe --model runs/mtb --store BIORED --out probe.json
    """
    check_store(store)
    if not 0 < label_fraction <= 1:
        raise ConfigError(
            f"--label-fraction: got {label_fraction:g}, want a number above 0 and up to 1"
        )
    folder = model_folder(model, "--model")
    check_model_sources([folder])
    documents = _documents(store, ("train", "dev", "test"))
    from raybio.methods.mtb_mccl.frozen_encoder import truncation_remarks
    from raybio.methods.mtb_mccl.mccl.frozen_probe import FrozenProbe
    from raybio.methods.mtb_mccl.mccl.probe_report import probe_data, probe_markdown

    cuts = truncation_remarks(folder, documents)
    for cut in cuts:
        print(cut)
    with encoders_in(precision):
        probe = FrozenProbe(folder, documents, label_fraction=label_fraction, seed=seed, say=print)
        results = probe.results()
    settings = {"model": model, "store": str(store), "label_fraction": label_fraction, "seed": seed}
    settings["precision"] = precision
    if cuts:
        settings["cut"] = "; ".join(cuts)
    data = probe_data(results, settings)
    print(probe_markdown(data))
    write_scores(out, data)


@evaluate.command()
def relation_map(
    model: Annotated[
        list[str],
        model_option("run, its export/, or any model folder or hub id; repeatable"),
    ],
    store: Annotated[LocationType, location_option("prepared documents with relations")],
    out: Annotated[Path, typer.Option(help="folder of the figure and of its coordinates")],
    split: Annotated[
        Literal["train", "dev", "test"], typer.Option(help="documents whose pairs are drawn")
    ] = "test",
    seed: Annotated[
        int, typer.Option(min=0, help="seed of t-SNE and of the sampled pairs without a relation")
    ] = 0,
    precision: PrecisionOption = "fp32",
) -> None:
    """Draw t-SNE maps of pairs: the four most frequent relations; pairs without any in grey.

    Example: raybio evaluate relation-map --model runs/mccl --store BIORED --out map/
    """
    check_store(store)
    check_writable_folder(out)
    models = [model_folder(source, "--model") for source in model]
    check_model_sources(models)
    documents = _documents(store, (split,))
    from raybio.methods.mtb_mccl.mccl.plots import plot_relation_maps, write_coordinates
    from raybio.methods.mtb_mccl.mccl.relation_map import relation_maps, select_map_pairs

    shown = select_map_pairs(documents, split, seed)
    with encoders_in(precision):
        position_by_name = relation_maps(models, documents, shown, seed=seed, say=print)
    names = (*shown.relations, "NA")
    rows = []
    for row, head, tail, group in zip(
        shown.row_S.tolist(),
        shown.head_S.tolist(),
        shown.tail_S.tolist(),
        shown.group_S.tolist(),
        strict=True,
    ):
        key = documents.keys(row)
        head_key = str(documents.entity_keys[key[head]])
        tail_key = str(documents.entity_keys[key[tail]])
        rows.append((documents.document_id(row), head_key, tail_key, names[group]))
    table = write_coordinates(rows, position_by_name, out / "relation_map.csv")
    figure = plot_relation_maps(
        position_by_name, shown.group_S, shown.relations, out / "relation_map.png"
    )
    print(f"map: {figure}, {table}")


@prepare.command()
def documents(
    source: Annotated[
        list[str],
        sources_option("training files, or patterns; quote patterns", "--input"),
    ],
    out: Out,
    dev: Annotated[
        list[str] | None,
        sources_option("dev files, to choose settings"),
    ] = None,
    dev_share: Annotated[
        float | None, typer.Option(parser=fraction, metavar="FLOAT", help=DEV_SHARE)
    ] = None,
    test: Annotated[
        list[str] | None,
        sources_option("test files"),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        sources_option("exclude the documents of these files from training"),
    ] = None,
    relation_names: Annotated[
        LocationType | None, location_option("JSON object id -> name, as DocRED's rel_info.json")
    ] = None,
    min_type_pair_relations: Annotated[
        int,
        typer.Option(min=1, help="training relations that make a pair of types a candidate"),
    ] = 2,
    seed: Annotated[int, typer.Option(min=0, help="seed of --dev-share")] = 0,
    max_bad_share: MaxBadShare = 0.1,
    force: Force = False,
) -> None:
    """Documents with entities and relations: PubTator, BioC XML or JSON, DocRED (.gz too).

    Example: raybio prepare documents --input Train.PubTator.gz --dev Dev.PubTator.gz --out STORE
    """
    new_store = NewStore(out, force=force)
    files = matching(source)
    dev_files = matching(dev or (), "--dev")
    test_files = matching(test or (), "--test")
    excluded = matching(exclude or (), "--exclude")
    names = None if relation_names is None else local_copy(relation_names, "--relation-names")
    from raybio.methods.mtb_mccl.documents.prepare import prepare_documents

    store = new_store.write(
        prepare_documents,
        train=files,
        dev=dev_files,
        test=test_files,
        exclude=excluded,
        relation_names=names,
        dev_share=dev_share,
        seed=seed,
        min_type_pair_relations=min_type_pair_relations,
        max_bad_share=max_bad_share,
    )
    if dev_share is not None:
        counts = store.manifest["counts"]
        print(
            f"of --input, {counts['dev_documents']:,} documents are dev and "
            f"{counts['train_documents']:,} are training documents"
        )


@prepare.command()
@with_settings(PairCountConfig)
def recurring_pairs(
    store: Annotated[LocationType, location_option("prepared documents")],
    config: PairCountConfig,
    workers: Annotated[
        int, typer.Option(min=0, help="parts counted in parallel by Ray Data; 0: without Ray")
    ] = 0,
) -> None:
    """Count the entity pairs that MTB trains on once, for all runs with these settings.

    Example: raybio prepare recurring-pairs --store CORPUS --workers 32
    """
    started = time.perf_counter()
    from raybio.methods.mtb_mccl.documents.store import DocumentStore
    from raybio.methods.mtb_mccl.mtb.recurring_pairs import count_in_process, save_recurring_pairs
    from raybio.store.store import open_store

    count_parts = partial(_count_by_ray_data, workers) if workers else count_in_process
    pairs = save_recurring_pairs(open_store(store, DocumentStore), config, count_parts)
    print(
        f"{len(pairs):,} pairs in {pairs.count_K.min():,} to {pairs.count_K.max():,} documents "
        f"each; saved in {store} ({time.perf_counter() - started:.1f} s). Train with "
        f"--set pairs.min_documents={config.min_documents} --set pairs.num_pairs={config.num_pairs}"
    )


def _documents(store: Location, splits: Sequence[str]) -> "DocumentStore":
    """Return the store, if it has relations and documents of these splits."""
    from raybio.methods.mtb_mccl.documents.store import DocumentStore
    from raybio.store.store import open_store

    opened = open_store(store, DocumentStore)
    if len(opened.relation_names) < 2:
        raise ConfigError(f"--store {store}: its documents have no relations; want labeled ones")
    for split in splits:
        if not len(opened.split_rows(split)):
            raise ConfigError(
                f"--store {store}: has no {split} documents; prepare it with --{split}"
            )
    return opened


def _count_by_ray_data(workers: int, count: "PairCount") -> "list[tuple[np.ndarray, np.ndarray]]":
    """Return the pairs (U, 2) and counts (U,) of each part."""
    import numpy as np

    from raybio.runtime.map_rows import map_rows

    rows = [{"part": part} for part in range(count.num_parts)]
    counted = {}
    for row in map_rows(workers, rows, partial(_count_row, count)):
        pair_U = np.frombuffer(row["pair"], np.int64)
        count_U = np.frombuffer(row["count"], np.int64)
        counted[row["part"]] = (pair_U, count_U)
    return [counted[part] for part in range(count.num_parts)]


def _count_row(count: "PairCount", row: dict[str, Any]) -> dict[str, Any]:
    pair_U, count_U = count(row["part"])
    return {"part": row["part"], "pair": pair_U.tobytes(), "count": count_U.tobytes()}
