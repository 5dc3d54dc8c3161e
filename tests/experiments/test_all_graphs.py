"""SPPT's synthetic experiments as a sweep: the table and its figures."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from scipy import stats

from raybio.core.config import override_all
from raybio.core.errors import ConfigError, DataError
from raybio.core.records import read_record
from raybio.experiments.synthetic_graphs import (
    Experiments,
    _digest,
    _resolve_kinds,
    experiment_space,
    numbers,
    run_experiments,
)
from raybio.methods.sppt.synthetic.config import DEMO, SyntheticConfig
from raybio.methods.sppt.synthetic.graphs import synthetic_graph
from raybio.methods.sppt.synthetic.plots import draw_nodes, fit_corners
from raybio.methods.sppt.synthetic.report import GraphScores, graph_table
from raybio.methods.sppt.synthetic.simplicial import surface
from raybio.methods.sppt.synthetic.store import TopicStore
from raybio.methods.sppt.synthetic.system import build
from raybio.runtime.run.options import RunOptions
from raybio.runtime.run.spec import Compute
from raybio.runtime.tune.trial import SweepSpec

TINY = (
    *("encoder.width=8", "encoder.num_heads=2", "encoder.ffn_width=8", "encoder.max_length=30"),
    *(
        "plan.global_batch_rows=8",
        "schedule.max_steps=3",
        "schedule.checkpoint_every_steps=3",
        "precision=fp32",
    ),
    *("graph.num_nodes=30", "graph.min_sentences=5"),
)


def test_a_space_has_every_graph_draw_and_noise_with_and_without_the_graph_loss() -> None:
    space = experiment_space(
        dict.fromkeys(("cliques", "torus"), DEMO), Experiments(("cliques", "torus"), 3, (0.0, 0.5))
    )
    assert space.tied == {}
    assert space.budget.num_trials == 24
    assert space.space["objective.lambda_spml"].values == (0.0, 0.1)
    with pytest.raises(ConfigError, match="objective.lambda_spml: got 0"):
        alone = override_all(DEMO, {"objective.lambda_spml": 0})
        experiment_space({"cliques": alone}, Experiments(("cliques",), 1, (0.0,)))


def test_each_graph_has_the_papers_settings_below_those_that_are_given(
    tiny_topics: TopicStore, tmp_path: Path
) -> None:
    queries = Experiments(("cliques", "plane", "torus", "motif"), 1, (0.0,))
    given = RunOptions(
        store=tiny_topics.path, settings=("encoder.num_heads=2",), name="syn", runs=tmp_path
    )
    config_by_kind, run = _resolve_kinds(given, queries)
    found = {
        kind: (
            one.encoder.width,
            one.encoder.num_heads,
            one.plan.global_batch_rows,
            one.schedule.max_steps,
        )
        for kind, one in config_by_kind.items()
    }
    assert found == {
        "cliques": (10, 2, 50, 8000),
        "plane": (256, 2, 16, 9375),
        "torus": (256, 2, 16, 28125),
        "motif": (10, 2, 72, 5000),
    }
    space = experiment_space(config_by_kind, queries)
    spec = SweepSpec(
        space=space, run=replace(run, config=config_by_kind["cliques"]), checks_store=False
    )
    for settings in space.grid():
        trial, own = spec.config(settings), config_by_kind[settings["graph.kind"]]
        assert (trial.encoder, trial.plan) == (own.encoder, own.plan)
        assert (
            trial.schedule.max_steps
            == trial.schedule.evaluate_every_steps
            == own.schedule.max_steps
        )
    # As many epochs, whatever a step has and the graph: 1,500 of 1,000 nodes, and 8,000 of 50.
    more = replace(given, settings=("plan.global_batch_rows=100", "graph.num_nodes=1000"))
    assert _resolve_kinds(more, queries)[0]["torus"].schedule.max_steps == 15_000
    fewer = _resolve_kinds(replace(given, settings=("plan.global_batch_rows=25",)), queries)[0]
    assert (fewer["cliques"].schedule.max_steps, fewer["motif"].schedule.max_steps) == (
        16_000,
        14_400,
    )
    names = {
        _digest(queries, _resolve_kinds(replace(given, settings=one), queries)[0])
        for one in ((), ("encoder.num_layers=2",))
    }
    assert len(names) == 2  # though cliques have two layers in any case
    demo, _ = _resolve_kinds(RunOptions(name="syn", runs=tmp_path), queries)
    assert {one.encoder.width for one in demo.values()} == {48}


def test_numbers_by_comma() -> None:
    assert numbers("0.5,0,.1,0", "--noise") == (0, 0.1, 0.5)
    for text in ("a", "0,,1", "-0.1", "2", "nan"):
        with pytest.raises(ConfigError, match="--noise: got"):
            numbers(text, "--noise")


def test_the_table_states_gains_in_pairs() -> None:
    scores = [GraphScores("plane", 0.0, [0.9, 0.9], [0.7, 0.8], [0.5, 0.5], [0.5, 0.6], [0.7, 0.9])]
    (row,) = [line for line in graph_table(scores, 0.1).splitlines() if line.startswith("| plane")]
    cells = [
        "plane",
        "0.900 ± 0.000",
        "0.750 ± 0.071",
        "0.500 ± 0.000",
        "0.550 ± 0.071",
        "0.800 ± 0.141",
        "0.250 [-0.385, 0.885]",
        "0.050 [-0.585, 0.685]",
        "0.51 / 0.94",
    ]
    assert row == f"| {' | '.join(cells)} |"


def test_rows_of_unfinished_trainings_have_a_dagger_and_the_reason() -> None:
    draw = ([0.9], [0.7], [0.5], [0.5], [0.8])
    reason = "120 of at least 1500 published epochs"
    plane = GraphScores("plane", 0.0, *draw, reason)
    lines = graph_table([plane, GraphScores("torus", 0.0, *draw)], 0.1).splitlines()
    assert lines[2].startswith("| plane † |") and lines[3].startswith("| torus |")
    assert lines[-1] == f"† training not finished, {reason}: plane"
    noisy = graph_table([plane, GraphScores("plane", 0.1, *draw, reason)], 0.1)
    assert noisy.endswith(f"{reason}: plane, noise 0; plane, noise 0.1")


def test_three_draws_have_intervals_and_a_corrected_p() -> None:
    plane = GraphScores(
        "plane", 0.0, [0.9] * 3, [0.7, 0.6, 0.8], [0.5] * 3, [0.5, 0.6, 0.55], [0.7, 0.85, 0.8]
    )
    torus = GraphScores(
        "torus", 0.0, [0.9] * 3, [0.7, 0.6, 0.8], [0.5] * 3, [0.5, 0.6, 0.55], [0.5, 0.6, 0.55]
    )
    text = graph_table([plane, torus], 0.1)
    cells = next(line for line in text.splitlines() if line.startswith("| plane")).split(" | ")
    assert cells[4].startswith("0.550 ± 0.050 [0.426, 0.674]")
    p = 4 * stats.ttest_rel([0.5, 0.6, 0.55], [0.7, 0.85, 0.8]).pvalue
    assert cells[6].endswith(f"], p = {p:.2g}")
    assert cells[7].startswith("0.083 [")
    assert "0.000 [0.000, 0.000], p = 1" in text
    assert "p corrected for all of them (Holm)" in text


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_cluster")
def test_experiments_end_in_a_table_and_figures_and_are_not_done_twice(
    tmp_path: Path,
    tiny_topics: TopicStore,
    empty_database: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(empty_database, tmp_path)
    monkeypatch.setenv("RAYBIO_SWEEPS", str(tmp_path / "sweeps"))
    queries = Experiments(("cliques", "plane"), 1, (0.0, 0.3))
    given = RunOptions(
        store=tiny_topics.path,
        settings=TINY,
        name="syn",
        compute=Compute(cpus_per_worker=1, device="cpu"),
    )
    run_experiments(given, queries)
    folder = tmp_path / "sweeps" / "syn"
    scores = read_record(folder / "graphs.json", "synthetic graphs")["graphs"]
    assert [(one["kind"], one["noise"]) for one in scores] == [
        ("cliques", 0),
        ("cliques", 0.3),
        ("plane", 0),
        ("plane", 0.3),
    ]
    assert all(len(one["alone"]) == len(one["with_graph"]) == 1 for one in scores)
    assert scores[0]["homophily"] == [1.0] and scores[0]["alone"] != scores[0]["with_graph"]
    assert scores[0]["letters"] == scores[1]["letters"]
    assert scores[0]["initial"] == scores[1]["initial"]
    assert 0 < scores[0]["initial"][0] < 1
    assert scores[0]["alone"] == scores[1]["alone"]  # the same sentences, whatever the links
    assert {path.name for path in folder.glob("*.png")} == {
        "noise.png",
        "map-cliques.png",
        "map-plane.png",
    }
    of = [one["unfinished"].partition(" of ")[2] for one in scores]
    assert of == ["8000 published epochs"] * 2 + ["1500 published epochs"] * 2
    messages = capsys.readouterr().out
    table = (folder / "graphs.md").read_text()
    assert table in messages
    assert "cost: 8 runs, " in table
    assert "classes; neighbors predict the class of 100 % of the nodes" in messages
    trained = {
        path: path.stat().st_mtime_ns for path in folder.glob("trials/*/export/*.safetensors")
    }
    assert len(trained) == 16  # eight models and their heads
    monkeypatch.setattr(
        "raybio.runtime.tune.driver._run_tune", None
    )  # all is there: Ray is not asked again
    assert read_record(folder / "run.json", "run")["config"]["space"]["tied"][
        "graph.kind"
    ].keys() == {
        "cliques",
        "plane",
    }
    run_experiments(given, queries)
    assert {
        path: path.stat().st_mtime_ns for path in folder.glob("trials/*/export/*.safetensors")
    } == trained
    # Trials of this sweep tell the time of another one with more draws.
    capsys.readouterr()
    draws = Experiments(("cliques",), 2, (0.0,))
    run_experiments(replace(given, name="more"), draws, is_dry_run=True)
    *_, time = capsys.readouterr().out.splitlines()
    assert ", 4 trials " in time and " at most, at the rate of trial-" in time


@pytest.mark.parametrize("kind", ["plane", "torus"])
def test_the_corners_of_a_surface_are_found_from_the_nodes_on_it(kind: str) -> None:
    rng, triangles = np.random.default_rng(0), surface(kind)
    corner_V2 = rng.normal(size=(triangles.max() + 1, 2))
    triangle_N = rng.integers(0, len(triangles), 300)
    weight_N3 = rng.dirichlet(np.ones(3), 300)
    position_N2 = (weight_N3[:, :, None] * corner_V2[triangles[triangle_N]]).sum(axis=1)
    np.testing.assert_allclose(
        fit_corners(triangles, triangle_N, weight_N3, position_N2), corner_V2, atol=1e-9
    )


def test_a_surface_is_drawn_beneath_its_nodes_and_no_other_graph_has_one(
    tiny_topics: TopicStore,
) -> None:
    for kind, num in (("plane", 2 * len(surface("plane"))), ("cliques", 0)):
        nodes = synthetic_graph(
            tiny_topics, SyntheticConfig(kind=kind, num_nodes=30, min_sentences=5)
        )
        embedding = np.random.default_rng(0).normal(size=(nodes.graph.num_nodes, 4))
        figure = draw_nodes({"one": embedding, "two": embedding}, nodes, kind)
        for axes in figure.axes:
            triangles = [one for one in axes.collections if isinstance(one, PolyCollection)]
            assert sum(len(one.get_paths()) for one in triangles) == num  # filled, and their edges
            assert len(axes.texts) == (4 if num else 0)  # the corners' numbers


def test_self_loops_reach_training(tiny_topics: TopicStore) -> None:
    settings = {
        "graph.kind": "plane",
        "graph.num_nodes": 30,
        "graph.min_sentences": 5,
        "plan.global_batch_rows": 8,
    }
    for loops in (False, True):
        config = override_all(DEMO, settings | {"graph.self_loops": loops})
        system = build(config, tiny_topics.path)
        batches = [system.collate(step, 0, 1)["row_R"] for step in range(20)]
        assert any((rows[:8] == rows[8:16]).any() for rows in batches) == loops
        assert system.objective.config.same_node == ("positive" if loops else "ignore")


def test_too_few_sentences_are_reported_before_anything_is_trained(
    tmp_path: Path, tiny_topics, monkeypatch
) -> None:
    monkeypatch.setenv("RAYBIO_SWEEPS", str(tmp_path / "sweeps"))
    given = RunOptions(store=tiny_topics.path, settings=("graph.min_share=1",), name="syn")
    with pytest.raises(DataError, match="set graph.min_share lower"):
        run_experiments(given, Experiments(("motif",), 1, (0.0,)))
    assert not (tmp_path / "sweeps").exists()


@pytest.mark.parametrize(
    ("compute", "gpus"),
    [
        (Compute(), None),
        (Compute(device="cpu"), 0),
        (Compute(device="gpu"), 1),
        (Compute(gpus_per_worker=0.5), 0.5),
    ],
)
def test_trials_of_graphs_have_the_device_that_is_given(
    compute: Compute,
    gpus: float | None,
    tmp_path: Path,
    tiny_topics: TopicStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = []

    def sweep(spec: SweepSpec) -> None:
        begun.append(spec.run.compute.gpus_per_worker)
        raise ConfigError("nothing is trained here")

    monkeypatch.setattr("raybio.runtime.tune.driver.sweep", sweep)
    given = RunOptions(
        store=tiny_topics.path, settings=TINY, runs=tmp_path / "sweeps", compute=compute
    )
    with pytest.raises(ConfigError, match="nothing is trained here"):
        run_experiments(given, Experiments(("cliques",), 1, (0.0,)))
    assert begun == [gpus]


def test_a_dry_run_of_graphs_lists_the_trials_and_their_time_and_writes_nothing(
    tmp_path: Path,
    tiny_topics: TopicStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = RunOptions(store=tiny_topics.path, settings=TINY)
    run_experiments(given, Experiments(("cliques", "plane"), 1, (0.0,)), is_dry_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert sum("graph.kind=" in line for line in lines) == 4
    assert any(line.startswith("4 trials of ") for line in lines)
    assert "is similar to 4 of them" in lines[-1]
    assert not any(tmp_path.iterdir())


def test_a_device_and_a_number_of_gpus_are_not_given_together() -> None:
    given = RunOptions(compute=Compute(device="cpu", gpus_per_worker=1))
    with pytest.raises(ConfigError, match="--device cpu and --gpus-per-worker: .* leave one"):
        run_experiments(given, Experiments(("motif",), 1, (0.0,)))
