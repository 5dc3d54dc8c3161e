"""Every mutant of ``make mutants`` still applies, and names tests that are there."""

import ast

from tests.mutants.run import ROOT, read_mutants


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
