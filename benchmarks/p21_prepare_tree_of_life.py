"""P21: preparing a graph as large as Tree-of-life, simulated: peak memory, and whether the cost is linear in rows.

    python benchmarks/p21_prepare_tree_of_life.py [--keep FOLDER]

Each size is simulated (in the download's formats, about 350 letters a protein) and prepared in processes of their own.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

from _measure import SMALL, report

from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.demo import SimulationConfig, write_tree_of_life
from raybio.methods.sppt.proteins.formats.tree_of_life import TreeOfLife

SPECIES, PROTEINS, LINKS = 1_840, 1_450_633, 8_762_166
SIZES = (Fraction(1, 920),) if SMALL else (Fraction(1, 16), Fraction(1, 4), Fraction(1))
LIMIT_BYTES = 2 * 2**30


def simulate(folder: Path, size: Fraction) -> None:
    config = SimulationConfig(
        num_species=int(SPECIES * size),
        num_proteins=int(PROTEINS * size),
        num_links=int(LINKS * size),
        num_families=400,
        domain_length=180,
    )
    write_tree_of_life(folder / "raw", config, one_fasta=True)


def prepare(folder: Path, size: Fraction) -> None:
    raw = folder / "raw"
    source = TreeOfLife(
        raw / "interactomes", raw / "treeoflife.species.tsv", raw / "protein.sequences.fa"
    )
    store = prepare_proteins(folder / "store", source, force=True)
    counts = store.manifest["counts"]
    assert counts["rows"] == int(PROTEINS * size), counts
    assert counts["links"] + counts["heldout_links"] == int(LINKS * size), counts


def measured(step: str, folder: Path, size: Fraction) -> dict[str, float]:
    command = [
        sys.executable,
        "-W",
        "ignore",
        __file__,
        "--step",
        step,
        "--keep",
        str(folder),
        "--size",
        str(size),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="folder that keeps files and stores (6 GB)")
    parser.add_argument("--step", choices=["simulate", "prepare"], help=argparse.SUPPRESS)
    parser.add_argument("--size", type=Fraction, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        wall = time.perf_counter()
        {"simulate": simulate, "prepare": prepare}[arguments.step](arguments.keep, arguments.size)
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        times = {"wall_seconds": time.perf_counter() - wall, "core_seconds": time.process_time()}
        print(json.dumps({"peak_bytes": peak_bytes, **times}))
        return
    first_cost = None
    with tempfile.TemporaryDirectory() as temporary:
        for size in [arguments.size] if arguments.size else SIZES:
            folder = (
                arguments.keep or Path(temporary)
            ) / f"size-{size.numerator}-of-{size.denominator}"
            made, facts = (measured(step, folder, size) for step in ("simulate", "prepare"))
            cost = facts["core_seconds"] / int(PROTEINS * size)
            first_cost = first_cost or cost
            shape = f"{int(PROTEINS * size):,} rows, {int(LINKS * size):,} links"
            ratio = LIMIT_BYTES / facts["peak_bytes"]
            note = (
                f"{shape}: peak RSS {facts['peak_bytes'] / 2**30:.2f} GiB "
                f"(simulated in {made['peak_bytes'] / 2**30:.2f} GiB)"
            )
            report("P21", f"2 GiB, {size} of Tree-of-life", ratio, ratio, note)
            ratio = first_cost / cost
            note = (
                f"{shape}: {facts['core_seconds']:.0f} s of core time, {facts['wall_seconds']:.0f} s "
                f"(simulated in {made['core_seconds']:.0f} s of core time)"
            )
            peer = f"the cost of a row at the first size, {size} of Tree-of-life"
            report("P21", peer, ratio, ratio, note)


if __name__ == "__main__":
    main()
