"""Weights and scores of all demos after 20 steps: code that moves or is renamed must not change them.

    python -m tests.golden check     compare with tests/golden_demos.json, which the suite does too
    python -m tests.golden record    write that file anew, after a change that is meant to change them

One process, one thread and fp32. Another kind of CPU or another torch may change the last digits: there,
the suite compares losses to 5 %.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from raybio.core.config import override_all
from raybio.core.digest import weights_digest
from raybio.evaluation.projection import MapSample, Projection
from raybio.methods import METHODS
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests.arithmetic import arithmetic_digest
from tests.paths import ROOT

DEMOS = ROOT / "tests" / "golden_demos.json"
NUM_STEPS = 20


def build_of_torch() -> dict[str, str]:
    """Return what the last digits depend on."""
    return {
        "arithmetic": arithmetic_digest(),
        "torch": torch.__version__.split("+")[0],
    }


def train_demo(name: str, folder: Path) -> dict[str, Any]:
    """Train the demo of a method; return the digest of its weights, its losses and final scores."""
    method = METHODS[name]
    settings: dict[str, Any] = {
        "precision": "fp32",
        "schedule.max_steps": NUM_STEPS,
        "schedule.evaluate_every_steps": 0,
        "schedule.keep_best": None,
        "schedule.checkpoint_every_steps": NUM_STEPS,
    }
    config = override_all(method.demo, settings)
    system = method.build(config, method.prepare_demo(folder / name))
    losses = [report.metrics["loss"] for report in fit(system, config) if "loss" in report.metrics]
    scores: Any = {}
    if system.final_evaluate is not None:
        # The map is not in the record, and t-SNE takes longer than all the rest.
        with patch.object(MapSample, "lay_out", at_zero):
            scores = system.final_evaluate(system.model, SingleProcess()).scores
    result = {
        "weights_sha256": weights_digest(system.model.state_dict().items()),
        "losses": losses,
        "scores": scores,
    }
    return json.loads(json.dumps(result))


def at_zero(sample: MapSample) -> Projection:
    """Return a map whose points all lie at zero."""
    return Projection(sample.row_S, np.zeros((len(sample.row_S), 2), np.float32))


def differences(
    expected: Any, got: Any, path: str = "", *, tolerance: float = 1e-9
) -> Iterator[str]:
    """Yield where two JSON values differ, numbers by more than ``tolerance`` of their size."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in sorted(expected.keys() | got.keys()):
            if key not in expected or key not in got:
                yield f"{path}/{key}: only in the {'record' if key in expected else 'run'}"
            else:
                yield from differences(
                    expected[key], got[key], f"{path}/{key}", tolerance=tolerance
                )
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, (was, now) in enumerate(zip(expected, got, strict=True)):
            yield from differences(was, now, f"{path}/{index}", tolerance=tolerance)
    elif isinstance(expected, float) and isinstance(got, float):
        if not is_near(expected, got, tolerance):
            yield f"{path}: {expected!r} in the record, {got!r} in the run"
    elif expected != got:
        yield f"{path}: {expected!r} in the record, {got!r} in the run"


def is_near(expected: float, got: float, tolerance: float) -> bool:
    """Return whether two numbers agree to a share of their size, or are both undefined."""
    if expected != expected:
        return got != got
    return expected == got or abs(expected - got) <= tolerance * max(abs(expected), abs(got))


def main(command: str) -> int:
    """Record or check all demos; return the exit status."""
    torch.set_num_threads(1)
    demos = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in METHODS:
            began = time.process_time()
            demos[name] = train_demo(name, Path(folder))
            seconds = time.process_time() - began
            print(f"{name}: {demos[name]['weights_sha256'][:12]} in {seconds:.0f} s", flush=True)
    if command == "record":
        record = {"build": build_of_torch(), "demos": demos}
        DEMOS.write_text(json.dumps(record, indent=1) + "\n")
        return 0
    record = json.loads(DEMOS.read_text())
    if record["build"] != build_of_torch():
        print(f"recorded with {record['build']}, run with {build_of_torch()}")
    changes = list(differences(record["demos"], demos))
    print("\n".join(changes) or f"{len(demos)} methods: equal")
    return 1 if changes else 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["record"], ["check"]):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
