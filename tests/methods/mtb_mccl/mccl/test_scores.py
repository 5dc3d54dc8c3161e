import math

import numpy as np
import pytest

from raybio.evaluation.unit_scores import paired_difference
from raybio.methods.mtb_mccl.mccl.report import report_data, report_markdown
from raybio.methods.mtb_mccl.mccl.scores import NA_COLUMN, Facts, confusion_matrix, score_facts
from tests import relation_oracles

NUM_DOCUMENTS, NUM_RELATIONS = 30, 5
SIZES = {"num_documents": NUM_DOCUMENTS, "num_relations": NUM_RELATIONS}


def facts_of(rows) -> Facts:
    return Facts(*np.array(sorted(rows), dtype=np.int64).reshape(-1, 4).T)


def problem(seed: int = 0, share: float = 0.5):
    """Return predicted and gold facts, and which gold ones training has."""
    rng = np.random.default_rng(seed)
    # Documents 25 to 29 have nothing, and relation 4 is never gold.
    every = [
        (d, h, t, r)
        for d in range(25)
        for h in range(3)
        for t in range(3)
        for r in range(1, 5)
        if h != t
    ]
    gold = [row for row in every if rng.random() < 0.2 and row[3] < 4]
    predicted = [row for row in every if rng.random() < (share if row in set(gold) else 0.1)]
    return predicted, gold, {row for row in gold if rng.random() < 0.4}


def scored(predicted, gold, in_train=None):
    flags = (
        None
        if in_train is None
        else np.array([row in in_train for row in sorted(gold)], dtype=bool)
    )
    return score_facts(facts_of(predicted), facts_of(gold), is_in_train_F=flags, **SIZES)


@pytest.mark.parametrize("seed", range(5))
def test_f1_and_ign_f1_equal_the_loop_of_docred(seed: int) -> None:
    predicted, gold, in_train = problem(seed)
    found = scored(predicted, gold, in_train).values
    expected = relation_oracles.docred_scores(predicted, gold, in_train)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert found["ign_f1"] < found["f1"]


def test_by_hand() -> None:
    gold = [(0, 0, 1, 1), (0, 1, 0, 1), (1, 0, 1, 2), (1, 0, 1, 3)]
    predicted = [(0, 0, 1, 1), (0, 2, 1, 1), (1, 0, 1, 2)]
    scores = scored(predicted, gold, {(0, 0, 1, 1)})
    assert scores.values == pytest.approx(
        {
            "f1": 4 / 7,
            "precision": 2 / 3,
            "recall": 1 / 2,
            "macro_f1": (1 / 2 + 1 + 0) / 3,
            "ign_f1": 2 * (1 / (2 + 1e-5)) * 0.5 / (1 / (2 + 1e-5) + 0.5),
        }
    )
    by_relation = scores.by_relation()
    assert by_relation["f1"] == pytest.approx([math.nan, 0.5, 1.0, 0.0, math.nan], nan_ok=True)
    assert by_relation["precision"] == pytest.approx(
        [math.nan, 0.5, 1.0, 0.0, math.nan], nan_ok=True
    )
    assert by_relation["gold"].tolist() == [0, 2, 1, 1, 0]
    assert by_relation["predicted"].tolist() == [0, 2, 1, 0, 0]


def test_labels_of_all_pairs_are_scored_as_their_facts_and_na_is_none() -> None:
    rng = np.random.default_rng(0)
    document, head, tail = (rng.permutation(200) // 10, np.arange(200), np.arange(200) + 1)
    gold, predicted = rng.integers(0, 5, (2, 200))
    found = score_facts(
        Facts(document, head, tail, predicted), Facts(document, head, tail, gold), **SIZES
    ).values
    right = int(((gold == predicted) & (gold != NA_COLUMN)).sum())
    assert found["precision"] == pytest.approx(right / (predicted != NA_COLUMN).sum())
    assert found["recall"] == pytest.approx(right / (gold != NA_COLUMN).sum())
    assert found["f1"] == pytest.approx(
        2 * right / ((predicted != NA_COLUMN).sum() + (gold != NA_COLUMN).sum())
    )
    assert "ign_f1" not in found
    one_hot = Facts.of_labels(document, head, tail, np.eye(5, dtype=bool)[predicted])
    assert score_facts(one_hot, Facts(document, head, tail, gold), **SIZES).values == found
    table = confusion_matrix(gold, predicted, 5)
    assert table.sum() == 200
    assert all(
        table[g, p] == ((gold == g) & (predicted == p)).sum() for g in range(5) for p in range(5)
    )
    assert right / (predicted != NA_COLUMN).sum() == pytest.approx(
        np.trace(table[1:, 1:]) / table[:, 1:].sum()
    )


def test_what_comes_twice_counts_once_and_order_does_not_matter() -> None:
    predicted, gold, in_train = problem()
    expected = scored(predicted, gold, in_train).values
    order = np.random.default_rng(0).permutation(2 * len(gold))
    doubled = gold + gold
    shuffled = [doubled[place] for place in order]
    twice = score_facts(
        Facts(*np.array(predicted[::-1] + predicted).T),
        Facts(*np.array(shuffled).T),
        is_in_train_F=np.array([row in in_train for row in shuffled]),
        **SIZES,
    )
    assert twice.values == expected


def test_all_found_nothing_found_and_nothing_there() -> None:
    _, gold, _ = problem()
    assert list(scored(gold, gold, set()).values.values()) == pytest.approx([1] * 5, abs=1e-6)
    for scores in (scored([], gold, set()), scored(gold, [], set()), scored([], [], set())):
        assert set(scores.values.values()) == {0.0}
        assert all(
            interval == (0.0, 0.0, 0.0)
            for interval in scores.intervals(np.random.default_rng(0)).values()
        )
    everything_known = scored(gold, gold, set(gold))
    assert everything_known.values["ign_f1"] == 0


def test_intervals_equal_a_loop_over_resampled_documents() -> None:
    predicted, gold, in_train = problem()
    scores = scored(predicted, gold, in_train)
    found = scores.intervals(np.random.default_rng(3), num_resamples=40)
    rows = []
    for drawn in np.random.default_rng(3).integers(0, NUM_DOCUMENTS, (40, NUM_DOCUMENTS)):
        times = np.bincount(drawn, minlength=NUM_DOCUMENTS)
        # A document that is drawn again is another one with the same facts.
        copies = [(d, c) for d in range(NUM_DOCUMENTS) for c in range(times[d])]
        again = [
            [(d, c, *row[1:]) for d, c in copies for row in side if row[0] == d]
            for side in (predicted, gold)
        ]
        known = {(d, c, *row[1:]) for d, c in copies for row in in_train if row[0] == d}
        expected = relation_oracles.docred_scores(*again, known)
        by_relation = []
        for relation in {row[-1] for row in again[1]}:
            mine = [[row for row in side if row[-1] == relation] for side in again]
            by_relation.append(relation_oracles.docred_scores(*mine, known)["f1"])
        rows.append(expected | {"macro_f1": np.mean(by_relation)})
    for name, interval in found.items():
        low, high = np.percentile([row[name] for row in rows], [2.5, 97.5])
        assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-12), name
        assert interval.value == scores.values[name]
        assert interval.low < interval.value < interval.high


def test_the_interval_of_a_single_document_is_unknown() -> None:
    scores = score_facts(
        facts_of([(0, 0, 1, 1), (0, 1, 2, 1)]),
        facts_of([(0, 0, 1, 1)]),
        num_documents=1,
        num_relations=NUM_RELATIONS,
    )
    intervals = scores.intervals(np.random.default_rng(0))
    assert intervals["f1"].value == pytest.approx(2 / 3)
    assert all(math.isnan(each.low) and math.isnan(each.high) for each in intervals.values())
    data = report_data(["NA", "a", "b", "c", "d"], scores, "", None, chance=scores, chance_of="dev")
    assert "| f1 | 66.67% | – | 66.67% |" in report_markdown(data, "one document")


def test_the_counts_of_documents_are_stored_and_those_of_all_but_one_give_its_scores() -> None:
    predicted, gold, in_train = problem()
    scores = scored(predicted, gold, in_train)
    units = scores.unit_scores()
    assert units.unit_U.tolist() == list(range(NUM_DOCUMENTS))
    assert set(units.value_by_measure) == set(scores.values)
    for name, value in scores.values.items():
        counts = units.counts(name)
        assert counts.value == value
        without_U = counts.without_each()
        for document in (0, 7, 29):
            others = np.delete(scores.count_UR4, document, axis=0)
            expected = type(scores)(others, has_ign=True).values[name]
            assert without_U[document] == pytest.approx(expected, rel=1e-5)


def test_a_better_run_is_distinguished_from_a_worse_one_in_pairs_of_documents() -> None:
    better, gold, in_train = problem(share=0.9)
    worse = [row for row in better if row not in set(gold) or hash(row) % 3]
    one, two = (scored(predicted, gold, in_train).unit_scores() for predicted in (better, worse))
    found = paired_difference([one] * 3, [two] * 3, "f1")
    expected = scored(better, gold).values["f1"] - scored(worse, gold).values["f1"]
    assert found.difference.value == pytest.approx(expected)
    assert found.difference.low > 0
    assert found.p < 0.01
    assert paired_difference([one] * 3, [one] * 3, "f1").p == 1


def test_wrong_arguments_are_refused() -> None:
    predicted, gold, _ = problem()
    with pytest.raises(ValueError, match="num_documents is 0"):
        score_facts(facts_of(predicted), facts_of(gold), num_documents=0, num_relations=5)
    with pytest.raises(ValueError, match=r"documents of facts span \[0, 24\], want \[0, 20\)"):
        score_facts(facts_of(predicted), facts_of(gold), num_documents=20, num_relations=5)
    with pytest.raises(ValueError, match="relations of facts span"):
        score_facts(facts_of(predicted), facts_of(gold), num_documents=30, num_relations=4)
    with pytest.raises(ValueError, match="of gold"):
        score_facts(
            facts_of(predicted), facts_of(gold), is_in_train_F=np.ones(3, dtype=bool), **SIZES
        )
    with pytest.raises(ValueError, match="one of each per fact"):
        Facts(np.arange(3), np.arange(3), np.arange(2), np.arange(3))
    with pytest.raises(ValueError, match="want integers"):
        Facts(np.arange(3), np.arange(3), np.arange(3), np.ones(3))
    with pytest.raises(ValueError, match="one each a pair"):
        confusion_matrix(np.arange(3), np.arange(2), 5)
    with pytest.raises(ValueError, match=r"labels span \[0, 5\]"):
        confusion_matrix(np.arange(6), np.arange(6), 5)


def test_micro_f1_is_the_ratio_of_sums_over_documents() -> None:
    predicted, gold, _ = problem()
    scores = scored(predicted, gold)
    units = scores.unit_scores()
    achieved_U, achievable_U = units.value_by_measure["f1"].T
    for document in units.unit_U.tolist():
        own_predicted = {row for row in predicted if row[0] == document}
        own_gold = {row for row in gold if row[0] == document}
        assert achieved_U[document] == 2 * len(own_predicted & own_gold)
        assert achievable_U[document] == len(own_predicted) + len(own_gold)
    assert achieved_U.sum() / achievable_U.sum() == pytest.approx(scores.values["f1"])
