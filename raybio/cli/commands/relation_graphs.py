"""Commands of CLDR, CLGS and CLNER: stores of sentences, entities and relations, maps of words."""

from pathlib import Path
from typing import Annotated

import typer

from raybio.cli.options import (
    LocationType,
    MaxBadShare,
    PrecisionOption,
    encoders_in,
    fraction,
    location_option,
    model_option,
    sources_option,
)
from raybio.cli.scores import ScoresFile, write_scores
from raybio.cli.stores import (
    Force,
    Input,
    NewStore,
    Out,
    check_store,
    local_copy,
    matching,
)
from raybio.core.errors import ConfigError
from raybio.core.files import check_model_sources, check_writable_folder
from raybio.runtime.model_paths import model_folder

evaluate = typer.Typer()
prepare = typer.Typer()

TEST_SHARE = (
    "instead of --splits or --test: share of the --input sentences that becomes test, drawn by "
    "their words, so that equal sentences stay together"
)


@evaluate.command()
def entities_relations(
    relations: Annotated[
        str, model_option("run of relation_graphs with a pair head, or its export/")
    ],
    entities: Annotated[str, model_option("run with a tag head (clner, joint), or its export/")],
    store: Annotated[LocationType, location_option("prepared sentences")],
    precision: PrecisionOption = "fp32",
    out: ScoresFile = None,
) -> None:
    """Find entities and relations in the test sentences of the models' fold: NER and RE scores.

    Example: raybio evaluate entities-relations --relations runs/cldr --entities runs/clner
    --store ADE
    """
    check_store(store)
    relation_folder = model_folder(relations, "--relations")
    entity_folder = model_folder(entities, "--entities")
    from raybio.methods.relation_graphs.evaluation.evaluate_export import (
        chance_of_fold,
        evaluate_exports,
        rivals_of_fold,
    )
    from raybio.methods.relation_graphs.report import report_data, report_markdown
    from raybio.methods.relation_graphs.store import WordStore
    from raybio.store.store import open_store

    with encoders_in(precision):
        scores = evaluate_exports(relation_folder, entity_folder, store, say=print)
        chance = chance_of_fold(relation_folder, open_store(store, WordStore))
        print("evaluating the encoder before training, and rivals")
        initial = evaluate_exports(relation_folder, entity_folder, store, is_untrained=True)
        untrained = {**rivals_of_fold(relation_folder, store), "initial": initial}
    rivals = {name: row.intervals() for name, row in untrained.items()}
    intervals = scores.intervals()
    knn = scores.settings
    described = (
        f"{knn.num_pair_neighbors} neighbors vote on pairs, {knn.num_tag_neighbors} on tags; a "
        f"related pair has weight {knn.probe_positive_weight:g} in the linear probe"
    )
    title = f"relations by {relations}, entities by {entities}, {store}"
    print(report_markdown(intervals, chance, rivals, described, title))
    settings = {"relations": relations, "entities": entities, "store": str(store)}
    settings["precision"] = precision
    write_scores(out, report_data(intervals, chance, rivals, knn._asdict(), settings))


@evaluate.command()
def sentence_graphs(
    model: Annotated[
        list[str],
        model_option("run of relation_graphs with graphs, or its export/; repeatable"),
    ],
    store: Annotated[LocationType, location_option("prepared sentences")],
    negatives: Annotated[
        int | None,
        typer.Option(
            min=1, help="maximum number of false graphs for each true one; default: as in training"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the intervals")] = 0,
    precision: PrecisionOption = "fp32",
) -> None:
    """Fraction of sentences (clgs) or related pairs (cldr) whose true graph is nearest: Table 2.

    Example: raybio evaluate sentence-graphs --model runs/clgs --store ADE
    """
    check_store(store)
    folders = [model_folder(source, "--model") for source in model]
    import numpy as np

    from raybio.core.markdown import markdown_table
    from raybio.methods.relation_graphs.evaluation.evaluate_export import (
        validate_graphs_of_export,
    )
    from raybio.ops.significance import mean_interval

    rows = []
    for name, folder in zip(model, folders, strict=True):
        with encoders_in(precision):
            found = validate_graphs_of_export(folder, store, num_negatives=negatives)
        if not len(found.accuracy_S):
            raise ConfigError(
                f"{store}: no test sentence of the fold of {name} has true and false graphs; want "
                "a fold with relations among its test sentences"
            )
        interval = mean_interval(found.accuracy_S, np.random.default_rng(seed))
        chance = f"{100 * found.chance_S.mean():.2f}"
        rows.append([name, interval.text(), chance, f"{len(found.accuracy_S):,}"])
    print(markdown_table(["model", "true graph nearest, %", "chance, %", "sentences"], rows))
    against = "as many false graphs each as in training"
    if negatives is not None:
        against = f"up to {negatives:,} false graphs each"
    print(f"\n95 % intervals over sentences; against {against}")


@evaluate.command()
def word_maps(
    store: Annotated[
        LocationType, location_option("prepared sentences with entities and relations")
    ],
    out: Annotated[Path, typer.Option(help="folder of the figure and of its coordinates")],
    relations: Annotated[
        str | None,
        model_option("run of relation_graphs with a pair head (cldr, clgs, joint), or its export/"),
    ] = None,
    entities: Annotated[
        str | None,
        model_option("run with a tag head (clner, joint) of the same fold, or its export/"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of t-SNE and of the sampled points")] = 0,
    precision: PrecisionOption = "fp32",
) -> None:
    """Draw t-SNE maps of the fold's test sentences: pairs and words by each head.

    Example: raybio evaluate word-maps --relations runs/cldr --entities runs/clner --store ADE
    --out map/
    """
    check_store(store)
    check_writable_folder(out)
    if relations is None and entities is None:
        raise ConfigError("--relations, --entities: got none of them; want at least one")
    folders: dict[str, str | None] = {}
    for option, source in (("--relations", relations), ("--entities", entities)):
        folders[option] = None
        if source is not None:
            folder = model_folder(source, option)
            check_model_sources([folder], option)
            folders[option] = folder
    from raybio.methods.relation_graphs.store import WordStore
    from raybio.store.store import open_store

    sentences = open_store(store, WordStore)
    # Imported after the store is checked, since these modules import torch.
    from raybio.methods.relation_graphs.evaluation.plots import plot_word_maps, write_word_maps
    from raybio.methods.relation_graphs.evaluation.word_map import word_maps as lay_out

    by_head = (folders["--relations"], folders["--entities"])
    with encoders_in(precision):
        panels = lay_out(*by_head, sentences, seed=seed, say=print)
    figure = plot_word_maps(panels, out / "word_maps.png")
    print(f"map: {figure}, {write_word_maps(panels, sentences, out / 'word_maps.csv')}")


@prepare.command()
def spert(
    source: Input,
    out: Out,
    splits: Annotated[
        LocationType | None, location_option("folds of a cross-validation, as ADE's cv_splits.json")
    ] = None,
    dev: Annotated[
        list[str] | None, sources_option("without --splits: dev files, to choose settings")
    ] = None,
    test: Annotated[list[str] | None, sources_option("without --splits: test files")] = None,
    test_share: Annotated[
        float | None, typer.Option(parser=fraction, metavar="FLOAT", help=TEST_SHARE)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of --test-share")] = 0,
    max_bad_share: MaxBadShare = 0.1,
    force: Force = False,
) -> None:
    """Sentences with entities and relations: any SpERT JSON file, ADE's among them (.gz too).

    Example: raybio prepare spert --input all.json --test-share 0.1 --out STORE
    """
    new_store = NewStore(out, force=force)
    files = matching(source)
    dev_files = matching(dev or (), "--dev")
    test_files = matching(test or (), "--test")
    folds = None if splits is None else local_copy(splits, "--splits")
    from raybio.methods.relation_graphs.prepare import prepare_words

    store = new_store.write(
        prepare_words,
        files=files,
        splits=folds,
        dev=dev_files,
        test=test_files,
        test_share=test_share,
        seed=seed,
        max_bad_share=max_bad_share,
    )
    if test_share is not None:
        print(
            f"of --input, {len(store.fold_rows(1, 'test')):,} sentences are test and "
            f"{len(store.fold_rows(1, 'train')):,} are training sentences"
        )


@prepare.command()
def word_statistics(
    store: Annotated[LocationType, location_option("prepared sentences (the command spert)")],
    batch: Annotated[int, typer.Option(min=1, help="sentences of a batch in Table 5")] = 16,
) -> None:
    """Print statistics of prepared sentences as Markdown: the CLDR paper's Tables 1, 5 and 6.

    Example: raybio prepare word-statistics --store ADE
    """
    from raybio.methods.relation_graphs.prepare import (
        statistics_of_words,
        word_statistics_markdown,
    )
    from raybio.methods.relation_graphs.store import WordStore
    from raybio.store.store import open_store

    print(word_statistics_markdown(statistics_of_words(open_store(store, WordStore), batch)))
