"""Links of the newest articles are held out: dates of the formats, the split, and what leaks."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raybio.core.config import override_all
from raybio.core.errors import DataError
from raybio.methods import METHODS
from raybio.methods.sppt.articles.formats.cane import Cane
from raybio.methods.sppt.articles.formats.corpus import date_number
from raybio.methods.sppt.articles.formats.ogb_mag import OgbMag
from raybio.methods.sppt.articles.formats.tables import LinkedTables
from raybio.methods.sppt.articles.store import LinkedTextStore, text_copies
from raybio.methods.sppt.config import LinkedTextConfig
from raybio.methods.sppt.corpus import date_text
from raybio.methods.sppt.graph.splits import newest_links
from raybio.methods.sppt.prepare import prepare_linked_texts
from raybio.training.collective import SingleProcess
from tests.methods.conformance_cases import tiny_config

BY_DATE = LinkedTextConfig(split_by_date=True, heldout_share=0.2)


def write_citations(folder: Path, dates: list[str], column: str = "year") -> LinkedTables:
    """Each article cites the two before it; the text of the last one is a copy of the first."""
    rows = [f"id\ttitle\tabstract\t{column}"]
    for number, date in enumerate(dates):
        text = "Copy" if number in (0, len(dates) - 1) else f"Text {number}"
        rows.append(f"{number}\t{text}\t\t{date}")
    cited = ["citing\tcited"]
    for number in range(1, len(dates)):
        cited += [f"{number}\t{older}" for older in range(max(number - 2, 0), number)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.tsv").write_text("\n".join(rows) + "\n")
    (folder / "c.tsv").write_text("\n".join(cited) + "\n")
    return LinkedTables(folder / "a.tsv", folder / "c.tsv")


YEARS = [str(2000 + number // 2) for number in range(20)]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 0.5, 0.9, 1.0])
def test_the_date_leaves_the_share_of_links_that_is_closest(share: float) -> None:
    rng = np.random.default_rng(0)
    date_N = rng.integers(1990, 2000, 60)
    edge_E2 = rng.integers(60, size=(200, 2))
    is_held_E = newest_links(edge_E2, date_N, share=share)
    # By a loop over all dates.
    newer_end_E = [max(date_N[u], date_N[v]) for u, v in edge_E2]
    shares = {}
    for date in sorted(set(newer_end_E))[:-1]:
        shares[date] = sum(one > date for one in newer_end_E) / len(newer_end_E)
    best = min(shares, key=lambda date: abs(shares[date] - share))
    assert is_held_E.tolist() == [one > best for one in newer_end_E]
    assert 0 < is_held_E.sum() < len(edge_E2)


def test_links_of_one_date_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="same date"):
        newest_links([(0, 1), (1, 2)], [7, 7, 7], share=0.5)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2019", 20190000),
        ("2019-05", 20190500),
        (" 2019-05-31\n", 20190531),
        ("0987", 9870000),
        ("2018.0", 20180000),
        ("2018-02-13 00:00:00", 20180213),
        ("2018-02-13T12:30:00Z", 20180213),
        ("2018.5", -1),
        ("2018 or so", -1),
        ("19", -1),
        ("2019-13", -1),
        ("2019-5", -1),
        ("2019-05-32", -1),
        ("2019-00-17", -1),
        ("May 2019", -1),
        ("", -1),
        ("-1", -1),
    ],
)
def test_dates_are_read_from_years_to_days(text: str, number: int) -> None:
    assert date_number(text) == number
    if number > 0:
        assert text.strip().removesuffix(".0").startswith(date_text(number))


@pytest.mark.parametrize("column", ["year", "date"])
def test_training_links_are_older_than_held_out_ones(tmp_path: Path, column: str) -> None:
    store = prepare_linked_texts(
        tmp_path / "store", write_citations(tmp_path, YEARS, column), BY_DATE
    )
    year_R = np.array([int(YEARS[int(key)]) for key in store.keys.to_pylist()])
    ends = np.repeat(np.arange(store.num_rows), store.graph.degree_N)
    training = np.maximum(year_R[ends], year_R[store.graph.indices])
    held_out = year_R[store.heldout].max(axis=1)
    assert training.max() < held_out.min()
    assert store.manifest["training_until"] == str(training.max()) == "2007"
    assert len(store.heldout) == 8  # four articles of 2008 and 2009 cite two each, of 37 links
    # 16 cites 14 and 15, 17 cites 15 and 16, 18 cites 16 and 17, 19 cites 17 and 18.
    leakage = store.manifest["leakage"]
    # 19 is a copy of article 0, which has training links: so one end of its links is seen.
    assert {name: leakage[name] for name in ("links", "c1", "c2", "c3", "with_twin")} == {
        "links": 8,
        "c1": 0,
        "c2": 5,
        "c3": 3,
        "with_twin": 0,
    }
    assert leakage["clusters"] == 19


def test_texts_without_a_letter_are_counted_as_clusters_of_their_own(tmp_path: Path) -> None:
    tables = write_citations(tmp_path, YEARS[:3])
    articles = tmp_path / "a.tsv"
    articles.write_text(articles.read_text().replace("Copy", "?!").replace("Text 1", "..."))
    store = prepare_linked_texts(tmp_path / "store", tables, LinkedTextConfig(heldout_share=0.3))
    assert store.manifest["leakage"]["clusters"] == 3


def test_the_final_table_shows_the_parts(tmp_path: Path) -> None:
    store = prepare_linked_texts(tmp_path / "store", write_citations(tmp_path, YEARS), BY_DATE)
    config = override_all(tiny_config("sppt_mag"), {"plan.global_batch_rows": 4})
    system = METHODS["sppt_mag"].build(config, store.path)
    report = system.final_evaluate(system.model, SingleProcess())
    assert set(report.scores["trained"]) == {"train", "val", "c2", "c3"}
    # What a reader sees next to the title of the table.
    assert report.sizes.keys() == {"train", "val", "c2", "c3"}
    assert report.sizes["c3"].startswith(f"{store.manifest['leakage']['c3']} links of ")
    assert report.sizes["train"].startswith(f"{store.graph.num_edges:,} links of ")
    assert set(METHODS["sppt_mag"].table.splits) >= set(report.scores["trained"])
    assert "composition" not in report.scores and "look-up" in report.scores


def test_at_random_all_ends_are_seen_and_there_are_no_parts(tmp_path: Path) -> None:
    config = LinkedTextConfig(heldout_share=0.2)
    store = prepare_linked_texts(tmp_path / "store", write_citations(tmp_path, YEARS), config)
    leakage = store.manifest["leakage"]
    assert leakage["c1"] == leakage["links"] > 0 and leakage["c2"] == leakage["c3"] == 0
    assert "training_until" not in store.manifest
    config = override_all(tiny_config("sppt_mag"), {"plan.global_batch_rows": 4})
    system = METHODS["sppt_mag"].build(config, store.path)
    report = system.final_evaluate(system.model, SingleProcess())
    assert set(report.scores["trained"]) == {"train", "val"}


def test_without_dates_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "graph.txt").write_text("0\t1\n1\t2\n")
    with pytest.raises(DataError, match="--split-by-date: the source has no dates. Want a column"):
        prepare_linked_texts(tmp_path / "store", Cane(tmp_path), BY_DATE)
    assert not (tmp_path / "store").exists()
    missing = [*YEARS[:5], "", *YEARS[6:]]
    with pytest.raises(DataError, match="1 of 20 linked articles have no date, such as '5'"):
        prepare_linked_texts(tmp_path / "store", write_citations(tmp_path, missing), BY_DATE)
    same = ["2001-02"] * 20
    with pytest.raises(DataError, match="all links have the date 2001-02, want at least two"):
        prepare_linked_texts(tmp_path / "store", write_citations(tmp_path, same), BY_DATE)
    coarse = ["2001"] * 4 + ["2002"] * 16
    with pytest.raises(DataError, match="no date leaves about 20% of the links; .*holds out 86%"):
        prepare_linked_texts(tmp_path / "store", write_citations(tmp_path, coarse), BY_DATE)
    # Dates are not needed otherwise.
    store = prepare_linked_texts(
        tmp_path / "store", write_citations(tmp_path, missing), LinkedTextConfig()
    )
    assert isinstance(store, LinkedTextStore)


def test_dates_follow_their_articles_where_rows_are_skipped(tmp_path: Path) -> None:
    tables = write_citations(tmp_path, YEARS, "date")
    lines = tables.articles.read_text().splitlines()
    bad = ["\tno id\t\t2030", "3\tagain\t\t2031", "x\t\t\t2032"]
    tables.articles.write_text("\n".join([*lines[:2], *bad, *lines[2:]]) + "\n")
    config = LinkedTextConfig(split_by_date=True, heldout_share=0.2, max_bad_share=0.5)
    # Article 3 is now first in a row with another date.
    store = prepare_linked_texts(tmp_path / "store", tables, config)
    assert store.manifest["training_until"] != "2007"
    assert "3" in {store.keys[int(row)].as_py() for row in store.heldout.ravel()}


def write_mag(folder: Path, years: str | None) -> OgbMag:
    files = {
        "mapping/paper_entidx2name.csv.gz": "ent idx,ent name\n0,900\n1,17\n2,33\n",
        "raw/relations/paper___cites___paper/edge.csv.gz": "1,0\n2,1\n",
    }
    if years is not None:
        files["raw/node-feat/paper/node_year.csv.gz"] = years
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(gzip.compress(text.encode()))
    (folder / "abstracts.txt").write_text("ent idx,abstract\n0,one\n1,two\n2,three\n")
    return OgbMag(folder, [folder / "abstracts.txt"])


def test_ogb_mag_has_a_year_for_each_paper(tmp_path: Path) -> None:
    source = write_mag(tmp_path / "a", "2010\n2011\n2012\n")
    store = prepare_linked_texts(tmp_path / "store", source, BY_DATE)
    assert "years" in store.manifest["sources"]
    assert store.manifest["training_until"] == "2011"
    assert [store.keys[int(row)].as_py() for row in store.heldout[0]] == ["17", "33"]
    with pytest.raises(DataError, match="node_year.csv.gz: has 2 lines, want 3"):
        prepare_linked_texts(tmp_path / "b", write_mag(tmp_path / "c", "2010\n2011\n"), BY_DATE)
    with pytest.raises(DataError, match="the source has no dates"):
        prepare_linked_texts(tmp_path / "d", write_mag(tmp_path / "e", None), BY_DATE)


def test_dates_are_compared_by_the_precision_that_all_of_them_have(tmp_path: Path) -> None:
    """An article of 2008 may be of December, so that none of March 2008 is newer than it."""
    dates = [*YEARS[:16], "2008", "2008-03", "2009-01-01", "2009"]
    store = prepare_linked_texts(tmp_path / "store", write_citations(tmp_path, dates), BY_DATE)
    assert store.manifest["training_until"] == "2007"
    assert len(store.heldout) == 8


def test_texts_without_a_word_are_copies_of_no_other() -> None:
    number_N = text_copies(pa.array([b"...", b"A b", b"--", b"a  B!", b""]))
    assert number_N[1] == number_N[3]
    assert len(set(number_N.tolist())) == 4
