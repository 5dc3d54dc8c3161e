import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pyarrow as pa
import pytest

from raybio.core.errors import DataError, StoreError
from raybio.methods.biostransformers.formats import medline_parts
from raybio.methods.biostransformers.formats.columns import ARTICLE_SCHEMA
from raybio.methods.biostransformers.formats.medline_parts import (
    FileReport,
    add_to_quarantine,
    parse_file,
    part_path,
    read_blocks,
    read_keys,
)
from raybio.methods.biostransformers.prepare import _without_broken
from raybio.store.quarantine import Quarantine
from tests.methods.biostransformers.formats.medline_files import (
    citation,
    deletion,
    read_articles,
    write_medline,
)


@pytest.fixture
def parts(tmp_path):
    (tmp_path / "parts").mkdir()
    return tmp_path / "parts"


def test_a_part_holds_the_articles_of_its_file_and_the_report_states_the_rest(tmp_path, parts):
    texts = [citation(5, title="[Five]."), citation(None), citation(3, mesh="<MeshHeading/>")]
    path = write_medline(
        tmp_path / "x.xml.gz", *texts, others="<PubmedBookArticle/>" + deletion(8, 7)
    )
    report = parse_file(path, parts)
    assert (report.path, report.part) == (str(path), str(part_path(path, parts)))
    assert (report.num_articles, report.num_citations, report.num_deleted, report.problem) == (
        2,
        4,
        2,
        "",
    )
    assert {reason: found["count"] for reason, found in report.quarantine.items()} == {
        "no PMID": 1,
        "not an article": 1,
        "heading without a name": 1,
    }
    table = read_articles(report.part)
    assert table["pmid"].to_pylist() == [5, 3]
    assert table["title"].to_pylist() == ["Five.", "A title."]
    assert os.listdir(parts) == [part_path(path, parts).name]


def test_the_quarantines_of_all_files_come_together(tmp_path, parts):
    first = write_medline(
        tmp_path / "a.xml", citation(1), citation(None), others="<PubmedBookArticle/>"
    )
    second = write_medline(tmp_path / "b.xml", citation(2), citation(None), citation(None))
    together = Quarantine(max_bad_share=0.4)
    add_to_quarantine([parse_file(first, parts), parse_file(second, parts)], together)
    assert together.count_by_reason == {"no PMID": 3, "not an article": 1}
    assert [str(example) for example in together.examples_by_reason["no PMID"]] == [
        "a.xml:12",
        "b.xml:12",
        "b.xml:19",
    ]
    with pytest.raises(DataError, match="3 of 6 citation records are bad"):
        together.check("citation")


def test_a_finished_part_is_used_again_unless_its_file_changed(tmp_path, parts):
    path = write_medline(tmp_path / "x.xml", citation(1), citation(None), others=deletion(4))
    first = parse_file(path, parts)
    written = os.stat(first.part)
    again = parse_file(path, parts)
    assert again == first
    assert os.stat(again.part).st_mtime_ns == written.st_mtime_ns
    assert os.stat(again.part).st_ino == written.st_ino
    status = path.stat()
    write_medline(path, citation(2), citation(None), others=deletion(4))
    # Same size and time: the digest tells.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    changed = parse_file(path, parts)
    assert read_articles(changed.part)["pmid"].to_pylist() == [2]
    written = os.stat(changed.part)
    os.utime(path, ns=(1, 1))
    assert os.stat(parse_file(path, parts).part).st_ino != written.st_ino


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_a_torn_part_is_made_anew_and_never_read(tmp_path, parts, keep):
    path = write_medline(tmp_path / "x.xml", *(citation(pmid) for pmid in range(1, 30)))
    report = parse_file(path, parts)
    part = part_path(path, parts)
    content = part.read_bytes()
    cut = int(keep * (len(content) - 600))
    part.write_bytes(content[:cut])
    with pytest.raises(StoreError, match=r"x\.xml.*Remove it"):
        read_keys(report)
    parse_file(path, parts)
    assert part.read_bytes() == content


@pytest.mark.parametrize("schema", [pa.schema([("a", pa.int8())]), ARTICLE_SCHEMA])
def test_a_stream_that_is_no_part_is_refused(tmp_path, schema):
    part = str(tmp_path / "x.arrow")
    with pa.OSFile(part, "wb") as file, pa.ipc.new_stream(file, schema):
        pass
    with pytest.raises(StoreError, match=r"x\.arrow: is not whole"):
        read_keys(FileReport("x.xml", part, 0, 0, 0, {}, ""))


def test_a_broken_file_gives_a_report_that_says_where_and_leaves_no_part(tmp_path, parts):
    path = write_medline(tmp_path / "x.xml", *(citation(pmid) for pmid in range(1, 2000)))
    content = path.read_text()
    path.write_text(content.replace(">1500</PMID>", ">1500</PMIDS>"))
    line = content[: content.index("1500</PMID>")].count("\n") + 1
    report = parse_file(path, parts)
    assert report.part == ""
    assert f"x.xml, line {line}: is not well-formed XML" in report.problem
    assert os.listdir(parts) == []
    for place in [tmp_path / "none.xml", tmp_path]:
        assert str(place) in parse_file(place, parts).problem


def test_files_of_one_name_in_two_folders_have_parts_of_their_own(tmp_path, parts):
    reports = []
    for pmid, folder in enumerate(["a", "b"], start=1):
        (tmp_path / folder).mkdir()
        reports.append(
            parse_file(write_medline(tmp_path / folder / "x.xml", citation(pmid)), parts)
        )
    assert [read_articles(report.part)["pmid"].to_pylist() for report in reports] == [[1], [2]]


def test_a_missing_folder_is_named(tmp_path):
    path = write_medline(tmp_path / "x.xml", citation(1))
    with pytest.raises(StoreError, match=r"none.*cannot be written"):
        parse_file(path, tmp_path / "none")


def test_two_processes_give_the_parts_of_one(tmp_path, parts):
    paths = [
        write_medline(
            tmp_path / f"{n}.xml.gz", citation(n), citation(50 - n), citation(7, version=n)
        )
        for n in range(1, 5)
    ]
    (tmp_path / "alone").mkdir()
    alone = [parse_file(path, tmp_path / "alone") for path in paths]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        # Each file twice, so that two calls may write the same part at once.
        together = list(pool.map(parse_file, [*paths, *paths[::-1]], [parts] * 8))[:4]
    assert sorted(os.listdir(parts)) == sorted(os.listdir(tmp_path / "alone"))
    for one, other in zip(alone, together, strict=True):
        assert read_articles(one.part).equals(read_articles(other.part), check_metadata=True)


def test_blocks_of_a_part_are_its_rows_in_order(tmp_path, parts):
    path = write_medline(tmp_path / "x.xml", *(citation(pmid) for pmid in range(1, 2500)))
    part = parse_file(path, parts).part
    first_bytes = read_articles(part).select(["pmid", "title"]).slice(0, 1000).nbytes
    blocks = list(read_blocks(part, ["pmid", "title"], first_bytes + 1))
    # A block is a whole number of record batches, which have 1,000 rows each.
    assert [block.num_rows for block in blocks] == [2000, 499]
    table = pa.Table.from_batches(blocks)
    assert table.equals(read_articles(part).select(["pmid", "title"]).replace_schema_metadata())


def test_a_part_that_is_not_the_reports_is_refused(tmp_path, parts):
    report = parse_file(write_medline(tmp_path / "x.xml", citation(1)), parts)
    with pytest.raises(StoreError, match=r"x\.xml.*: 1 rows, want the 7 of its report"):
        read_keys(report._replace(num_articles=7))
    with pytest.raises(StoreError, match=r"none: cannot be read"):
        list(read_blocks(tmp_path / "none", ["pmid"], 10))


def test_a_file_that_changes_while_it_is_read_gives_no_part(tmp_path, parts, monkeypatch):
    path = write_medline(tmp_path / "x.xml", citation(1))
    write = medline_parts._write

    def write_and_change(*arguments):
        account = write(*arguments)
        path.write_text(path.read_text() + "\n")
        return account

    monkeypatch.setattr(medline_parts, "_write", write_and_change)
    report = parse_file(path, parts)
    assert report.problem == f"{path}: changed while it was read. Run again when it is whole."
    assert os.listdir(parts) == []


def test_too_many_broken_files_are_refused_and_a_few_are_named(tmp_path, parts):
    paths = [write_medline(tmp_path / f"{number}.xml", citation(number)) for number in range(10)]
    paths[3].write_text("<broken")
    sound, broken = _without_broken([parse_file(path, parts) for path in paths], Quarantine(0.1))
    assert (len(sound), [one["file"] for one in broken]) == (9, ["3.xml"])
    paths[7].write_text("<broken")
    reports = [parse_file(path, parts) for path in paths]
    with pytest.raises(DataError, match=r"2 of 10 file records are bad .*first 3\.xml"):
        _without_broken(reports, Quarantine(0.1))
