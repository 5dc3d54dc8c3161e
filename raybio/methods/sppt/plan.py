"""The plan: the rows of each step, as a pure function of (seed, step).

It has no state, so a run resumes at any step by arithmetic. The rows of a step do not depend on the
number of workers that share it.

Shape letters: B anchors of a step, P positives and Q negatives of an anchor.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from raybio.core.errors import ConfigError, DataError
from raybio.core.randomness import derive_seed, shuffled_epochs
from raybio.methods.sppt.config import PlanConfig
from raybio.methods.sppt.graph.csr import Graph


@dataclass(frozen=True)
class StepRows:
    """The rows of a step's global batch: anchors (B,), positives (B, P), negatives (B, Q)."""

    anchor_B: np.ndarray
    positive_BP: np.ndarray
    negative_BQ: np.ndarray

    def take(self, is_taken_B: np.ndarray) -> "StepRows":
        """Return some anchors with their positives and negatives."""
        return StepRows(
            self.anchor_B[is_taken_B], self.positive_BP[is_taken_B], self.negative_BQ[is_taken_B]
        )

    @property
    def flat(self) -> np.ndarray:
        """All rows in the layout of a batch: anchors, then positives, then negatives."""
        return np.concatenate([self.anchor_B, self.positive_BP.ravel(), self.negative_BQ.ravel()])


@dataclass(frozen=True)
class LinkPlan:
    """The tiered sampler of McDermott et al.: anchors, linked positives and tier-1 negatives.

    Tier 1 draws an anchor's negatives from its own group. Tier 2, the similarity of embeddings, is
    the loss's part. Nodes all of whose links are held out are never drawn: an evaluation takes them
    for unseen.

    In ``uniform`` order the anchors of all steps form one endless stream. Its k-th entry is node
    number ``k mod N`` of the keyed permutation of epoch ``k div N``. So every batch is full, and
    every epoch holds each node exactly once, also if the batch size does not divide the epoch.

    Attributes:
        graph: the training links.
        config: number of rows of each kind and order of the anchors.
        seed: seed of all draws.
        heldout_E2: links that are kept out of the training links.
        self_loops: each node counts as a neighbor of itself. So it is drawn as its own positive as
            often as any other neighbor, and nodes without a link are anchors too. For parity with
            the authors' synthetic surfaces.

    Raises:
        DataError: if the graph has no links.
        ConfigError: if a ``group_first`` batch is larger than the graph.
    """

    graph: Graph
    config: PlanConfig
    seed: int
    heldout_E2: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    self_loops: bool = False

    def __post_init__(self) -> None:
        if self.graph.num_edges == 0:
            raise DataError(
                "the graph has no links, want at least one: nothing can be pre-trained on it"
            )
        is_group_first = self.config.anchor_order == "group_first"
        if is_group_first and self.config.global_batch_rows > len(self._nodes):
            raise ConfigError(
                f"plan.global_batch_rows = {self.config.global_batch_rows}, but only "
                f"{len(self._nodes)} nodes have a link and plan.anchor_order=group_first draws "
                f"each once: give --set plan.global_batch_rows={len(self._nodes)} or less, or "
                "prepare more links"
            )

    def check_negatives(self) -> None:
        """Refuse a graph in which a node has no negatives although they are to be drawn.

        Raises:
            DataError: with what to do.
        """
        drawn, _ = self._drawn
        is_full_N = drawn.degree_N >= drawn.num_nodes - 1
        if self.config.num_negatives_per_anchor and is_full_N.any():
            raise DataError(
                f"{int(is_full_N.sum()):,} of {drawn.num_nodes:,} nodes are linked to all "
                "others, so that no negatives can be drawn for them. Want a larger graph, or "
                "plan.num_negatives_per_anchor=0"
            )

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which each node with a positive is an anchor once; may be fractional."""
        return len(self._nodes) / self.config.global_batch_rows

    def anchors(self, step: int) -> StepRows:
        """Return the anchors of ``step`` only, for training without the graph."""
        is_uniform = self.config.anchor_order == "uniform"
        anchor_B = self._uniform(step) if is_uniform else self._group_first(step)
        nothing = np.empty((len(anchor_B), 0), dtype=np.int64)
        return StepRows(anchor_B, nothing, nothing)

    def rows(self, step: int) -> StepRows:
        """Return the rows of the global batch of ``step``.

        Raises:
            DataError: if a node needs negatives but is linked to all others.
        """
        anchor_B = self.anchors(step).anchor_B
        # The name is part of the seed: another spelling draws other links.
        rng = np.random.default_rng(derive_seed(self.seed, "neighbours", step))
        positive_BP = self._positives(anchor_B, rng)
        try:
            negative_BQ = self._negatives(anchor_B, rng)
        except ValueError as error:
            raise DataError(
                f"step {step}: {error}, or set plan.num_negatives_per_anchor=0"
            ) from None
        return StepRows(anchor_B, positive_BP, negative_BQ)

    def _positives(self, anchor_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw neighbors; with self-loops the node itself is one more neighbor."""
        num = self.config.num_positives_per_anchor
        if not self.self_loops:
            return self.graph.sample_neighbors(anchor_B, num, rng)
        degree_B = self.graph.degree_N[anchor_B]
        is_other_BP = rng.integers(0, degree_B[:, None] + 1, size=(len(anchor_B), num)) > 0
        positive_BP = np.repeat(anchor_B[:, None], num, axis=1)
        linked_B = degree_B > 0
        neighbor_BP = self.graph.sample_neighbors(anchor_B[linked_B], num, rng)
        positive_BP[linked_B] = np.where(is_other_BP[linked_B], neighbor_BP, positive_BP[linked_B])
        return positive_BP

    def _negatives(self, anchor_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw nodes that are no neighbors of the anchors."""
        drawn, node_M = self._drawn
        place_B = anchor_B if node_M is None else np.searchsorted(node_M, anchor_B)
        place_BQ = drawn.sample_negatives(place_B, self.config.num_negatives_per_anchor, rng)
        return place_BQ if node_M is None else node_M[place_BQ]

    @cached_property
    def _drawn(self) -> tuple[Graph, np.ndarray | None]:
        """The graph of the nodes that are drawn, and their numbers; None: all nodes are drawn."""
        is_unseen_N = np.zeros(self.graph.num_nodes, dtype=bool)
        is_unseen_N[self.heldout_E2.ravel()] = True
        is_unseen_N &= self.graph.degree_N == 0
        if self.self_loops or not is_unseen_N.any():
            return self.graph, None
        return self.graph.without(is_unseen_N)

    @cached_property
    def _nodes(self) -> np.ndarray:
        """Nodes that have a positive, sorted by group, so that a group is one range."""
        nodes = np.flatnonzero((self.graph.degree_N > 0) | self.self_loops)
        return nodes[np.argsort(self.graph.group_N[nodes], kind="stable")]

    @cached_property
    def _group_bounds(self) -> np.ndarray:
        """Group g of those with a node in ``_nodes`` is ``_nodes[bounds[g] : bounds[g + 1]]``."""
        changes = np.flatnonzero(np.diff(self.graph.group_N[self._nodes])) + 1
        return np.concatenate([[0], changes, [len(self._nodes)]])

    def _uniform(self, step: int) -> np.ndarray:
        batch = self.config.global_batch_rows
        index_B = shuffled_epochs(
            step * batch, batch, num_rows=len(self._nodes), seed=self.seed, name="anchors"
        )
        return self._nodes[index_B].astype(np.int64)

    def _group_first(self, step: int) -> np.ndarray:
        """Draw groups until the batch is full: a batch larger than one group takes several."""
        rng = np.random.default_rng(derive_seed(self.seed, "groups", step))
        sizes = np.diff(self._group_bounds).astype(float)
        chosen: list[np.ndarray] = []
        missing = self.config.global_batch_rows
        while missing > 0:
            group = int(rng.choice(len(sizes), p=sizes / sizes.sum()))
            members = self._nodes[self._group_bounds[group] : self._group_bounds[group + 1]]
            chosen.append(rng.permutation(members)[:missing])
            missing -= len(chosen[-1])
            sizes[group] = 0.0
        return np.concatenate(chosen).astype(np.int64)
