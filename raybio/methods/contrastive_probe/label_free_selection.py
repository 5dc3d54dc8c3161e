"""Selection of a training step or a number of layers without gold labels, and its accuracy by gold.

S candidates in ascending order (training steps, or numbers of layers), R relations.

Two label-free rules:

- Agreement of wordings (``wording_agreement``): for all relations, the candidate with the highest
  mean over relations; or for each relation, its highest candidate. A relation without agreement
  uses the former.
- Held-out sentences: the candidate whose queries retrieve their own answers best.

Ties go to the earlier candidate. Agreement alone proves nothing: an encoder may agree with itself
and be wrong. So it only compares steps of one rewiring, and step 0 is not a candidate.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from raybio.core.arrays import Floats, Integers

Table = list[list[str]]
"""Rows of cells; the first row holds the headings."""

BY_AGREEMENT = "agreement of wordings"
BY_RELATION_AGREEMENT = "agreement of wordings, by relation"
BY_HELD_OUT = "held-out sentences"
LAST_CANDIDATE = "the last"
BEST = "the best by gold"
BEST_BY_RELATION = "the best by gold, by relation"


def select_candidates(
    accuracy_SR: Floats,
    agreement_SR: Floats | None = None,
    held_out_S: Floats | None = None,
    fixed: Mapping[str, int] | None = None,
) -> dict[str, Integers]:
    """Return rule -> index (R,) of the candidate selected for each relation.

    Label-free rules come first, then the last candidate, ``fixed`` ones, and the best by gold.

    Args:
        accuracy_SR: accuracy by gold, NaN for a relation without queries; label-free rules ignore
            it.
        agreement_SR: agreement of wordings, NaN for a relation without one; None omits its rules,
            as does a NaN in each relation.
        held_out_S: score on held-out sentences, higher is better; None omits its rule.
        fixed: rule -> index of a candidate that is fixed beforehand.
    """
    num_candidates, num_relations = accuracy_SR.shape

    def for_all(index: int) -> Integers:
        return np.full(num_relations, index)

    index_by_rule: dict[str, Integers] = {}
    if held_out_S is not None:
        index_by_rule[BY_HELD_OUT] = for_all(_first_highest(held_out_S))
    if agreement_SR is not None and not np.isnan(agreement_SR).any(0).all():
        index = _first_highest(_mean_over_relations(agreement_SR))
        index_by_rule[BY_AGREEMENT] = for_all(index)
        index_by_rule[BY_RELATION_AGREEMENT] = _highest_by_relation(agreement_SR, default=index)
    index_by_rule[LAST_CANDIDATE] = for_all(num_candidates - 1)
    for rule, index in (fixed or {}).items():
        index_by_rule[rule] = for_all(index)
    best = _first_highest(_mean_over_relations(accuracy_SR))
    index_by_rule[BEST] = for_all(best)
    index_by_rule[BEST_BY_RELATION] = _highest_by_relation(accuracy_SR, default=best)
    return index_by_rule


def selected_accuracy(index_R: Integers, accuracy_SR: Floats) -> float:
    """Return the mean accuracy over relations with queries, each at its selected candidate."""
    return float(np.nanmean(accuracy_SR[index_R, np.arange(len(index_R))]))


def selection_table(
    index_by_rule: Mapping[str, Integers], accuracy_SR: Floats, candidates: Sequence[str]
) -> Table:
    """Return a row for each rule: selected candidates, accuracy, difference to the best for all.

    Accuracies are in percent.
    """
    best = selected_accuracy(index_by_rule[BEST], accuracy_SR)
    rows = [["chosen by", "chosen", "accuracy", "vs. the best"]]
    for rule, index_R in index_by_rule.items():
        selected = ", ".join(candidates[index] for index in np.unique(index_R))
        accuracy = selected_accuracy(index_R, accuracy_SR)
        rows.append([rule, selected, f"{100 * accuracy:.2f}", f"{100 * (accuracy - best):+.2f}"])
    return rows


def relation_table(
    index_by_rule: Mapping[str, Integers],
    accuracy_SR: Floats,
    candidates: Sequence[str],
    relations: Sequence[str],
) -> Table:
    """Return a row for each relation with queries: candidate and percent accuracy of each rule."""
    rows = [["relation", *index_by_rule]]
    for column, relation in enumerate(relations):
        if np.isnan(accuracy_SR[:, column]).any():
            continue
        cells = []
        for index_R in index_by_rule.values():
            index = int(index_R[column])
            cells.append(f"{candidates[index]}: {100 * accuracy_SR[index, column]:.2f}")
        rows.append([relation, *cells])
    return rows


def _mean_over_relations(score_SR: Floats) -> Floats:
    """Return the mean (S,) over relations that have a score at every candidate."""
    known_SK = score_SR[:, ~np.isnan(score_SR).any(0)]
    return known_SK.mean(1) if known_SK.shape[1] else np.zeros(len(score_SR))


def _first_highest(score_S: Floats) -> int:
    # argmax returns the first of equals.
    return int(score_S.argmax())


def _highest_by_relation(score_SR: Floats, *, default: int) -> Integers:
    is_known_R = ~np.isnan(score_SR).any(0)
    return np.where(is_known_R, np.where(is_known_R, score_SR, 0).argmax(0), default)
