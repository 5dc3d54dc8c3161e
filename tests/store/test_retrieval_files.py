"""Files in BEIR's layout: what is read, and what is refused with an example."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from raybio.core.errors import DataError
from raybio.store.retrieval_files import RetrievalFiles, read_retrieval_files

CORPUS = [
    {"_id": "d2", "text": "The BLAST programs.", "title": "Gapped BLAST", "metadata": {}},
    {"_id": "d10", "title": "", "text": "A learning machine. "},
    {"_id": "d1", "title": "", "text": ""},
]
QUERIES = [{"_id": "q1", "text": "which machine"}, {"_id": "q2", "text": "unjudged"}]
QUERIES += [{"_id": "d2", "text": "BLAST"}, {"_id": "q4", "text": "none is relevant"}]
QRELS = [("q1", "d10", 1), ("d2", "d2", 2), ("d2", "d1", 1), ("q1", "d1", 0), ("q4", "d1", -1)]


def read(
    folder: Path,
    corpus: list[dict[str, object]] = CORPUS,
    queries: list[dict[str, object]] = QUERIES,
    qrels: list[tuple[object, ...]] = QRELS,
    header: str = "query-id\tcorpus-id\tscore",
) -> RetrievalFiles:
    with gzip.open(folder / "corpus.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in corpus)
    (folder / "queries.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in queries))
    lines = [header, *("\t".join(map(str, row)) for row in qrels)]
    (folder / "test.tsv").write_text("\n".join(lines) + "\n")
    names = ("corpus.jsonl.gz", "queries.jsonl", "test.tsv")
    return read_retrieval_files(*(folder / name for name in names))


def test_documents_are_in_order_of_their_ids_and_queries_without_relevant_ones_are_left_out(
    tmp_path: Path,
) -> None:
    files = read(tmp_path)
    assert files.document_ids == ["d1", "d10", "d2"]
    assert files.documents == ["", "A learning machine.", "Gapped BLAST The BLAST programs."]
    assert files.queries == ["which machine", "BLAST"]
    np.testing.assert_array_equal(files.position_Q, [0, 2])
    np.testing.assert_array_equal(files.indptr, [0, 1, 3])
    np.testing.assert_array_equal(files.indices, [1, 0, 2])
    remarks = " / ".join(files.remarks)
    assert "2 of 4 queries have no relevant document" in remarks
    assert "1 of 3 documents are empty; they stay candidates" in remarks
    assert "1 queries have the id of a document" in remarks
    assert "scores above 1 count as 1" in remarks
    plain = read(tmp_path, queries=QUERIES[:1], qrels=QRELS[:1], corpus=CORPUS[:2])
    assert plain.remarks == []


def test_titles_that_the_first_document_lacks_are_read(tmp_path: Path) -> None:
    files = read(tmp_path, corpus=[{"_id": 1, "text": "a"}, {"_id": 2, "title": "b", "text": "c"}],
                 queries=QUERIES[:1], qrels=[("q1", 1, 1)])  # fmt: skip
    assert files.documents == ["a", "b c"]


def test_other_tables_with_the_same_columns_are_read(tmp_path: Path) -> None:
    read(tmp_path)
    (tmp_path / "corpus.csv").write_text('_id,text\nd10,"a, b"\n')
    (tmp_path / "test.csv").write_text("query-id,corpus-id,score\nq1,d10,1\n")
    names = ("corpus.csv", "queries.jsonl", "test.csv")
    files = read_retrieval_files(*(tmp_path / name for name in names))
    assert files.documents == ["a, b"]
    assert files.queries == ["which machine"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            {"qrels": [*QRELS, ("q9", "d1", 1)]},
            r"1 of 6 lines have a query-id that is not in the file of queries, such as 'q9' \(line 7\); "
            "the file of queries has ids such as 'q1'",
        ),
        (
            {"qrels": [("q1", "x", 1), ("q2", "y", 0)]},
            r"2 of 2 lines have a corpus-id that is not in the corpus, such as 'x' \(line 2\)",
        ),
        ({"qrels": [*QRELS, ("q1", "d10", 0)]}, "line 7: .*relevant in one line and not in"),
        ({"qrels": [("q1", "d1", "high")]}, "line 2: got the score 'high', want a number"),
        ({"qrels": [("q1", "d1", "nan")]}, "line 2: got the score 'nan', want a number"),
        ({"qrels": [("q1", "d1", 0)]}, "none of its 1 lines has a score above 0"),
        ({"header": "q1\td1\t1"}, "has the columns q1, d1, 1; want query-id, corpus-id, score"),
        ({"corpus": [*CORPUS, CORPUS[1]]}, "line 4: has the _id 'd10' of line 2; want each once"),
        ({"queries": [{"_id": "q1", "query": "a"}]}, "has the columns _id, query; want _id, text"),
        ({"queries": [*QUERIES, {"text": "a"}]}, "line 5: has no _id"),
    ],
)
def test_what_does_not_fit_is_refused_with_an_example(
    tmp_path: Path, given: dict[str, list[tuple[object, ...]]], wanted: str
) -> None:
    with pytest.raises(DataError, match=wanted):
        read(tmp_path, **given)  # type: ignore[arg-type]


def test_files_of_unknown_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"qrels.txt: want a .jsonl, .tsv or .csv file"):
        (tmp_path / "qrels.txt").write_text("q1 0 d1 1\n")
        read(tmp_path)
        read_retrieval_files(
            tmp_path / "corpus.jsonl.gz", tmp_path / "queries.jsonl", tmp_path / "qrels.txt"
        )


def test_titles_of_queries_are_not_read(tmp_path: Path) -> None:
    files = read(tmp_path, queries=[{**QUERIES[0], "title": "number 12"}], qrels=QRELS[:1])
    assert files.queries == ["which machine"]
