"""Scores that runs share: what is read is what was written, or nothing."""

import json
import logging
import math
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from raybio.core.shared_scores import SharedScores

SETTINGS = {"seed": 0, "encoder": {"width": 8}, "objective": {"weight": 1.0}}


def shared(folder: Path, **facts: object) -> SharedScores:
    return SharedScores(folder / ".shared", SETTINGS, {"method": "a", **facts})


def test_every_digit_is_read_again_and_undefined_numbers_too(tmp_path: Path) -> None:
    one = shared(tmp_path)
    identity = one.identity(frozenset(), {})
    assert one.read(identity) is None
    content = {"a": {"value": 0.1 + 0.2, "low": math.nan, "none": None}}
    one.write(identity, json.dumps(content))
    known = shared(tmp_path).read(identity)
    assert known["a"]["value"] == 0.1 + 0.2
    assert math.isnan(known["a"]["low"]) and known["a"]["none"] is None


def test_only_ignored_sections_are_left_out_of_the_identity(tmp_path: Path) -> None:
    one = shared(tmp_path)
    identity = one.identity(frozenset({"objective", "unknown"}), {"device": "cpu"})
    assert identity == {
        "settings": {"seed": 0, "encoder": {"width": 8}},
        "method": "a",
        "device": "cpu",
    }
    other = SharedScores(one.folder, SETTINGS | {"objective": {"weight": 2.0}}, {"method": "a"})
    same = other.identity(frozenset({"objective"}), {"device": "cpu"})
    assert other.path(same) == one.path(identity)
    assert other.path(other.identity(frozenset(), {})) != one.path(one.identity(frozenset(), {}))
    for facts in ({"device": "cuda"}, {"device": "cpu", "threads": 2}):
        assert one.path(one.identity(frozenset({"objective"}), facts)) != one.path(identity)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.25", "0.26"),  # one digit of a score
        ('"sha256": "', '"sha256": "0'),
        ('"format": "shared scores"', '"format": "run"'),
        ('"version": 1', '"version": 2'),
        ('"content"', '"contents"'),
        (
            "{",
            "",
        ),
    ],
)
def test_a_damaged_file_is_computed_again_with_a_warning(
    old: str, new: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = shared(tmp_path)
    identity = one.identity(frozenset(), {})
    one.write(identity, json.dumps({"a": 0.25}))
    path = one.path(identity)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with caplog.at_level(logging.WARNING):
        assert one.read(identity) is None
    assert path.name in caplog.text and "again" in caplog.text


def test_a_file_of_another_identity_under_this_name_is_not_read(tmp_path: Path) -> None:
    one = shared(tmp_path)
    identity = one.identity(frozenset(), {})
    other = one.identity(frozenset(), {"device": "cuda"})
    one.write(other, json.dumps({"a": 0.25}))
    os.replace(one.path(other), one.path(identity))
    assert one.read(identity) is None


def test_a_folder_that_cannot_be_made_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".shared").write_text("a file")
    one = shared(tmp_path)
    identity = one.identity(frozenset(), {})
    with caplog.at_level(logging.WARNING), one.lock(identity):
        assert one.read(identity) is None
        one.write(identity, "{}")
    assert "compute the scores again" in caplog.text


def append(folder: Path, name: str) -> None:
    one = shared(folder)
    with one.lock(one.identity(frozenset(), {})), open(folder / "log", "a") as log:
        for word in ("begins", "ends"):
            log.write(f"{name} {word}\n")
            log.flush()
            time.sleep(0.2)


def test_a_second_process_waits_until_the_first_has_written(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=append, args=(tmp_path, name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    lines = (tmp_path / "log").read_text().split("\n")
    assert [lines[0][0], lines[2][0]] == [lines[1][0], lines[3][0]]
    # A lock of another identity is free meanwhile.
    one = shared(tmp_path)
    with one.lock(one.identity(frozenset(), {})), one.lock(one.identity(frozenset(), {"b": 1})):
        pass
