"""Reader of OpenAlex's works: abstracts, citations and dates of its snapshot.

    works/updated_date=2026-05-02/part_0000.gz    a JSON object a line, of which these are read:
        id                         https://openalex.org/W2741809807
        ids.mag                    2741809807: the paper's id in Microsoft Academic Graph
        title, language            language: en
        abstract_inverted_index    {word: [positions]} or null
        publication_date           2018-02-13
        referenced_works           [https://openalex.org/W1560783210, ...]

Works without an abstract are skipped. A changed work is in a newer partition; if an older file
still has it, the newest version counts.

Shape letters: W works in reading order, N distinct works, E references of a block.
"""

import json
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError
from raybio.methods.sppt.articles.formats.corpus import date_number, single_group_corpus
from raybio.methods.sppt.articles.formats.inverted_index import text_of_index
from raybio.methods.sppt.articles.store import TEXTS_PER_BLOCK
from raybio.methods.sppt.corpus import Corpus, LinkCollector
from raybio.store.json import is_text
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Spool
from raybio.store.sources import begins_with, bounded_lines, open_source

WANTED = "OpenAlex's works, a JSON object a line"
WORK_ID = re.compile(r"(?:https?://openalex\.org/)?W([0-9]{1,18})")
MAG_ID = re.compile(rb'"mag"\s*:\s*"?([0-9]{1,18})')

BAD_WORK = "line that is no work of OpenAlex (want a JSON object with id and abstract)"
NO_ABSTRACT = "work without an abstract"
OTHER_LANGUAGE = "work in another language than --language"
OLDER = "older version of a work"
OUTSIDE = "citation of a work that is not among these"

REFERENCES_PER_BLOCK = 1 << 20


class PublishedWork(NamedTuple):
    """One work.

    Attributes:
        number: its id without the W.
        mag: its id in Microsoft Academic Graph, "" if it has none.
        language: code of the language, "" if unknown.
        title: its title, "" if it has none.
        abstract: its abstract, "" if it has none.
        date: as ``date_number``.
        references: numbers of the works that it cites.
    """

    number: int
    mag: str
    language: str
    title: str
    abstract: str
    date: int
    references: list[int]


@dataclass(frozen=True)
class OpenAlex:
    """Works of OpenAlex's snapshot, for ``prepare_linked_texts``.

    A work's text is its title and its abstract, joined by a blank. Of several versions the newest
    counts: if it is skipped, so are the older ones. References are on disk while works are read;
    memory grows with the kept works and the citations between them, and by 28 bytes for each other
    work.

    Attributes:
        works: the files, in any order.
        language: works in other languages are skipped; "": none are.
    """

    works: Sequence[Path]
    language: str = ""

    @property
    def files(self) -> dict[str, list[Path]]:
        """The files."""
        return {"works": [Path(path) for path in self.works]}

    def read(self, spool: Spool, quarantine: Quarantine) -> Corpus:
        """Read the works, then look up the citations among them.

        Raises:
            DataError: if a file is missing, damaged or has too many bad lines.
        """
        references = spool.path.with_name("references")
        works = self._read_works(spool, references, quarantine)
        distinct_N, first_N = _newest(works.all_number_A, works.is_kept_A)
        if not len(distinct_N):
            raise DataError(
                f"{self.works[0]}: no work of {quarantine.num_seen('work'):,} in "
                f"{len(self.works):,} files has an abstract"
                + (f" in the language {self.language!r}" if self.language else "")
            )
        digits = pa.array(distinct_N).cast(pa.string()).cast(pa.large_string())
        w, nothing = (pa.scalar(text, pa.large_string()) for text in ("W", ""))
        keys = pc.binary_join_element_wise(w, digits, nothing)
        num_older = len(works.number_W) - len(distinct_N)
        quarantine.add_many("work", OLDER, "", num_older, [], is_bad=False)
        links = LinkCollector(quarantine, keys, spool.path.parent)
        _collect_links(links, works, references, distinct_N, first_N, quarantine)
        references.unlink()
        edge_E2 = links.merged()
        return single_group_corpus(keys, first_N, edge_E2, works.date_W[first_N])

    def _read_works(self, spool: Spool, references_path: Path, quarantine: Quarantine) -> "_Works":
        """Write texts of the kept works to the spool, and their references to a file."""
        all_numbers = array("q")
        is_kept = bytearray()
        number = array("q")
        date = array("q")
        num_references = array("q")
        waiting: list[bytes] = []
        with references_path.open("wb") as references:
            for work, is_wanted in self._works(quarantine):
                all_numbers.append(work.number)
                is_kept.append(is_wanted)
                if not is_wanted:
                    continue
                number.append(work.number)
                date.append(work.date)
                num_references.append(len(work.references))
                array("q", work.references).tofile(references)
                waiting.append(f"{work.title} {work.abstract}".strip().encode())
                if len(waiting) == TEXTS_PER_BLOCK:
                    spool.append(pa.array(waiting, pa.large_binary()))
                    waiting.clear()
        spool.append(pa.array(waiting, pa.large_binary()))
        quarantine.check("work")
        numbers = (all_numbers, number, date, num_references)
        all_number_A, number_W, date_W, num_references_W = (
            np.frombuffer(column, dtype=np.int64) for column in numbers
        )
        return _Works(all_number_A, is_kept, number_W, date_W, num_references_W)

    def _works(self, quarantine: Quarantine) -> Iterator[tuple[PublishedWork, bool]]:
        """Yield the works and whether they are kept, newest partition first."""
        for path in newest_first(self.works):
            file = "/".join(path.parts[-2:])
            for line_number, line in _lines(path):
                quarantine.saw("work", 1)
                try:
                    work = parse_work(line)
                except ValueError as error:
                    quarantine.add("work", BAD_WORK, file, line_number, str(error))
                    continue
                is_other = bool(self.language) and work.language != self.language
                if is_other:
                    quarantine.add("work", OTHER_LANGUAGE, file, line_number, is_bad=False)
                elif not work.abstract:
                    quarantine.add("work", NO_ABSTRACT, file, line_number, is_bad=False)
                yield work, not is_other and bool(work.abstract)


def newest_first(paths: Sequence[Path]) -> list[Path]:
    """Return the files of a snapshot by partition (``updated_date=2026-11-01``), newest first."""
    return sorted(map(Path, paths), key=lambda path: path.parts[-2:], reverse=True)


class _Works(NamedTuple):
    """Works in the order of their lines (A all works, W kept ones)."""

    all_number_A: np.ndarray
    is_kept_A: bytearray
    number_W: np.ndarray
    date_W: np.ndarray
    num_references_W: np.ndarray


def _collect_links(
    links: LinkCollector,
    works: _Works,
    references: Path,
    distinct_N: np.ndarray,
    first_N: np.ndarray,
    quarantine: Quarantine,
) -> None:
    """Add the citations among the newest versions of works.

    Args:
        links: takes them.
        works: the kept works.
        references: file of their references.
        distinct_N: numbers of the distinct works, sorted.
        first_N: index of the newest version of each among the kept works.
        quarantine: counts citations of works that are not read.
    """
    is_first_W = np.zeros(len(works.number_W), dtype=bool)
    is_first_W[first_N] = True
    for citing, cited in _references(references, works.num_references_W):
        u_E = np.minimum(np.searchsorted(distinct_N, works.number_W[citing]), len(distinct_N) - 1)
        v_E = np.minimum(np.searchsorted(distinct_N, cited), len(distinct_N) - 1)
        is_inside = distinct_N[v_E] == cited
        is_newest = is_first_W[citing]
        quarantine.saw("link", int(is_newest.sum()))
        num_outside = int((is_newest & ~is_inside).sum())
        quarantine.add_many("link", OUTSIDE, "", num_outside, [], is_bad=False)
        good = is_newest & is_inside
        links.add(u_E[good], v_E[good], np.zeros(int(good.sum()), np.int64), "referenced_works")


def _newest(number_W: np.ndarray, is_kept: bytearray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct numbers (N,) whose newest version is kept, and its row among the kept.

    Args:
        number_W: number of each work, newest version first.
        is_kept: whether the work is kept.
    """
    is_kept_W = np.frombuffer(is_kept, dtype=np.bool_)
    # Most works of a snapshot may not be kept: np.unique would hold twice as much of them.
    order_W = np.argsort(number_W, kind="stable")
    sorted_W = number_W[order_W]
    is_chosen_W = is_kept_W[order_W]
    is_chosen_W[1:] &= sorted_W[1:] != sorted_W[:-1]
    row_N = np.searchsorted(np.flatnonzero(is_kept_W), order_W[is_chosen_W])
    return sorted_W[is_chosen_W], row_N


def parse_work(line: bytes) -> PublishedWork:
    """Return the work in a line.

    Raises:
        ValueError: if the line holds no work.
    """
    try:
        fields = json.loads(line)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    match = WORK_ID.fullmatch(str(fields.get("id"))) if isinstance(fields, dict) else None
    if match is None:
        raise ValueError("has no id such as https://openalex.org/W2741809807")
    ids = fields.get("ids")
    mag = ids.get("mag") if isinstance(ids, dict) else None
    index = fields.get("abstract_inverted_index")
    title = " ".join(str(fields.get("title") or "").split())
    abstract = text_of_index(index) if index else ""
    if not is_text(title + abstract):
        raise ValueError("contains an unpaired surrogate")
    cited = fields.get("referenced_works") or []
    if not isinstance(cited, list):
        raise ValueError("has referenced_works that are no list")
    references = [WORK_ID.fullmatch(str(work)) for work in cited]
    return PublishedWork(
        number=int(match[1]),
        mag="" if mag is None else str(mag),
        language=str(fields.get("language") or ""),
        title=title,
        abstract=abstract,
        date=date_number(str(fields.get("publication_date") or "")),
        references=[int(reference[1]) for reference in references if reference],
    )


def read_abstracts(
    path: Path, number_by_mag: dict[str, int], quarantine: Quarantine
) -> Iterator[tuple[int, str]]:
    """Yield number and abstract of each work whose MAG id is known; others are not parsed.

    Raises:
        DataError: if the file is missing or damaged.
    """
    for line_number, line in _lines(path):
        if not any(number.decode() in number_by_mag for number in MAG_ID.findall(line)):
            continue
        quarantine.saw("abstract", 1)
        try:
            work = parse_work(line)
        except ValueError as error:
            quarantine.add("abstract", BAD_WORK, path.name, line_number, str(error))
            continue
        if work.abstract and work.mag in number_by_mag:
            yield number_by_mag[work.mag], work.abstract


def is_openalex(path: Path) -> bool:
    """Return whether a file holds works of OpenAlex: it begins with ``{``."""
    return begins_with(path, b"{", WANTED)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with open_source(path, WANTED) as file:
        for number, line in enumerate(bounded_lines(file, path), start=1):
            if line.strip():
                yield number, line


def _references(path: Path, num_W: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the citing work's index and the cited work's number (E,), a block at a time."""
    end_W = np.cumsum(num_W)
    with path.open("rb") as file:
        start = 0
        while block := file.read(8 * REFERENCES_PER_BLOCK):
            cited = np.frombuffer(block, dtype=np.int64)
            position = np.arange(start, start + len(cited))
            yield np.searchsorted(end_W, position, side="right"), cited
            start += len(cited)
