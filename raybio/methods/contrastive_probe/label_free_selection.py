"""Choosing a saved step, or a layer, without gold; and what gold says of the choice.

S candidates in order (saved steps, or numbers of layers), R relations.

A relation is read well only where two wordings of its queries agree (``wording_agreement``), so the candidate with the
highest agreement is chosen: the highest mean over relations for all, or each relation's own. A relation without
agreement goes by the choice for all. Of equals the earlier is taken. Held-out sentences choose by how well their
queries find their own answers. Agreement proves nothing by itself: an encoder may agree with itself and be wrong; so it
compares steps of a rewiring, not its start.

Do two wordings of the same queries bring the same names? Needs no gold: who knows an answer gives it either way.

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

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]


Floats = NDArray[np.float64]


Table = list[list[str]]
"""Rows of cells, the first of which are headings."""


BY_AGREEMENT, EACH_BY_AGREEMENT = "agreement of wordings", "agreement of wordings, by relation"


BY_HELD_OUT, LAST = "held-out sentences", "the last"


BEST, EACH_BEST = "the best by gold", "the best by gold, by relation"


def choices(
    accuracy_SR: Floats,
    agreement_SR: Floats | None = None,
    held_out_S: Floats | None = None,
    fixed: Mapping[str, int] | None = None,
) -> dict[str, Integers]:
    """Rule -> the candidate (R,) that it takes for each relation: label-free rules first, then what to compare with.

    Args:
        accuracy_SR: by gold; NaN for a relation without queries. The rules without gold do not look at it.
        agreement_SR: NaN for a relation that has none; None: its rules are left out.
        held_out_S: of held-out sentences, such as their mean reciprocal rank; None: that rule is left out.
        fixed: rule -> candidate, for those that were chosen beforehand.
    """
    num, num_relations = accuracy_SR.shape

    def everywhere(place: int) -> Integers:
        return np.full(num_relations, place)

    rules, best = dict[str, Integers](), _best(_mean(accuracy_SR))
    if held_out_S is not None:
        rules[BY_HELD_OUT] = everywhere(_best(held_out_S))
    if agreement_SR is not None:
        by_agreement = _best(_mean(agreement_SR))
        rules |= {
            BY_AGREEMENT: everywhere(by_agreement),
            EACH_BY_AGREEMENT: _each(agreement_SR, by_agreement),
        }
    rules[LAST] = everywhere(num - 1)
    rules |= {rule: everywhere(place) for rule, place in (fixed or {}).items()}
    return rules | {BEST: everywhere(best), EACH_BEST: _each(accuracy_SR, best)}


def accuracy_of(choice_R: Integers, accuracy_SR: Floats) -> float:
    """Mean over the relations that have queries, each at its chosen candidate."""
    return float(np.nanmean(accuracy_SR[choice_R, np.arange(len(choice_R))]))


def choice_table(
    rules: Mapping[str, Integers], accuracy_SR: Floats, candidates: Sequence[str]
) -> Table:
    """Each rule, what it takes, and its accuracy in percent, with what that lacks to the best one for all."""
    best = accuracy_of(rules[BEST], accuracy_SR)
    rows = [["chosen by", "takes", "accuracy", "to the best"]]
    for rule, place_R in rules.items():
        taken = [candidates[place] for place in np.unique(place_R)]
        accuracy = accuracy_of(place_R, accuracy_SR)
        rows.append(
            [rule, ", ".join(taken), f"{100 * accuracy:.2f}", f"{100 * (accuracy - best):+.2f}"]
        )
    return rows


def relation_table(
    rules: Mapping[str, Integers],
    accuracy_SR: Floats,
    candidates: Sequence[str],
    relations: Sequence[str],
) -> Table:
    """For each relation that has queries what each rule takes, and its accuracy there in percent."""
    rows = [["relation", *rules]]
    for number, relation in enumerate(relations):
        if not np.isnan(accuracy_SR[:, number]).any():
            places = [int(place_R[number]) for place_R in rules.values()]
            cells = [
                f"{candidates[place]}: {100 * accuracy_SR[place, number]:.2f}" for place in places
            ]
            rows.append([relation, *cells])
    return rows


def _mean(score_SR: Floats) -> Floats:
    """Over the relations that have a score."""
    known_SK = score_SR[:, ~np.isnan(score_SR).any(0)]
    return known_SK.mean(1) if known_SK.shape[1] else np.zeros(len(score_SR))


def _best(score_S: Floats) -> int:
    # argmax takes the first of equals.
    return int(score_S.argmax())


def _each(score_SR: Floats, otherwise: int) -> Integers:
    is_known_R = ~np.isnan(score_SR).any(0)
    return np.where(is_known_R, np.where(is_known_R, score_SR, 0).argmax(0), otherwise)


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
