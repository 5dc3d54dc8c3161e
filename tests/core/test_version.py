"""Values that a run has used, one after the other."""

import json

from raybio.core.version import changed_values, have_changed, last_values, used_values

FIRST = {"torch": "2.9", "threads": 2, "environment": {"b": None, "a": "1"}}


def used_by_starts(*starts: dict[str, object]) -> dict[str, object]:
    """Return what is recorded after some starts, each of which reads JSON of the one before."""
    used: dict[str, object] = {}
    for start in starts:
        used = json.loads(json.dumps(used_values(used, start), sort_keys=True))
    return used


def test_values_that_never_change_are_kept_as_they_are() -> None:
    used = used_by_starts(FIRST, FIRST, FIRST)
    assert used == FIRST
    assert not have_changed(used)
    assert changed_values(used, FIRST) == []


def test_a_value_that_was_used_in_between_is_not_forgotten() -> None:
    other = FIRST | {"threads": 4, "driver": "570", "environment": {"b": "2", "a": "1"}}
    used = used_by_starts(FIRST, other, other)
    assert used["threads"] == "2 then 4"
    assert used["driver"] == "null then 570"
    assert changed_values(last_values(used), other) == []
    assert len(changed_values(last_values(used), FIRST)) == 3
    for start in (FIRST, other):
        assert len(changed_values(used, start)) == 3
    assert used_by_starts(FIRST, other, FIRST)["threads"] == "2 then 4 then 2"
    assert have_changed(used)


def test_nothing_recorded_is_no_change() -> None:
    assert used_values({}, FIRST) == FIRST
    assert used_values(FIRST, {}) == {}
    assert changed_values({}, FIRST) == []
