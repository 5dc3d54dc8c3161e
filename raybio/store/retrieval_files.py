"""Files of a retrieval task in BEIR's layout (Thakur et al. 2021): corpus, queries, judgments.

Shape letters: C documents, Q queries with a relevant document, P (query, relevant document) pairs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raybio.core.errors import DataError
from raybio.store.data_sets import is_table
from raybio.store.table_rows import read_columns, shown_names

ID = "_id"
TEXT = "text"
TITLE = "title"
JUDGMENT_COLUMNS = ("query-id", "corpus-id", "score")


@dataclass(frozen=True)
class RetrievalFiles:
    """Queries, documents, and which documents are relevant.

    Attributes:
        document_ids: in ascending order, which decides ties, as in sentence-transformers.
        documents: their texts (C): title and text, divided by a blank.
        queries: texts (Q) of the queries that have a relevant document, in order of the file.
        position_Q: their positions among all queries of the file, from 0.
        indptr: (Q + 1,) query q has the relevant documents ``indices[indptr[q] : indptr[q + 1]]``.
        indices: positions (P,) of documents.
        remarks: what a reader of the scores should know, without a full stop.
    """

    document_ids: list[str]
    documents: list[str]
    queries: list[str]
    position_Q: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]
    remarks: list[str]


def read_retrieval_files(corpus: Path, queries: Path, qrels: Path) -> RetrievalFiles:
    """Read a task. Files may be gzip, or tables of other kinds with the same columns.

    Args:
        corpus: JSON lines with ``_id``, ``text`` and perhaps ``title``.
        queries: JSON lines with ``_id`` and ``text``; a title is not read, as BEIR's loader does.
        qrels: TSV with the header query-id, corpus-id, score; scores above 0 are relevant.

    Raises:
        DataError: if a file is missing or damaged, an id is missing or there twice, the judgments
            name unknown ids or contradict each other, or no document is relevant. The message names
            the file, and the line of an example.
    """
    document_by_id = _read_texts(corpus, has_titles=True)
    query_by_id = _read_texts(queries, has_titles=False)
    relevant_by_query, has_grades = _read_judgments(qrels, query_by_id, document_by_id)
    document_ids = sorted(document_by_id)
    documents = [document_by_id[document_id] for document_id in document_ids]
    position_by_id = {document_id: row for row, document_id in enumerate(document_ids)}
    query_ids = list(query_by_id)
    positions = [row for row, query_id in enumerate(query_ids) if query_id in relevant_by_query]
    evaluated_ids = [query_ids[position] for position in positions]
    gold = [
        sorted(position_by_id[each] for each in relevant_by_query[name]) for name in evaluated_ids
    ]
    texts = [query_by_id[query_id] for query_id in evaluated_ids]
    return RetrievalFiles(
        document_ids,
        documents,
        texts,
        np.asarray(positions, np.int64),
        np.cumsum([0, *map(len, gold)]),
        np.concatenate([np.asarray(rows, np.int64) for rows in gold]),
        [*_remarks(query_by_id, evaluated_ids, document_by_id), *(_GRADES if has_grades else ())],
    )


_GRADES = ("scores above 1 count as 1: relevance is yes or no",)


def _remarks(
    query_by_id: dict[str, str], evaluated_ids: Sequence[str], document_by_id: dict[str, str]
) -> Iterator[str]:
    num_unjudged = len(query_by_id) - len(evaluated_ids)
    if num_unjudged:
        yield (
            f"{num_unjudged:,} of {len(query_by_id):,} queries have no relevant document and are "
            "left out"
        )
    num_empty = sum(not document for document in document_by_id.values())
    if num_empty:
        yield f"{num_empty:,} of {len(document_by_id):,} documents are empty; they stay candidates"
    num_empty = sum(not query_by_id[query_id] for query_id in evaluated_ids)
    if num_empty:
        yield f"{num_empty:,} of {len(evaluated_ids):,} queries are empty; they count"
    num_shared = sum(query_id in document_by_id for query_id in evaluated_ids)
    if num_shared:
        yield (
            f"{num_shared:,} queries have the id of a document, which stays a candidate, as in "
            "sentence-transformers; BEIR's own evaluation leaves it out"
        )


def _read_texts(path: Path, *, has_titles: bool) -> dict[str, str]:
    """Return the texts of a file by id, in its order, with titles before them if they count."""
    wanted = f"columns {ID}, {TEXT}" + (f" and perhaps {TITLE}" if has_titles else "")
    _check_suffix(path, wanted)
    is_json = ".jsonl" in path.name.lower()

    def select(names: Sequence[str]) -> list[str]:
        _check_columns(path, names, (ID, TEXT))
        # In JSON lines, the first object may lack a title although others have one.
        return [ID, TEXT, *([TITLE] if has_titles and (is_json or TITLE in names) else [])]

    text_by_id: dict[str, str] = {}
    line_by_id: dict[str, int] = {}
    for rows in read_columns(path, wanted, select):
        titles = rows.columns[2] if len(rows.columns) > 2 else [""] * len(rows.lines)
        for line, name, text, title in zip(
            rows.lines, rows.columns[0], rows.columns[1], titles, strict=True
        ):
            if not name:
                raise DataError(f"{path}, line {line}: has no {ID}, want one")
            first = line_by_id.setdefault(name, line)
            if first != line:
                raise DataError(
                    f"{path}, line {line}: has the {ID} {name!r:.60} of line {first}; want each "
                    "once"
                )
            text_by_id[name] = f"{title} {text}".strip()
    return text_by_id


def _read_judgments(
    path: Path, query_by_id: dict[str, str], document_by_id: dict[str, str]
) -> tuple[dict[str, list[str]], bool]:
    """Return the relevant documents of each query that has any, and whether scores are graded."""
    wanted = f"the header {', '.join(JUDGMENT_COLUMNS)}"
    _check_suffix(path, wanted)

    def select(names: Sequence[str]) -> Sequence[str]:
        _check_columns(path, names, JUDGMENT_COLUMNS)
        return JUDGMENT_COLUMNS

    unknown: dict[str, list[str]] = {"query-id": [], "corpus-id": []}
    is_relevant_by_pair: dict[tuple[str, str], bool] = {}
    num_rows = 0
    has_grades = False
    for rows in read_columns(path, wanted, select):
        num_rows += len(rows.lines)
        for line, query_id, document_id, text in zip(rows.lines, *rows.columns, strict=True):
            score = _score(text, f"{path}, line {line}")
            has_grades |= score > 1
            if query_id not in query_by_id:
                unknown["query-id"].append(f"{query_id!r:.60} (line {line})")
            if document_id not in document_by_id:
                unknown["corpus-id"].append(f"{document_id!r:.60} (line {line})")
            pair = (query_id, document_id)
            if is_relevant_by_pair.setdefault(pair, score > 0) != (score > 0):
                raise DataError(
                    f"{path}, line {line}: query {query_id!r:.60} and document "
                    f"{document_id!r:.60} are relevant in one line and not in another; want each "
                    "pair once"
                )
    for column, known in (("query-id", query_by_id), ("corpus-id", document_by_id)):
        if unknown[column]:
            file = "file of queries" if known is query_by_id else "corpus"
            raise DataError(
                f"{path}: {len(unknown[column]):,} of {num_rows:,} lines have a {column} that is "
                f"not in the {file}, such as {unknown[column][0]}; the {file} has ids such as "
                f"{next(iter(known), 'none')!r:.60}. Remove these lines, or give the right files"
            )
    relevant_by_query: dict[str, list[str]] = {}
    for (query_id, document_id), is_relevant in is_relevant_by_pair.items():
        if is_relevant:
            relevant_by_query.setdefault(query_id, []).append(document_id)
    if not relevant_by_query:
        raise DataError(
            f"{path}: none of its {num_rows:,} lines has a score above 0; want relevant documents"
        )
    return relevant_by_query, has_grades


def _score(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if math.isnan(score):
        raise DataError(f"{where}: got the score {text!r:.60}, want a number")
    return score


def _check_suffix(path: Path, wanted: str) -> None:
    if not is_table(path):
        raise DataError(
            f"{path}: want a .jsonl, .tsv or .csv file (.gz too) or a .parquet file with {wanted}"
        )


def _check_columns(path: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in names]
    if missing:
        raise DataError(
            f"{path}: has the columns {shown_names(names)}; want {', '.join(wanted)}, as in BEIR's "
            "files"
        )
