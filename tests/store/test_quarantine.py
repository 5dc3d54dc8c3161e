import pytest

from raybio.core.errors import DataError
from raybio.store.quarantine import Quarantine


def test_memory_is_bounded_by_the_first_examples_of_each_reason():
    quarantine = Quarantine()
    for line in range(10_000):
        quarantine.add("protein", "no sequence", "a.fa", line + 1, f"p{line}")
    assert quarantine.summary() == {
        "no sequence": {
            "count": 10_000,
            "examples": [
                {"file": "a.fa", "line": line + 1, "detail": f"p{line}"} for line in range(5)
            ],
        }
    }


def test_a_share_of_invalid_records_up_to_the_limit_is_accepted():
    quarantine = Quarantine(max_bad_share=0.1)
    quarantine.saw("protein", 100)
    for line in range(10):
        quarantine.add("protein", "no id", "a.fa", line + 1)
    quarantine.check("protein")


def test_beyond_the_limit_the_error_names_counts_first_examples_and_what_to_do():
    quarantine = Quarantine(max_bad_share=0.1)
    quarantine.saw("protein", 20)
    quarantine.add("protein", "no id", "a.fa", 7)
    quarantine.add_many("protein", "no sequence", "b.fa", 2, [(3, "p3"), (9, "p9")])
    with pytest.raises(DataError, match=r"3 of 20 protein records are bad \(15.0%\)") as caught:
        quarantine.check("protein")
    message = str(caught.value)
    assert "no sequence: 2, first b.fa:3 (p3); no id: 1, first a.fa:7" in message
    assert "--max-bad-share" in message


def test_records_that_valid_files_contain_are_counted_but_not_as_invalid():
    quarantine = Quarantine(max_bad_share=0.0)
    quarantine.saw("link", 4)
    quarantine.add_many("link", "duplicate link (merged)", "1.txt", 2, [(2, "")], is_bad=False)
    quarantine.check("link")
    assert quarantine.count_by_reason["duplicate link (merged)"] == 2


def test_the_limit_applies_to_each_kind_of_record():
    quarantine = Quarantine(max_bad_share=0.1)
    quarantine.saw("protein", 1000)
    quarantine.saw("link", 10)
    quarantine.add_many("link", "link without an id", "1.txt", 5, [(1, "")])
    quarantine.check("protein")
    with pytest.raises(DataError, match="5 of 10 link records"):
        quarantine.check("link")


def test_a_detail_that_is_cut_ends_with_an_ellipsis():
    quarantine = Quarantine()
    quarantine.add("row", "bad", "a.tsv", 1, "x" * 80)
    quarantine.add("row", "bad", "a.tsv", 2, "x" * 81)
    whole, cut = quarantine.examples_by_reason["bad"]
    assert whole.detail == "x" * 80
    assert cut.detail == "x" * 79 + "…"
