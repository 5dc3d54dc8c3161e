"""OpenAlex's works in the layout of its snapshot: texts, citations, dates, versions."""

import gzip
import json
import random
import tracemalloc

import numpy as np
import pytest
from typer.testing import CliRunner

from raybio.cli.prepare import app
from raybio.core.errors import ConfigError, DataError
from raybio.methods.sppt.articles.formats import openalex
from raybio.methods.sppt.articles.formats.ogb_mag import OgbMag
from raybio.methods.sppt.articles.formats.openalex import OpenAlex, parse_work
from raybio.methods.sppt.config import LinkedTextConfig
from raybio.methods.sppt.prepare import prepare_linked_texts
from raybio.store.quarantine import Quarantine
from raybio.store.store import open_store
from tests.methods.sppt.articles.test_formats import ALL, links_of, text_by_key, write_mag


def work(number, abstract="an abstract", cited=(), *, date="2020-05-01", **more):
    words = abstract.split()
    index = {word: [at for at, other in enumerate(words) if other == word] for word in words}
    ids = {"openalex": f"https://openalex.org/W{number}", "mag": number + 7}
    record = {
        "id": f"https://openalex.org/W{number}",
        "ids": ids,
        "title": f"Title {number}",
        "language": "en",
        "type": "article",
        "publication_date": date,
        "abstract_inverted_index": index or None,
        "referenced_works": [f"https://openalex.org/W{other}" for other in cited],
    }
    return record | more


def write_works(folder, works_by_day):
    paths = []
    for day, works in works_by_day.items():
        path = folder / "works" / f"updated_date={day}" / "part_0000.gz"
        path.parent.mkdir(parents=True)
        lines = [one if isinstance(one, str) else json.dumps(one) for one in works]
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
        paths.append(path)
    return paths


def simulate(num_works=60, seed=0):
    rng = random.Random(seed)
    works = []
    for number in range(1, num_works + 1):
        cited = sorted(rng.sample(range(1, number), min(number - 1, 3)))
        date = f"{1990 + number // 2}-0{1 + number % 9}-11"
        works.append(
            work(number * 1000, f"summary of {number}", [c * 1000 for c in cited], date=date)
        )
    rng.shuffle(works)
    return works


def test_works_become_a_store_of_titles_abstracts_and_citations(tmp_path, monkeypatch):
    monkeypatch.setattr(openalex, "TEXTS_PER_BLOCK", 7)
    monkeypatch.setattr(openalex, "REFERENCES_PER_BLOCK", 11)
    works = simulate()
    paths = write_works(tmp_path, {"2026-01-01": works[:20], "2026-02-01": works[20:]})
    store = prepare_linked_texts(tmp_path / "store", OpenAlex(paths), ALL)
    ids = {record["id"].rpartition("/")[2] for record in works}
    assert text_by_key(store) == {
        key: f"Title {key[1:]} summary of {int(key[1:]) // 1000}" for key in ids
    }
    assert links_of(store) == {
        frozenset((record["id"].rpartition("/")[2], cited.rpartition("/")[2]))
        for record in works
        for cited in record["referenced_works"]
    }
    assert not list(tmp_path.glob("**/references"))


def test_the_newest_version_of_a_work_counts_whatever_the_order_of_the_files(tmp_path):
    old = [work(1, "old words", [2]), work(2, "second", [3]), work(3, "third")]
    new = [work(1, "new words", [3])]
    paths = write_works(tmp_path, {"2025-01-01": old, "2026-01-01": new})
    for number, order in enumerate((paths, paths[::-1])):
        store = prepare_linked_texts(tmp_path / str(number), OpenAlex(order), ALL)
        assert text_by_key(store)["W1"] == "Title 1 new words"
        assert links_of(store) == {frozenset(("W1", "W3")), frozenset(("W2", "W3"))}
        assert store.manifest["quarantine"][openalex.OLDER]["count"] == 1


@pytest.mark.parametrize("newest", [work(1, ""), work(1, "neue", language="de")])
def test_an_older_version_of_a_work_that_is_skipped_now_is_skipped_too(newest, tmp_path):
    old = [work(1, "old words", [2]), work(2, "second", [3]), work(3, "third")]
    paths = write_works(tmp_path, {"2025-01-01": old, "2026-01-01": [newest]})
    store = prepare_linked_texts(tmp_path / "store", OpenAlex(paths, "en"), ALL)
    assert text_by_key(store).keys() == {"W2", "W3"}
    assert links_of(store) == {frozenset(("W2", "W3"))}
    assert store.manifest["quarantine"][openalex.OLDER]["count"] == 1


def test_works_without_abstract_or_in_another_language_are_skipped_and_counted(tmp_path):
    works = [
        work(1, cited=[2, 3, 4, 99]),
        work(2),
        work(3, ""),
        work(4, language="de"),
        work(5, cited=[2], title=None),
        work(6, language=None),
    ]
    paths = write_works(tmp_path, {"2026-01-01": works})
    config = ALL.model_copy(update={"language": "en"})
    store = prepare_linked_texts(tmp_path / "store", OpenAlex(paths, "en"), config)
    assert links_of(store) == {frozenset(("W1", "W2")), frozenset(("W5", "W2"))}
    assert text_by_key(store)["W5"] == "an abstract"
    assert {reason: facts["count"] for reason, facts in store.manifest["quarantine"].items()} == {
        openalex.NO_ABSTRACT: 1,
        openalex.OTHER_LANGUAGE: 2,
        openalex.OUTSIDE: 3,
    }
    assert store.manifest["parameters"]["language"] == "en"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{broken", "Expecting property name"),
        ("[1]", "has no id"),
        (json.dumps({"id": "https://openalex.org/A7"}), "has no id"),
        (json.dumps(work(7, abstract_inverted_index={"a": [-1]})), "positions outside"),
        (json.dumps(work(7, abstract_inverted_index=["a"])), "is no inverted index"),
        (json.dumps(work(7, referenced_works="W1")), "are no list"),
        (json.dumps(work(7, title="\ud800")), "unpaired surrogate"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_line_that_is_no_work_is_shown_with_its_file_and_line(tmp_path, line, problem):
    paths = write_works(tmp_path, {"2026-01-01": [work(1, cited=[2]), line, work(2)]})
    quarantine = Quarantine(max_bad_share=1)
    works = list(OpenAlex(paths)._works(quarantine))
    assert [one.number for one, _ in works] == [1, 2]
    (example,) = quarantine.examples_by_reason[openalex.BAD_WORK]
    assert (example.file, example.line) == ("updated_date=2026-01-01/part_0000.gz", 2)
    assert problem in example.detail


def test_files_without_a_work_that_is_kept_are_refused(tmp_path):
    paths = write_works(tmp_path, {"2026-01-01": [work(1, language="de"), work(2, "")]})
    with pytest.raises(DataError, match=r"no work of 2 in 1 files has an abstract in the language"):
        prepare_linked_texts(tmp_path / "store", OpenAlex(paths, "en"), ALL)


def test_works_are_split_by_date(tmp_path):
    paths = write_works(tmp_path, {"2026-01-01": simulate()})
    config = LinkedTextConfig(split_by_date=True, heldout_share=0.2)
    store = prepare_linked_texts(tmp_path / "store", OpenAlex(paths), config)
    keys = store.keys.to_pylist()
    year = {key: 1990 + int(key[1:]) // 1000 // 2 for key in keys}
    newest = {max(year[keys[u]], year[keys[v]]) for u, v in store.heldout.tolist()}
    u = np.repeat(np.arange(store.graph.num_nodes), np.diff(store.graph.indptr))
    pairs = zip(u.tolist(), store.graph.indices.tolist(), strict=True)
    assert max(max(year[keys[a]], year[keys[b]]) for a, b in pairs) <= min(newest)
    assert store.manifest["training_until"] >= "2000"


def test_openalex_has_the_abstracts_of_ogb_mag_by_their_mag_ids(tmp_path):
    mag = write_mag(tmp_path / "mag", ["1007", "2007", "9"], ["0,1", "1,2"])
    works = [
        work(1000, "first abstract"),
        work(2000, "second one", ids={"mag": "2007"}),
        work(3000, "of a paper that OGB has not"),
        work(4000, "without a MAG id", ids={}),
    ]
    paths = write_works(tmp_path, {"2026-01-01": works})
    store = prepare_linked_texts(tmp_path / "store", OgbMag(mag, paths), ALL)
    assert text_by_key(store) == {"1007": "first abstract", "2007": "second one"}
    assert links_of(store) == {frozenset(("1007", "2007"))}


def test_ogb_mag_takes_the_newest_abstract(tmp_path):
    mag = write_mag(tmp_path / "mag", ["1007", "2007", "9"], ["0,1", "1,2"])
    partitions = {
        "2025-01-01": [work(1000, "old words"), work(2000, "second")],
        "2026-01-01": [work(1000, "new words")],
    }
    paths = write_works(tmp_path, partitions)
    for number, order in enumerate((paths, paths[::-1])):
        store = prepare_linked_texts(tmp_path / f"store{number}", OgbMag(mag, order), ALL)
        assert text_by_key(store) == {"1007": "new words", "2007": "second"}


def test_a_work_is_parsed_as_the_api_gives_it():
    record = work(2741809807, "Despite growing interest despite", [1560783210], date="2018-02-13")
    parsed = parse_work(json.dumps(record).encode())
    assert parsed == (
        2741809807,
        "2741809814",
        "en",
        "Title 2741809807",
        "Despite growing interest despite",
        20180213,
        [1560783210],
    )


def test_the_command_reads_patterns_and_refuses_a_language_without_openalex(tmp_path):
    write_works(tmp_path, {"2026-01-01": simulate(), "2026-02-01": [work(7, language="de")]})
    arguments = ["articles", "--openalex", f"{tmp_path}/works/*/*.gz", "--language", "en"]
    arguments += ["--out", str(tmp_path / "store")]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert open_store(tmp_path / "store", verify=True).num_rows == 60
    with pytest.raises(ConfigError, match="--language en: want it with --openalex"):
        CliRunner().invoke(
            app,
            ["articles", "--cane", str(tmp_path), "--language", "en", "--out", str(tmp_path / "x")],
            catch_exceptions=False,
        )


def test_works_that_are_not_kept_take_little_memory():
    num_works = 200_000
    number = np.random.default_rng(0).permutation(num_works)
    is_kept = bytearray(num_works)
    is_kept[5] = is_kept[9] = 1
    tracemalloc.start()
    distinct, row = openalex._newest(number, is_kept)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert distinct.tolist() == sorted([number[5], number[9]])
    assert row.tolist() == np.argsort([number[5], number[9]]).tolist()
    # Next to 9 bytes of each work's number and flag.
    assert peak < 21 * num_works
