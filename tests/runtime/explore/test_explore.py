"""``raybio explore``: what the page holds, against loops; hostile ids and texts; refusals."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import raybio
from raybio.cli.explore import app
from raybio.core.errors import ConfigError, DataError, RaybioError, StoreError
from raybio.core.location import BucketPath
from raybio.core.records import write_record
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.formats.tables import Tables
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.runtime.embed_parts import Parts, write_shards
from raybio.runtime.explore.points import nearest_units
from raybio.runtime.search import embeddings
from raybio.store.bucket import BucketFolder
from raybio.store.remote_store import upload_store
from raybio.store.store import Store
from tests.runtime.search.test_queries import SEQUENCES, export

HOSTILE = "</script><img src=x onerror=alert(1)><!--<script>&lt;\u2028\"'@@DATA@@"


class Page(HTMLParser):
    """The elements of a page, and the content of its block of data."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.data: dict[str, Any] = {}
        self._is_data = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attributes if name in ("src", "href")]
        self._is_data = ("id", "data") in attributes

    def handle_data(self, data: str) -> None:
        if self._is_data:
            self.data = json.loads(data)
            self._is_data = False


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def write(path: Path, keys: list[str], vectors: np.ndarray) -> Path:
    pq.write_table(pa.table({"key": keys, "embedding": list(vectors)}), path)
    return path


def write_folder(folder: Path, keys: list[str], vectors: np.ndarray, num_files: int) -> Path:
    """Write embeddings as ``raybio embed --out FOLDER`` does."""
    parts = Parts(folder.with_name(f"{folder.name}.parts"))
    parts.folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(len(keys)), num_files)):
        part = pa.table({"key": [keys[row] for row in rows], "embedding": list(vectors[rows])})
        parts.write(number, part, input_digest="input", model_digest="model")
    facts = {"origin": "input", "part_digest": "model", "model_digest": "model", "cut": ""}
    write_shards(parts, ["input"] * num_files, folder, **facts)
    return folder


def sorted_cosines(vectors: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all other rows by falling cosine to a row, and the cosines of all rows."""
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors.astype(np.float64), axis=1)[:, None]
    cosines = unit @ unit[row]
    order = np.argsort(-cosines, kind="stable")
    return order[order != row], cosines


def residues(store: ProteinStore, row: int) -> str:
    return bytes(store.residue_T[slice(*store.indptr_N1[row : row + 2])]).decode()


@pytest.mark.parametrize("block_rows", [7, 40, 100])
def test_neighbors_are_those_of_a_loop_in_any_blocks(block_rows: int) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(100, 6)).astype(np.float32)
    vectors[60:75] = vectors[3]  # more copies than neighbors
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = np.sort(rng.choice(100, 30, replace=False))
    blocks = [unit[start : start + block_rows] for start in range(0, 100, block_rows)]
    found, cosines = nearest_units(unit[rows], rows, blocks, 10)
    assert found.shape == cosines.shape == (30, 10)
    for row, neighbors, values in zip(rows, found, cosines, strict=True):
        order, expected = sorted_cosines(vectors, row)
        assert row not in neighbors
        assert len(set(neighbors.tolist())) == 10
        np.testing.assert_allclose(values, expected[order[:10]], atol=1e-6)
        np.testing.assert_allclose(values, expected[neighbors], atol=1e-6)
    few, _ = nearest_units(unit[:4], np.arange(4), [unit[:4]], 10)
    assert [sorted(row) for row in few.tolist()] == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]


def test_a_page_of_a_file_shows_a_sample_with_texts_groups_links_and_labels(
    tiny_store: ProteinStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "ROWS_AT_ONCE", 17)
    num_rows = tiny_store.num_rows
    rng = np.random.default_rng(0)
    order = rng.permutation(num_rows)  # a file need not have the order of the store
    vectors = rng.normal(size=(num_rows, 8)).astype(np.float32)
    all_keys = tiny_store.keys.to_pylist()
    keys = [all_keys[row] for row in order]
    source = write(tmp_path / "vectors.parquet", keys, vectors)
    labels = tmp_path / "labels.tsv"
    labels.write_text("ID\tfamily\n" + "".join(f"{key}\tf{len(key)}\n" for key in keys[:-1]))
    num_points = num_rows // 2
    arguments = [source, "--store", tiny_store.path, "--labels", labels]
    shown = run(*arguments, "--max-points", num_points, "--out", tmp_path / "a.html")
    assert f"The map shows {num_points:,} of {num_rows:,} embeddings" in shown
    page = Page(tmp_path / "a.html")
    data = page.data
    assert data["title"] == "vectors.parquet"
    assert any(f"{num_points:,} of {num_rows:,}" in line for line in data["about"])
    assert page.links == []
    points = data["keys"][:num_points]
    assert len(set(points)) == num_points
    assert points == [key for key in keys if key in set(points)]
    positions = np.array(data["positions"])
    assert positions.shape == (num_points, 2)
    assert np.isfinite(positions).all()
    group, family = data["colorings"]
    links, heldout = data["links"]
    assert (group["name"], family["name"]) == ("group", "family")
    assert (links["kind"], heldout["kind"]) == ("link", "held-out link")
    graph = tiny_store.graph
    for point, key in enumerate(points):
        row = keys.index(key)
        nearest, cosines = sorted_cosines(vectors, row)
        neighbors = [data["keys"][item] for item in data["neighbors"][point]]
        assert neighbors == [keys[other] for other in nearest[:10]]
        np.testing.assert_allclose(data["cosines"][point], cosines[nearest[:10]], atol=2e-5)
        in_store = int(order[row])
        text = residues(tiny_store, in_store)
        assert data["texts"][point] == text[:300]
        assert data["lengths"][point] == len(text)
        name = tiny_store.group_labels[tiny_store.group_N[in_store]]
        assert group["classes"][group["values"][point]] == name
        if key == keys[-1]:
            assert family["values"][point] == -1
        else:
            assert family["classes"][family["values"][point]] == f"f{len(key)}"
        linked = {all_keys[n] for n in range(num_rows) if graph.has_edge(in_store, n)}
        assert {data["keys"][item] for item in links["items"][point]} == linked
        assert links["counts"][point] == len(linked)
        pairs = tiny_store.heldout.tolist()
        held = {b if a == in_store else a for a, b in pairs if in_store in (a, b)}
        assert {data["keys"][item] for item in heldout["items"][point]} == {
            all_keys[n] for n in held
        }
    counts = [group["values"].count(number) for number in range(len(group["classes"]))]
    assert counts == sorted(counts, reverse=True)
    run(*arguments, "--max-points", num_points, "--out", tmp_path / "b.html")
    assert (tmp_path / "b.html").read_bytes() == (tmp_path / "a.html").read_bytes()


def test_a_folder_of_files_gives_the_page_of_one_file(
    tiny_store: ProteinStore, tmp_path: Path, bucket: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    keys = tiny_store.keys.to_pylist()
    vectors = np.random.default_rng(0).normal(size=(len(keys), 8)).astype(np.float32)
    file = write(tmp_path / "vectors.parquet", keys, vectors)
    folder = write_folder(tmp_path / "vectors", keys, vectors, 3)
    labels = tmp_path / "labels.tsv"
    labels.write_text("id\tkind\n" + "".join(f"{key}\tk{len(key)}\n" for key in keys[::2]))
    for path in folder.iterdir():
        BucketFolder(bucket / "vectors").upload(path, path.name)
    pages = []
    for source in (file, folder, f"{folder}/", bucket / "vectors"):
        options = ["--store", tiny_store.path, "--labels", labels, "--max-points", 15]
        run(source, *options, "--out", tmp_path / "map.html")
        pages.append(Page(tmp_path / "map.html").data)
    assert [page.pop("title") for page in pages] == ["vectors.parquet", *["vectors"] * 3]
    assert pages[1:] == pages[:1] * 3
    # Neighbors are searched in all files, and named where they are not on the map.
    assert len(pages[0]["positions"]) == 15
    for point, key in enumerate(pages[1]["keys"][:15]):
        nearest, _ = sorted_cosines(vectors, keys.index(key))
        neighbors = [pages[1]["keys"][item] for item in pages[1]["neighbors"][point]]
        assert neighbors == [keys[row] for row in nearest[:10]]
    assert [coloring["name"] for coloring in pages[1]["colorings"]] == ["group", "kind"]


def test_a_model_stays_a_model_with_embeddings_in_its_folder(tmp_path: Path) -> None:
    model = export(tmp_path / "model", 0)
    write(model / "vectors.parquet", [*"abcde"], np.eye(5, dtype=np.float32))
    fasta = tmp_path / "x.fasta"
    fasta.write_text("".join(f">k{row}\n{text}\n" for row, text in enumerate(SEQUENCES)))
    run(model, "--input", fasta, "--out", tmp_path / "map.html")
    assert Page(tmp_path / "map.html").data["texts"] == SEQUENCES


def test_a_run_embeds_its_store_and_neighbors_are_those_on_the_map(
    tiny_store: ProteinStore, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "first"
    export(folder / "export", 0)
    write_record(folder / "run.json", "run", {"config": {}, "store": str(tiny_store.path)})
    shown = run(folder, "--max-points", 12, "--out", tmp_path / "map.html")
    assert f"shows 12 of {tiny_store.num_rows:,} embeddings" in shown
    data = Page(tmp_path / "map.html").data
    assert len(data["texts"]) == 12
    assert "among the 12 on the map" in data["about"][1]
    rows = [tiny_store.keys.to_pylist().index(key) for key in data["keys"][:12]]
    assert data["texts"] == [residues(tiny_store, row)[:300] for row in rows]
    vectors = raybio.load(folder).encode([residues(tiny_store, row) for row in rows])
    for point in range(12):
        nearest, cosines = sorted_cosines(vectors, point)
        assert point not in data["neighbors"][point]
        np.testing.assert_allclose(data["cosines"][point], cosines[nearest[:10]], atol=1e-4)
    # FASTA instead of the store's rows; ids that the store lacks have no links.
    fasta = tmp_path / "new.fasta"
    key = data["keys"][0]
    fasta.write_text(
        "".join(f">p{row}\n{text}\n" for row, text in enumerate(SEQUENCES)) + f">{key}\nMKV\n"
    )
    run(folder, "--input", fasta, "--store", tiny_store.path, "--out", tmp_path / "new.html")
    data = Page(tmp_path / "new.html").data
    assert data["keys"][:6] == ["p0", "p1", "p2", "p3", "p4", key]
    assert data["texts"] == [*SEQUENCES, "MKV"]
    assert data["colorings"][0]["values"] == [-1] * 5 + [0]
    assert data["links"][0]["counts"][:5] == [0] * 5
    # Without --store, the run's own is not needed.
    write_record(folder / "run.json", "run", {"config": {}, "store": str(tmp_path / "gone")})
    fasta.write_text("".join(f">p{row}\n{text}\n" for row, text in enumerate(SEQUENCES)))
    run(folder, "--input", fasta, "--out", tmp_path / "new.html")
    data = Page(tmp_path / "new.html").data
    assert (data["texts"], data["colorings"], data["links"]) == (SEQUENCES, [], [])


def test_a_run_in_a_bucket_gives_the_page_of_the_local_run(
    tiny_store: ProteinStore, tmp_path: Path, bucket: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "runs" / "first"
    export(folder / "export", 0)
    upload_store(tiny_store.path, bucket / "store", force=False)
    write_record(folder / "run.json", "run", {"config": {}, "store": f"{bucket}/store"})
    vectors = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    write(folder / "vectors.parquet", tiny_store.keys.to_pylist()[:4], vectors)
    (folder / "labels.tsv").write_text(f"id\tkind\n{tiny_store.keys[0]}\tkinase\n")
    address = bucket / "runs" / "first"
    for path in folder.rglob("*"):
        if path.is_file():
            BucketFolder(address).upload(path, path.relative_to(folder).as_posix())
    pages = []
    for source in (folder, address):
        run(source, "--max-points", 12, "--out", tmp_path / "map.html")
        pages.append(Page(tmp_path / "map.html").data)
        labels = ["--labels", f"{source}/labels.tsv", "--out", tmp_path / "vectors.html"]
        run(f"{source}/vectors.parquet", *labels)
        pages.append(Page(tmp_path / "vectors.html").data)
    assert pages[0]["about"][-1] == f"Groups and links are those of the store {bucket}/store."
    assert pages[1]["colorings"][0]["name"] == "kind"
    assert pages[2:] == pages[:2]


def test_a_file_of_inputs_gives_texts(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    source = write(tmp_path / "vectors.parquet", ["a", "b", "c", "d", "e"], vectors)
    names = ("x.fasta", "empty_line_first.fasta", "x.txt", "x.csv")
    fasta, later, lines, table = (tmp_path / name for name in names)
    fasta.write_text(">a\nMKV\n>c some words\nAC\nDE\n")
    later.write_text(f"\n{fasta.read_text()}")
    lines.write_text("c\tACDE\na\tMKV\n")
    table.write_text("key,text,label\na,MKV,x\nc,ACDE,y\n")
    for path in (fasta, later, lines, table):
        run(source, "--input", path, "--out", tmp_path / "map.html")
        data = Page(tmp_path / "map.html").data
        assert data["texts"] == ["MKV", "", "ACDE", "", ""]
        assert data["lengths"] == [3, 0, 4, 0, 0]
        assert data["colorings"] == data["links"] == []
    run(source, "--labels", table, "--out", tmp_path / "map.html")
    data = Page(tmp_path / "map.html").data
    assert data["texts"] is None
    expected = {"name": "label", "classes": ["x", "y"], "values": [0, -1, 1, -1, -1]}
    assert data["colorings"] == [expected]


def test_embeddings_named_by_headers_of_uniprot_find_the_accessions_of_a_store(
    tmp_path: Path,
) -> None:
    headers = [f"sp|P0000{number}|A{number}_YEAST" for number in range(1, 6)]
    fasta, edges = tmp_path / "x.fasta", tmp_path / "links.csv"
    fasta.write_text("".join(f">{header} x OX=4932\nMKV\n" for header in headers))
    edges.write_text("P00001,P00002\nP00004,P00005\n")
    store = prepare_proteins(
        tmp_path / "store", Tables([edges], [fasta]), PrepareConfig(heldout_share=0.0)
    )
    assert store.keys.to_pylist()[0] == "P00001"
    vectors = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    source = write(tmp_path / "e.parquet", [*headers[::-1], "new"], vectors)
    run(source, "--store", store.path, "--out", tmp_path / "map.html")
    data = Page(tmp_path / "map.html").data
    assert data["keys"] == [*headers[::-1], "new"]
    # A protein without a link is not in the store.
    assert data["texts"] == ["MKV", "MKV", "", "MKV", "MKV", ""]
    assert data["links"][0]["items"] == [[1], [0], [], [4], [3], []]
    assert data["colorings"][0]["values"] == [0, 0, -1, 0, 0, -1]


def test_a_store_is_read_once(
    tiny_store: ProteinStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tiny_store.keys.to_pylist()
    vectors = np.random.default_rng(0).normal(size=(len(keys), 4)).astype(np.float32)
    source = write(tmp_path / "e.parquet", keys, vectors)
    num_rows = []
    inputs = ProteinStore.inputs

    def count(store: ProteinStore, field: str, start: int, end: int) -> tuple[pa.Array, pa.Array]:
        num_rows.append(end - start)
        return inputs(store, field, start, end)

    monkeypatch.setattr(ProteinStore, "inputs", count)
    run(source, "--store", tiny_store.path, "--out", tmp_path / "map.html")
    # The ids, and the text of each point.
    assert sum(num_rows) == 2 * len(keys)


def test_other_ids_than_those_of_a_store_are_refused_before_neighbors_are_searched(
    tiny_store: ProteinStore, tmp_path: Path
) -> None:
    # Embeddings of zeros are refused when neighbors are searched.
    source = write(tmp_path / "e.parquet", [*"abcde"], np.zeros((5, 4), np.float32))
    with pytest.raises(DataError, match=r"but such as .* leave out --store.*: --input FILE"):
        run(source, "--store", tiny_store.path, "--out", tmp_path / "map.html")


def test_points_without_a_label_are_counted(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    source = write(tmp_path / "e.parquet", [*"abcde"], vectors)
    labels = tmp_path / "labels.csv"
    out = ["--out", tmp_path / "map.html"]
    labels.write_text("id,kind,place\na,x,\nb,,y\nc,,\n")
    assert f"{labels}: 3 of 5 points have no label\n" in run(source, "--labels", labels, *out)
    labels.write_text("id,kind\n" + "".join(f"{key},x\n" for key in "abcde"))
    assert "no label" not in run(source, "--labels", labels, *out)


def test_proteins_whose_stops_were_stripped_have_their_texts(tmp_path: Path) -> None:
    model = export(tmp_path / "model", 0)
    fasta = tmp_path / "x.fasta"
    fasta.write_text("".join(f">k{row}\n{text}*\n" for row, text in enumerate(SEQUENCES)))
    keys = [f"k{row}" for row in range(len(SEQUENCES))]
    source = write(tmp_path / "e.parquet", keys, raybio.load(model).encode(SEQUENCES))
    run(source, "--input", fasta, "--out", tmp_path / "map.html")
    assert Page(tmp_path / "map.html").data["texts"] == SEQUENCES
    for option in (["--strip-stop"], ["--pooling", "cls"]):
        with pytest.raises(ConfigError, match="holds embeddings; leave out"):
            run(source, *option, "--out", tmp_path / "other.html")
    with pytest.raises(DataError, match="--strip-stop"):
        run(model, "--input", fasta, "--out", tmp_path / "map.html")
    run(model, "--input", fasta, "--strip-stop", "--out", tmp_path / "map.html")
    assert Page(tmp_path / "map.html").data["texts"] == SEQUENCES


def test_ids_texts_and_labels_cannot_become_html(tmp_path: Path) -> None:
    keys = [f"{number} {HOSTILE}" for number in range(5)]
    vectors = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    source = write(tmp_path / "vectors.parquet", keys, vectors)
    table = tmp_path / "x.jsonl"
    rows = [{"id": key, "text": HOSTILE, f"a {HOSTILE}".lower(): HOSTILE} for key in keys]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(source, "--out", tmp_path / "plain.html")
    hostile = tmp_path / "hostile.html"
    run(source, "--input", table, "--labels", table, "--out", hostile)
    page = Page(hostile)
    assert page.tags == Page(tmp_path / "plain.html").tags
    assert page.data["keys"] == keys
    assert page.data["texts"] == [HOSTILE] * 5
    assert page.data["colorings"][0]["classes"] == [HOSTILE]
    content = hostile.read_text(encoding="utf-8")
    assert content.count("</script>") == 2
    assert "\u2028" not in content
    # What the script shows is text: it builds no HTML of strings.
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in content
    assert "default-src 'none'" in content


def test_equal_embeddings_have_a_map(tmp_path: Path) -> None:
    source = write(tmp_path / "vectors.parquet", [*"abcdef"], np.ones((6, 3), np.float32))
    run(source, "--out", tmp_path / "map.html")
    data = Page(tmp_path / "map.html").data
    assert np.isfinite(data["positions"]).all()
    assert data["cosines"] == [[1.0] * 5] * 6


def test_what_cannot_be_shown_is_refused_and_leaves_no_page(
    tiny_store: ProteinStore, tiny_documents: Store, tmp_path: Path
) -> None:
    out = ["--out", tmp_path / "map.html"]
    vectors = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    good = write(tmp_path / "good.parquet", [*"abcde"], vectors)
    few = write(tmp_path / "few.parquet", [*"abc"], vectors[:3])
    thin = write(tmp_path / "thin.parquet", [*"abcde"], np.ones((5, 1), np.float32))
    zero = write(tmp_path / "zero.parquet", [*"abcde"], vectors * [[1], [1], [0], [1], [1]])
    model = export(tmp_path / "model", 0)
    other, bare = tmp_path / "other.tsv", tmp_path / "bare.tsv"
    other.write_text("id\ttext\tlabel\nz\tMKV\tx\n")
    bare.write_text("id\ttext\na\tMKV\n")
    nowhere = tmp_path / "nowhere"
    shards = write_folder(tmp_path / "shards", [*"abcde"], vectors, 2)
    unfinished = write_folder(tmp_path / "unfinished", [*"abcde"], vectors, 3)
    (unfinished / "embeddings-00001-of-00003.parquet").unlink()
    for name in ("tables", "features", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "tables" / "other.tsv").write_text(other.read_text())
    pq.write_table(pa.table({"key": [*"abcde"]}), tmp_path / "features" / "x.parquet")
    refused: list[tuple[type[RaybioError], str, list[object]]] = [
        (DataError, "there are 3 embeddings in .*want at least 4", [few]),
        (DataError, "have 1 number, want at least 2", [thin]),
        (DataError, "zero.parquet, row 2: is zero", [zero]),
        (DataError, "cannot be read as Parquet", [tmp_path / "none.parquet"]),
        (
            DataError,
            r"none of the 5 ids .*\(a, \.\.\.\), but such as .*raybio embed --input",
            [good, "--store", tiny_store.path],
        ),
        (DataError, r"none of the 5 ids .*but such as z", [good, "--input", other]),
        (DataError, r"none of the 5 ids .*but such as z", [good, "--labels", other]),
        (DataError, "want the columns 'id' and 'label'", [good, "--labels", bare]),
        (DataError, "want a table", [good, "--labels", tmp_path / "labels.txt"]),
        (DataError, "has no whole proteins or texts", [good, "--store", tiny_documents.path]),
        (StoreError, "does not exist", [good, "--store", nowhere]),
        (ConfigError, "is for a store", [good, "--field", "title"]),
        (
            ConfigError,
            "title: .* has sequence",
            [good, "--store", tiny_store.path, "--field", "title"],
        ),
        (ConfigError, "want what to embed", [model]),
        (ConfigError, "nowhere", [nowhere]),
        (DataError, "holds 2 of the 3 files", [unfinished]),
        (DataError, "has the columns key; want 'key' and 'embedding'", [tmp_path / "features"]),
        (ConfigError, "has no embeddings .* and no run or model", [tmp_path / "tables"]),
        (ConfigError, "no safetensors file", [tmp_path / "empty"]),
        (ConfigError, "shards: holds embeddings; leave out", [shards, "--pooling", "cls"]),
        (DataError, r"none of the 5 ids .*but such as z", [shards, "--labels", other]),
        (ConfigError, "want a file that ends in .html", [good, "--out", tmp_path / "map.png"]),
    ]
    for kind, message, arguments in refused:
        with pytest.raises(kind, match=message):
            run(*out, *arguments)
    assert not (tmp_path / "map.html").exists()
