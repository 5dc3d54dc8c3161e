"""The encoder of entity pairs against loops over its formulas, and windows against ATLOP's rule."""

import math

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    ModernBertConfig,
    ModernBertModel,
)

from raybio.core.batch import IGNORED_LABEL, PaddedTokens
from raybio.methods.mtb_mccl import batches
from raybio.methods.mtb_mccl.attention import encode_with_attention, record_attention
from raybio.methods.mtb_mccl.batches import DocumentBatch
from raybio.methods.mtb_mccl.config import RelationEncoderConfig
from raybio.methods.mtb_mccl.encoder import RelationEncoder, build_relation_encoder
from raybio.methods.mtb_mccl.export import export_relation_encoder
from raybio.methods.mtb_mccl.windows import read_in_windows, window_spans
from tests.device_operations import DeviceOperations
from tests.encoders.tiny_text import save_tiny, save_with_head

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 50,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
MODERN = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "local_attention": 6,
}
WORDS = dict.fromkeys(
    ["the", "gene", "abc", "causes", "disease", "xyz", "in", "mice", "with", "drug"], 5
)


def tokens(lengths: list[int], padded: int, seed: int = 0) -> PaddedTokens:
    token_RL = torch.randint(
        5, 50, (len(lengths), padded), generator=torch.Generator().manual_seed(seed)
    )
    mask_RL = torch.arange(padded) < torch.tensor(lengths)[:, None]
    return PaddedTokens(
        token_RL.masked_fill(~mask_RL, 0), mask_RL, torch.full_like(token_RL, IGNORED_LABEL)
    )


@pytest.mark.parametrize(
    "model",
    [
        lambda: BertModel(BertConfig(**SIZES)),
        lambda: ModernBertModel(ModernBertConfig(**SIZES, **MODERN, global_attn_every_n_layers=3)),
        lambda: DebertaV2Model(DebertaV2Config(**SIZES)),
    ],
    ids=["bert", "neighborhoods", "without a fused kernel"],
)
def test_attention_rows_are_those_of_the_model(model):
    model, given = model().eval(), tokens([17, 9, 17], 17)
    model.set_attn_implementation("eager")
    whole = model(
        input_ids=given.token_RL, attention_mask=given.mask_RL.long(), output_attentions=True
    )
    record_attention(model)
    hidden_RLD, rows = encode_with_attention(model, given)
    place_RJ = torch.tensor([[5, 16], [2, 8], [3, 3]])
    row_R1 = torch.arange(3)[:, None]
    torch.testing.assert_close(
        rows(place_RJ), whole.attentions[-1][row_R1, :, place_RJ], rtol=1e-4, atol=1e-6
    )
    is_token = given.mask_RL
    torch.testing.assert_close(
        hidden_RLD[is_token], whole.last_hidden_state[is_token], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("length", [3, 10, 24, 25, 40, 46, 47, 100])
def test_windows_cover_every_token_and_none_is_too_long(length):
    spans = window_spans(length, 24)
    covered = {place for _, low, high in spans for place in range(low, high)}
    assert covered == set(range(length))
    assert all(high - low <= 23 or length <= 24 for _, low, high in spans)
    if 24 < length <= 46:  # ATLOP: the first and the last tokens
        assert [(low, high) for _, low, high in spans] == [(0, 23), (length - 23, length)]


def atlop(model, given: PaddedTokens, window: int):
    """Combine up to two windows as ATLOP does: mean states, renormalized sum of attention."""
    length = int(given.mask_RL.sum())
    token_L = given.token_RL[0, :length]
    first = torch.cat([token_L[: window - 1], token_L[-1:]])
    second = torch.cat([token_L[:1], token_L[length - window + 1 :]])
    found = [model(input_ids=part[None], output_attentions=True) for part in (first, second)]
    states = torch.zeros(length, found[0].last_hidden_state.shape[-1])
    count, attention = (
        torch.zeros(length, 1),
        torch.zeros(found[0].attentions[-1].shape[1], length, length),
    )
    for one, here, there in (
        (found[0], slice(0, window - 1), slice(0, window - 1)),
        (found[1], slice(1, window), slice(length - window + 1, length)),
    ):
        states[there] += one.last_hidden_state[0, here]
        count[there] += 1
        attention[:, there, there] += one.attentions[-1][0][:, here, here]
    return states / count, attention / (attention.sum(-1, keepdim=True) + 1e-10)


@pytest.mark.parametrize("length", [25, 33, 46])
def test_two_windows_are_put_together_as_in_atlop(length):
    model, given = BertModel(BertConfig(**SIZES)).eval(), tokens([length], 48)
    model.set_attn_implementation("eager")
    states, attention = atlop(model, given, 24)
    record_attention(model)
    both = PaddedTokens(
        *(
            torch.cat([own, other])
            for own, other in zip(parts(given), parts(tokens([7], 48)), strict=True)
        )
    )

    def read(padded: PaddedTokens, lengths: list[int]):
        return read_in_windows(
            lambda part: encode_with_attention(model, part), padded, lengths, 24, pad_id=0
        )

    hidden_RLD, rows = read(both, [length, 7])
    torch.testing.assert_close(hidden_RLD[0, :length], states, rtol=1e-4, atol=1e-5)
    place_J = torch.tensor([1, length // 2, length - 2])
    found_RJHL = rows(torch.stack([place_J, torch.tensor([6, 2, 0])]))
    torch.testing.assert_close(
        found_RJHL[0, ..., :length], attention[:, place_J].transpose(0, 1), rtol=1e-4, atol=1e-6
    )
    alone = read(tokens([7], 48), [7])
    torch.testing.assert_close(
        found_RJHL[1, ..., :7], alone.attention_rows(torch.tensor([[6, 2, 0]]))[0, ..., :7]
    )
    torch.testing.assert_close(hidden_RLD[1, :7], alone.hidden_RLD[0, :7], rtol=1e-4, atol=1e-5)


def parts(given: PaddedTokens):
    return given.token_RL, given.mask_RL, given.label_RL


def config(**changes) -> RelationEncoderConfig:
    small = {
        "source": "scratch",
        "num_layers": 2,
        "width": 16,
        "num_heads": 2,
        "ffn_width": 32,
        "dropout": 0.0,
    }
    return RelationEncoderConfig(
        **{**small, "max_length": 24, "max_document_tokens": 60, **changes}
    )


def encoder(**changes) -> RelationEncoder:
    return build_relation_encoder(config(**changes), seed=1, count_by_word=WORDS).eval()


def documents() -> DocumentBatch:
    """Three documents: two entities with three mentions; four entities, one truncated; no pairs."""
    lengths = [12, 30, 9]
    token_T = torch.randint(5, 15, (sum(lengths),), generator=torch.Generator().manual_seed(3))
    return DocumentBatch(
        token_T=token_T,
        indptr_R1=torch.tensor([0, 12, 42, 51]),
        label_T=torch.full_like(token_T, IGNORED_LABEL),
        mention_indptr_R1=torch.tensor([0, 3, 7, 8]),
        position_M=torch.tensor([1, 5, 9, 2, 10, 20, 28, 4]),
        entity_indptr_R1=torch.tensor([0, 2, 6, 7]),
        link_indptr_R1=torch.tensor([0, 3, 8, 9]),
        mention_C=torch.tensor([0, 1, 2, 0, 1, 2, 2, 3, 0]),
        entity_C=torch.tensor([0, 1, 0, 0, 1, 1, 3, 3, 0]),
        pair_indptr_R1=torch.tensor([0, 1, 5, 5]),
        head_P=torch.tensor([0, 0, 1, 3, 2]),
        tail_P=torch.tensor([1, 1, 0, 1, 0]),
    )


def by_loops(model: RelationEncoder, batch: DocumentBatch) -> torch.Tensor:
    """z = W [h_s; h_o; c] of every pair, document by document, mention by mention."""
    found = []
    for row in range(batch.num_rows):
        padded = batch.pad(torch.tensor([row]), model.pad_id)
        hidden_RLD, rows = model._read_padded(padded, padded.num_tokens_R)
        first, behind = batch.mention_indptr_R1[row : row + 2].tolist()
        places = batch.position_M[first:behind].tolist()
        links = range(*batch.link_indptr_R1[row : row + 2].tolist())
        states, attentions = [], []
        for entity in range(int(batch.entity_indptr_R1.diff()[row])):
            own = [
                places[int(batch.mention_C[link])]
                for link in links
                if int(batch.entity_C[link]) == entity
            ]
            states.append(
                torch.stack([sum(hidden_RLD[0, place].exp() for place in own).log()])[0]
                if own
                else torch.zeros(hidden_RLD.shape[2])
            )
            each = [rows(torch.tensor([[place]]))[0, 0] for place in own]
            attentions.append(
                sum(each) / len(own) if own else torch.zeros(2, padded.token_RL.shape[1])
            )
        for pair in range(*batch.pair_indptr_R1[row : row + 2].tolist()):
            head, tail = int(batch.head_P[pair]), int(batch.tail_P[pair])
            both_L = (attentions[head] * attentions[tail]).sum(0)
            context_D = (both_L / (both_L.sum() + 1e-5)) @ hidden_RLD[0]
            joined = torch.cat([states[head], states[tail], context_D])
            found.append(model.projection(joined) if model.projection is not None else joined)
    return torch.stack(found)


@pytest.mark.parametrize("projection", ["linear", "none"])
def test_pairs_are_embedded_as_the_formulas_say(projection):
    model, batch = encoder(projection=projection), documents()
    with torch.no_grad():
        found = model(batch.pad(torch.arange(3), model.pad_id)).embedding_RD
        torch.testing.assert_close(found, by_loops(model, batch), rtol=1e-4, atol=1e-5)
    assert found.shape == (5, 16 if projection == "linear" else 48)


def test_pairs_divided_into_groups_and_blocks_are_those_of_one(monkeypatch):
    model, batch = encoder(), documents()
    with torch.no_grad():
        expected = model(batch.pad(torch.arange(3), model.pad_id)).embedding_RD
        monkeypatch.setattr(batches, "MAX_PAIRS_PER_GROUP", 3)
        monkeypatch.setattr("raybio.methods.mtb_mccl.encoder.scores_at_once", lambda device: 200)
        tokens = batch.pad(torch.arange(3), model.pad_id)
        assert tokens.row_X.tolist() == [0, 1, 1]
        assert tokens.slot_P.tolist() == [0, 3, 4, 5, 6]
        torch.testing.assert_close(model(tokens).embedding_RD, expected)


@pytest.mark.parametrize("max_length", [24, 60], ids=["windows", "whole"])
def test_more_documents_are_no_more_kernels(max_length):
    model, batch = encoder(max_length=max_length).train(), documents()
    counts = []
    for rows in ([1, 0, 2], [1, 0, 2] * 4):
        model.zero_grad()
        tokens = batch.pack(torch.tensor(rows), model.pad_id)
        with DeviceOperations() as operations:
            model(tokens).embedding_RD.sum().backward()
        counts.append(operations.num_kernels)
    assert counts[0] == counts[1]


def test_documents_in_any_order_and_company_give_the_same_pairs():
    model, batch = encoder(), documents()
    with torch.no_grad():
        whole = model(batch.pad(torch.arange(3), model.pad_id)).embedding_RD
        for rows in ([2, 1, 0], [1], [2, 0]):
            some = torch.tensor(rows)
            found = model(batch.pad(some, model.pad_id)).embedding_RD
            torch.testing.assert_close(
                found, whole[batch.embedding_rows(some)], rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("max_length", [24, 30, 60], ids=["windows", "full", "short"])
@pytest.mark.parametrize("num_tokens", [None, 100])
def test_packed_documents_equal_padded_ones_with_all_gradients(max_length, num_tokens):
    model, batch = encoder(max_length=max_length).double().train(), documents()
    found = []
    for tokens in (
        batch.pad(torch.tensor([1, 0, 2]), model.pad_id),
        batch.pack(torch.tensor([1, 0, 2]), model.pad_id, num_tokens=num_tokens),
    ):
        model.zero_grad()
        encoded = model(tokens)
        encoded.embedding_RD.pow(3).sum().backward()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        found.append([encoded.embedding_RD.detach(), *(one.clone() for one in gradients)])
    for packed, padded in zip(*reversed(found), strict=True):
        torch.testing.assert_close(packed, padded, rtol=0, atol=1e-10)


def test_packed_windows_are_encoded_without_padding():
    model, batch = encoder(max_length=24), documents()
    shapes = []
    model.text.model.embeddings.register_forward_hook(
        lambda module, inputs, states: shapes.append(states.shape[:2])
    )
    model(batch.pack(torch.tensor([1, 0, 2]), model.pad_id))
    # Two windows of the document of 30 tokens, and those of 12 and 9; a multiple of 8.
    assert shapes == [(1, 24 + 24 + 12 + 9 + 3)]


def test_gradients_reach_every_part_and_are_finite():
    model = encoder().train()
    model(documents().pad(torch.arange(3), model.pad_id)).embedding_RD.square().sum().backward()
    used = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in used.values())
    assert all(
        used[name].abs().sum() > 0
        for name in used
        if "query" in name or name == "projection.weight"
    )


def test_an_export_brings_its_markers_and_its_projection(tmp_path):
    model = encoder()
    export_relation_encoder(model, tmp_path / "model", card={}, settings={"trained_by": "a test"})
    again = build_relation_encoder(config(source=str(tmp_path / "model")), seed=2).eval()
    batch = documents()
    with torch.no_grad():
        embeddings = [
            one(batch.pad(torch.arange(3), one.pad_id)).embedding_RD for one in (model, again)
        ]
    torch.testing.assert_close(*embeddings)
    assert len(again.text.tokenizer) == len(model.text.tokenizer)


def test_a_fresh_language_model_head_is_near_chance():
    model = encoder()
    with pytest.raises(NotImplementedError, match="add_mask_head"):
        model.token_logits(torch.zeros(1, 16))
    model.add_mask_head(config(), seed=0)
    with torch.no_grad():
        logits = model.token_logits(
            model(documents().pad(torch.arange(3), model.pad_id)).hidden_RLD[:, 1]
        )
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([5, 6, 7]))
    assert abs(float(loss) - math.log(logits.shape[1])) < 1.5


@pytest.mark.parametrize("architecture", ["bert", "roberta", "modernbert"])
def test_the_language_model_head_of_a_checkpoint_is_kept(tmp_path, architecture):
    source = save_with_head(tmp_path / "lm", architecture)
    given = config(source=source, max_length="auto")
    model = build_relation_encoder(given, seed=0).eval()
    model.add_mask_head(given, seed=0)
    plain = AutoModelForMaskedLM.from_pretrained(source).eval()
    token_RL = torch.tensor([[2, 7, 8, 9, 3]])
    with torch.no_grad():
        expected_LV = plain(input_ids=token_RL).logits[0]
        logits_LV = model.token_logits(model.text.model(input_ids=token_RL).last_hidden_state[0])
    torch.testing.assert_close(
        logits_LV[:, : expected_LV.shape[1]], expected_LV, rtol=1e-4, atol=1e-5
    )
    assert logits_LV.shape[1] == len(model.text.tokenizer)  # with the markers

    with torch.no_grad():
        model.mask_head.dense.weight.mul_(2)
    export_relation_encoder(model, tmp_path / "model", card={}, settings={})
    given = config(source=str(tmp_path / "model"), max_length="auto")
    again = build_relation_encoder(given, seed=1)
    again.add_mask_head(given, seed=1)
    torch.testing.assert_close(again.mask_head.state_dict(), model.mask_head.state_dict())


def test_a_checkpoint_without_language_model_begins_with_a_fresh_head_and_says_so(tmp_path, caplog):
    given = config(source=str(save_tiny(tmp_path, "bert")), max_length="auto")
    model = build_relation_encoder(given, seed=0)
    model.add_mask_head(given, seed=0)
    assert "has no language-model head of a known kind" in caplog.text
    assert model.mask_head.bias.abs().max() == 0


def test_markers_are_found_whatever_the_tokenizer_last_padded():
    model = encoder()
    expected = model.markers
    model.text.tokenizer.backend_tokenizer.enable_padding(length=16)
    model.text.tokenizer.backend_tokenizer.enable_truncation(3)
    assert model.markers == expected
    assert (len(expected["prefix_ids"]), len(expected["suffix_ids"])) == (1, 1)
