"""A process that saves checkpoints, is killed at its system calls, and loads what is left.

Forks instead of new interpreters, since hundreds of kills would otherwise import torch hundreds of
times. Prints one JSON line a kill: what was called, and which step loaded afterwards.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from raybio.core.config import BaseConfig
from raybio.training.checkpoint import CheckpointStore, list_checkpoints
from raybio.training.checkpoint_files import read_checkpoint
from raybio.training.snapshot import TrainingState

CALLS = ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir")


class Settings(BaseConfig):
    width: int = 3


def state_of(step: int) -> TrainingState:
    """Return a model and moments filled with the step, so that a mixture of two steps shows."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(step)
            optimizer.state[parameter]["exp_avg"].fill_(step)
    return TrainingState(model, optimizer, {"step": step})


def loaded_step(folder: Path) -> int:
    """Return the step from which a process resumes; check that all that have a name are whole."""
    newest = CheckpointStore(folder, keep=1).load_newest(Settings(), "data")
    assert newest is not None, f"no checkpoint left in {sorted(p.name for p in folder.iterdir())}"
    # Half of one that was being deleted would be reported as damaged.
    for path in list_checkpoints(folder):
        read_checkpoint(path)
    state = state_of(0)
    newest.restore(state.model, state.optimizer)
    for parameter in state.model.parameters():
        assert torch.all(parameter == newest.step)
        assert torch.all(state.optimizer.state[parameter]["exp_avg"] == newest.step)
    return newest.step


def in_child(work) -> bool:
    """Whether the child was killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)


def save(folder: Path, step: int) -> None:
    store = CheckpointStore(folder, keep=1)
    store.load_newest(Settings(), "data")
    store.save(state_of(step), step)
    store.close()


def die_at(number: int, folder: Path, is_after: bool) -> None:
    """Kill the process before or after its ``number``-th system call that changes ``folder``."""
    count = 0

    def wrap(name: str):
        original = getattr(os, name)

        def call(*arguments, **options):
            nonlocal count
            count += 1
            is_due = count == number
            if is_due:
                (folder.parent / "where").write_text(name)
                if name == "write":  # half of what was to be written
                    original(arguments[0], arguments[1][: len(arguments[1]) // 2])
                if not is_after:
                    os.kill(os.getpid(), signal.SIGKILL)
            try:
                return original(*arguments, **options)
            finally:
                if is_due:
                    os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, name, call)

    for name in CALLS:
        wrap(name)


def kill_at_calls(root: Path, every: int) -> None:
    """Kill a save before and after its first system call and each ``every``-th from there."""
    for is_after in (False, True):
        for number in range(1, 1000, every):
            folder = root / "checkpoints"
            shutil.rmtree(folder, ignore_errors=True)
            save(folder, 1)

            def killed_save(folder=folder, number=number, is_after=is_after) -> None:
                die_at(number, folder, is_after)
                save(folder, 2)

            was_killed = in_child(killed_save)
            step = loaded_step(folder)
            if not was_killed:
                assert step == 2
                break
            save(folder, 3)
            assert loaded_step(folder) == 3
            names = sorted(path.name for path in folder.iterdir())
            assert names == ["step-00000003"], names
            where = (root / "where").read_text()
            print(
                json.dumps({"number": number, "after": is_after, "call": where, "step": step}),
                flush=True,
            )


def kill_at_random_times(root: Path, times: int) -> None:
    chance = random.Random(0)
    folder = root / "random"
    save(folder, 1)
    newest = 1
    for _ in range(times):
        child = os.fork()
        if child == 0:
            for step in range(newest + 1, newest + 500):
                save(folder, step)
            os._exit(0)
        time.sleep(chance.uniform(0.01, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        step = loaded_step(folder)
        assert step >= newest
        newest = step
        print(json.dumps({"call": "any", "step": step}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    kill_at_calls(Path(sys.argv[1]), every=int(sys.argv[2]))
    kill_at_random_times(Path(sys.argv[1]), times=int(sys.argv[3]))
