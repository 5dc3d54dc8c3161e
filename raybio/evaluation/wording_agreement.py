"""Do two wordings of the same queries bring the same names? Needs no gold: who knows an answer gives it either way.

Q queries, R relations, K predicted names of a query, C names.

Plain agreement is 1 for an encoder that gives all queries the same names, as some do before they are rewired. So what
is told is, as in Cohen's kappa (1960, "A coefficient of agreement for nominal scales"), how far agreement lies above
that of unlike queries:

    a_q = |A_q ∩ B_q| / |A_q|      A_q, B_q: names predicted for query q in the first wording and in the second
    c_q = mean over all other queries p of |A_q ∩ B_p| / |A_q|
    agreement of a relation = (mean a - mean c) / (1 - mean c), over its queries; 0 where mean c is 1

Other queries are those of all relations: that a relation's answers are of one kind is known by who reads it well.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]


def agreement_above_chance(
    relation_Q: Integers, first_QK: Integers, second_QK: Integers, is_reworded_R: NDArray[np.bool_]
) -> Floats:
    """Agreement (R,) of each relation, at most 1; NaN for one not asked or not reworded, or of one query in all.

    Args:
        relation_Q: of each query.
        first_QK: names predicted in one wording, each once a query, -1 for none.
        second_QK: and in the other, among the same names.
        is_reworded_R: whether the two wordings of the relation differ.
    """
    agreement_R, num_queries = np.full(len(is_reworded_R), np.nan), len(relation_Q)
    if num_queries < 2:
        return agreement_R
    is_name_QK = first_QK >= 0
    num_Q = np.maximum(is_name_QK.sum(1), 1)
    same_Q = ((first_QK[:, :, None] == second_QK[:, None, :]) & is_name_QK[:, :, None]).sum((1, 2))
    # How many queries bring each name in the second wording, the query itself included.
    count_C = np.bincount(second_QK[second_QK >= 0], minlength=int(first_QK.max(initial=0)) + 1)
    any_Q = np.where(is_name_QK, count_C[first_QK], 0).sum(1)
    for relation in np.intersect1d(np.flatnonzero(is_reworded_R), relation_Q).tolist():
        is_here_Q = relation_Q == relation
        shared = float((same_Q / num_Q)[is_here_Q].mean())
        chance = float(((any_Q - same_Q) / (num_Q * (num_queries - 1)))[is_here_Q].mean())
        agreement_R[relation] = (shared - chance) / (1 - chance) if chance < 1 else 0.0
    return agreement_R
