"""The store of sentences for rewiring, in one or several sets, and the benchmarks of rewired encoders.

Shape letters: N sentences in order of set, S sets; of the benchmark: Q queries, C names, R relations, P (query, answer)
pairs, E (name, CUI) pairs, as in ``probe_benchmark.py``.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.ops.segments import indptr_from_lengths
from raybio.store.columns import (
    ArrowColumn,
    NumberColumn,
    TextColumn,
    column_tables,
    compact_int,
)
from raybio.store.store import Store
from raybio.store.word_counts import WordCounts
from raybio.store.writer import Draft

ROWS, SETS, WORDS = "rows.arrow", "sets.arrow", "words.arrow"


RELATIONS, QUERIES, ANSWERS, NAMES, NAME_CUIS, CUIS = (
    "relations",
    "queries",
    "answers",
    "names",
    "name_cuis",
    "cuis",
)


class ClozeStore(Store):
    """An open store of sentences."""

    kind = "sentences"

    text = ArrowColumn(ROWS, "text", pa.large_string())
    """Sentences, words divided by single blanks."""

    set_names = TextColumn(SETS, "name")
    """Names of the sentence sets (S,), after their files."""

    num_rows_S = NumberColumn(SETS, "num_rows", np.int64)
    """Number of sentences of each set."""

    count_by_word = WordCounts(WORDS)
    """Counts of the most frequent words, for a tokenizer that is trained from scratch."""

    def sentences(self, row_M: np.ndarray) -> list[str]:
        """Some sentences, words divided by single blanks."""
        return [str(text) for text in self.text.take(pa.array(row_M)).to_pylist()]

    def equals(self, row_M: np.ndarray, other_K: np.ndarray) -> np.ndarray:
        """Whether each sentence of ``row_M`` has the very text of some sentence of ``other_K``, bool (M,)."""
        others = self.text.take(pa.array(other_K))
        is_equal_M = pc.is_in(self.text.take(pa.array(row_M)), value_set=others)
        return is_equal_M.to_numpy(zero_copy_only=False)

    @cached_property
    def set_bounds_S1(self) -> np.ndarray:
        """Set s holds the rows ``set_bounds_S1[s]`` to ``set_bounds_S1[s + 1]``, int64."""
        return indptr_from_lengths(self.num_rows_S)

    @cached_property
    def benchmarks(self) -> dict[str, ProbeBenchmark]:
        """What a rewired encoder is asked, by name of the query set ("full", "hard"); empty if prepared without any."""
        return {name: self._benchmark(name) for name in self.manifest["query_sets"]}

    def _benchmark(self, query_set: str) -> ProbeBenchmark:
        relations, queries, answers, names, name_cuis, cuis = (
            self._batch(_file(query_set, table))
            for table in (RELATIONS, QUERIES, ANSWERS, NAMES, NAME_CUIS, CUIS)
        )
        return ProbeBenchmark(
            relations=tuple(relations.column("name").to_pylist()),
            prompts=tuple(relations.column("prompt").to_pylist()),
            names=tuple(names.column("name").to_pylist()),
            is_tail_C=names.column("is_tail").to_numpy(zero_copy_only=True).view(np.bool_),
            relation_Q=queries.column("relation").to_numpy(zero_copy_only=True),
            head_Q=queries.column("head").to_numpy(zero_copy_only=True),
            indptr_Q1=indptr_from_lengths(queries.column("num_answers").to_numpy()),
            answer_P=answers.column("name").to_numpy(zero_copy_only=True),
            cuis=tuple(cuis.column("cui").to_pylist()),
            cui_indptr_C1=indptr_from_lengths(names.column("num_cuis").to_numpy()),
            cui_E=name_cuis.column("cui").to_numpy(zero_copy_only=True),
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
        draft: where.
        sets: name of a set -> its sentences.
        count_by_word: as ``ClozeStore.count_by_word``.
        benchmarks: what encoders are to be probed with, by name of the query set.
        provenance: further entries of the manifest.

    Raises:
        StoreError: if it cannot be written.
    """
    sentences = [sentence for one in sets.values() for sentence in one]
    tables = column_tables(
        ClozeStore,
        {
            "text": sentences,
            "set_names": list(sets),
            "num_rows_S": np.array([len(one) for one in sets.values()], np.int64),
            "count_by_word": count_by_word,
        },
    )
    counts = {"rows": len(sentences), "sentence_sets": len(sets)}
    for query_set, benchmark in benchmarks.items():
        tables |= {
            _file(query_set, table): columns
            for table, columns in _benchmark_tables(benchmark).items()
        }
        counts |= {
            f"{query_set}_queries": len(benchmark.head_Q),
            f"{query_set}_names": len(benchmark.names),
        }
    return draft.commit(ClozeStore, tables, counts, provenance | {"query_sets": list(benchmarks)})


def _file(query_set: str, table: str) -> str:
    return f"{query_set}.{table}.arrow"


def _benchmark_tables(benchmark: ProbeBenchmark) -> dict[str, dict[str, pa.Array]]:
    return {
        RELATIONS: {"name": pa.array(benchmark.relations), "prompt": pa.array(benchmark.prompts)},
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
