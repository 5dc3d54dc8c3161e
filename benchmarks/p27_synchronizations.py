"""P27: operations of a training step that make the host wait for the device, for each method, counted on a CPU."""

import tempfile
from pathlib import Path

from _measure import report
from demo_steps import DemoStep

from raybio.methods import METHODS
from tests.device_operations import DeviceOperations


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in METHODS:
            demo = DemoStep(name, Path(folder))
            for num_micro_batches in (1, 4):
                take_step = demo.taker(num_micro_batches)
                take_step(0, demo.batch(0))
                batch = demo.batch(1)
                with DeviceOperations() as operations:
                    take_step(1, batch)
                counts = operations.synchronizing
                listed = ", ".join(f"{count} {which}" for which, count in sorted(counts.items()))
                report(
                    "P27",
                    f"{name}, {num_micro_batches} micro-batch{'es' if num_micro_batches > 1 else ''}",
                    None,
                    None,
                    f"{counts.total()} a step" + (f": {listed}" if listed else ""),
                )


if __name__ == "__main__":
    main()
