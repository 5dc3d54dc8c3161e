"""Methods of other packages, by their entry points."""

import logging
from importlib.metadata import EntryPoint

import pytest

from raybio.methods import ENTRY_POINTS, METHODS, add_installed
from tests.example_method.method import METHOD

GOOD = EntryPoint(METHOD.name, "tests.example_method.method:METHOD", ENTRY_POINTS)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("mine", "package_that_is_missing.method:METHOD", "No module named"),
        ("mine", "tests.example_method.method:METHODS", "has no attribute 'METHODS'"),
        ("mine", "tests.example_method.method:DEMO", "want a raybio.training.method.Method"),
        ("mine", "tests.example_method.method:METHOD", f"otherwise than its {METHOD.name!r}"),
        ("finetune", "raybio.methods.sppt.downstream.method:METHOD", "there is a method"),
    ],
)
def test_an_entry_point_that_is_unusable_is_reported_and_hides_no_other_method(
    name: str, value: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    methods = dict(METHODS)
    methods.pop(METHOD.name, None)
    known = dict(methods)
    with caplog.at_level(logging.WARNING):
        add_installed(methods, [EntryPoint(name, value, ENTRY_POINTS), GOOD])
    assert methods == {**known, METHOD.name: METHOD}
    (record,) = caplog.records
    assert f"the method {name} (entry point {value}) is left out" in record.getMessage()
    assert reason in record.getMessage()
