"""Task fit against shuffled labels, and its command."""

import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from raybio.cli.evaluate import app
from raybio.core.errors import DataError, StoreError
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph.homophily import homophily
from raybio.methods.sppt.node_labels import read_node_labels
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.task_fit import class_fit, fit_report, number_fit

KEYS = pa.array(["9606.A", "9606.B", "9606.C"], pa.large_string())


def rings(num_rings: int, size: int) -> Graph:
    """Rings, each a group of its own."""
    start = np.repeat(np.arange(num_rings) * size, size)
    position = np.tile(np.arange(size), num_rings)
    return Graph.from_edges(
        np.stack([start + position, start + (position + 1) % size], axis=1),
        num_rings * size,
        start // size,
    )


def test_stretches_of_a_ring_fit_it_turns_do_not_and_labels_drawn_by_lot_say_nothing():
    graph = rings(10, 40)
    position = np.arange(400)
    stretches, turns = (position // 10) % 2, position % 2
    lot = np.random.default_rng(0).integers(0, 2, 400)
    predictions = [class_fit(graph, labels)["prediction"] for labels in (stretches, turns, lot)]
    assert predictions == ["help", "harm", "nothing"]
    fit = class_fit(graph, stretches)
    # Of ten in a stretch the outer two have one neighbor of each label: half a vote.
    assert fit["homophily"].value == pytest.approx(0.9) and fit[
        "edge_homophily"
    ].value == pytest.approx(0.9)
    assert fit["homophily"].chance == pytest.approx(0.5, abs=0.05)
    assert (
        fit["nodes"],
        fit["labeled"],
        fit["evaluated"],
        fit["classes"],
        fit["largest_class"],
    ) == (
        400,
        400,
        400,
        2,
        0.5,
    )


def test_what_the_group_says_is_no_merit_of_the_graph():
    graph = rings(10, 40)
    by_group = np.arange(400) // 40
    fit = class_fit(graph, by_group)
    assert fit["homophily"].value == fit["homophily"].chance == 1 and fit["prediction"] == "nothing"


def test_shuffles_keep_the_labels_of_each_group_and_those_without_any():
    graph, rng = rings(4, 30), np.random.default_rng(1)
    labels = np.where(
        rng.random(120) < 0.4, -1, rng.integers(0, 3, 120) + 3 * (np.arange(120) // 60)
    )
    fit = class_fit(graph, labels, num_shuffles=5)
    expected = []
    for each in np.random.SeedSequence(0).spawn(5):
        order, shuffled = np.random.default_rng(each).random((labels >= 0).sum()), labels.copy()
        nodes = np.flatnonzero(labels >= 0)
        for group in range(4):
            mine = nodes // 30 == group
            shuffled[nodes[mine]] = labels[nodes[mine][np.argsort(order[mine])]]
        expected.append(homophily(graph, shuffled))
    assert fit["homophily"][1:] == pytest.approx(
        (np.mean(expected), *np.percentile(expected, [2.5, 97.5]))
    )


def test_shuffled_labels_are_not_all_kept():
    num_nodes = 20_000
    graph = rings(1, num_nodes)
    labels = np.random.default_rng(0).integers(0, 3, num_nodes)
    tracemalloc.start()
    class_fit(graph, labels, num_shuffles=3)
    few = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    class_fit(graph, labels, num_shuffles=23)
    many = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert many - few < 5 * labels.nbytes


def test_numbers_that_change_slowly_fit_and_numbers_by_lot_do_not():
    graph, rng = rings(10, 40), np.random.default_rng(0)
    slow = np.sin(np.arange(400) / 40 * 2 * np.pi) + rng.normal(0, 0.1, 400)
    slow[::7] = np.nan
    fit = number_fit(graph, slow)
    assert fit["prediction"] == "help" and fit["correlation"].value > 0.9
    assert fit["labeled"] == (~np.isnan(slow)).sum()
    assert number_fit(graph, rng.normal(size=400))["prediction"] == "nothing"
    assert number_fit(graph, np.ones(400))["correlation"].value == 0
    assert "rank correlation" in fit_report(fit, "x")


def test_few_nodes_foretell_nothing():
    assert class_fit(rings(1, 99), np.arange(99) // 10)["prediction"] == "too few"


@pytest.mark.parametrize(
    "lines, message",
    [
        ("id\tlabel\n9606.A\tx\ty\n", "line 2: has 3 columns, want 2"),
        ("id\tlabel\n9606.A\t\n", r"line 2: got \['9606.A', ''\], want id and label"),
        ("id,label\n9606.A,x\n", "has no column 'id'"),
        ("id\tlabel\n9606.A\tx\n9606.B\ty\n9606.A\tz\n", "line 4: 9606.A had its label in line 2"),
        ("id\tlabel\nA\tx\n", r"none of its 1 ids \(A, ...\) is in the store; want such as 9606.A"),
        ("id\tlabel\n", r"none of its 0 ids \(none, ...\)"),
        ("id\tlabel\n9606.A\t\xff\n", "line 2 is not UTF-8"),
        (
            "9606.A\tx\n9606.B\ty\n",
            "line 1: 9606.A is an id of the store, want a header line; add one",
        ),
    ],
)
def test_bad_tables_are_refused_with_their_line(tmp_path: Path, lines: str, message: str):
    (tmp_path / "labels.tsv").write_bytes(lines.encode("latin-1"))
    with pytest.raises(DataError, match=message):
        read_node_labels(tmp_path / "labels.tsv", KEYS)


def test_labels_stand_at_their_rows(tmp_path: Path):
    with gzip.open(tmp_path / "labels.tsv.gz", "wt") as file:
        file.write("id\tlabel\n9606.C\t2\n9606.X\t7\n9606.A\t10\n")
    found = read_node_labels(tmp_path / "labels.tsv.gz", KEYS)
    assert found.unknown == ["9606.X"]
    classes, names = found.classes()
    assert classes.tolist() == [0, -1, 1] and names == ["10", "2"]
    np.testing.assert_array_equal(found.numbers(), [10, np.nan, 2])
    (tmp_path / "labels.tsv").write_text("id\tlabel\n9606.C\t2\n9606.A\tx\n")
    with pytest.raises(DataError, match="not all numbers .*'x'"):
        read_node_labels(tmp_path / "labels.tsv", KEYS).numbers()


def test_the_command_prints_and_writes_what_it_found(tiny_store: ProteinStore, tmp_path: Path):
    keys = tiny_store.keys.to_pylist()
    lines = [f"{key}\t{int(key[-3:]) % 4}" for key in keys[:-5]]  # its sequence family
    labels = tmp_path / "labels.tsv"
    labels.write_text("\n".join(["id\tlabel", *lines, "nobody\t1"]) + "\n")
    arguments = [
        "task-fit",
        "--store",
        str(tiny_store.path),
        "--labels",
        str(labels),
        "--out",
        str(tmp_path / "fit.json"),
    ]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    data = json.loads((tmp_path / "fit.json").read_text())
    assert data["labeled"] == len(keys) - 5 and data["unknown_ids"] == 1 and data["classes"] == 4
    label_N = np.array([int(key[-3:]) % 4 for key in keys])
    label_N[-5:] = -1
    assert data["homophily"]["value"] == pytest.approx(homophily(tiny_store.graph, label_N))
    assert "1 ids of the table are not in the store, such as nobody" in done.stdout
    assert f"| {data['homophily']['value']:.3f} |" in done.stdout


def test_the_command_takes_articles_too_and_refuses_stores_without_links(
    tiny_citations, tiny_task, tmp_path: Path
):
    labels = tmp_path / "labels.tsv"
    keys = tiny_citations.keys.to_pylist()
    labels.write_text(
        "id\tlabel\n" + "".join(f"{key}\t{number % 2}\n" for number, key in enumerate(keys))
    )
    queries = ["task-fit", "--labels", str(labels), "--store"]
    assert (
        CliRunner()
        .invoke(app, [*queries, str(tiny_citations.path)], catch_exceptions=False)
        .exit_code
        == 0
    )
    with pytest.raises(StoreError, match="is a store of task, made by .*, which has no links"):
        CliRunner().invoke(app, [*queries, str(tiny_task.path)], catch_exceptions=False)
