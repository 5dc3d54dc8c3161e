"""Ray tasks that keep their results: what ends when the process of one does."""

import os
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from raybio.core.errors import ClusterError
from raybio.runtime.cluster.resources import TrialResources
from raybio.runtime.run import tasks
from raybio.runtime.run.tasks import run_tasks_here


@dataclass
class Number:
    """A task whose process is killed for a negative number."""

    number: int
    kept: list[int] = field(default_factory=list)
    is_done = False

    def __str__(self) -> str:
        return f"number {self.number}"

    def work(self, reserved: TrialResources) -> int:
        if self.number < 0:
            os._exit(1)
        return self.number + 1

    def keep(self, result: Any) -> None:
        self.kept.append(result)


@pytest.mark.usefixtures("ray_cluster")
def test_a_task_whose_process_is_killed_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tasks, "MAX_RETRIES", 0)
    reserved = TrialResources(1.0, 0.0, 1, "")
    good = Number(1)
    run_tasks_here([good], reserved)
    assert good.kept == [2]
    with pytest.raises(
        ClusterError, match=r"not number -1: its process ended: [^.].*[^.]\. The same command"
    ):
        run_tasks_here([Number(-1)], reserved)
    lost: list[tuple[int, str]] = []
    others = [Number(number) for number in (-1, 2, -3)]
    run_tasks_here(others, reserved, on_lost=lambda task, why: lost.append((task.number, why)))
    assert others[1].kept == [3]
    assert sorted(number for number, _ in lost) == [-3, -1]
    assert all(why.startswith("its process ended: ") for _, why in lost)
    # Lost ones are not printed as done.
    assert re.findall(r"number (-?\d+):", capsys.readouterr().out) == ["1", "2"]
