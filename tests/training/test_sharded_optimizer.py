"""Optimizer state divided between workers: the bits of a whole one, in real processes."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from raybio.core.digest import weights_digest
from raybio.core.interfaces import Collective
from raybio.methods import METHODS
from raybio.store.store import Store
from raybio.training import gradient_sum, optim
from raybio.training.checkpoint import CheckpointStore, list_checkpoints
from raybio.training.collective import ProcessGroup, SingleProcess
from raybio.training.loop import fit
from raybio.training.optim import build_optimizer
from raybio.training.precision import Precision
from raybio.training.settings import OptimConfig
from raybio.training.sharded_optimizer import ShardedAdamW, owners
from raybio.training.step import TrainStep
from tests.methods.conformance_cases import tiny_config
from tests.training.workers import run_workers

NAME = "sppt_protein"


def train(
    store: str,
    collective: Collective,
    folder: Path,
    shard_state: bool,
    until: int = 4,
    **settings: object,
) -> str:
    """Train to step ``until`` with a checkpoint every second step; return the digest of weights.

    A run that ends before its last step is closed at once, as by a kill.
    """
    settings = {
        "optim.shard_state": shard_state,
        "schedule.max_steps": 4,
        "schedule.checkpoint_every_steps": 2,
        "schedule.evaluate_every_steps": 0,
    } | settings
    config = tiny_config(NAME, **settings)
    system = METHODS[NAME].build(config, store)
    checkpoints = CheckpointStore(folder)
    for report in fit(system, config, collective=collective, checkpoints=checkpoints):
        if report.step == until:
            break
    checkpoints.close()
    collective.all_sum(torch.zeros(1))  # the others look for the checkpoint when it is there
    return weights_digest(system.model.state_dict().items())


def optimizer_files(folder: Path) -> list[bytes]:
    return [(path / "optimizer.safetensors").read_bytes() for path in list_checkpoints(folder)]


def sharded_runs(rank: int, collective: ProcessGroup, folder: Path, store: str) -> None:
    check_bytes(collective, store)
    whole = train(store, collective, folder / "whole", False)
    assert train(store, collective, folder / "sharded", True) == whole
    train(store, collective, folder / "killed", True, until=2)
    assert train(store, collective, folder / "killed", True) == whole
    # Either setting resumes from the checkpoints of the other one.
    train(store, collective, folder / "changed", True, until=2)
    assert train(store, collective, folder / "changed", False) == whole
    if rank == 0:
        expected = optimizer_files(folder / "whole")
        assert len(expected) == 2
        for name in ("sharded", "killed", "changed"):
            assert optimizer_files(folder / name) == expected
        saved = load_file(list_checkpoints(folder / "whole")[0] / "optimizer.safetensors")
        assert len({key.split(":")[0] for key in saved}) == 3


@pytest.mark.nightly
def test_weights_checkpoints_and_resumed_runs_are_those_of_whole_states_and_memory_is_half(
    tiny_store: Store, tmp_path: Path
) -> None:
    run_workers(partial(sharded_runs, store=str(tiny_store.path)), 2, tmp_path)
    (tmp_path / "rendezvous").unlink(missing_ok=True)
    _, of_step_2 = list_checkpoints(tmp_path / "sharded")
    for name in ("one/whole", "one/sharded", "three/whole", "three/sharded"):
        shutil.copytree(of_step_2, tmp_path / name / of_step_2.name)
    # Another number of workers resumes, too: one, which has nothing to divide, and three.
    whole, sharded = (
        train(str(tiny_store.path), SingleProcess(), tmp_path / "one" / name, name == "sharded")
        for name in ("whole", "sharded")
    )
    assert sharded == whole
    run_workers(partial(resumed_by_three, store=str(tiny_store.path)), 3, tmp_path)


def resumed_by_three(rank: int, collective: ProcessGroup, folder: Path, store: str) -> None:
    whole = train(store, collective, folder / "three/whole", False)
    assert train(store, collective, folder / "three/sharded", True) == whole


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    return sum(tensor.nbytes for entries in optimizer.state.values() for tensor in entries.values())


def check_bytes(collective: ProcessGroup, store: str) -> None:
    """Check that two workers hold half of the state each, and all of it together."""
    num_bytes = {}
    for shard_state in (False, True):
        config = tiny_config(NAME, **{"optim.shard_state": shard_state})
        system = METHODS[NAME].build(config, store)
        step = TrainStep(system, config, collective, Precision("fp32", "cpu"))
        step(0, system.batch_type.from_arrays(system.collate(0, collective.rank, 2)))
        num_bytes[shard_state] = state_bytes(step.optimizer)
    assert num_bytes[True] < 0.6 * num_bytes[False]
    assert collective.host_sum([num_bytes[True]]) == [num_bytes[False]]


class Heads(nn.Module):
    """A matrix, a vector, a number, one parameter that is never used, and one in column order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(5, 7)
        self.unused = nn.Linear(7, 3)
        self.columns = nn.Parameter(torch.randn(4, 7).T)
        self.scale = nn.Parameter(torch.ones(()))


class Counted:
    """A process group that counts the broadcasts."""

    def __init__(self, collective: ProcessGroup) -> None:
        self._collective = collective
        self.num_broadcasts = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._collective, name)

    def start_broadcast(self, tensor: torch.Tensor, source: int) -> Callable[[], None]:
        self.num_broadcasts += 1
        return self._collective.start_broadcast(tensor, source)


def steps_of_heads(
    rank: int, group: ProcessGroup, folder: Path, bucket_bytes: int, num_broadcasts: int
) -> None:
    gradient_sum.BUCKET_BYTES = bucket_bytes
    collective = Counted(group)
    models = [Heads(), Heads()]
    optimizers = [
        build_optimizer(model, OptimConfig(shard_state=shard_state), collective)
        for model, shard_state in zip(models, (False, True), strict=True)
    ]
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            hidden_BD = model.first(torch.ones(2, 5)) @ model.columns
            (hidden_BD.square().sum() * model.scale).backward()
            optimizer.step()
    assert collective.num_broadcasts == 3 * num_broadcasts
    digests = {weights_digest(model.state_dict().items()) for model in models}
    assert len(digests) == 1
    gathered = optimizers[1].gather_state()
    assert bool(gathered) == (rank == 0)
    whole_by_name = {
        name: optimizers[0].state[parameter] for name, parameter in models[0].named_parameters()
    }
    name_by_parameter = {parameter: name for name, parameter in models[1].named_parameters()}
    for parameter, entries in gathered.items():
        for kind, tensor in entries.items():
            assert torch.equal(tensor, whole_by_name[name_by_parameter[parameter]][kind])
    if rank == 0:
        assert len(gathered) == 4


@pytest.mark.parametrize(
    ("world", "bucket_bytes", "num_broadcasts"),
    [
        pytest.param(2, gradient_sum.BUCKET_BYTES, 2, id="one bucket an owner"),
        # 35 and 7 + 3 + 1 numbers of the first worker, 21 and 28 of the second one.
        pytest.param(2, 4 * 32, 4, id="several buckets an owner"),
        pytest.param(7, gradient_sum.BUCKET_BYTES, 6, id="a worker without parameters"),
    ],
)
def test_numbers_unused_and_transposed_parameters_have_the_bits_of_whole_states(
    tmp_path: Path, world: int, bucket_bytes: int, num_broadcasts: int
) -> None:
    work = partial(steps_of_heads, bucket_bytes=bucket_bytes, num_broadcasts=num_broadcasts)
    run_workers(work, world, tmp_path)


def test_owners_have_alike_shares_whatever_the_order() -> None:
    sizes = [100, 1, 50, 3, 50, 90, 7]
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    owner_by_parameter = owners(parameters, 3)
    shares = [
        sum(each.numel() for each in parameters if owner_by_parameter[each] == rank)
        for rank in range(3)
    ]
    assert shares == [101, 100, 100]


@pytest.mark.parametrize(("threshold", "expected"), [(1, ShardedAdamW), (10**9, torch.optim.AdamW)])
def test_auto_divides_from_a_number_of_trainable_numbers_on(monkeypatch, threshold, expected):
    monkeypatch.setattr(optim, "SHARDED_FROM", threshold)
    collective = SingleProcess()
    assert type(build_optimizer(Heads(), OptimConfig(), collective)) is torch.optim.AdamW
    collective.world = 2
    assert type(build_optimizer(Heads(), OptimConfig(), collective)) is expected
