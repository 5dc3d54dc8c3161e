"""``evaluate.py entities-relations`` and ``sentence-graphs``: runs of models of words, scored."""

import json
import re

import numpy as np
import pytest

from raybio.core.errors import ConfigError
from raybio.methods.relation_graphs.evaluation import evaluate_export
from raybio.methods.relation_graphs.evaluation.evaluate_export import (
    chance_of_fold,
    evaluate_exports,
    validate_graphs_of_export,
)
from raybio.methods.relation_graphs.evaluation.graph_accuracy import GraphValidation
from tests.cli.test_word_maps import evaluate, runs, store

__all__ = ["runs", "store"]  # fixtures


def test_both_runs_are_scored_together_and_the_scores_written(store, runs, tmp_path):
    out = tmp_path / "new" / "scores.json"
    done = evaluate(
        "entities-relations",
        "--relations",
        runs / "cldr",
        "--entities",
        runs / "clner",
        "--store",
        store.path,
        "--out",
        out,
    )
    assert done.exit_code == 0
    data = json.loads(out.read_text())
    expected = evaluate_exports(runs / "cldr" / "export", runs / "clner" / "export", store.path)
    assert data["scores"] == expected.intervals()
    assert data["rule"] == {
        "num_pair_neighbors": 5,
        "num_tag_neighbors": 7,
        "probe_positive_weight": 1.0,
    }
    f1 = 100 * data["scores"]["ner_f1"]["value"]
    assert f"| entities (NER) | {f1:.2f} |" in done.stdout
    assert data["chance"] == chance_of_fold(runs / "cldr" / "export", store)
    assert 0 < data["chance"]["ner_f1"] < 1
    assert f"| {100 * data['chance']['ner_f1']:.2f} |" in done.stdout
    assert "5 neighbors vote on pairs, 7 on tags" in done.stdout
    assert "|  | micro P | micro R | micro F1 | macro P | macro R | macro F1 |" in done.stdout
    measures = [f"spert_re{average}_f1" for average in ("_micro", "")]
    micro, macro = (100 * data["scores"][name]["value"] for name in measures)
    spert = re.search(r"\| relations with NEC \|(.+)\|", done.stdout)
    assert spert and spert[1].split(" | ")[2] == f"{micro:.2f}"
    assert spert[1].rstrip().endswith(f"{macro:.2f}")
    # The rows of the runs' tables that need no training.
    initial = evaluate_exports(
        runs / "cldr" / "export", runs / "clner" / "export", store.path, is_untrained=True
    )
    assert data["rivals"]["initial"] == initial.intervals()
    names = ["look-up", "character 2-4-grams", "initial - chosen settings", "initial"]
    assert list(data["rivals"]) == names
    assert "| chance F1 | " + " | ".join(f"{name} F1" for name in names) in done.stdout


def test_a_fold_without_graphs_is_refused(store, runs, monkeypatch):
    nothing = GraphValidation(float("nan"), np.zeros(0), np.zeros(0), {})
    monkeypatch.setattr(evaluate_export, "validate_graphs_of_export", lambda *_, **__: nothing)
    with pytest.raises(ConfigError, match="no test sentence of the fold of .*cldr has true and"):
        evaluate("sentence-graphs", "--model", runs / "cldr", "--store", store.path)


def test_runs_of_different_folds_are_refused(store, runs):
    with pytest.raises(ConfigError, match="on fold 1 and .* on fold 2"):
        evaluate(
            "entities-relations",
            "--relations",
            runs / "cldr",
            "--entities",
            runs / "other",
            "--store",
            store.path,
        )


def test_true_graphs_are_counted_for_each_model(store, runs):
    done = evaluate("sentence-graphs", "--model", runs / "cldr", "--store", store.path)
    found = validate_graphs_of_export(runs / "cldr" / "export", store.path)
    mean = 100 * found.accuracy_S.mean()
    chance = re.escape(f"{100 * found.chance_S.mean():.2f}")
    row = re.search(
        rf"cldr \| {re.escape(f'{mean:.2f}')} \[([0-9.]+), ([0-9.]+)\] \| {chance} \| "
        rf"{len(found.accuracy_S)} \|",
        done.stdout,
    )
    assert row and float(row[1]) < mean < float(row[2]), done.stdout
    with pytest.raises(ConfigError, match="is a clner, which has no graphs"):
        evaluate("sentence-graphs", "--model", runs / "clner", "--store", store.path)
