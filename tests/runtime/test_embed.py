"""Bulk embedding: every model as its folder says, and parts that break."""

import math
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from raybio.cli.embed import app
from raybio.core.batch import IGNORED_LABEL, PaddedTokens
from raybio.core.errors import ClusterError, ConfigError, DataError, StoreError
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.export import export_text_encoder
from raybio.encoders.text import TextEncoder, build_text_encoder
from raybio.methods import METHODS
from raybio.methods.sppt.downstream.encoder import TaskModel
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.embedding_model import ProteinEmbeddingModel
from raybio.methods.sppt.proteins.encoder import ProteinEncoder, build_protein_encoder
from raybio.methods.sppt.proteins.export import export_encoder
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.runtime import embed, embed_actors
from raybio.runtime.embed import embed_file
from raybio.runtime.embed_actors import EmbeddingFormat
from raybio.runtime.embed_output import check_output_path
from raybio.runtime.embed_parts import model_digest_of
from raybio.runtime.model_folders import model_of_folder, model_of_run
from raybio.runtime.search.build import build_index
from raybio.runtime.search.index_store import open_index_store
from raybio.runtime.search.queries import Queries
from raybio.training.embedding_model import EmbeddingModel
from tests.encoders.tiny_text import COUNT_BY_WORD, SENTENCES, save_tiny, tiny_model
from tests.encoders.tiny_text import embed as embed_texts
from tests.methods.conformance_cases import CASES, tiny_config
from tests.paths import ROOT
from tests.script_process import run_script

JOB = ROOT / "jobs" / "embed.py"
NUM_ROWS = 23
SIZES = {"num_layers": 1, "width": 16, "num_heads": 2, "ffn_width": 32, "max_positions": 48}
TEXTS = [text for text in SENTENCES if text]
EMBEDS_PARTS_OF_INPUTS = ("mtb_pretrain", "relation_finetune", "relation_graphs")


@pytest.fixture(autouse=True)
def by_value() -> None:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="session")
def sequences() -> list[str]:
    rng = np.random.default_rng(0)
    return [
        "".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), int(rng.integers(3, 60))))
        for _ in range(NUM_ROWS)
    ]


@pytest.fixture
def fasta(tmp_path: Path, sequences: list[str]) -> Path:
    path = tmp_path / "proteins.fasta"
    path.write_text(
        "".join(f">p{number} words\n{text}\n" for number, text in enumerate(sequences))
        + ">empty\n>stop\nACD*\n"
    )
    return path


def protein_encoder(seed: int = 0, **settings: object) -> ProteinEncoder:
    return build_protein_encoder(EncoderConfig(**SIZES | settings), seed=seed).eval()


def exported(folder: Path, seed: int = 0) -> EmbeddingModel:
    """A mean over residues, of at most 40 of the 48 tokens that it has positions for."""
    export_encoder(protein_encoder(seed, pooling="mean"), folder, card={}, max_tokens=40)
    return model_of_folder(folder)


def one_by_one(encoder: ProteinEncoder, sequences: list[str], max_tokens: int) -> np.ndarray:
    """Embeddings as the encoder itself gives them."""
    kept = max_tokens - encoder.vocabulary.num_special_per_sequence
    embeddings = []
    for sequence in sequences:
        token_1L = torch.from_numpy(encoder.vocabulary.encode(sequence[:kept])).long()[None]
        tokens = PaddedTokens(
            token_1L, torch.ones_like(token_1L).bool(), torch.full_like(token_1L, IGNORED_LABEL)
        )
        with torch.no_grad():
            embeddings.append(encoder(tokens).embedding_RD[0].numpy())
    return np.stack(embeddings)


def column(out: Path) -> np.ndarray:
    return np.stack(pq.read_table(out).column("embedding").to_pylist())


@pytest.mark.parametrize("name", METHODS)
def test_a_model_embeds_as_it_was_trained_whatever_the_system(
    name: str, tmp_path: Path, sequences: list[str], request: pytest.FixtureRequest
) -> None:
    """Pooling, length and normalization come from the folder: those of each system's own
    encoder.
    """
    config = tiny_config(name)
    if name == "sppt_protein":
        config = config.model_copy(
            update={"input": config.input.model_copy(update={"max_length": 24})}
        )  # type: ignore[attr-defined]
    system = METHODS[name].build(config, request.getfixturevalue(CASES[name].store).path)
    folder = tmp_path / name / "export"
    system.export(folder, {})
    if name in EMBEDS_PARTS_OF_INPUTS:
        with pytest.raises(
            ConfigError, match=r"embeds .* in their context .*want an encoder of whole proteins"
        ):
            model_of_folder(folder)
        assert model_of_run(tmp_path, name).row_noun == METHODS[name].part_encoder.parts  # type: ignore[union-attr]
        return
    model = model_of_folder(folder)
    assert model == model_of_run(tmp_path, name)
    encoder = (system.model.encoder if isinstance(system.model, TaskModel) else system.model).eval()
    if isinstance(encoder, TextEncoder):
        expected, contents = embed_texts(encoder, TEXTS), TEXTS
    else:
        assert isinstance(encoder, ProteinEncoder)
        length = 24 if name == "sppt_protein" else config.encoder.max_length  # type: ignore[attr-defined]
        expected, contents = one_by_one(encoder, sequences, length), sequences
    found = model.embed(model.load(), [content.encode() for content in contents])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert model.reads == ("texts" if isinstance(encoder, TextEncoder) else "proteins")


def test_an_encoder_without_positions_reads_as_much_as_it_was_trained_on(tmp_path: Path) -> None:
    long = 6000
    encoder = protein_encoder(vocabulary="esm", pooling="mean", max_positions=long)
    export_encoder(encoder, tmp_path, card={})
    model = model_of_folder(tmp_path)
    assert (model.max_tokens, model.load().max_tokens) == (long, long)


@pytest.mark.parametrize("reads", ["proteins", "texts"])
def test_a_folder_that_does_not_say_how_it_pools_is_refused_and_an_option_says_it(
    reads: str, tmp_path: Path
) -> None:
    if reads == "proteins":
        exported(tmp_path)
        (tmp_path / "protein.json").unlink()
        (tmp_path / "modules.json").unlink()
        encoder = protein_encoder(pooling="mean")
        expected = one_by_one(encoder, ["MKTAYI"], 48)
    else:
        save_tiny(tmp_path)
        encoder = build_text_encoder(
            TextEncoderConfig(source=str(tmp_path), max_length="auto", pooling="mean"), seed=0
        )
        expected = embed_texts(encoder, ["MKTAYI"])
    with pytest.raises(
        ConfigError,
        match="does not state how its tokens are pooled; give the pooling, mean or cls",
    ):
        model_of_folder(tmp_path)
    model = model_of_folder(tmp_path, "mean")
    assert (model.reads, model.pooling, model.is_normalized) == (reads, "mean", False)
    if reads == "proteins":
        assert model.max_tokens == 40  # of 48 positions: what the tokenizer says
    np.testing.assert_allclose(
        model.embed(model.load(), [b"MKTAYI"]), expected, rtol=1e-5, atol=1e-5
    )


def test_an_option_that_contradicts_the_folder_is_refused(tmp_path: Path) -> None:
    assert exported(tmp_path) == model_of_folder(tmp_path, "mean")
    with pytest.raises(ConfigError, match="pooling cls: .* states mean; leave it out"):
        model_of_folder(tmp_path, "cls")


def test_a_cased_tokenizer_of_texts_is_not_taken_for_one_of_residues(tmp_path: Path) -> None:
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"ABCDEFGHIKLMNOPQRSTUVWXYZ",
        "Asthma",
        "##s",
    ]
    backend = Tokenizer(
        models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    names = {f"{name}_token": token for name, token in special.items()}
    PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=32, **names).save_pretrained(
        tmp_path
    )
    tiny_model("bert", len(words)).save_pretrained(tmp_path)
    assert model_of_folder(tmp_path, "mean").reads == "texts"


@pytest.mark.usefixtures("ray_cluster")
def test_every_protein_gets_the_embedding_that_its_encoder_gives(
    fasta: Path, tmp_path: Path, sequences: list[str]
) -> None:
    model, out = exported(tmp_path / "model"), tmp_path / "embeddings.parquet"
    with pytest.raises(DataError, match="stop symbol"):
        embed_file(model, fasta, out, rows_per_part=5, max_bad_share=0.01)
    summary = embed_file(model, fasta, out, rows_per_part=5, strip_stop=True)
    assert (summary.num_rows, summary.num_parts, summary.num_parts_found) == (NUM_ROWS + 1, 5, 0)
    assert sum(facts["count"] for facts in summary.quarantine.values()) == 1
    lengths = [*map(len, sequences), 3]
    kept = 40 - protein_encoder(pooling="mean").vocabulary.num_special_per_sequence
    num_cut = sum(length > kept for length in lengths)
    assert (
        summary.cut
        == f"sequences: {num_cut} of {NUM_ROWS + 1} cut at {kept} of {max(lengths)} residues"
    )
    assert embed_file(model, fasta, out, rows_per_part=5, strip_stop=True).cut == summary.cut
    table = pq.read_table(out)
    assert table.column("key").to_pylist() == [
        *(f"p{number}" for number in range(NUM_ROWS)),
        "stop",
    ]
    assert str(table.schema.field("embedding").type).startswith("fixed_size_list")
    expected = one_by_one(protein_encoder(pooling="mean"), [*sequences, "ACD"], 40)
    np.testing.assert_allclose(column(out), expected, rtol=1e-5, atol=1e-5)
    assert not out.with_name(out.name + ".parts").exists()


def test_bf16_and_float16_are_another_output_of_the_same_model(
    tmp_path: Path, sequences: list[str]
) -> None:
    model = exported(tmp_path / "model")
    parts = embed.Parts(tmp_path / "half.parquet.parts")
    parts.folder.mkdir()
    keys = [f"p{number}" for number in range(NUM_ROWS)]
    contents = pa.array([text.encode() for text in sequences], pa.large_binary())
    inputs = parts.cut(iter([pa.table({"key": keys, "content": contents})]))
    expected = one_by_one(protein_encoder(pooling="mean"), sequences, 40)
    digests = {model.digest()}
    for form in (EmbeddingFormat("float16", "fp32"), EmbeddingFormat("float32", "bf16")):
        embed_actors._EmbedPart(model, None, form, parts.folder, None, None)(
            pa.table({"part": [0]})
        )
        assert form.digest(model.digest()) not in digests
        digests.add(form.digest(model.digest()))
        made_from = {"input_digest": inputs[0], "model_digest": form.digest(model.digest())}
        table = parts.read(0, **made_from)
        column_type = table.schema.field("embedding").type.value_type
        found = np.stack(table.column("embedding").to_pylist())
        if form.dtype == "float16":
            assert column_type == pa.float16()
            np.testing.assert_allclose(found, expected.astype(np.float16), atol=1e-3)
            np.testing.assert_array_equal(found, found.astype(np.float16))
        else:
            assert column_type == pa.float32()
            assert 3e-5 < np.abs(found - expected).max() < 0.05
    assert EmbeddingFormat().digest("of a model") == "of a model"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine may have TF32 products")
def test_tf32_is_refused_before_anything_is_written_on_machines_without_it(
    fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    exported(tmp_path / "model")
    out = tmp_path / "embeddings.parquet"
    with pytest.raises(ConfigError, match="got tf32, and .* no TF32 products"):
        model = model_of_folder(tmp_path / "model")
        embed_file(model, fasta, out, form=EmbeddingFormat(precision="tf32"))
    assert not [*tmp_path.glob("embeddings*")]


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_cluster")
def test_states_of_tokens_are_no_queries_of_an_index_of_proteins(tmp_path: Path) -> None:
    model = exported(tmp_path / "model")
    source = tmp_path / "proteins.fasta"
    source.write_text(">a\nMKTAYIAKQR\n>b\nMVLSPADKTN\n")
    embed_file(model, source, tmp_path / "proteins.parquet")
    tokens = tmp_path / "tokens.parquet"
    embed_file(model, source, tokens, form=EmbeddingFormat(per="token"))
    build_index(tmp_path / "proteins.parquet", tmp_path / "index")
    build_index(tokens, tmp_path / "tokens")
    with pytest.raises(StoreError, match="their embeddings cannot be compared"):
        Queries(open_index_store(tmp_path / "index"), tokens, [], None)
    with pytest.raises(StoreError, match="their embeddings cannot be compared"):
        Queries(open_index_store(tmp_path / "tokens"), None, ["MKT"], model.folder)
    Queries(open_index_store(tmp_path / "tokens"), tokens, [], None)


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_cluster")
def test_a_store_is_embedded_in_another_format_and_resumes(
    tmp_path: Path, tiny_store: ProteinStore
) -> None:
    model, out = exported(tmp_path / "model"), tmp_path / "half.parquet"
    form = EmbeddingFormat("float16", "bf16")
    summary = embed_file(model, tiny_store.path, out, rows_per_part=50, form=form)
    assert summary.num_rows == tiny_store.num_rows
    table = pq.read_table(out)
    assert table.column("key").to_pylist() == tiny_store.keys.to_pylist()
    assert table.schema.field("embedding").type.value_type == pa.float16()
    assert model_digest_of(out) == model.digest()
    assert embed_file(model, tiny_store.path, out, form=form).num_parts == 0
    with pytest.raises(StoreError, match="exists and comes from another model or input"):
        embed_file(model, tiny_store.path, out)


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_cluster")
def test_the_command_gives_every_text_the_embedding_of_the_runs_encoder(tmp_path: Path) -> None:
    sizes = {"num_layers": 1, "width": 16, "num_heads": 2, "ffn_width": 32, "max_length": 12}
    encoder = build_text_encoder(
        TextEncoderConfig(**sizes, pooling="mean", normalize=True),
        seed=0,
        count_by_word=COUNT_BY_WORD,
    )
    model = model_of_folder(
        export_text_encoder(encoder, tmp_path / "runs" / "first" / "export", card={})
    )
    source, out = tmp_path / "texts.txt", tmp_path / "embeddings.parquet"
    source.write_text("".join(f"t{number}\t{text}\n" for number, text in enumerate(TEXTS)) + "\n")
    with pytest.raises(ConfigError, match="strip_stop is for proteins, and .*export reads texts"):
        embed_file(model, source, out, strip_stop=True)
    options = {"--run": "first", "--runs": tmp_path / "runs", "--input": source, "--out": out}
    command = [str(word) for option in options.items() for word in option]
    done = CliRunner().invoke(app, [*command, "--rows-per-part", "2"], catch_exceptions=False)
    num_tokens = [len(encoder.tokenizer(text)["input_ids"]) for text in TEXTS]
    num_cut = sum(num > 12 for num in num_tokens)
    assert num_cut
    assert done.stdout.splitlines()[-4:] == [
        str(model),
        f"{out}: {len(TEXTS)} texts; 0 of 3 parts were embedded before",
        f"texts: {num_cut} of {len(TEXTS)} cut at 12 of {max(num_tokens)} tokens",
        "skipped: empty line: 1",
    ]
    assert pq.read_table(out).column("key").to_pylist() == [
        f"t{number}" for number in range(len(TEXTS))
    ]
    np.testing.assert_allclose(column(out), embed_texts(encoder, TEXTS), rtol=1e-5, atol=1e-5)


class StoppedError(Exception):
    """Ends an embedding before its parts are joined."""


@pytest.fixture
def stop_before_join(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[EmbeddingModel, Path, Path], Path]:
    """Embed all parts and end; returns their folder."""

    def stop(model: EmbeddingModel, fasta: Path, out: Path) -> Path:
        def end(*_: object, **__: object) -> int:
            raise StoppedError

        with monkeypatch.context() as patch:
            patch.setattr(embed, "join", end)
            with pytest.raises(StoppedError):
                embed_file(model, fasta, out, rows_per_part=4)
        return out.with_name(out.name + ".parts")

    return stop


def flip(path: Path, place: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    path.write_bytes(content)


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_cluster")
def test_parts_that_are_missing_or_damaged_are_embedded_again_and_the_result_is_the_same(
    fasta: Path,
    tmp_path: Path,
    stop_before_join: Callable[[EmbeddingModel, Path, Path], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a kill, a full disk or a bad copy. Finished parts are left as they are."""
    model = exported(tmp_path / "model")
    whole, out = tmp_path / "whole.parquet", tmp_path / "embeddings.parquet"
    parts = stop_before_join(model, fasta, out)
    shutil.copytree(parts, tmp_path / "whole.parquet.parts")
    assert embed_file(model, fasta, whole, rows_per_part=4).num_parts_found == 6
    flip(parts / "part-000000.parquet")
    torn = parts / "part-000001.parquet"
    torn.write_bytes(torn.read_bytes()[:-20])
    (parts / "part-000002.parquet").write_bytes(b"")
    (parts / "part-000003.json").unlink()
    (parts / "part-000004.parquet").unlink()
    kept = (parts / "part-000005.parquet").stat().st_mtime_ns
    monkeypatch.setattr(embed_actors, "PROGRESS_SECONDS", math.inf)
    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(embed.Parts, "delete", lambda self: None)
        summary = embed_file(model, fasta, out, rows_per_part=4, say=said.append)
    assert (summary.num_rows, summary.num_parts, summary.num_parts_found) == (NUM_ROWS, 6, 1)
    assert said == [
        f"{parts / 'part-000003.parquet'} has no record of this version; embedding again",
        f"{parts / 'part-000000.parquet'} is damaged (and 2 more); embedding again",
    ]
    assert out.read_bytes() == whole.read_bytes()
    assert (parts / "part-000005.parquet").stat().st_mtime_ns == kept
    assert embed_file(model, fasta, out, rows_per_part=4).num_parts == 0
    folder, again = tmp_path / "shards", tmp_path / "again"
    folder.mkdir()
    assert embed_file(model, fasta, folder, rows_per_part=4).num_parts_found == 0
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            embed, "write_shards", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        embed_file(model, fasta, again, rows_per_part=4)
    flip(tmp_path / "again.parts" / "part-000002.parquet")
    assert embed_file(model, fasta, again, rows_per_part=4).num_parts_found == 5
    files = sorted(folder.iterdir())
    assert [pq.read_metadata(file).num_rows for file in files] == [4] * 5 + [3]
    assert [(again / file.name).read_bytes() for file in files] == [
        file.read_bytes() for file in files
    ]
    assert np.array_equal(np.concatenate([column(file) for file in files]), column(whole))
    assert embed_file(model, fasta, folder, rows_per_part=4).num_parts == 0
    with pytest.raises(StoreError, match="comes from another model or input"):
        embed_file(model, fasta, folder, rows_per_part=5)
    flip(out, 60)  # in the first page
    with pytest.raises(StoreError, match="is damaged, or no Parquet file"):
        embed_file(model, fasta, out, rows_per_part=4)


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_cluster")
def test_parts_of_a_model_that_was_overwritten_are_not_used(
    fasta: Path,
    tmp_path: Path,
    stop_before_join: Callable[[EmbeddingModel, Path, Path], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor are inputs whose bytes have changed."""
    monkeypatch.setattr(embed_actors, "PROGRESS_SECONDS", math.inf)
    out, whole = tmp_path / "embeddings.parquet", tmp_path / "whole.parquet"
    parts = stop_before_join(exported(tmp_path / "model"), fasta, out)
    flip(parts / "input-000003.arrow")
    model = exported(tmp_path / "model", seed=1)
    said: list[str] = []
    summary = embed_file(model, fasta, out, rows_per_part=4, say=said.append)
    assert summary.num_parts_found == 0
    assert said == [
        f"{parts / 'input-000003.arrow'} is missing or damaged; cutting the input again",
        f"{parts / 'part-000000.parquet'} comes from another model (and 5 more); embedding again",
    ]
    embed_file(model, fasta, whole, rows_per_part=4)
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_cluster")
def test_a_model_that_is_overwritten_while_it_embeds_gives_no_output(
    fasta: Path, tmp_path: Path
) -> None:
    model, out = exported(tmp_path / "model"), tmp_path / "embeddings.parquet"
    digest = EmbeddingModel.digest

    def overwrite_then(self: EmbeddingModel) -> str:
        found = digest(self)
        exported(tmp_path / "model", seed=1)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            EmbeddingModel, "digest", overwrite_then
        )  # the driver's; workers have the real one
        with pytest.raises(
            StoreError, match="comes from another model, although it was just embedded"
        ):
            embed_file(model, fasta, out)
    assert not out.exists()


class SlowModel(ProteinEmbeddingModel):
    """Takes longer for a part than Ray Data waits for progress."""

    def embed_table(self, *arguments: object) -> pa.Table:
        time.sleep(4)
        return super().embed_table(*arguments)


class FailingModel(ProteinEmbeddingModel):
    """Finds too little memory for a part."""

    def embed_table(self, *arguments: object) -> pa.Table:
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_cluster")
def test_a_part_may_take_longer_than_ray_waits_for_progress(fasta: Path, tmp_path: Path) -> None:
    import ray.data

    model, out = exported(tmp_path / "model"), tmp_path / "embeddings.parquet"
    slow = SlowModel(**{field.name: getattr(model, field.name) for field in fields(model)})
    context = ray.data.DataContext.get_current().copy()
    context.execution_no_progress_timeout_s = 1
    with ray.data.DataContext.current(context):
        embed_file(slow, fasta, out)
    assert len(column(out)) == NUM_ROWS


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_cluster")
def test_it_says_how_many_parts_are_embedded_and_how_long_the_rest_takes(
    fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed_actors, "PROGRESS_SECONDS", 0)
    said: list[str] = []
    model = exported(tmp_path / "model")
    embed_file(model, fasta, tmp_path / "out.parquet", rows_per_part=4, say=said.append)
    numbers = [int(line.partition(" of 6 parts, about ")[0]) for line in said]
    assert numbers == sorted(set(numbers)) and numbers[0] > 0 and numbers[-1] < 6
    assert all(re.search(r"about [\d.]+ \w+ left$", line) for line in said)


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_cluster")
def test_a_part_that_does_not_fit_the_memory_is_one_message(fasta: Path, tmp_path: Path) -> None:
    model = exported(tmp_path / "model")
    failing = FailingModel(**{field.name: getattr(model, field.name) for field in fields(model)})
    with pytest.raises(ClusterError, match=r"CUDA out of memory.* --precision bf16, or a GPU"):
        embed_file(failing, fasta, tmp_path / "embeddings.parquet")


def test_parts_and_outputs_of_another_input_are_refused(fasta: Path, tmp_path: Path) -> None:
    model, out = exported(tmp_path / "model"), tmp_path / "embeddings.parquet"
    parts = embed.Parts(out.with_name(out.name + ".parts"))
    parts.folder.mkdir()
    parts.finish_cut("of another input", [], {})
    with pytest.raises(StoreError, match="another input or part size"):
        embed_file(model, fasta, out)
    out.write_bytes(b"PAR1")
    with pytest.raises(StoreError, match="damaged, or no Parquet file"):
        embed_file(model, fasta, out)


def test_a_folder_with_other_files_is_no_damaged_output(fasta: Path, tmp_path: Path) -> None:
    """The error advised to delete it."""
    model, out = exported(tmp_path / "model"), tmp_path / "results"
    out.mkdir()
    (out / "README.md").write_text("of the user")
    with pytest.raises(ConfigError, match="holds files and no embeddings; want a new or empty"):
        embed_file(model, fasta, out)
    (out / "embeddings-00000-of-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"or delete it if raybio embed wrote it"):
        embed_file(model, fasta, out)
    # What others add, such as the hub or a file manager, is no reason to refuse an output.
    (out / ".gitattributes").write_text("*.parquet filter=lfs")
    check_output_path(out)


def test_a_missing_input_or_model_is_named(fasta: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.fasta"):
        embed_file(
            exported(tmp_path / "model"), tmp_path / "nothing.fasta", tmp_path / "out.parquet"
        )
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no safetensors"):
        model_of_folder(tmp_path / "empty")
    with pytest.raises(ConfigError, match="no such folder"):
        model_of_folder(tmp_path / "nothing")
    unfinished = tmp_path / "empty" / "unfinished"
    unfinished.mkdir()
    with pytest.raises(
        ConfigError, match="that run has no model yet .*export.*; run its command to the end"
    ):
        model_of_run(unfinished.parent, unfinished.name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "model", "proteins.fasta"]


@pytest.mark.nightly
def test_the_command_embeds_by_run_and_by_folder_alike_and_refuses_with_one_message(
    fasta: Path, tmp_path: Path, tiny_documents: object
) -> None:
    exported(tmp_path / "runs" / "first" / "export")
    system = METHODS["mtb_pretrain"].build(tiny_config("mtb_pretrain"), tiny_documents.path)  # type: ignore[attr-defined]
    system.export(tmp_path / "runs" / "pairs" / "export", {})
    for given, message in (
        (["--run", "pairs", "--per", "token"], "embeds pairs of entities; leave it out"),
        (["--run", "first", "--pooling", "mean"], "--pooling is for --model"),
        (["--model", "runs/first/export", "--pooling", "cls"], "states mean; leave it out"),
    ):
        done = run_script(JOB, tmp_path, *given, "--input", str(fasta), "--out", "no.parquet")
        assert done.returncode == 2
        # Which model it is may stand there already.
        assert len(done.stdout.splitlines()) <= 1
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
    outs = []
    for number, given in enumerate((["--run", "first"], ["--model", "runs/first/export"])):
        outs.append(tmp_path / f"{number}.parquet")
        done = run_script(JOB, tmp_path, *given, "--input", str(fasta), "--out", outs[-1].name)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "mean over residues, inputs cut to 40 tokens, not normalized" in done.stdout
        # Ray's own remarks are for --verbose. Its core prints one more of any actor of Ray Data.
        assert "Progress bars" not in done.stderr
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("no.parquet")]
