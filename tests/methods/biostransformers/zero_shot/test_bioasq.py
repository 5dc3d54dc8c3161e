import gzip
import json
from collections import Counter

import pytest

from raybio.core.errors import DataError
from raybio.methods.biostransformers.zero_shot.datasets.bioasq import Snippet, read_bioasq
from tests.paths import SHARED_DATA

BATCHES = SHARED_DATA / "bioasq_7b"
real = pytest.mark.skipif(not BATCHES.exists(), reason="../shared/data/bioasq_7b is not there")
QUESTION = {
    "id": "5c58",
    "type": "yesno",
    "body": "Is it effective?",
    "ideal_answer": ["Yes. It is."],
    "exact_answer": "yes",
    "snippets": [{"text": " It works. ", "document": "http://pubmed/1"}],
}


def batch(path, *questions):
    raw = json.dumps({"questions": questions}).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def read_one(tmp_path, **fields):
    (one,) = read_bioasq(batch(tmp_path / "7B1.json", QUESTION | fields))
    return one


def test_a_yes_no_question_has_snippets_and_answers(tmp_path):
    one = read_one(tmp_path)
    assert (one.id, one.type, one.body, one.is_yes) == ("5c58", "yesno", "Is it effective?", True)
    assert one.snippets == (Snippet("It works.", "http://pubmed/1"),)
    assert one.ideal_answers == ("Yes. It is.",)


def test_the_ways_in_which_editions_write_answers_are_understood(tmp_path):
    assert read_one(tmp_path, exact_answer=["No"]).is_yes is False
    assert read_one(tmp_path, ideal_answer="Yes.").ideal_answers == ("Yes.",)
    without = {
        name: value for name, value in QUESTION.items() if name not in ("exact_answer", "snippets")
    }
    (one,) = read_bioasq(batch(tmp_path / "7B2.json", without | {"type": "summary"}))
    assert (one.is_yes, one.snippets) == (None, ())


def test_batches_of_a_folder_are_read_in_order_of_name(tmp_path):
    batch(tmp_path / "b.json.gz", QUESTION | {"id": "2"})
    batch(tmp_path / "a.json", QUESTION | {"id": "3"}, QUESTION | {"id": "1"})
    assert [one.id for one in read_bioasq(tmp_path)] == ["3", "1", "2"]
    assert [one.id for one in read_bioasq([tmp_path / "b.json.gz"])] == ["2"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("body", "", "field 'body': '', want a text"),
        ("type", "riddle", "one of yesno, factoid, list, summary"),
        ("ideal_answer", [], "at least one text"),
        ("ideal_answer", {}, "want a list of texts"),
        ("exact_answer", "maybe", "want yes or no"),
        ("snippets", {}, "want a list"),
        ("snippets", ["text"], "snippet 1: is a str"),
        (
            "snippets",
            [{"text": "a", "document": "d"}, {"text": "", "document": "d"}],
            "snippet 2, field 'text'",
        ),
    ],
)
def test_a_bad_field_is_named_with_file_and_record(tmp_path, field, value, message):
    path = batch(tmp_path / "7B1.json", QUESTION | {field: value})
    with pytest.raises(DataError, match=rf"7B1\.json, record 5c58,? .*{message}"):
        read_bioasq(path)


def test_entities_that_nobody_reads_may_have_any_form(tmp_path):
    for kind in ("factoid", "list"):
        for value in ([["a", "b"], ["c"]], ["a"], "a", [], [[1]], None):
            one = read_one(tmp_path, type=kind, exact_answer=value)
            assert (one.type, one.is_yes, one.ideal_answers) == (kind, None, ("Yes. It is.",))


def test_a_file_that_is_no_batch_or_comes_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no"):
        read_bioasq(tmp_path)
    (tmp_path / "7B1.json").write_text("{}")
    with pytest.raises(DataError, match='has no list of "questions"'):
        read_bioasq(tmp_path)
    batch(tmp_path / "7B1.json", {"body": "?"})
    with pytest.raises(DataError, match="record number 1, field 'id': nothing"):
        read_bioasq(tmp_path)
    path = batch(tmp_path / "7B1.json", QUESTION)
    with pytest.raises(DataError, match="record 5c58: this question was read before"):
        read_bioasq([path, path])


@real
def test_the_batches_have_the_counts_of_their_readme():
    questions = read_bioasq(BATCHES)
    assert Counter(one.type for one in questions) == {
        "factoid": 162,
        "yesno": 140,
        "summary": 110,
        "list": 88,
    }
    assert Counter(one.is_yes for one in questions) == {True: 94, False: 46, None: 360}
    assert all(one.snippets for one in questions if one.type == "yesno")
