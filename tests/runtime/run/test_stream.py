"""The stream equals collating in this process, in order, from any step, for any workers."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raybio.core.batch import TokenBatch
from raybio.core.errors import DataError
from raybio.methods import METHODS
from raybio.methods.sppt.batches import LinkBatch
from raybio.runtime.cluster.resources import DATA_CPUS_PER_WORKER
from raybio.runtime.run import stream
from raybio.runtime.run.stream import _blocks, pack, stream_batches, unpack
from raybio.store.store import Store
from raybio.training.settings import TrainingConfig
from tests.paths import ROOT
from tests.script_process import run_script


@pytest.mark.parametrize("steps_per_block", [1, 2, 7, 32])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 31, 32, 33, 1000])
def test_blocks_cover_each_step_once_and_begin_small(num_steps: int, steps_per_block: int) -> None:
    bound_K2 = _blocks(17, num_steps, steps_per_block)
    steps = [step for first, end in bound_K2.tolist() for step in range(first, end)]
    assert steps == list(range(17, 17 + num_steps))
    assert all(end - first <= steps_per_block for first, end in bound_K2.tolist())
    if num_steps > 1:
        assert bound_K2[0].tolist() == [17, 18]


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 5), dtype=np.float32),
        np.array([True, False]),
        np.float64([np.nan, np.inf, -0.0]),
        np.uint8([255]),
        np.zeros(0, dtype=np.int64),
        np.int64([-(2**31) - 1]),
    ],
)
def test_an_array_survives_arrow_with_dtype_shape_and_bits(array: np.ndarray) -> None:
    step, arrays = unpack(pack(5, {"x": array, "y": np.arange(3)}), 0)
    assert step == 5
    assert arrays["x"].dtype == array.dtype
    assert arrays["x"].shape == array.shape
    assert arrays["x"].tobytes() == np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.arange(12, dtype=np.int16).reshape(3, 4).T, np.uint8),
        (np.asarray(7), np.uint8),
        (np.int64([-100, 127]), np.int8),
        (np.int64([-100, 30_522]), np.int16),
        (np.int32([0, 65_535]), np.uint16),
        (np.int64([-1, 65_535]), np.int32),
        (np.uint64([2**32 - 1]), np.uint32),
    ],
)
def test_integers_travel_in_the_smallest_type_that_holds_them(
    array: np.ndarray, dtype: type
) -> None:
    _, arrays = unpack(pack(5, {"x": array}), 0)
    assert arrays["x"].dtype == dtype
    assert arrays["x"].tolist() == array.tolist()


def test_an_object_array_does_not_travel() -> None:
    with pytest.raises(TypeError, match="numbers or booleans"):
        pack(0, {"x": np.array([object()])})


@dataclass(frozen=True)
class Counting:
    """Writes down in which process each step was collated, and with how many tokenizer threads."""

    folder: Path

    def __call__(self, step: int, rank: int, world: int) -> dict[str, np.ndarray]:
        with open(self.folder / "collated", "a") as file:
            file.write(f"{step} {os.getpid()} {os.environ.get('RAYON_NUM_THREADS')}\n")
        token_T = np.arange(rank, 40, world, dtype=np.uint8) + step
        return {
            "token_T": token_T,
            "indptr_R1": np.array([0, len(token_T)]),
            "label_T": token_T.astype(np.int16),
        }


@pytest.fixture(autouse=True)
def by_value() -> None:
    """Workers cannot import this file, so what is defined here travels with its code."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("world", "first_step", "num_tasks"),
    [
        (2, 3, 1),
        pytest.param(1, 0, 4, marks=pytest.mark.nightly),
        pytest.param(3, 1000, 1, marks=pytest.mark.nightly),
    ],
)
def test_streamed_shards_equal_those_made_here_and_no_global_batch_depends_on_the_workers(
    world: int, first_step: int, num_tasks: int, tiny_store: Store, tiny_training: TrainingConfig
) -> None:
    system = METHODS["sppt_protein"].build(tiny_training, tiny_store.path)
    num_steps = 20
    whole = [system.collate(first_step + number, 0, 1) for number in range(num_steps)]
    anchors: list[list[np.ndarray]] = [[] for _ in range(num_steps)]
    for rank in range(world):
        # Not by stream_batches, which collates such small steps here before Ray Data has started.
        pump = stream._Pump(
            system.collate, _blocks(first_step, num_steps, 8), rank, world, num_tasks, 8
        )
        streamed = [(step, LinkBatch.from_arrays(arrays)) for step, arrays in pump]
        pump.close()
        assert [step for step, _ in streamed] == list(range(first_step, first_step + num_steps))
        for step, batch in streamed:
            here = LinkBatch.from_arrays(system.collate(step, rank, world))
            for name, value in vars(here).items():
                assert torch.equal(getattr(batch, name), value), (step, name)
            anchors[step - first_step].append(batch.row_R[: int(batch.num_anchors)].numpy())
    for parts, arrays in zip(anchors, whole, strict=True):
        np.testing.assert_array_equal(
            np.sort(np.concatenate(parts)), np.sort(arrays["row_R"][: arrays["num_anchors"]])
        )


@pytest.fixture
def busy_cpus(ray_cluster: None) -> Iterator[None]:
    """Reserve all CPUs but those that training workers leave to Ray Data."""
    import ray

    group = ray.util.placement_group(
        [{"CPU": ray.cluster_resources()["CPU"] - DATA_CPUS_PER_WORKER}]
    )
    ray.get(group.ready())
    yield
    ray.util.remove_placement_group(group)


@pytest.mark.usefixtures("busy_cpus")
@pytest.mark.parametrize("num_tasks", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_ray_data_collates_the_steps_that_training_has_not_reached(
    num_tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It collates this worker's shards; each task tokenizes with one thread, the worker as before."""
    pumps = []

    class Pump(stream._Pump):
        def __init__(self, *arguments: Any) -> None:
            pumps.append(self)
            super().__init__(*arguments)

    monkeypatch.setattr(stream, "_Pump", Pump)
    steps = stream_batches(
        Counting(tmp_path),
        first_step=0,
        num_steps=200,
        rank=1,
        world=2,
        batch_type=TokenBatch,
        num_tasks=num_tasks,
        prefetch=4,
    )
    pause = threading.Event()
    end = time.monotonic() + stream.STALL_SECONDS
    for step, batch in steps:
        assert batch.token_T.tolist() == [(step + place) % 256 for place in range(1, 40, 2)]
        while step == 10 and not pumps[0].has_item:
            pause.wait(0.02)
            assert time.monotonic() < end, "Ray Data collated nothing"
    lines = lines_of(tmp_path / "collated")
    here = [int(step) for step, pid, _ in lines if int(pid) == os.getpid()]
    assert here == list(range(11))
    threads = {(pid == str(os.getpid()), number) for _, pid, number in lines}
    assert threads == {(True, "None"), (False, "1")}


def lines_of(path: Path) -> list[list[str]]:
    """Return the words of each line that is complete."""
    lines = [line.split() for line in path.read_text().splitlines(keepends=True)]
    return [line for line in lines if len(line) == 3]


@pytest.mark.usefixtures("ray_cluster")
def test_the_next_dataset_starts_while_training_has_the_last_block_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BLOCKS_PER_DATASET", 2)
    bound_K2 = np.array([[0, 1], [1, 9], [9, 10], [10, 12], [12, 13]])
    pump = stream._Pump(Counting(tmp_path), bound_K2, 0, 1, 1, prefetch=1)
    items = iter(pump)
    steps = [next(items)[0], next(items)[0]]
    # Training stands at the first step of the second block.
    pause = threading.Event()
    end = time.monotonic() + stream.STALL_SECONDS
    while "9" not in {step for step, _, _ in lines_of(tmp_path / "collated")}:
        pause.wait(0.02)
        assert time.monotonic() < end, "the next dataset has not started"
    steps += [step for step, _ in items]
    pump.close()
    assert steps == list(range(13))


@pytest.mark.usefixtures("ray_cluster")
def test_a_stream_that_is_left_early_ends_its_thread(tmp_path: Path) -> None:
    steps = stream_batches(
        Counting(tmp_path), first_step=0, num_steps=10**6, rank=0, world=1, batch_type=TokenBatch
    )
    for step, _ in steps:
        if step == 5:
            break
    steps.close()
    for thread in threading.enumerate():
        if thread.name == "raybio-stream":
            thread.join(timeout=1500)  # it may be waiting for Ray Data's first block
            assert not thread.is_alive()


@pytest.mark.nightly
@pytest.mark.usefixtures("private_home")
def test_an_object_store_that_is_too_small_delays_the_stream_and_loses_nothing(
    tmp_path: Path,
) -> None:
    script = Path(__file__).with_name("small_object_store.py")
    done = run_script(script, tmp_path, PYTHONPATH=str(ROOT), RAY_AUTH_MODE="disabled")
    assert "every step arrived as it was made" in done.stdout, done.stderr[-3000:]


@pytest.mark.nightly
@pytest.mark.usefixtures("private_home")
def test_steps_are_collated_on_the_node_of_their_worker_unless_it_has_no_room(
    tmp_path: Path,
) -> None:
    script = Path(__file__).with_name("stream_on_two_nodes.py")
    done = run_script(script, tmp_path, PYTHONPATH=str(ROOT), RAY_AUTH_MODE="disabled")
    assert "collated here" in done.stdout, done.stderr[-3000:]
    assert "collated elsewhere where there is no room" in done.stdout, done.stderr[-3000:]


def _refuse(step: int, rank: int, world: int) -> dict[str, np.ndarray]:
    if step == 3:
        raise DataError("rows.arrow: row 7 is torn")
    return {"token_T": np.zeros(1), "indptr_R1": np.array([0, 1]), "label_T": np.zeros(1)}


@pytest.mark.usefixtures("ray_cluster")
def test_an_error_of_the_data_reaches_the_training_as_itself() -> None:
    with pytest.raises(DataError, match="row 7 is torn"):
        list(
            stream_batches(
                _refuse, first_step=2, num_steps=50, rank=0, world=1, batch_type=TokenBatch
            )
        )


def test_a_stall_is_named_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STALL_SECONDS", 0.2)
    stalled = threading.Event()
    monkeypatch.setattr(stream, "_tables", lambda *_: iter([]) if stalled.wait() else iter([]))
    pump = stream._Pump(_refuse, np.zeros((0, 2), dtype=np.int64), 0, 1, 1, 1)
    with pytest.raises(stream.ClusterError, match="brought no batch"):
        next(iter(pump))
    stalled.set()
    pump.close()
