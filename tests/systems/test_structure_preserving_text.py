"""SPPT on texts: what is its own beside SPPT on proteins."""

from pathlib import Path

import numpy as np
import pytest

from raybio.data.linked_text_store import LinkedTextStore
from raybio.errors import ConfigError
from raybio.evaluation.sampled_links import MEASURES
from raybio.systems.link_samples import sampled_links
from raybio.systems.structure_preserving_text import build, check
from raybio.training.gather import SingleProcess
from tests.systems.conformance_cases import tiny_config

SAMPLES = {"evaluation.test_graphs": 3, "evaluation.samples": 4, "evaluation.nodes_per_sample": 5}


def test_samples_of_test_graphs_are_asked_as_the_command_for_other_models_asks_them(
    tiny_citations: LinkedTextStore, tmp_path: Path
) -> None:
    config = tiny_config("structure_preserving_text", **SAMPLES)
    system = build(config, tiny_citations.path)
    model = str(system.export(tmp_path / "model", {"name": "tiny"}))
    scores = system.final_evaluate(system.model, SingleProcess())["scores"]
    assert set(scores) == {"random", "initial", "trained"}
    assert scores["initial"]["samples"] == scores["trained"]["samples"]  # nothing was trained
    assert scores["random"]["samples"] != scores["trained"]["samples"]
    found = sampled_links([model], tiny_citations.path, trials=3, samples=4, nodes=5)[model]
    for measure in MEASURES:
        one, (mean, deviation) = scores["trained"]["samples"][measure], found[measure]
        assert one["num_runs"] == 3
        np.testing.assert_allclose([one["value"], one["high"] - one["value"]], [mean, deviation], rtol=1e-5)
        assert one["value"] - one["low"] == pytest.approx(deviation)


def test_without_test_graphs_there_are_no_samples(tiny_citations: LinkedTextStore) -> None:
    system = build(tiny_config("structure_preserving_text"), tiny_citations.path)
    assert "samples" not in system.final_evaluate(system.model, SingleProcess())["scores"]["trained"]


def test_a_test_graph_without_a_link_is_told_before_training(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from raybio.data.store import open_store
    from raybio.runtime.preparing import app

    (tmp_path / "nodes.tsv").write_text("id\ttitle\tabstract\n" + "".join(f"{n}\tt{n}\tabout {n}\n" for n in range(6)))
    (tmp_path / "edges.tsv").write_text("citing\tcited\n0\t1\n2\t3\n")
    files = ["--nodes", str(tmp_path / "nodes.tsv"), "--edges", str(tmp_path / "edges.tsv")]
    done = CliRunner().invoke(app, ["articles", *files, "--out", str(tmp_path / "store")], catch_exceptions=False)
    assert done.exit_code == 0
    store = open_store(tmp_path / "store", LinkedTextStore)
    with pytest.raises(ConfigError, match=r"evaluation.test_graphs: number \d+ of 9 has no link in .* want 0, or"):
        check(tiny_config("structure_preserving_text", **{"evaluation.test_graphs": 9}), store)
