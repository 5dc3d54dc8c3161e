"""Public data, from a server on this machine in the layout of the real ones."""

import gzip
import hashlib
import json
import re
import shutil
from collections import namedtuple

import pytest
from typer.testing import CliRunner

from raybio.cli.prepare import app
from raybio.core.errors import ConfigError, DataError
from raybio.core.text import size_text
from raybio.store.download import RemoteFile, download_files
from raybio.store.public_data import (
    SOURCES,
    openalex_files,
    pubmed_files,
    string_files,
    tree_of_life_files,
)
from raybio.store.retrying_http import RetryingHttp
from tests.loopback_site import serve
from tests.paths import ROOT

CONTENT = gzip.compress(b"protein1 protein2 combined_score\n" * 20_000, 0)
NAME = "9606.protein.links.v12.0.txt.gz"
LINKS = f"/download/protein.links.v12.0/{NAME}"
SEQUENCES = "/download/protein.sequences.v12.0/9606.protein.sequences.v12.0.fa.gz"
STRING = {LINKS: CONTENT, SEQUENCES: gzip.compress(b">9606.P1\nACD\n")}
SNAP_PAGE = b"""<html><a href="../index.html">SNAP</a>
<a href='data/treeoflife.species.tsv'>species</a> <a href=data/treeoflife.interactomes.zip>zip</a>"""
TREE_OF_LIFE = {
    "/tree-of-life/data.html": SNAP_PAGE,
    "/tree-of-life/data/treeoflife.species.tsv": b"Species_ID\tCompact_name\tOfficial_NCBI_name\n",
    "/tree-of-life/data/treeoflife.interactomes.zip": b"PK\3\4",
    "/download/protein.sequences.v10.5.fa.gz": gzip.compress(b">9606.P1\nACD\n"),
}


def openalex_site(days=("2026-03-01", "2026-05-02", "2026-04-01")):
    files, entries = {}, []
    for day in days:
        key = f"data/jsonl/works/updated_date={day}/part_0000.gz"
        files[f"/{key}"] = gzip.compress(json.dumps({"id": day}).encode())
        meta = {"content_length": len(files[f"/{key}"]), "record_count": 1}
        entries.append({"url": f"s3://openalex/{key}", "meta": meta})
    manifest = {"date": "2026-06-26", "format": "jsonl", "entity": "works", "files": entries}
    return files | {"/data/jsonl/works/manifest.json": json.dumps(manifest).encode()}


UPDATE = "pubmed26n1340.xml.gz"


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with serve(STRING | TREE_OF_LIFE | openalex_site()) as running:
        yield running


def client(**options):
    return RetryingHttp(**{"sleep": lambda seconds: None, **options})


def fetch(site, folder, **options):
    files = [RemoteFile(site.url + LINKS, NAME)]
    return download_files(client(**options), files, folder)[0]


def test_a_file_comes_with_the_sum_of_what_was_received_and_is_not_fetched_again(site, tmp_path):
    path = fetch(site, tmp_path)
    assert path.read_bytes() == CONTENT
    summed = f"{hashlib.sha256(CONTENT).hexdigest()}  {NAME}\n"
    assert (tmp_path / f"{NAME}.sha256").read_text() == summed
    assert {entry.name for entry in tmp_path.iterdir()} == {NAME, f"{NAME}.sha256"}
    site.requests.clear()
    fetch(site, tmp_path)
    assert site.requests == []
    path.write_bytes(CONTENT[:-1] + b"?")
    assert fetch(site, tmp_path).read_bytes() == CONTENT


def test_an_interrupted_file_is_continued_only_if_it_is_still_the_same(site, tmp_path):
    site.cuts[LINKS] = [100_000]
    with pytest.raises(
        DataError, match="failed 1 times, the last time with: the connection was cut"
    ):
        fetch(site, tmp_path, num_tries=1)
    assert (tmp_path / f"{NAME}.part").stat().st_size == 100_000
    site.requests.clear()
    assert fetch(site, tmp_path).read_bytes() == CONTENT
    ((requested, version),) = site.gets(LINKS)
    assert requested == "bytes=100000-"
    assert version.startswith('"')


@pytest.mark.parametrize("honors_if_range", [True, False])
def test_a_file_that_was_replaced_meanwhile_is_fetched_from_its_beginning(
    site, tmp_path, honors_if_range
):
    site.cuts[LINKS] = [100_000]
    with pytest.raises(DataError, match="failed 1 times"):
        fetch(site, tmp_path, num_tries=1)
    replaced = gzip.compress(b"another release\n" * 50_000, 0)
    site.files[LINKS] = replaced
    site.honors_if_range = honors_if_range
    assert fetch(site, tmp_path).read_bytes() == replaced
    assert {entry.name for entry in tmp_path.iterdir()} == {NAME, f"{NAME}.sha256"}


def test_a_part_of_an_earlier_release_is_never_continued_after_a_full_disk(
    site, tmp_path, monkeypatch
):
    site.cuts[LINKS] = [100_000]
    with pytest.raises(DataError, match="failed 1 times"):
        fetch(site, tmp_path, num_tries=1)
    replaced = gzip.compress(b"another release\n" * 50_000, 0)
    site.files[LINKS] = replaced
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6, 0))
        with pytest.raises(DataError, match="0 bytes are free"):
            fetch(site, tmp_path)
    assert fetch(site, tmp_path).read_bytes() == replaced


def test_a_server_whose_copies_differ_and_that_cuts_is_given_up(site, tmp_path, monkeypatch):
    """Each copy arrives to the same byte: nothing more than before is there."""
    naps = []
    releases = [gzip.compress(bytes([number]) * 300_000, 0) for number in range(2)]

    def swap(seconds):
        naps.append(seconds)
        assert len(naps) < 50, "tries without end"
        site.files[LINKS] = releases[len(naps) % 2]
        site.cuts[LINKS] = [100_000]

    site.honors_if_range = False
    site.files[LINKS] = releases[0]
    site.cuts[LINKS] = [100_000]
    with pytest.raises(DataError, match="failed 4 times"):
        fetch(site, tmp_path, sleep=swap, num_tries=4)


def test_a_part_without_a_version_is_not_continued(site, tmp_path):
    site.has_etags = False
    (tmp_path / f"{NAME}.part").write_bytes(b"x" * 5000)
    assert fetch(site, tmp_path).read_bytes() == CONTENT
    assert site.gets(LINKS) == [(None, None)]


def test_a_file_of_another_length_than_announced_is_refused(site, tmp_path):
    files = [RemoteFile(site.url + LINKS, NAME, len(CONTENT) + 1)]
    with pytest.raises(DataError, match=rf"has {len(CONTENT):,} bytes, but {len(CONTENT) + 1:,}"):
        download_files(client(), files, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_page_in_place_of_an_archive_is_refused(site, tmp_path):
    site.files[LINKS] = b"<html>Please log in</html>"
    with pytest.raises(DataError, match=r"begins with b'<html>.*want a \.gz file"):
        fetch(site, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_page_in_place_of_a_table_is_refused(site, tmp_path):
    site.files["/table.tsv"] = b"\n<!DOCTYPE html><html>Please log in</html>"
    with pytest.raises(DataError, match=r"want a \.tsv file"):
        download_files(client(), [RemoteFile(site.url + "/table.tsv", "table.tsv")], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_does_not_fit_is_refused_before_it_starts(site, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 500_000, 500_000))
    files = [RemoteFile(site.url + LINKS, NAME, len(CONTENT))]
    with pytest.raises(DataError, match="needs 660 kB, 500 kB are free"):
        download_files(client(), files, tmp_path)
    assert site.gets(LINKS) == []
    # Without an announced size, the answer to the request has it.
    with pytest.raises(DataError, match="needs 660 kB, 500 kB are free"):
        fetch(site, tmp_path)
    assert not (tmp_path / NAME).exists()


def test_sizes_are_shown_with_three_digits():
    shown = [size_text(size) for size in (0, 999, 1000, 79_300_000, 138_154_280_240, 2 * 10**12)]
    assert shown == ["0 bytes", "999 bytes", "1 kB", "79.3 MB", "138 GB", "2 TB"]


def test_strings_files_of_species_and_of_all(site):
    files = string_files(client(), site.url, ["9606"], "12.0", physical=False)
    assert [(file.url, file.num_bytes) for file in files] == [
        (site.url + path, len(content)) for path, content in STRING.items()
    ]
    site.files["/download/protein.physical.links.v12.5.txt.gz"] = b"1"
    site.files["/download/protein.sequences.v12.5.fa.gz"] = b"22"
    files = string_files(client(), site.url, [], "12.5", physical=True)
    assert [file.num_bytes for file in files] == [1, 2]
    with pytest.raises(DataError, match=r"protein\.links\.v12\.0/7\.protein.*answers 404"):
        string_files(client(), site.url, ["7"], "12.0", physical=False)


def test_a_server_that_does_not_know_sizes_is_read_all_the_same(site, tmp_path):
    site.knows_head = False
    files = string_files(client(), site.url, ["9606"], "12.0", physical=False)
    assert [file.num_bytes for file in files] == [None, None]
    assert download_files(client(), files, tmp_path)[0].read_bytes() == CONTENT


def test_the_files_of_the_tree_of_life_are_those_that_its_page_links(site):
    files = tree_of_life_files(client(), site.url)
    assert [file.path for file in files] == [
        "treeoflife.interactomes.zip",
        "treeoflife.species.tsv",
        "protein.sequences.v10.5.fa.gz",
    ]
    # Links to the page's own host are looked up at the mirror, too.
    site.files["/tree-of-life/data.html"] = SNAP_PAGE.replace(
        b"data/treeoflife.species", b"http://snap.stanford.edu/tree-of-life/data/treeoflife.species"
    )
    assert tree_of_life_files(client(), site.url) == files
    site.files["/tree-of-life/data.html"] = b'<a href="other.zip">moved</a>'
    with pytest.raises(
        DataError, match=r"links no file .*Has the page moved\? It links other\.zip"
    ):
        tree_of_life_files(client(), site.url)


def test_works_of_openalex_are_listed_newest_first_with_their_sizes(site):
    files = openalex_files(client(), site.url)
    days = ["2026-05-02", "2026-04-01", "2026-03-01"]
    assert [file.path for file in files] == [f"works/updated_date={d}/part_0000.gz" for d in days]
    assert [file.num_bytes for file in files] == [
        len(site.files[f"/data/jsonl/{file.path}"]) for file in files
    ]
    assert openalex_files(client(), site.url, limit=1) == files[:1]
    assert openalex_files(client(), site.url, since="2026-04-01") == files[:2]
    with pytest.raises(DataError, match="none of works that changed since 2026-07-01; the newest"):
        openalex_files(client(), site.url, since="2026-07-01")


@pytest.mark.parametrize(
    "since", ["2026-1-5", "05/01/2026", "20260105", "2026-02-30", "2026-W01-1"]
)
def test_a_day_in_another_form_is_refused_before_any_request(site, since):
    """Days are compared as texts: these took all files or missed some."""
    with pytest.raises(ConfigError, match=f"--since {since}: want a day as YYYY-MM-DD"):
        openalex_files(None, site.url, since=since)


def test_the_manifest_of_snapshots_before_2026_is_read(site):
    path = "/data/jsonl/works/manifest.json"
    manifest = json.loads(site.files[path])
    before = openalex_files(client(), site.url)
    site.files[path] = json.dumps({"entries": manifest["files"]}).encode()
    assert openalex_files(client(), site.url) == before


@pytest.mark.parametrize(
    "url",
    [
        "s3://openalex/data/../works/updated_date=2026-05-02/part_0000.gz",
        "s3://openalex/works/updated_date=2026-05-02/../../x.gz",
        "https://elsewhere/works/updated_date=2026-05-02/part.gz",
        "s3://openalex/data/jsonl/authors/updated_date=2026-05-02/part_0000.gz",
        7,
    ],
)
def test_a_manifest_with_other_files_than_works_is_refused(site, url):
    entry = {"url": url, "meta": {"content_length": 3}}
    manifest = json.dumps({"files": [entry]}).encode()
    site.files["/data/jsonl/works/manifest.json"] = manifest
    with pytest.raises(DataError, match="is no manifest of works"):
        openalex_files(client(), site.url)


@pytest.mark.parametrize(
    ("command", "names", "following"),
    [
        (
            ["string", "--taxid", "9606"],
            [NAME],
            "proteins --edges '{out}/*protein.links*.gz' --proteins '{out}/",
        ),
        (["tree-of-life"], ["treeoflife.interactomes.zip"], "--interactomes {out} --species"),
        (["ogb-mag"], ["mag.zip"], "articles --mag {out}/mag --abstracts"),
        (
            ["openalex", "--limit", "2"],
            ["works/updated_date=2026-05-02/part_0000.gz"],
            "articles --openalex '{out}/works/*/*.gz'",
        ),
        (
            ["pubmed", "--updates"],
            [UPDATE],
            "medline --input 'BASELINE/*.xml.gz' --input '{out}/*.xml.gz' --workers N",
        ),
    ],
)
def test_each_source_has_a_command_that_says_license_size_and_what_is_next(
    site, tmp_path, command, names, following
):
    site.files["/ogb/data/nodeproppred/mag.zip"] = b"PK\3\4 archive"
    folder = "/pubmed/updatefiles/"
    site.files |= {
        folder: f'<a href="{UPDATE}">{UPDATE}</a>'.encode(),
        folder + UPDATE: CONTENT,
        f"{folder}{UPDATE}.md5": f"MD5({UPDATE})= {hashlib.md5(CONTENT).hexdigest()}".encode(),
    }
    arguments = ["download", *command, "--out", str(tmp_path), "--url", site.url]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert all((tmp_path / name).is_file() for name in names)
    assert f"license: {SOURCES[command[0]].license}" in result.output
    assert re.search(r"\d+ files? \([\d.]+ (bytes|kB)\) from http", result.output)
    assert following.format(out=tmp_path) in result.output


@pytest.mark.parametrize(
    "options", [[], ["--taxid", "9606", "--all-species"], ["--taxid", "human"]]
)
def test_a_download_of_string_without_one_choice_of_species_is_refused(tmp_path, options):
    with pytest.raises(ConfigError, match="--taxid"):
        CliRunner().invoke(
            app, ["download", "string", "--out", str(tmp_path), *options], catch_exceptions=False
        )


def test_the_guide_has_address_license_size_and_checksum_of_each_source():
    guide = (ROOT / "docs" / "your_data.md").read_text(encoding="utf-8")
    for name, source in SOURCES.items():
        row = f"| `{name}` | {source.address} | {source.size} | {source.license} | {source.checksum} |"
        assert row in guide


def test_pubmeds_files_that_do_not_fit_are_refused_before_the_first_is_fetched(
    site, tmp_path, monkeypatch
):
    folder = "/pubmed/baseline/"
    names = ["pubmed26n0001.xml.gz", "pubmed26n0002.xml.gz"]
    page = "".join(f'<a href="{name}">{name}</a>' for name in names)
    site.files |= {folder: page.encode()} | {folder + name: CONTENT for name in names}
    files = pubmed_files(client(), site.url)
    assert [(file.path, file.num_bytes) for file in files] == [
        (name, len(CONTENT)) for name in names
    ]
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**7, 9 * 10**6, 10**6))
    with pytest.raises(DataError, match=r"needs 1\.32 MB, 1 MB are free"):
        download_files(client(), files, tmp_path)
    assert all(site.gets(folder + name) == [] for name in names)
