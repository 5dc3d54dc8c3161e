"""Batches: ragged arrays are padded to rectangles without loss."""

import dataclasses

import numpy as np
import pytest
import torch

from raybio.core.batch import IGNORED_LABEL, PADDING_MULTIPLE, TokenBatch
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
    arrays |= {
        "linked_RG": np.eye(4, dtype=bool),
        "ignore_RG": np.zeros((4, 4), bool),
        "num_anchors": np.int64(2),
    }
    batch = LinkBatch.from_arrays(arrays)
    assert batch.linked_RG.dtype == torch.bool
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
    assert all(tensor.device.type == "meta" for _, tensor in batch.to("meta")._tensors())


def test_a_batch_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ragged([2]).token_T = torch.zeros(2)  # type: ignore[misc]
