"""Peak memory and time of preparing a simulated STRING download, in files of STRING's layout.

python benchmarks/string_size.py                                   # human: 19,699 proteins, 13.7 M lines
python benchmarks/string_size.py --species 50 --lines 100000000    # many species, all in one file
python benchmarks/string_size.py --species 50 --lines 100000000 --min-score 700
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
LETTERS = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", dtype=np.uint8)

CHILD = """
import json, re, sys, time
from pathlib import Path
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.formats.tables import Tables
edges, proteins, out, settings = sys.argv[1:]
# Not ru_maxrss, which a process takes over from the one that started it.
mib = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10
base, start = mib(), time.process_time()
store = prepare_proteins(out, Tables([Path(edges)], [Path(proteins)]), PrepareConfig(**json.loads(settings)))
seconds = time.process_time() - start
print(json.dumps({"processor_seconds": round(seconds), "imports_mib": base, "peak_mib": mib(),
                  **store.manifest["counts"]}))
"""


def main() -> None:
    """Write the two files, prepare them in a process of its own, and print its peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--species", type=int, default=1)
    parser.add_argument("--proteins", type=int, default=19_699, help="of each species")
    parser.add_argument("--lines", type=int, default=13_700_000, help="of links, over all species")
    parser.add_argument("--length", type=int, default=500, help="residues of a protein")
    parser.add_argument("--min-score", type=int, default=0)
    parser.add_argument("--taxid", action="append", default=[], help="9000, 9001, ...")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        edges, proteins = write(Path(folder), options)
        settings = {"min_score": options.min_score, "taxids": options.taxid}
        out = str(Path(folder) / "store")
        command = [sys.executable, "-c", CHILD, edges, proteins, out, json.dumps(settings)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        print(json.dumps(vars(options) | json.loads(done.stdout)))


def write(folder: Path, options: argparse.Namespace) -> tuple[str, str]:
    """Write links, both directions in order of the first id, and sequences."""
    edges = folder / "protein.links.v12.0.txt.gz"
    proteins = folder / "protein.sequences.v12.0.fa.gz"
    with gzip.open(edges, "wb", 1) as links, gzip.open(proteins, "wb", 1) as sequences:
        links.write(b"protein1 protein2 combined_score\n")
        for number in range(options.species):
            taxid = 9000 + number
            rng = np.random.default_rng(number)
            names = [f"{taxid}.ENSP{protein:011d}" for protein in range(options.proteins)]
            for name in names:
                residues = LETTERS[rng.integers(0, 20, options.length)].tobytes().decode()
                sequences.write(f">{name}\n{residues}\n".encode())
            for line in link_lines(names, options.lines // options.species, rng):
                links.write(line)
    return str(edges), str(proteins)


def link_lines(names: list[str], num_lines: int, rng: np.random.Generator):
    """Yield the lines of each protein; a pair of proteins has one score."""
    num = len(names)
    # More than needed: some are self pairs, some repeat.
    code = rng.integers(0, num * num, size=int(num_lines / 1.8))
    u, v = np.divmod(code, num)
    low, high = np.minimum(u, v)[u != v], np.maximum(u, v)[u != v]
    pair = np.unique(low * num + high)
    pair = np.sort(rng.permutation(pair)[: num_lines // 2])
    low, high = np.divmod(pair, num)
    # Most of STRING's scores are low.
    score = np.minimum(150 + rng.exponential(150, len(pair)), 999).astype(int)
    first, second = np.concatenate([low, high]), np.concatenate([high, low])
    order = np.lexsort((second, first))
    both = np.concatenate([score, score])[order].tolist()
    text = [name + " " for name in names]
    start = np.searchsorted(first[order], np.arange(num + 1)).tolist()
    partner = second[order].tolist()
    for protein in range(num):
        rows = range(start[protein], start[protein + 1])
        yield "".join(
            [f"{text[protein]}{text[partner[row]]}{both[row]}\n" for row in rows]
        ).encode()


if __name__ == "__main__":
    main()
