"""Rivals of raybio's models that need no training, scored by raybio's own evaluation functions.

    PYTHONPATH=. python benchmarks/rivals.py table METHOD --store STORE [--config FILE] [--set SETTING=VALUE]
    PYTHONPATH=. python benchmarks/rivals.py degree --store STORE       # links of proteins or of articles
    PYTHONPATH=. python benchmarks/rivals.py homology --store STORE --residues 39

Each command prints a Markdown table. MODEL is a model's folder or hub id.

- ``table``: all rows without training of a method's final table, as a run with these settings shows them: chance,
  rivals and the encoder before training. Of ``sppt_mag`` with ``evaluation.test_graphs`` also on samples.
- ``degree``: the score of a pair is the product of both training degrees, so each anchor ranks candidates by degree.
- ``homology``: two proteins are near copies if the Jaccard similarity of their sets of k-mers is at least
  ``--threshold``. Only the first ``--residues`` residues count, those that the encoder reads. The score of a pair
  (i, j) is the sum over training links (a, b) of similarity(i, a) * similarity(j, b), with similarities below the
  threshold set to 0. A training link does not count for its own score. Ties are broken at random. A link has a twin if
  its score is above 0: another training link joins near copies of its ends, or one end and a near copy of the other.

Intervals are 95 % bootstrap intervals over anchors.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from raybio.core.config import load, override_all
from raybio.core.markdown import markdown_table
from raybio.evaluation.evaluator import Evaluator
from raybio.methods import METHODS
from raybio.methods.sppt.evaluate import draw_link_queries
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph_store import open_graph
from raybio.methods.sppt.link_retrieval import (
    GroupRanking,
    LinkRetrieval,
    group_pairs,
    rank_group,
)
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.scores import scores_with_intervals
from raybio.store.store import open_store
from raybio.training.collective import SingleProcess

LINK_MEASURES = ("lrap", "ndcg", "average_precision", "mrr")
BLOCK_ROWS = 1024

ScoreBlock = Callable[[int, int, int, int], np.ndarray]
"""(first anchor, end of anchors, first candidate, end of candidates) -> scores (anchors, candidates)."""


@dataclass(frozen=True)
class TableScorer:
    """Scores of pairs of nodes of one group, with the interface of ``functional.scores.Scorer``.

    Attributes:
        score: of any block of pairs of rows.
        first_row: row of the group's first node.
        num_candidates: nodes of the group.
    """

    score: ScoreBlock
    first_row: int
    num_candidates: int
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float64

    def block(self, first: int, end: int) -> Tensor:
        """Scores of the group's nodes for anchors ``[first, end)``; -inf for the anchor itself."""
        start, stop = self.first_row, self.first_row + self.num_candidates
        score_BN = torch.from_numpy(self.score(start + first, start + end, start, stop))
        score_BN.diagonal(offset=first).fill_(-torch.inf)
        return score_BN


def rank_links(score: ScoreBlock, links: Graph, known: Graph | None = None) -> LinkRetrieval:
    """Return the retrieval of ``links`` by any scores; pairs of ``known`` are no candidates.

    Args:
        score: symmetric or not; only its order matters.
        links: over all rows of a store, which are sorted by group.
        known: training links, where held-out links are retrieved.

    Raises:
        ValueError: if there is no link to retrieve.
    """
    bounds = np.flatnonzero(np.diff(links.group_N, prepend=-1, append=-1))
    row_N = np.arange(links.num_nodes)
    parts = []
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        node_G = row_N[first:end]
        row_P, column_P = group_pairs(links.indptr, links.indices, node_G, row_N, first)
        ignored = (
            None
            if known is None
            else group_pairs(known.indptr, known.indices, node_G, row_N, first)
        )
        if not len(row_P):
            continue
        table = TableScorer(score, first, end - first)
        ranking = GroupRanking(table, row_P, column_P, ignored, BLOCK_ROWS, None)
        parts.append(rank_group(ranking, node_G, int(links.group_N[first])))
    return LinkRetrieval.concatenate(parts)


def degree_scores(training: Graph) -> ScoreBlock:
    """Return scores degree(anchor) * degree(candidate)."""
    degree_N = np.asarray(training.degree_N, dtype=np.float64)

    def score(first: int, end: int, start: int, stop: int) -> np.ndarray:
        return np.outer(degree_N[first:end], degree_N[start:stop])

    return score


def near_copies(store: ProteinStore, *, k: int, residues: int, threshold: float) -> sp.csr_matrix:
    """Return the Jaccard similarities (N, N) of k-mer sets that are at least ``threshold``; 1 on the diagonal."""
    indptr_N1 = store.indptr_N1
    kmers, owners = [], []
    for row in range(store.num_rows):
        residue_L = store.residue_T[indptr_N1[row] : indptr_N1[row + 1]][:residues]
        if len(residue_L) < k:
            continue
        letters_Kk = np.lib.stride_tricks.sliding_window_view(residue_L.astype(np.int64), k)
        kmer_K = np.unique(letters_Kk @ 256 ** np.arange(k))
        kmers.append(kmer_K)
        owners.append(np.full(len(kmer_K), row))
    _, column_K = np.unique(np.concatenate(kmers), return_inverse=True)
    row_K = np.concatenate(owners)
    shape = (store.num_rows, int(column_K.max()) + 1)
    has_NK = sp.csr_matrix((np.ones(len(row_K)), (row_K, column_K)), shape=shape)
    common_NN = (has_NK @ has_NK.T).tocoo()
    size_N = np.bincount(row_K, minlength=store.num_rows)
    either_P = size_N[common_NN.row] + size_N[common_NN.col] - common_NN.data
    similarity_P = common_NN.data / either_P
    is_near_P = similarity_P >= threshold
    pairs = (common_NN.row[is_near_P], common_NN.col[is_near_P])
    near_NN = sp.csr_matrix((similarity_P[is_near_P], pairs), shape=common_NN.shape)
    too_short = np.flatnonzero(size_N == 0)
    alone_NN = sp.csr_matrix((np.ones(len(too_short)), (too_short, too_short)), shape=near_NN.shape)
    return (near_NN + alone_NN).tocsr()


def homology_matrix(training: Graph, near_NN: sp.csr_matrix) -> sp.csr_matrix:
    """Return the sum (N, N) over training links between near copies, without a training link's share in its own sum."""
    num_nodes = training.num_nodes
    ones = np.ones(len(training.indices))
    link_NN = sp.csr_matrix(
        (ones, np.asarray(training.indices), np.asarray(training.indptr)), shape=(num_nodes,) * 2
    )
    # Both directions of a link count in the product: s(i, i) s(j, j) and s(i, j) s(j, i).
    own_NN = link_NN + link_NN.multiply(near_NN.multiply(near_NN.T))
    sum_NN = (near_NN @ link_NN @ near_NN - own_NN).tocsr()
    sum_NN.data = np.round(sum_NN.data, 6)  # what rounding leaves of a link's own share becomes 0
    sum_NN.eliminate_zeros()
    return sum_NN


def with_random_ties(score_NN: sp.csr_matrix) -> ScoreBlock:
    """Return the scores plus a random number below 1e-7, the same at every call: most pairs score 0."""

    def score(first: int, end: int, start: int, stop: int) -> np.ndarray:
        tie_BN = np.stack(
            [np.random.default_rng([0, row]).random(stop - start) for row in range(first, end)]
        )
        return score_NN[first:end, start:stop].toarray() + 1e-7 * tie_BN

    return score


def retrieve_links(score: ScoreBlock, training: Graph, heldout: Graph) -> dict[str, LinkRetrieval]:
    """Return the retrieval of training links and, where there are any, of held-out links."""
    found = {"train": rank_links(score, training)}
    if heldout.num_edges:
        found["val"] = rank_links(score, heldout, known=training)
    return found


def link_table(name: str, found: dict[str, LinkRetrieval]) -> str:
    scores = scores_with_intervals(found, np.random.default_rng(0))
    rows = []
    for split, measures in scores.items():
        title = {"train": "training links", "val": "held-out links"}[split]
        cells = []
        for measure in LINK_MEASURES:
            percent, digits = (1, 3) if measure == "mrr" else (100, 2)
            value, low, high = (
                percent * measures[measure][part] for part in ("value", "low", "high")
            )
            cells.append(f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]")
        rows.append([title, name, *cells])
    return markdown_table(["", "rival", "LRAP", "nDCG", "AP", "MRR"], rows)


def run_degree(arguments: argparse.Namespace) -> str:
    store = open_graph(arguments.store)
    queries = draw_link_queries(store.graph, store.heldout, 0, seed=0)
    return link_table(
        "degree", retrieve_links(degree_scores(queries.training), queries.training, queries.heldout)
    )


def run_homology(arguments: argparse.Namespace) -> str:
    store = open_store(arguments.store, ProteinStore)
    queries = draw_link_queries(store.graph, store.heldout, 0, seed=0)
    near_NN = near_copies(
        store, k=arguments.k, residues=arguments.residues, threshold=arguments.threshold
    )
    score_NN = homology_matrix(queries.training, near_NN)
    found = retrieve_links(with_random_ties(score_NN), queries.training, queries.heldout)
    table = link_table("homology look-up", found)
    return (
        f"{table}\n\n{twin_note(found['val'], score_NN, store.heldout)}"
        if "val" in found
        else table
    )


def twin_note(heldout: LinkRetrieval, score_NN: sp.csr_matrix, heldout_E2: np.ndarray) -> str:
    """Return a sentence: how many held-out links have a twin, and the LRAP of their anchors and of the others."""
    has_twin_E = np.asarray(score_NN[heldout_E2[:, 0], heldout_E2[:, 1]]).ravel() > 0
    has_twin_A = np.isin(heldout.anchor_A, heldout_E2[has_twin_E])
    parts = {"with such a link": has_twin_A, "without": ~has_twin_A}
    lraps = [
        f"{100 * heldout.lrap_A[is_in_A].mean():.2f} {name}"
        for name, is_in_A in parts.items()
        if is_in_A.any()
    ]
    return (
        f"{100 * has_twin_E.mean():.1f} % of the held-out links have a twin in training, "
        f"{100 * has_twin_A.mean():.1f} % of the anchors such a link; LRAP of anchors: {', '.join(lraps)}"
    )


def run_table(arguments: argparse.Namespace) -> str:
    """Score what a method's final table has without training."""
    method = METHODS[arguments.method]
    config = load(method.config, arguments.config) if arguments.config else method.config()
    config = override_all(config, dict(one.split("=", 1) for one in arguments.set))
    system = method.build(config, arguments.store)
    assert system.final_evaluate is not None
    evaluator: Evaluator = system.final_evaluate.__self__  # type: ignore[attr-defined]
    scores_by_stage: dict[str, Any] = {}
    for stage, of_model in evaluator.untrained(system.model, SingleProcess()):
        scores_by_stage.setdefault("chance", {}).update(of_model.chance)
        scores_by_stage[stage] = of_model.scores
    layout = method.table
    parts = []
    for split, title in layout.splits.items():
        rows = []
        for stage, by_split in scores_by_stage.items():
            if split in by_split:
                cells = [
                    score_cell(by_split[split].get(measure), *layout.scale(measure))
                    for measure in layout.measures
                ]
                rows.append([stage, *cells])
        if rows:
            table = markdown_table([title, *layout.measures.values()], rows)
            parts.append(table)
    return "\n\n".join([*parts, *(f"{remark}." for remark in evaluator.remarks())])


def score_cell(score: Mapping[str, float] | None, scale: float, digits: int) -> str:
    """Return a score with its interval, if it has one."""
    if score is None:
        return ""
    low, high = score.get("low"), score.get("high")
    value = f"{scale * score['value']:.{digits}f}"
    if low is None or high is None:
        return value
    return f"{value} [{scale * low:.{digits}f}, {scale * high:.{digits}f}]"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="RIVAL")

    def command(name: str, run: Callable[[argparse.Namespace], str]) -> argparse.ArgumentParser:
        added = commands.add_parser(name)
        added.add_argument("--store", type=Path, required=True, help="prepared with raybio prepare")
        added.set_defaults(run=run)
        return added

    table = command("table", run_table)
    table.add_argument("method", choices=list(METHODS))
    table.add_argument("--config", type=Path, help="YAML file of settings")
    table.add_argument("--set", action="append", default=[], help="SETTING=VALUE; repeatable")
    command("degree", run_degree)
    homology = command("homology", run_homology)
    homology.add_argument("--residues", type=int, required=True, help="first residues that count")
    homology.add_argument("--k", type=int, default=3, help="length of a k-mer (default: 3)")
    homology.add_argument(
        "--threshold", type=float, default=0.2, help="Jaccard similarity of near copies (0.2)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    given: Any = parse(arguments)
    print(given.run(given))


if __name__ == "__main__":
    main()
