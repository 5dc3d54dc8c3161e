"""Homophily in a benchmark: links have the figures of ``raybio evaluate task-fit``."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from raybio.benchmark.models import BenchmarkModel, read_models
from raybio.benchmark.tasks.homophily import HomophilyTask
from raybio.core.errors import DataError
from raybio.methods import METHODS
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.task_fit import class_fit
from tests.methods.conformance_cases import tiny_config

CLASSES = ("kinase", "ligase", "none")


def labeled(store: ProteinStore, folder: Path) -> tuple[Path, dict[int, str]]:
    """Write a table with the families of most nodes as classes, and return class by row."""
    class_by_row = {}
    lines = ["id\tlabel"]
    for row, key in enumerate(store.keys.to_pylist()):
        if row % 5:
            class_by_row[row] = CLASSES[int(key[-3:]) % 4 % 3]
            lines.append(f"{key}\t{class_by_row[row]}")
    path = folder / "labels.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path, class_by_row


def test_near_embeddings_and_linked_nodes_vote(tiny_store: ProteinStore, tmp_path: Path) -> None:
    labels, class_by_row = labeled(tiny_store, tmp_path)
    task = HomophilyTask(name="own", store=tiny_store.path, labels=labels, num_neighbors=3)
    assert task.reads == "proteins" and task.check() == ""
    number_N = np.array(
        [CLASSES.index(class_by_row[row]) if row in class_by_row else -1 for row in range(64)]
    )
    fit = class_fit(tiny_store.graph, number_N)
    facts = task.facts()
    assert facts.chance == {"homophily": pytest.approx(fit["homophily"].chance)}
    rivals = task.rivals(None)
    assert rivals["linked nodes"].score == pytest.approx(fit["homophily"].value)
    assert len(rivals["linked nodes"].unit_ids) == fit["evaluated"]

    system = METHODS["sppt_protein"].build(tiny_config("sppt_protein"), tiny_store.path)
    export = system.export(tmp_path / "proteins", {})
    (model,) = read_models([str(export)], tmp_path / "report")
    assert isinstance(model, BenchmarkModel)
    scores = task.score(model)
    assert scores.unit_ids == rivals["linked nodes"].unit_ids == rivals["random"].unit_ids
    rows = list(class_by_row)
    _, contents = tiny_store.inputs("sequence", 0, 64)
    vector_LD = model.embed([contents[row].as_py().decode() for row in rows]).astype(np.float64)
    for unit, value in zip(scores.unit_ids, scores.numerator_U, strict=True):
        own = rows.index(int(unit))
        distance_L = np.linalg.norm(vector_LD - vector_LD[own], axis=1)
        distance_L[own] = np.inf
        votes = Counter(class_by_row[rows[near]] for near in np.argsort(distance_L)[:3])
        winners = [name for name, number in votes.items() if number == max(votes.values())]
        expected = (class_by_row[int(unit)] in winners) / len(winners)
        assert value == pytest.approx(expected)


def test_labels_without_a_link_between_them_are_refused(
    tiny_store: ProteinStore, tmp_path: Path
) -> None:
    path = tmp_path / "labels.tsv"
    task = HomophilyTask(name="own", store=tiny_store.path, labels=path)
    assert "want a table of ids and classes" in task.check()
    path.write_text(f"id\tlabel\n{tiny_store.keys[0]}\tkinase\n")
    with pytest.raises(DataError, match="no node with a label has a link to another one"):
        task.rivals(None)
