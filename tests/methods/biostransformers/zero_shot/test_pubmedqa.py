import gzip
import json
from collections import Counter

import pytest

from raybio.core.errors import DataError
from raybio.methods.biostransformers.zero_shot.datasets.pubmedqa import read_pubmedqa
from tests.paths import SHARED_DATA

PQA_L = SHARED_DATA / "pubmedqa" / "ori_pqal.json.gz"
real = pytest.mark.skipif(not PQA_L.exists(), reason="../shared/data/pubmedqa is not there")
RECORD = {
    "QUESTION": "Does it help? ",
    "CONTEXTS": ["It was tried.", "It was measured."],
    "LABELS": ["AIM", "RESULTS"],
    "MESHES": ["Humans", "Mice"],
    "YEAR": "2011",
    "final_decision": "maybe",
    "LONG_ANSWER": "Nobody knows.",
}


def write(path, content):
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize("name", ["ori.json", "ori.json.gz"])
def test_a_record_becomes_a_question_with_its_article(tmp_path, name):
    (one,) = read_pubmedqa(write(tmp_path / name, {"12": RECORD}))
    assert (one.pmid, one.question, one.year, one.decision) == (
        "12",
        "Does it help?",
        2011,
        "maybe",
    )
    assert one.contexts == ("It was tried.", "It was measured.")
    assert one.context == "It was tried. It was measured."
    assert (one.long_answer, one.mesh_terms) == ("Nobody knows.", ("Humans", "Mice"))


def test_fields_that_other_editions_lack_may_be_missing(tmp_path):
    record = {name: RECORD[name] for name in ("QUESTION", "CONTEXTS", "LONG_ANSWER")}
    (one,) = read_pubmedqa(write(tmp_path / "ori.json", {"12": record}))
    assert (one.decision, one.year, one.mesh_terms) == (None, None, ())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("QUESTION", " ", "field 'QUESTION': ' ', want a text"),
        ("CONTEXTS", [], "field 'CONTEXTS'.*at least one"),
        ("CONTEXTS", "text", "want a list of texts"),
        ("LABELS", ["AIM"], "one name for each of the 2 contexts"),
        ("LONG_ANSWER", None, "field 'LONG_ANSWER': None"),
        ("MESHES", [1], r"field 'MESHES': \[1\]"),
        ("YEAR", "MMXI", "a year such as '2011'"),
        ("YEAR", 99_999, "a year such as '2011'"),
        ("QUESTION", "\ud800", "field 'QUESTION'.*want a text"),
        ("MESHES", ["Mice", "\udfff"], "field 'MESHES'.*want a list of texts"),
        ("final_decision", "perhaps", "one of yes, no, maybe"),
        ("final_decision", ["yes"], "one of yes, no, maybe"),
    ],
)
def test_a_bad_field_is_named_with_file_and_record(tmp_path, field, value, message):
    path = write(tmp_path / "ori.json", {"11": RECORD, "12": RECORD | {field: value}})
    with pytest.raises(DataError, match=rf"ori\.json, record 12, .*{message}"):
        read_pubmedqa(path)


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("ori.json", b"{", "is no JSON"),
        ("ori.json", b"\xff\xfe", "is no JSON"),
        ("ori.json", b"[" * 200_000, "is no JSON"),
        ("ori.json", b"[]", "holds a list, want an object"),
        ("ori.json", b"{}", "holds no question"),
        ("ori.json", b'{"12": []}', "record 12: is a list, want an object"),
        ("ori.json", b'{"12": {}, "13": {}, "12": {}}', "names '12' twice in one object"),
        ("ori.json", b'{"12": {"YEAR": ' + b"9" * 5000 + b"}}", "is no JSON"),
        (
            "ori.json",
            json.dumps({"9" * 18: RECORD}).encode(),
            "record '9{18}': its name is no PMID",
        ),
        ("ori.json", json.dumps({"PMC12": RECORD}).encode(), "record 'PMC12': its name is no PMID"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, name, raw, message):
    with pytest.raises(DataError, match=message):
        read_pubmedqa(write(tmp_path / name, raw))


def test_a_torn_or_missing_file_is_refused(tmp_path):
    whole = write(tmp_path / "ori.json.gz", {"12": RECORD}).read_bytes()
    for name, raw in (
        ("torn.json.gz", whole[:-20]),
        ("bent.json.gz", whole[:20] + b"x" * 60),
    ):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(DataError, match=f"{name}: the gzip stream"):
            read_pubmedqa(tmp_path / name)
    with pytest.raises(DataError, match=r"absent\.json: cannot be read"):
        read_pubmedqa(tmp_path / "absent.json")


@real
def test_pqa_l_has_the_counts_of_its_readme():
    questions = read_pubmedqa(PQA_L)
    assert Counter(one.decision for one in questions) == {"yes": 552, "no": 338, "maybe": 110}
    assert len({one.long_answer for one in questions}) == 1000
    assert all(one.mesh_terms for one in questions)
    assert sum(one.year is None for one in questions) == 58
