"""Gathering over real processes equals one process that holds all rows."""

import datetime
import json
import logging
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from raybio.core.errors import ClusterError
from raybio.training import collective as collectives
from raybio.training import gradient_sum
from raybio.training.collective import ProcessGroup, SingleProcess
from raybio.training.gradient_sum import GradientSum
from tests.training.workers import TIMEOUT_SECONDS, run_workers

WIDTH = 5
ROWS_BY_WORLD = {2: [[4, 3], [3, 0], [0, 2]], 3: [[1, 4, 2], [0, 5, 0]]}


def all_rows(num_rows: int) -> Tensor:
    return torch.randn(
        num_rows, WIDTH, generator=torch.Generator().manual_seed(7), dtype=torch.float64
    )


def worker_share(own_ND: Tensor, all_MD: Tensor, weight: float) -> Tensor:
    """Return a coupled loss, in which each row gets gradient from all workers."""
    return weight * (own_ND @ all_MD.T).logsumexp(1).sum() + (all_MD**3).sum() * weight / 7


def gathered_gradient(rank: int, collective: ProcessGroup, folder: Path) -> None:
    for case, num_rows in enumerate(ROWS_BY_WORLD[collective.world]):
        shard_ND = (
            all_rows(sum(num_rows)).split(num_rows)[rank].clone().requires_grad_(num_rows[rank] > 0)
        )
        gathered = collective.all_gather(shard_ND)
        assert gathered.offset == sum(num_rows[:rank])
        assert torch.equal(gathered.row_MD, all_rows(sum(num_rows)))
        worker_share(shard_ND, gathered.row_MD, 1.0 + rank).backward()
        if num_rows[rank]:
            save_file({"grad": shard_ND.grad}, folder / f"{case}-{rank}.safetensors")


@pytest.mark.parametrize("world", [2, 3])
def test_gradients_on_several_workers_equal_those_of_one_process_with_all_rows(
    world: int, tmp_path: Path
) -> None:
    run_workers(gathered_gradient, world, tmp_path)
    for case, num_rows in enumerate(ROWS_BY_WORLD[world]):
        row_MD = all_rows(sum(num_rows)).requires_grad_()
        shards = row_MD.split(num_rows)
        sum(worker_share(shard, row_MD, 1.0 + rank) for rank, shard in enumerate(shards)).backward()
        for rank, expected_ND in enumerate(row_MD.grad.split(num_rows)):
            if len(expected_ND):
                got_ND = load_file(tmp_path / f"{case}-{rank}.safetensors")["grad"]
                torch.testing.assert_close(got_ND, expected_ND, rtol=1e-12, atol=1e-12)


def integers_and_shapes(rank: int, collective: ProcessGroup, folder: Path) -> None:
    ids = collective.all_gather(torch.arange(rank * 10, rank * 10 + rank + 1))
    assert (
        ids.row_MD.tolist() == [0, 10, 11]
        and ids.row_MD.dtype == torch.int64
        and ids.offset == rank
    )
    flags = collective.all_gather(torch.tensor([rank == 1]))
    assert flags.row_MD.tolist() == [False, True] and flags.row_MD.dtype == torch.bool
    cube = collective.all_gather(torch.full((rank, 2, 3), 1.5, dtype=torch.bfloat16))
    assert cube.row_MD.shape == (1, 2, 3) and cube.row_MD.dtype == torch.bfloat16
    empty = collective.all_gather(torch.zeros(0, 4, requires_grad=True))
    assert empty.row_MD.shape == (0, 4)
    empty.row_MD.sum().backward()
    with torch.no_grad():
        assert not collective.all_gather(torch.ones(1, 2, requires_grad=True)).row_MD.requires_grad
    with pytest.raises(ValueError, match=r"widths are \(3, 4\)"):
        collective.all_gather(torch.zeros(1, 3 + rank))
    dtype = torch.float32 if rank == 0 else torch.int32
    with pytest.raises(ValueError, match=r"dtypes \['torch.float32', 'torch.int32'\]"):
        collective.all_gather(torch.zeros(1, 3, dtype=dtype))
    assert collective.all_sum(torch.tensor([rank + 1])).tolist() == [3]
    assert collective.all_sum(torch.tensor([True, rank == 1])).tolist() == [2, 1]
    assert collective.all_sum(torch.tensor(2**53 + rank)).item() == 2**54 + 1
    assert collective.all_max(torch.tensor([rank, -rank])).tolist() == [1, 0]
    assert collective.host_sum([rank == 0, rank, 2**53 + rank]) == [1, 1, 2**54 + 1]
    kept = torch.ones(2, requires_grad=True)
    assert not collective.all_sum(kept).requires_grad and kept.tolist() == [1, 1]


def test_integers_booleans_and_half_precision_arrive_unchanged_and_others_are_refused(
    tmp_path: Path,
) -> None:
    run_workers(integers_and_shapes, 2, tmp_path)


def half_precision_gradients(rank: int, collective: ProcessGroup, folder: Path) -> None:
    # 256 + 1 + 1 is 256 where each partial sum is rounded to bfloat16 and 258 where it is not; of
    # float16 so is 2048 + 1 + 1.
    for dtype, largest in ((torch.bfloat16, 256), (torch.float16, 2048)):
        shard_ND = torch.ones(1, 1, dtype=dtype, requires_grad=True)
        row_MD = collective.all_gather(shard_ND).row_MD
        (row_MD.sum() * (largest if rank == 0 else 1)).backward()
        assert shard_ND.grad.item() == largest + 2


def test_half_precision_gradients_are_summed_in_single_precision(tmp_path: Path) -> None:
    run_workers(half_precision_gradients, 3, tmp_path)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(3, 2) for name in ("both", "first", "nobody", "frozen")})
    model["frozen"].requires_grad_(False)
    return model


def summed_gradients(rank: int, collective: ProcessGroup, folder: Path) -> None:
    gradient_sum.BUCKET_BYTES = (
        40  # two tensors a bucket, so that buckets and their borders are used
    )
    model = small_model()
    with GradientSum(model.parameters(), collective).of_step():
        (model["both"](torch.full((1, 3), float(rank + 1))).sum()).backward()
        if rank == 0:
            model["first"](torch.ones(1, 3)).sum().backward()
    gradients = {
        name: None if p.grad is None else p.grad.tolist() for name, p in model.named_parameters()
    }
    (folder / f"gradients-{rank}.json").write_text(json.dumps(gradients))


def test_parameter_gradients_are_summed_and_missing_ones_count_as_zero(tmp_path: Path) -> None:
    run_workers(summed_gradients, 2, tmp_path)
    first, second = (
        json.loads((tmp_path / f"gradients-{rank}.json").read_text()) for rank in range(2)
    )
    assert first == second
    assert first["both.weight"] == [[3.0] * 3] * 2 and first["both.bias"] == [2.0] * 2
    assert first["first.weight"] == [[1.0] * 3] * 2
    assert first["nobody.weight"] is None and first["frozen.weight"] is None


def trained_weights(rank: int, collective: ProcessGroup, folder: Path) -> None:
    weights = [train_three_steps(collective) for _ in range(2)]
    assert torch.equal(weights[0], weights[1])
    save_file({"weights": weights[0]}, folder / f"weights-{rank}.safetensors")


def train_three_steps(collective: SingleProcess | ProcessGroup) -> Tensor:
    torch.manual_seed(3)
    model = nn.Linear(WIDTH, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gradients = GradientSum(model.parameters(), collective)
    for step in range(3):
        batch_BD = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(step))
        first, last = (
            7 * collective.rank // collective.world,
            7 * (collective.rank + 1) // collective.world,
        )
        embedding_ND = model(batch_BD[first:last])
        row_MD = collective.all_gather(embedding_ND).row_MD
        with gradients.of_step(), gradients.last_backward():
            ((embedding_ND @ row_MD.T).logsumexp(1).sum() / 7).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_training_on_three_workers_ends_with_the_weights_of_one_and_the_same_bits_on_each(
    tmp_path: Path,
) -> None:
    run_workers(trained_weights, 3, tmp_path)
    weights = [load_file(tmp_path / f"weights-{rank}.safetensors")["weights"] for rank in range(3)]
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[1], weights[2])
    torch.testing.assert_close(weights[0], train_three_steps(SingleProcess()), rtol=1e-5, atol=1e-6)


def late_worker(rank: int, collective: ProcessGroup, folder: Path) -> None:
    if rank == 1:
        return
    collective.step = 7
    with pytest.raises(ClusterError, match="rank 0 of 2: collective 'all_sum' after step 7 failed"):
        collective.all_sum(torch.ones(1))


def test_a_lost_worker_raises_a_named_error_and_does_not_hang(tmp_path: Path) -> None:
    run_workers(late_worker, 2, tmp_path)


SHORT_SECONDS = 2


def evaluate_for_long(rank: int, collective: ProcessGroup, folder: Path) -> None:
    """Rank 1 comes late to an operation, to the end of an evaluation, and to one outside of it."""

    def set_timeout(seconds: int) -> None:
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds))

    def meet_and_take_time(name: str) -> None:
        # Workers that have met are as slow as the machine.
        meet(name)
        set_timeout(TIMEOUT_SECONDS)

    meet = collective._meet
    collective._meet = meet_and_take_time
    with collective.patient():
        assert collective.host_sum([1]) == [2]
    for has_operation in (True, False):
        set_timeout(SHORT_SECONDS)
        with collective.patient():
            if rank == 1:
                time.sleep(2.5 * SHORT_SECONDS)
            if has_operation:
                assert collective.all_sum(torch.ones(1)).tolist() == [2]
        assert collective.host_sum([1]) == [2]

    set_timeout(SHORT_SECONDS)
    failed = folder / "failed"
    if rank == 1:
        while not failed.exists():
            time.sleep(0.05)
        return
    with pytest.raises(ClusterError, match="'host_sum' failed"):
        collective.host_sum([1])
    failed.touch()


def test_an_evaluation_may_take_longer_than_the_timeout_and_another_hang_may_not(
    tmp_path: Path,
) -> None:
    run_workers(evaluate_for_long, 2, tmp_path)


def lost_in_an_evaluation(rank: int, collective: ProcessGroup, folder: Path) -> None:
    with collective.patient():
        pass
    if rank == 1:
        return
    with (
        pytest.raises(ClusterError, match="rank 0 of 2: collective 'all_sum' failed"),
        collective.patient(),
    ):
        collective.all_sum(torch.ones(1))


def test_a_worker_lost_in_an_evaluation_ends_the_wait(tmp_path: Path) -> None:
    run_workers(lost_in_an_evaluation, 2, tmp_path)


def beside_another_backend(rank: int, gloo: ProcessGroup, folder: Path) -> None:
    """Stand in for NCCL by a backend of another name, and note which group each call uses."""
    assert gloo.host_group is None
    dist.destroy_process_group()
    dist.Backend.register_backend(
        "of_device",
        lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout),
        devices=["cpu"],
    )
    dist.init_process_group(
        "of_device", init_method=f"file://{folder}/again", rank=rank, world_size=2
    )
    collective = ProcessGroup(timeout_seconds=321)
    assert dist.get_backend() == "of_device"
    assert dist.get_backend(collective.host_group) == "gloo"
    seconds = collective.host_group._get_backend(torch.device("cpu")).options._timeout.seconds
    assert seconds == 321
    groups = []
    all_gather = dist.all_gather
    all_reduce = dist.all_reduce

    def noted(operation: Callable[..., object], *args: object, **options: object) -> object:
        groups.append(options.get("group"))
        return operation(*args, **options)

    dist.all_gather = partial(noted, all_gather)
    dist.all_reduce = partial(noted, all_reduce)
    row_ND = torch.full((rank + 1, 2), float(rank), requires_grad=True)
    gathered = collective.all_gather(row_ND)
    row_MD = gathered.row_MD
    assert row_MD.tolist() == [[0, 0], [1, 1], [1, 1]]
    row_MD.sum().backward()
    assert torch.equal(row_ND.grad, torch.full_like(row_ND, 2))
    assert collective.host_sum([rank, 2, True]) == [1, 4, 2]
    assert collective.all_sum(torch.tensor([rank])).tolist() == [1]
    host_group = collective.host_group
    assert groups == [host_group, None, None, host_group, None]

    groups.clear()
    assert collective.all_gather(torch.arange(rank + 1), gathered).row_MD.tolist() == [0, 0, 1]
    assert groups == [None], "hosts exchange numbers of rows that they know"
    with pytest.raises(ValueError, match=f"got 3 rows, want {rank + 1}"):
        collective.all_gather(torch.arange(3), gathered)

    groups.clear()
    with collective.patient():
        assert collective.host_sum([1]) == [2]
        assert collective.all_gather(torch.ones(1, 2)).row_MD.tolist() == [[1, 1], [1, 1]]
    patient_group = collective.patient_group
    assert groups == [
        host_group,  # before the other group is made
        *(patient_group, host_group),
        *(patient_group, host_group, patient_group, None),
        patient_group,
    ]


def test_numbers_of_the_host_travel_over_gloo_beside_another_backend(tmp_path: Path) -> None:
    run_workers(beside_another_backend, 2, tmp_path)


def test_a_single_process_gathers_its_own_rows_with_their_gradient() -> None:
    row_ND = torch.randn(3, 2, requires_grad=True)
    gathered = SingleProcess().all_gather(row_ND)
    assert gathered.row_MD is row_ND and gathered.offset == 0
    total = SingleProcess().all_sum(row_ND)
    assert torch.equal(total, row_ND) and not total.requires_grad


def test_a_process_group_without_initialization_says_what_to_call() -> None:
    assert not dist.is_initialized()
    with pytest.raises(ClusterError, match="init_process_group"):
        ProcessGroup()


def name_a_stall(rank: int, _: ProcessGroup, folder: Path) -> None:
    """Rank 1 comes when rank 0 has said that it waits; the second time it ends."""
    said = folder / "said"
    said.touch()

    class Note(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with said.open("a") as file:
                file.write(record.getMessage().replace("\n", " ") + "\n")

    def wait_for_messages(number: int) -> None:
        while said.read_text().count("\n") < number:
            time.sleep(0.02)

    collectives.STALL_SECONDS = 0.1
    if rank == 0:
        logging.getLogger("raybio").addHandler(Note())
    collective = ProcessGroup()
    collective.step = 7
    if rank == 1:
        wait_for_messages(1)
    assert collective.host_sum([1]) == [2]
    if rank == 1:
        wait_for_messages(2)
        return
    with pytest.raises(ClusterError, match="after step 7 failed"), collective.operation("report"):
        dist.barrier()


def test_a_worker_that_waits_for_another_one_says_so_and_how_it_ended(tmp_path: Path) -> None:
    run_workers(name_a_stall, 2, tmp_path)
    first, second, ended = (tmp_path / "said").read_text().splitlines()
    for message, operation in ((first, "host_sum"), (second, "report")):
        assert re.fullmatch(
            "rank 0 of 2 has waited 0 s for another worker in the collective operation "
            rf"'{operation}' after step 7 \(at \d\d:\d\d:\d\d\); it may hang, or be much slower",
            message,
        )
    assert ended.startswith("rank 0 of 2: collective 'report' after step 7 failed: ")


def test_a_wait_without_a_limit_is_said_again_and_again(tmp_path: Path) -> None:
    run_workers(open_slowly, 2, tmp_path)
    said = (tmp_path / "said").read_text().splitlines()
    assert len(said) >= 3
    for number, message in enumerate(said):
        assert message.startswith(
            f"rank 0 of 2 has waited {number} s for another worker in the collective operation "
            "'end of opening the store' (at "
        )


def open_slowly(rank: int, _: ProcessGroup, folder: Path) -> None:
    """Rank 1 comes when rank 0 has said three times that it waits."""
    said = folder / "said"
    said.touch()

    class Note(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with said.open("a") as file:
                file.write(record.getMessage() + "\n")

    collectives.STALL_SECONDS = 0.1
    collectives.REPEAT_SECONDS = 1.0
    collective = ProcessGroup()
    with collective.patient("opening the store"):
        if rank == 0:
            logging.getLogger("raybio").addHandler(Note())
        while rank == 1 and said.read_text().count("\n") < 3:
            time.sleep(0.02)


def test_a_worker_says_that_it_waits_before_a_timeout_ends_it(tmp_path: Path) -> None:
    run_workers(wait_for_less_than_a_timeout, 1, tmp_path)


def wait_for_less_than_a_timeout(rank: int, collective: ProcessGroup, folder: Path) -> None:
    assert ProcessGroup(timeout_seconds=60).stall_seconds == 30
    assert ProcessGroup(timeout_seconds=1800).stall_seconds == collectives.STALL_SECONDS
    assert collective.stall_seconds == collectives.STALL_SECONDS
