"""Archives of public data from a server in the real layout, unpacked and prepared by the printed commands."""

import gzip
import hashlib
import io
import json
import re
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raybio.cli.prepare import app
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.store.store import open_store
from tests.loopback_site import Site, serve
from tests.methods.biostransformers.formats.medline_files import citation, write_medline
from tests.methods.sppt.articles.test_formats import links_of, text_by_key, write_mag
from tests.methods.sppt.articles.test_openalex import work, write_works

HEADING = (
    '<MeshHeading><DescriptorName UI="D006333" MajorTopicYN="N">Heart Failure</DescriptorName>'
    "</MeshHeading>"
)


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


def download_and_follow(
    site: Site, source: str, out: Path, values: Mapping[str, str | Path]
) -> None:
    """Download a source, then do what the command says is next.

    Args:
        site: the server.
        source: name of the source.
        out: folder of its files.
        values: word of the shown commands -> what a user writes in its place.
    """
    shown = invoke(["download", source, "--out", str(out), "--url", site.url])
    *unpack, prepare = (
        shlex.split(line) for line in re.findall(r"^next: (.+)$", shown, re.MULTILINE)
    )
    for program, archive, option, folder in unpack:
        assert (program, option) == ("unzip", "-d")
        zipfile.ZipFile(archive).extractall(folder)
    assert prepare[:2] == ["raybio", "prepare"]
    arguments = prepare[2:]
    for word, value in values.items():
        arguments = [re.sub(rf"\b{word}\b", str(value), argument) for argument in arguments]
    invoke(arguments)


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
        values = {"STORE": tmp_path / "store"}
        download_and_follow(site, "tree-of-life", tmp_path / "raw", values)
    store = open_store(tmp_path / "store", ProteinStore)
    assert list(store.group_labels) == ["Desulfovibrio vulgaris", "Homo sapiens"]
    assert store.num_rows == 8
    assert store.graph.num_edges + len(store.heldout) == 12


def openalex_site(works: Sequence[Path]) -> dict[str, bytes]:
    """Return the content of a server with files of works, by path."""
    files = {}
    entries = []
    for path in works:
        key = f"data/jsonl/works/{path.parent.name}/{path.name}"
        files[f"/{key}"] = path.read_bytes()
        meta = {"content_length": path.stat().st_size}
        entries.append({"url": f"s3://openalex/{key}", "meta": meta})
    manifest = {"date": "2026-06-26", "format": "jsonl", "entity": "works", "files": entries}
    return files | {"/data/jsonl/works/manifest.json": json.dumps(manifest).encode()}


@pytest.mark.usefixtures("no_proxy")
def test_openalex_becomes_a_store(tmp_path: Path) -> None:
    days = {
        "2026-01-01": [work(n, f"summary of {n}", [n + 1]) for n in range(1000, 1040)],
        "2026-02-01": [work(1000, "newer summary", [1001])],
    }
    works = write_works(tmp_path / "site", days)
    with serve(openalex_site(works)) as site:
        values = {"STORE": tmp_path / "store"}
        download_and_follow(site, "openalex", tmp_path / "raw", values)
    store = open_store(tmp_path / "store", LinkedTextStore)
    assert text_by_key(store)["W1000"] == "Title 1000 newer summary"
    # The last work cites one that is not there.
    assert store.graph.num_edges + len(store.heldout) == 39


@pytest.mark.usefixtures("no_proxy")
def test_pubmed_becomes_a_store(tmp_path: Path) -> None:
    listing = '<html><body><pre><a href="/pubmed/">Parent Directory</a>\n'
    files = {}
    for number in (1, 2):
        name = f"pubmed26n{number:04d}.xml.gz"
        citations = [
            citation(pmid, title=f"Title {pmid}.", mesh=HEADING)
            for pmid in range(10 * number, 10 * number + 8)
        ]
        content = write_medline(tmp_path / name, *citations).read_bytes()
        digest = hashlib.md5(content).hexdigest()
        files[f"/pubmed/baseline/{name}"] = content
        files[f"/pubmed/baseline/{name}.md5"] = f"MD5({name})= {digest}\n".encode()
        listing += f'<a href="{name}">{name}</a>\n<a href="{name}.md5">{name}.md5</a>\n'
    files["/pubmed/baseline/"] = f"{listing}</pre></body></html>".encode()
    with serve(files) as site:
        values = {"STORE": tmp_path / "store", "N": 0}
        download_and_follow(site, "pubmed", tmp_path / "raw", values)
    store = open_store(tmp_path / "store", ArticleStore)
    assert store.num_rows == 16


@pytest.mark.usefixtures("no_proxy")
def test_ogb_mag_becomes_a_store_with_the_abstracts_of_openalex(tmp_path: Path) -> None:
    numbers = range(1000, 1040)
    names = [str(number + 7) for number in numbers]
    citations = [f"{at},{at + 1}" for at in range(len(names) - 1)]
    mag = write_mag(tmp_path / "mag", names, citations)
    works = write_works(
        tmp_path / "site", {"2026-01-01": [work(n, f"summary of {n}") for n in numbers]}
    )
    files = openalex_site(works) | {
        "/ogb/data/nodeproppred/mag.zip": zipped(files_below(mag, "mag"))
    }
    abstracts = tmp_path / "openalex"
    with serve(files) as site:
        invoke(["download", "openalex", "--out", str(abstracts), "--url", site.url])
        values = {"STORE": tmp_path / "store", "OPENALEX": abstracts}
        download_and_follow(site, "ogb-mag", tmp_path / "raw", values)
    store = open_store(tmp_path / "store", LinkedTextStore)
    assert text_by_key(store)["1007"] == "summary of 1000"
    held_out = {frozenset(store.keys.take([u, v]).to_pylist()) for u, v in store.heldout.tolist()}
    assert len(links_of(store) | held_out) == len(citations)
