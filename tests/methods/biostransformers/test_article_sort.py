"""A store sorted on disk is, byte for byte, the one that a loop over dictionaries gives."""

import os
import resource
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from raybio.methods.biostransformers import article_sort
from raybio.methods.biostransformers.article_sort import is_validation, write_articles
from raybio.methods.biostransformers.config import FIELDS, ArticleConfig
from raybio.methods.biostransformers.formats.columns import ArticleColumns
from raybio.methods.biostransformers.formats.medline_parts import FileReport, PartWriter
from raybio.methods.biostransformers.merge import merge_parts
from raybio.methods.biostransformers.store import ArticleStore
from raybio.store.columns import column_tables
from raybio.store.quarantine import Quarantine
from raybio.store.word_counts import count_words
from raybio.store.writer import Draft

CONFIG = ArticleConfig(validation_share=0.3)
QUALIFIERS = ["genetics", "blood", "metabolism"]


def simulate(rng, num_files):
    """Files as (records, deleted PMIDs): PMIDs that come again, in other versions, in any order."""
    files = []
    for _ in range(num_files):
        records = []
        for pmid in rng.integers(1, 60, int(rng.integers(0, 40))).tolist():
            headings = []
            for term in rng.integers(12, size=int(rng.integers(0, 5))).tolist():  # with repeats
                marks = rng.random(3) < 0.4
                own = [
                    (name, "", bool(rng.random() < 0.5))
                    for name, is_own in zip(QUALIFIERS, marks, strict=True)
                    if is_own
                ]
                headings.append((f"Term {term}", "", bool(rng.random() < 0.3), own))
            record = {
                "pmid": pmid,
                "version": int(rng.integers(1, 3)),
                "title": f"Titel ä {rng.integers(30)}" * bool(rng.random() < 0.9),
                "vernacular_title": "Titre" * bool(rng.random() < 0.1),
                "abstract": f"words of {rng.integers(9)}" * bool(rng.random() < 0.6),
                "year": int(rng.integers(0, 2025)),
                "mesh": headings,
            }
            records.append(record)
        files.append((records, rng.integers(1, 60, int(rng.integers(0, 4))).tolist()))
    return files


def write_parts(files, folder):
    reports = []
    for number, (records, deleted) in enumerate(files):
        path = folder / f"{number}.part"
        with PartWriter(path, {}) as writer:
            for first in range(0, len(records), 7):
                columns = ArticleColumns()
                for record in records[first : first + 7]:
                    columns.add_article(
                        record["pmid"],
                        record["version"],
                        0,
                        record["title"],
                        record["vernacular_title"],
                        record["abstract"],
                        record["year"],
                    )
                    for heading in record["mesh"]:
                        columns.add_heading(*heading)
                writer.add(columns.finish(), deleted if first == 0 else [])
            if not records:
                writer.add(ArticleColumns().finish(), deleted)
            writer.finish(Quarantine())
        reports.append(FileReport(str(path), str(path), len(records), 0, 0, {}, ""))
    return reports


def remaining_records(files):
    """The definition: a dictionary by PMID, and a loop over all files in their order."""
    record_by_pmid = {}
    for records, deleted in files:
        own = {}
        for record in records:
            if record["pmid"] not in own or record["version"] >= own[record["pmid"]]["version"]:
                own[record["pmid"]] = record
        record_by_pmid |= own
        for pmid in deleted:
            record_by_pmid.pop(pmid, None)
    return [record_by_pmid[pmid] for pmid in sorted(record_by_pmid)]


def terms_of(record):
    """Term -> (is it major anywhere, qualifiers where it comes first), ascending."""
    found = {}
    for name, _, is_major, qualifiers in record["mesh"]:
        text = "/".join("*" * major + qualifier for qualifier, _, major in qualifiers)
        was_major, first_text = found.get(name, (False, text))
        found[name] = (was_major or is_major, first_text)
    return dict(sorted(found.items()))


def write_at_once(path, records):
    """The store of the records, with everything in memory."""
    pmid_N = np.array([record["pmid"] for record in records])
    entries = [
        (name, major, text)
        for record in records
        for name, (major, text) in terms_of(record).items()
    ]
    names = sorted({name for name, _, _ in entries})
    texts = sorted({text for _, _, text in entries})
    qualifiers = pa.array([texts.index(text) for _, _, text in entries], pa.int32())
    num_terms = [len(terms_of(record)) for record in records]
    words = names + [record[field] for field in ("title", "abstract") for record in records]
    columns = {
        "pmid_N": pmid_N,
        "year_N": np.array([record["year"] for record in records]),
        "is_validation_N": is_validation(pmid_N, CONFIG),
        "term_names": names,
        "term_indptr_N1": np.concatenate([[0], np.cumsum(num_terms)]),
        "term_E": np.array([names.index(name) for name, _, _ in entries]),
        "is_major_E": np.array([major for _, major, _ in entries]),
        "qualifiers_E": pa.DictionaryArray.from_arrays(qualifiers, pa.array(texts)),
        "count_by_word": count_words(words),
    }
    for field in FIELDS:
        columns[field] = pa.array([record[field].encode() for record in records], pa.large_binary())
    counts = {
        "rows": len(records),
        "validation_articles": int(columns["is_validation_N"].sum()),
        "articles_with_abstract": sum(bool(record["abstract"]) for record in records),
        "articles_with_terms": sum(number > 0 for number in num_terms),
        "terms": len(names),
        "article_terms": len(entries),
    }
    is_held = dict(zip(pmid_N.tolist(), columns["is_validation_N"].tolist(), strict=True))
    trained = Counter(record["title"] for record in records if not is_held[record["pmid"]])
    held = [record["title"] for record in records if is_held[record["pmid"]]]
    known = sum(bool(title) and title in trained for title in held)
    provenance = {"leakage": {"validation_titles_in_training": known}}
    with Draft(path) as draft:
        tables = column_tables(ArticleStore, columns)
        return draft.commit(ArticleStore, tables, counts, provenance), known


@pytest.mark.parametrize(
    ("seed", "bucket_bytes"), [(0, 1), (1, 400), (2, 100_000), (3, 1), (4, 400), (5, 200)]
)
def test_a_store_equals_that_of_a_loop_over_dictionaries(tmp_path, monkeypatch, seed, bucket_bytes):
    rng = np.random.default_rng(seed)
    files = simulate(rng, num_files=int(rng.integers(1, 6)))
    reports = write_parts(files, tmp_path)
    monkeypatch.setattr(article_sort, "BLOCK_BYTES", 500)
    monkeypatch.setattr(article_sort, "TEXTS_PER_BLOCK", 10)
    monkeypatch.setattr(article_sort, "KEYS_PER_BLOCK", 3)
    expected, known = write_at_once(tmp_path / "expected", remaining_records(files))
    with Draft(tmp_path / "store") as draft:
        merged = merge_parts(reports, draft.folder, bucket_bytes=bucket_bytes, keys_per_range=5)
        store = write_articles(draft, reports, merged, CONFIG, {})
    assert store.manifest == expected.manifest
    assert seed > 2 or known > 0
    assert sorted(path.name for path in store.path.iterdir()) == sorted(
        path.name for path in expected.path.iterdir()
    )


def test_no_bucket_exceeds_its_bytes_when_recent_articles_are_longer(tmp_path, monkeypatch):
    """Ten times longer, and far more buckets than files may be open."""
    bucket_bytes = 20_000
    rng = np.random.default_rng(0)
    records = [
        {
            "pmid": pmid,
            "version": 1,
            "title": f"title {pmid}",
            "vernacular_title": "",
            "abstract": "word " * (200 if pmid > 800 else 20),
            "year": 0,
            "mesh": [(f"Term {number}", "", False, []) for number in range(pmid % 9)],
        }
        for pmid in rng.permutation(1000).tolist()
    ]
    files = [(records[:700], []), (records[700:] + records[:50], [3, 4])]
    largest_article = 1100 + 9 * 8
    held = []
    read = article_sort._BucketFiles.read

    def read_measured(buckets):
        for bucket in read(buckets):
            held.append(sum(column.nbytes for column in bucket.values()))
            yield bucket

    monkeypatch.setattr(article_sort._BucketFiles, "read", read_measured)
    monkeypatch.setattr(article_sort, "BLOCK_BYTES", 50_000)
    reports = write_parts(files, tmp_path)
    expected, _ = write_at_once(tmp_path / "expected", remaining_records(files))
    num_open = len(os.listdir("/dev/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 12, limits[1]))
    try:
        with Draft(tmp_path / "store") as draft:
            merged = merge_parts(reports, draft.folder, bucket_bytes=bucket_bytes)
            store = write_articles(draft, reports, merged, CONFIG, {})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(held) > 15
    assert max(held) <= bucket_bytes + largest_article
    assert store.manifest == expected.manifest


def test_words_are_counted_in_evenly_spaced_articles(tmp_path, monkeypatch):
    """Whatever the buckets: every third of ten articles."""
    monkeypatch.setattr(article_sort, "MAX_COUNTED_ARTICLES", 3)
    records = [
        {
            "pmid": pmid,
            "version": 1,
            "title": f"title{pmid}",
            "vernacular_title": "",
            "abstract": f"abstract{pmid}",
            "year": 0,
            "mesh": [("Term", "", False, [])],
        }
        for pmid in range(10)
    ]
    reports = write_parts([(records, [])], tmp_path)
    counted = {f"{field}{pmid}" for field in ("title", "abstract") for pmid in (0, 3, 6, 9)}
    for bucket_bytes in (1, 400, 1000):
        with Draft(tmp_path / "store", force=True) as draft:
            merged = merge_parts(reports, draft.folder, bucket_bytes=bucket_bytes)
            store = write_articles(draft, reports, merged, CONFIG, {})
        assert store.count_by_word.keys() == counted | {"term"}
