"""Records as a reader returns them, and their way to the sorted rows of a store, in bounded memory.

Sequences and texts go through a spool file on disk, links through sorted runs. Ids and lengths stay
in memory, and a few bytes a link: whether it is held out, and the held-out links. The links of a
group are in memory at once, in about 120 bytes each.

Shape letters: N proteins or texts in reading order, R rows of the store, G groups, E links, P
ranges of groups.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from raybio.core.errors import DataError
from raybio.core.text import skipped_lines
from raybio.methods.sppt.config import HeldOut
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph.splits import hold_out_links, hold_out_nodes, newest_links
from raybio.methods.sppt.graph_store import GraphStore, LinkedRows
from raybio.methods.sppt.leakage import link_classes
from raybio.methods.sppt.link_runs import LinkRuns, divide, id_type, map_array
from raybio.ops.segments import indptr_from_lengths
from raybio.store.manifest import WITHOUT_LINK
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
        edge_E2: distinct links between rows; may be mapped.
        group_names: name of each group, such as a taxid.
        group_labels: display name of each group.
        noun: name of rows with content, for errors.
        date_N: date of each row, yyyymmdd with zeros for an unknown month or day, -1 where there is
            none; None: the source has no dates.
        read_as: sentences on how the files were read, for the manifest.
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


LINE_BITS = 40
"""Bits for the line number of a link; the number of its file is in the higher bits."""
LINE_MASK = (1 << LINE_BITS) - 1

LINKS_AT_ONCE = 1 << 20


class LinkCollector:
    """Undirected links between numbered rows, each once, in either direction.

    Self pairs and repetitions are skipped, and counted in the quarantine, but not as defects, since
    a file may list both directions.
    """

    def __init__(self, quarantine: Quarantine, keys: pa.Array, folder: Path | None = None) -> None:
        """Start empty.

        Args:
            quarantine: takes what is skipped.
            keys: the rows' ids.
            folder: takes files of 16 bytes per added link and 8 bytes per distinct link. None: all
                links stay in memory.
        """
        self._quarantine = quarantine
        self._keys = keys
        self._folder = folder
        # A link u < v is the number u * (number of rows) + v; its value is its file and line.
        self._runs = LinkRuns(None if folder is None else folder / "link_runs")
        self._files: list[str] = []
        self._last_line = 0

    def add(self, u_E: np.ndarray, v_E: np.ndarray, line_E: np.ndarray, file: str) -> None:
        """Add the links between rows ``u`` and ``v``, which are in ascending lines of a file."""
        if not len(u_E):
            return
        if self._files[-1:] != [file] or line_E[0] <= self._last_line:
            self._files.append(file)
        self._last_line = int(line_E[-1])
        code_E = np.minimum(u_E, v_E).astype(np.int64) * len(self._keys) + np.maximum(u_E, v_E)
        is_self_E = u_E == v_E
        origin_E = ((len(self._files) - 1) << LINE_BITS) | line_E.astype(np.int64)
        self._skip(
            "self pair (dropped)", int(is_self_E.sum()), code_E[is_self_E], origin_E[is_self_E]
        )
        self._runs.add(code_E[~is_self_E], origin_E[~is_self_E])

    def merged(self) -> np.ndarray:
        """Return the distinct links (E, 2), u < v, ascending; mapped if there is a folder.

        It is called once.
        """
        if self._folder is None:
            blocks = [np.empty((0, 2), np.int64), *self._distinct_blocks()]
            return np.concatenate(blocks)
        path = self._folder / "distinct_links"
        dtype = id_type(len(self._keys))
        with path.open("wb") as file:
            for edge_E2 in self._distinct_blocks():
                file.write(edge_E2.astype(dtype).data)
        return map_array(path, dtype, width=2)

    def _distinct_blocks(self) -> Iterator[np.ndarray]:
        """Yield blocks of the distinct links, ascending, and count the others."""
        num_repeated = 0
        # The first few of the repeated links in the order of the files.
        first_code = np.empty(0, np.int64)
        first_origin = np.empty(0, np.int64)
        for code_E, origin_E in self._runs.blocks():
            is_new_E = np.ones(len(code_E), dtype=bool)
            is_new_E[1:] = code_E[1:] != code_E[:-1]
            yield divide(code_E[is_new_E], len(self._keys))
            num_repeated += len(code_E) - int(is_new_E.sum())
            first_code = np.concatenate([first_code, code_E[~is_new_E]])
            first_origin = np.concatenate([first_origin, origin_E[~is_new_E]])
            order = np.argsort(first_origin)[: self._quarantine.num_examples]
            first_code = first_code[order]
            first_origin = first_origin[order]
        self._skip("duplicate link (merged)", num_repeated, first_code, first_origin)

    def _skip(self, reason: str, num: int, code_E: np.ndarray, origin_E: np.ndarray) -> None:
        """Count skipped links, and keep the first few of the given ones as examples."""
        first = slice(self._quarantine.num_examples)
        pairs = divide(code_E[first], len(self._keys)).tolist()
        for pair, origin in zip(pairs, origin_E[first].tolist(), strict=True):
            file = self._files[origin >> LINE_BITS]
            line = origin & LINE_MASK
            words = " ".join(self._keys.take(pa.array(pair)).to_pylist())
            self._quarantine.add("link", reason, file, line, words, is_bad=False)
        num_more = num - len(pairs)
        self._quarantine.add_many("link", reason, "", num_more, [], is_bad=False)


def check_has_links(files: Sequence[Path], quarantine: Quarantine) -> None:
    """Refuse files of links that have none.

    Raises:
        DataError: if no line below their headers was read.
    """
    if not quarantine.num_seen("link"):
        names = ", ".join(map(str, files))
        verb = "has" if len(files) == 1 else "have"
        raise DataError(f"{names}: {verb} a header and no links, want a link a line below it")


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
    is_linked_N = np.zeros(len(corpus.keys), dtype=bool)
    for block_E2 in _blocks(corpus.edge_E2):
        is_linked_N[block_E2[has_content_N[block_E2].all(axis=1)]] = True
    row_R = np.flatnonzero(is_linked_N)
    if len(row_R) == 0:
        skipped = "; ".join(skipped_lines(provenance["quarantine"]))
        raise DataError(
            f"no link between two {corpus.noun} is left of {len(corpus.edge_E2):,} links and "
            f"{len(corpus.keys):,} rows ({skipped or 'none was skipped'}): do the ids of the two "
            "inputs match?"
        )
    row_R = row_R[np.argsort(corpus.group_N[row_R], kind="stable")]
    row_N = np.full(len(corpus.keys), -1, dtype=np.int64)
    row_N[row_R] = np.arange(len(row_R))
    used_G, group_R = np.unique(corpus.group_N[row_R], return_inverse=True)
    group_R = group_R.astype(np.int32)
    links = _renumber(corpus.edge_E2, row_N, group_R, draft.folder)
    content = spool.in_order(corpus.spooled_N[row_R], draft.folder / "letters")
    cluster_R = None if cluster is None else cluster(content, draft.folder)
    if held_out == "date":
        edge_E2 = links.edge_E2
        is_heldout_E = _links_of_newest(edge_E2, corpus, row_R, share=heldout_share)
        provenance = provenance | {
            "training_until": _last_date(edge_E2[~is_heldout_E], corpus, row_R)
        }
    else:
        is_heldout_E = _held_out_links(
            links, group_R, cluster_R, held_out, share=heldout_share, seed=seed
        )
    graph = _training_graph(links, is_heldout_E, group_R, draft.folder)
    heldout_E2 = links.edge_E2[is_heldout_E].astype(np.int64)
    # In the order of the corpus.
    corpus_E2 = np.sort(row_R[heldout_E2], axis=1)
    heldout_E2 = heldout_E2[np.lexsort([corpus_E2[:, 1], corpus_E2[:, 0]])]
    if cluster_R is not None:
        classes = link_classes(graph, heldout_E2, cluster_R)
        leakage = classes.counts() | {"clusters": len(np.unique(cluster_R))}
        provenance = provenance | {"leakage": leakage}
    provenance = provenance | {WITHOUT_LINK: int(has_content_N.sum()) - len(row_R)}
    rows = LinkedRows(
        keys=corpus.keys.take(pa.array(row_R)),
        content=content,
        group_N=group_R,
        group_names=[corpus.group_names[group] for group in used_G],
        group_labels=[corpus.group_labels[group] for group in used_G],
        graph=graph,
        heldout_E2=heldout_E2,
        cluster_N=cluster_R,
    )
    return commit(draft, rows, provenance)


class _Links(NamedTuple):
    """Links between the rows of a store, mapped, and ranges of rows that no link leaves.

    Attributes:
        edge_E2: links, u < v, ascending.
        row_P1: range p holds the rows ``row_P1[p]`` to ``row_P1[p + 1] - 1``: whole groups.
        link_P1: and the links ``link_P1[p]`` to ``link_P1[p + 1] - 1``.
    """

    edge_E2: np.ndarray
    row_P1: np.ndarray
    link_P1: np.ndarray

    def parts(self) -> Iterator[tuple[slice, slice, np.ndarray]]:
        """Yield rows and links of each range, and the links' ends (E, 2) from its first row on."""
        for number in range(len(self.row_P1) - 1):
            rows = slice(*self.row_P1[number : number + 2].tolist())
            links = slice(*self.link_P1[number : number + 2].tolist())
            yield rows, links, self.edge_E2[links].astype(np.int64) - rows.start


def _renumber(edge_E2: np.ndarray, row_N: np.ndarray, group_R: np.ndarray, folder: Path) -> _Links:
    """Return the links between rows of the store; ``row_N`` is -1 where there is none."""
    num_rows = len(group_R)
    runs = LinkRuns(folder / "row_runs")
    num_links_G = np.zeros(int(group_R[-1]) + 1, np.int64)
    is_across = False
    for block_E2 in _blocks(edge_E2):
        row_E2 = np.sort(row_N[block_E2], axis=1)
        row_E2 = row_E2[row_E2[:, 0] >= 0]
        group_E2 = group_R[row_E2]
        num_links_G += np.bincount(group_E2[:, 0], minlength=len(num_links_G))
        is_across |= bool((group_E2[:, 0] != group_E2[:, 1]).any())
        code_E = row_E2[:, 0] * num_rows + row_E2[:, 1]
        runs.add(code_E, code_E)
    path = folder / "row_links"
    dtype = id_type(num_rows)
    with path.open("wb") as file:
        for code_E, _ in runs.blocks():
            file.write(divide(code_E, num_rows).astype(dtype).data)
    row_G1 = np.searchsorted(group_R, np.arange(len(num_links_G) + 1))
    link_G1 = indptr_from_lengths(num_links_G)
    bounds = [0]
    for group in range(1, len(num_links_G)):
        if not is_across and link_G1[group] - link_G1[bounds[-1]] >= LINKS_AT_ONCE:
            bounds.append(group)
    bounds.append(len(num_links_G))
    return _Links(map_array(path, dtype, width=2), row_G1[bounds], link_G1[bounds])


def _blocks(edge_E2: np.ndarray) -> Iterator[np.ndarray]:
    """Yield blocks of links."""
    for start in range(0, len(edge_E2), LINKS_AT_ONCE):
        yield edge_E2[start : start + LINKS_AT_ONCE]


def _held_out_links(
    links: _Links,
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
    is_out_E = np.zeros(len(links.edge_E2), dtype=bool)
    if held_out == "random":
        # All ranges together draw what one range would: a number per link, then one per group.
        rng_of_groups = np.random.Generator(np.random.PCG64(seed).advance(len(is_out_E)))
        for rows, part, edge_E2 in links.parts():
            group_P = group_R[rows]
            is_out_E[part] = hold_out_links(
                edge_E2, len(group_P), group_P, share=share, rng=rng, rng_of_groups=rng_of_groups
            )
        return is_out_E
    is_alone = held_out == "proteins" or cluster_R is None
    unit_R = np.arange(len(group_R)) if is_alone else cluster_R
    assert unit_R is not None
    is_out_R = hold_out_nodes(links.edge_E2, unit_R, share=share, rng=rng)
    for rows, part, edge_E2 in links.parts():
        is_out_E[part] = is_out_R[rows][edge_E2].any(axis=1)
    if share and not is_out_E.any():
        raise DataError(
            f"--held-out {held_out}: nothing can be held out: every protein or cluster of "
            f"relatives has more than {share:.0%} of the {len(is_out_E):,} links. Want a larger "
            "--heldout-share, or --held-out random"
        )
    return is_out_E


def _training_graph(
    links: _Links, is_heldout_E: np.ndarray, group_R: np.ndarray, folder: Path
) -> Graph:
    """Return the graph of the links that are not held out, over a file of their ends."""
    degree_R = np.zeros(len(group_R), np.int64)
    path = folder / "neighbors"
    dtype = id_type(len(group_R))
    with path.open("wb") as file:
        for rows, part, edge_E2 in links.parts():
            graph = Graph.from_edges(edge_E2[~is_heldout_E[part]], rows.stop - rows.start)
            degree_R[rows] = graph.degree_N
            file.write((graph.indices + rows.start).astype(dtype).data)
    return Graph(indptr_from_lengths(degree_R), map_array(path, dtype), group_R)


MAX_TIMES_SHARE = 3
MAX_SHARE_OF_DATE = 0.1
"""A split by date holds out at most this multiple of the wanted share, or this share of links."""


def _equally_precise(date_R: np.ndarray) -> np.ndarray:
    """Return dates cut to the precision that all of them have: years, months or days.

    A year alone may be any of its days, so it cannot be before or after one of them.
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
