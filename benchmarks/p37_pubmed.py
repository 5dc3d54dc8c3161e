"""P37: PubMed whole, simulated: memory, disk and processor time of merging its parts and of the plan.

    python benchmarks/p37_pubmed.py [--articles 36000000] [--folder FOLDER]

Without a number: 1/100, 1/10 and the whole, which takes 25 GB of disk and about an hour of processor time. Keys, terms and
sets of qualifiers have PubMed's numbers. Texts are short: the parts have 13 GB, PubMed's up to 85 GB. So time,
disk and the memory of counted words are not PubMed's. Parts are written as ``prepare.py medline`` writes them:
30,000 citations a file, first all PMIDs in order, then revisions and deletions of scattered ones. Each step runs in a
process of its own.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from _measure import SMALL

from raybio.methods.biostransformers.article_sort import write_articles
from raybio.methods.biostransformers.collate import PairCollate
from raybio.methods.biostransformers.config import ArticleConfig, PairPlanConfig, TextConfig
from raybio.methods.biostransformers.formats.columns import ARTICLE_SCHEMA
from raybio.methods.biostransformers.formats.medline_parts import FileReport, PartWriter
from raybio.methods.biostransformers.merge import merge_parts
from raybio.methods.biostransformers.plan import CHECK_TAGS, PairPlan
from raybio.methods.biostransformers.store import ArticleStore
from raybio.store.quarantine import Quarantine
from raybio.store.store import open_store
from raybio.store.writer import Draft

WHOLE = 36_000_000
SIZES = [2_000] if SMALL else [WHOLE // 100, WHOLE // 10, WHOLE]
REVISED_SHARE = 0.05
CITATIONS_PER_FILE = 30_000
ROWS_PER_BATCH = 1_000
NUM_TERMS = 30_000
NUM_QUALIFIERS = 76
NUM_QUALIFIER_SETS = 200_000
MEAN_TERMS = 11
NUM_DRAWN_FILES = 16
"""Files whose headings are drawn; later files repeat them, so that simulating is not the longest step."""
PEAK_LIMIT_BYTES = 2 * 2**30
PRIVATE_LIMIT_BYTES = 50 * 2**20
STEPS_PER_POSITION = 32


class Vocabulary:
    """Terms with the frequencies of words (Zipf), check tags first, and sets of qualifiers."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        names = [*sorted(CHECK_TAGS), *(f"T{number:05d}" for number in range(NUM_TERMS))]
        self.names = pa.array(names[:NUM_TERMS])
        weight = 1 / (5 + np.arange(NUM_TERMS)) ** 0.9
        self.cumulated = np.cumsum(weight) / weight.sum()
        lengths = rng.choice(4, NUM_QUALIFIER_SETS, p=[0.1, 0.2, 0.4, 0.3])
        lengths[0] = 0
        number = rng.integers(NUM_QUALIFIERS, size=lengths.sum())
        names = pa.array([f"{number:02d}" for number in range(NUM_QUALIFIERS)])
        fields = list(
            ARTICLE_SCHEMA.field("mesh").type.value_type.field("qualifiers").type.value_type
        )
        qualifiers = pa.StructArray.from_arrays(
            [
                names.take(pa.array(number)),
                pa.array([""]).take(pa.array(np.zeros_like(number))),
                pa.array(rng.random(len(number)) < 0.3),
            ],
            fields=fields,
        )
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        self.qualifier_sets = pa.ListArray.from_arrays(pa.array(bounds), qualifiers)

    def mesh(self, num_articles: int, rng: np.random.Generator) -> pa.Array:
        """Headings of articles."""
        num_drawn = rng.poisson(MEAN_TERMS, num_articles)
        owner = np.repeat(np.arange(num_articles), num_drawn)
        term = np.searchsorted(self.cumulated, rng.random(len(owner)))
        key = np.unique(owner * NUM_TERMS + term)
        owner, term = np.divmod(key, NUM_TERMS)
        # Most headings have no qualifiers, and few sets are frequent.
        chosen = (NUM_QUALIFIER_SETS * rng.random(len(key)) ** 4).astype(np.int64)
        chosen[rng.random(len(key)) < 0.6] = 0
        fields = list(ARTICLE_SCHEMA.field("mesh").type.value_type)
        headings = pa.StructArray.from_arrays(
            [
                self.names.take(pa.array(term)),
                pa.array([""]).take(pa.array(np.zeros_like(term))),
                pa.array(rng.random(len(key)) < 0.3),
                self.qualifier_sets.take(pa.array(chosen)),
            ],
            fields=fields,
        )
        lengths = np.bincount(owner, minlength=num_articles)
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(bounds), headings)


def articles_of(pmid: np.ndarray, mesh: pa.Array, rng: np.random.Generator) -> pa.RecordBatch:
    number = pc.cast(pa.array(pmid // 2 * 2), pa.string())  # so that some titles are equal
    title = pc.binary_join_element_wise("title ", number, "")
    abstract = pc.if_else(pa.array(rng.random(len(pmid)) < 0.7), "words.", "")
    vernacular = pc.if_else(pa.array(rng.random(len(pmid)) < 0.01), "titre", "")
    columns = {
        "pmid": pa.array(pmid),
        "version": pa.array(np.ones(len(pmid), np.int32)),
        "line": pa.array(np.arange(len(pmid))),
        "title": title,
        "vernacular_title": vernacular,
        "abstract": abstract,
        "year": pa.array(rng.integers(1950, 2026, len(pmid)).astype(np.int16)),
        "mesh": mesh,
    }
    return pa.record_batch(columns, schema=ARTICLE_SCHEMA)


def simulate(folder: Path, num_articles: int) -> dict[str, Any]:
    """Write the parts, and their reports into reports.json."""
    rng = np.random.default_rng(1)
    vocabulary = Vocabulary()
    parts = folder / "parts"
    parts.mkdir()
    # PMIDs have gaps: 36 million articles, and numbers up to 41 million.
    pmid_A = 1 + np.flatnonzero(rng.random(int(num_articles * 1.15)) < 0.9)[:num_articles]
    revised = rng.choice(pmid_A, int(REVISED_SHARE * num_articles))
    files = [
        pmids[first : first + CITATIONS_PER_FILE]
        for pmids in (pmid_A, revised)
        for first in range(0, len(pmids), CITATIONS_PER_FILE)
    ]
    reports = []
    drawn: list[pa.Array] = []
    for number, pmids in enumerate(files):
        if len(drawn) < NUM_DRAWN_FILES:
            drawn.append(vocabulary.mesh(min(CITATIONS_PER_FILE, num_articles), rng))
        mesh = drawn[number % len(drawn)].slice(0, len(pmids))
        path = parts / f"pubmed{number:05d}.arrow"
        is_update = number * CITATIONS_PER_FILE >= num_articles
        deleted = rng.choice(pmid_A, 50 * is_update).tolist()
        batch = articles_of(pmids, mesh, rng)
        with PartWriter(path, {}) as writer:
            for first in range(0, len(pmids), ROWS_PER_BATCH):
                writer.add(batch.slice(first, ROWS_PER_BATCH), deleted if first == 0 else [])
            writer.finish(Quarantine())
        report = FileReport(path.name, str(path), len(pmids), len(pmids), len(deleted), {}, "")
        reports.append(report._asdict())
    (folder / "reports.json").write_text(json.dumps(reports))
    return {"part_bytes": size_of(parts)}


def merge(folder: Path, num_articles: int | None = None) -> dict[str, Any]:
    """Merge the parts into a store, as ``prepare.py medline`` does, and check the number of articles."""
    reports = [FileReport(**report) for report in json.loads((folder / "reports.json").read_text())]
    with Draft(folder / "store") as draft, Watch(lambda: size_of(draft.folder)) as disk:
        merged = merge_parts(reports, draft.folder)
        store = write_articles(draft, reports, merged, ArticleConfig(), {})
    counts = store.manifest["counts"]
    assert num_articles in (None, counts["rows"] + merged.num_deleted), counts
    return {"counts": counts, "draft_peak_bytes": disk.peak, "store_bytes": size_of(store.path)}


def plan(folder: Path, num_articles: int) -> dict[str, Any]:
    """Collate steps at the begin, in the middle and at the end of an epoch."""
    store = open_store(folder / "store", ArticleStore)
    settings = PairPlanConfig(fields=("title", "abstract"), stop_terms="check_tags")
    assert len(store.pmid_N) == store.num_rows  # so that pyarrow has loaded its libraries
    before = anonymous_bytes()
    started = time.process_time()
    collate = PairCollate.of(
        store, settings, TextConfig(), letters, seed=0, reading="letters", num_steps=1
    )
    num_steps = int(PairPlan(store, settings, 0).steps_per_epoch)
    planned = time.process_time()
    num_collated = 0
    for position in (0, num_steps // 2, num_steps - STEPS_PER_POSITION):
        for step in range(position, position + STEPS_PER_POSITION):
            collate(step, 0, 8)
            num_collated += 1
    return {
        "private_bytes": anonymous_bytes() - before,
        "plan_seconds": planned - started,
        "step_seconds": (time.process_time() - planned) / num_collated,
    }


def letters(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """A tokenizer: one token for each byte."""
    encoded = [text.encode() for text in texts]
    indptr = np.concatenate([[0], np.cumsum([len(text) for text in encoded])])
    return np.frombuffer(b"".join(encoded), np.uint8).astype(np.uint16), indptr


def anonymous_bytes() -> int:
    """Memory of this process that is its own: no file's pages, which all processes share."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def size_of(folder: Path) -> int:
    """Bytes on disk of a folder's files, holes not counted."""
    total = 0
    for path in folder.iterdir():
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # a bucket that was removed meanwhile
    return total


class Watch:
    """The peak of a quantity, looked at every 50 ms."""

    def __init__(self, quantity: Callable[[], int]) -> None:
        self.peak = 0
        self._quantity = quantity
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            try:
                self.peak = max(self.peak, self._quantity())
            except FileNotFoundError:
                continue  # the draft became the store


STEPS = {"simulate": simulate, "merge": merge, "plan": plan}


def run_step(name: str, folder: Path, num_articles: int) -> dict[str, Any]:
    """Run a step in a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, "--step", name]
    command += ["--folder", str(folder), "--articles", str(num_articles)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} failed: {done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measured(name: str, folder: Path, num_articles: int) -> dict[str, Any]:
    wall = time.perf_counter()
    with Watch(anonymous_bytes) as memory:
        facts = STEPS[name](folder, num_articles)
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    facts["peak_bytes"] = 1024 * peak
    facts["anonymous_bytes"] = memory.peak
    facts["core_seconds"] = time.process_time()
    facts["wall_seconds"] = time.perf_counter() - wall
    return facts


def report(limit: str, ratio: float, note: str) -> None:
    ratio = float(f"{ratio:.3g}")
    result = {"row": "P37", "peer": limit, "median_ratio": ratio, "min_ratio": ratio, "note": note}
    print(json.dumps(result), flush=True)


def run(folder: Path, num_articles: int) -> None:
    """Simulate, merge and plan, print two rows, and remove everything."""
    folder.mkdir(parents=True)
    try:
        made = run_step("simulate", folder, num_articles)
        merged = run_step("merge", folder, num_articles)
        shutil.rmtree(folder / "parts")
        planned = run_step("plan", folder, num_articles)
    finally:
        shutil.rmtree(folder)
    counts = merged["counts"]
    size = f"{counts['rows']:,} articles, {counts['article_terms']:,} terms of them"
    report(
        f"2 GiB of peak RSS, merging {num_articles:,} articles",
        PEAK_LIMIT_BYTES / merged["peak_bytes"],
        f"{size}, short texts: peak RSS {merged['peak_bytes'] / 2**20:,.0f} MiB (anonymous "
        f"{merged['anonymous_bytes'] / 2**20:,.0f}), {merged['core_seconds']:,.0f} s of core time, "
        f"{merged['wall_seconds']:,.0f} s; disk: parts {made['part_bytes'] / 1e9:.2f} GB, beside them "
        f"{merged['draft_peak_bytes'] / 1e9:.2f} GB at the peak, the store {merged['store_bytes'] / 1e9:.2f} GB "
        f"(simulated in {made['core_seconds']:,.0f} s of core time)",
    )
    report(
        f"50 MiB private to a collating process, {num_articles:,} articles",
        PRIVATE_LIMIT_BYTES / planned["private_bytes"],
        f"{size}, titles and abstracts without check tags: {planned['private_bytes'] / 2**20:,.1f} MiB; peak RSS "
        f"{planned['peak_bytes'] / 2**20:,.0f} MiB, of which {planned['anonymous_bytes'] / 2**20:,.0f} are anonymous, "
        f"libraries included; the plan takes {planned['plan_seconds']:.1f} s of core time, a step of 384 pairs "
        f"{1000 * planned['step_seconds']:.1f} ms",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--articles", type=int, help="number of articles")
    parser.add_argument("--folder", type=Path, help="folder of the files, which are removed again")
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        print(json.dumps(measured(arguments.step, arguments.folder, arguments.articles)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        for num_articles in [arguments.articles] if arguments.articles else SIZES:
            run(Path(temporary) / str(num_articles), num_articles)


if __name__ == "__main__":
    main()
