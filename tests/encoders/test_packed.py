"""Packed sequences give the states, embeddings and gradients of padded ones."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from raybio.core.batch import IGNORED_LABEL, StaticShape, TokenBatch, Tokens
from raybio.core.errors import DataError
from raybio.core.interfaces import Encoder
from raybio.encoders import packed
from raybio.encoders.packed import (
    _PACKABLE,
    MAX_FP32_LENGTH,
    _varlen,
    packed_attention,
    reads_without_padding,
)
from raybio.encoders.text import TextEncoder
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import ProteinEncoder, build_protein_encoder
from raybio.training.micro_batches import micro_batches, reads_packed
from tests.encoders.tiny_text import MAX_POSITIONS, tiny_model, tiny_tokenizer

LENGTHS = [17, 1, 40, 3, 40, 8]


def labeled_batch(lengths: list[int], ids: np.ndarray, mask_id: int, seed: int = 0) -> TokenBatch:
    """Random tokens, of which some are masked; a sequence of one token has a label, too."""
    rng = np.random.default_rng(seed)
    token_T = rng.choice(ids, sum(lengths))
    is_masked_T = rng.random(len(token_T)) < 0.3
    is_masked_T[lengths[0]] = False
    arrays = {
        "token_T": np.where(is_masked_T, mask_id, token_T),
        "indptr_R1": np.concatenate([[0], np.cumsum(lengths)]),
        "label_T": np.where(is_masked_T, token_T, IGNORED_LABEL),
    }
    return TokenBatch.from_arrays(arrays)


def text_encoder(architecture: str, pooling: str) -> tuple[TextEncoder, np.ndarray, int]:
    tokenizer = tiny_tokenizer()
    model = tiny_model(architecture, len(tokenizer), tokenizer.pad_token_id).base_model
    encoder = TextEncoder(model, tokenizer, max_tokens=MAX_POSITIONS, pooling=pooling)
    return encoder, np.arange(5, len(tokenizer)), tokenizer.mask_token_id


def protein_encoder(vocabulary: str, pooling: str) -> tuple[ProteinEncoder, np.ndarray, int]:
    sizes = {"num_layers": 2, "width": 32, "num_heads": 2, "ffn_width": 64, "max_positions": 48}
    config = EncoderConfig(vocabulary=vocabulary, pooling=pooling, **sizes)
    encoder = build_protein_encoder(config, seed=0)
    known = encoder.vocabulary
    special = [one for one in (known.cls_id, known.eos_id) if one is not None]
    return encoder, np.array([*known.residue_ids, *special]), known.mask_id


def without_dropout(encoder: Encoder) -> Encoder:
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return encoder.double().train()


def outputs(
    encoder: Encoder, batch: TokenBatch, *, is_packed: bool, **options: int
) -> list[Tensor]:
    """States of labels, embeddings and all gradients of a function of both."""
    encoder.zero_grad()
    rows = torch.tensor([2, 4, 0, 5, 3, 1])
    cut = batch.pack if is_packed else batch.pad
    tokens = cut(rows, encoder.pad_id, **options)
    encoded = encoder(tokens)
    state_KD = tokens.states_of_labels(encoded.hidden_RLD)
    embedding_RD = encoded.embedding_RD
    weight_RD = torch.linspace(-1, 2, embedding_RD.numel(), dtype=torch.float64)
    loss = (embedding_RD.flatten() * weight_RD).sum() + state_KD.pow(3).mean()
    loss.backward()
    gradients = [p.grad.clone() for p in encoder.parameters() if p.grad is not None]
    return [tokens.label_K, state_KD.detach(), embedding_RD.detach(), *gradients]


def assert_packed_equals_padded(encoder: Encoder, batch: TokenBatch, atol: float, **options: int):
    padded = outputs(encoder, batch, is_packed=False)
    packed = outputs(encoder, batch, is_packed=True, **options)
    assert len(packed) == len(padded) > 10
    for ours, expected in zip(packed, padded, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=atol)


PACKED_TEXTS = ("bert", "roberta", "xlm-roberta", "electra", "modernbert", "distilbert")
PACKED_VOCABULARIES = ("tape", "esm")


def test_every_packable_type_is_compared() -> None:
    assert {*PACKED_TEXTS, "esm"} == set(_PACKABLE)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("architecture", PACKED_TEXTS)
def test_packed_texts_equal_padded_ones_with_all_gradients(architecture: str, pooling: str) -> None:
    encoder, ids, mask_id = text_encoder(architecture, pooling)
    batch = labeled_batch(LENGTHS, ids, mask_id)
    assert_packed_equals_padded(without_dropout(encoder), batch, 1e-10)
    assert_packed_equals_padded(encoder, batch, 1e-10, num_tokens=200)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("vocabulary", PACKED_VOCABULARIES)
def test_packed_proteins_equal_padded_ones_with_all_gradients(
    vocabulary: str, pooling: str
) -> None:
    encoder, ids, mask_id = protein_encoder(vocabulary, pooling)
    batch = labeled_batch(LENGTHS, ids, mask_id)
    assert_packed_equals_padded(without_dropout(encoder), batch, 1e-10)


@pytest.mark.first_tier("bert")
@pytest.mark.parametrize("kind", _PACKABLE)
def test_compiled_layers_equal_padded_ones_and_a_graph_reads_any_number_of_sequences(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "BACKEND", "aot_eager")
    packed._compiled_forward.cache_clear()
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    encoder, ids, mask_id = (
        protein_encoder("esm", "mean") if kind == "esm" else text_encoder(kind, "mean")
    )
    without_dropout(encoder)
    shape = StaticShape(num_tokens=128, longest=40)
    sizes = set()
    for lengths in (LENGTHS, [8] * 16, [40, 40, 40], [7, 1], [2, 2, 2]):
        sizes.add(shape.num_tokens_for(sum(lengths)))
        batch = labeled_batch(lengths, ids, mask_id)
        rows = torch.arange(len(lengths))
        expected, ours = (
            gradients_of_embeddings(encoder, tokens)
            for tokens in (
                batch.pad(rows, encoder.pad_id),
                batch.pack_static(rows, encoder.pad_id, shape),
            )
        )
        assert len(ours) == len(expected) > 10
        for one, other in zip(ours, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    assert len(sizes) < 5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == len(sizes)
    packed._compiled_forward.cache_clear()
    torch.compiler.reset()


def gradients_of_embeddings(encoder: Encoder, tokens: Tokens) -> list[Tensor]:
    """Embeddings, and all gradients of a function of them."""
    encoder.zero_grad()
    embedding_RD = encoder(tokens).embedding_RD
    embedding_RD.pow(3).mean().backward()
    gradients = [p.grad.clone() for p in encoder.parameters() if p.grad is not None]
    return [embedding_RD.detach(), *gradients]


def test_recomputed_activations_give_the_gradients_of_kept_ones() -> None:
    encoder, ids, mask_id = text_encoder("bert", "mean")
    batch = labeled_batch(LENGTHS, ids, mask_id)
    kept = outputs(without_dropout(encoder), batch, is_packed=True)
    encoder.model.gradient_checkpointing_enable({"use_reentrant": False})
    for ours, expected in zip(outputs(encoder, batch, is_packed=True), kept, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_a_packed_text_that_is_too_long_is_refused_and_one_of_full_length_read() -> None:
    encoder, ids, mask_id = text_encoder("bert", "mean")
    fits = labeled_batch([MAX_POSITIONS, 2], ids, mask_id)
    assert encoder(fits.pack(torch.arange(2), 0)).embedding_RD.shape == (2, encoder.width)
    long = labeled_batch([MAX_POSITIONS + 1, 2], ids, mask_id)
    with pytest.raises(DataError, match=f"a text has {MAX_POSITIONS + 1} tokens"):
        encoder(long.pack(torch.arange(2), 0))


def test_models_with_relative_positions_are_padded_with_a_warning_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    encoder, ids, mask_id = text_encoder("mpnet", "mean")
    encoder.packing = True
    batch = labeled_batch(LENGTHS, ids, mask_id)
    for _ in range(2):
        (one,) = micro_batches(batch, encoder, torch.device("cpu"), max_tokens=1000)
        assert one.tokens.token_RL.shape == (6, 40)
    messages = [record.message for record in caplog.records if "memory.packing" in record.message]
    assert messages == [
        "memory.packing: a model of type mpnet reads padded sequences, and computes their padding"
    ]


def test_only_a_gpu_packs_by_default() -> None:
    encoder, _, _ = text_encoder("bert", "mean")
    assert encoder.packing == "auto"
    assert not reads_packed(encoder, torch.device("cpu"))
    assert reads_packed(encoder, torch.device("cuda"))
    encoder.packing = False
    assert not reads_packed(encoder, torch.device("cuda"))


def test_a_worker_without_rows_has_no_micro_batches() -> None:
    encoder, _, _ = text_encoder("bert", "mean")
    encoder.packing = True
    empty = torch.zeros(0, dtype=torch.int64)
    batch = TokenBatch(empty, torch.zeros(1, dtype=torch.int64), empty)
    assert list(micro_batches(batch, encoder, torch.device("cpu"), max_tokens=8)) == []


def test_the_kernel_of_a_gpu_takes_the_arguments_it_is_given() -> None:
    """Shapes alone: on the meta device nothing is computed."""
    encoder, ids, mask_id = text_encoder("bert", "mean")
    packed = labeled_batch(LENGTHS, ids, mask_id).pack(torch.arange(6), 0).to(torch.device("meta"))
    heads_THD = torch.empty(len(packed.token_T), 2, 16, device="meta", dtype=torch.bfloat16)
    heads_THD.requires_grad_()
    for window in (None, 8):
        attended = _varlen([heads_THD] * 3, packed, 0.25, window)
        assert attended.shape == heads_THD.shape
        assert attended.dtype == torch.bfloat16
    attended.sum().backward()
    assert heads_THD.grad is not None and heads_THD.grad.shape == heads_THD.shape


@pytest.mark.parametrize(
    ("width", "dtype", "expected"),
    [
        (64, torch.bfloat16, True),
        (256, torch.float16, True),
        (264, torch.bfloat16, False),
        (20, torch.bfloat16, False),
        (64, torch.float32, False),
    ],
)
def test_heads_that_flash_attention_cannot_read_are_padded(
    width: int, dtype: torch.dtype, expected: bool
) -> None:
    query = torch.zeros(1, 2, 3, width, dtype=dtype)
    assert reads_without_padding(query) is expected


class AttentionCalls(TorchDispatchMode):
    """Notes the arguments of FlashAttention's operation."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._flash_attention_forward.default:
            self.arguments.append((*args[5:9], kwargs["scale"], kwargs["window_size_left"]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("window", "sent"), [(None, -1), (64, 64)])
def test_attention_with_dropout_hands_its_rate_scale_and_window_to_flash_attention(
    window: int | None, sent: int
) -> None:
    """On the device "meta": what the kernel computes is seen on a GPU alone."""
    _, ids, mask_id = text_encoder("bert", "mean")
    tokens = labeled_batch(LENGTHS, ids, mask_id).pack(torch.arange(6), 0).to(torch.device("meta"))
    heads = [
        torch.zeros(
            len(tokens.token_T), 2, 64, dtype=torch.bfloat16, device="meta", requires_grad=True
        )
        for _ in range(3)
    ]
    with AttentionCalls() as calls:
        attended = _varlen(heads, tokens, 0.125, window, 0.1)
    assert calls.arguments == [(40, 40, 0.1, False, 0.125, sent)]
    assert attended.shape == heads[0].shape
    attended.sum().backward()
    assert all(part.grad is not None for part in heads)


def test_gradients_of_heads_are_not_copied_into_zeros() -> None:
    _, ids, mask_id = text_encoder("bert", "mean")
    tokens = labeled_batch(LENGTHS, ids, mask_id).pack(torch.arange(6), 0)
    module = torch.nn.Module()
    module.is_causal = False
    shape = (1, 2, len(tokens.token_T), 16)
    heads = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    attended, _ = packed_attention(module, *heads, None, packing=tokens)
    functions = [attended.grad_fn]
    for function in functions:
        functions += [parent for parent, _ in function.next_functions if parent is not None]
    names = {function.name() for function in functions}
    assert "SqueezeBackward1" in names and "SelectBackward0" not in names


class AttentionTypes(TorchDispatchMode):
    """Notes the types in which a CPU computes attention."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            self.found.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("in_training", "length", "dtype", "expected"),
    [
        (True, MAX_FP32_LENGTH, torch.bfloat16, torch.float32),
        (True, MAX_FP32_LENGTH + 1, torch.bfloat16, torch.bfloat16),
        (False, MAX_FP32_LENGTH, torch.bfloat16, torch.bfloat16),
        (True, MAX_FP32_LENGTH, torch.float32, torch.float32),
    ],
)
def test_a_cpu_that_trains_in_bf16_computes_the_attention_of_short_sequences_in_float32(
    in_training: bool, length: int, dtype: torch.dtype, expected: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (2, 3, length, 16)
    heads = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for _ in range(3)]
    module = torch.nn.Module().train(in_training)
    module.is_causal = False
    with AttentionTypes() as types, torch.autocast("cpu", torch.bfloat16, dtype == torch.bfloat16):
        attended, _ = packed_attention(module, *heads, None)
    assert types.found == {expected}
    assert attended.dtype == dtype
    attended.float().square().sum().backward()

    exact = [part.detach().double().requires_grad_() for part in heads]
    torch.nn.functional.scaled_dot_product_attention(*exact).square().sum().backward()
    for part, exact_part in zip(heads, exact, strict=True):
        error = (part.grad.double() - exact_part.grad).norm() / exact_part.grad.norm()
        assert error < 0.02
