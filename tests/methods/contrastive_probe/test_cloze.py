import hashlib
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from raybio.core.batch import deal
from raybio.core.digest import sha256_of
from raybio.core.errors import ConfigError, DataError
from raybio.encoders.tokenization import TokenizerSource
from raybio.encoders.word_tokenizer import build_word_tokenizer
from raybio.methods.contrastive_probe.batches import ClozeBatch
from raybio.methods.contrastive_probe.cloze import ClozeCollate, ClozePlan, tail_sizes
from raybio.methods.contrastive_probe.config import ClozeConfig, ClozePlanConfig
from raybio.methods.contrastive_probe.loss import equal_sequences, partners
from raybio.methods.contrastive_probe.prepare import cached_sentences, prepare_sentences
from raybio.methods.contrastive_probe.store import ClozeStore
from tests.ops.threads import in_threads

WORDS = [f"word{letter}" for letter in "abcdefghijklmnop"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ClozeStore:
    """A set of 40 sentences of 2 to 12 words, and one of 20 that repeats its first sentence."""
    folder, rng = tmp_path_factory.mktemp("sentences"), np.random.default_rng(0)
    first = [" ".join(rng.choice(WORDS, int(rng.integers(2, 13)))) for _ in range(40)]
    (folder / "first.txt").write_text("\n".join([*first[:20], "", "alone", *first[20:]]) + " \n")
    second = [" ".join(rng.choice(WORDS, 8)) for _ in range(19)]
    (folder / "second.txt").write_text("\n".join([second[0], *second]))
    return prepare_sentences(folder / "store", [folder / "first.txt", folder / "second.txt"])


def collate_of(store: ClozeStore, rows: int = 8, seed: int = 0, **cloze: object) -> ClozeCollate:
    tokenizer = build_word_tokenizer(store.count_by_word, size=200)
    config, plan = (
        ClozeConfig(**cloze),
        ClozePlan(store, ClozePlanConfig(global_batch_rows=rows), seed),
    )
    tokenize = partial(TokenizerSource.of(tokenizer).tokenize, max_length=config.max_tokens)
    return ClozeCollate(plan, config, tokenize, tokenizer.mask_token, seed)


def test_sentences_of_one_word_and_empty_lines_are_skipped_and_the_former_are_counted(
    store: ClozeStore,
) -> None:
    assert store.num_rows == 60
    assert store.set_names == ("first.txt", "second.txt")
    assert store.set_bounds_S1.tolist() == [0, 40, 60]
    (facts,) = store.manifest["quarantine"].values()
    assert facts["count"] == 1
    assert facts["examples"][0]["line"] == 22


def test_final_stops_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        "one two 3.5 three .\nfour five!\nsix seven... \neight .\n...\n"
    )
    found = prepare_sentences(tmp_path / "store", [tmp_path / "a.txt"])
    assert found.sentences(np.arange(found.num_rows)) == [
        "one two 3.5 three",
        "four five",
        "six seven",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n\none\n", "no sentence of two words"),
        (b"good one\nbad \xff one\n", "line 2 is not UTF-8"),
    ],
)
def test_a_file_without_sentences_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare_sentences(tmp_path / "store", [tmp_path / "a.txt"])
    assert not (tmp_path / "store").exists()


def test_two_files_with_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.txt").write_text("one two\n")
    with pytest.raises(DataError, match=r"same.txt: two sentence files have this name"):
        prepare_sentences(
            tmp_path / "store", [tmp_path / "a" / "same.txt", tmp_path / "b" / "same.txt"]
        )


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.5, 0.9])
def test_random_tails_are_uniform_up_to_the_ratio_and_leave_a_word(ratio: float) -> None:
    config, num_words = ClozeConfig(mask_ratio=ratio), 20
    size = tail_sizes(np.full(60_000, num_words), np.arange(60_000), config, seed=0)
    most = min(1 + int(num_words * ratio), num_words - 1)
    counts = np.bincount(size, minlength=most + 1)
    assert counts[0] == 0
    assert len(counts) == most + 1
    # 5 standard deviations of a count; what would be the whole sentence goes to one word less.
    expected = 60_000 / (1 + int(num_words * ratio))
    assert np.abs(counts[1 : num_words - 1] - expected).max() < 5 * np.sqrt(expected)


def test_fixed_tails_are_the_rounded_share_and_every_side_keeps_a_word() -> None:
    sizes = tail_sizes(
        np.array([2, 3, 10, 11, 40]), np.arange(5), ClozeConfig(tail="fixed", mask_ratio=0.3), 0
    )
    assert sizes.tolist() == [1, 1, 3, 3, 12]
    assert tail_sizes(
        np.array([2, 3]), np.arange(2), ClozeConfig(tail="fixed", mask_ratio=0.99), 0
    ).tolist() == [1, 2]


def test_a_sentence_is_divided_equally_in_every_epoch_and_differently_with_another_seed() -> None:
    num_words, rows = np.full(50, 12), np.arange(50)
    sizes = tail_sizes(num_words, rows, ClozeConfig(), 3)
    np.testing.assert_array_equal(tail_sizes(num_words, rows, ClozeConfig(), 3), sizes)
    assert (tail_sizes(num_words, rows, ClozeConfig(), 4) != sizes).any()
    # Whatever other sentences are in the batch.
    batch = slice(None, None, -3)
    np.testing.assert_array_equal(
        tail_sizes(num_words[batch], rows[batch], ClozeConfig(), 3), sizes[batch]
    )


def test_query_and_answer_together_are_the_sentence_with_one_mask_between(
    store: ClozeStore,
) -> None:
    collate = collate_of(store, mask_ratio=0.5)
    arrays = collate(0, 0, 1)
    tokenizer = build_word_tokenizer(store.count_by_word, size=200)
    texts = [
        tokenizer.decode(arrays["token_T"][start:end]).removeprefix("[CLS] ").removesuffix(" [SEP]")
        for start, end in zip(arrays["indptr_R1"], arrays["indptr_R1"][1:], strict=False)
    ]
    sentences = store.sentences(collate.plan.rows(0))
    assert all(query.endswith(" [MASK]") and query.count("[MASK]") == 1 for query in texts[:8])
    assert [
        f"{a.removesuffix('[MASK]')}{b}" for a, b in zip(texts[:8], texts[8:], strict=True)
    ] == sentences


def test_a_plan_that_has_worked_travels_without_its_rows(store: ClozeStore) -> None:
    config = ClozePlanConfig(global_batch_rows=4, num_held_out_sentences=9, num_sentences=30)
    plan = ClozePlan(store, config, 23)
    rows = plan.rows(3)
    assert len(plan.held_out_rows) == 9
    travelled = pickle.dumps(plan)
    assert len(travelled) == len(pickle.dumps(ClozePlan(store, config, 23)))
    assert vars(pickle.loads(travelled)).keys() == {"store", "config", "seed"}
    np.testing.assert_array_equal(pickle.loads(travelled).rows(3), rows)


def test_positives_are_partners_and_only_repeated_sentences_and_texts_are_ignored(
    store: ClozeStore,
) -> None:
    """By a loop over all pairs of texts, on two workers; the batch holds the repeated sentence."""
    plan = ClozePlan(store, ClozePlanConfig(global_batch_rows=20, sentence_set=1), 0)
    collate = collate_of(store)
    collate = ClozeCollate(plan, collate.config, collate.tokenize, collate.mask_token, 0)
    shards = [collate(0, rank, 2) for rank in range(2)]
    texts = [
        tuple(text)
        for shard in shards
        for text in np.split(shard["token_T"], shard["indptr_R1"][1:-1])
    ]
    row_B = plan.rows(0)
    worker_B = deal(store.sentence_lengths(row_B), 2)
    own = [store.sentences(row_B[worker_B == rank]) for rank in range(2)]
    sentence = [*own[0], *own[0], *own[1], *own[1]]
    batches = [ClozeBatch.from_arrays(shard) for shard in shards]
    partner_R = partners(20, torch.device("cpu"))
    ignored_on_workers = in_threads(
        2,
        lambda collective: equal_sequences(
            batches[collective.rank], partner_R, 20 * collective.rank + partner_R, collective
        ),
    )
    num_ignored = 0
    for rank, ignore_RG in enumerate(ignored_on_workers):
        for row in range(20):
            own, partner = 20 * rank + row, 20 * rank + (row + 10) % 20
            assert partner_R[row] == partner - 20 * rank
            for column in range(40):
                is_repeated = (
                    texts[column] in (texts[own], texts[partner])
                    or sentence[column] == sentence[own]
                )
                assert ignore_RG[row, column] == (is_repeated and column != partner)
            num_ignored += int(ignore_RG[row].sum())
    # Each sequence ignores itself; the sequences of the repeated sentence ignore each other.
    assert num_ignored == 40 + 8


def test_every_sentence_comes_once_an_epoch_and_a_smaller_sample_is_part_of_a_larger_one(
    store: ClozeStore,
) -> None:
    def epoch(**settings: object) -> list[int]:
        plan = ClozePlan(store, ClozePlanConfig(global_batch_rows=5, **settings), 7)
        return sorted(
            row for step in range(int(plan.steps_per_epoch)) for row in plan.rows(step).tolist()
        )

    assert epoch() == list(range(60))
    assert epoch(sentence_set=1) == list(range(40, 60))
    few, more = epoch(num_sentences=10), epoch(num_sentences=30)
    assert len(set(few)) == 10
    assert set(few) < set(more)


def test_neither_a_held_out_sentence_nor_one_of_equal_text_is_trained_on(store: ClozeStore) -> None:
    numbers = set()
    # With some of the seeds one of the two equal sentences is held out.
    for seed in range(30):
        config = ClozePlanConfig(global_batch_rows=2, sentence_set=1, num_held_out_sentences=6)
        plan = ClozePlan(store, config, seed)
        rows = [row for step in range(7) for row in plan.rows(step).tolist()][: plan.num_rows]
        held_out = plan.held_out_rows.tolist()
        equal = {40, 41} - set(held_out) if {40, 41} & set(held_out) else set()
        assert sorted([*rows, *held_out, *equal]) == list(range(40, 60))
        numbers.add(plan.num_rows)
    assert numbers == {13, 14}


def test_holding_out_unused_sentences_does_not_change_the_training_set(store: ClozeStore) -> None:
    def rows(num_held_out: int) -> list[list[int]]:
        chosen = ClozePlanConfig(
            global_batch_rows=8,
            sentence_set=0,
            num_sentences=20,
            num_held_out_sentences=num_held_out,
        )
        return [ClozePlan(store, chosen, 3).rows(step).tolist() for step in range(4)]

    assert rows(20) == rows(0)


def test_rows_without_held_out_sentences_are_pinned(
    store: ClozeStore,
) -> None:
    """A run resumes by its seed, so the rows of a step must not change."""
    assert ClozePlan(store, ClozePlanConfig(global_batch_rows=4), 7).rows(3).tolist() == [
        53,
        25,
        52,
        51,
    ]
    chosen = ClozePlanConfig(global_batch_rows=4, sentence_set=0, num_sentences=12)
    assert ClozePlan(store, chosen, 7).rows(3).tolist() == [17, 31, 37, 3]


def test_held_out_sentences_are_divided_as_in_training(store: ClozeStore) -> None:
    collate = collate_of(store)
    plan = ClozePlan(store, ClozePlanConfig(global_batch_rows=4, num_held_out_sentences=9), 0)
    queries, answers = replace(collate, plan=plan).held_out
    sentences = store.sentences(plan.held_out_rows)
    assert [
        f"{q.removesuffix('[MASK]')}{a}" for q, a in zip(queries, answers, strict=True)
    ] == sentences
    sizes = tail_sizes(
        np.array([len(s.split()) for s in sentences]), plan.held_out_rows, collate.config, 0
    )
    assert [len(answer.split()) for answer in answers] == sizes.tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_held_out_sentences": 61}, "num_held_out_sentences is 61, and the chosen set has 60"),
        (
            {"num_held_out_sentences": 50, "num_sentences": 20},
            "has 10 without the held-out ones and their equals",
        ),
        ({"num_held_out_sentences": 55}, "the training set has 5 sentences"),
        ({"sentence_set": 2}, "want all or 0 to 1"),
        ({"num_sentences": 61}, "the chosen set has 60"),
        ({"global_batch_rows": 61}, "Give --set plan.global_batch_rows=60 or less"),
        ({"global_batch_rows": 30, "num_sentences": 20}, "the training set has 20 sentences"),
    ],
)
def test_a_plan_that_does_not_fit_the_store_is_refused(
    store: ClozeStore, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ClozePlan(store, ClozePlanConfig(**{"global_batch_rows": 8} | settings), 0)


def test_collation_survives_pickling(store: ClozeStore) -> None:
    collate = collate_of(store)
    copy = pickle.loads(pickle.dumps(collate))
    np.testing.assert_array_equal(copy(3, 0, 1)["token_T"], collate(3, 0, 1)["token_T"])


def test_equal_files_are_prepared_once_and_a_changed_one_again(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one two\n")
    first = cached_sentences(tmp_path / "stores", [path])
    assert cached_sentences(tmp_path / "stores", [path]) is first
    path.write_text("one two\nthree four\n")
    assert cached_sentences(tmp_path / "stores", [path]).num_rows == 2
    with pytest.raises(DataError, match="does not exist"):
        cached_sentences(tmp_path / "stores", [tmp_path / "nowhere.txt"])


def test_a_store_of_an_earlier_version_is_prepared_again(tmp_path: Path) -> None:
    path, older = tmp_path / "a.txt", tmp_path / "older.txt"
    path.write_text("one two .\n")
    older.write_text("one two stop\n")  # in place of the sentences of an older reader
    digest = hashlib.sha256(f"a.txt:{sha256_of(path)}\n".encode()).hexdigest()
    prepare_sentences(tmp_path / "stores" / f"sentences-2-{digest[:16]}" / "store", [older])
    assert cached_sentences(tmp_path / "stores", [path]).sentences(np.array([0])) == ["one two"]
