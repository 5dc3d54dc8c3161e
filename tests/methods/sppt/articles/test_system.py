"""SPPT on texts: what is its own beside SPPT on proteins."""

import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import label_ranking_average_precision_score
from typer.testing import CliRunner

from raybio.cli.prepare import app
from raybio.core.errors import ConfigError
from raybio.core.randomness import derive_seed, hash_uniform
from raybio.evaluation.projection import MapSample, Projection
from raybio.methods.sppt.articles.config import Config
from raybio.methods.sppt.articles.evaluate import RANDOM, evaluate_link_samples
from raybio.methods.sppt.articles.link_samples import (
    MEASURES,
    by_embeddings,
    draw_link_samples,
    whole_graph,
)
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.articles.system import build, check
from raybio.store.store import open_store
from raybio.training.collective import ProcessGroup, SingleProcess
from tests.methods.conformance_cases import tiny_config
from tests.training.workers import TIMEOUT_SECONDS, run_workers

SAMPLES = {"evaluation.test_graphs": 3, "evaluation.samples": 4, "evaluation.nodes_per_sample": 5}


class OneOfTwo(SingleProcess):
    """A worker that remembers what it brings to a sum."""

    world = 2

    def __init__(self, rank: int) -> None:
        self.rank, self.brought = rank, []

    def all_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        self.brought.append(tensor)
        return tensor


def test_samples_of_test_graphs_are_requested_as_the_command_for_other_models_asks_them(
    tiny_citations: LinkedTextStore, tmp_path: Path
) -> None:
    system = build(tiny_config("sppt_mag", **SAMPLES), tiny_citations.path)
    initial = str(system.export(tmp_path / "initial", {"name": "tiny"}))
    with torch.no_grad():
        for weight in system.model.parameters():
            weight.add_(
                0.1
                * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
            )
    trained = str(system.export(tmp_path / "trained", {"name": "tiny"}))
    final = system.final_evaluate(system.model, SingleProcess())
    found = evaluate_link_samples(
        [initial, trained], tiny_citations.path, trials=3, samples=4, nodes=5
    )
    assert found[initial] != found[trained]
    for name, wanted in {"random": RANDOM, "initial": initial, "trained": trained}.items():
        for measure in MEASURES:
            one = final.scores[name]["samples"][measure]
            assert one["value"] == pytest.approx(found[wanted][measure].mean, rel=1e-5)
            assert one["low"] <= one["value"] <= one["high"]
    units = final.unit_scores["trained"]["samples"]
    assert units.unit_U.tolist() == [0, 1, 2]
    assert units.value_by_measure["lrap"].mean() == pytest.approx(
        found[trained]["lrap"].mean, rel=1e-5
    )
    assert units.value_by_measure["lrap"].std(ddof=1) == pytest.approx(
        found[trained]["lrap"].deviation, rel=1e-4
    )


def test_a_sampled_evaluation_says_how_many_nodes_it_has(tiny_citations: LinkedTextStore) -> None:
    settings = {
        "evaluation.num_nodes_per_group_at_the_end": 2,
        "evaluation.num_groups_at_the_end": 1,
    }
    system = build(tiny_config("sppt_mag", **settings), tiny_citations.path)
    final = system.final_evaluate(system.model, SingleProcess())
    num_evaluated = final.details["evaluated_nodes"]
    num_nodes = tiny_citations.num_rows
    assert 2 < num_evaluated < num_nodes
    (remark,) = final.remarks
    assert remark.startswith(f"{num_evaluated:,} of {num_nodes:,} nodes were evaluated: 2 drawn")
    assert "look-up" in final.scores
    # There is one group; more than there are draws all of them.
    wanted = settings | {"evaluation.num_groups_at_the_end": 7}
    of_every_group = build(tiny_config("sppt_mag", **wanted), tiny_citations.path)
    (remark_of_every_group,) = of_every_group.final_evaluate.__self__.remarks()
    assert "2 drawn nodes of each group and their neighbors" in remark_of_every_group
    whole = build(tiny_config("sppt_mag"), tiny_citations.path).final_evaluate.__self__
    assert whole.remarks() == []


def test_a_sample_without_all_neighbors_says_how_many_it_has(
    tiny_citations: LinkedTextStore,
) -> None:
    settings = {
        "evaluation.num_nodes_per_group": 4,
        "evaluation.num_nodes_per_group_at_the_end": 4,
        "evaluation.max_neighbors": 2,
        "evaluation.max_neighbors_at_the_end": 3,
    }
    system = build(tiny_config("sppt_mag", **settings), tiny_citations.path)
    evaluator = system.final_evaluate.__self__
    assert len(evaluator._sampled_queries.node_S) == 6
    (remark,) = evaluator.remarks()
    num_neighbors = 3 + evaluator._queries.num_left_out
    assert num_neighbors > 3
    assert remark == (
        f"7 of {tiny_citations.num_rows} nodes were evaluated: 4 drawn nodes of each group and 3 "
        f"of their {num_neighbors} neighbors (evaluation.max_neighbors_at_the_end), so that drawn "
        "nodes with most links are scored on a random part of them"
    )
    assert Config().evaluation.max_neighbors_at_the_end == 200_000


def test_the_nodes_that_chose_the_step_of_the_weights_are_counted(
    tiny_citations: LinkedTextStore,
) -> None:
    settings = {
        "schedule.evaluate_every_steps": 2,
        "schedule.keep_best": "val/link_lrap",
        "evaluation.num_nodes_per_group": 2,
    }
    evaluator = build(
        tiny_config("sppt_mag", **settings), tiny_citations.path
    ).final_evaluate.__self__
    sampled = evaluator._sampled_queries
    assert evaluator.remarks() == [
        f"the step of the weights was chosen on {len(sampled.node_S)} of {tiny_citations.num_rows} "
        f"nodes, with {sampled.training.num_edges} train links and {sampled.heldout.num_edges} val "
        "links (evaluation.num_nodes_per_group)"
    ]
    cut = settings | {"evaluation.max_neighbors": 1}
    (remark,) = build(
        tiny_config("sppt_mag", **cut), tiny_citations.path
    ).final_evaluate.__self__.remarks()
    assert remark.endswith("(evaluation.num_nodes_per_group, evaluation.max_neighbors)")
    for more in ({"schedule.keep_best": None}, {"evaluation.num_nodes_per_group": 0}):
        other = build(tiny_config("sppt_mag", **settings | more), tiny_citations.path)
        assert other.final_evaluate.__self__.remarks() == []


def test_workers_share_the_test_graphs(tiny_citations: LinkedTextStore) -> None:
    system = build(tiny_config("sppt_mag", **SAMPLES), tiny_citations.path)
    evaluator = system.final_evaluate.__self__
    embedding_ND = torch.randn(
        tiny_citations.num_rows, 8, generator=torch.Generator().manual_seed(0)
    )
    retrieve = by_embeddings(embedding_ND)
    cpu = torch.device("cpu")
    alone = evaluator._score_samples(retrieve, cpu, SingleProcess())
    workers = [OneOfTwo(rank) for rank in range(2)]
    for worker in workers:
        evaluator._score_samples(retrieve, cpu, worker)
    ((first,), (second,)) = (worker.brought for worker in workers)
    assert (first[1] == 0).all() and (second[[0, 2]] == 0).all() and (first[0] != 0).all()
    np.testing.assert_allclose((first + second).T, list(alone.values()))


def evaluate_while_the_map_waits(
    rank: int, collective: ProcessGroup, folder: Path, store: str
) -> None:
    """Evaluate; rank 0 draws its map once rank 1 has the whole report."""
    lay_out = MapSample.lay_out
    has_report = folder / "rank 1 has its report"

    def lay_out_later(sample: MapSample) -> Projection:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not has_report.exists():
            assert time.monotonic() < end, "rank 1 waits for the map"
            time.sleep(0.02)
        return lay_out(sample)

    MapSample.lay_out = lay_out_later  # type: ignore[assignment,method-assign]
    system = build(tiny_config("sppt_mag", **SAMPLES), store)
    report = system.final_evaluate(system.model, collective)
    assert "samples" in report.scores["trained"]
    assert (report.embedding_map is None) == (rank == 1)
    if rank == 1:
        has_report.touch()


@pytest.mark.nightly
def test_no_worker_waits_for_the_map_that_the_first_one_draws(
    tiny_citations: LinkedTextStore, tmp_path: Path
) -> None:
    work = partial(evaluate_while_the_map_waits, store=str(tiny_citations.path))
    run_workers(work, 2, tmp_path)


def test_rivals_rank_the_nodes_of_samples_by_what_the_whole_graph_says(
    tiny_citations: LinkedTextStore,
) -> None:
    """Against scikit-learn, with the order of ties that rivals have."""
    config = tiny_config("sppt_mag", **SAMPLES)
    system = build(config, tiny_citations.path)
    report = system.final_evaluate(system.model, SingleProcess())
    graph = tiny_citations.graph
    num_nodes = graph.num_nodes
    linked_NN = np.zeros((num_nodes, num_nodes))
    for node in range(num_nodes):
        linked_NN[node, graph.indices[graph.indptr[node] : graph.indptr[node + 1]]] = 1
    degree_N = linked_NN.sum(1)
    score_by_rival = {
        "degree": np.outer(1 + degree_N, degree_N),
        "common neighbors": linked_NN @ linked_NN,
    }
    drawn_N = hash_uniform(derive_seed(0, "order of ties"), np.arange(num_nodes))
    tie_NN = (drawn_N[:, None] + drawn_N) % 1 * 0.5e-6
    drawn = draw_link_samples(whole_graph(tiny_citations), trials=3, samples=4, nodes=5)
    for name, score_NN in score_by_rival.items():
        scored_NN = score_NN + tie_NN
        values = []
        for trial in drawn:
            of_trial = []
            for sample in trial:
                links = sample.links
                target_AA = np.zeros((links.num_nodes, links.num_nodes))
                for node in range(links.num_nodes):
                    row = links.indices[links.indptr[node] : links.indptr[node + 1]]
                    target_AA[node, row] = 1
                score_AA = scored_NN[np.ix_(sample.node_A, sample.node_A)].copy()
                np.fill_diagonal(score_AA, -1)  # a node is no candidate of itself
                anchors = target_AA.any(1)
                of_trial.append(
                    label_ranking_average_precision_score(target_AA[anchors], score_AA[anchors])
                )
            values.append(np.mean(of_trial))
        one = report.scores[name]["samples"]["lrap"]
        assert one["value"] == pytest.approx(np.mean(values))
        assert one["low"] <= one["value"] <= one["high"]
    assert "samples" in report.scores["TF-IDF"] and "samples" not in report.scores["look-up"]
    other = build(config.model_copy(update={"seed": 1}), tiny_citations.path)
    again = other.final_evaluate(other.model, SingleProcess())
    for name in ("degree", "common neighbors", "TF-IDF"):
        assert again.scores[name] == report.scores[name]


def test_without_test_graphs_there_are_no_samples(tiny_citations: LinkedTextStore) -> None:
    system = build(tiny_config("sppt_mag"), tiny_citations.path)
    assert "samples" not in system.final_evaluate(system.model, SingleProcess()).scores["trained"]


def test_a_test_graph_that_is_no_larger_than_a_sample_is_reported_before_training(
    tmp_path: Path,
) -> None:
    (tmp_path / "nodes.tsv").write_text(
        "id\ttitle\tabstract\n" + "".join(f"{n}\tt{n}\tabout {n}\n" for n in range(60))
    )
    links = "".join(f"{n}\t{n + 1}\n" for n in range(0, 60, 2))
    (tmp_path / "edges.tsv").write_text(f"citing\tcited\n{links}")
    files = ["--nodes", str(tmp_path / "nodes.tsv"), "--edges", str(tmp_path / "edges.tsv")]
    done = CliRunner().invoke(
        app, ["articles", *files, "--out", str(tmp_path / "store")], catch_exceptions=False
    )
    assert done.exit_code == 0
    store = open_store(tmp_path / "store", LinkedTextStore)

    def refusal(nodes: int) -> str:
        with pytest.raises(
            ConfigError, match="every sample of .* would be all of it; want fewer"
        ) as refused:
            check(
                tiny_config("sppt_mag", **SAMPLES | {"evaluation.nodes_per_sample": nodes}), store
            )
        return str(refused.value)

    # Some test graph is smaller than another, and that one is named.
    found = {nodes: refusal(nodes) for nodes in range(8, 40)}
    assert "number 1 of 3 has" in found[39]
    assert any("number 2 of 3 has" in one or "number 3 of 3 has" in one for one in found.values())
    check(tiny_config("sppt_mag", **SAMPLES | {"evaluation.nodes_per_sample": 1}), store)
