"""Prepare a store: sentence files and a benchmark in MedLAMA's layout in, a committed store out."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from raybio.core.digest import sha256_of
from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.benchmark.medlama import medlama_files, read_medlama
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.benchmark.prompts import prompt_files
from raybio.methods.contrastive_probe.sentences import read_sentences
from raybio.methods.contrastive_probe.store import ClozeStore, commit_sentences
from raybio.store.data_sets import table_files
from raybio.store.demo_corpus import cached_store
from raybio.store.manifest import SCHEMA_VERSION
from raybio.store.preparation import preparing
from raybio.store.sources import check_readable_files
from raybio.store.word_counts import count_words

VERSION = 3
"""Increased whenever the same files give other sentences or another store."""


def cached_sentences(
    directory: str | Path, files: Sequence[Path], benchmark: Path | None = None
) -> ClozeStore:
    """Return the store of these files inside ``directory``, prepared if missing.

    Raises:
        DataError: as ``prepare_sentences``.
        StoreError: if the directory cannot be written.
    """
    check_readable_files(files)
    sources = [file for path in files for file in table_files(path)]
    if benchmark is not None:
        sources += _benchmark_files(benchmark)
    lines = [f"{path.name}:{sha256_of(path)}\n" for path in sources]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    name = f"sentences-{VERSION}.{SCHEMA_VERSION}-{digest[:16]}"

    def make(_: Path, store: Path) -> ClozeStore:
        return prepare_sentences(store, files, benchmark)

    return cached_store(Path(directory) / name, ClozeStore, make)


def prepare_sentences(
    out: str | Path, files: Sequence[Path], benchmark: Path | None = None
) -> ClozeStore:
    """Make a store of sentence files, each a set, and of a benchmark in MedLAMA's layout.

    Args:
        out: folder of the store.
        files: one sentence a line, or tables with a column ``text`` or ``sentence``.
        benchmark: folder of the benchmark; all its query sets are read. None: the store can be
            trained on, but nothing is probed.

    Raises:
        DataError: if a file is missing, truncated or without sentences, two have one name, or the
            benchmark cannot be read.
        StoreError: if the store cannot be written.
    """
    check_readable_files(files)
    count_by_name = Counter(path.name for path in files)
    for name, count in count_by_name.items():
        if count > 1:
            raise DataError(
                f"{name}: two sentence files have this name, which names their set; rename one of "
                "them"
            )
    sources = {"sentences": files}
    if benchmark is not None:
        sources["benchmark"] = _benchmark_files(benchmark)
    with preparing(out, sources, {}) as new:
        sets = {path.name: read_sentences(path, new.quarantine) for path in files}
        benchmarks: dict[str, ProbeBenchmark] = {}
        if benchmark is not None:
            for subset, tables in medlama_files(benchmark).items():
                if tables:
                    benchmarks[subset] = read_medlama(benchmark, subset)
        texts = [sentence for sentences in sets.values() for sentence in sentences]
        for query_set in benchmarks.values():
            texts += query_set.names
        return commit_sentences(
            new.draft,
            sets=sets,
            count_by_word=count_words(texts),
            benchmarks=benchmarks,
            provenance=new.provenance(),
        )


def _benchmark_files(benchmark: Path) -> list[Path]:
    """Return the tables of a benchmark and their prompts.

    Raises:
        DataError: if the folder holds no benchmark.
    """
    tables = [path for paths in medlama_files(benchmark).values() for path in paths]
    prompts = {*prompt_files(benchmark), *prompt_files(tables[0].parent)}
    return [*tables, *sorted(prompts)]
