"""Records as a reader returns them, and their way to the sorted rows of a store, in bounded memory.

Sequences and texts go through a spool file on disk. Ids, lengths and links stay in memory.

Shape letters: N proteins or texts in reading order, R rows of the store, G groups, E links.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from raybio.core.errors import DataError
from raybio.methods.sppt.config import HeldOut
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph.splits import hold_out_links, hold_out_nodes, newest_links
from raybio.methods.sppt.graph_store import GraphStore, LinkedRows
from raybio.methods.sppt.leakage import link_classes
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Ragged, Spool
from raybio.store.writer import Draft

G = TypeVar("G", bound=GraphStore)
Commit = Callable[[Draft, LinkedRows, dict[str, Any]], G]
"""(draft, rows, provenance) -> the store."""
Cluster = Callable[[Ragged, Path], np.ndarray]
"""(content of the rows, a folder for temporary files) -> the cluster of relatives of each row."""


class Corpus(NamedTuple):
    """The result of a reader: proteins or texts, and their links.

    Attributes:
        keys: ids (N,).
        group_N: group number of each row.
        spooled_N: number of each row's sequence or text in the spool, -1 where there is none.
        edge_E2: distinct links between rows.
        group_names: name of each group, such as a taxid.
        group_labels: display name of each group.
        noun: name of rows with content, for errors.
        date_N: date of each row, yyyymmdd with zeros for an unknown month or day, -1 where there is
            none; None: the source has no dates.
    """

    keys: pa.Array
    group_N: np.ndarray
    spooled_N: np.ndarray
    edge_E2: np.ndarray
    group_names: list[str]
    group_labels: list[str]
    noun: str = "proteins with a sequence"
    date_N: np.ndarray | None = None
    read_as: Sequence[str] = ()


MERGE_LINKS = 1 << 21
"""Fewest links that are gathered before they are merged into the distinct ones."""


class LinkCollector:
    """Undirected links between numbered rows, in 8 bytes a distinct link.

    Links are merged as they come: a file that lists both directions, or repeats a link, takes no
    more memory. Self pairs and repetitions are skipped, and counted in the quarantine as no defects
    of the file.
    """

    def __init__(self, quarantine: Quarantine, keys: pa.Array) -> None:
        """Start empty; ``keys`` are the rows' ids."""
        self._quarantine = quarantine
        self._keys = keys
        # A link u < v is the number u * (number of rows) + v.
        self._distinct = np.empty(0, dtype=np.int64)
        self._waiting: list[tuple[np.ndarray, np.ndarray, str]] = []
        self._num_waiting = 0

    def add(self, u_E: np.ndarray, v_E: np.ndarray, line_E: np.ndarray, file: str) -> None:
        """Add the links between rows ``u`` and ``v``, which stand in the given lines of a file."""
        code = np.minimum(u_E, v_E).astype(np.int64) * len(self._keys) + np.maximum(u_E, v_E)
        is_self = u_E == v_E
        self._skip(is_self, "self pair (dropped)", code, line_E, file)
        self._waiting.append((code[~is_self], line_E[~is_self], file))
        self._num_waiting += len(code)
        if self._num_waiting >= max(MERGE_LINKS, len(self._distinct) // 8):
            self._merge()

    def merged(self) -> np.ndarray:
        """Return the distinct links (E, 2), u < v, ascending; both directions are one link."""
        self._merge()
        edge_E2 = np.empty((len(self._distinct), 2), dtype=np.int64)
        np.floor_divide(self._distinct, max(len(self._keys), 1), out=edge_E2[:, 0])
        np.remainder(self._distinct, max(len(self._keys), 1), out=edge_E2[:, 1])
        return edge_E2

    def _merge(self) -> None:
        """Merge the waiting links into the distinct ones."""
        if not self._waiting:
            return
        code = np.concatenate([codes for codes, _, _ in self._waiting])
        order = np.argsort(code, kind="stable")
        ascending = code[order]
        is_new = np.ones(len(code), dtype=bool)
        is_new[1:] = ascending[1:] != ascending[:-1]
        if len(self._distinct):
            index = np.searchsorted(self._distinct, ascending)
            nearest = self._distinct[np.minimum(index, len(self._distinct) - 1)]
            is_new &= nearest != ascending
        is_repeated = np.zeros(len(code), dtype=bool)
        is_repeated[order[~is_new]] = True
        start = 0
        for codes, lines, file in self._waiting:
            block = is_repeated[start : start + len(codes)]
            self._skip(block, "duplicate link (merged)", codes, lines, file)
            start += len(codes)
        self._waiting.clear()
        self._num_waiting = 0
        merged = np.concatenate([self._distinct, ascending[is_new]])
        # Two ascending runs: the stable sort merges them.
        merged.sort(kind="stable")
        self._distinct = merged

    def _skip(
        self,
        is_skipped_E: np.ndarray,
        reason: str,
        code_E: np.ndarray,
        line_E: np.ndarray,
        file: str,
    ) -> None:
        """Count skipped links, and keep the first few as examples."""
        first = np.flatnonzero(is_skipped_E)[: self._quarantine.num_examples]
        examples = []
        for line, code in zip(line_E[first].tolist(), code_E[first].tolist(), strict=True):
            pair = pa.array(divmod(code, len(self._keys)))
            examples.append((line, " ".join(self._keys.take(pair).to_pylist())))
        num_skipped = int(is_skipped_E.sum())
        self._quarantine.add_many("link", reason, file, num_skipped, examples, is_bad=False)


def assemble(
    corpus: Corpus,
    spool: Spool,
    draft: Draft,
    *,
    commit: Commit[G],
    heldout_share: float,
    seed: int,
    provenance: dict[str, Any],
    held_out: HeldOut = "random",
    cluster: Cluster | None = None,
) -> G:
    """Write the store: rows with content and a link, sorted by group, and their split links.

    Args:
        corpus: rows and links; the order of its rows is kept within a group.
        spool: content of the rows.
        draft: folder of the store.
        commit: writer of the kind of store.
        heldout_share: fraction of each group's links that is kept out of the training graph.
        seed: seed of the draw of held-out links.
        provenance: the manifest's account of the input.
        held_out: what is held out: links at random, whole rows, whole clusters of rows, or links of
            the newest rows.
        cluster: finds relatives; None: rows are not clustered.

    Raises:
        DataError: if no link between two rows with content is left, too few rows can be held out,
            or rows have no date to split by.
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
    content = spool.in_order(corpus.spooled_N[row_R], draft.folder / "letters")
    cluster_R = None if cluster is None else cluster(content, draft.folder)
    if held_out == "date":
        is_heldout_E = _links_of_newest(edge_E2, corpus, row_R, share=heldout_share)
        provenance = provenance | {
            "training_until": _last_date(edge_E2[~is_heldout_E], corpus, row_R)
        }
    else:
        is_heldout_E = _held_out_links(
            edge_E2, group_R, cluster_R, held_out, share=heldout_share, seed=seed
        )
    graph = Graph.from_edges(edge_E2[~is_heldout_E], len(row_R), group_R)
    if cluster_R is not None:
        classes = link_classes(graph, edge_E2[is_heldout_E], cluster_R)
        leakage = classes.counts() | {"clusters": int(cluster_R.max(initial=-1)) + 1}
        provenance = provenance | {"leakage": leakage}
    rows = LinkedRows(
        keys=corpus.keys.take(pa.array(row_R)),
        content=content,
        group_N=group_R,
        group_names=[corpus.group_names[group] for group in used_G],
        group_labels=[corpus.group_labels[group] for group in used_G],
        graph=graph,
        heldout_E2=edge_E2[is_heldout_E],
        cluster_N=cluster_R,
    )
    return commit(draft, rows, provenance)


def _held_out_links(
    edge_E2: np.ndarray,
    group_R: np.ndarray,
    cluster_R: np.ndarray | None,
    held_out: HeldOut,
    *,
    share: float,
    seed: int,
) -> np.ndarray:
    """Return which links (E,) are held out.

    Raises:
        DataError: if rows are to be held out and none can be.
    """
    rng = np.random.default_rng(seed)
    if held_out == "random":
        return hold_out_links(edge_E2, len(group_R), group_R, share=share, rng=rng)
    is_alone = held_out == "proteins" or cluster_R is None
    unit_R = np.arange(len(group_R)) if is_alone else cluster_R
    assert unit_R is not None
    is_out_R = hold_out_nodes(edge_E2, unit_R, share=share, rng=rng)
    is_out_E: np.ndarray = is_out_R[edge_E2].any(axis=1)
    if share and not is_out_E.any():
        raise DataError(
            f"--held-out {held_out}: nothing can be held out: every protein or cluster of "
            f"relatives has more than {share:.0%} of the {len(edge_E2):,} links. Want a larger "
            "--heldout-share, or --held-out random"
        )
    return is_out_E


MAX_TIMES_SHARE = 3
MAX_SHARE_OF_DATE = 0.1
"""A split by date may hold out so many times the wanted share, or this share of the links."""


def _equally_precise(date_R: np.ndarray) -> np.ndarray:
    """Return dates cut to the precision that all of them have: years, months or days.

    A year alone may be any of its days, so that it cannot be before or after one of them.
    """
    known_R = date_R[date_R >= 0]
    for unit in (10_000, 100):
        if (known_R % unit == 0).any():
            return np.where(date_R < 0, date_R, date_R // unit * unit)
    return date_R


def _links_of_newest(
    edge_E2: np.ndarray, corpus: Corpus, row_R: np.ndarray, *, share: float
) -> np.ndarray:
    """Return which links (E,) are newer than a date that leaves about a share of them.

    Raises:
        DataError: if there are no dates, a linked row has none, or no date leaves about the share.
    """
    if corpus.date_N is None:
        raise DataError(
            "--split-by-date: the source has no dates. Want a column year or date in the table of "
            "articles, or OGB-MAG with raw/node-feat/paper/node_year.csv; or no --split-by-date"
        )
    date_R = _equally_precise(corpus.date_N[row_R])
    undated = np.flatnonzero(date_R < 0)
    if len(undated):
        first = corpus.keys[int(row_R[undated[0]])].as_py()
        raise DataError(
            f"--split-by-date: {len(undated):,} of {len(date_R):,} linked articles have no date, "
            f"such as {first!r}. Want a year, YYYY-MM or YYYY-MM-DD for each, or no --split-by-date"
        )
    if not share:
        return np.zeros(len(edge_E2), bool)
    try:
        is_newer_E = newest_links(edge_E2, date_R, share=share)
    except ValueError:
        raise DataError(
            f"--split-by-date: all links have the date {date_text(int(date_R.max()))}, want at "
            "least two dates"
        ) from None
    newest = is_newer_E.mean()
    if newest > max(MAX_TIMES_SHARE * share, MAX_SHARE_OF_DATE):
        raise DataError(
            f"--split-by-date: no date leaves about {share:.0%} of the links; the closest holds "
            f"out {newest:.0%}. Give finer dates (YYYY-MM-DD), or --heldout-share {newest:.2f}"
        )
    return is_newer_E


def _last_date(edge_E2: np.ndarray, corpus: Corpus, row_R: np.ndarray) -> str:
    """Return the newest date of the ends of links."""
    assert corpus.date_N is not None
    return date_text(int(corpus.date_N[row_R][edge_E2].max()))


def date_text(date: int) -> str:
    """Return a date yyyymmdd as text, without a month or day of zero."""
    year = date // 10_000
    month = date // 100 % 100
    day = date % 100
    return "-".join([f"{year:04}", *(f"{part:02}" for part in (month, day) if part)])


def number_groups(names: pa.Array) -> tuple[np.ndarray, list[str]]:
    """Return the group number of each name, and the distinct names in order of ``group_order``."""
    encoded = names.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    ordered = sorted(distinct, key=group_order)
    rank = {name: number for number, name in enumerate(ordered)}
    number_of_code = np.array([rank[name] for name in distinct], dtype=np.int32)
    if not distinct:
        return np.empty(0, dtype=np.int32), ordered
    return number_of_code[np.asarray(encoded.indices)], ordered


def group_order(name: str) -> tuple[int, int, str]:
    """Return the sort key of a group name: taxids by value, then other names by text."""
    return (0, int(name), name) if name.isascii() and name.isdigit() else (1, 0, name)
