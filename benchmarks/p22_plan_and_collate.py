"""P22: opening a large store, and making batches from it: sequences a second on one core, and private memory.

    python benchmarks/p22_plan_and_collate.py [STORE]

Without a store, one of 1/16 of Tree-of-life's size is simulated and prepared first.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from _measure import SMALL

from raybio.core.config import override_all
from raybio.methods.sppt.proteins.config import Config
from raybio.methods.sppt.proteins.demo import SIMULATED_PROTEINS, SimulationConfig
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.proteins.system import build
from raybio.store.store import open_store

SIXTEENTH = SimulationConfig(num_species=115, num_proteins=90_664, num_links=547_635)
TINY = SimulationConfig(num_species=4, num_proteins=1200, num_links=4000)
NUM_STEPS = 3 if SMALL else 40
GOAL = 200_000


def private_mebibytes() -> float:
    """Memory that this process alone has, without the mapped pages of files, which all workers of a node share."""
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in rollup if line.startswith("Anonymous:")) / 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = (
            Path(sys.argv[1])
            if len(sys.argv) > 1
            else SIMULATED_PROTEINS.prepare(folder, TINY if SMALL else SIXTEENTH).path
        )
        tiny_encoder = {
            "encoder.num_layers": 1,
            "encoder.width": 8,
            "encoder.num_heads": 1,
            "encoder.ffn_width": 8,
        }
        config = override_all(
            Config(), tiny_encoder | {"input.max_length": 512, "plan.global_batch_rows": 256}
        )
        before = private_mebibytes()
        started = time.perf_counter()
        store = open_store(path, ProteinStore)
        open_seconds = time.perf_counter() - started
        collate = build(config, path).collate
        collate(0, 0, 1)
        seconds, sequences, residues = [], 0, 0
        for step in range(1, NUM_STEPS + 1):
            started = time.process_time()
            arrays = collate(step, 0, 1)
            seconds.append(time.process_time() - started)
            sequences, residues = len(arrays["row_R"]), len(arrays["token_T"])
        rate = sequences / statistics.median(seconds)
        print(
            json.dumps(
                {
                    "row": "P22",
                    "peer": f"goal: {GOAL:,} sequences/s a core",
                    "median_ratio": float(f"{rate / GOAL:.3g}"),
                    "min_ratio": float(f"{sequences / max(seconds) / GOAL:.3g}"),
                    "note": f"{store.num_rows:,} rows, {store.graph.num_edges:,} links: opened in "
                    f"{open_seconds * 1000:.1f} ms; {rate:,.0f} sequences/s of core time ({residues / sequences:.0f} "
                    f"tokens each, 256 anchors, masks, links); private memory grew by "
                    f"{private_mebibytes() - before:.0f} MiB",
                }
            )
        )


if __name__ == "__main__":
    main()
