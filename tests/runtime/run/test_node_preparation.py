"""What a node makes once runs in a Ray task, next to training."""

import os
from functools import partial
from pathlib import Path

import pytest
import ray

from raybio.runtime.run.node_preparation import NICENESS, start_preparation


def write_niceness(file: Path) -> None:
    file.write_text(f"{os.getpid()} {os.nice(0)}")


@pytest.mark.usefixtures("ray_cluster")
def test_a_node_prepares_in_a_process_of_its_own_after_training(tmp_path: Path) -> None:
    assert start_preparation(None) is None
    file = tmp_path / "niceness"
    task = start_preparation(partial(write_niceness, file))
    assert task is not None
    ray.get(task)
    process, niceness = map(int, file.read_text().split())
    assert process != os.getpid()
    assert niceness == min(19, os.nice(0) + NICENESS)
