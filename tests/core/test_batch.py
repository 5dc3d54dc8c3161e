"""Batches: ragged arrays are padded to rectangles without loss."""

import dataclasses

import numpy as np
import pytest
import torch

from raybio.core.batch import (
    IGNORED_LABEL,
    NUM_STATIC_SIZES,
    PADDING_MULTIPLE,
    StaticShape,
    TokenBatch,
    deal,
)
from raybio.methods.sppt.batches import LinkBatch

PAD_ID = 7


def ragged(lengths: list[int], seed: int = 0) -> TokenBatch:
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(10, 99, indptr[-1])
    labels = np.where(rng.random(indptr[-1]) < 0.3, tokens, IGNORED_LABEL)
    return TokenBatch.from_arrays({"token_T": tokens, "indptr_R1": indptr, "label_T": labels})


def pad_one_by_one(
    batch: TokenBatch, rows: list[int]
) -> tuple[list[list[int]], list[list[bool]], list[list[int]]]:
    sequences = [slice(int(batch.indptr_R1[row]), int(batch.indptr_R1[row + 1])) for row in rows]
    width = max(part.stop - part.start for part in sequences)
    while width % PADDING_MULTIPLE:
        width += 1
    tokens, masks, labels = [], [], []
    for part in sequences:
        missing = width - (part.stop - part.start)
        tokens.append(batch.token_T[part].tolist() + [PAD_ID] * missing)
        masks.append([True] * (width - missing) + [False] * missing)
        labels.append(batch.label_T[part].tolist() + [IGNORED_LABEL] * missing)
    return tokens, masks, labels


@pytest.mark.parametrize("lengths", [[3, 9, 1, 16], [8], [1, 1], [17, 2, 2, 40, 5]])
def test_padding_equals_padding_one_sequence_at_a_time(lengths):
    batch = ragged(lengths)
    rows = list(range(len(lengths)))[::-1] + [0]
    padded = batch.pad(torch.tensor(rows), PAD_ID)
    tokens, masks, labels = pad_one_by_one(batch, rows)
    assert padded.token_RL.tolist() == tokens
    assert padded.mask_RL.tolist() == masks
    assert padded.label_RL.tolist() == labels


def test_an_empty_sequence_among_others_becomes_a_row_of_padding():
    padded = ragged([4, 0, 2]).pad(torch.tensor([1, 0]), PAD_ID)
    assert not padded.mask_RL[0].any()
    assert (padded.token_RL[0] == PAD_ID).all()


def test_padding_some_rows_does_not_depend_on_the_others():
    batch, alone = ragged([5, 30, 6]), ragged([5])
    padded = batch.pad(torch.tensor([0]), PAD_ID)
    assert padded.token_RL.shape == (1, 8)
    assert torch.equal(padded.token_RL, alone.pad(torch.tensor([0]), PAD_ID).token_RL)


def test_lengths_and_number_of_rows_come_from_the_bounds():
    batch = ragged([3, 9, 1])
    assert batch.num_rows == 3
    assert batch.length_R.tolist() == [3, 9, 1]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint32, np.int64])
def test_integers_of_any_width_become_int64(dtype):
    arrays = {name: np.arange(5, dtype=dtype) for name in ("token_T", "indptr_R1", "label_T")}
    assert TokenBatch.from_arrays(arrays).token_T.dtype == torch.int64


def test_booleans_and_floats_keep_their_types_and_numbers_become_shape_zero():
    arrays = {field.name: np.arange(4) for field in dataclasses.fields(LinkBatch)}
    arrays |= {"label_T": np.eye(4, dtype=bool), "num_anchors": np.int64(2)}
    batch = LinkBatch.from_arrays(arrays)
    assert batch.label_T.dtype == torch.bool
    assert batch.num_anchors.shape == ()
    assert int(batch.num_anchors) == 2


def test_a_read_only_array_is_copied_and_never_written_through():
    tokens = np.arange(5)
    tokens.flags.writeable = False
    batch = TokenBatch.from_arrays(
        {"token_T": tokens, "indptr_R1": np.array([0, 5]), "label_T": tokens}
    )
    batch.token_T[0] = 99
    assert tokens[0] == 0


def test_a_missing_array_is_an_error_that_names_it():
    with pytest.raises(KeyError, match="label_T"):
        TokenBatch.from_arrays({"token_T": np.arange(2), "indptr_R1": np.array([0, 2])})


def test_arrays_without_a_field_are_ignored():
    arrays = {
        "token_T": np.arange(2),
        "indptr_R1": np.array([0, 2]),
        "label_T": np.arange(2),
        "step": np.array(3),
    }
    assert TokenBatch.from_arrays(arrays).num_rows == 1


def test_moving_a_batch_keeps_its_type_and_every_value():
    batch = ragged([3, 4])
    moved = batch.to("cpu")
    assert type(moved) is TokenBatch
    assert all(
        torch.equal(getattr(moved, f.name), getattr(batch, f.name))
        for f in dataclasses.fields(batch)
    )
    on_meta = batch.to("meta")
    assert all(getattr(on_meta, f.name).is_meta for f in dataclasses.fields(batch))


def test_a_batch_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ragged([2]).token_T = torch.zeros(2)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("num_tokens", "sizes"),
    [
        (16_384, [2_048, 4_096, 6_144, 8_192, 10_240, 12_288, 14_336, 16_384]),
        (100, [16, 32, 48, 64, 80, 96, 100]),
        (8, [8]),
    ],
)
def test_compiled_micro_batches_have_few_sizes_that_hold_their_tokens(num_tokens, sizes):
    shape = StaticShape(num_tokens, longest=4)
    size_of = {real: shape.num_tokens_for(real) for real in range(1, num_tokens + 1)}
    assert sorted(set(size_of.values())) == sizes
    assert len(sizes) <= NUM_STATIC_SIZES
    assert all(real <= size < real + sizes[0] for real, size in size_of.items())


def test_packed_sequences_lie_end_to_end_and_padding_is_a_sequence_of_its_own():
    batch = ragged([4, 1, 2, 3])
    packed = batch.pack(torch.tensor([3, 1]), PAD_ID)
    start = batch.indptr_R1.tolist()
    expected = [*batch.token_T[start[3] : start[4]].tolist(), int(batch.token_T[start[1]])]
    assert packed.token_T.tolist() == expected + [PAD_ID] * 4
    assert packed.indptr_S1.tolist() == [0, 3, 4, 7, 8]  # no padding is longer than a sequence
    assert packed.position_T.tolist() == [0, 1, 2, 0, 0, 1, 2, 0]
    assert packed.row_T.tolist() == [0, 0, 0, 1, 2, 2, 2, 3]
    assert (packed.num_rows, packed.longest) == (2, 3)
    padded = batch.pad(torch.tensor([3, 1]), PAD_ID)
    back = packed.padded()
    assert torch.equal(back.mask_RL, padded.mask_RL[:, :3])
    assert torch.equal(back.label_RL, padded.label_RL[:, :3])
    assert torch.equal(packed.label_K, padded.label_K)
    values = torch.arange(8.0)
    assert torch.equal(packed.from_rectangle(packed.to_rectangle(values)), values)


def test_packing_into_fewer_tokens_than_there_are_is_refused():
    with pytest.raises(ValueError, match="have 5 tokens, want at most 4"):
        ragged([2, 3]).pack(torch.tensor([0, 1]), PAD_ID, num_tokens=4)


def deal_one_by_one(length_B: list[int], world: int) -> list[list[int]]:
    """Rows by worker, as cards are dealt: the longest first, and back from the last worker."""
    hands: list[list[int]] = [[] for _ in range(world)]
    turns = [*range(world), *reversed(range(world))]
    longest_first = sorted(range(len(length_B)), key=lambda place: -length_B[place])
    for number, place in enumerate(longest_first):
        hands[turns[number % len(turns)]].append(place)
    return [sorted(hand) for hand in hands]


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("lengths", [[], [5], [3, 3, 3, 3], [9, 1, 4, 4, 7, 2, 8], [*range(50)]])
def test_rows_are_dealt_by_length_as_one_by_one(lengths: list[int], world: int) -> None:
    worker_B = deal(np.array(lengths, int), world)
    hands = [np.flatnonzero(worker_B == rank).tolist() for rank in range(world)]
    assert hands == deal_one_by_one(lengths, world)
    assert max(map(len, hands)) - min(map(len, hands)) <= 1


def test_no_worker_has_many_more_tokens_than_the_others() -> None:
    length_B = np.random.default_rng(0).lognormal(5, 0.7, 64 * 32).astype(int).clip(8, 512)
    tokens = np.bincount(deal(length_B, 64), length_B)
    assert tokens.max() <= 1.02 * tokens.mean()
    contiguous = length_B.reshape(64, 32).sum(1)
    assert contiguous.max() > 1.2 * contiguous.mean()
