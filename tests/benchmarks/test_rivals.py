"""The rivals of ``benchmarks/rivals.py`` against slow, obvious versions of them."""

import importlib.util
import json
import re
import sys

import numpy as np
import pytest
import torch

from raybio.methods import METHODS
from raybio.methods.sppt.evaluate import draw_link_queries
from raybio.methods.sppt.link_retrieval import link_retrieval
from raybio.training.collective import SingleProcess
from tests.methods.conformance_cases import CASES, tiny_config
from tests.paths import ROOT
from tests.script_process import run_script

SCRIPT = ROOT / "benchmarks" / "rivals.py"


@pytest.fixture(scope="module")
def rivals():
    spec = importlib.util.spec_from_file_location("rivals", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["rivals"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["rivals"]


def links_of(store):
    return draw_link_queries(store.graph, store.heldout, 0, seed=0)


def neighbors(graph, node):
    return set(np.asarray(graph.indices[graph.indptr[node] : graph.indptr[node + 1]]).tolist())


def slow_lrap(store, queries, score):
    """LRAP of held-out links by ``score(anchor, candidate)``: training links and other groups are no candidates."""
    values = []
    for anchor in range(store.num_rows):
        links = neighbors(queries.heldout, anchor)
        if not links:
            continue
        known = neighbors(queries.training, anchor) | {anchor}
        group = np.flatnonzero(store.group_N == store.group_N[anchor]).tolist()
        by_candidate = {node: score(anchor, node) for node in group if node not in known}
        parts = []
        for link in links:
            at_least = [node for node, value in by_candidate.items() if value >= by_candidate[link]]
            parts.append(len(links.intersection(at_least)) / len(at_least))
        values.append(np.mean(parts))
    return float(np.mean(values))


def test_degree_ranks_the_candidates_of_each_anchor_by_their_training_links(rivals, tiny_store):
    queries = links_of(tiny_store)
    found = rivals.retrieve_links(
        rivals.degree_scores(queries.training), queries.training, queries.heldout
    )
    slow = slow_lrap(
        tiny_store, queries, lambda anchor, node: len(neighbors(queries.training, node))
    )
    assert found["val"].lrap == pytest.approx(slow, abs=1e-12)


def test_any_scores_are_ranked_as_the_product_ranks_embeddings(rivals, tiny_store):
    queries = links_of(tiny_store)
    embedding_ND = torch.randn(
        tiny_store.num_rows, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )

    def score(first, end, start, stop):
        return (
            -torch.cdist(embedding_ND[first:end], embedding_ND[start:stop]).numpy().round(9)
        )  # symmetric

    found = rivals.retrieve_links(score, queries.training, queries.heldout)
    training, heldout, group_N = queries.training, queries.heldout, tiny_store.group_N
    known = (training.indptr, training.indices)
    ours = {
        "train": link_retrieval(embedding_ND, *known, group_N=group_N),
        "val": link_retrieval(
            embedding_ND, heldout.indptr, heldout.indices, group_N=group_N, ignore=known
        ),
    }
    for split, one in ours.items():
        for measure in ("lrap", "ndcg", "average_precision", "mrr"):
            assert getattr(found[split], measure) == pytest.approx(getattr(one, measure), abs=1e-12)


def test_homology_looks_up_training_links_between_near_copies(rivals, tiny_store):
    queries, k, residues, threshold = links_of(tiny_store), 2, 12, 0.15
    training = {
        (node, other)
        for node in range(tiny_store.num_rows)
        for other in neighbors(queries.training, node)
    }  # both directions

    def kmers(node):
        start, end = tiny_store.indptr_N1[node : node + 2]
        letters = bytes(tiny_store.residue_T[start:end][:residues]).decode()
        return {letters[place : place + k] for place in range(len(letters) - k + 1)}

    sets = [kmers(node) for node in range(tiny_store.num_rows)]
    similarity = [[len(one & two) / len(one | two) for two in sets] for one in sets]

    def near(one, two):
        return similarity[one][two] if similarity[one][two] >= threshold else 0.0

    def slow(one, two):
        return sum(near(one, a) * near(two, b) for a, b in training if {a, b} != {one, two})

    near_NN = rivals.near_copies(tiny_store, k=k, residues=residues, threshold=threshold)
    score_NN = rivals.homology_matrix(queries.training, near_NN).toarray()
    nodes = range(tiny_store.num_rows)
    slow_NN = np.array(
        [[slow(one, two) if one != two else score_NN[one, two] for two in nodes] for one in nodes]
    )
    np.testing.assert_allclose(score_NN, slow_NN, atol=1e-5)
    assert 0 < (slow_NN > 0).mean() < 1  # the threshold leaves pairs with a twin and pairs without


def test_the_table_has_the_rows_that_a_run_has_without_training(rivals, tiny_task):
    config = tiny_config("finetune")
    system = METHODS["finetune"].build(config, tiny_task.path)
    report = system.final_evaluate(system.model, SingleProcess())
    given = [f"{path}={json.dumps(value)}" for path, value in CASES["finetune"].settings.items()]
    options = [part for one in given for part in ("--set", one)]
    arguments = rivals.parse(["table", "finetune", "--store", str(tiny_task.path), *options])
    table = arguments.run(arguments)
    for stage, by_split in report.scores.items():
        score = by_split["test"]["score"]
        number = f"{100 * score['value']:.2f}"
        if "low" in score:
            number += f" [{100 * score['low']:.2f}, {100 * score['high']:.2f}]"
        assert (f"| {stage} | {number} |" in table) == (stage != "trained"), stage


def test_the_script_prints_both_link_rivals_and_the_share_of_twins(tiny_store, tmp_path):
    for rival, *options in (["degree"], ["homology", "--residues", "30"]):
        done = run_script(SCRIPT, tmp_path, rival, "--store", str(tiny_store.path), *options)
        assert done.returncode == 0, done.stderr
        assert len(re.findall(r"\| (training|held-out) links \|", done.stdout)) == 2, done.stdout
    assert re.search(r"[\d.]+ % of the held-out links have a twin in training", done.stdout)
