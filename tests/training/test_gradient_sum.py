"""Gradients summed during the last backward pass: bit-identical to a sum after it, in real processes."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from raybio.core.config import override_all
from raybio.core.interfaces import Collective
from raybio.methods import METHODS
from raybio.store.store import Store
from raybio.training import gradient_sum
from raybio.training.collective import ProcessGroup, SingleProcess
from raybio.training.grad_cache import compute_gradients
from raybio.training.gradient_sum import GradientSum
from raybio.training.precision import Precision
from raybio.training.step import TrainStep
from tests.methods.conformance_cases import tiny_config
from tests.training.workers import run_workers

Gradients = dict[str, Tensor | None]


def sum_afterwards(model: nn.Module, collective: Collective, bucket_bytes: int) -> Gradients:
    """Sum gradients in buckets that are put together after the backward pass: the oracle."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    buckets: list[list[nn.Parameter]] = [[]]
    for parameter in parameters:
        if sum(each.nbytes for each in buckets[-1]) + parameter.nbytes > bucket_bytes:
            buckets.append([])
        buckets[-1].append(parameter)
    for bucket in buckets:
        if not bucket:
            continue
        has_grad = torch.tensor([float(each.grad is not None) for each in bucket])
        pieces = [
            (torch.zeros_like(each) if each.grad is None else each.grad).reshape(-1)
            for each in bucket
        ]
        flat = collective.all_sum(torch.cat([*pieces, has_grad]))
        sizes = [each.numel() for each in bucket]
        *summed, count = flat.split([*sizes, len(bucket)])
        for each, gradient, number in zip(bucket, summed, count.tolist(), strict=True):
            each.grad = gradient.view_as(each).clone() if number else None
    return gradients_of(model)


def gradients_of(model: nn.Module) -> Gradients:
    return {
        name: None if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def assert_same_bits(ours: Gradients, expected: Gradients) -> None:
    assert ours.keys() == expected.keys()
    for name, gradient in expected.items():
        if gradient is None:
            assert ours[name] is None, name
        else:
            assert ours[name] is not None and torch.equal(ours[name], gradient), name


class Heads(nn.Module):
    """Tied weights, a frozen layer, and heads that only some workers or some micro-batches use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(5, 7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.tied = nn.Linear(7, 7)
        self.unused = nn.Linear(7, 3)
        self.heads = nn.ModuleList(nn.Linear(7, 3) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, row_BD: Tensor, head: int) -> Tensor:
        hidden_BD = torch.tanh(self.tied(self.frozen(torch.tanh(self.first(row_BD)))))
        return self.heads[head](self.tied(hidden_BD)).exp().sum() * self.scale


# Heads of the micro-batches by rank; worker 1 of the last ones has an empty shard.
MICRO_BATCHES = [
    [[0, 0], [0, 0]],
    [[1, 0, 0], [0]],
    [[0, 1], [0, 0, 0, 1]],
    [[0, 1, 0], []],
    [[], []],
]


def one_step(model: Heads, collective: Collective, heads: list[int], bucket_bytes: int) -> None:
    """Compare both sums in one step."""
    rows = [
        torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * collective.rank + number))
        for number in range(len(heads))
    ]
    model.zero_grad(set_to_none=True)
    for row_BD, head in zip(rows, heads, strict=True):
        model(row_BD, head).backward()
    expected = sum_afterwards(model, collective, bucket_bytes)
    gradients = GradientSum(model.parameters(), collective)
    started = []
    start_sum = collective.start_sum
    collective.start_sum = lambda *tensor: started.append(in_backward) or start_sum(*tensor)
    for _ in range(2):  # a second step begins with the gradients of the first one
        started.clear()
        with gradients.of_step():
            in_backward = False
            for number, (row_BD, head) in enumerate(zip(rows, heads, strict=True)):
                loss = model(row_BD, head)
                in_backward = number == len(heads) - 1
                with gradients.last_backward() if in_backward else nullcontext():
                    loss.backward()
                assert bool(started) == in_backward
            in_backward = False
        assert all(started) == bool(heads)
        assert_same_bits(gradients_of(model), expected)
    del collective.start_sum


def small_steps(rank: int, collective: ProcessGroup, folder: Path) -> None:
    for bucket_bytes in (60, 400):
        gradient_sum.BUCKET_BYTES = bucket_bytes
        for heads in MICRO_BATCHES:
            one_step(Heads(), collective, heads[rank], bucket_bytes)


def test_a_sum_in_hooks_has_the_bits_of_a_sum_after_backward_whatever_each_worker_computes(
    tmp_path: Path,
) -> None:
    run_workers(small_steps, 2, tmp_path)


def method_steps(rank: int, collective: ProcessGroup, folder: Path, store: str) -> None:
    gradient_sum.BUCKET_BYTES = 20_000
    starts = 0
    start_sum = collective.start_sum

    def counted(*arguments: Tensor) -> object:
        nonlocal starts
        starts += torch._C._current_graph_task_id() >= 0  # within a backward pass
        return start_sum(*arguments)

    collective.start_sum = counted
    for lambda_spml, rows, caching in [
        (0.0, 12, False), (0.5, 11, False), (0.5, 11, True), (1.0, 12, True), (0.5, 1, True)
    ]:  # fmt: skip
        config = tiny_config(
            "sppt_protein",
            **{
                "objective.lambda_spml": lambda_spml,
                "plan.global_batch_rows": rows,
            },
        )
        system = METHODS["sppt_protein"].build(config, store)
        arrays = system.collate(0, rank, 2)
        found = []
        for is_overlapped in (False, True):
            system.model.zero_grad(set_to_none=True)
            gradients = GradientSum(system.model.parameters(), collective)
            compute_gradients(
                system,
                system.batch_type.from_arrays(arrays),
                collective,
                max_tokens=100,
                gradient_caching=caching,
                precision=Precision("fp32", "cpu"),
                seed_of=lambda number: number,
                gradients=gradients if is_overlapped else None,
            )
            if not is_overlapped:
                sum_afterwards(system.model, collective, gradient_sum.BUCKET_BYTES)
            found.append(gradients_of(system.model))
        assert_same_bits(found[1], found[0])
        # A head that the last micro-batch does not use holds no bucket back.
        num_buckets = len(gradients._buckets)
        assert num_buckets > 3
        assert starts == (num_buckets if len(arrays["row_R"]) else 0), (lambda_spml, caching)
        starts = 0
    config = override_all(config, {"gradients_sent_as": "bf16", "optim.max_grad_norm": None})
    step = TrainStep(system, config, collective, Precision("fp32", "cpu"))
    step(0, system.batch_type.from_arrays(arrays))
    for gradient in gradients_of(system.model).values():
        assert gradient is None or torch.equal(gradient, gradient.bfloat16().float())


def test_each_way_through_a_step_has_the_bits_of_a_sum_after_backward(
    tiny_store: Store, tmp_path: Path
) -> None:
    """Separable, coupled, cached, and a worker without rows."""
    run_workers(partial(method_steps, store=str(tiny_store.path)), 2, tmp_path)


def copies(rank: int, collective: ProcessGroup, folder: Path) -> None:
    model = Heads()
    gradients = GradientSum(model.parameters(), collective)
    with gradients.of_step():
        buffers = {
            parameter.grad.untyped_storage().data_ptr() for parameter in gradients._parameters
        }
        with gradients.last_backward():
            model(torch.ones(4, 5), 0).backward()
    after = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert {gradient.untyped_storage().data_ptr() for gradient in after} == buffers
    assert len(buffers) == 1


def test_gradients_stay_views_of_the_buffer_that_is_sent(tmp_path: Path) -> None:
    run_workers(copies, 2, tmp_path)


def test_a_single_process_has_its_own_gradients_and_no_buffers() -> None:
    model = Heads()
    model(torch.ones(4, 5), 0).backward()
    expected = gradients_of(model)
    gradients = GradientSum(model.parameters(), SingleProcess())
    with gradients.of_step(), gradients.last_backward():
        model(torch.ones(4, 5), 0).backward()
    assert_same_bits(gradients_of(model), expected)
    assert model.unused.weight.grad is None


def test_hooks_do_not_outlive_a_step_that_fails(tmp_path: Path) -> None:
    run_workers(failing_step, 2, tmp_path)


def failing_step(rank: int, collective: ProcessGroup, folder: Path) -> None:
    model = Heads()
    gradients = GradientSum(model.parameters(), collective)
    with pytest.raises(ZeroDivisionError), gradients.of_step():
        raise ZeroDivisionError
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def bf16_sums(rank: int, collective: ProcessGroup, folder: Path) -> None:
    gradient_sum.BUCKET_BYTES = 60
    rows = [
        torch.randn(4, 5, generator=torch.Generator().manual_seed(number)) for number in range(2)
    ]
    own = []
    for row_BD in rows:
        model = Heads()
        model(row_BD, 0).backward()
        own.append(gradients_of(model))
    gradients = GradientSum(model.parameters(), collective, sent_as="bf16")
    with gradients.of_step(), gradients.last_backward():
        model(rows[rank], 0).backward()
    # One rounding of each worker's gradient, and one of the sum.
    expected = {
        name: None if one is None else (one.bfloat16().float() + own[1][name].bfloat16().float())
        for name, one in own[0].items()
    }
    expected = {
        name: None if total is None else total.bfloat16().float()
        for name, total in expected.items()
    }
    found = gradients_of(model)
    assert_same_bits(found, expected)
    assert found["first.weight"].dtype == torch.float32
    assert not torch.equal(found["first.weight"], own[0]["first.weight"] + own[1]["first.weight"])


def test_gradients_sent_as_bf16_are_rounded_on_each_worker_and_in_the_sum(tmp_path: Path) -> None:
    run_workers(bf16_sums, 2, tmp_path)
