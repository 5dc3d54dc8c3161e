"""The final report and its JSON."""

import json
import math

import numpy as np
import pytest

from raybio.core.final_report import FinalReport, LabeledMap, UnitScores

SCORES = {
    "chance": {"test": {"f1": {"value": 0.1}}},
    "initial": {"test": {"f1": {"value": 0.2, "low": 0.1, "high": 0.3}}},
    "trained": {"test": {"f1": {"value": 0.8, "low": 0.7, "high": 0.9}}},
}


def report() -> FinalReport:
    units = UnitScores(np.arange(2), {"f1": np.array([0.6, 1.0])})
    points = LabeledMap(np.array([[0.5, 1.0], [2.0, 3.0]], np.float32), ["human", "yeast"])
    return FinalReport(
        scores=SCORES,
        spread={"initial": {"spread/mean_cosine": 0.5}, "trained": {"spread/mean_cosine": 0.1}},
        unit_scores={"test": units},
        embedding_map=points,
        sizes={"test": "2 links of 3 nodes"},
        remarks=["2 of 9 nodes"],
        details={"rules": {"trained": {"neighbors": 5}}},
    )


def test_the_json_holds_details_next_to_the_scores_and_no_unit_scores() -> None:
    assert report().to_json() == {
        "scores": SCORES,
        "spread": {"initial": {"spread/mean_cosine": 0.5}, "trained": {"spread/mean_cosine": 0.1}},
        "sizes": {"test": "2 links of 3 nodes"},
        "remarks": ["2 of 9 nodes"],
        "rules": {"trained": {"neighbors": 5}},
        "embedding_map": {"positions": [[0.5, 1.0], [2.0, 3.0]], "groups": ["human", "yeast"]},
    }


def test_the_json_is_read_back_as_it_was_written() -> None:
    content = json.loads(json.dumps(report().to_json()))
    read = FinalReport.from_json(content)
    assert read is not None
    assert read.to_json() == report().to_json()
    assert list(read.scores) == ["chance", "initial", "trained"]
    assert read.unit_scores == {}
    assert read.remarks == ["2 of 9 nodes"]
    assert not {"sizes", "remarks"} & read.details.keys()


@pytest.mark.parametrize("content", [{}, {"spread": {}}])
def test_a_run_without_final_evaluation_has_no_report(content: dict) -> None:
    assert FinalReport.from_json(content) is None


def test_a_score_that_is_null_was_undefined() -> None:
    read = FinalReport.from_json({"scores": {"trained": {"test": {"f1": {"value": None}}}}})
    assert read is not None
    assert math.isnan(read.scores["trained"]["test"]["f1"]["value"])
