"""Interactions of the simulated tree of life: proteins of one compartment interact.

All species share the compartments of the root's genes. A fraction of each species' links is noise.

Shape letters: A genes of the root, G genes of a species, K candidate pairs of root genes, E links,
C candidate pairs of a species.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.core.randomness import derive_seed, hash_uniform
from raybio.ops.segments import positions_within


class InteractionRules(NamedTuple):
    """Candidate links between root genes, the strongest first: ends (K, 2) and strengths (K,)."""

    pair_K2: NDArray[np.int64]
    strength_K: NDArray[np.float64]


def draw_rules(compartment_A: NDArray[np.int64], num_kept: int, seed: int) -> InteractionRules:
    """Return the strongest pairs of root genes, both of one compartment.

    Args:
        compartment_A: compartment of each root gene.
        num_kept: most pairs that are returned.
        seed: seed of the strengths.
    """
    left_K, right_K = np.nonzero(np.triu(compartment_A[:, None] == compartment_A, 1))
    strength_K = 1.0 + 0.5 * hash_uniform(derive_seed(seed, "strength"), left_K, right_K)
    order = np.argsort(-strength_K, kind="stable")[:num_kept]
    return InteractionRules(np.stack([left_K, right_K], axis=1)[order], strength_K[order])


def draw_links(
    ancestor_G: NDArray[np.int64],
    rules: InteractionRules,
    num_links: int,
    rng: np.random.Generator,
    *,
    noise_share: float,
    turnover: float,
) -> NDArray[np.int64]:
    """Draw one species' links (E, 2), u < v: the best of each gene, then the strongest, then noise.

    Args:
        ancestor_G: root gene from which each gene descends.
        rules: candidate links between root genes.
        num_links: number of links E.
        rng: draws the choice and the noise.
        noise_share: fraction of links between random genes.
        turnover: size of the random change of strengths.
    """
    num_genes = len(ancestor_G)
    num_links = min(num_links, num_genes * (num_genes - 1) // 2)
    pair_C2, strength_C = _candidates(ancestor_G, rules)
    changed_C = strength_C + turnover * rng.random(len(strength_C))
    pair_C2 = pair_C2[np.argsort(-changed_C, kind="stable")]
    # The first candidate of each gene comes before all others, so that few genes stay without a
    # link.
    linked, first = np.unique(pair_C2.ravel(), return_index=True)
    is_best_C = np.zeros(len(pair_C2), dtype=bool)
    is_best_C[first // 2] = True
    pair_C2 = pair_C2[np.argsort(~is_best_C, kind="stable")]
    isolated = np.setdiff1d(np.arange(num_genes), linked)
    num_ruled = max(round((1 - noise_share) * num_links), int(is_best_C.sum()))
    num_ruled = max(min(num_ruled, num_links - len(isolated)), 0)
    # A link is one number, so that sets of links are sorted arrays.
    code_E = pair_C2[:num_ruled] @ np.array([num_genes, 1])
    partner = (isolated + rng.integers(1, num_genes, len(isolated))) % num_genes
    code_E = np.union1d(code_E, _code(isolated, partner, num_genes))
    while len(code_E) < num_links:
        u, v = rng.integers(0, num_genes, (2, num_links - len(code_E)))
        code_E = np.union1d(code_E, _code(u, v, num_genes)[u != v])
    return np.stack(np.divmod(code_E, num_genes), axis=1)


def _candidates(
    ancestor_G: NDArray[np.int64], rules: InteractionRules
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return a species' candidate pairs (C, 2), u < v, from its copies of root genes; strengths."""
    order = np.argsort(ancestor_G, kind="stable")
    num_copies_A = np.bincount(ancestor_G, minlength=int(rules.pair_K2.max(initial=0)) + 1)
    first_A = np.cumsum(num_copies_A) - num_copies_A
    left_K, right_K = rules.pair_K2.T
    num_pairs_K = num_copies_A[left_K] * num_copies_A[right_K]
    rule_C = np.repeat(np.arange(len(num_pairs_K)), num_pairs_K)
    within_C = positions_within(num_pairs_K)
    left_copy_C, right_copy_C = np.divmod(within_C, num_copies_A[right_K[rule_C]])
    u_C = order[first_A[left_K[rule_C]] + left_copy_C]
    v_C = order[first_A[right_K[rule_C]] + right_copy_C]
    pair_C2 = np.stack([np.minimum(u_C, v_C), np.maximum(u_C, v_C)], axis=1)
    return pair_C2, rules.strength_K[rule_C]


def _code(u: NDArray[np.int64], v: NDArray[np.int64], num_genes: int) -> NDArray[np.int64]:
    return np.minimum(u, v) * num_genes + np.maximum(u, v)
