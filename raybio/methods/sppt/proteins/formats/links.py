"""Links of a file between known proteins, a block at a time.

Memory does not depend on the size of the files.

Shape letters: N proteins, E links of a block, D distinct ids of a block.
"""

import math
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.methods.sppt.ids import find_ids
from raybio.methods.sppt.proteins.formats.id_rule import IdRule
from raybio.methods.sppt.proteins.formats.link_files import LinkFile, read_link_columns
from raybio.methods.sppt.table_columns import is_missing, skip_rows
from raybio.store.quarantine import Quarantine

LINKS_BLOCK_BYTES = 8 << 20
"""Bytes of links that are read at once, about 200,000 lines of STRING."""

MAX_SCORE = 1000
"""Largest score in STRING's files, whose scores are integers."""

NO_ID = "link without an id"
NO_NUMBER = "link whose score is no number"
NO_SCORE = f"link whose score is no integer from 0 to {MAX_SCORE}"
NO_SPECIES = "link of a species that has no protein (--taxid selects species)"
NO_PROTEIN = "link with an id that is not among the proteins"
NOT_KEPT = "link of a species that is not in --taxid"
ACROSS = "link between two species"
HEADER = "first line that names no protein (read as a header)"

UNKNOWN = -1
NO_GROUP = -2
EXCLUDED = -3

MAX_UNKNOWN = 100
"""Maximum number of distinct unknown ids that are kept for advice."""


class Links(NamedTuple):
    """Links of a block between known proteins of one species: row numbers and lines (E,)."""

    u_E: np.ndarray
    v_E: np.ndarray
    line_E: np.ndarray


class ScoreRange:
    """Range of the scores that were read.

    Attributes:
        low: the least score, infinite without any.
        high: the highest score, minus infinity without any.
    """

    def __init__(self) -> None:
        """Start without a score."""
        self.low = math.inf
        self.high = -math.inf

    def add(self, score_E: np.ndarray) -> None:
        """Take in scores; those that are no number are ignored."""
        number_E = score_E[np.isfinite(score_E)]
        self.low = min(self.low, float(number_E.min(initial=math.inf)))
        self.high = max(self.high, float(number_E.max(initial=-math.inf)))


class Rows(Protocol):
    """Rows of proteins by id."""

    def find(self, ids: pa.Array) -> np.ndarray:
        """Return the row of each id, or ``UNKNOWN``, ``NO_GROUP`` or ``EXCLUDED``."""
        ...


def read_links(
    file: LinkFile,
    rows: Rows,
    group_N: np.ndarray,
    quarantine: Quarantine,
    *,
    rule: IdRule | None = None,
    min_score: float = 0,
    unknown: dict[str, None] | None = None,
    scores: ScoreRange | None = None,
    block_bytes: int = LINKS_BLOCK_BYTES,
) -> Iterator[Links]:
    """Yield the links between known proteins of one species.

    Args:
        file: the file.
        rows: the proteins.
        group_N: group number of each protein, such as its species.
        quarantine: takes bad lines. Lines that the settings exclude are counted, but not as
            defects.
        rule: turns ids of the file into ids of the store; None: they are equal.
        min_score: links with a lower score are skipped; 0: none are.
        unknown: takes ids that are not among the proteins, up to ``MAX_UNKNOWN``.
        scores: takes the scores, if they are read: for ``min_score``.
        block_bytes: bytes that are read at once.

    Raises:
        DataError: as ``read_link_columns``.
    """
    rule = rule or IdRule()
    is_first_block = True
    blocks = read_link_columns(
        file, quarantine, with_scores=bool(min_score), block_bytes=block_bytes
    )
    for a, b, *score, line in blocks:
        # A line without any id is an empty one, as some files have at their end.
        is_empty = np.asarray(pc.binary_length(a)) + np.asarray(pc.binary_length(b)) == 0
        quarantine.saw("link", int((~is_empty).sum()))
        score_E = np.zeros(len(a))
        if score:
            score_E = _string_scores(*score) if file.has_string_scores else _numbers(*score)
            if scores is not None:
                scores.add(score_E)
        ids = rule(pa.concat_arrays([a, b]))
        row = rows.find(ids)
        u_E = row[: len(a)]
        v_E = row[len(a) :]
        without_id = (is_missing(a) | is_missing(b)) & ~is_empty
        is_first_line = is_first_block and len(a) > 0 and line[0].as_py() == 1
        is_first_block = False
        kinds = _classify_lines(
            u_E,
            v_E,
            score_E,
            group_N,
            has_ids=~(without_id | is_empty),
            may_begin_with_header=is_first_line and bool(file.names),
            min_score=min_score,
        )
        too_low = f"link with a score below {min_score:g} (--min-score)"
        for is_skipped, reason in ((kinds.is_excluded, NOT_KEPT), (kinds.is_low, too_low)):
            num = int(is_skipped.sum())
            quarantine.add_many("link", reason, file.path.name, num, [], is_bad=False)
        if kinds.is_header.any():
            words = f"{a[0].as_py()} {b[0].as_py()}"
            quarantine.add("link", HEADER, file.path.name, 1, words, is_bad=False)
        no_score = NO_SCORE if file.has_string_scores else NO_NUMBER
        for is_skipped, reason in (
            (without_id, NO_ID),
            (kinds.is_bad, no_score),
            (kinds.is_strange, NO_SPECIES),
            (kinds.is_unknown, NO_PROTEIN),
            (kinds.is_across, ACROSS),
        ):
            shown = [a, b, *score] if reason == no_score else [a, b]
            skip_rows(is_skipped, reason, "link", file.path, line, shown, quarantine)
        if unknown is not None:
            _note_unknown(ids, row, kinds.is_strange | kinds.is_unknown, unknown)
        good = kinds.is_good
        yield Links(u_E[good], v_E[good], line.to_numpy()[good])


class _LineKinds(NamedTuple):
    """Masks over the lines of a block (E,); a line with ids is of one kind.

    Attributes:
        is_excluded: names a protein that the settings exclude.
        is_header: the names of the columns.
        is_bad: without a score.
        is_low: with too low a score.
        is_strange: names a protein without a species.
        is_unknown: names a protein that is not in the store.
        is_across: links proteins of two species.
        is_good: a link.
    """

    is_excluded: np.ndarray
    is_header: np.ndarray
    is_bad: np.ndarray
    is_low: np.ndarray
    is_strange: np.ndarray
    is_unknown: np.ndarray
    is_across: np.ndarray
    is_good: np.ndarray


def _classify_lines(
    u_E: np.ndarray,
    v_E: np.ndarray,
    score_E: np.ndarray,
    group_N: np.ndarray,
    *,
    has_ids: np.ndarray,
    may_begin_with_header: bool,
    min_score: float,
) -> _LineKinds:
    """Return the kinds of lines; the first condition that holds counts."""
    is_excluded = has_ids & ((u_E == EXCLUDED) | (v_E == EXCLUDED))
    rest = has_ids & ~is_excluded
    is_header = np.zeros(len(u_E), dtype=bool)
    if may_begin_with_header and rest[0]:
        # If no other line names proteins, either, it is no header: the ids do not match.
        is_known = (u_E >= 0) & (v_E >= 0)
        is_header[0] = u_E[0] < 0 and v_E[0] < 0 and is_known.any()
    rest &= ~is_header
    is_bad = rest & np.isnan(score_E)
    is_low = rest & (score_E < min_score)
    rest &= ~(is_bad | is_low)
    is_strange = rest & ((u_E == NO_GROUP) | (v_E == NO_GROUP))
    is_unknown = rest & ~is_strange & ((u_E < 0) | (v_E < 0))
    rest &= ~(is_strange | is_unknown)
    is_across = np.zeros(len(u_E), dtype=bool)
    is_across[rest] = group_N[u_E[rest]] != group_N[v_E[rest]]
    return _LineKinds(
        is_excluded,
        is_header,
        is_bad,
        is_low,
        is_strange,
        is_unknown,
        is_across,
        is_good=rest & ~is_across,
    )


def _note_unknown(
    ids: pa.Array, row: np.ndarray, is_unknown_E: np.ndarray, unknown: dict[str, None]
) -> None:
    """Add the first ids of skipped links that belong to no protein."""
    if len(unknown) >= MAX_UNKNOWN or not is_unknown_E.any():
        return
    is_wanted = np.concatenate([is_unknown_E, is_unknown_E]) & (row < 0)
    for key in pc.unique(ids.filter(pa.array(is_wanted))).to_pylist():
        if len(unknown) >= MAX_UNKNOWN:
            return
        unknown[key] = None


def _string_scores(score: pa.Array) -> np.ndarray:
    """Return STRING's scores (E,), NaN where there is none."""
    try:
        # A whole block at once. Only a block with a bad score is read value by value.
        score_E = np.asarray(score.cast(pa.int32()), dtype=np.float64)
    except pa.ArrowInvalid:
        texts = score.to_pylist()
        score_E = np.array(
            # JSON lines and Parquet may have 900.0.
            [float(text) if re.fullmatch(r"[0-9]{1,4}(\.0)?", text) else np.nan for text in texts],
            dtype=np.float64,
        )
    return np.where((score_E >= 0) & (score_E <= MAX_SCORE), score_E, np.nan)


def _numbers(score: pa.Array) -> np.ndarray:
    """Return the scores (E,), NaN where there is none or it is not finite."""
    try:
        score_E = np.asarray(score.cast(pa.float64()))
    except pa.ArrowInvalid:
        score_E = np.array([_number(text) for text in score.to_pylist()], dtype=np.float64)
    return np.where(np.isfinite(score_E), score_E, np.nan)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


class SkippedProteins(NamedTuple):
    """Proteins of species that ``--taxid`` does not select.

    Attributes:
        ids: their ids, except those that begin with their species' taxid: there may be millions.
        taxids: their species.
    """

    ids: pa.Array
    taxids: Collection[str]


def rows_by_id(
    keys: pa.Array,
    group_N: np.ndarray,
    names: list[str],
    taxids: Collection[str],
    skipped: SkippedProteins,
) -> Rows:
    """Return the proteins for look-ups by id.

    Args:
        keys: ids of the proteins (N,).
        group_N: number of each protein's species.
        names: taxid of each species.
        taxids: links of other species are excluded; empty: none are.
        skipped: proteins of other species, whose links are excluded, too.
    """
    if _begin_with_taxid(keys, group_N, names):
        return _RowsBySpecies(keys, group_N, names, taxids)
    return _AllRows(keys, skipped)


def _begin_with_taxid(keys: pa.Array, group_N: np.ndarray, names: list[str]) -> bool:
    """Return whether each id is its species' taxid, a dot and a name."""
    for start in range(0, len(keys), 1 << 16):
        block = keys[start : start + (1 << 16)]
        groups = group_N[start : start + (1 << 16)].tolist()
        for key, group in zip(block.to_pylist(), groups, strict=True):
            if taxid_of(key) != names[group]:
                return False
    return len(keys) > 0


class _AllRows:
    """Rows of proteins, of all species at once."""

    def __init__(self, keys: pa.Array, skipped: SkippedProteins) -> None:
        self._keys = keys
        self._skipped = skipped

    def find(self, ids: pa.Array) -> np.ndarray:
        """Return the row of each id (E,), or ``UNKNOWN`` or ``EXCLUDED``."""
        encoded = ids.dictionary_encode()
        distinct = encoded.dictionary
        row_D = find_ids(distinct, self._keys)
        if self._skipped.taxids:
            is_skipped_D = find_ids(distinct, self._skipped.ids) >= 0
            taxids = [taxid_of(key) for key in distinct.to_pylist()]
            # A block may be empty, and an empty list would be an array of floats.
            is_skipped_D |= np.array([taxid in self._skipped.taxids for taxid in taxids], bool)
            row_D[is_skipped_D & (row_D == UNKNOWN)] = EXCLUDED
        row_E: np.ndarray = row_D[np.asarray(encoded.indices)]
        return row_E


class _RowsBySpecies:
    """Rows of proteins by ids ``taxid.name``, looked up among the species that a block names.

    STRING's files are sorted by species. So the look-up table of a block has the size of a species,
    even if there are millions of proteins. Files in another order can be read, too.
    """

    def __init__(
        self, keys: pa.Array, group_N: np.ndarray, names: list[str], taxids: Collection[str]
    ) -> None:
        self._taxids = taxids
        # Proteins by species. The files of STRING have them in this order already.
        self._row_N = np.argsort(group_N, kind="stable")
        is_sorted = bool((np.diff(group_N) >= 0).all())
        self._keys = keys if is_sorted else keys.take(pa.array(self._row_N))
        first_G = np.searchsorted(group_N[self._row_N], np.arange(len(names) + 1))
        self._range_by_taxid = {
            taxid: (int(first_G[number]), int(first_G[number + 1]))
            for number, taxid in enumerate(names)
        }

    def find(self, ids: pa.Array) -> np.ndarray:
        """Return the row of each id (E,), or ``UNKNOWN``, ``NO_GROUP`` or ``EXCLUDED``."""
        encoded = ids.dictionary_encode()
        distinct = encoded.dictionary
        taxids = [taxid_of(key) for key in distinct.to_pylist()]
        row_D = np.full(len(distinct), UNKNOWN, dtype=np.int64)
        for number, taxid in enumerate(taxids):
            if not taxid:
                continue
            if self._taxids and taxid not in self._taxids:
                row_D[number] = EXCLUDED
            elif taxid not in self._range_by_taxid:
                row_D[number] = NO_GROUP
        ranges = sorted(self._range_by_taxid[t] for t in {*taxids} & self._range_by_taxid.keys())
        if ranges:
            known = pa.concat_arrays([self._keys[start:stop] for start, stop in ranges])
            known_row = np.concatenate([self._row_N[start:stop] for start, stop in ranges])
            index_D = find_ids(distinct, known)
            is_found = (index_D >= 0) & (row_D == UNKNOWN)
            row_D[is_found] = known_row[index_D[is_found]]
        row_E: np.ndarray = row_D[np.asarray(encoded.indices)]
        return row_E


def taxid_of(key: str) -> str:
    """Return the taxid of an id ``taxid.name``, "" if it has none."""
    taxid, dot, name = key.partition(".")
    return taxid if dot and name and taxid.isascii() and taxid.isdigit() else ""
