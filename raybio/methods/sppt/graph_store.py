"""Stores of graphs: rows sorted by group, so that a group is one range of them, and their links as CSR.

What a row holds beside its id and group is the business of the kinds of store:
    ``protein_store.py``,
``linked_text_store.py``.

Shape letters: N rows, E held-out links.

From records as they were read to the sorted rows of a store, in bounded memory.

Letters go through a spool file on disk; in memory stay ids, lengths and links.

Shape letters: N proteins or texts in reading order, R rows of the store, S spooled sequences, E
links.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError, StoreError
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph.splits import hold_out_links
from raybio.store.columns import ArrowColumn, NumberColumn, TextColumn
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Ragged, Spool
from raybio.store.store import Store, open_store
from raybio.store.writer import Draft

ROWS, GROUPS, INDPTR, INDICES, HELDOUT = (
    "rows.arrow",
    "groups.arrow",
    "indptr.arrow",
    "indices.arrow",
    "heldout.arrow",
)


FILES = (ROWS, GROUPS, INDPTR, INDICES, HELDOUT)


class GraphStore(Store):
    """An open store of linked rows."""

    keys = ArrowColumn(ROWS, "key", pa.large_string())
    """Ids of the rows."""

    group_N = NumberColumn(ROWS, "group")
    """Group number of each row, int32, ascending."""

    group_names = TextColumn(GROUPS, "name")
    """Name of each group: a species' taxid, for instance."""

    group_labels = TextColumn(GROUPS, "label")
    """Display name of each group: the species' name where a species table gave it, else the taxid."""

    link_indptr_N1 = NumberColumn(INDPTR, "indptr")
    link_index_L = NumberColumn(INDICES, "indices")

    heldout = NumberColumn(HELDOUT, "heldout", width=2)
    """Held-out links (E, 2), u < v; none of them is in ``graph``."""

    @cached_property
    def graph(self) -> Graph:
        """The training graph, over mapped CSR arrays."""
        return Graph(self.link_indptr_N1, self.link_index_L, self.group_N)


def open_graph(path: str | Path) -> GraphStore:
    """Open a store of linked rows, whatever they hold.

    Raises:
        StoreError: as ``open_store``, and if it is of a kind without links.
    """
    store = open_store(path, GraphStore)
    if INDPTR not in store.manifest["files"]:
        raise StoreError(
            f"{path}: is a store of {store.manifest['kind']}, which has no links; want proteins "
            "or articles"
        )
    return store


@dataclass(frozen=True)
class LinkedRows:
    """What every kind of graph store is written from.

    Attributes:
        keys: id of each row (N,), strings.
        content: bytes of each row: residues, or a text; may be mapped from a file.
        group_N: group number of each row, ascending.
        group_names: name of each group.
        group_labels: what people call it.
        graph: training graph over the rows.
        heldout_E2: links (E, 2) that are kept out of it.

    Raises:
        StoreError: if the rows are not sorted by group.
    """

    keys: pa.Array
    content: Ragged
    group_N: np.ndarray
    group_names: list[str]
    group_labels: list[str]
    graph: Graph
    heldout_E2: np.ndarray

    def __post_init__(self) -> None:
        if len(self.group_N) and (np.diff(self.group_N) < 0).any():
            raise StoreError("group_N: rows must be sorted by group before they are written")

    def columns(self) -> dict[str, Any]:
        """Return the values of the columns that every ``GraphStore`` declares, by attribute."""
        return {
            "keys": self.keys,
            "group_N": self.group_N,
            "group_names": self.group_names,
            "group_labels": self.group_labels,
            "link_indptr_N1": self.graph.indptr,
            "link_index_L": self.graph.indices,
            "heldout": self.heldout_E2,
        }

    def counts(self, content: str) -> dict[str, int]:
        """What the manifest counts; ``content``: what the bytes of the rows are called."""
        return {
            "rows": len(self.keys),
            content: int(self.content.indptr_N1[-1]),
            "groups": len(self.group_names),
            "links": int(self.graph.num_edges),
            "heldout_links": len(self.heldout_E2),
        }


G = TypeVar("G", bound=GraphStore)


Commit = Callable[[Draft, LinkedRows, dict[str, Any]], G]
"""(draft, rows, provenance) -> the store."""


class LinkCollector:
    """Undirected links between numbered proteins; pairs with itself and repetitions are set aside under their ids."""

    def __init__(self, quarantine: Quarantine, keys: pa.Array) -> None:
        """Start empty; ``keys`` are the proteins' ids."""
        self._quarantine, self._keys = quarantine, keys
        self._blocks: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, u_E: np.ndarray, v_E: np.ndarray, line_E: np.ndarray, file: str) -> None:
        """Links between proteins ``u`` and ``v``, from the given lines; pairs of a protein with itself are dropped."""
        is_self = u_E == v_E
        pair = np.stack([np.minimum(u_E, v_E), np.maximum(u_E, v_E)], axis=1)
        self._set_aside(is_self, "self pair (dropped)", pair, line_E, file)
        pair = pair[~is_self]
        self._blocks.append((pair.astype(np.int64), line_E[~is_self]))

    def merged(self, file: str) -> np.ndarray:
        """All distinct links (E, 2), u < v, in ascending order; repetitions are counted, in either direction."""
        if not self._blocks:
            return np.empty((0, 2), dtype=np.int64)
        pair = np.concatenate([block for block, _ in self._blocks])
        line = np.concatenate([lines for _, lines in self._blocks])
        self._blocks.clear()
        num_nodes = int(pair.max(initial=-1)) + 1
        code = pair[:, 0] * num_nodes + pair[:, 1]
        order = np.argsort(code, kind="stable")
        is_first = np.ones(len(code), dtype=bool)
        is_first[order[1:]] = np.diff(code[order]) != 0
        self._set_aside(~is_first, "duplicate link (merged)", pair, line, file)
        return pair[order[is_first[order]]]

    def _set_aside(
        self, is_here_E: np.ndarray, reason: str, pair_E2: np.ndarray, line_E: np.ndarray, file: str
    ) -> None:
        """Count links that sound files hold too, and are left out."""
        first = np.flatnonzero(is_here_E)[: self._quarantine.num_examples]
        examples = [
            (line, " ".join(self._keys.take(pa.array(pair)).to_pylist()))
            for line, pair in zip(line_E[first].tolist(), pair_E2[first], strict=True)
        ]
        self._quarantine.add_many(
            "link", reason, file, int(is_here_E.sum()), examples, is_bad=False
        )


class Corpus(NamedTuple):
    """What a reader hands over: proteins, or texts.

    Attributes:
        keys: ids (N,).
        group_N: group number of each.
        spooled_N: the number of its sequence or text in the spool, -1 where there is none.
        edge_E2: distinct links between them.
        group_names: name (taxid) of each group.
        group_labels: what people call it.
        noun: what two rows with content are called, for errors.
    """

    keys: pa.Array
    group_N: np.ndarray
    spooled_N: np.ndarray
    edge_E2: np.ndarray
    group_names: list[str]
    group_labels: list[str]
    noun: str = "proteins with a sequence"


def assemble(
    corpus: Corpus,
    spool: Spool,
    draft: Draft,
    *,
    commit: Commit[G],
    heldout_share: float,
    seed: int,
    provenance: dict[str, Any],
) -> G:
    """Keep rows that have content and a link, sort them by group, hold links out, write the store.

    Args:
        corpus: rows and links; the order of its rows is kept within a group.
        spool: their content.
        draft: where the store is written.
        commit: writes the kind of store.
        heldout_share: share of each group's links that is kept out of the training graph.
        seed: which of them.
        provenance: the manifest's account of the input.

    Raises:
        DataError: if nothing is left.
    """
    has_content_N = corpus.spooled_N >= 0
    edge_E2 = corpus.edge_E2[has_content_N[corpus.edge_E2].all(axis=1)]
    if len(edge_E2) == 0:
        raise DataError(
            f"no link between two {corpus.noun} is left of {len(corpus.edge_E2):,} links and "
            f"{len(corpus.keys):,} rows: do the ids of the two inputs match?"
        )
    is_linked_N = np.zeros(len(corpus.keys), dtype=bool)
    is_linked_N[edge_E2] = True
    row_R = np.flatnonzero(is_linked_N)
    row_R = row_R[np.argsort(corpus.group_N[row_R], kind="stable")]
    row_N = np.full(len(corpus.keys), -1, dtype=np.int64)
    row_N[row_R] = np.arange(len(row_R))
    used_G, group_R = np.unique(corpus.group_N[row_R], return_inverse=True)
    group_R = group_R.astype(np.int32)
    edge_E2 = np.sort(row_N[edge_E2], axis=1)
    is_heldout_E = hold_out_links(
        edge_E2, len(row_R), group_R, share=heldout_share, rng=np.random.default_rng(seed)
    )
    training_E2, heldout_E2 = edge_E2[~is_heldout_E], edge_E2[is_heldout_E]
    graph = Graph.from_edges(training_E2, len(row_R), group_R)
    rows = LinkedRows(
        keys=corpus.keys.take(pa.array(row_R)),
        content=spool.in_order(corpus.spooled_N[row_R], draft.folder / "letters"),
        group_N=group_R,
        group_names=[corpus.group_names[group] for group in used_G],
        group_labels=[corpus.group_labels[group] for group in used_G],
        graph=graph,
        heldout_E2=heldout_E2,
    )
    return commit(draft, rows, provenance)


def number_groups(names: pa.Array) -> tuple[np.ndarray, list[str]]:
    """Group number of each name, and the distinct names in order (numbers by value, then words)."""
    encoded = names.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    ordered = sorted(distinct, key=group_order)
    rank = {name: number for number, name in enumerate(ordered)}
    number_of_code = np.array([rank[name] for name in distinct], dtype=np.int32)
    return number_of_code[np.asarray(encoded.indices)] if distinct else np.empty(
        0, dtype=np.int32
    ), ordered


def group_order(name: str) -> tuple[int, int, str]:
    """Sort key of group names: taxids by value, then anything else by text."""
    return (0, int(name), name) if name.isascii() and name.isdigit() else (1, 0, name)


def first_of_each(values: pa.Array) -> np.ndarray:
    """Where a value occurs for the first time, (N,)."""
    # Arrow numbers the values in order of appearance: a new one is larger than all before it.
    code_N = np.asarray(values.dictionary_encode().indices, dtype=np.int64)
    before_N = np.maximum.accumulate(np.concatenate([[-1], code_N]))[:-1]
    return code_N > before_N


def find(values: pa.Array, keys: pa.Array) -> np.ndarray:
    """The position of each value among ``keys``, -1 if it is not there."""
    found = pc.index_in(values.cast(keys.type), value_set=keys)
    return np.asarray(pc.fill_null(found, -1)).astype(np.int64)


def concatenated(batches: list[pa.Array], kind: pa.DataType) -> pa.Array:
    """Arrays of strings as one, whatever their total size."""
    return (
        pa.concat_arrays([batch.cast(kind) for batch in batches])
        if batches
        else pa.array([], type=kind)
    )
