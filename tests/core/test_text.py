"""Wording of messages."""

import pytest

from raybio.core.text import first_names


@pytest.mark.parametrize(
    ("most", "text"), [(1, "a, …"), (2, "a, b, …"), (3, "a, b, c"), (4, "a, b, c")]
)
def test_only_omitted_names_are_marked_by_an_ellipsis(most: int, text: str) -> None:
    assert first_names(["a", "b", "c"], most) == text


def test_no_names_have_no_ellipsis() -> None:
    assert first_names([], 3) == ""
