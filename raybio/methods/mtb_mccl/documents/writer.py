"""Documents on their way into a store: their arrays go through files, and memory does not grow with their texts.

In memory stay, of each document, some numbers and its id, and the distinct keys; and in the end, while the documents of
each key are found, some 27 bytes of each entity of each document (8 GB for 300 million).

Shape letters: D documents as they were added, N rows of the store, and those of ``document_store.py``.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError
from raybio.core.randomness import derive_seed
from raybio.methods.mtb_mccl.documents.entities import (
    DOCUMENT,
    EntityDocument,
    RawDocument,
    type_rank,
)
from raybio.methods.mtb_mccl.documents.store import PARTS, DocumentStore, commit_documents
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Ragged, Spool
from raybio.store.store import SPLITS
from raybio.store.word_counts import count_words
from raybio.store.writer import Draft

DOCUMENTS_AT_ONCE = 1000


WORDS_FROM_DOCUMENTS = 200_000


HELD_OUT = "training document that is held out (dev, test or --exclude)"


DUPLICATE = "document that is there twice (the one with the most mentions is kept)"


COLUMNS = tuple(column for columns in PARTS.values() for column in columns)


# What of a document stays in memory, in this order.
SPLIT, FILE, LINE, NUM_MENTIONS, NUM_RELATIONS = range(5)


class DocumentCollector:
    """Collects documents for a store. As a context it closes its files."""

    def __init__(self, folder: Path, *, dev_share: float | None = None, seed: int = 0) -> None:
        """Keep arrays in ``folder`` until they are written into the store.

        Args:
            folder: of the store's draft.
            dev_share: share of the training documents with relations that become validation documents; None: none.
            seed: which of them.
        """
        self.folder, self._dev_share, self._seed = folder, dev_share, seed
        self._spools = {name: Spool(folder / f"{name}.spool") for name in ("text", *COLUMNS)}
        self._pending: dict[str, list[bytes]] = {name: [] for name in self._spools}
        self._pending_ids, self._pending_facts = list[str](), list[tuple[int, ...]]()
        self._ids, self._facts = list[pa.Array](), list[np.ndarray]()
        self._numbers: dict[str, dict[str, int]] = {"type": {}, "key": {}, "label": {}}
        self._number_by_file: dict[str, int] = {}
        self._is_docred: bool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for spool in self._spools.values():
            spool.__exit__(*error)

    def add(self, raw: RawDocument, entities: EntityDocument, split: str, file: str) -> None:
        """Take a document of one of ``SPLITS``.

        Raises:
            DataError: if relations have a direction in some documents and none in others.
        """
        if self._is_docred not in (None, raw.is_docred):
            raise DataError(
                f"{file}: documents of DocRED and others were given together, and relations have a direction only in "
                "DocRED. Prepare a store of each."
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
        for name, numbers in self._numbers.items():
            values[name] = [numbers.setdefault(value, len(numbers)) for value in values[name]]
        self._pending["text"].append(raw.text.encode())
        for name in COLUMNS:
            self._pending[name].append(np.array(values[name], dtype=np.int32).tobytes())
        self._pending_ids.append(raw.document_id)
        number = self._number_by_file.setdefault(file, len(self._number_by_file))
        facts = (
            SPLITS.index(split),
            number,
            raw.line,
            len(raw.mentions),
            len(entities.relations_P),
        )
        self._pending_facts.append(facts)
        if len(self._pending_ids) == DOCUMENTS_AT_ONCE:
            self._write_pending()

    def commit(
        self,
        draft: Draft,
        quarantine: Quarantine,
        *,
        held_out: pa.Array,
        name_by_relation: dict[str, str] | None,
        min_type_pair_relations: int,
        provenance: dict[str, Any],
    ) -> DocumentStore:
        """Choose the documents, number types, keys and relations in order, and write the store.

        Args:
            draft: where.
            quarantine: takes documents that are left out.
            held_out: ids of documents that are kept out of training.
            name_by_relation: all relations, in order, and their names; None: those that occur, by name.
            min_type_pair_relations: as ``commit_documents``.
            provenance: further entries of the manifest; what was set aside is added.

        Raises:
            DataError: if no training document is left, no validation document was drawn, or a relation has no name.
        """
        self._write_pending()
        ids = pa.chunked_array(self._ids, pa.string()).combine_chunks()
        fact_D5 = np.concatenate([np.empty((0, 5), np.int64), *self._facts])
        if self._dev_share is not None:
            self._draw_dev(self._dev_share, ids, fact_D5, held_out)
        document_N = self._chosen(ids, fact_D5, held_out, quarantine)
        split_N = fact_D5[document_N, SPLIT]
        if not (split_N == 0).any():
            raise DataError(
                "no training document is left, want at least one. What was set aside: "
                + _reasons(quarantine)
            )
        ragged = {
            name: spool.in_order(document_N, self.folder / f"{name}.values")
            for name, spool in self._spools.items()
        }
        columns = {name: ragged[name].value_T.view(np.int32) for name in COLUMNS}
        types, columns["type"] = _only_used(self._numbers["type"], columns["type"], type_rank)
        keys, columns["key"] = _only_used(self._numbers["key"], columns["key"], str)
        relations, columns["label"] = self._relations(columns["label"], name_by_relation)
        return commit_documents(
            draft,
            document_ids=ids.take(pa.array(document_N)),
            texts=ragged["text"],
            split_N=split_N,
            indptr_by_part={part: ragged[names[0]].indptr_N1 // 4 for part, names in PARTS.items()},
            columns=columns,
            entity_types=types,
            entity_keys=keys,
            relation_names=relations,
            is_docred=bool(self._is_docred),
            min_type_pair_relations=min_type_pair_relations,
            count_by_word=count_words(_some_texts(ragged["text"], int((split_N == 0).sum()))),
            provenance=provenance | {"quarantine": quarantine.summary()},
        )

    def _write_pending(self) -> None:
        for name, spool in self._spools.items():
            spool.append(pa.array(self._pending[name], pa.large_binary()))
            self._pending[name].clear()
        self._ids.append(pa.array(self._pending_ids, pa.string()))
        self._facts.append(np.array(self._pending_facts, dtype=np.int64).reshape(-1, 5))
        self._pending_ids.clear()
        self._pending_facts.clear()

    def _draw_dev(
        self, share: float, ids: pa.Array, fact_D5: np.ndarray, held_out: pa.Array
    ) -> None:
        """Make validation documents of training ones, by their ids alone; never of one that is held out."""
        others = self._held_out(ids, fact_D5, held_out)
        may_be_D = (fact_D5[:, SPLIT] == 0) & (fact_D5[:, NUM_RELATIONS] > 0)
        may_be_D &= ~np.asarray(pc.is_in(ids, value_set=others))
        limit = int(share * 2**63)  # derive_seed is below 2**63
        drawn = [
            number
            for number in np.flatnonzero(may_be_D).tolist()
            if derive_seed(self._seed, "dev", ids[number].as_py()) < limit
        ]
        if not drawn:
            raise DataError(
                f"--dev-share {share:g} of {may_be_D.sum():,} training documents with relations drew none; want a "
                "larger share, another --seed, or validation documents by --dev"
            )
        fact_D5[drawn, SPLIT] = SPLITS.index("dev")

    @staticmethod
    def _held_out(ids: pa.Array, fact_D5: np.ndarray, held_out: pa.Array) -> pa.Array:
        """Ids that no training document may have."""
        return pa.concat_arrays(
            [held_out.cast(pa.string()), ids.filter(pa.array(fact_D5[:, SPLIT] != 0))]
        )

    def _chosen(
        self, ids: pa.Array, fact_D5: np.ndarray, held_out: pa.Array, quarantine: Quarantine
    ) -> np.ndarray:
        """Documents by split and then as they were added: none twice in a split, none held out in training."""
        split_D = fact_D5[:, SPLIT]
        others = self._held_out(ids, fact_D5, held_out)
        is_held_out = np.asarray(pc.is_in(ids, value_set=others)) & (split_D == 0)
        self._leave_out(np.flatnonzero(is_held_out), HELD_OUT, ids, fact_D5, quarantine)
        rest = np.flatnonzero(~is_held_out)
        number_D = np.asarray(ids.dictionary_encode().indices)
        # The first of those with the most mentions comes first: lexsort keeps the order of equals.
        order = rest[np.lexsort((-fact_D5[rest, NUM_MENTIONS], number_D[rest], split_D[rest]))]
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = (np.diff(number_D[order]) != 0) | (np.diff(split_D[order]) != 0)
        self._leave_out(np.sort(order[~is_first]), DUPLICATE, ids, fact_D5, quarantine)
        kept = np.sort(order[is_first])
        return kept[np.argsort(split_D[kept], kind="stable")]

    def _leave_out(
        self,
        document_R: np.ndarray,
        reason: str,
        ids: pa.Array,
        fact_D5: np.ndarray,
        quarantine: Quarantine,
    ) -> None:
        files = list(self._number_by_file)
        for number in np.unique(fact_D5[document_R, FILE]):
            here = document_R[fact_D5[document_R, FILE] == number]
            examples = [
                (int(fact_D5[one, LINE]), ids[int(one)].as_py())
                for one in here[: quarantine.num_examples]
            ]
            quarantine.add_many(DOCUMENT, reason, files[number], len(here), examples, is_bad=False)

    def _relations(
        self, label_P: np.ndarray, names: dict[str, str] | None
    ) -> tuple[list[str], np.ndarray]:
        """Names of the relations in order, without NA, and the number of each relation, from 1."""
        found, label_P = _only_used(self._numbers["label"], label_P, str)
        if names is None:
            return found, label_P + 1
        unknown = [one for one in found if one not in names]
        if unknown:
            raise DataError(
                f"relation {unknown[0]!r} is none of those with names: {', '.join([*names][:5])} ... "
                "Give the file of relation names that belongs to these documents."
            )
        number_by_relation = {one: number for number, one in enumerate(names, start=1)}
        return [*names.values()], np.array(
            [number_by_relation[one] for one in found], dtype=np.int32
        )[label_P]


def _only_used(
    number_by_name: dict[str, int], number_V: np.ndarray, order: Callable[[str], Any]
) -> tuple[list[str], np.ndarray]:
    """The names that occur among ``number_V``, in order, and places among them, int32."""
    is_used = np.zeros(len(number_by_name), dtype=bool)
    is_used[number_V] = True
    names = sorted((name for name, number in number_by_name.items() if is_used[number]), key=order)
    place = np.zeros(len(number_by_name), dtype=np.int32)
    place[[number_by_name[name] for name in names]] = np.arange(len(names))
    return names, place[number_V]


def _some_texts(texts: Ragged, num: int) -> Iterator[str]:
    """Texts of the first ``num`` documents, evenly spaced if they are many."""
    column = texts.to_arrow()
    for row in range(0, num, max(1, num // WORDS_FROM_DOCUMENTS)):
        yield column[row].as_py().decode()


def _reasons(quarantine: Quarantine) -> str:
    counts = quarantine.count_by_reason.items()
    return "; ".join(f"{reason}: {count:,}" for reason, count in counts) or "nothing"
