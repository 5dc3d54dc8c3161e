"""Rows of words, pairs of entities and tokens are those that the methods themselves embed."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from raybio.cli.embed import app
from raybio.core.errors import ConfigError
from raybio.methods import METHODS
from raybio.methods.mtb_mccl.documents.prepare import prepare_unlabeled
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.embed_pairs import embed_pairs
from raybio.methods.mtb_mccl.frozen_encoder import load_frozen
from raybio.methods.relation_graphs.encoders.word_model import WordModel
from raybio.methods.relation_graphs.store import WordStore
from raybio.runtime import embed
from raybio.runtime.embed import embed_file
from raybio.runtime.embed_actors import EmbeddingFormat
from raybio.runtime.model_folders import embedder_of_folder, model_of_folder
from raybio.store.quarantine import Quarantine
from raybio.training.collective import SingleProcess
from raybio.training.embedding_model import InputEmbedder
from tests.methods.conformance_cases import tiny_config
from tests.runtime.test_embed import exported, protein_encoder

FLOAT = np.dtype("float32")


def export(name: str, store: Path, folder: Path) -> Path:
    return METHODS[name].build(tiny_config(name), store).export(folder / name, {})


def rows_of(model: InputEmbedder, source: Path, rows_per_part: int) -> pa.Table:
    """Embed a file part by part, without a cluster."""
    encoder = model.load()
    inputs = pa.Table.from_batches([*model.read_file(source, Quarantine())])
    tables = []
    for start in range(0, len(inputs), rows_per_part):
        part = inputs.slice(start, rows_per_part)
        contents = part.column("content").to_pylist()
        tables.append(model.embed_table(encoder, part.column("key"), contents, FLOAT))
    return pa.concat_tables(tables)


def embeddings(table: pa.Table) -> np.ndarray:
    return np.stack(table.column("embedding").to_pylist())


def test_words_are_those_of_the_method(tiny_words: WordStore, tmp_path: Path) -> None:
    folder = export("relation_graphs", tiny_words.path, tmp_path)
    source = tiny_words.path.parent / "test.json.gz"
    table = rows_of(embedder_of_folder(folder), source, 7)
    assert table.column_names == ["key", "word", "text", "embedding"]
    model = WordModel.load(folder, tiny_words, "cpu")
    rows = tiny_words.fold_rows(1, "test")
    words = [[tiny_words.words[word] for word in tiny_words.sentence(row)] for row in rows.tolist()]
    assert table.column("text").to_pylist() == [word for sentence in words for word in sentence]
    assert table.column("word").to_pylist() == [
        number for sentence in words for number in range(len(sentence))
    ]
    np.testing.assert_allclose(embeddings(table), model.embed(rows)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["relation_finetune", "mtb_pretrain"])
def test_pairs_are_those_of_the_method(
    name: str, tiny_documents: DocumentStore, tmp_path: Path
) -> None:
    """Documents are embedded in parts: entities have other numbers there."""
    model = embedder_of_folder(export(name, tiny_documents.path, tmp_path))
    source = tiny_documents.path.parent / "test.PubTator"
    table = rows_of(model, source, 3)
    frozen = load_frozen(model.folder)
    store = prepare_unlabeled(tmp_path / "store", [source])
    types = None
    if name == "relation_finetune":
        types = {
            (tiny_documents.entity_types[head], tiny_documents.entity_types[tail])
            for head, tail in tiny_documents.type_pairs
        }
    pairs_by_row = {}
    for row in range(store.num_rows):
        type_E = [store.entity_types[number] for number in store.types(row).tolist()]
        pairs = [*zip(*(part.tolist() for part in store.candidates(row)), strict=True)]
        kept = [pair for pair in pairs if types is None or tuple(type_E[n] for n in pair) in types]
        if kept:
            pairs_by_row[row] = tuple(np.array(kept).T)
    expected = embed_pairs(
        frozen.model.cpu(), frozen.reader(store), pairs_by_row, SingleProcess(), max_tokens=4096
    )
    assert len(table) == len(expected.row_P) > 20
    np.testing.assert_allclose(embeddings(table), expected.embedding_PD, rtol=1e-4, atol=1e-5)
    for end, number_P in (("head", expected.head_P), ("tail", expected.tail_P)):
        assert table.column(f"{end}_id").to_pylist() == [
            store.entity_keys[int(store.keys(row)[number])].as_py()
            for row, number in zip(expected.row_P.tolist(), number_P.tolist(), strict=True)
        ]
    assert table.column("key").to_pylist() == [
        store.document_id(row) for row in expected.row_P.tolist()
    ]
    remark = model.truncation_remark(
        [batch.column("content") for batch in model.read_file(source, Quarantine())], 1
    )
    assert remark == "" or remark.endswith("; entities beyond have no state")


def test_the_mean_over_tokens_is_the_pooled_embedding(tmp_path: Path) -> None:
    """Of a protein the residues that are read are shown, and no special token."""
    model = exported(tmp_path)
    encoder = model.load()
    texts = ["MKT", "ACDEFGHIKLMNPQRSTVWY" * 3, "WW"]
    keys = pa.chunked_array([["a", "b", "c"]])
    contents = [text.encode() for text in texts]
    table = model.embed_token_table(encoder, keys, contents, FLOAT)
    kept = 40 - protein_encoder(pooling="mean").vocabulary.num_special_per_sequence
    lengths = [3, kept, 2]
    assert table.column("key").to_pylist() == ["a"] * 3 + ["b"] * kept + ["c"] * 2
    assert table.column("position").to_pylist() == [n for length in lengths for n in range(length)]
    parts = np.split(embeddings(table), np.cumsum(lengths)[:-1])
    pooled = model.embed(encoder, contents)
    np.testing.assert_allclose([part.mean(0) for part in parts], pooled, rtol=1e-5, atol=1e-5)
    encoder.packing = True
    packed = model.embed_token_table(encoder, keys, contents, FLOAT)
    np.testing.assert_allclose(embeddings(packed), embeddings(table), rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_refused(tiny_words: WordStore, tmp_path: Path) -> None:
    folder = export("relation_graphs", tiny_words.path, tmp_path)
    with pytest.raises(ConfigError, match="embeds words; leave it out"):
        embedder_of_folder(folder, "mean")
    with pytest.raises(ConfigError, match="Only raybio embed and raybio benchmark take this one"):
        model_of_folder(folder)
    with pytest.raises(ConfigError, match="--per token: .* embeds words; leave it out"):
        embed_file(
            embedder_of_folder(folder),
            tmp_path / "texts.txt",
            tmp_path / "out.parquet",
            form=EmbeddingFormat(per="token"),
        )


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_cluster")
def test_a_part_that_was_lost_is_embedded_again_and_the_result_is_the_same(
    tiny_words: WordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = embedder_of_folder(export("relation_graphs", tiny_words.path, tmp_path))
    source = tiny_words.path.parent / "test.json.gz"
    whole = tmp_path / "whole.parquet"
    again = tmp_path / "again.parquet"
    with monkeypatch.context() as patch:
        patch.setattr(embed.Parts, "delete", lambda self: None)
        assert embed_file(model, source, whole, rows_per_part=10).num_parts == 3
    shutil.copytree(f"{whole}.parts", f"{again}.parts")
    (tmp_path / "again.parquet.parts" / "part-000001.parquet").unlink()
    arguments = ["--model", model.folder, "--input", str(source), "--out", str(again)]
    done = CliRunner().invoke(app, [*arguments, "--rows-per-part", "10"], catch_exceptions=False)
    num_words = len(pq.read_table(whole))
    assert f"{again}: {num_words:,} words; 2 of 3 parts were embedded before" in done.stdout
    assert again.read_bytes() == whole.read_bytes()
