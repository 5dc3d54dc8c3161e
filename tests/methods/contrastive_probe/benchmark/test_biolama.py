import json

import numpy as np
import pytest

from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.accuracy import evaluate_predictions
from raybio.methods.contrastive_probe.benchmark.biolama import read_benchmark, read_biolama
from raybio.methods.contrastive_probe.config import ProbeConfig
from raybio.methods.contrastive_probe.run_probe import write_probe_report

ASPIRIN = {
    "uuid": "D1-P1",
    "predicate_id": "P1",
    "sub_uri": "D1",
    "sub_label": "aspirin",
    "sub_aliases": ["acetylsalicylic acid"],
    "obj_uris": ["M1", "M2"],
    "obj_labels": ["pain", "fièvre"],
    "obj_aliases": [["ache"], []],
}
PROMPTS = [{"relation": "P1", "template": "[X] is used for [Y] ."}]


def lines(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records),
        encoding="utf-8",
    )
    return path


def source(folder, *records, prompts=PROMPTS):
    lines(folder / "triples_processed" / "P1" / "test.jsonl", *records)
    lines(folder / "prompts" / "manual.jsonl", *prompts)
    return folder


def test_a_source_of_biolama_is_a_benchmark_whose_answers_are_labels_and_aliases(tmp_path):
    folder = source(tmp_path, ASPIRIN)
    lines(
        tmp_path / "triples_processed" / "P2" / "test.jsonl",
        ASPIRIN | {"sub_label": "pain", "sub_uri": "M1"},
    )
    lines(tmp_path / "triples_processed" / "P2" / "train.jsonl", ASPIRIN, ASPIRIN)
    benchmark = read_benchmark(folder)
    assert benchmark.relations == ("P1", "P2")
    assert benchmark.prompts == ("[X] is used for [Y] .", "[X] P2 [Y].")
    assert benchmark.queries("<mask>") == ["aspirin is used for <mask> .", "pain P2 <mask>."]
    assert benchmark.names == ("ache", "aspirin", "fièvre", "pain")
    assert benchmark.answer_P.tolist() == [0, 2, 3, 0, 2, 3]
    assert benchmark.cuis == ("D1", "M1", "M2")
    assert benchmark.cui_E.tolist() == [1, 0, 2, 1]
    assert read_biolama(folder, prompts="default").prompts[0] == "[X] P1 [Y]."


def test_names_that_equal_an_answer_but_for_case_are_answers(tmp_path):
    back = ASPIRIN | {"sub_label": "Pain", "sub_uri": "M1"}
    back |= {"obj_labels": ["ASPIRIN"], "obj_uris": ["D1"], "obj_aliases": [[]]}
    benchmark = read_biolama(source(tmp_path, ASPIRIN, back))
    assert benchmark.names == ("ASPIRIN", "Pain", "ache", "aspirin", "fièvre", "pain")
    first, second = (
        [benchmark.names[name] for name in benchmark.answers(query)] for query in (0, 1)
    )
    assert first == ["Pain", "ache", "fièvre", "pain"]
    assert second == ["ASPIRIN", "aspirin"]
    # An uncased encoder ties both, and the capitals come first.
    predicted_QK = np.full((2, 10), -1)
    predicted_QK[:, 0] = [benchmark.names.index("Pain"), benchmark.names.index("aspirin")]
    assert evaluate_predictions(benchmark, predicted_QK, "name").micro(1) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obj_uris": ["M1"]}, "record on line 2, field 'obj_uris': .*as many as obj_labels"),
        ({"obj_labels": [], "obj_uris": []}, "one at least"),
        ({"sub_label": " "}, "record on line 2, field 'sub_label'"),
        ({"obj_aliases": [["ache"]]}, "field 'obj_aliases': .*a list of 2 lists"),
        ({"obj_aliases": [["ache"], [1]]}, "field 'obj_aliases': .*list of texts"),
    ],
)
def test_a_bad_record_is_named_with_file_and_line(tmp_path, change, message):
    with pytest.raises(DataError, match=rf"test\.jsonl, {message}|test\.jsonl, .*{message}"):
        read_biolama(source(tmp_path, ASPIRIN, ASPIRIN | change))


def test_another_layout_than_biolamas_is_refused(tmp_path):
    folder = source(tmp_path, ASPIRIN, prompts=[{"relation": "P1", "template": "[X] is used."}])
    with pytest.raises(DataError, match=r"manual\.jsonl, record on line 1: .*one \[Y\]"):
        read_biolama(folder)
    with pytest.raises(DataError, match=r"holds no query in <relation>/test\.jsonl"):
        read_biolama(folder / "prompts")
    with pytest.raises(DataError, match="has no hard set"):
        read_benchmark(folder, "hard")
    with pytest.raises(DataError, match="has no hard set"):
        write_probe_report([], [folder], tmp_path, ProbeConfig(), subsets=("full", "hard"))
    (folder / "prompts" / "manual.jsonl").unlink()
    with pytest.raises(
        DataError, match=r"manual\.jsonl: cannot be read .*want a file of BioLAMA's"
    ):
        read_biolama(folder)
    (folder / "triples_processed" / "P1" / "test.jsonl").write_text("{}\n{")
    with pytest.raises(DataError, match="line 1, field 'sub_label': nothing"):
        read_biolama(folder)
    (folder / "triples_processed" / "P1" / "test.jsonl").write_text(json.dumps(ASPIRIN) + "\n{")
    with pytest.raises(DataError, match=r"test\.jsonl, line 2: is no JSON"):
        read_biolama(folder)
    (folder / "triples_processed" / "P1" / "test.jsonl").write_bytes(b"\xff")
    with pytest.raises(DataError, match="is not UTF-8"):
        read_biolama(folder)
