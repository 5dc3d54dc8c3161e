"""Records on disk: their format versions, and files that are damaged."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raybio.core.errors import ConfigError, RecordError, RecordFormatError
from raybio.core.final_report import nan_for_null
from raybio.core.records import (
    FORMATS,
    MAX_RECORD_BYTES,
    export_record,
    fields_of,
    from_record,
    read_recomputable,
    read_record,
    write_record,
)


def test_what_is_written_is_read_again_and_the_file_names_kind_and_version(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    content = {"step": np.float32(1.5), "nested": {"é": [1, None]}}
    write_record(path, "outcome", content)
    assert read_record(path, "outcome") == {"step": 1.5, "nested": {"é": [1, None]}}
    written = json.loads(path.read_text())
    assert (written["format"], written["version"]) == ("outcome", FORMATS["outcome"].version)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_path_with_a_byte_that_is_no_utf_8_is_recorded(tmp_path: Path) -> None:
    # As Python reads it from the command line.
    store = os.fsdecode(b"/data/st\xff")
    write_record(tmp_path / "run.json", "run", {"store": store, "note": "λ"})
    (tmp_path / "run.json").read_text(encoding="utf-8")
    assert read_record(tmp_path / "run.json", "run") == {"store": store, "note": "λ"}


def test_undefined_numbers_become_null_and_are_read_as_nan(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_record(path, "result", {"scores": {"a": float("nan"), "b": float("inf"), "c": 1.0}})
    scores = (read_record(path, "result") or {})["scores"]
    assert scores == {"a": None, "b": None, "c": 1.0}
    assert np.isnan([nan_for_null(scores)["a"], nan_for_null(scores)["b"]]).all()
    assert nan_for_null(scores)["c"] == 1.0


def test_content_with_the_keys_of_the_header_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keys of its header"):
        write_record(tmp_path / "a.json", "run", {"version": 3})
    with pytest.raises(KeyError):
        write_record(tmp_path / "a.json", "unknown", {})
    assert [*tmp_path.iterdir()] == []


def test_a_missing_record_is_none(tmp_path: Path) -> None:
    assert read_record(tmp_path / "a.json", "run") is None
    assert read_record(tmp_path / "a" / "b.json", "run") is None
    assert read_recomputable(tmp_path / "a.json", "run") is None


@pytest.mark.parametrize("text", ["", "{", "\0" * 40, '{"format": "run"', "[" * 100_000])
def test_a_damaged_record_is_an_error_with_advice(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"run\.json: damaged, not JSON .* --store") as raised:
        read_record(path, "run")
    assert not isinstance(raised.value, RecordFormatError)
    with caplog.at_level(logging.WARNING):
        assert read_recomputable(path, "run") is None
    assert "run.json: damaged, not JSON" in caplog.text
    assert "it is written again" in caplog.text


@pytest.mark.parametrize("kind", FORMATS)
def test_a_changed_digit_of_any_kind_of_record_is_found(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.json"
    write_record(path, kind, {"score": 0.812, "names": ["é"]})
    assert read_record(path, kind) == {"score": 0.812, "names": ["é"]}
    path.write_text(path.read_text().replace("0.812", "0.912"))
    with pytest.raises(RecordError, match=r"a\.json: damaged, its checksum is not that") as raised:
        read_record(path, kind)
    assert not isinstance(raised.value, RecordFormatError)
    assert read_recomputable(path, kind) is None
    assert "a.json: damaged, not what was written; it is written again" in caplog.text


@pytest.mark.parametrize("checksum", ["null", '"0"', "3"])
def test_a_changed_checksum_is_found(checksum: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_record(path, "run", {"method": "sppt_mag"})
    record = json.loads(path.read_text())
    path.write_text(path.read_text().replace(f'"{record["checksum"]}"', checksum))
    with pytest.raises(RecordError, match="its checksum is not that of what it holds"):
        read_record(path, "run")


def test_a_record_that_lost_its_checksum_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_record(path, "run", {"method": "sppt_mag"})
    path.write_text(path.read_text().replace('"checksum"', '"checksun"'))
    with pytest.raises(RecordError, match="its checksum is not that of what it holds"):
        read_record(path, "run")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([], "got no format version, want version 1 of 'run': .*make it again"),
        (None, "got no format version"),
        ({"system": "sppt_protein"}, "got no format version"),
        ({"format": "run"}, "got no format version"),
        ({"format": "run", "version": True}, "got no format version"),
        ({"format": "run", "version": 1.0}, "got no format version"),
        (
            {"format": "run", "version": 0},
            "got version 0 of 'run', want version 1: .*make it again",
        ),
        ({"format": "run", "version": -(10**18)}, "got version -10* of 'run', want version 1"),
        ({"format": "run", "version": "2"}, "got no format version, want version 1 of 'run'"),
        ({"format": "run", "version": True}, "got no format version, want version 1 of 'run'"),
        (
            {"format": "run", "version": 2},
            "got version 2 of 'run', want version 1: it was written by a newer version.*update it",
        ),
        ({"format": "launch", "version": 1}, "got a record of 'launch', want one of 'run'"),
    ],
)
def test_another_version_or_kind_is_refused_in_one_sentence(
    content: object, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(content))
    for read in (read_record, read_recomputable):
        with pytest.raises(RecordFormatError, match=complaint) as raised:
            read(path, "run")
        assert str(raised.value).count(". ") == 0 and "\n" not in str(raised.value)


@dataclass
class Part:
    rows: int
    seconds: float
    name: str | None
    facts: Mapping[str, int] = field(default_factory=dict)


WHOLE = {"rows": 3, "seconds": 1, "name": None}


def test_the_fields_of_a_dataclass_are_read_whatever_else_another_version_wrote() -> None:
    assert fields_of(Part, {**WHOLE, "since": "then"}, Path("a.json")) == WHOLE
    assert Part(**fields_of(Part, {**WHOLE, "facts": {"a": 1}}, Path("a.json"))).facts == {"a": 1}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"rows": 3, "name": "a"}, "lacks seconds"),
        ({**WHOLE, "rows": True}, "rows is True"),
        ({**WHOLE, "seconds": "x" * 1000}, "seconds is 'xxx"),
        ({**WHOLE, "name": 3}, "name is 3"),
        ({**WHOLE, "facts": [1]}, r"facts is \[1\]"),
        ([WHOLE], "want an object"),
    ],
)
def test_a_record_without_a_field_or_of_another_type_is_refused(
    content: object, complaint: str
) -> None:
    with pytest.raises(RecordError, match=f"^a.json: .*{complaint}.*Another version") as raised:
        fields_of(Part, content, Path("a.json"))
    assert len(str(raised.value)) < 200


def test_a_record_larger_than_any_that_is_written_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(MAX_RECORD_BYTES + 1)  # a hole, which takes no room
    with pytest.raises(
        RecordError, match="holds 268,435,457 bytes, want at most 268,435,456. Give"
    ):
        read_record(path, "run")
    assert read_recomputable(path, "run") is None
    assert "holds 268,435,457 bytes" in caplog.text
    with (
        pytest.raises(ConfigError, match="holds 268,435,457 bytes"),
        export_record(path, "run", ""),
    ):
        pass


@pytest.fixture
def old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a record of version 1, for which the present version is 3, with two steps to it."""
    path = tmp_path / "run.json"
    write_record(path, "run", {"system": "sppt_mag", "seed": 3})

    def second(content: dict[str, Any]) -> dict[str, Any]:
        return {"method": content.pop("system")} | content

    def third(content: dict[str, Any]) -> dict[str, Any]:
        return content | {"method": content["method"].upper()}

    present = FORMATS["run"]._replace(version=3, steps={1: second, 2: third})
    monkeypatch.setitem(FORMATS, "run", present)
    return path


def test_a_record_of_an_older_version_is_read_by_the_steps_from_it(old_run: Path) -> None:
    before = old_run.read_bytes()
    content = {"method": "SPPT_MAG", "seed": 3}
    assert read_record(old_run, "run") == read_recomputable(old_run, "run") == content
    copy = json.loads(before)
    assert from_record(copy, "run", old_run) == content
    assert copy == json.loads(before)
    # The file keeps its version until it is written again.
    assert old_run.read_bytes() == before
    write_record(old_run, "run", content)
    assert json.loads(old_run.read_bytes())["version"] == 3
    assert read_record(old_run, "run") == content


@pytest.mark.parametrize("missing", [1, 2])
def test_a_record_of_an_older_version_is_refused_if_a_step_is_missing(
    missing: int, old_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {number: step for number, step in FORMATS["run"].steps.items() if number != missing}
    monkeypatch.setitem(FORMATS, "run", FORMATS["run"]._replace(steps=steps))
    complaint = "got version 1 of 'run', want version 3: .*make it again"
    with pytest.raises(RecordFormatError, match=complaint):
        read_record(old_run, "run")


def test_a_damaged_record_of_an_older_version_is_damaged_and_no_step_sees_it(
    old_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    present = FORMATS["run"]._replace(steps=dict.fromkeys((1, 2), seen.append))
    monkeypatch.setitem(FORMATS, "run", present)
    old_run.write_text(old_run.read_text().replace('"seed": 3', '"seed": 4'))
    with pytest.raises(RecordError, match="its checksum is not that of what it holds") as raised:
        read_record(old_run, "run")
    assert not isinstance(raised.value, RecordFormatError)
    assert read_recomputable(old_run, "run") is None
    assert seen == []


@pytest.mark.parametrize("kind", FORMATS)
def test_steps_lead_from_their_first_version_to_the_present_one(kind: str) -> None:
    present = FORMATS[kind]
    first = min(present.steps, default=present.version)
    assert [*present.steps] == [*range(first, present.version)]
