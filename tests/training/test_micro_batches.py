"""Micro-batches within a token budget."""

from collections.abc import Iterator

import pytest
import torch
from torch.overrides import TorchFunctionMode

from raybio.core.batch import IGNORED_LABEL, TokenBatch
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import build_protein_encoder
from raybio.training.micro_batches import (
    micro_batches,
    packed_micro_batches,
    token_budget_micro_batches,
)


def oracle(lengths: list[int], max_tokens: int, multiple: int) -> list[list[int]]:
    """Add rows longest first to the open group if they fit, else to a new one."""
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if groups:
            padded_length = next(
                k for k in range(multiple, 10**6, multiple) if k >= lengths[groups[-1][0]]
            )
            if (len(groups[-1]) + 1) * padded_length <= max_tokens:
                groups[-1].append(row)
                continue
        groups.append([row])
    return groups


@pytest.mark.parametrize("seed", range(20))
def test_groups_equal_those_of_a_row_by_row_loop(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_rows, longest = (int(torch.randint(1, 60, (), generator=generator)) for _ in range(2))
    max_tokens = int(torch.randint(1, 400, (), generator=generator))
    multiple = (1, 8, 16)[seed % 3]
    length_R = torch.randint(1, longest + 1, (num_rows,), generator=generator)
    groups = token_budget_micro_batches(length_R, max_tokens=max_tokens, multiple=multiple)
    assert [group.tolist() for group in groups] == oracle(length_R.tolist(), max_tokens, multiple)


@pytest.mark.parametrize("seed", range(5))
def test_every_row_is_in_one_group_and_no_group_of_two_exceeds_the_budget(seed: int) -> None:
    length_R = torch.randint(1, 1000, (200,), generator=torch.Generator().manual_seed(seed))
    groups = token_budget_micro_batches(length_R, max_tokens=2048)
    assert torch.cat(groups).sort().values.tolist() == list(range(200))
    for group in groups:
        padded_length = -(-int(length_R[group].max()) // 8) * 8
        assert len(group) == 1 or len(group) * padded_length <= 2048


def padded_cost(groups: list[list[int]], overhead_tokens: int) -> int:
    return sum(len(group) * -(-max(group) // 8) * 8 + overhead_tokens for group in groups)


def ways_to_cut(lengths: list[int], max_tokens: int) -> Iterator[list[list[int]]]:
    """Every way to cut the sorted lengths into groups within the budget."""
    if not lengths:
        yield []
    for size in range(1, len(lengths) + 1):
        if size == 1 or size * -(-lengths[0] // 8) * 8 <= max_tokens:
            yield from ([lengths[:size], *rest] for rest in ways_to_cut(lengths[size:], max_tokens))


@pytest.mark.parametrize("overhead_tokens", [0, 20, 1000])
@pytest.mark.parametrize("seed", range(10))
def test_with_an_overhead_no_other_cut_costs_less(seed: int, overhead_tokens: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    length_R = torch.randint(1, 60, (9,), generator=generator)
    max_tokens = int(torch.randint(30, 300, (), generator=generator))
    groups = token_budget_micro_batches(
        length_R, max_tokens=max_tokens, overhead_tokens=overhead_tokens
    )
    assert torch.cat(groups).sort().values.tolist() == list(range(9))
    cheapest = min(
        padded_cost(way, overhead_tokens)
        for way in ways_to_cut(sorted(length_R.tolist(), reverse=True), max_tokens)
    )
    assert padded_cost([length_R[group].tolist() for group in groups], overhead_tokens) == cheapest


def test_short_sequences_do_not_pay_for_a_long_one_unless_a_group_of_their_own_costs_more() -> None:
    length_R = torch.tensor([128, 8, 8, 8])
    apart = token_budget_micro_batches(length_R, max_tokens=4096, overhead_tokens=128)
    assert [group.tolist() for group in apart] == [[0], [1, 2, 3]]
    together = token_budget_micro_batches(length_R, max_tokens=4096, overhead_tokens=1000)
    assert [group.tolist() for group in together] == [[0, 1, 2, 3]]


def test_the_longest_sequences_come_first_and_equal_lengths_keep_their_order() -> None:
    groups = token_budget_micro_batches(torch.tensor([5, 9, 5, 5, 20]), max_tokens=24, multiple=1)
    assert [group.tolist() for group in groups] == [[4], [1, 0], [2, 3]]


def test_a_sequence_longer_than_the_budget_gets_its_own_group() -> None:
    groups = token_budget_micro_batches(torch.tensor([100, 4, 100]), max_tokens=32)
    assert [group.tolist() for group in groups] == [[0], [2], [1]]


def test_no_sequences_make_no_groups() -> None:
    assert token_budget_micro_batches(torch.zeros(0, dtype=torch.int64), max_tokens=8) == []


@pytest.mark.parametrize(("max_tokens", "multiple"), [(0, 8), (8, 0)])
def test_a_budget_without_room_is_refused(max_tokens: int, multiple: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        token_budget_micro_batches(torch.tensor([3]), max_tokens=max_tokens, multiple=multiple)


@pytest.mark.parametrize("seed", range(20))
def test_packed_groups_hold_every_row_once_and_are_filled(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_rows, max_tokens = (int(torch.randint(1, 90, (), generator=generator)) for _ in range(2))
    length_R = torch.randint(1, 40, (num_rows,), generator=generator)
    groups = packed_micro_batches(length_R, max_tokens=max_tokens)
    order_R = torch.cat(groups)
    assert sorted(order_R.tolist()) == list(range(num_rows))
    assert length_R[order_R].tolist() == sorted(length_R.tolist(), reverse=True)
    sums = [int(length_R[group].sum()) for group in groups]
    for group, total in zip(groups, sums, strict=True):
        assert len(group) == 1 or total <= max_tokens
    for total, following in zip(sums[:-1], groups[1:], strict=True):
        assert total + int(length_R[following[0]]) > max_tokens


def test_no_rows_make_no_packed_group_and_a_limit_must_be_positive() -> None:
    assert packed_micro_batches(torch.zeros(0, dtype=torch.int64), max_tokens=8) == []
    with pytest.raises(ValueError, match="got max_tokens=0, want at least 1"):
        packed_micro_batches(torch.tensor([3]), max_tokens=0)


class _Copies(TorchFunctionMode):
    """Notes whether the host waits for copies of its tensors to another device."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[bool] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to and args[0].device.type == "cpu":
            self.waits.append(not (kwargs or {}).get("non_blocking", False))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("packing", [True, False])
def test_the_host_waits_for_no_copy_of_a_micro_batch_to_another_device(packing: bool) -> None:
    sizes = {"num_layers": 1, "width": 16, "num_heads": 2, "ffn_width": 16, "max_positions": 64}
    encoder = build_protein_encoder(EncoderConfig(**sizes), seed=0)
    encoder.packing = packing
    token_T = torch.arange(4, 24).repeat(2)
    indptr_R1 = torch.tensor([0, 15, 20, 40])
    batch = TokenBatch(token_T, indptr_R1, torch.full_like(token_T, IGNORED_LABEL))
    with _Copies() as copies:
        groups = list(micro_batches(batch, encoder, torch.device("meta"), max_tokens=20))
    assert len(groups) > 1
    assert copies.waits
    assert not any(copies.waits)
