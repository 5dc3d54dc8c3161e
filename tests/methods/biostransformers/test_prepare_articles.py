"""What of a source reaches the store of articles, and what becomes of input that is none."""

import json
import os

import numpy as np
import pyarrow as pa
import pytest

from raybio.core.errors import DataError, StoreError
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.formats.medline import read_medline
from raybio.methods.biostransformers.prepare import (
    oldest_first,
    prepare_medline,
    prepare_pairs,
)
from raybio.methods.biostransformers.store import ENTRIES, ROWS, ArticleStore
from raybio.store.quarantine import Quarantine
from raybio.store.writer import Draft
from tests.methods.biostransformers.formats.medline_files import citation, deletion, write_medline
from tests.paths import SHARED_DATA

MEDLINE = SHARED_DATA / "medline_xml"


def heading(name, is_major, *qualifiers):
    """A MeshHeading; a qualifier that begins with * is major."""
    parts = [f'<DescriptorName MajorTopicYN="{"NY"[is_major]}">{name}</DescriptorName>']
    parts += [
        f'<QualifierName MajorTopicYN="{"NY"[one[0] == "*"]}">{one.lstrip("*")}</QualifierName>'
        for one in qualifiers
    ]
    return f"<MeshHeading>{''.join(parts)}</MeshHeading>"


def entries_of(store):
    """(term, is major, qualifiers) of each row."""
    names, qualifiers, bounds = (
        store.term_names.to_pylist(),
        store.qualifiers_E.to_pylist(),
        store.term_indptr_N1,
    )
    every = [
        (names[term], bool(major), text)
        for term, major, text in zip(store.term_E, store.is_major_E, qualifiers, strict=True)
    ]
    return [every[bounds[row] : bounds[row + 1]] for row in range(store.num_rows)]


def test_vernacular_title_year_major_flags_and_qualifiers_come_into_the_store(tmp_path):
    own = "<VernacularTitle>Ratten und Mäuse.</VernacularTitle>"
    rats = (
        heading("Rats", False, "genetics", "*metabolism")
        + heading("Diet", True)
        + heading("Aged", False)
    )
    files = [
        write_medline(
            tmp_path / "a.xml",
            citation(8, mesh=heading("Old", False, "history")),
            citation(3, title="[Rats and mice].", extra=own, mesh=rats),
        ),
        write_medline(tmp_path / "b.xml", citation(8, mesh=heading("Aged", False, "psychology"))),
    ]
    store = prepare_medline(tmp_path / "store", files)
    assert store.pmid_N.tolist() == [3, 8]
    assert store.year_N.tolist() == [2001, 2001]
    assert store.texts("vernacular_title", np.array([0, 1])) == ["Ratten und Mäuse.", ""]
    assert store.has_text_N("vernacular_title").tolist() == [True, False]
    assert entries_of(store) == [
        [("Aged", False, ""), ("Diet", True, ""), ("Rats", True, "genetics/*metabolism")],
        [("Aged", False, "psychology")],
    ]
    # Nothing of the replaced revision remains. Words are counted in titles and abstracts only.
    assert store.qualifiers_E.dictionary.to_pylist() == ["", "genetics/*metabolism", "psychology"]
    assert "old" not in store.count_by_word and "ratten" not in store.count_by_word


def test_files_with_pubmeds_names_are_applied_by_number_whatever_their_folders(tmp_path):
    for name in ("daily", "pubmed_baseline"):
        (tmp_path / name).mkdir()
    mesh = heading("Rats", False)
    old = write_medline(
        tmp_path / "pubmed_baseline" / "pubmed26n9999.xml.gz",
        citation(1, title="Old.", mesh=mesh),
        citation(2, mesh=mesh),
        citation(3, mesh=mesh),
    )
    new = write_medline(
        tmp_path / "daily" / "pubmed26n10000.xml",
        citation(1, title="New.", mesh=mesh),
        others=deletion(2),
    )
    digests = set()
    for number, files in enumerate([[new, old], [old, new]]):
        store = prepare_medline(tmp_path / f"store{number}", files)
        assert store.pmid_N.tolist() == [1, 3]
        assert store.texts("title", np.array([0])) == ["New."]
        digests.add(store.digest)
    assert len(digests) == 1
    # Files of a year replace those of the year before.
    last_year = old.rename(old.with_name("pubmed25n10001.xml.gz"))
    assert oldest_first([new, last_year]) == [last_year, new]


def test_files_with_other_names_are_applied_in_the_given_order(tmp_path):
    files = [tmp_path / name for name in ("pubmed26n0002.xml", "pubmed26n0001.xml", "mine.xml")]
    assert oldest_first(files) == files


def test_a_term_that_an_article_names_twice_is_one_entry_with_the_first_ones_qualifiers(tmp_path):
    mesh = (
        heading("Rats", False, "genetics") + heading("Diet", False) + heading("Rats", True, "blood")
    )
    store = prepare_medline(
        tmp_path / "store", [write_medline(tmp_path / "a.xml", citation(1, mesh=mesh))]
    )
    assert entries_of(store) == [[("Diet", False, ""), ("Rats", True, "genetics")]]


@pytest.mark.skipif(
    not MEDLINE.exists(), reason="the folder of real data is not beside this repository"
)
def test_the_store_says_of_a_real_file_what_the_reader_says(tmp_path):
    path = MEDLINE / "pubmed_result_pubMR.xml.gz"
    rows = [row for batch in read_medline(path, Quarantine()) for row in batch.articles.to_pylist()]
    rows = sorted({row["pmid"]: row for row in rows}.values(), key=lambda row: row["pmid"])
    store = prepare_medline(tmp_path / "store", [path])
    everything = np.arange(store.num_rows)
    assert store.pmid_N.tolist() == [row["pmid"] for row in rows]
    assert store.year_N.tolist() == [row["year"] for row in rows]
    for field in ("title", "abstract", "vernacular_title"):
        assert store.texts(field, everything) == [row[field] for row in rows]
    for found, row in zip(entries_of(store), rows, strict=True):
        marked = [
            ["*" * one["is_major"] + one["name"] for one in term["qualifiers"]]
            for term in row["mesh"]
        ]
        wanted = [
            (term["name"], term["is_major"], "/".join(own))
            for term, own in zip(row["mesh"], marked, strict=True)
        ]
        assert found == sorted(wanted)


def test_a_store_that_was_prepared_before_says_what_it_lacks(tmp_path):
    tables = {
        ROWS: {"pmid": pa.array([1]), "title": pa.array([b"x"])},
        ENTRIES: {"term": pa.array([0])},
    }
    with Draft(tmp_path / "store") as draft:
        store = draft.commit(ArticleStore, tables, {"rows": 1}, {})
    with pytest.raises(
        StoreError, match=r"when stores did not keep vernacular_title. Prepare it again"
    ):
        store.texts("vernacular_title", np.array([0]))
    with pytest.raises(StoreError, match=r"when stores did not keep qualifiers. Prepare it again"):
        _ = store.qualifiers_E


def test_pubmedqa_of_any_size_is_prepared_without_its_answers(tmp_path, monkeypatch):
    monkeypatch.setattr("raybio.store.sources.MAX_WHOLE_BYTES", 1 << 10)
    monkeypatch.setitem(prepare_pairs.__globals__, "ARTICLES_PER_BATCH", 4)
    record = {"QUESTION": "Q?", "CONTEXTS": ["a text"], "LABELS": [""], "MESHES": ["Humans"]}
    path = tmp_path / "ori_pqaa.json"
    path.write_text(json.dumps({str(pmid): record for pmid in range(1, 31)}))
    store = prepare_pairs(tmp_path / "store", [path])
    assert store.pmid_N.tolist() == list(range(1, 31))
    path.write_text('{"1": {"QUESTION": "Q?", "CONTEXTS": ["a"]}, "1": {}}')
    with pytest.raises(DataError, match="'1' is there twice"):
        prepare_pairs(tmp_path / "other", [path])
    path.write_text("{}")
    with pytest.raises(DataError, match="holds no question"):
        prepare_pairs(tmp_path / "other", [path])


def test_pubmedqa_keeps_the_year_of_its_articles(tmp_path):
    record = {"QUESTION": "Q?", "CONTEXTS": ["C."], "LONG_ANSWER": "A.", "MESHES": ["Rats"]}
    (tmp_path / "q.json").write_text(json.dumps({"5": record | {"YEAR": "2011"}, "6": record}))
    assert prepare_pairs(tmp_path / "store", [tmp_path / "q.json"]).year_N.tolist() == [2011, 0]


def test_a_pmid_that_comes_again_replaces_and_is_counted(tmp_path):
    (tmp_path / "a.tsv").write_text("1\told\t\tMice\n2\ttwo\t\tMice\n1\tnew\t\tRats\n")
    (tmp_path / "b.tsv").write_text("2\tother\t\tCats\n")
    store = prepare_pairs(tmp_path / "store", [tmp_path / "a.tsv", tmp_path / "b.tsv"])
    assert store.texts("title", np.array([0, 1])) == ["new", "other"]
    assert store.term_names.to_pylist() == ["Cats", "Rats"]
    assert store.manifest["replaced_records"] == 2


def test_a_text_has_the_labels_of_all_files(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nshared text,A\nfirst text,A\n")
    (tmp_path / "b.csv").write_text("text,label\nshared text,B\n")
    (tmp_path / "all.csv").write_text("text,label\nshared text,A;B\nfirst text,A\n")
    two = prepare_pairs(tmp_path / "two", [tmp_path / "a.csv", tmp_path / "b.csv"])
    one = prepare_pairs(tmp_path / "one", [tmp_path / "all.csv"])
    assert two.content_digest == one.content_digest


def test_one_file_without_an_article_stops_all_so_that_none_is_missed_unseen(tmp_path):
    (tmp_path / "good.tsv").write_text("1\tone\t\tMice\n")
    (tmp_path / "cut.tsv").write_text("PMID\tTitle\tAbstract\tMeSH\n")
    with pytest.raises(DataError, match=r"cut\.tsv: holds no article"):
        prepare_pairs(tmp_path / "store", [tmp_path / "good.tsv", tmp_path / "cut.tsv"])
    assert not (tmp_path / "store").exists()


def test_places_that_cannot_be_used_are_named(tmp_path):
    table, pipe = tmp_path / "a.tsv", tmp_path / "pipe"
    table.write_text("1\tone\t\tMice\n")
    os.mkfifo(pipe)
    with pytest.raises(DataError, match="pipe: is a pipe or a device"):
        prepare_pairs(tmp_path / "store", [pipe])
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="is a folder; give its files"):
        prepare_pairs(tmp_path / "store", [tmp_path / "folder"])
    with pytest.raises(DataError, match="does not exist"):
        prepare_pairs(tmp_path / "store", [tmp_path / ("x" * 300)])
    with pytest.raises(StoreError, match=r"a\.tsv: is a file"):
        prepare_pairs(table, [table])
    with pytest.raises(StoreError, match="cannot be read .*name too long.* Choose another --out"):
        prepare_pairs(tmp_path / ("x" * 300), [table])
    with pytest.raises(StoreError, match="/: holds files that belong to no store"):
        prepare_pairs("/", [table])
    with pytest.raises(
        StoreError, match=r"a\.tsv: cannot be made \(File exists\). Choose another --parts"
    ):
        prepare_medline(
            tmp_path / "store",
            [write_medline(tmp_path / "x.xml", citation(1))],
            ArticleConfig(),
            parts=table,
        )
