"""Maps of words and pairs: selection, positions, figure and table of coordinates."""

import csv
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from typer.testing import CliRunner

from raybio.cli.evaluate import app
from raybio.core.config import override_all
from raybio.core.errors import ConfigError, StoreError
from raybio.core.records import write_record
from raybio.evaluation.figures import COLORS
from raybio.methods import METHODS
from raybio.methods.relation_graphs import system as relation_graphs
from raybio.methods.relation_graphs.annotations.tags import gold_pairs, tag_names, tags_of
from raybio.methods.relation_graphs.config import GraphsConfig
from raybio.methods.relation_graphs.demo import SIMULATED_WORDS, WordsConfig
from raybio.methods.relation_graphs.evaluation import word_map
from raybio.methods.relation_graphs.evaluation.word_map import (
    PAIRS,
    TAGS,
    WORDS,
    select_pairs,
    select_words,
)
from raybio.methods.relation_graphs.store import WordStore
from raybio.training.loop import fit

TINY = {
    "encoder.width": 16,
    "encoder.ffn_width": 32,
    "encoder.num_heads": 2,
    "encoder.vocabulary_size": 300,
    "schedule.max_steps": 3,
    "schedule.evaluate_every_steps": 0,
}
RUNS = {
    "cldr": {"model": "cldr"},
    "clner": {"model": "clner"},
    "other": {"model": "clner", "data.fold": 2},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> WordStore:
    config = WordsConfig(num_sentences=60, num_folds=3, num_drugs=10, num_effects=10)
    return SIMULATED_WORDS.prepare(tmp_path_factory.mktemp("words"), config)


@pytest.fixture(scope="module")
def runs(store: WordStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of runs of three steps, with their exports."""
    folder = tmp_path_factory.mktemp("runs")
    for name, changes in RUNS.items():
        config = override_all(METHODS["relation_graphs"].demo, TINY | changes)
        system = relation_graphs.build(config, store.path)
        list(fit(system, config))
        system.export(folder / name / "export", {})
        write_record(folder / name / "run.json", "run", {"config": config.to_mapping()})
    return folder


def evaluate(*arguments: object):
    return CliRunner().invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def points_of(shown: word_map.MapPoints) -> list[tuple[int, ...]]:
    return [
        (row, *words)
        for row, words in zip(shown.row_S.tolist(), shown.word_SK.tolist(), strict=True)
    ]


def pairs_by_row(store: WordStore, rows: np.ndarray) -> dict[int, set[tuple[int, int]]]:
    return {
        row: set(zip(*(end.tolist() for end in gold_pairs(store, row)[:2]), strict=True))
        for row in rows.tolist()
    }


@pytest.mark.parametrize("rule", ["entities", "last_words"])
def test_all_related_pairs_are_shown_and_false_ones_of_which_one_word_is_right(
    store: WordStore, rule: str
) -> None:
    rows, config = (
        np.sort(store.fold_rows(1, "test")),
        GraphsConfig(num_negatives=4, negatives=rule),
    )
    shown, gold = select_pairs(store, rows, config, seed=0), pairs_by_row(store, rows)
    points = points_of(shown)
    assert len(set(points)) == len(points)
    related = {
        point
        for point, label in zip(points, shown.label_S, strict=True)
        if shown.labels[label] == "related"
    }
    assert related == {(row, *pair) for row, pairs in gold.items() for pair in pairs}
    others = set(points) - related
    assert len(related) < len(others) <= 4 * len(related)
    for row, first, second in others:
        assert any((first == drug) != (second == effect) for drug, effect in gold[row])
        assert first != second
    other = select_pairs(store, rows, config, seed=1)
    assert (other.label_S == 1).sum() == len(related)
    assert set(points_of(other)) != set(points)


def test_first_words_of_related_pairs_are_of_drugs_and_second_ones_of_effects(
    store: WordStore,
) -> None:
    rows = np.sort(store.fold_rows(1, "test"))
    shown = select_pairs(store, rows, GraphsConfig(), seed=0)
    names = tag_names(store.entity_types)
    for row, first, second in np.array(points_of(shown))[shown.label_S == 1].tolist():
        tag_W = tags_of(store, row)
        assert names[tag_W[first]].endswith("-Drug")
        assert names[tag_W[second]].endswith("-Adverse-Effect")


def test_words_are_shown_with_their_tags_and_at_most_so_many_of_each(
    store: WordStore, monkeypatch
) -> None:
    rows = np.sort(store.fold_rows(2, "test"))
    everything = {
        (row, word): tag
        for row in rows.tolist()
        for word, tag in enumerate(tags_of(store, row).tolist())
    }
    shown = select_words(store, rows, seed=0)
    assert dict(zip(points_of(shown), shown.label_S.tolist(), strict=True)) == everything
    assert shown.labels == tag_names(store.entity_types)
    count_by_tag = Counter(everything.values())
    most = sorted(count_by_tag.values())[1]
    monkeypatch.setattr(word_map, "MOST_OF_A_LABEL", most)
    fewer = select_words(store, rows, seed=0)
    assert Counter(fewer.label_S.tolist()) == {
        tag: min(count, most) for tag, count in count_by_tag.items()
    }
    assert min(count_by_tag.values()) < most < max(count_by_tag.values())
    assert all(
        everything[point] == tag
        for point, tag in zip(points_of(fewer), fewer.label_S.tolist(), strict=True)
    )
    assert points_of(fewer) == sorted(set(points_of(fewer)))
    assert points_of(fewer) == points_of(select_words(store, rows, seed=0))
    assert points_of(fewer) != points_of(select_words(store, rows, seed=1))


def test_pairs_are_bounded_too(store: WordStore, monkeypatch) -> None:
    monkeypatch.setattr(word_map, "MOST_OF_A_LABEL", 6)
    shown = select_pairs(store, np.sort(store.fold_rows(1, "test")), GraphsConfig(), seed=0)
    assert np.bincount(shown.label_S).tolist() == [6, 6]


def test_too_few_pairs_are_refused(store: WordStore) -> None:
    rows = np.sort(store.fold_rows(1, "test"))[:0]
    with pytest.raises(
        ConfigError, match="have 0 points to show as hard negative, related; want at least 4"
    ):
        select_pairs(store, rows, GraphsConfig(), seed=0)
    with pytest.raises(ConfigError, match="have 0 points to show as O, B-.*; want at least 4"):
        select_words(store, rows, seed=0)


def test_a_pair_is_the_vector_of_its_first_word_and_then_that_of_its_second(
    store: WordStore,
) -> None:
    rows = np.sort(store.fold_rows(3, "test"))
    own = [
        np.random.default_rng(row).random((len(store.sentence(row)), 5)) for row in rows.tolist()
    ]
    vectors = dict(zip(rows.tolist(), own, strict=True))
    pairs, words = (
        select_pairs(store, rows, GraphsConfig(), seed=0),
        select_words(store, rows, seed=0),
    )
    pair_SX, word_SX = (
        word_map._vectors(np.concatenate(own), store, rows, shown) for shown in (pairs, words)
    )
    for vector, (row, first, second) in zip(pair_SX, points_of(pairs), strict=True):
        assert vector.tolist() == [*vectors[row][first], *vectors[row][second]]
    for vector, (row, word) in zip(word_SX, points_of(words), strict=True):
        assert vector.tolist() == vectors[row][word].tolist()


@pytest.fixture(scope="module")
def drawn(runs: Path, store: WordStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the maps of two runs."""
    folder = tmp_path_factory.mktemp("drawn") / "map"
    models = ("--relations", runs / "cldr", "--entities", runs / "clner")
    done = evaluate("word-maps", "--store", store.path, *models, "--out", folder)
    assert done.exit_code == 0
    assert str(folder / "word_maps.png") in done.output
    return folder


@pytest.mark.nightly
def test_the_command_draws_three_panels_and_writes_where_each_point_lies(
    drawn: Path, store: WordStore
) -> None:
    lines, rows = read_csv(drawn / "word_maps.csv"), np.sort(store.fold_rows(1, "test"))
    gold = {
        (store.orig_ids[row], " ".join(store.words[store.sentence(row)[word]] for word in pair))
        for row, pairs in pairs_by_row(store, rows).items()
        for pair in pairs
    }
    of_pairs = [line for line in lines if line["panel"] == PAIRS]
    assert {
        (line["orig_id"], line["words"]) for line in of_pairs if line["label"] == "related"
    } == gold
    assert {line["label"] for line in of_pairs} == {"related", "hard negative"}
    names = tag_names(store.entity_types)
    tagged = [
        (store.orig_ids[row], store.words[word], names[tag])
        for row in rows.tolist()
        for word, tag in zip(
            store.sentence(row).tolist(), tags_of(store, row).tolist(), strict=True
        )
    ]
    positions = []
    for panel in (WORDS, TAGS):
        here = [line for line in lines if line["panel"] == panel]
        assert [(line["orig_id"], line["words"], line["label"]) for line in here] == tagged
        positions.append([(line["x"], line["y"]) for line in here])
        assert len(set(positions[-1])) > len(here) / 2
    assert positions[0] != positions[1]
    assert len(lines) == len(of_pairs) + 2 * len(tagged)
    figure = imread(drawn / "word_maps.png")[..., :3]
    for color in ("#CCCCCC", *COLORS[: len(names) - 1]):
        assert (np.abs(figure - to_rgb(color)).max(axis=-1) < 0.01).any()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("option", "name", "panels"),
    [("--relations", "cldr", {PAIRS, WORDS}), ("--entities", "clner", {TAGS})],
)
def test_an_export_alone_is_drawn_as_its_run_beside_another(
    option, name, panels, runs, store, drawn, tmp_path
) -> None:
    done = evaluate(
        "word-maps", "--store", store.path, option, runs / name / "export", "--out", tmp_path
    )
    assert done.exit_code == 0
    alone, both = read_csv(tmp_path / "word_maps.csv"), read_csv(drawn / "word_maps.csv")
    assert {line["panel"] for line in alone} == panels
    assert [line for line in both if line["panel"] in panels] == alone
    widths = [imread(folder / "word_maps.png").shape[1] for folder in (tmp_path, drawn)]
    assert widths[0] < widths[1]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"--relations": "", "--entities": ""},
            ConfigError,
            "--relations, --entities: got none of them; want at least",
        ),
        (
            {"--relations": "clner"},
            ConfigError,
            "model=clner has no pair head; want cldr, clgs or joint",
        ),
        (
            {"--entities": "cldr"},
            ConfigError,
            "model=cldr has no tag head; want clner or joint",
        ),
        (
            {"--entities": "other"},
            ConfigError,
            "trained on folds 1 and 2: one of them knows test sentences",
        ),
        (
            {"--relations": "unfinished"},
            ConfigError,
            "--relations unfinished: that run has no model yet",
        ),
        (
            {"--relations": "sweep"},
            ConfigError,
            "--relations sweep: is a sweep; want a trial's model: sweep/trials/TRIAL",
        ),
        ({"--entities": "./nowhere"}, ConfigError, "--entities ./nowhere: no such folder"),
        (
            {"--entities": "runs/nowhere"},
            ConfigError,
            "want the export/ of a run of relation_graphs",
        ),
        ({"--store": "nowhere"}, StoreError, "nowhere: does not exist"),
        ({"--out": "file"}, ConfigError, "--out file: is a file; want a folder"),
    ],
)
def test_wrong_arguments_are_refused(
    change, error, message, runs: Path, store, tmp_path, monkeypatch
) -> None:
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    for name, identity in {"unfinished": {}, "sweep": {"config": {"space": {}}}}.items():
        Path(name).mkdir()
        write_record(Path(name) / "run.json", "run", identity)
    arguments = {
        "--relations": "cldr",
        "--entities": "clner",
        "--store": str(store.path),
        "--out": "new",
    } | change
    with pytest.raises(error, match=message):
        evaluate("word-maps", *(part for pair in arguments.items() if pair[1] for part in pair))
    assert not Path("new").exists()
