"""Write documents into a store; memory does not grow with the length of their texts.

Arrays are spooled to files and read back in blocks. Only a few numbers and the id of
each document, and the distinct keys, are kept in memory.

Shape letters: D documents in the order they were added, N documents (rows) of the store, and the
letters of ``store``.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError
from raybio.core.randomness import derive_seed
from raybio.core.text import first_names
from raybio.methods.mtb_mccl.documents.entities import (
    DOCUMENT,
    EntityDocument,
    RawDocument,
    type_rank,
)
from raybio.methods.mtb_mccl.documents.store import PARTS, DocumentStore, commit_documents
from raybio.ops.segments import tiles
from raybio.store.preparation import Preparation
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Ragged, Spool, mapped_array
from raybio.store.store import SPLITS
from raybio.store.word_counts import count_words

DOCUMENTS_AT_ONCE = 1000
"""Documents that are spooled together."""

ENTRIES_AT_ONCE = 1 << 20
"""Entries of a column that are numbered together."""

WORDS_FROM_DOCUMENTS = 200_000
"""At most twice this number of documents is used to count words."""

HELD_OUT = "training document that is held out (dev, test or --exclude)"
TESTED = "validation document that is a test document, too"
DUPLICATE = "duplicate document (the one with the most mentions is kept)"

COLUMNS = tuple(column for columns in PARTS.values() for column in columns)

# Columns of the facts (D, 5) that stay in memory.
SPLIT, FILE, LINE, NUM_MENTIONS, NUM_RELATIONS = range(5)


class DocumentCollector:
    """Collects documents for a store. A context manager that closes its files."""

    def __init__(self, folder: Path, *, dev_share: float | None = None, seed: int = 0) -> None:
        """Spool arrays to ``folder`` until they are written into the store.

        Args:
            folder: folder of the store's draft.
            dev_share: fraction of the training documents with relations that becomes the dev split;
                None: none.
            seed: seed of that draw.
        """
        self.folder = folder
        self._dev_share = dev_share
        self._seed = seed
        self._open_spools = ExitStack()
        self._spools = {
            name: self._open_spools.enter_context(Spool(folder / f"{name}.spool"))
            for name in ("text", *COLUMNS)
        }
        self._pending: dict[str, list[bytes]] = {name: [] for name in self._spools}
        self._pending_ids: list[str] = []
        self._pending_facts: list[tuple[int, ...]] = []
        self._ids: list[pa.Array] = []
        self._facts: list[np.ndarray] = []
        self._numbers: dict[str, dict[str, int]] = {"type": {}, "key": {}, "label": {}}
        self._number_by_file: dict[str, int] = {}
        self._is_docred: bool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open_spools.close()

    def add(self, raw: RawDocument, entities: EntityDocument, split: str, file: str) -> None:
        """Add a document to one of ``SPLITS``.

        Raises:
            DataError: if relations have a direction in some documents and none in others.
        """
        if self._is_docred not in (None, raw.is_docred):
            raise DataError(
                f"{file}: documents of DocRED and others were given together, and relations have a "
                "direction only in DocRED. Prepare a store of each."
            )
        self._is_docred = raw.is_docred
        values: dict[str, list[Any]] = {
            "start": [start for start, _ in entities.spans_M],
            "end": [end for _, end in entities.spans_M],
            "mention": [mention for mention, _ in entities.links_C],
            "entity": [entity for _, entity in entities.links_C],
            "type": list(entities.types_E),
            "key": list(entities.keys_E),
            "head": [head for head, _, _ in entities.relations_P],
            "tail": [tail for _, tail, _ in entities.relations_P],
            "label": [label for _, _, label in entities.relations_P],
        }
        for name, number_by_value in self._numbers.items():
            values[name] = [
                number_by_value.setdefault(value, len(number_by_value)) for value in values[name]
            ]
        self._pending["text"].append(raw.text.encode())
        for name in COLUMNS:
            self._pending[name].append(np.array(values[name], dtype=np.int32).tobytes())
        self._pending_ids.append(raw.document_id)
        self._pending_facts.append(
            (
                SPLITS.index(split),
                self._number_by_file.setdefault(file, len(self._number_by_file)),
                raw.line,
                len(raw.mentions),
                len(entities.relations_P),
            )
        )
        if len(self._pending_ids) == DOCUMENTS_AT_ONCE:
            self._write_pending()

    def commit(
        self,
        preparation: Preparation,
        *,
        held_out: pa.Array,
        name_by_relation: dict[str, str] | None,
        min_type_pair_relations: int,
    ) -> DocumentStore:
        """Select the documents, sort types, keys and relations, and write the store.

        Args:
            preparation: the store's draft; its quarantine receives skipped documents.
            held_out: ids of documents that are excluded from training.
            name_by_relation: id -> name of all relations, in order; None: those that occur, sorted.
            min_type_pair_relations: as ``commit_documents``.

        Raises:
            DataError: if no training document is left, no dev document is left or drawn, or a
                relation has no name.
        """
        quarantine = preparation.quarantine
        self._write_pending()
        ids = pa.chunked_array(self._ids, pa.string()).combine_chunks()
        fact_D5 = np.concatenate([np.empty((0, 5), np.uint32), *self._facts])
        self._ids.clear()
        self._facts.clear()
        if self._dev_share is not None:
            self._draw_dev(self._dev_share, ids, fact_D5, held_out)
        document_N = self._select(ids, fact_D5, held_out, quarantine)
        split_N = fact_D5[document_N, SPLIT]
        if not (split_N == 0).any():
            raise DataError(
                "no training document is left, want at least one. Skipped: " + _reasons(quarantine)
            )
        dev = SPLITS.index("dev")
        if (fact_D5[:, SPLIT] == dev).any() and not (split_N == dev).any():
            raise DataError(
                "all validation documents are test documents, too; want others in --dev, or "
                "--dev-share"
            )
        texts = self._read_back("text", document_N)
        columns = {}
        indptr_by_part = {}
        for part, names in PARTS.items():
            for name in names:
                values = self._read_back(name, document_N)
                columns[name] = values.value_T.view(np.int32)
            # The columns of a part share pointers, which count bytes: four per int32.
            indptr_by_part[part] = values.indptr_N1 // 4
        types = self._use_only("type", columns, type_rank)
        keys = self._use_only("key", columns, str)
        relations = self._relations(columns, name_by_relation)
        num_train = int((split_N == 0).sum())
        return commit_documents(
            preparation.draft,
            document_ids=ids.take(pa.array(document_N)),
            texts=texts,
            split_N=split_N,
            indptr_by_part=indptr_by_part,
            columns=columns,
            entity_types=types,
            entity_keys=keys,
            relation_names=relations,
            is_docred=bool(self._is_docred),
            min_type_pair_relations=min_type_pair_relations,
            count_by_word=count_words(_sample_texts(texts, num_train)),
            provenance=preparation.provenance(),
        )

    def _write_pending(self) -> None:
        for name, spool in self._spools.items():
            spool.append(pa.array(self._pending[name], pa.large_binary()))
            self._pending[name].clear()
        self._ids.append(pa.array(self._pending_ids, pa.string()))
        self._facts.append(np.array(self._pending_facts, dtype=np.uint32).reshape(-1, 5))
        self._pending_ids.clear()
        self._pending_facts.clear()

    def _read_back(self, name: str, document_N: np.ndarray) -> Ragged:
        """Return a spooled array of the selected documents, mapped from a file."""
        spool = self._spools.pop(name)
        return spool.in_order(document_N, self.folder / f"{name}.values")

    def _draw_dev(
        self, share: float, ids: pa.Array, fact_D5: np.ndarray, held_out: pa.Array
    ) -> None:
        """Move training documents to dev, drawn by their ids alone; never a held-out one."""
        excluded = self._excluded(ids, fact_D5, held_out)
        is_candidate_D = (fact_D5[:, SPLIT] == 0) & (fact_D5[:, NUM_RELATIONS] > 0)
        is_candidate_D &= ~np.asarray(pc.is_in(ids, value_set=excluded))
        limit = int(share * 2**63)  # derive_seed is below 2**63
        drawn = [
            number
            for number in np.flatnonzero(is_candidate_D).tolist()
            if derive_seed(self._seed, "dev", ids[number].as_py()) < limit
        ]
        if not drawn:
            raise DataError(
                f"--dev-share {share:g} of {is_candidate_D.sum():,} training documents with "
                "relations drew none; want a larger share, another --seed, or validation documents "
                "by --dev"
            )
        fact_D5[drawn, SPLIT] = SPLITS.index("dev")

    @staticmethod
    def _excluded(ids: pa.Array, fact_D5: np.ndarray, held_out: pa.Array) -> pa.Array:
        """Return the ids that no training document may have."""
        return pa.concat_arrays(
            [held_out.cast(pa.string()), ids.filter(pa.array(fact_D5[:, SPLIT] != 0))]
        )

    def _select(
        self, ids: pa.Array, fact_D5: np.ndarray, held_out: pa.Array, quarantine: Quarantine
    ) -> np.ndarray:
        """Return the selected documents by split, then in the order they were added.

        Duplicates within a split, held-out training documents, and validation documents that are in
        test are skipped: test documents must neither train the model nor choose settings.
        """
        split_D = fact_D5[:, SPLIT]
        excluded = self._excluded(ids, fact_D5, held_out)
        is_held_out_D = np.asarray(pc.is_in(ids, value_set=excluded)) & (split_D == 0)
        self._skip(np.flatnonzero(is_held_out_D), HELD_OUT, ids, fact_D5, quarantine)
        in_test = ids.filter(pa.array(split_D == SPLITS.index("test")))
        is_tested_D = np.asarray(pc.is_in(ids, value_set=in_test)) & (
            split_D == SPLITS.index("dev")
        )
        self._skip(np.flatnonzero(is_tested_D), TESTED, ids, fact_D5, quarantine)
        rest = np.flatnonzero(~(is_held_out_D | is_tested_D))
        number_D = np.asarray(ids.dictionary_encode().indices)
        # For each id, the document with the most mentions comes first; lexsort is stable.
        order = rest[
            np.lexsort(
                (-fact_D5[rest, NUM_MENTIONS].astype(np.int64), number_D[rest], split_D[rest])
            )
        ]
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = (np.diff(number_D[order]) != 0) | (np.diff(split_D[order]) != 0)
        self._skip(np.sort(order[~is_first]), DUPLICATE, ids, fact_D5, quarantine)
        kept = np.sort(order[is_first])
        return kept[np.argsort(split_D[kept], kind="stable")]

    def _skip(
        self,
        skipped: np.ndarray,
        reason: str,
        ids: pa.Array,
        fact_D5: np.ndarray,
        quarantine: Quarantine,
    ) -> None:
        files = list(self._number_by_file)
        for number in np.unique(fact_D5[skipped, FILE]):
            in_file = skipped[fact_D5[skipped, FILE] == number]
            examples = [
                (int(fact_D5[document, LINE]), ids[int(document)].as_py())
                for document in in_file[: quarantine.num_examples]
            ]
            quarantine.add_many(
                DOCUMENT, reason, files[number], len(in_file), examples, is_bad=False
            )

    def _relations(
        self, columns: dict[str, np.ndarray], name_by_relation: dict[str, str] | None
    ) -> list[str]:
        """Return the names of the relations without NA, and number the labels by them, from 1."""
        used = self._use_only("label", columns, str)
        if name_by_relation is None:
            name_by_relation = {relation: relation for relation in used}
        unknown = [relation for relation in used if relation not in name_by_relation]
        if unknown:
            raise DataError(
                f"relation {unknown[0]!r} is none of those with names: "
                f"{first_names([*name_by_relation], 5)}. Give the file of relation names that "
                "belongs to these documents."
            )
        number_by_relation = {
            relation: number for number, relation in enumerate(name_by_relation, start=1)
        }
        number_U = np.array([number_by_relation[relation] for relation in used], dtype=np.int32)
        columns["label"] = number_U[columns["label"]]
        return [*name_by_relation.values()]

    def _use_only(
        self, name: str, columns: dict[str, np.ndarray], sort_key: Callable[[str], Any]
    ) -> list[str]:
        """Return the sorted values that occur in a column, and number the column by them."""
        number_by_value = self._numbers[name]
        number_V = columns[name]
        is_used = np.zeros(len(number_by_value), dtype=bool)
        for block in tiles(len(number_V), 1, ENTRIES_AT_ONCE):
            is_used[number_V[block]] = True
        values = sorted(
            (value for value, number in number_by_value.items() if is_used[number]), key=sort_key
        )
        new_number = np.zeros(len(number_by_value), dtype=np.int32)
        new_number[[number_by_value[value] for value in values]] = np.arange(len(values))
        columns[name] = mapped_array(self.folder / f"{name}.numbers", len(number_V), np.int32)
        for block in tiles(len(number_V), 1, ENTRIES_AT_ONCE):
            columns[name][block] = new_number[number_V[block]]
        return values


def _sample_texts(texts: Ragged, num_documents: int) -> Iterator[str]:
    """Yield texts of the first documents, evenly spaced if there are many."""
    column = texts.to_arrow()
    for row in range(0, num_documents, max(1, num_documents // WORDS_FROM_DOCUMENTS)):
        yield column[row].as_py().decode()


def _reasons(quarantine: Quarantine) -> str:
    counts = quarantine.count_by_reason.items()
    return "; ".join(f"{reason}: {count:,}" for reason, count in counts) or "nothing"
