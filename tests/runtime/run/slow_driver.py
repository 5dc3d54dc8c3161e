"""A driver for test_multi_node.py: a run or a sweep with steps that outlast a lost node.

``slow_driver.py run|sweep STORE FOLDER``; STORE is a path or a URI, FOLDER holds config.yaml, and a
sweep's space.yaml.
The run lies in FOLDER, or where RAYBIO_RUNS says. While FOLDER/hold exists, no step is begun whose
number it contains.
"""

import os
import sys
import time
from functools import partial
from pathlib import Path

from raybio.core.config import load
from raybio.core.location import Location, location
from raybio.core.search_space_file import load_search_space
from raybio.methods import METHODS
from raybio.runtime.run.driver import train
from raybio.runtime.run.options import runs_folder
from raybio.runtime.run.spec import Compute, RunSpec

SYSTEM = "sppt_protein"
STEP_SECONDS = 0.6
"""24 steps take twice as long as a node stays after its notice, and so does their repetition."""


def slow(rank: int, folder: Path, hold: Path) -> None:
    from raybio.training.step import TrainStep

    original = TrainStep.launch

    def waiting(self, number, batch):
        time.sleep(STEP_SECONDS)
        while hold.exists() and hold.read_text() == str(number):
            time.sleep(0.1)
        return original(self, number, batch)

    TrainStep.launch = waiting


def main(kind: str, store: Location, folder: Path) -> None:
    config = load(METHODS[SYSTEM].config, folder / "config.yaml")
    setup = partial(slow, hold=folder / "hold")
    if kind == "run":
        runs, bucket = folder / "runs", None
        if "RAYBIO_RUNS" in os.environ:
            runs, bucket = runs_folder(None)
        train(
            RunSpec(
                method=SYSTEM,
                config=config,
                store=store,
                name="mine",
                runs=runs,
                bucket=bucket,
                setup=setup,
                compute=Compute(workers=2),
            )
        )
        return
    from raybio.runtime.tune.driver import SweepSpec, sweep

    space = load_search_space(
        folder / "space.yaml", {name: entry.config for name, entry in METHODS.items()}
    )
    sweep(
        SweepSpec(
            space=space,
            run=RunSpec(
                method="sppt_protein",
                store=store,
                name="mine",
                setup=setup,
                config=config,
                runs=folder / "sweeps",
                compute=Compute(cpus_per_worker=1),
            ),
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], location(sys.argv[2]), Path(sys.argv[3]))
