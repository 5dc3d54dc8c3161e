"""Archives of public data from a server in the real layout, unpacked and prepared by the printed commands."""

import gzip
import io
import json
import re
import shlex
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raybio.cli.prepare import app
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.store.store import open_store
from tests.loopback_site import Site, serve
from tests.methods.sppt.articles.test_formats import links_of, text_by_key, write_mag
from tests.methods.sppt.articles.test_openalex import work, write_works


def zipped(content_by_name: dict[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in content_by_name.items():
            opened.writestr(name, content)
    return archive.getvalue()


def files_below(folder: Path, prefix: str) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {f"{prefix}/{path.relative_to(folder)}": path.read_bytes() for path in paths}


def invoke(arguments: list[str]) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def download_and_follow(site: Site, source: str, out: Path, store: Path, works: Path) -> None:
    """Download a source, then do what the command says is next."""
    shown = invoke(["download", source, "--out", str(out), "--url", site.url])
    unpack, prepare = (
        shlex.split(line) for line in re.findall(r"^next: (.+)$", shown, re.MULTILINE)
    )
    program, archive, option, folder = unpack
    assert (program, option) == ("unzip", "-d")
    zipfile.ZipFile(archive).extractall(folder)
    assert prepare[:2] == ["raybio", "prepare"]
    arguments = [argument.replace("OPENALEX", str(works)) for argument in prepare[2:]]
    invoke([str(store) if argument == "STORE" else argument for argument in arguments])


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.mark.usefixtures("no_proxy")
def test_the_tree_of_life_becomes_a_store(tmp_path: Path) -> None:
    page = b'<a href="data/treeoflife.species.tsv">s</a> <a href="data/treeoflife.interactomes.zip">i</a>'
    names = ["P1", "P2", "P3", "P4"]
    links = "".join(f"{a} {b}\n" for a in names for b in names if a < b).encode()
    sequences = "".join(
        f">{taxid}.{name}\nMKV{residue}LA\n"
        for taxid in (882, 9606)
        for name, residue in zip(names, "ACDE", strict=True)
    )
    files = {
        "/tree-of-life/data.html": page,
        "/tree-of-life/data/treeoflife.species.tsv": (
            b"Species_ID\tCompact_name\tOfficial_NCBI_name\n"
            b"882\tD. vulgaris\tDesulfovibrio vulgaris\n9606\thuman\tHomo sapiens\n"
        ),
        "/tree-of-life/data/treeoflife.interactomes.zip": zipped(
            {
                "treeoflife.interactomes/882.txt": links,
                "treeoflife.interactomes/9606.txt": links,
                "__MACOSX/treeoflife.interactomes/._882.txt": b"\0\5\x16\7",
            }
        ),
        "/download/protein.sequences.v10.5.fa.gz": gzip.compress(sequences.encode()),
    }
    with serve(files) as site:
        download_and_follow(site, "tree-of-life", tmp_path / "raw", tmp_path / "store", tmp_path)
    store = open_store(tmp_path / "store", ProteinStore)
    assert list(store.group_labels) == ["Desulfovibrio vulgaris", "Homo sapiens"]
    assert store.num_rows == 8
    assert store.graph.num_edges + len(store.heldout) == 12


@pytest.mark.usefixtures("no_proxy")
def test_ogb_mag_becomes_a_store_with_the_abstracts_of_openalex(tmp_path: Path) -> None:
    numbers = range(1000, 1040)
    names = [str(number + 7) for number in numbers]
    citations = [f"{at},{at + 1}" for at in range(len(names) - 1)]
    mag = write_mag(tmp_path / "mag", names, citations)
    works = write_works(
        tmp_path / "site", {"2026-01-01": [work(n, f"summary of {n}") for n in numbers]}
    )
    key = "data/jsonl/works/updated_date=2026-01-01/part_0000.gz"
    content = works[0].read_bytes()
    entry = {"url": f"s3://openalex/{key}", "meta": {"content_length": len(content)}}
    manifest = {"date": "2026-06-26", "format": "jsonl", "entity": "works", "files": [entry]}
    files = {
        "/ogb/data/nodeproppred/mag.zip": zipped(files_below(mag, "mag")),
        "/data/jsonl/works/manifest.json": json.dumps(manifest).encode(),
        f"/{key}": content,
    }
    abstracts = tmp_path / "openalex"
    with serve(files) as site:
        invoke(["download", "openalex", "--out", str(abstracts), "--url", site.url])
        download_and_follow(site, "ogb-mag", tmp_path / "raw", tmp_path / "store", abstracts)
    store = open_store(tmp_path / "store", LinkedTextStore)
    assert text_by_key(store)["1007"] == "summary of 1000"
    held_out = {frozenset(store.keys.take([u, v]).to_pylist()) for u, v in store.heldout.tolist()}
    assert len(links_of(store) | held_out) == len(citations)
