import math
import tracemalloc

import numpy as np
import pytest

from raybio.evaluation.unit_scores import paired_difference
from raybio.methods.relation_graphs.scores import (
    MEASURES,
    EntityRelationScores,
    TaggedPairs,
    score_entities_relations,
)
from tests import word_oracles

O, B0, I0, B1, I1 = range(5)  # noqa: E741
NUM_SENTENCES, NUM_TYPES, NUM_RELATIONS = 40, 3, 3
SIZES = {"num_types": NUM_TYPES, "num_relations": NUM_RELATIONS}

Sentences = list[tuple[list[int], list[tuple[int, int, int]]]]


def joined(sentences: Sentences) -> tuple[TaggedPairs, np.ndarray]:
    """Sentences end to end."""
    indptr = np.append(0, np.cumsum([len(tags) for tags, _ in sentences])).astype(np.int64)
    rows = [
        (start + i, start + j, label)
        for start, (_, its) in zip(indptr, sentences, strict=False)
        for i, j, label in its
    ]
    tags = np.array([tag for tags, _ in sentences for tag in tags], dtype=np.int64)
    return TaggedPairs(tags, *np.array(rows, dtype=np.int64).reshape(-1, 3).T), indptr


def scored(predicted: Sentences, gold: Sentences, **sizes: int):
    one, indptr = joined(predicted)
    return score_entities_relations(one, joined(gold)[0], indptr_S1=indptr, **SIZES | sizes)


def problem(seed: int = 0, mistakes: float = 0.2) -> tuple[Sentences, Sentences]:
    """Return predicted and gold; type 2 and relation 3 are never gold, the last five are empty."""
    rng = np.random.default_rng(seed)
    predicted, gold = [], []
    for number in range(NUM_SENTENCES):
        length = int(rng.integers(2, 12))
        tags = (
            rng.choice(5, length, p=[0.3, 0.2, 0.2, 0.15, 0.15])
            if number < 35
            else np.zeros(length, dtype=int)
        )
        pairs = [(i, j) for i in range(length) for j in range(i + 1, length)] if number < 35 else []
        ends = {end - 1 for _, end, _ in word_oracles.chunks(tags.tolist(), [0, length])}
        rows = [
            (*p, int(rng.integers(1, 3))) for p in pairs if set(p) <= ends and rng.random() < 0.5
        ]
        found = [row for row in rows if rng.random() > mistakes]
        found += [(j, i, int(rng.integers(1, 4))) for i, j in pairs if rng.random() < mistakes / 5]
        guessed = np.where(rng.random(length) < mistakes / 3, rng.integers(0, 7, length), tags)
        gold.append((tags.tolist(), rows + [(0, 0, 1)] * (number % 9 == 3)))
        predicted.append((guessed.tolist(), found))
    return predicted, gold


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mistakes", [0.05, 0.2, 0.6])
def test_all_values_equal_the_loop(seed: int, mistakes: float) -> None:
    predicted, gold = problem(seed, mistakes)
    found = scored(predicted, gold).values
    assert found == pytest.approx(
        word_oracles.entity_relation_scores(predicted, gold, NUM_TYPES, NUM_RELATIONS)
    )
    assert found["re_f1"] <= found["re_minus_f1"]
    assert found["re_legacy_recall"] >= found["re_recall"]
    assert found["re_legacy_precision"] == found["re_precision"]


# Drug x causes effect y z: the effect's last word is 2.
GOLD: Sentences = [([B0, B1, I1, O], [(0, 2, 1)]), ([B1, O, B0, O], [(2, 0, 1)])]


@pytest.mark.parametrize(
    ("predicted", "minus", "strict", "legacy"),
    [
        # All right, in either order.
        ([([B0, B1, I1, O], [(2, 0, 1)]), ([B1, O, B0, O], [(0, 2, 1)])], (1, 1), (1, 1), (1, 1)),
        # Both pairs found, one effect's boundary missed: wrong, and missing as well, but not to the
        # authors' code.
        (
            [([B0, O, B1, O], [(0, 2, 1)]), ([B1, O, B0, O], [(0, 2, 1)])],
            (1, 1),
            (0.5, 0.5),
            (0.5, 1),
        ),
        # The same with one effect's type missed.
        (
            [([B0, B0, I0, O], [(0, 2, 1)]), ([B1, O, B0, O], [(0, 2, 1)])],
            (1, 1),
            (0.5, 0.5),
            (0.5, 1),
        ),
        # One pair not found at all: missing to all.
        ([([B0, B1, I1, O], []), ([B1, O, B0, O], [(0, 2, 1)])], (1, 0.5), (1, 0.5), (1, 0.5)),
        # A pair of words that are not both last words.
        (
            [([B0, B1, I1, O], [(0, 1, 1)]), ([B1, O, B0, O], [(0, 2, 1)])],
            (0.5, 0.5),
            (0.5, 0.5),
            (0.5, 0.5),
        ),
        # Every pair found and every entity missed: the authors' code has neither right nor missing
        # ones.
        ([([O] * 4, [(0, 2, 1)]), ([O] * 4, [(0, 2, 1)])], (1, 1), (0, 0), (0, 0)),
    ],
)
def test_strict_and_legacy_by_hand(predicted, minus, strict, legacy) -> None:
    values = scored(predicted, GOLD, num_types=2, num_relations=1).values
    for task, (precision, recall) in {"re_minus": minus, "re": strict, "re_legacy": legacy}.items():
        f1 = 2 * precision * recall / (precision + recall) if recall else 0
        assert (values[f"{task}_precision"], values[f"{task}_recall"]) == (precision, recall), task
        assert values[f"{task}_f1"] == pytest.approx(f1)


def test_entities_by_hand() -> None:
    predicted: Sentences = [([B0, B1, O, B1], []), ([B1, I0, B0, I1], [])]
    scores = scored(predicted, GOLD, num_types=2, num_relations=1)
    by_type = scores.by_class("ner")
    assert by_type["precision"].tolist() == [1, 1 / 3]
    assert by_type["recall"].tolist() == [1, 1 / 2]
    assert scores.values["ner_f1"] == pytest.approx((1 + 2 / 5) / 2)
    assert scores.by_class("re")["f1"].tolist() == [0]


def test_a_label_that_is_wrong_is_a_pair_that_is_wrong_and_classes_without_gold_do_not_count() -> (
    None
):
    predicted = [(tags, [(i, j, 2) for i, j, _ in rows]) for tags, rows in GOLD]
    scores = scored(predicted, GOLD)
    assert scores.values["re_minus_f1"] == 0
    assert scores.by_class("re_minus")["precision"].tolist()[:2] == [0, 0]
    assert np.isnan(scores.by_class("re_minus")["f1"][2])
    assert scores.values["ner_f1"] == 1
    assert scores.by_class("ner")["f1"] == pytest.approx([1, 1, np.nan], nan_ok=True)


def test_a_pair_of_one_word_with_itself_is_missed_and_what_comes_twice_counts_once() -> None:
    with_itself = [(GOLD[0][0], [(0, 2, 1), (2, 2, 1)]), GOLD[1]]
    values = scored(GOLD, with_itself).values
    for task in ("re_minus", "re", "re_legacy"):
        assert (values[f"{task}_precision"], values[f"{task}_recall"]) == (1, pytest.approx(2 / 3))
    twice = [(tags, rows + [(j, i, label) for i, j, label in rows]) for tags, rows in GOLD]
    assert set(scored(twice, GOLD).values.values()) == {1.0}
    assert set(scored(GOLD, twice).values.values()) == {1.0}


def test_nothing_found_and_nothing_there() -> None:
    nothing: Sentences = [([O] * 4, [])] * 2
    for predicted, gold in ((nothing, GOLD), (GOLD, nothing), (nothing, nothing)):
        scores = scored(predicted, gold)
        assert set(scores.values.values()) == {0.0}
        assert all(
            interval == (0, 0, 0)
            for interval in scores.intervals(np.random.default_rng(0)).values()
        )


def test_intervals_equal_a_loop_over_resampled_sentences() -> None:
    predicted, gold = problem()
    found = scored(predicted, gold).intervals(np.random.default_rng(3), num_resamples=30)
    rng, rows = np.random.default_rng(3), []
    for drawn in rng.integers(0, NUM_SENTENCES, (30, NUM_SENTENCES)):
        times = np.bincount(drawn, minlength=NUM_SENTENCES)
        drawn = np.repeat(np.arange(NUM_SENTENCES), times)
        sides = ([side[number] for number in drawn] for side in (predicted, gold))
        rows.append(word_oracles.entity_relation_scores(*sides, NUM_TYPES, NUM_RELATIONS))
    for name in MEASURES:
        low, high = np.percentile([row[name] for row in rows], [2.5, 97.5])
        assert found[name].low == pytest.approx(low)
        assert found[name].high == pytest.approx(high)
        assert found[name].value == scored(predicted, gold).values[name]


def test_the_interval_of_a_single_sentence_is_unknown() -> None:
    predicted, gold = problem()
    intervals = scored(predicted[:1], gold[:1]).intervals(np.random.default_rng(0))
    assert tuple(intervals) == MEASURES
    assert all(math.isnan(each.low) and math.isnan(each.high) for each in intervals.values())


def test_memory_of_intervals_does_not_grow_with_the_resamples_of_sentences() -> None:
    count_SA = np.ones((20_000, NUM_TYPES), np.int64)
    scores = EntityRelationScores(
        np.stack([count_SA] * 3, axis=-1), np.stack([count_SA] * 4, axis=-1)
    )
    assert scores.values["re_f1"] == 1
    tracemalloc.start()
    scores.intervals(np.random.default_rng(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # 1,000 resamples of 20,000 sentences at once are 160 MB, and their draws as much.
    assert peak < 60e6


@pytest.mark.parametrize("seed", [0, 1])
def test_the_counts_of_sentences_are_stored_and_those_of_all_but_one_give_its_scores(
    seed: int,
) -> None:
    predicted, gold = problem(seed)
    scores = scored(predicted, gold)
    units = scores.unit_scores()
    assert units.unit_U.tolist() == list(range(NUM_SENTENCES))
    assert tuple(units.value_by_measure) == MEASURES
    for name in MEASURES:
        counts = units.counts(name)
        assert counts.value == scores.values[name]
        without_U = counts.without_each()
        for sentence in (3, 12, 39):
            others = [side[:sentence] + side[sentence + 1 :] for side in (predicted, gold)]
            assert without_U[sentence] == pytest.approx(scored(*others).values[name])


def test_a_better_run_is_distinguished_from_a_worse_one_in_pairs_of_sentences() -> None:
    better, gold = problem(mistakes=0.02)
    worse = [(tags, rows[: len(rows) // 2]) for tags, rows in better]
    one, two = (scored(predicted, gold) for predicted in (better, worse))
    found = paired_difference([one.unit_scores()] * 3, [two.unit_scores()] * 3, "re_f1")
    assert found.difference.value == pytest.approx(one.values["re_f1"] - two.values["re_f1"])
    assert found.difference.low > 0
    assert found.p < 0.01
    assert paired_difference([one.unit_scores()] * 3, [two.unit_scores()] * 3, "ner_f1").p == 1


def test_the_order_of_pairs_and_sentences_does_not_matter() -> None:
    predicted, gold = problem()
    expected = scored(predicted, gold).values
    order = np.random.default_rng(0).permutation(NUM_SENTENCES)
    shuffled = [[(side[n][0], side[n][1][::-1]) for n in order] for side in (predicted, gold)]
    assert scored(*shuffled).values == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tag_W": np.zeros(7, dtype=int)}, "predicted tags are 7, up to 0; want 8"),
        ({"tag_W": np.full(8, 7)}, "up to 7; want 8, one a word, up to 6"),
        ({"first_P": np.array([0])}, "want integers, one each a pair"),
        ({"first_P": np.array([0.0, 4.0])}, "want integers"),
        ({"second_P": np.array([2, 8])}, r"predicted words of pairs span \[2, 8\], want \[0, 8\)"),
        ({"label_P": np.array([0, 1])}, r"predicted labels span \[0, 1\], want \[1, 4\)"),
        ({"second_P": np.array([2, 3])}, "joins words of two sentences"),
        ({"second_P": np.array([0, 6])}, "joins a word with itself"),
    ],
)
def test_wrong_pairs_are_refused(change, message) -> None:
    gold, indptr = joined(GOLD)
    right = {
        "tag_W": gold.tag_W,
        "first_P": np.array([0, 4]),
        "second_P": np.array([2, 6]),
        "label_P": np.array([1, 1]),
    }
    with pytest.raises(ValueError, match=message):
        score_entities_relations(TaggedPairs(**right | change), gold, indptr_S1=indptr, **SIZES)


def test_no_sentences_are_refused() -> None:
    nothing, indptr = joined([])
    with pytest.raises(ValueError, match="no sentences"):
        score_entities_relations(nothing, nothing, indptr_S1=indptr, **SIZES)
