"""Do two wordings of the same queries bring the same names? Needs no gold: who knows an answer gives it either way.

Q queries, R relations, K predicted names of a query, N names near its head.

Plain agreement says nothing of knowledge. It is 1 for an encoder that gives all queries the same names, and nearly so
for one that goes by the words of a query's head, as encoders do before they are rewired. So names that the bare head
brings are left out, and what is told is, as in Cohen's kappa (1960, "A coefficient of agreement for nominal scales"),
how far agreement lies above that of unlike queries:

    A_q, B_q: the K names predicted for query q in the first wording and in the second, without those near its head
    a_q = |A_q ∩ B_q| / K
    c_q = mean over all other queries p of |A_q ∩ B_p| / K
    agreement of a relation = (mean a - mean c) / (1 - mean c), over its queries; 0 where mean c is 1

Names near the head count in K, so agreement is 1 only where all K names are the same and none is near the head.

Other queries are those of all relations: that a relation's answers are of one kind is known by who reads it well.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]


def agreement_beyond_heads(
    relation_Q: Integers,
    first_QK: Integers,
    second_QK: Integers,
    near_head_QN: Integers,
    is_reworded_R: NDArray[np.bool_],
) -> Floats:
    """Agreement (R,) of each relation, at most 1; NaN for one not asked or not reworded, or of one query in all.

    Args:
        relation_Q: of each query.
        first_QK: names predicted in one wording, each once a query, -1 for none.
        second_QK: and in the other, among the same names.
        near_head_QN: names near the query's head, whatever is asked of it.
        is_reworded_R: whether the two wordings of the relation differ.
    """
    agreement_R, (num_queries, num_predicted) = np.full(len(is_reworded_R), np.nan), first_QK.shape
    if num_queries < 2:
        return agreement_R
    first_QK, second_QK = _without(first_QK, near_head_QN), _without(second_QK, near_head_QN)
    is_name_QK = first_QK >= 0
    same_Q = ((first_QK[:, :, None] == second_QK[:, None, :]) & is_name_QK[:, :, None]).sum((1, 2))
    # How many queries bring each name in the second wording, the query itself included.
    count_C = np.bincount(second_QK[second_QK >= 0], minlength=int(first_QK.max(initial=0)) + 1)
    any_Q = np.where(is_name_QK, count_C[first_QK], 0).sum(1)
    for relation in np.intersect1d(np.flatnonzero(is_reworded_R), relation_Q).tolist():
        is_here_Q = relation_Q == relation
        shared = float(same_Q[is_here_Q].mean()) / num_predicted
        chance = float((any_Q - same_Q)[is_here_Q].mean()) / (num_predicted * (num_queries - 1))
        agreement_R[relation] = (shared - chance) / (1 - chance) if chance < 1 else 0.0
    return agreement_R


def _without(name_QK: Integers, left_out_QN: Integers) -> Integers:
    """The names, -1 in place of those to be left out."""
    return np.where((name_QK[:, :, None] == left_out_QN[:, None, :]).any(2), -1, name_QK)
