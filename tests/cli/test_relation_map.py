"""Maps of pairs: which are shown, where they lie, the figure and the table of its points."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from raybio.cli.evaluate import app
from raybio.core.config import override_all
from raybio.core.errors import ConfigError, StoreError
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mccl import relation_map
from raybio.methods.mtb_mccl.mccl.plots import plot_relation_maps
from raybio.methods.mtb_mccl.mccl.relation_map import select_map_pairs
from raybio.methods.mtb_mccl.mtb import system as mtb_system
from tests.methods.conformance_cases import tiny_config


@pytest.fixture(scope="module")
def models(tiny_documents: DocumentStore, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Exports of two runs that have not begun to train, from unlike weights."""
    folder = tmp_path_factory.mktemp("runs")
    for name, seed in (("mtb", 0), ("mccl", 1)):
        config = override_all(tiny_config("mtb_pretrain"), {"seed": seed})
        mtb_system.build(config, tiny_documents.path).export(folder / name / "export", {})
    return [folder / "mtb" / "export", folder / "mccl" / "export"]


def gold_relations(store: DocumentStore, split: str) -> dict[tuple[int, int, int], str]:
    return {
        (row, head, tail): store.relation_names[label]
        for row in store.split_rows(split).tolist()
        for head, tail, label in zip(*(part.tolist() for part in store.relations(row)), strict=True)
    }


def evaluate(*arguments: object):
    return CliRunner().invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )


def test_all_pairs_of_the_most_frequent_relations_are_shown_and_some_without_any(
    tiny_documents, monkeypatch
) -> None:
    monkeypatch.setattr(relation_map, "NUM_RELATIONS", 2)
    monkeypatch.setattr(relation_map, "MOST_UNRELATED", 7)
    shown = select_map_pairs(tiny_documents, "test", seed=0)
    gold = gold_relations(tiny_documents, "test")
    frequent = Counter(gold.values()).most_common()
    assert len(frequent) > 2
    assert Counter(shown.relations) == Counter(dict.fromkeys(shown.relations, 1))
    counts = [dict(frequent)[name] for name in shown.relations]
    assert counts == [count for _, count in frequent[:2]]
    assert np.bincount(shown.group_S).tolist() == [*counts, 7]
    pairs = list(
        zip(shown.row_S.tolist(), shown.head_S.tolist(), shown.tail_S.tolist(), strict=True)
    )
    assert len(set(pairs)) == len(pairs)
    for pair, group in zip(pairs, shown.group_S.tolist(), strict=True):
        assert gold.get(pair) == (*shown.relations, None)[group]
    other = select_map_pairs(tiny_documents, "test", seed=1)
    assert (other.group_S < 2).sum() == sum(counts)
    assert other.row_S.tolist() != shown.row_S.tolist()


def test_a_split_with_too_few_relations_is_refused(tiny_documents, monkeypatch) -> None:
    monkeypatch.setattr(relation_map, "NUM_RELATIONS", 0)
    with pytest.raises(
        ConfigError, match="0 test pairs have a relation; want at least 4 for a map"
    ):
        select_map_pairs(tiny_documents, "test", seed=0)


def test_the_command_draws_each_model_and_writes_where_each_pair_lies(
    models, tiny_documents, tmp_path: Path
) -> None:
    command = ["relation-map", "--store", tiny_documents.path]
    both = [part for model in models for part in ("--model", model)]
    for folder in ("one", "again"):
        done = evaluate(*command, *both, "--out", tmp_path / folder)
        assert done.exit_code == 0
        assert str(tmp_path / folder / "relation_map.png") in done.output
    shown = select_map_pairs(tiny_documents, "test", seed=0)
    with (tmp_path / "one" / "relation_map.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["model"] for line in lines] == ["mtb"] * len(shown.row_S) + ["mccl"] * len(
        shown.row_S
    )
    gold = {
        (
            tiny_documents.document_id(row),
            *(str(tiny_documents.entity_keys[tiny_documents.keys(row)[e]]) for e in pair),
        ): name
        for (row, *pair), name in gold_relations(tiny_documents, "test").items()
    }
    for line in lines:
        assert line["relation"] == gold.get((line["document"], line["head"], line["tail"]), "NA")
    positions = [
        [(line["x"], line["y"]) for line in lines if line["model"] == name]
        for name in ("mtb", "mccl")
    ]
    assert positions[0] != positions[1]
    assert len(set(positions[0])) > len(shown.row_S) / 2
    files = [(tmp_path / folder / "relation_map.csv").read_bytes() for folder in ("one", "again")]
    assert files[0] == files[1]


def test_pairs_of_one_document_that_a_model_lays_together_lie_together_in_its_map(
    models, tiny_documents
) -> None:
    shown = select_map_pairs(tiny_documents, "test", seed=0)
    (position_S2,) = relation_map.relation_maps([str(models[0])], tiny_documents, shown).values()
    frozen = relation_map.load_frozen(str(models[0]))
    embedding_SD = relation_map.normalize(
        relation_map._embed(frozen, tiny_documents, shown)
    ).numpy()
    cosine_SS = embedding_SD @ embedding_SD.T
    distance_SS = np.linalg.norm(position_S2[:, None] - position_S2[None], axis=-1)
    np.fill_diagonal(cosine_SS, -np.inf)
    np.fill_diagonal(distance_SS, np.inf)
    near = np.argsort(distance_SS, axis=1)[:, :10]
    found = [cosine_SS[row].argmax() in near[row] for row in range(len(near))]
    assert np.mean(found) > 0.8


@pytest.mark.nightly
def test_relations_have_colors_of_their_own_before_grey_ones(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    maps = {name: rng.normal(size=(60, 2)) for name in ("MTB", "MCCL")}
    group_S = np.arange(60) % 4
    picture = imread(
        plot_relation_maps(
            maps, group_S, ["Binds_to", "Is_not", "Treats"], tmp_path / "new" / "map.png"
        )
    )
    colors = {
        tuple(int(round(255 * part)) for part in pixel[:3])
        for pixel in picture.reshape(-1, picture.shape[2])
    }
    assert {
        (0x00, 0x72, 0xB2),
        (0xE6, 0x9F, 0x00),
        (0x00, 0x9E, 0x73),
        (0xCC, 0xCC, 0xCC),
    } <= colors
    one = imread(
        plot_relation_maps({"MTB": maps["MTB"]}, group_S, ["a", "b", "c"], tmp_path / "one.png")
    )
    assert one.shape[1] < picture.shape[1]
    assert plot_relation_maps(
        {str(n): maps["MTB"] for n in range(5)}, group_S, ["a", "b", "c"], tmp_path / "5.png"
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"--model": "./nowhere"},
            ConfigError,
            "--model ./nowhere: no such folder; want the export/ of a run",
        ),
        ({"--store": "nowhere"}, StoreError, "nowhere: does not exist"),
        ({"--out": "file"}, ConfigError, "--out file: is a file; want a folder"),
    ],
)
def test_wrong_arguments_are_refused(
    change, error, message, models, tiny_documents, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    arguments = {
        "--model": str(models[0]),
        "--store": str(tiny_documents.path),
        "--out": "new",
    } | change
    with pytest.raises(error, match=message):
        evaluate("relation-map", *(part for pair in arguments.items() for part in pair))
    assert not (tmp_path / "new").exists()
