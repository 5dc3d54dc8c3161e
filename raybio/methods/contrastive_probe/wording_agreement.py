"""Agreement of the predictions for two wordings of the same queries; it needs no gold labels.

Q queries, R relations, K predicted names of a query, N names near its head.

An encoder that knows an answer predicts it for either wording. Plain agreement does not measure
this: it is 1 for an encoder that predicts the same names for all queries. It is nearly 1 for an
encoder that only reads the head of a query, as encoders do before rewiring. Two corrections:

- Names that the head alone retrieves are removed.
- Agreement is corrected for chance, as in Cohen's kappa (1960, "A coefficient of agreement for
  nominal scales"). Chance is the agreement between different queries.

    A_q, B_q: the K names predicted for query q in the first and the second wording, without the
        names near its head
    a_q = |A_q ∩ B_q| / K
    c_q = mean over all other queries p of |A_q ∩ B_p| / K
    agreement of a relation = (mean a - mean c) / (1 - mean c), over its queries; 0 if mean c is 1

The denominator K includes names near the head. So agreement is 1 only if all K names are equal and
none is near the head.

The other queries are those of all relations: predicting names of the right kind is knowledge too.
"""

import numpy as np
from numpy.typing import NDArray

from raybio.core.arrays import Floats, Integers


def agreement_beyond_heads(
    relation_Q: Integers,
    first_QK: Integers,
    second_QK: Integers,
    near_head_QN: Integers,
    is_reworded_R: NDArray[np.bool_],
) -> Floats:
    """Return the agreement (R,) of each relation, at most 1.

    It is NaN for a relation without queries, for one with equal wordings, and for a single query in
    all.

    Args:
        relation_Q: relation of each query.
        first_QK: names predicted for the first wording, distinct within a query, -1 for none.
        second_QK: names predicted for the second wording, among the same candidates.
        near_head_QN: names near the head of each query.
        is_reworded_R: whether the two wordings of the relation differ.
    """
    agreement_R = np.full(len(is_reworded_R), np.nan)
    num_queries, num_predicted = first_QK.shape
    if num_queries < 2:
        return agreement_R
    first_QK = _without(first_QK, near_head_QN)
    second_QK = _without(second_QK, near_head_QN)
    is_name_QK = first_QK >= 0
    is_same_QKK = first_QK[:, :, None] == second_QK[:, None, :]
    num_same_Q = (is_same_QKK & is_name_QK[:, :, None]).sum((1, 2))
    # Number of queries that predict each name in the second wording, the query itself included.
    count_C = np.bincount(second_QK[second_QK >= 0], minlength=int(first_QK.max(initial=0)) + 1)
    num_any_Q = np.where(is_name_QK, count_C[first_QK], 0).sum(1)
    num_others_Q = num_any_Q - num_same_Q
    for relation in np.intersect1d(np.flatnonzero(is_reworded_R), relation_Q).tolist():
        is_here_Q = relation_Q == relation
        observed = float(num_same_Q[is_here_Q].mean()) / num_predicted
        chance = float(num_others_Q[is_here_Q].mean()) / (num_predicted * (num_queries - 1))
        agreement_R[relation] = (observed - chance) / (1 - chance) if chance < 1 else 0.0
    return agreement_R


def _without(name_QK: Integers, removed_QN: Integers) -> Integers:
    """Return the names with -1 in place of the removed ones."""
    is_removed_QK = (name_QK[:, :, None] == removed_QN[:, None, :]).any(2)
    return np.where(is_removed_QK, -1, name_QK)
