"""Batches made ahead by a thread: the same ones, in order, and no more than a few."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from raybio.core.digest import weights_digest
from raybio.core.errors import DataError
from raybio.methods import METHODS
from raybio.store.store import Store
from raybio.training.loop import fit, local_batches
from raybio.training.prefetched import DEPTH, prefetched
from tests.methods.conformance_cases import CASES, tiny_config


def counted(made: list[int], num_steps: int = 9, broken_at: int = -1) -> Any:
    def batches(first_step: int) -> Iterator[Any]:
        for step in range(first_step, num_steps):
            if step == broken_at:
                raise DataError(f"step {step} is damaged")
            made.append(step)
            yield step, f"batch {step}"

    return batches


@pytest.mark.parametrize("first_step", [0, 4, 9])
def test_the_batches_are_those_of_the_source_in_order(first_step: int) -> None:
    expected = [*counted([])(first_step)]
    assert [*prefetched(counted([]))(first_step)] == expected


def test_only_a_few_batches_are_made_ahead_and_the_thread_ends_with_its_reader() -> None:
    made: list[int] = []
    reader = prefetched(counted(made, num_steps=100))(0)
    assert [next(reader)[0] for _ in range(3)] == [0, 1, 2]
    reader.close()  # type: ignore[attr-defined]
    assert len(made) <= 3 + DEPTH
    assert not [one for one in threading.enumerate() if one.name.startswith("raybio-collate")]


def test_an_error_comes_after_the_batches_before_it() -> None:
    reader = prefetched(counted([], broken_at=2))(0)
    assert [next(reader)[0], next(reader)[0]] == [0, 1]
    with pytest.raises(DataError, match="step 2 is damaged"):
        next(reader)


@pytest.mark.parametrize("name", ["sppt_protein", "biostransformers"])
def test_a_run_ends_with_the_weights_of_batches_made_in_turn(
    name: str, request: pytest.FixtureRequest
) -> None:
    store: Store = request.getfixturevalue(CASES[name].store)
    digests = []
    for wrap in (lambda batches: batches, prefetched):
        system = METHODS[name].build(tiny_config(name), store.path)
        batches = local_batches(system, 6)
        config = tiny_config(name, **{"schedule.max_steps": 6})
        for _ in fit(system, config, batches=wrap(batches)):
            pass
        digests.append(weights_digest(system.model.state_dict().items()))
    assert digests[0] == digests[1]
