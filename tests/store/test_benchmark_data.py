"""Public sets of benchmarks, from a server on this machine in the layout of the real ones."""

import gzip
import hashlib
import io
import re
import zipfile
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from raybio.benchmark.suite import read_suite
from raybio.cli.prepare import app
from raybio.core.errors import ConfigError, DataError
from raybio.store import benchmark_data
from raybio.store.benchmark_data import BY_HAND, benchmark_sets
from raybio.store.download import RemoteFile
from tests.loopback_site import serve
from tests.paths import ROOT, SHARED_DATA

HAND = sorted(BY_HAND)


def download(site, out, *sets):
    chosen = [part for name in sets for part in ("--set", name)]
    arguments = ["download", "benchmark-data", "--out", str(out), "--url", site.url, *chosen]
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with serve({}) as running:
        yield running


@pytest.mark.skipif(not SHARED_DATA.exists(), reason=f"the public sets are not in {SHARED_DATA}")
def test_the_sets_come_with_their_pinned_sums_in_the_layout_that_the_suites_read(site, tmp_path):
    here = [each for each in benchmark_sets() if not each.unpacked]
    for each in here:
        for file in each.files:
            path = SHARED_DATA / file.path
            zipped = path.with_name(f"{path.name}.gz")
            content = path.read_bytes() if path.exists() else gzip.decompress(zipped.read_bytes())
            site.files[urlsplit(file.url).path] = content
    names = [each.name for each in here]

    result = download(site, tmp_path, *names)

    assert result.exit_code == 0, result.output
    assert f"next: raybio benchmark RUN --suite biomedical --data {tmp_path}" in result.output
    lacking = {task.name for task in read_suite("biomedical", tmp_path).tasks if task.check() != ""}
    assert lacking == {"nfcorpus", "scifact"}
    site.requests.clear()
    download(site, tmp_path, *names)
    assert site.requests == []


def test_other_bytes_than_the_pinned_ones_are_refused_and_not_kept(site, tmp_path):
    (pubmedqa,) = benchmark_sets(["pubmedqa"])
    (file,) = pubmedqa.files
    site.files[urlsplit(file.url).path] = b"{" * file.num_bytes
    with pytest.raises(DataError, match=f"want {file.sha256}, twice. Has it been replaced"):
        download(site, tmp_path, "pubmedqa")
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_damaged_part_of_an_earlier_call_is_fetched_anew(site, tmp_path, monkeypatch):
    content = b"0123456789" * 30_000
    about = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    entry = {"address": "https://a.example/", "license": "MIT", "files": {"a.txt": about}}
    monkeypatch.setattr(benchmark_data, "_read_list", lambda: {"tiny": entry})
    site.files["/a.txt"] = content
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "a.txt.part").write_bytes(b"?" * len(content))
    download(site, tmp_path)
    assert (tmp_path / "tiny" / "a.txt").read_bytes() == content


def test_the_archive_of_a_set_is_unpacked_next_to_it(site, tmp_path, monkeypatch):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("tiny/corpus.jsonl", '{"_id": "1", "text": "kinase"}\n')
        archive.writestr("tiny/qrels/test.tsv", "query-id\tcorpus-id\tscore\n")
        archive.writestr("../outside.txt", "not unpacked")
    content = memory.getvalue()
    about = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    entry = {
        "address": "https://public.example/datasets/",
        "license": "CC0",
        "files": {"tiny.zip": about},
        "unpacked": ["corpus.jsonl", "qrels/test.tsv"],
    }
    monkeypatch.setattr(benchmark_data, "_read_list", lambda: {"tiny": entry})
    site.files["/datasets/tiny.zip"] = content

    result = download(site, tmp_path / "public")

    assert "tiny: 1 file" in result.output
    assert "license: CC0" in result.output
    assert all(str(tmp_path / "public" / name) in result.output for name in HAND)
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert written == {
        "public/tiny/tiny.zip",
        "public/tiny/corpus.jsonl",
        "public/tiny/qrels/test.tsv",
    }
    assert (tmp_path / "public/tiny/corpus.jsonl").read_text() == '{"_id": "1", "text": "kinase"}\n'


def test_an_interrupted_file_of_a_set_is_continued(site, tmp_path, monkeypatch):
    content = b"0123456789" * 30_000
    about = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    entry = {"address": "https://a.example/", "license": "MIT", "files": {"a.txt": about}}
    monkeypatch.setattr(benchmark_data, "_read_list", lambda: {"tiny": entry})
    site.files["/a.txt"] = content
    site.cuts["/a.txt"] = [100_000]
    download(site, tmp_path)
    assert (tmp_path / "tiny" / "a.txt").read_bytes() == content
    assert [requested for requested, _ in site.gets("/a.txt")] == [None, "bytes=100000-"]


def test_unknown_sets_and_those_fetched_by_hand_are_refused():
    with pytest.raises(
        ConfigError, match="--set biord: want some of hallmarks_of_cancer, pubmedqa"
    ):
        benchmark_sets(["biord"])
    with pytest.raises(ConfigError, match="--set stability: is fetched by hand: TAPE's archive"):
        benchmark_sets(["biored", "stability"])


def test_every_folder_that_a_suite_reads_can_be_had(tmp_path):
    known = {each.name for each in benchmark_sets()} | set(BY_HAND)
    suites = (ROOT / "raybio" / "benchmark" / "suites").glob("*.yaml")
    read = {
        name for suite in suites for name in re.findall(r"\{data\}/(\w+)", suite.read_text("utf-8"))
    }
    assert {"biored", "medlama", "stability"} <= read <= known


def test_each_file_has_a_size_and_a_sum_but_the_archive_that_is_packed_at_each_request():
    files = [file for each in benchmark_sets() for file in each.files]
    assert all(isinstance(file, RemoteFile) for file in files)
    without = {file.path for file in files if not (file.num_bytes and len(file.sha256) == 64)}
    assert without == {"hallmarks_of_cancer/hoc_text_labels.tar.gz"}
    assert len({file.path for file in files}) == len(files)


def test_the_guide_has_the_license_of_each_set():
    guide = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    for each in benchmark_sets():
        assert f"| `{each.name}` | {each.license} |" in guide
    for name in BY_HAND:
        assert f"`{name}`" in guide
