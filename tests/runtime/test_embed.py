import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from raybio.data.fasta import read_fasta
from raybio.data.quarantine import Quarantine
from raybio.encoders.export import export_encoder
from raybio.encoders.protein import EncoderConfig, build_protein_encoder
from raybio.errors import ConfigError, DataError, StoreError
from raybio.runtime import embed
from raybio.runtime.embed import Model, embed_fasta, embed_sequences, load_encoder

pytestmark = pytest.mark.timeout(300)
NUM_ROWS = 23
SIZES = {"num_layers": 1, "width": 16, "num_heads": 2, "ffn_width": 32, "max_positions": 48}


@pytest.fixture(autouse=True)
def by_value() -> None:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="session")
def sequences() -> list[str]:
    rng = np.random.default_rng(0)
    return ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), int(rng.integers(3, 60)))) for _ in range(NUM_ROWS)]


@pytest.fixture
def fasta(tmp_path: Path, sequences: list[str]) -> Path:
    path = tmp_path / "proteins.fasta"
    path.write_text(
        "".join(f">p{number} words\n{text}\n" for number, text in enumerate(sequences)) + ">empty\n>stop\nACD*\n"
    )
    return path


def exported(folder: Path, seed: int = 0) -> Model:
    encoder = build_protein_encoder(EncoderConfig(**SIZES), seed=seed)
    return Model(str(export_encoder(encoder, folder, card={})), "cls")


def test_a_sequence_is_read_as_the_exported_tokenizer_reads_it(tmp_path: Path, sequences: list[str]) -> None:
    model = exported(tmp_path / "model")
    encoder, max_tokens = load_encoder(model)
    embedding_RD = embed_sequences(encoder, [text.encode() for text in sequences], max_tokens)
    plain, tokenizer = AutoModel.from_pretrained(model.folder).eval(), AutoTokenizer.from_pretrained(model.folder)
    assert (max_tokens, len(tokenizer("M" * 47).input_ids)) == (48, 48)
    for text, embedding_D in zip(sequences, embedding_RD, strict=True):
        with torch.no_grad():
            states = plain(**tokenizer(text[:47], return_tensors="pt")).last_hidden_state
        np.testing.assert_allclose(embedding_D, states[0, 0].numpy(), atol=1e-5)


@pytest.mark.usefixtures("ray_cluster")
def test_every_protein_gets_the_embedding_that_plain_transformers_gives(
    fasta: Path, tmp_path: Path, sequences: list[str]
) -> None:
    model, out = exported(tmp_path / "model"), tmp_path / "embeddings.parquet"
    with pytest.raises(DataError, match="stop symbol"):
        embed_fasta(model, fasta, out, rows_per_part=5, max_bad_share=0.01)
    summary = embed_fasta(model, fasta, out, rows_per_part=5, strip_stop=True)
    assert (summary.num_rows, summary.num_parts, summary.num_parts_found) == (NUM_ROWS + 1, 5, 0)
    assert sum(facts["count"] for facts in summary.quarantine.values()) == 1
    table = pq.read_table(out)
    assert table.column("key").to_pylist() == [*(f"p{number}" for number in range(NUM_ROWS)), "stop"]
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 16)
    plain, tokenizer = AutoModel.from_pretrained(model.folder).eval(), AutoTokenizer.from_pretrained(model.folder)
    for text, embedding in zip([*sequences, "ACD"], table.column("embedding").to_pylist(), strict=True):
        with torch.no_grad():
            states = plain(**tokenizer(text[:47], return_tensors="pt")).last_hidden_state
        np.testing.assert_allclose(embedding, states[0, 0].numpy(), atol=1e-5)
    assert not out.with_name(out.name + ".parts").exists()


@pytest.mark.usefixtures("ray_cluster")
def test_after_a_kill_only_the_missing_parts_are_embedded(
    fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = exported(tmp_path / "model"), tmp_path / "embeddings.parquet"

    def die(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(embed, "_join", die)
        with pytest.raises(KeyboardInterrupt):
            embed_fasta(model, fasta, out, rows_per_part=5)
    parts = out.with_name(out.name + ".parts")
    (parts / "part-000003.parquet").unlink()
    kept = (parts / "part-000001.parquet").stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr(embed.shutil, "rmtree", lambda *_, **__: None)
        summary = embed_fasta(model, fasta, out, rows_per_part=5)
    assert (summary.num_rows, summary.num_parts_found) == (NUM_ROWS, 4)
    assert (parts / "part-000001.parquet").stat().st_mtime_ns == kept
    assert embed_fasta(model, fasta, out, rows_per_part=5).num_parts == 0


def test_parts_and_outputs_of_another_model_are_refused(fasta: Path, tmp_path: Path) -> None:
    first, second = exported(tmp_path / "first"), exported(tmp_path / "second", seed=1)
    out = tmp_path / "embeddings.parquet"
    parts = out.with_name(out.name + ".parts")
    embed._prepare_parts(parts, read_fasta(fasta, Quarantine()), Quarantine(), "digest of the first", 5)
    with pytest.raises(StoreError, match="another model, input or part size"):
        embed_fasta(second, fasta, out)
    pq.write_table(pa.table({"key": ["a"]}), out)
    with pytest.raises(StoreError, match="another model or input"):
        embed_fasta(first, fasta, out)


def test_a_missing_input_or_model_is_named(fasta: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.fasta"):
        embed_fasta(exported(tmp_path / "model"), tmp_path / "nothing.fasta", tmp_path / "out.parquet")
    with pytest.raises(ConfigError, match="no safetensors"):
        embed_fasta(Model(str(tmp_path), "cls"), fasta, tmp_path / "out.parquet")
    with pytest.raises(ConfigError, match="--run nothing"):
        Model.of_run(tmp_path, "nothing")
