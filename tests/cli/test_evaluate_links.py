"""``evaluate.py link-samples``: text encoders scored on samples of test graphs."""

import json
import math
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raybio.cli.evaluate import app
from raybio.core.errors import ConfigError
from raybio.methods.sppt.articles import evaluate as evaluation
from raybio.methods.sppt.articles import system as structure_preserving_text
from raybio.methods.sppt.articles.link_samples import MEASURES, draw_link_samples
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.store.store import Store
from tests.methods.conformance_cases import tiny_config

SIZES = {"--trials": 3, "--samples": 4, "--nodes": 5}


def evaluate(*arguments: object):
    return CliRunner().invoke(app, ["link-samples", *map(str, arguments)], catch_exceptions=False)


def test_the_table_and_the_file_tell_the_same_of_each_model(
    tiny_citations: LinkedTextStore, tmp_path: Path
) -> None:
    system = structure_preserving_text.build(tiny_config("sppt_mag"), tiny_citations.path)
    models = [system.export(tmp_path / name, {"name": name}) for name in ("one", "two")]
    sizes = [part for pair in SIZES.items() for part in pair]
    given = [part for model in models for part in ("--model", model)]
    out = tmp_path / "new" / "scores.json"
    done = evaluate(*given, "--store", tiny_citations.path, "--max-length", 8, *sizes, "--out", out)
    assert done.exit_code == 0
    messages = json.loads(out.read_text())
    assert messages["settings"] == {
        "pooling": "cls",
        "precision": "fp32",
        "max_length": 8,
        "seed": 0,
        "trials": 3,
        "samples": 4,
        "nodes": 5,
    }
    assert list(messages["scores"]) == ["random vectors", *map(str, models)]
    for scores in messages["scores"].values():
        assert tuple(scores) == MEASURES
        assert all(
            0 < one["mean"] <= 1 and math.isfinite(one["deviation"]) for one in scores.values()
        )
        shown = []
        for measure, one in scores.items():
            # As in the tables of runs: MRR is no percentage.
            scale, digits = (1, 3) if measure == "mrr" else (100, 2)
            shown.append(
                f"{scale * one['mean']:.{digits}f} ± {scale * one['deviation']:.{digits}f}"
            )
        assert " | ".join(shown) in done.output
    assert list(messages["cuts"]) == list(map(str, models))
    for model, cut in messages["cuts"].items():
        assert re.match(rf"texts: \d+ of {tiny_citations.num_rows} cut at 8 of \d+ tokens", cut)
        assert f"{model}: {cut}" in done.output
    # Equal weights, equal samples.
    assert messages["scores"][str(models[0])] == messages["scores"][str(models[1])]


def test_wrong_arguments_are_refused_before_models_are_loaded(
    tiny_citations: LinkedTextStore, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match="there is no nothing in .*Want a run, a model's folder, or a hub id"
    ):
        evaluate("--model", tmp_path / "nothing", "--store", tiny_citations.path)
    with pytest.raises(ConfigError, match="--out .*: is a folder"):
        evaluate("--model", tmp_path, "--store", tiny_citations.path, "--out", tmp_path)


def test_links_that_training_does_not_have_are_requested_too(
    tiny_citations: LinkedTextStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = []

    def remembered(graph, **sizes):
        graphs.append(graph)
        return draw_link_samples(graph, **sizes)

    monkeypatch.setattr(evaluation, "draw_link_samples", remembered)
    evaluation.evaluate_link_samples([], tiny_citations.path, trials=1, samples=1, nodes=5)
    heldout = tiny_citations.heldout
    assert len(heldout) and not tiny_citations.graph.has_edge(heldout[:, 0], heldout[:, 1]).any()
    (whole,) = graphs
    assert whole.has_edge(heldout[:, 0], heldout[:, 1]).all()
    assert whole.num_edges == tiny_citations.graph.num_edges + len(heldout)


def test_a_store_of_proteins_is_refused_before_a_model_is_read(tiny_store: Store) -> None:
    message = (
        "is a store of proteins, want linked texts: this command embeds texts.*use raybio "
        "evaluate links"
    )
    with pytest.raises(ConfigError, match=message):
        evaluate("--model", "no/such/model", "--store", tiny_store.path)
