"""Weights and scores of every system after 20 steps of its demo: a change that moves code must not change them.

    python tests/golden.py record golden.json    before the change
    python tests/golden.py check golden.json     after it

One process, one thread and fp32. Weights are compared where the record was made on a CPU with the same instructions.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from raybio.core.config import override_all
from raybio.core.digest import weights_digest
from raybio.methods import METHODS
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit

NUM_STEPS = 20


def trained(name: str, folder: Path) -> dict[str, Any]:
    """Return the digest of the weights and the final scores of the demo of a system after ``NUM_STEPS`` steps."""
    entry = METHODS[name]
    settings: dict[str, Any] = {
        "precision": "fp32",
        "schedule.max_steps": NUM_STEPS,
        "schedule.evaluate_every_steps": 0,
        "schedule.checkpoint_every_steps": NUM_STEPS,
    }
    config = override_all(entry.demo, settings)
    store = entry.prepare_demo(folder / name)
    system = entry.build(config, store)
    losses = [report.metrics["loss"] for report in fit(system, config) if "loss" in report.metrics]
    scores: Any = {}
    if system.final_evaluate is not None:
        scores = system.final_evaluate(system.model, SingleProcess()).scores
    return {
        "weights_sha256": weights_digest(system.model.state_dict().items()),
        "losses": losses,
        "scores": scores,
    }


def differences(expected: Any, got: Any, path: str = "") -> Iterator[str]:
    """Yield the places at which two JSON values differ, numbers by more than 1e-9 of their size."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in sorted(expected.keys() | got.keys()):
            if key not in expected or key not in got:
                yield f"{path}/{key}: only in the {'record' if key in expected else 'run'}"
            else:
                yield from differences(expected[key], got[key], f"{path}/{key}")
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for number, (one, other) in enumerate(zip(expected, got, strict=True)):
            yield from differences(one, other, f"{path}/{number}")
    elif isinstance(expected, float) and isinstance(got, float):
        if not (
            expected == got
            or abs(expected - got) <= 1e-9 * max(abs(expected), abs(got))
            or expected != expected
        ):
            yield f"{path}: {expected!r} in the record, {got!r} in the run"
    elif expected != got:
        yield f"{path}: {expected!r} in the record, {got!r} in the run"


def record(path: Path) -> int:
    """Write the results of all systems."""
    path.write_text(
        json.dumps({"cpu": torch.backends.cpu.get_cpu_capability(), **_all(print)}, indent=1) + "\n"
    )
    return 0


def check(path: Path) -> int:
    """Print what differs from a record; return 1 if anything does."""
    expected = json.loads(path.read_text())
    is_same_cpu = expected.pop("cpu") == torch.backends.cpu.get_cpu_capability()
    got = json.loads(json.dumps(_all(print)))
    if not is_same_cpu:
        print("another kind of CPU: weights and scores may differ in their last digits")
    found = list(differences(expected, got))
    print("\n".join(found) or f"{len(got)} systems: equal")
    return 1 if found else 0


def _all(say: Callable[[str], None]) -> dict[str, Any]:
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in METHODS:
            began = time.process_time()
            results[name] = trained(name, Path(folder))
            say(
                f"{name}: {results[name]['weights_sha256'][:12]} in {time.process_time() - began:.0f} s"
            )
    return results


if __name__ == "__main__":
    commands = {"record": record, "check": check}
    if len(sys.argv) != 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    sys.exit(commands[sys.argv[1]](Path(sys.argv[2])))
