"""Every mutant of ``make mutants`` still applies, and names tests that are there."""

import ast
from pathlib import Path

import pytest

from tests.mutants import run
from tests.mutants.run import HUNG, ROOT, Mutant, read_mutants, run_mutant, summary


def test_every_mutant_applies_to_one_place_of_valid_code() -> None:
    mutants = read_mutants()
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 100
    for mutant in mutants:
        ast.parse(mutant.apply((ROOT / mutant.file).read_text()))


def test_the_tests_of_every_mutant_are_there() -> None:
    names_by_file: dict[str, set[str]] = {}
    for test in {test for mutant in read_mutants() for test in mutant.tests}:
        file, _, name = test.partition("::")
        if file not in names_by_file:
            tree = ast.parse((ROOT / file).read_text())
            names_by_file[file] = {
                node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
            }
        assert not name or name.partition("[")[0] in names_by_file[file], test


@pytest.mark.parametrize(
    ("statuses", "outcome"),
    [
        ([1], "killed by tests/test_a.py::test_a"),
        ([0], "SURVIVED"),
        ([None, 0], HUNG),
        ([None, None], "ERROR: its tests hang"),
        ([None, 1], "ERROR: its tests hang"),
        ([2], "ERROR: pytest ended with 2"),
    ],
)
def test_a_mutant_is_hung_only_if_its_tests_pass_in_time_without_it(
    statuses: list[int | None], outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a.py"
    source.write_text("a = 1\n")
    texts = []
    remaining = list(statuses)

    def run_tests(*_: object, **__: object) -> tuple[int | None, list[str]]:
        texts.append(source.read_text())
        status = remaining.pop(0)
        return status, ["tests/test_a.py::test_a"] if status == 1 else []

    monkeypatch.setattr(run, "run_tests", run_tests)
    mutant = Mutant("two", "a.py", "1", "2", ["tests/test_a.py"])
    assert run_mutant(tmp_path, mutant, [], tmp_path / "log").startswith(outcome)
    assert texts == ["a = 2\n", "a = 1\n"][: len(statuses)]
    assert remaining == []


def test_mutants_that_hang_are_summed_apart() -> None:
    outcomes = {"a": "killed by t", "b": HUNG, "c": "SURVIVED", "d": "ERROR: no result"}
    assert summary(outcomes) == ("4 mutants, 1 killed, 1 hung, 2 lost", ["c", "d"])
    # As it was recorded when a hang counted as killed.
    assert summary({"e": "killed: its tests hang"})[1] == ["e"]
