"""Reader of OGB-MAG: papers and citations of ``ogbn_mag/``, abstracts of MAG's inverted indices.

    ogbn_mag/mapping/paper_entidx2name.csv.gz                 "ent idx,ent name": node, MAG id
    ogbn_mag/raw/relations/paper___cites___paper/edge.csv.gz  "node,node": citing, cited paper
    ogbn_mag/raw/node-feat/paper/node_year.csv.gz             a year a line; may be missing
    PaperAbstractsInvertedIndex.txt[.1, .2]    MAG id, tab, {"InvertedIndex": {word: [positions]}}

Since MAG is retired, the abstracts may also be OpenAlex's works, which state the papers' MAG ids;
or the CSV ``ent idx,abstract`` that the authors of SPPT made.

torch-geometric's ``OGB_MAG(ROOT)`` keeps the same files in ``ROOT/mag/``, without ``mapping/``. The
ids of papers are then their node numbers, ``raw/num-node-dict.csv.gz`` says how many there are, and
only the CSV has abstracts by these numbers.

As in the authors' code, a leading word "abstract" is dropped, and papers without an abstract are
skipped.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from raybio.core.errors import DataError
from raybio.methods.sppt.articles.formats.corpus import date_number, single_group_corpus
from raybio.methods.sppt.articles.formats.inverted_index import text_of_index, without_heading
from raybio.methods.sppt.articles.formats.openalex import (
    is_openalex,
    newest_first,
    read_abstracts,
)
from raybio.methods.sppt.articles.store import TEXTS_PER_BLOCK
from raybio.methods.sppt.corpus import Corpus, LinkCollector
from raybio.store.json import is_text
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Spool
from raybio.store.sources import bounded_lines, open_source, plain_or_gzip, read_lines

MAPPING = "mapping/paper_entidx2name.csv"
CITATIONS = "raw/relations/paper___cites___paper/edge.csv"
YEARS = "raw/node-feat/paper/node_year.csv"
NUM_NODES = "raw/num-node-dict.csv"
"""Kinds of nodes, and a line with the number of each."""

MAPPING_HEADER = ("ent idx", "ent name")
ABSTRACTS_HEADER = ("ent idx", "abstract")

NUMBERS_AS_IDS = f"no {MAPPING}, which has MAG ids: ids are the papers' node numbers"

BAD_LINE = "line that is no abstract (want a MAG id, a tab and an inverted index)"
BAD_ROW = "row that is no abstract (want the number of a paper and its abstract)"

MAX_FIELD_BYTES = 1 << 22


@dataclass(frozen=True)
class OgbMag:
    """OGB-MAG and the abstracts of its papers.

    Attributes:
        folder: ``ogbn_mag/``, or ``mag/`` of torch-geometric.
        abstracts: MAG's inverted indices in any number of parts, OpenAlex's works, or the authors'
            CSV; plain or gzip.
    """

    folder: Path
    abstracts: Sequence[Path]

    @property
    def files(self) -> dict[str, list[Path]]:
        """All files."""
        years = self._file(YEARS)
        return {
            "papers": [self._file(MAPPING if self._has_mag_ids else NUM_NODES)],
            "citations": [self._file(CITATIONS)],
            "abstracts": [Path(path) for path in self.abstracts],
            "years": [years] if years.is_file() else [],
        }

    def read(self, spool: Spool, quarantine: Quarantine) -> Corpus:
        """Read the papers, then their abstracts, then the citations.

        Raises:
            DataError: if a file is missing, damaged or has too many bad records.
        """
        (papers,) = self.files["papers"]
        number_by_mag = _read_mapping(papers) if self._has_mag_ids else None
        num_papers = _read_num_papers(papers) if number_by_mag is None else len(number_by_mag)
        spooled_N = np.full(num_papers, -1, dtype=np.int64)
        waiting: list[bytes] = []
        for path in newest_first(self.abstracts):
            for number, text in _read_abstracts(path, number_by_mag, num_papers, quarantine):
                if spooled_N[number] < 0:  # the newest of several abstracts
                    spooled_N[number] = spool.num_rows + len(waiting)
                    waiting.append(text.encode())
                if len(waiting) == TEXTS_PER_BLOCK:
                    _spool(waiting, spool)
        _spool(waiting, spool)
        quarantine.check("abstract")
        # A mapping lists papers in the order of their numbers.
        ids = list(number_by_mag or map(str, range(num_papers)))
        keys = pa.array(ids, pa.large_string())
        links = LinkCollector(quarantine, keys, spool.path.parent)
        file = self._file(CITATIONS)
        u_E, v_E = _read_citations(file)
        is_unknown = (np.minimum(u_E, v_E) < 0) | (np.maximum(u_E, v_E) >= num_papers)
        line_E = np.arange(1, len(u_E) + 1)
        quarantine.saw("link", len(u_E))
        shown = np.flatnonzero(is_unknown)[: quarantine.num_examples]
        examples = [(int(line_E[link]), f"{u_E[link]},{v_E[link]}") for link in shown]
        quarantine.add_many(
            "link",
            "link with a number that no paper has",
            file.name,
            int(is_unknown.sum()),
            examples,
        )
        quarantine.check("link")
        links.add(u_E[~is_unknown], v_E[~is_unknown], line_E[~is_unknown], file.name)
        years = self.files["years"]
        date_N = _read_years(years[0], num_papers) if years else None
        corpus = single_group_corpus(keys, spooled_N, links.merged(), date_N)
        if number_by_mag is None:
            return corpus._replace(read_as=[NUMBERS_AS_IDS])
        return corpus

    @property
    def _has_mag_ids(self) -> bool:
        return self._file(MAPPING).is_file() or not self._file(NUM_NODES).is_file()

    def _file(self, name: str) -> Path:
        return plain_or_gzip(Path(self.folder) / name)


def abstract_of(record: Any) -> str:
    """Return the text of a record {"InvertedIndex": {word: [positions]}} of MAG.

    Raises:
        ValueError: if the record holds no such index.
    """
    if not isinstance(record, dict) or "InvertedIndex" not in record:
        raise ValueError("is no inverted index")
    return text_of_index(record["InvertedIndex"])


def _read_mapping(path: Path) -> dict[str, int]:
    """Return the node number of each paper by its MAG id."""
    number_by_id: dict[str, int] = {}
    rows = csv.reader(read_lines(path, "OGB's paper_entidx2name.csv"))
    try:
        header = tuple(name.strip() for name in next(rows, []))
        if header != MAPPING_HEADER:
            raise DataError(
                f"{path}: begins with {','.join(header)!r:.60}, want {','.join(MAPPING_HEADER)!r}"
            )
        for row in rows:
            number = len(number_by_id)
            if len(row) != 2 or row[0] != str(number) or row[1] in number_by_id:
                raise DataError(
                    f"{path}, line {rows.line_num}: got {','.join(row)!r:.60}, "
                    f"want {number},MAG id: numbers in order, each MAG id once"
                )
            number_by_id[row[1]] = number
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: is no CSV ({error})") from None
    if not number_by_id:
        raise DataError(f"{path}: names no paper, want one a line")
    return number_by_id


def _read_num_papers(path: Path) -> int:
    """Return the number of papers among those of all kinds of nodes."""
    wanted = "OGB's num-node-dict.csv: author,...,paper, and a line of numbers"
    lines = [line.strip().split(",") for line in read_lines(path, wanted)]
    count_by_kind = dict(zip(*lines, strict=False)) if len(lines) == 2 else {}
    count = count_by_kind.get("paper", "")
    if re.fullmatch(r"[1-9][0-9]{0,8}", count) is None:
        raise DataError(f"{path}: has no number of papers, want {wanted}")
    return int(count)


def _read_years(path: Path, num_papers: int) -> np.ndarray:
    """Return the year of each paper as a date yyyy0000, -1 where the line holds none."""
    dates = [date_number(line) for line in read_lines(path, "a year a line")]
    if len(dates) != num_papers:
        raise DataError(
            f"{path}: has {len(dates):,} lines, want {num_papers:,}: a year for each paper"
        )
    return np.array(dates, np.int64)


def _read_citations(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the node numbers (E,) of the citing and the cited papers."""
    options = pa.csv.ReadOptions(column_names=["citing", "cited"])
    types = pa.csv.ConvertOptions(column_types={"citing": pa.int64(), "cited": pa.int64()})
    try:
        table = pa.csv.read_csv(str(path), read_options=options, convert_options=types)
    except (OSError, pa.ArrowException, EOFError) as error:
        raise DataError(
            f"{path}: cannot be read as citations ({str(error):.200}), want two numbers a line"
        ) from None
    if table.column("citing").null_count or table.column("cited").null_count:
        raise DataError(f"{path}: has a line without two numbers, want citing,cited")
    return table.column("citing").to_numpy(), table.column("cited").to_numpy()


def _read_abstracts(
    path: Path, number_by_mag: dict[str, int] | None, num_papers: int, quarantine: Quarantine
) -> Iterator[tuple[int, str]]:
    """Yield node number and abstract of each paper; files by MAG ids hold many others.

    Raises:
        DataError: if the file is missing or damaged, or has MAG ids and ``number_by_mag`` is None.
    """
    if number_by_mag is not None and is_openalex(path):
        yield from read_abstracts(path, number_by_mag, quarantine)
        return
    with open_source(
        path, "MAG's PaperAbstractsInvertedIndex.txt, or a CSV ent idx,abstract"
    ) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
        lines = bounded_lines(text, path)
        first = next(lines, "")
        rest = chain([first], lines)
        if tuple(name.strip() for name in first.split(",")) == ABSTRACTS_HEADER:
            yield from _from_csv(rest, path, num_papers, quarantine)
        elif number_by_mag is None:
            raise DataError(
                f"{path}: is no CSV with the columns {','.join(ABSTRACTS_HEADER)}. Other files "
                f"name papers by MAG ids, which {MAPPING}.gz has; torch-geometric deletes it. Put "
                "mapping/ of OGB's mag.zip (raybio prepare download ogb-mag) next to raw/"
            )
        else:
            yield from _from_index(rest, path, number_by_mag, quarantine)


def _from_index(
    lines: Iterator[str], path: Path, number_by_id: dict[str, int], quarantine: Quarantine
) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        name, tab, index = line.partition("\t")
        if tab and name.strip() not in number_by_id:
            continue
        quarantine.saw("abstract", 1)
        try:
            text = abstract_of(json.loads(index))
            if not is_text(text):
                raise ValueError("holds half of a character (an unpaired surrogate)")
        except (ValueError, RecursionError) as error:
            quarantine.add("abstract", BAD_LINE, path.name, number, f"{name[:40]}: {error}")
            continue
        if text:
            yield number_by_id[name.strip()], text


def _from_csv(
    lines: Iterator[str], path: Path, num_papers: int, quarantine: Quarantine
) -> Iterator[tuple[int, str]]:
    csv.field_size_limit(MAX_FIELD_BYTES)
    rows = csv.reader(lines)
    next(rows)  # the header
    try:
        for row in rows:
            quarantine.saw("abstract", 1)
            is_row = len(row) == 2 and re.fullmatch("[0-9]{1,18}", row[0]) is not None
            if not is_row or int(row[0]) >= num_papers:
                quarantine.add("abstract", BAD_ROW, path.name, rows.line_num, ",".join(row)[:60])
                continue
            text = without_heading(row[1])
            if text:
                yield int(row[0]), text
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: is no CSV ({error})") from None


def _spool(waiting: list[bytes], spool: Spool) -> None:
    if waiting:
        spool.append(pa.array(waiting, pa.large_binary()))
    waiting.clear()
