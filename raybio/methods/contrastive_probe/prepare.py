"""Preparing a store of sentences: sentence files and a probing benchmark in, a committed store out."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.benchmark.medlama import medlama_files, read_medlama
from raybio.methods.contrastive_probe.sentences import read_sentences
from raybio.methods.contrastive_probe.store import ClozeStore, commit_sentences
from raybio.store.demo_corpus import cached_store
from raybio.store.quarantine import Quarantine
from raybio.store.sources import check_readable_files, describe_files
from raybio.store.store import SCHEMA_VERSION, sha256_of
from raybio.store.word_counts import count_words
from raybio.store.writer import Draft

PROMPTS = "prompts.csv"


VERSION = 1
"""Rises whenever the same files give other sentences or another store of them."""


def kept_sentences(
    directory: str | Path, files: Sequence[Path], benchmark: Path | None = None
) -> ClozeStore:
    """The store of these very files inside ``directory``, prepared the first time and opened afterwards.

    Raises:
        DataError: as ``prepare_sentences``.
        StoreError: if the directory cannot be written.
    """
    check_readable_files(files)
    parts = [*files, *(() if benchmark is None else _files_of(benchmark))]
    digest = hashlib.sha256(
        "".join(f"{path.name}:{sha256_of(path)}\n" for path in parts).encode()
    ).hexdigest()

    def make(_: Path, store: Path) -> ClozeStore:
        return prepare_sentences(store, files, benchmark)

    return cached_store(
        Path(directory) / f"sentences-{VERSION}.{SCHEMA_VERSION}-{digest[:16]}", ClozeStore, make
    )


def prepare_sentences(
    out: str | Path, files: Sequence[Path], benchmark: Path | None = None, *, force: bool = False
) -> ClozeStore:
    """Make a store of sentence files, each a set of its own, and of a benchmark in MedLAMA's layout.

    Args:
        out: folder of the store.
        files: one sentence a line.
        benchmark: folder of the benchmark; its full and, where there is one, its hard query set are taken. None: the
            store can be trained on, and nothing is probed.
        force: replace a store that is there already.

    Raises:
        DataError: if a file is missing, torn or without sentences, two have one name, or the benchmark is not sound.
        StoreError: if the store cannot be written.
    """
    check_readable_files(files)
    names = [path.name for path in files]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            f"{repeated[0]}: two sentence files have this name, and sets go by names; rename one of them"
        )
    quarantine = Quarantine()
    with Draft(out, force=force) as draft:
        sets = {path.name: read_sentences(path, quarantine) for path in files}
        subsets = (
            []
            if benchmark is None
            else [subset for subset, found in medlama_files(benchmark).items() if found]
        )
        benchmarks = {
            str(subset): read_medlama(benchmark, subset) for subset in subsets if benchmark
        }
        asked = [name for one in benchmarks.values() for name in one.names]
        sources = {"sentences": describe_files(list(files))}
        if benchmark is not None:
            sources["benchmark"] = describe_files(_files_of(benchmark))
        return commit_sentences(
            draft,
            sets=sets,
            count_by_word=count_words(
                [*(sentence for one in sets.values() for sentence in one), *asked]
            ),
            benchmarks=benchmarks,
            provenance={"sources": sources, "parameters": {}, "quarantine": quarantine.summary()},
        )


def _files_of(benchmark: Path) -> list[Path]:
    """What a benchmark is made of: its tables and their prompts.

    Raises:
        DataError: if it is no folder of a benchmark.
    """
    found = medlama_files(benchmark)
    tables = [path for paths in found.values() for path in paths]
    return [*tables, *sorted({*benchmark.glob(PROMPTS), *tables[0].parent.glob(PROMPTS)})]
