"""P30: kernels of a training step of 12 layers in bf16 and one micro-batch, counted as operations of ATen on a CPU.

Operations on lists of tensors count once; views and empty tensors launch nothing. The copies that autocast makes count.
So do those by which a CPU pads packed sequences for their attention; on a GPU, FlashAttention reads them as they are.
"""

import tempfile
from pathlib import Path

from _measure import report
from demo_steps import DemoStep

from tests.device_operations import DeviceOperations

GOAL = 550


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("sppt_protein", "sppt_mag", "biostransformers"):
            demo = DemoStep(name, Path(folder), **{"encoder.num_layers": 12})
            take_step = demo.taker(1, "bf16")
            take_step(0, demo.batch(0))
            batch = demo.batch(1)
            with DeviceOperations() as operations:
                take_step(1, batch)
            ratio = GOAL / operations.num_kernels
            report("P30", name, ratio, ratio, f"{operations.num_kernels} kernels a step")


if __name__ == "__main__":
    main()
