"""``raybio search``: the commands, and queries of another model."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import raybio
from raybio.cli.search import app
from raybio.core.errors import ConfigError, DataError, RaybioError, StoreError
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import build_protein_encoder
from raybio.methods.sppt.proteins.export import export_encoder
from raybio.runtime.search.queries import Queries, neighbor_rows
from tests.runtime.search.test_index import write
from tests.script_process import run_script

SEQUENCES = ["MKTAYIAKQR", "ACDEFGHIKL", "MKTAYIAKQRQISFVK", "WWYVTSRQPN", "GGGAAAGGG"]


def export(folder: Path, seed: int) -> Path:
    settings = EncoderConfig(
        num_layers=1, width=16, num_heads=2, ffn_width=32, max_positions=48, pooling="mean"
    )
    export_encoder(build_protein_encoder(settings, seed=seed).eval(), folder, card={})
    return folder


@pytest.fixture
def embedded(tmp_path: Path) -> Path:
    """A folder with a model, another one, and embeddings of the first."""
    model = raybio.load(export(tmp_path / "model", 0))
    export(tmp_path / "other", 1)
    write(tmp_path / "embeddings.parquet", model.encode(SEQUENCES), model.digest())
    return tmp_path


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_inputs_embeddings_and_the_python_face_find_the_same_neighbors(embedded: Path) -> None:
    index = embedded / "index"
    shown = run("index", "--embeddings", embedded / "embeddings.parquet", "--out", index)
    assert "faiss" in shown
    assert "5 vectors of width 16, cosine, exact; measured recall@4 1.0000" in shown
    fasta = embedded / "queries.fasta"
    fasta.write_text("".join(f">k{row}\n{text}\n" for row, text in enumerate(SEQUENCES)))
    with_model = ["--model", embedded / "model", "--k", 3]
    run("query", index, "--input", fasta, *with_model, "--out", embedded / "a.parquet")
    table = pq.read_table(embedded / "a.parquet")
    assert table.column_names == ["query", "rank", "key", "cosine"]
    assert table.column("rank").to_pylist() == [1, 2, 3] * 5
    first = table.filter(pa.compute.equal(table.column("rank"), 1))
    assert first.column("query").to_pylist() == first.column("key").to_pylist()
    np.testing.assert_allclose(first.column("cosine").to_numpy(), 1, atol=1e-5)
    shown = run("query", index, "--input", embedded / "embeddings.parquet", "--k", 3)
    of_vectors = pa.csv.read_csv(
        pa.BufferReader(shown.encode()), parse_options=pa.csv.ParseOptions(delimiter="\t")
    )
    assert of_vectors.column("key").to_pylist() == table.column("key").to_pylist()
    shown = run("query", index, *with_model, "--text", SEQUENCES[1], "--text", SEQUENCES[3])
    assert [line.split("\t")[:3] for line in shown.splitlines()[1::3]] == [
        ["1", "1", "k1"],
        ["2", "1", "k3"],
    ]
    found = raybio.open_index(index, embedded / "model").search(SEQUENCES, 3)
    assert sum(found.keys, []) == table.column("key").to_pylist()


def test_a_folder_of_files_is_indexed_and_searched_as_one_file(embedded: Path) -> None:
    index, other = embedded / "index", embedded / "of_folder"
    run("index", "--embeddings", embedded / "embeddings.parquet", "--out", index)
    table = pq.read_table(embedded / "embeddings.parquet")
    folder = embedded / "shards"
    folder.mkdir()
    for number, (start, stop) in enumerate([(0, 2), (2, 5)]):
        file = folder / f"embeddings-0000{number}-of-00002.parquet"
        pq.write_table(table.slice(start, stop - start), file)
    run("index", "--embeddings", folder, "--out", other)
    shown = run("query", other, "--input", folder, "--k", 3)
    assert len(shown.splitlines()) == 16
    assert shown == run("query", index, "--input", embedded / "embeddings.parquet", "--k", 3)


def test_stops_of_queries_are_stripped_on_request(embedded: Path) -> None:
    index, fasta = embedded / "index", embedded / "queries.fasta"
    run("index", "--embeddings", embedded / "embeddings.parquet", "--out", index)
    fasta.write_text(f">a\n{SEQUENCES[1]}*\n")
    query = ["query", index, "--input", fasta, "--model", embedded / "model", "--k", 1]
    with pytest.raises(DataError, match="--strip-stop"):
        run(*query)
    assert run(*query, "--strip-stop").splitlines()[1].split("\t")[:3] == ["a", "1", "k1"]
    of_text = [
        "query",
        index,
        "--text",
        f"{SEQUENCES[3]}*",
        "--model",
        embedded / "model",
        "--k",
        1,
    ]
    assert run(*of_text, "--strip-stop").splitlines()[1].split("\t")[:3] == ["1", "1", "k3"]
    with pytest.raises(ConfigError, match="holds embeddings; leave out --strip-stop"):
        run("query", index, "--input", embedded / "embeddings.parquet", "--strip-stop")


def test_ids_are_exact_in_a_pipe(embedded: Path) -> None:
    table = pq.read_table(embedded / "embeddings.parquet")
    keys = pa.array([f"k\x1b[31m{row}" for row in range(len(table))])
    pq.write_table(table.set_column(0, "key", keys), embedded / "foreign.parquet")
    run("index", "--embeddings", embedded / "foreign.parquet", "--out", embedded / "index")
    command = ["search", "query", "index", "--input", "foreign.parquet", "--k", "1"]
    done = run_script("raybio.cli.main", embedded, *command)
    cells = [line.split("\t") for line in done.stdout.splitlines()[1:]]
    assert [(query, key) for query, _, key, _ in cells] == [(key, key) for key in keys.to_pylist()]


def test_queries_that_fail_print_no_header(embedded: Path) -> None:
    index, fasta = embedded / "index", embedded / "queries.fasta"
    run("index", "--embeddings", embedded / "embeddings.parquet", "--out", index)
    fasta.write_text(">a\nM1\n>b\nM2\n")
    arguments = ["query", index, "--input", fasta, "--model", embedded / "model"]
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert isinstance(done.exception, DataError)
    assert done.output == ""


def test_queries_without_a_row_and_a_pooling_of_embeddings_are_refused(embedded: Path) -> None:
    index, embeddings = embedded / "index", embedded / "embeddings.parquet"
    run("index", "--embeddings", embeddings, "--out", index)
    with pytest.raises(ConfigError, match="holds embeddings; leave out --pooling"):
        run("query", index, "--input", embeddings, "--pooling", "cls")
    fasta = embedded / "empty.fasta"
    fasta.write_text("")
    with pytest.raises(DataError, match="empty.fasta: holds no query, want at least one"):
        run("query", index, "--input", fasta, "--model", embedded / "model")
    none = embedded / "none.parquet"
    pq.write_table(pq.read_table(embeddings).slice(0, 0), none)
    with pytest.raises(DataError, match="none.parquet: holds no query, want at least one"):
        run("query", index, "--input", none)


def test_a_table_of_neighbors_does_not_replace_its_queries(embedded: Path) -> None:
    run("index", "--embeddings", embedded / "embeddings.parquet", "--out", embedded / "index")
    queries = embedded / "queries.tsv"
    queries.write_text("id\tsequence\na\tMKT\n")
    model = ["--model", embedded / "model"]
    with pytest.raises(ConfigError, match="queries.tsv: is an input, which would be lost"):
        run("query", embedded / "index", "--input", queries, *model, "--out", queries)
    assert queries.read_text() == "id\tsequence\na\tMKT\n"


def test_blocks_of_a_table_do_not_grow_with_k(
    embedded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("index", "--embeddings", embedded / "embeddings.parquet", "--out", embedded / "index")
    index = raybio.open_index(embedded / "index")
    found = Queries(index.store, embedded / "embeddings.parquet", [], None)
    (whole,) = neighbor_rows(index, found, 3)
    monkeypatch.setattr("raybio.runtime.search.queries.ROWS_AT_ONCE", 6)
    blocks = [*neighbor_rows(index, found, 3)]
    assert [len(rows) for rows in blocks] == [6, 6, 3]
    assert [row for rows in blocks for row in rows] == whole


def test_another_model_is_refused(embedded: Path) -> None:
    index, fasta = embedded / "index", embedded / "queries.fasta"
    fasta.write_text(">a\nMKTA\n")
    run("index", "--embeddings", embedded / "embeddings.parquet", "--out", index)
    other = raybio.load(embedded / "other")
    write(embedded / "other.parquet", other.encode(SEQUENCES), other.digest())
    refused: list[tuple[type[RaybioError], str, list[object]]] = [
        (
            StoreError,
            "come from model .*cannot be compared",
            ["--input", fasta, "--model", embedded / "other"],
        ),
        (
            StoreError,
            "come from model .*cannot be compared",
            ["--input", embedded / "other.parquet"],
        ),
        (ConfigError, "have to be embedded; give the model", ["--input", fasta]),
        (ConfigError, "--text has to be embedded; give the model", ["--text", "MKTA"]),
        (ConfigError, "want either --input or --text", []),
        (
            ConfigError,
            "holds embeddings, which need no model",
            ["--input", embedded / "other.parquet", "--model", embedded / "model"],
        ),
        (
            DataError,
            "no such file",
            ["--input", embedded / "none.fasta", "--model", embedded / "model"],
        ),
        (ConfigError, "want a file that ends in", ["--input", fasta, "--out", embedded / "x.txt"]),
    ]
    for kind, message, arguments in refused:
        with pytest.raises(kind, match=message):
            run("query", index, *arguments)
    with pytest.raises(StoreError, match="come from model"):
        raybio.open_index(index, embedded / "other")
    # Of embeddings that do not say their model, the width decides.
    run(
        "index",
        "--embeddings",
        write(embedded / "bare.parquet", other.encode(SEQUENCES)),
        "--out",
        embedded / "bare",
    )
    run("query", embedded / "bare", "--input", embedded / "other.parquet")
