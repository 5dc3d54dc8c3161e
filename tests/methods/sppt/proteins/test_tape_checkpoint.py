import json
import math
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from raybio.core.batch import IGNORED_LABEL, PaddedTokens
from raybio.core.errors import ConfigError, DataError
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import build_protein_encoder, check_protein_encoder
from raybio.methods.sppt.proteins.tape_checkpoint import (
    convert_tape_checkpoint,
    readable_source,
    rename_tape_tensors,
)
from raybio.methods.sppt.proteins.vocabulary import TAPE

WIDTH, FFN, LAYERS, HEADS, POSITIONS = 16, 24, 2, 4, 40


def tape_shapes(*, head: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of ProteinBertForMaskedLM's state dict (tape/models/modeling_bert.py)."""
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        shapes.update({f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)})

    def norm(name: str) -> None:
        shapes.update({f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)})

    shapes["bert.embeddings.word_embeddings.weight"] = (30, WIDTH)
    shapes["bert.embeddings.position_embeddings.weight"] = (POSITIONS, WIDTH)
    shapes["bert.embeddings.token_type_embeddings.weight"] = (1, WIDTH)
    norm("bert.embeddings.LayerNorm")
    for layer in range(LAYERS):
        prefix = f"bert.encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            linear(f"{prefix}.attention.self.{part}", WIDTH, WIDTH)
        linear(f"{prefix}.attention.output.dense", WIDTH, WIDTH)
        norm(f"{prefix}.attention.output.LayerNorm")
        linear(f"{prefix}.intermediate.dense", FFN, WIDTH)
        linear(f"{prefix}.output.dense", WIDTH, FFN)
        norm(f"{prefix}.output.LayerNorm")
    linear("bert.pooler.dense", WIDTH, WIDTH)
    if head:
        linear("mlm.transform.dense", WIDTH, WIDTH)
        norm("mlm.transform.LayerNorm")
        shapes.update({"mlm.decoder.weight": (30, WIDTH), "mlm.bias": (30,)})
    return shapes


def tape_tensors(*, head: bool = True) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(shape, generator=generator) * 0.3
        for name, shape in tape_shapes(head=head).items()
    }
    if head:
        tensors["mlm.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    return tensors


def write_tape(folder, tensors, **changes) -> str:
    folder.mkdir(exist_ok=True)
    description = {
        "vocab_size": 30,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": FFN,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "output_attentions": False,
        "finetuning_task": None,
    }
    (folder / "config.json").write_text(json.dumps(description | changes))
    torch.save(tensors, folder / "pytorch_model.bin")
    return str(folder)


def oracle(tensors: dict[str, Tensor], ids: list[int]) -> tuple[Tensor, Tensor | None]:
    """TAPE's forward pass over one sequence, written out: last states and logits."""

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        scaled = centered / torch.sqrt((centered**2).mean(-1, keepdim=True) + 1e-12)
        return tensors[f"{name}.weight"] * scaled + tensors[f"{name}.bias"]

    def gelu(x: Tensor) -> Tensor:
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))

    x = tensors["bert.embeddings.word_embeddings.weight"][ids]
    x = x + tensors["bert.embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(
        x + tensors["bert.embeddings.token_type_embeddings.weight"][0], "bert.embeddings.LayerNorm"
    )
    for layer in range(LAYERS):
        prefix = f"bert.encoder.layer.{layer}"
        query, key, value = (
            linear(x, f"{prefix}.attention.self.{part}") for part in ("query", "key", "value")
        )
        heads = []
        for head in range(HEADS):
            columns = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
            scores = query[:, columns] @ key[:, columns].T / math.sqrt(WIDTH // HEADS)
            heads.append(scores.softmax(-1) @ value[:, columns])
        attended = linear(torch.cat(heads, -1), f"{prefix}.attention.output.dense")
        x = norm(attended + x, f"{prefix}.attention.output.LayerNorm")
        inner = gelu(linear(x, f"{prefix}.intermediate.dense"))
        x = norm(linear(inner, f"{prefix}.output.dense") + x, f"{prefix}.output.LayerNorm")
    if "mlm.bias" not in tensors:
        return x, None
    scored = norm(gelu(linear(x, "mlm.transform.dense")), "mlm.transform.LayerNorm")
    return x, scored @ tensors["mlm.decoder.weight"].T + tensors["mlm.bias"]


def encode(encoder, ids: list[int]):
    token_RL = torch.tensor([ids])
    tokens = PaddedTokens(
        token_RL,
        torch.ones_like(token_RL, dtype=torch.bool),
        torch.full_like(token_RL, IGNORED_LABEL),
    )
    return encoder(tokens)


@pytest.mark.parametrize("head", [True, False])
def test_the_converted_encoder_computes_what_tape_computes(tmp_path, head):
    tensors = tape_tensors(head=head)
    folder = convert_tape_checkpoint(write_tape(tmp_path / "tape", tensors), tmp_path / "out")
    encoder = build_protein_encoder(EncoderConfig(source=str(folder), dropout=0.0), seed=0)
    assert encoder.vocabulary is TAPE
    assert encoder.max_tokens == POSITIONS
    ids = TAPE.encode("MKTAYIAKQRXBZUO").tolist()
    states, logits = oracle(tensors, ids)
    encoded = encode(encoder, ids)
    torch.testing.assert_close(encoded.hidden_RLD[0], states, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(encoded.embedding_RD[0], states[0], rtol=1e-5, atol=1e-5)
    if head:
        torch.testing.assert_close(
            encoder.token_logits(encoded.hidden_RLD[0]), logits, rtol=1e-4, atol=1e-5
        )


def test_every_tensor_of_tape_but_the_pooler_reaches_the_output(tmp_path):
    tensors = tape_tensors()
    ids = TAPE.encode("MKT").tolist()
    before = oracle(tensors, ids)[1]
    renamed = rename_tape_tensors(tensors)
    assert {name for name in tensors if "pooler" not in name and name != "mlm.decoder.weight"} == {
        name
        if name.startswith("bert.")
        else next(old for old, new in HEADS_BACK.items() if new == name)
        for name in renamed
    }
    for name in tensors:
        if "pooler" in name or "key.bias" in name:
            continue  # a key bias cancels in the softmax
        changed = dict(tensors)
        changed[name] = tensors[name] + torch.linspace(0.1, 0.5, tensors[name].numel()).view(
            tensors[name].shape
        )
        assert not torch.allclose(oracle(changed, ids)[1], before), name


HEADS_BACK = {
    "mlm.transform.dense.weight": "cls.predictions.transform.dense.weight",
    "mlm.transform.dense.bias": "cls.predictions.transform.dense.bias",
    "mlm.transform.LayerNorm.weight": "cls.predictions.transform.LayerNorm.weight",
    "mlm.transform.LayerNorm.bias": "cls.predictions.transform.LayerNorm.bias",
    "mlm.bias": "cls.predictions.bias",
}


def test_the_file_format_of_2019_is_read(tmp_path):
    source = write_tape(tmp_path / "tape", tape_tensors(head=False))
    new = convert_tape_checkpoint(source, tmp_path / "new")
    torch.save(
        tape_tensors(head=False),
        tmp_path / "tape" / "pytorch_model.bin",
        _use_new_zipfile_serialization=False,
    )
    old = convert_tape_checkpoint(source, tmp_path / "old")
    assert (new / "model.safetensors").read_bytes() == (old / "model.safetensors").read_bytes()


def test_old_layer_norm_names_and_names_without_prefix_are_understood():
    tensors = tape_tensors(head=False)
    old = {
        name.removeprefix("bert.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    assert rename_tape_tensors(old).keys() == rename_tape_tensors(tensors).keys()


def without(tensors, name):
    return {other: tensor for other, tensor in tensors.items() if other != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: without(t, "bert.encoder.layer.1.output.dense.bias"),
            r"missing \['bert.encoder.layer.1.output.dense",
        ),
        (
            lambda t: without(t, "mlm.transform.dense.bias"),
            r"missing \['cls.predictions.transform.dense.bias",
        ),
        (
            lambda t: t | {"bert.encoder.layer.2.output.dense.bias": torch.zeros(WIDTH)},
            "left over .*layer.2",
        ),
        (
            lambda t: t | {"classify.main.0.bias": torch.zeros(3)},
            "unknown names, such as 'classify.main.0.bias'",
        ),
        (lambda t: t | {"mlm.decoder.weight": torch.zeros(30, WIDTH)}, "they are one weight"),
        (
            lambda t: t | {"mlm.bias": torch.zeros(31)},
            r"has shape \(31,\); config.json wants \(30,\)",
        ),
    ],
)
def test_a_checkpoint_with_other_tensors_is_refused_and_nothing_is_written(
    tmp_path, change, message
):
    source = write_tape(tmp_path / "tape", change(tape_tensors()))
    with pytest.raises(DataError, match=message):
        convert_tape_checkpoint(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["tape"]


def test_other_vocabularies_and_missing_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="vocab_size is 8000; want 30"):
        convert_tape_checkpoint(
            write_tape(tmp_path / "tape", tape_tensors(), vocab_size=8000), tmp_path / "out"
        )
    with pytest.raises(DataError, match=r"config.json: cannot be read as JSON"):
        convert_tape_checkpoint(tmp_path, tmp_path / "out")
    write_tape(tmp_path / "tape", tape_tensors())
    (tmp_path / "tape" / "pytorch_model.bin").write_bytes(b"torn")
    with pytest.raises(DataError, match="cannot be read as a file of tensors"):
        convert_tape_checkpoint(tmp_path / "tape", tmp_path / "out")


class Evil:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (self.canary,)


def test_a_pickle_that_runs_code_is_refused_and_its_code_not_run(tmp_path):
    canary = tmp_path / "canary"
    source = write_tape(tmp_path / "tape", tape_tensors())
    torch.save(
        {"bert.x": Evil(str(canary))}, tmp_path / "tape" / "pytorch_model.bin", pickle_module=pickle
    )
    with pytest.raises(DataError, match="more than tensors"):
        convert_tape_checkpoint(source, tmp_path / "out")
    assert not canary.exists()


def test_tapes_own_folder_is_a_source_and_keeps_its_dropout(tmp_path):
    tensors = tape_tensors()
    source = write_tape(tmp_path / "tape", tensors)
    check_protein_encoder(EncoderConfig(source=source))
    encoder = build_protein_encoder(EncoderConfig(source=source), seed=0)
    assert encoder.vocabulary is TAPE
    assert encoder.model.config.hidden_dropout_prob == 0.1
    ids = TAPE.encode("MKTAYIAKQRXBZUO").tolist()
    states, _ = oracle(tensors, ids)
    found = encode(encoder.eval(), ids).hidden_RLD[0]
    torch.testing.assert_close(found, states, rtol=1e-5, atol=1e-5)
    still = build_protein_encoder(EncoderConfig(source=source, dropout=0.0), seed=0)
    assert encode(still, ids).hidden_RLD.equal(encode(still, ids).hidden_RLD)


def test_a_tape_checkpoint_that_cannot_be_converted_is_refused_when_it_is_checked(tmp_path):
    source = write_tape(tmp_path / "tape", tape_tensors() | {"mlm.bias": torch.zeros(31)})
    with pytest.raises(ConfigError, match=r"has shape \(31,\); config.json wants \(30,\)"):
        check_protein_encoder(EncoderConfig(source=source))
    (tmp_path / "tape" / "pytorch_model.bin").unlink()
    with pytest.raises(ConfigError, match=r"no model\.safetensors and no pytorch_model\.bin"):
        check_protein_encoder(EncoderConfig(source=source))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_conversion_is_named_and_made_again_when_it_is_removed(tmp_path, name):
    encoder = EncoderConfig(source=write_tape(tmp_path / "tape", tape_tensors()))
    check_protein_encoder(encoder)
    converted = Path(readable_source(encoder.source, "main")[0])
    assert converted != tmp_path / "tape"
    path = converted / name
    path.write_bytes(path.read_bytes()[:-5])
    remedy = f"{converted}.*remove that folder, and it is made again"
    with pytest.raises(ConfigError, match=remedy) as refused:
        check_protein_encoder(encoder)
    assert "fetch it again" not in str(refused.value)
    assert "save_pretrained" not in str(refused.value)
    shutil.rmtree(converted)
    check_protein_encoder(encoder)
