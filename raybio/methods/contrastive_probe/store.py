"""The store: sentences for rewiring, in one or several sets, and the benchmarks of the probe.

Shape letters: N sentences in order of set, S sets, M and K some sentences. The shape letters of
benchmarks are in ``benchmark/probe_benchmark.py``.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.leakage import queries_in_sentences
from raybio.ops.segments import indptr_from_lengths
from raybio.store.columns import (
    ArrowColumn,
    NumberColumn,
    TextColumn,
    column_tables,
    compact_int,
    numbered_texts,
)
from raybio.store.prefetch import byte_lengths, take_rows
from raybio.store.store import Store
from raybio.store.word_counts import WordCounts
from raybio.store.writer import Draft

ROWS = "rows.arrow"
SETS = "sets.arrow"
WORDS = "words.arrow"

# The tables of a benchmark; their files begin with the name of the query set.
RELATIONS = "relations"
QUERIES = "queries"
ANSWERS = "answers"
NAMES = "names"
NAME_CUIS = "name_cuis"
CUIS = "cuis"

_DEFAULT_PROMPT = "default_prompt"


class ClozeStore(Store):
    """An open store of sentences."""

    kind = "sentences"

    input_fields = ("text",)

    text = ArrowColumn(ROWS, "text", pa.large_string())
    """Sentences, words separated by single spaces."""

    set_names = TextColumn(SETS, "name")
    """Names of the sentence sets (S,), after their files."""

    num_rows_S = NumberColumn(SETS, "num_rows", np.int64)
    """Number of sentences of each set."""

    count_by_word = WordCounts(WORDS)
    """Counts of the most frequent words, for a tokenizer that is trained from scratch."""

    def inputs(self, field: str, start: int, end: int) -> tuple[pa.Array, pa.Array]:
        """Return numbers, from 1, and texts of some sentences."""
        return numbered_texts(self.text, start, end)

    def sentences(self, row_M: np.ndarray) -> list[str]:
        """Return sentences, words separated by single spaces."""
        return [str(text) for text in take_rows(self.text, row_M).to_pylist()]

    def sentence_lengths(self, row_M: np.ndarray) -> np.ndarray:
        """Return the bytes of sentences (M,)."""
        return byte_lengths(self.text, row_M)

    def equals(self, row_M: np.ndarray, other_K: np.ndarray) -> np.ndarray:
        """Return whether the text of each row (M,) equals that of some row of ``other_K``."""
        others = self.text.take(pa.array(other_K))
        is_equal_M = pc.is_in(self.text.take(pa.array(row_M)), value_set=others)
        return is_equal_M.to_numpy(zero_copy_only=False)

    @cached_property
    def set_bounds_S1(self) -> np.ndarray:
        """Set s holds the rows ``set_bounds_S1[s]`` to ``set_bounds_S1[s + 1]``, int64."""
        return indptr_from_lengths(self.num_rows_S)

    @cached_property
    def benchmarks(self) -> dict[str, ProbeBenchmark]:
        """Name of a query set ("full", "hard") -> its benchmark; empty if prepared without one."""
        return {name: self._benchmark(name) for name in self.manifest["query_sets"]}

    def _benchmark(self, query_set: str) -> ProbeBenchmark:
        def table(name: str) -> pa.RecordBatch:
            return self._batch(_file(query_set, name))

        relations = table(RELATIONS)
        queries = table(QUERIES)
        names = table(NAMES)
        default_prompts = None
        if _DEFAULT_PROMPT in relations.schema.names:
            default_prompts = tuple(relations.column(_DEFAULT_PROMPT).to_pylist())
        return ProbeBenchmark(
            relations=tuple(relations.column("name").to_pylist()),
            prompts=tuple(relations.column("prompt").to_pylist()),
            names=tuple(names.column("name").to_pylist()),
            is_tail_C=names.column("is_tail").to_numpy(zero_copy_only=True).view(np.bool_),
            relation_Q=queries.column("relation").to_numpy(zero_copy_only=True),
            head_Q=queries.column("head").to_numpy(zero_copy_only=True),
            indptr_Q1=indptr_from_lengths(queries.column("num_answers").to_numpy()),
            answer_P=table(ANSWERS).column("name").to_numpy(zero_copy_only=True),
            cuis=tuple(table(CUIS).column("cui").to_pylist()),
            cui_indptr_C1=indptr_from_lengths(names.column("num_cuis").to_numpy()),
            cui_E=table(NAME_CUIS).column("cui").to_numpy(zero_copy_only=True),
            default_prompts=default_prompts,
        )


def commit_sentences(
    draft: Draft,
    *,
    sets: Mapping[str, Sequence[str]],
    count_by_word: Mapping[str, int],
    benchmarks: Mapping[str, ProbeBenchmark],
    provenance: dict[str, Any],
) -> ClozeStore:
    """Write and commit a store of sentences.

    Args:
        draft: the draft of the store.
        sets: name of a set -> its sentences.
        count_by_word: as ``ClozeStore.count_by_word``.
        benchmarks: name of a query set -> its benchmark.
        provenance: more entries of the manifest.

    Raises:
        StoreError: if it cannot be written.
    """
    sentences = [sentence for sentences_of_set in sets.values() for sentence in sentences_of_set]
    num_rows_S = np.array([len(sentences_of_set) for sentences_of_set in sets.values()], np.int64)
    tables = column_tables(
        ClozeStore,
        {
            "text": sentences,
            "set_names": list(sets),
            "num_rows_S": num_rows_S,
            "count_by_word": count_by_word,
        },
    )
    counts = {"rows": len(sentences), "sentence_sets": len(sets)}
    leakage: dict[str, int] = {}
    for query_set, benchmark in benchmarks.items():
        for table, columns in _benchmark_tables(benchmark).items():
            tables[_file(query_set, table)] = columns
        counts[f"{query_set}_queries"] = len(benchmark.head_Q)
        counts[f"{query_set}_names"] = len(benchmark.names)
        leakage[f"{query_set}_queries_in_sentences"] = queries_in_sentences(benchmark, sentences)
    more = {"query_sets": list(benchmarks), "leakage": leakage}
    return draft.commit(ClozeStore, tables, counts, provenance | more)


def _file(query_set: str, table: str) -> str:
    return f"{query_set}.{table}.arrow"


def _benchmark_tables(benchmark: ProbeBenchmark) -> dict[str, dict[str, pa.Array]]:
    relations = {"name": pa.array(benchmark.relations), "prompt": pa.array(benchmark.prompts)}
    # A benchmark without its own default prompts gives the same files as earlier commits.
    if benchmark.default_prompts is not None:
        relations[_DEFAULT_PROMPT] = pa.array(benchmark.default_prompts)
    return {
        RELATIONS: relations,
        QUERIES: {
            "relation": pa.array(compact_int(benchmark.relation_Q)),
            "head": pa.array(compact_int(benchmark.head_Q)),
            "num_answers": pa.array(np.diff(benchmark.indptr_Q1)),
        },
        ANSWERS: {"name": pa.array(compact_int(benchmark.answer_P))},
        NAMES: {
            "name": pa.array(benchmark.names, pa.large_string()),
            "is_tail": pa.array(benchmark.is_tail_C.astype(np.uint8)),
            "num_cuis": pa.array(np.diff(benchmark.cui_indptr_C1)),
        },
        NAME_CUIS: {"cui": pa.array(compact_int(benchmark.cui_E))},
        CUIS: {"cui": pa.array(benchmark.cuis, pa.string())},
    }
