"""Runs the benchmark scripts one after the other and writes RESULTS.md; rows that are not run again are kept.

    python benchmarks/run_all.py [--only P1,P2] [--timeout SECONDS]
    python benchmarks/run_all.py --take FILE

The second form runs nothing: it takes the lines that a script has printed on this machine, such as P37's after hours.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from _measure import NOT_HERE, machine
from gpu_table import STORED as GPU_STORED
from gpu_table import gpu_section

HERE = Path(__file__).parent
STORED, TABLE = HERE / "results.json", HERE / "RESULTS.md"
PACKAGES = (
    "torch",
    "ray",
    "numpy",
    "pyarrow",
    "transformers",
    "torch-geometric",
    "faiss-cpu",
    "scikit-learn",
    "scipy",
    "sentence-transformers",
)

# What each row measures and what we want of it; a script prints which peer a result is for.
WHAT = {
    "P1": ("link_retrieval itself", "≥ 12× argsort, ≥ 1.2× sklearn"),
    "P2": ("is (u, v) an edge?", "≥ 25× set of tuples, ≥ 12× scipy"),
    "P3": (
        "exact negatives",
        "≥ 8× structured_negative_sampling, ≥ 200× sparse, none false",
    ),
    "P5": (
        "tiered species negatives",
        "≥ 28× the rule a row at a time, ≥ 14× rejecting from a set, same histogram",
    ),
    "P8": (
        "contrastive training, real titles, 384 pairs, MiniLM-L6",
        "≥ 2.2× default, ≥ 1.6× lengths grouped",
    ),
    "P9": (
        "gradient caching, effective batch 512",
        "≥ 1.9× mini-batches of 32, ≥ 1.3× of 4,096 tokens",
    ),
    "P10": ("gradient caching's cost", "≤ 1.4× time (ratio ≥ 0.71), ≤ 0.35× memory growth"),
    "P11": ("tiled contrastive loss, 8,192 × 256", "≤ 1.5× time (ratio ≥ 0.67), ≥ 8× memory"),
    "P13": ("bf16 on a CPU", "auto chooses it where it is faster"),
    "P14": ("MFU of the training step", "≥ 0.6"),
    "P15": (
        "first optimizer step after the command",
        "≤ 1.2× Ray Train's hello world (ratio ≥ 0.83)",
    ),
    "P16": ("checkpoint stall", "≤ 0.2× (ratio ≥ 5)"),
    "P17": ("the first batch at 80 % of an epoch", "≤ 0.5 s at any step (ratio ≥ 1)"),
    "P18": ("metric logging, 5 k values, sqlite", "≥ 50×"),
    "P19": ("sweep of 8 trials × 20 steps", "≥ 3× trials a second of processor time"),
    "P20": (
        "MEDLINE parsing, citations/s and peak memory",
        "≥ 2× citations/s, ≤ 32 MiB flat (ratio ≥ 1)",
    ),
    "P21": ("prepare a graph as large as Tree-of-life", "≤ 2 GiB RSS, linear in rows (ratios ≥ 1)"),
    "P22": (
        "plan and collate on that store",
        "≥ 200 k sequences/s a core",
    ),
    "P23": (
        "MCCL over 256 documents in the memory of 32",
        "≤ 1.3× memory at 8× the pairs (ratio ≥ 0.77)",
    ),
    "P24": ("10 nearest of 22,923 names for 19,000 queries", "≥ 0.9× faiss, ≥ 1.5× sklearn"),
    "P25": ("5 nearest pairs of words", "≥ 10× faiss over their concatenations"),
    "P26": ("pairs of entities, attention at their markers alone", "> 1.3×"),
    "P27": ("operations a step that make the host wait for a GPU", "≤ 1 read a report"),
    "P28": ("real over computed tokens, as a GPU cuts micro-batches", "≥ 0.97"),
    "P29": (
        "packed sequences compared with padded ones, fp64, all gradients",
        "≤ 1e-10 (ratio ≥ 1)",
    ),
    "P30": ("kernels of a step of 12 layers", "≤ 550 (ratio ≥ 1)"),
    "P31": ("real tokens collated a second by a core", "≥ the row's own (ratio ≥ 1)"),
    "P32": ("collation for one of 64 workers, compared with one worker", "≤ 1.2× (ratio ≥ 1)"),
    "P33": ("bytes to one of 64 workers a real token", "≤ 8 (ratio ≥ 1)"),
    "P34": ("MTB's collation with 1 M recurring pairs, compared with 10 k", "≤ 1.3× (ratio ≥ 1)"),
    "P35": (
        "evaluation's rank block compared with an fp32 matrix product of its shape",
        "≤ 3× (ratio ≥ 0.333), memory ≤ 2× the embeddings (ratio ≥ 0.5)",
    ),
    "P36": (
        "intervals of all measures at 1.45 M anchors",
        "≤ 1 s of processor time; within 2 % of the width of 20,000 resamples",
    ),
    "P37": (
        "PubMed whole, simulated with short texts: merge, sort and plan",
        "≤ 2 GiB peak RSS, ≤ 50 MiB private a collating process (ratios ≥ 1)",
    ),
    "P38": (
        "processor time of imports: worker, --help, collating process",
        "≤ 2.5, 0.8 and 1.4 s (ratios ≥ 1)",
    ),
    "P39": ("Ray's cost a step, all processes", "≤ 5 ms of processor time (ratio ≥ 1)"),
    "P41": ("tokens of the slowest of 64 workers over the mean", "≤ 1.02 (ratio ≥ 1)"),
    "P42": ("start on a store that was verified before", "0 bytes of the store read"),
    "P43": ("major faults a step, store larger than memory", "≤ 1/20 (ratio ≥ 20)"),
    "P44": ("stall of a checkpoint of a run in a bucket", "≤ 1.1× (ratio ≥ 0.91)"),
    "P47": (
        "nearest neighbors among 300,000 embeddings",
        "≥ 10× exact search, recall@10 ≥ 0.95, opened in ≤ 1 s",
    ),
    "P48": ("first step of an empty node, store of 1 GiB in a bucket", "none: a network decides"),
}

Result = dict[str, Any]


def scripts(only: set[str]) -> list[Path]:
    found = [path for path in HERE.glob("p[0-9]*_*.py") if not only or row_of(path) in only]
    missing = only - {row_of(path) for path in found}
    if missing:
        sys.exit(
            f"no script for {', '.join(sorted(missing))}; there are {', '.join(map(row_of, scripts(set())))}"
        )
    return sorted(found, key=lambda path: int(row_of(path)[1:]))


def row_of(path: Path) -> str:
    return f"P{int(path.name[1:].split('_')[0])}"


def run(script: Path, timeout_seconds: float) -> list[Result] | None:
    """The results that a script prints; one that fails gives a result that says so. None if its peer is not here."""
    print(f"{script.name} ...", flush=True)
    environment = {"PYTHONPATH": str(HERE.parent), **os.environ}
    command = [sys.executable, "-W", "ignore", str(script)]
    try:
        done = subprocess.run(
            command,
            cwd=HERE.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        return [
            {
                "row": row_of(script),
                "peer": "",
                "note": f"{script.name} did not end in {timeout_seconds:.0f} s",
            }
        ]
    if done.returncode == NOT_HERE:
        print(f"  left out: {done.stderr.strip()}", flush=True)
        return None
    results = results_in(done.stdout)
    for result in results:
        print(f"  {json.dumps(result)}", flush=True)
    if done.returncode or not results:
        print(done.stdout[-1000:] + done.stderr[-3000:], file=sys.stderr)
        results.append(
            {
                "row": row_of(script),
                "peer": "",
                "note": f"{script.name} failed, exit {done.returncode}",
            }
        )
    return results


def results_in(printed: str) -> list[Result]:
    """Return the results among the lines that a script has printed; libraries print dicts, too."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith('{"row"')]


def versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def table(results: list[Result]) -> str:
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`; README.md in this folder says how it is measured. A ratio is the peer's time",
        "over ours, so above 1 we are faster; the median and the smallest of the pairs of one process are given.",
        "MFU: share of the rate of a plain matrix product (GEMM) on the same device.",
        "",
        "| # | what | compared with | median | min | goal | note |",
        "|---|---|---|--:|--:|---|---|",
    ]
    for result in sorted(results, key=lambda result: int(result["row"][1:])):
        what, goal = WHAT.get(result["row"], ("", ""))
        ratios = [
            "–" if result.get(key) is None else f"{result[key]:.3g}"
            for key in ("median_ratio", "min_ratio")
        ]
        cells = [result["row"], what, result["peer"], *ratios, goal, result.get("note", "")]
        lines.append(f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |")
    lines += ["", "Where and when:", ""]
    places = {(result["machine"], result["date"], result["versions"]) for result in results}
    for place, date, packages in sorted(places):
        rows = sorted(
            {
                r["row"]
                for r in results
                if (r["machine"], r["date"], r["versions"]) == (place, date, packages)
            },
            key=lambda row: int(row[1:]),
        )
        lines.append(f"- {', '.join(rows)}: {place}, {date}; {packages}")
    return "\n".join(lines) + "\n"


def write(results: list[Result]) -> None:
    """Write all results and the table of them."""
    STORED.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    TABLE.write_text(f"{table(results)}\n{gpu_section(GPU_STORED.read_text())}")
    print(f"wrote {TABLE.relative_to(HERE.parent)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="rows to run, such as P1,P2; the others keep their last results"
    )
    parser.add_argument(
        "--timeout", type=float, default=3600, help="seconds after which a script is stopped"
    )
    parser.add_argument(
        "--take", type=Path, help="file of what a script has printed, instead of running any"
    )
    arguments = parser.parse_args()
    kept: list[Result] = json.loads(STORED.read_text()) if STORED.exists() else []
    where = {
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions(),
    }
    if arguments.take:
        new = [result | where for result in results_in(arguments.take.read_text())]
        if not new:
            sys.exit(f'{arguments.take}: no line begins with {{"row"')
        rows = {result["row"] for result in new}
        write([result for result in kept if result["row"] not in rows] + new)
        return
    failed = False
    for script in scripts(
        {row.strip().upper() for row in arguments.only.split(",") if row.strip()}
    ):
        found = run(script, arguments.timeout)
        if found is None:
            continue
        new = [result | where for result in found]
        failed = failed or any(
            " failed, exit" in r.get("note", "") or " did not end" in r.get("note", "") for r in new
        )
        kept = [result for result in kept if result["row"] != row_of(script)] + new
        # After each script, so that an interrupted round loses nothing.
        write(kept)
    sys.exit(failed)


if __name__ == "__main__":
    main()
