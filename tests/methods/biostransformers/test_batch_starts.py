"""Starts of batches that drop pairs: the same with and without the cache, and rarely replayed.

Filled batches are counted, since each takes milliseconds at the size of PubMed.
"""

import threading
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from raybio.methods.biostransformers.batch_starts import STEPS_PER_START
from raybio.methods.biostransformers.config import PairPlanConfig
from raybio.methods.biostransformers.plan import PairPlan, StepPairs
from raybio.methods.biostransformers.store import ArticleStore
from tests.methods.biostransformers.test_pair_plan import assert_equal_pairs, make_store

NUM_STEPS = 5 * STEPS_PER_START


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArticleStore:
    return make_store(tmp_path_factory.mktemp("articles") / "store")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The starts of all batches that any plan fills."""
    starts: list[int] = []
    fill = PairPlan._fill_dropping

    def noted(plan: PairPlan, start: int) -> np.ndarray:
        starts.append(start)
        return fill(plan, start)

    monkeypatch.setattr(PairPlan, "_fill_dropping", noted)
    yield starts


def plan_of(store: ArticleStore, seed: int = 3) -> PairPlan:
    return PairPlan(store, PairPlanConfig(global_batch_rows=4, conflicts="drop"), seed)


def replayed(store: ArticleStore, seed: int = 3) -> list[StepPairs]:
    """All batches by the definition: each starts where the one before ended, without a cache."""
    plan = plan_of(store, seed)
    start = 0
    batches = []
    for _ in range(NUM_STEPS):
        position_B = plan._fill_dropping(start)
        columns_CB = np.stack(
            [plan._stream(position, position + 1).columns[:, 0] for position in position_B], axis=1
        )
        columns_CB[-1] = np.diff(position_B, prepend=start - 1) - 1
        batches.append(StepPairs.from_columns(columns_CB))
        start = int(position_B[-1]) + 1
    return batches


def kept_starts(own_cache: Path) -> list[int]:
    (path,) = own_cache.rglob("*.npy")
    return [int(start) for start in np.load(path)]


def test_training_fills_each_batch_once_and_keeps_every_64th_start_as_it_goes_on(
    store: ArticleStore, own_cache: Path, filled: list[int]
) -> None:
    plan = plan_of(store)
    for step in range(NUM_STEPS):
        plan.rows(step)
        if step >= STEPS_PER_START:
            assert kept_starts(own_cache) == filled[::STEPS_PER_START]
        else:
            assert not own_cache.exists()
    assert len(filled) == len(set(filled)) == NUM_STEPS


def test_a_process_that_begins_late_fills_at_most_64_batches_to_get_there(
    store: ArticleStore, filled: list[int]
) -> None:
    expected = replayed(store)
    training = plan_of(store)
    for step in range(NUM_STEPS):
        training.rows(step)
    rng = np.random.default_rng(0)
    for step in [0, 63, 64, 65, NUM_STEPS - 1, *rng.integers(NUM_STEPS, size=20).tolist()]:
        filled.clear()
        assert_equal_pairs(plan_of(store).rows(step), expected[step])
        # The batch itself counts too.
        assert len(filled) == step % STEPS_PER_START + 1


def test_a_process_goes_on_where_one_stopped_at_the_end_of_64_steps(
    store: ArticleStore, filled: list[int]
) -> None:
    training = plan_of(store)
    for step in range(2 * STEPS_PER_START):
        training.rows(step)
    filled.clear()
    plan_of(store).rows(2 * STEPS_PER_START)
    assert len(filled) == STEPS_PER_START + 1


def test_one_plan_returns_any_steps_in_any_order(store: ArticleStore) -> None:
    expected = replayed(store)
    plan = plan_of(store)
    for step in np.random.default_rng(1).permutation(NUM_STEPS).tolist():
        assert_equal_pairs(plan.rows(step), expected[step])


def rows_in_a_process(
    store: ArticleStore, barrier: threading.Barrier, step: int, folder: Path
) -> None:
    starts = []
    fill = PairPlan._fill_dropping

    def noted(plan: PairPlan, start: int) -> np.ndarray:
        starts.append(start)
        return fill(plan, start)

    PairPlan._fill_dropping = noted  # type: ignore[method-assign]
    barrier.wait()
    columns_CB = plan_of(store).rows(step).columns
    np.savez(folder / f"{step}.npz", columns=columns_CB, filled=starts)


def test_processes_that_begin_at_once_share_the_work(store: ArticleStore, tmp_path: Path) -> None:
    context = get_context("fork")
    steps = [NUM_STEPS - 1 - number for number in range(4)]
    barrier = context.Barrier(len(steps))
    processes = [
        context.Process(target=rows_in_a_process, args=(store, barrier, step, tmp_path))
        for step in steps
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(steps)
    expected = replayed(store)
    num_filled = 0
    for step in steps:
        with np.load(tmp_path / f"{step}.npz") as results:
            assert results["columns"].tolist() == expected[step].columns.tolist()
            num_filled += len(results["filled"])
    # The batches before the last kept start are filled by one of them each.
    num_shared = NUM_STEPS - STEPS_PER_START
    assert num_filled == num_shared + sum(step - num_shared + 1 for step in steps)


def test_a_cache_that_cannot_be_written_changes_no_batch(
    store: ArticleStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    filled: list[int],
) -> None:
    expected = replayed(store)
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "file"))
    for step in (NUM_STEPS - 1, 70, 200):
        filled.clear()
        assert_equal_pairs(plan_of(store).rows(step), expected[step])
        assert len(filled) == step + 1
    assert caplog.text.count("each process plans its own batches") == 1


def test_starts_of_another_seed_or_batch_are_not_read(
    store: ArticleStore, filled: list[int]
) -> None:
    expected = replayed(store, seed=4)
    plan_of(store, seed=3).rows(NUM_STEPS - 1)
    filled.clear()
    assert_equal_pairs(plan_of(store, seed=4).rows(200), expected[200])
    assert len(filled) == 201
    filled.clear()
    PairPlan(store, PairPlanConfig(global_batch_rows=3, conflicts="drop"), 3).rows(200)
    assert len(filled) == 201


def test_starts_that_were_removed_or_damaged_are_found_again(
    store: ArticleStore, own_cache: Path
) -> None:
    expected = replayed(store)
    plan = plan_of(store)
    plan.rows(NUM_STEPS - STEPS_PER_START - 1)
    (path,) = own_cache.rglob("*.npy")
    path.unlink()
    # A process that knows them writes them again, with those that follow.
    assert_equal_pairs(plan.rows(NUM_STEPS - 1), expected[-1])
    assert len(kept_starts(own_cache)) == NUM_STEPS // STEPS_PER_START
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[-40] ^= 1
    path.write_bytes(damaged)
    assert_equal_pairs(plan_of(store).rows(NUM_STEPS - 1), expected[-1])
    assert path.read_bytes() == content
