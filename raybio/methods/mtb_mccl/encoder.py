"""Encoder of entity pairs in documents (Zhou et al., 2023, Section 3; the architecture of ATLOP).

Markers surround every mention. For a pair (h, t):

    mention    state at its opening marker, in the last layer
    entity     h = logsumexp of its mentions, elementwise; attention A_h = their mean attention row
    context    c = H^T a,  a = q / (sum q + 1e-5),  q = sum over heads of A_h * A_t
    pair       z = W [h; t; c], linear, without bias

Shape letters: R documents, L padded length, D width, H heads, J mentions of a document, C links of
mentions to entities, E entities, P pairs, X groups of K pairs of a document.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from raybio.core.batch import PaddedTokens, Tokens
from raybio.core.interfaces import Encoded, Encoder
from raybio.encoders.config import SCRATCH
from raybio.encoders.mlm_head import MaskHead, build_mask_head, read_mask_head
from raybio.encoders.sources import fetch_file
from raybio.encoders.text import (
    TextEncoder,
    build_text_encoder,
    check_text_encoder,
    require_mask_token,
)
from raybio.encoders.tokenization import special_ids_around
from raybio.encoders.transformer import seeded_weights
from raybio.methods.mtb_mccl.attention import (
    IMPLEMENTATION,
    StatesAndAttention,
    at_positions,
    encode_packed_with_attention,
    encode_with_attention,
    record_attention,
)
from raybio.methods.mtb_mccl.batches import PackedDocuments, PaddedDocuments
from raybio.methods.mtb_mccl.config import RelationEncoderConfig
from raybio.methods.mtb_mccl.windows import read_in_windows, read_packed_in_windows
from raybio.ops.grouped import grouped_logsumexp, grouped_mean
from raybio.ops.similarity import at_least_fp32, scores_at_once

PARTS = "relation.safetensors"
"""File of an exported folder: the weights next to the transformer's."""

OPENING = "[E]"
CLOSING = "[/E]"
BLANK = "[BLANK]"

_EPSILON = 1e-5


class RelationEncoder(Encoder):
    """A transformer that embeds entity pairs: an ``Encoder`` over ``PaddedDocuments``.

    Attributes:
        text: the transformer and its tokenizer, which has the markers.
        projection: W, or None.
        width: numbers in the embedding of a pair.
        pad_id: token id of padding.
        mask_head: masked-language-model head, or None; see ``add_mask_head``.
        head: parameters that a method trains next to the encoder, or None.
    """

    mask_head: MaskHead | None
    head: nn.Module | None

    def __init__(self, text: TextEncoder, *, is_projected: bool) -> None:
        """Wrap a text encoder whose tokenizer has the markers."""
        super().__init__()
        self.text = text
        self.pad_id = text.pad_id
        self.projection = (
            nn.Linear(3 * text.width, text.width, bias=False) if is_projected else None
        )
        self.width = text.width if is_projected else 3 * text.width
        self.mask_head = None
        self.head = None
        record_attention(text.model)

    def why_padded(self) -> str:
        """Return why the encoder reads padded tokens only; empty if it reads packed ones, too."""
        if self.text.model.config._attn_implementation != IMPLEMENTATION:
            return "a model without a fused attention reads padded sequences"
        return self.text.why_padded()

    def forward(self, tokens: Tokens) -> Encoded:
        """Return last hidden states (R, L, D) or (T, D), and pair embeddings (P, ``width``).

        Pair embeddings are computed in float32 or wider.
        """
        if isinstance(tokens, PackedDocuments):
            return self._read_packed(tokens)
        if not isinstance(tokens, PaddedDocuments):
            raise TypeError(
                "a relation encoder reads PaddedDocuments or PackedDocuments, got "
                f"{type(tokens).__name__}"
            )
        encoded = self._read_padded(tokens, tokens.num_tokens_R)
        return Encoded(encoded.hidden_RLD, self._pairs(encoded, tokens))

    def _read_padded(self, tokens: PaddedTokens, num_tokens_R: list[int]) -> StatesAndAttention:
        return read_in_windows(
            self._encode, tokens, num_tokens_R, self.text.max_tokens, pad_id=self.pad_id
        )

    def _read_packed(self, tokens: PackedDocuments) -> Encoded:
        encode = partial(encode_packed_with_attention, self.text.model)
        if tokens.longest > self.text.max_tokens:
            encoded = read_packed_in_windows(
                encode, tokens, tokens.num_tokens_R, self.text.max_tokens
            )
            num_real = sum(tokens.num_tokens_R)
            hidden_TD = encoded.hidden_RLD[tokens.row_T[:num_real], tokens.position_T[:num_real]]
            return Encoded(hidden_TD, self._pairs(encoded, tokens))
        packed = encode(tokens)
        hidden_RLD = tokens.to_rectangle(packed.hidden_RLD)[: tokens.num_rows]
        encoded = StatesAndAttention(hidden_RLD, packed.attention_rows)
        return Encoded(packed.hidden_RLD, self._pairs(encoded, tokens))

    def _pairs(
        self, encoded: StatesAndAttention, tokens: PaddedDocuments | PackedDocuments
    ) -> Tensor:
        """Return the embeddings of all pairs; the documents are encoded as a rectangle."""
        state_RLD = at_least_fp32(encoded.hidden_RLD)
        entity_C = tokens.entity_C
        num_entities = tokens.num_entities
        state_RJD = at_positions(state_RLD, tokens.position_RJ)
        state_CD = state_RJD.flatten(0, 1).index_select(0, tokens.slot_C)
        state_ED = grouped_logsumexp(state_CD, entity_C, num_entities)
        attention_RJHL = encoded.attention_rows(tokens.position_RJ)
        attention_CHL = attention_RJHL.flatten(0, 1).index_select(0, tokens.slot_C)
        attention_EHL = grouped_mean(attention_CHL, entity_C, num_entities)
        head_PD = state_ED.index_select(0, tokens.head_P)
        tail_PD = state_ED.index_select(0, tokens.tail_P)
        context_PD = _contexts(attention_EHL, state_RLD, tokens)
        joined_PD = torch.cat([head_PD, tail_PD, context_PD], 1)
        embedding_PD = joined_PD if self.projection is None else self.projection(joined_PD)
        return at_least_fp32(embedding_PD)

    @property
    def markers(self) -> dict[str, Any]:
        """Special token ids, keyed by the fields of ``documents.markers.Markers``."""
        tokenizer = self.text.tokenizer
        prefix_ids, suffix_ids = special_ids_around(tokenizer)
        token_by_field = {
            "opening_id": OPENING,
            "closing_id": CLOSING,
            "blank_id": BLANK,
            "mask_id": tokenizer.mask_token,
        }
        id_by_field = {
            field: tokenizer.convert_tokens_to_ids(token) for field, token in token_by_field.items()
        }
        return {"prefix_ids": prefix_ids, "suffix_ids": suffix_ids, **id_by_field}

    def _encode(self, tokens: PaddedTokens) -> StatesAndAttention:
        return encode_with_attention(self.text.model, tokens)

    def token_logits(self, hidden_KD: Tensor) -> Tensor:
        """Return scores (K, V) of the vocabulary.

        Raises:
            NotImplementedError: before ``add_mask_head``.
        """
        if self.mask_head is None:
            raise NotImplementedError(
                "this relation encoder has no language-model head; call add_mask_head first"
            )
        return self.mask_head(hidden_KD, self.text.model.get_input_embeddings().weight)

    def add_mask_head(self, config: RelationEncoderConfig, *, seed: int) -> None:
        """Add a masked-language-model head whose output layer shares the word embeddings.

        The head is loaded from the source: a language model, or an export of
        ``export_relation_encoder``. It is drawn from ``seed`` if the source has none, or if
        ``num_layers_kept`` removes layers below it.

        Raises:
            ConfigError: if the source cannot be found or reached.
        """
        keeps_all_layers = config.num_layers_kept is None

        def weights() -> dict[str, Tensor] | None:
            """Return the mask head of the checkpoint; None if it has none or must not be used."""
            if not keeps_all_layers:
                return None
            exported = {
                name.removeprefix("mask_head."): weight
                for name, weight in read_parts(config.source, config.revision).items()
            }
            if "dense.weight" in exported:
                return exported
            return read_mask_head(config.source, config.revision)

        self.mask_head = build_mask_head(
            self.text.model, seed=seed, weights=weights, source=config.source
        )


def build_relation_encoder(
    config: RelationEncoderConfig, *, seed: int, count_by_word: Mapping[str, int] | None = None
) -> RelationEncoder:
    """Build the encoder that ``config`` describes; see ``build_text_encoder``.

    The projection of a folder that ``export_relation_encoder`` wrote is loaded, too.

    Raises:
        ConfigError: if the source cannot be found or reached, is no usable text encoder, does not
            return its attention, or its tokenizer has no mask token.
    """
    text = build_text_encoder(config, seed=seed, count_by_word=count_by_word)
    require_mask_token(text.tokenizer, config.source)
    with seeded_weights(seed):
        add_markers(text)
        encoder = RelationEncoder(text, is_projected=config.projection == "linear")
    saved = read_parts(config.source, config.revision)
    if encoder.projection is not None and "projection.weight" in saved:
        encoder.projection.load_state_dict({"weight": saved["projection.weight"]})
    return encoder.train()


def check_relation_encoder(config: RelationEncoderConfig, *, needs_mask_head: bool = False) -> None:
    """Refuse what ``build_relation_encoder`` would refuse; only the headers of weights are read.

    Args:
        config: the settings.
        needs_mask_head: whether ``RelationEncoder.add_mask_head`` will be called.

    Raises:
        ConfigError: as ``build_relation_encoder``.
    """
    text = check_text_encoder(config, needs_mask_token=True, needs_mask_head=needs_mask_head)
    if text is not None:
        record_attention(text.model)


def read_parts(source: str, revision: str = "main") -> dict[str, Tensor]:
    """Return the weights that an export holds next to the transformer's, by name.

    Other sources have none.

    Raises:
        ConfigError: if the source cannot be found or reached.
    """
    path = None if source == SCRATCH else fetch_file(source, PARTS, revision)
    return {} if path is None else load_file(path)


def add_markers(text: TextEncoder) -> None:
    """Add the markers that tokenizer and model do not have yet."""
    tokenizer: PreTrainedTokenizerFast = text.tokenizer
    tokenizer.add_tokens([OPENING, CLOSING, BLANK], special_tokens=True)
    num_known = text.model.config.vocab_size
    if len(tokenizer) <= num_known:
        return
    text.model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        # Draw from the distribution of the known words: an outlier would dominate its mention.
        weight_VD = text.model.get_input_embeddings().weight
        std_D, mean_D = torch.std_mean(weight_VD[:num_known], dim=0)
        weight_VD[num_known:] = mean_D + std_D * torch.randn_like(weight_VD[num_known:])


def _contexts(
    attention_EHL: Tensor, state_RLD: Tensor, tokens: PaddedDocuments | PackedDocuments
) -> Tensor:
    """Return the localized context (P, D) of each pair.

    Attention is multiplied for a block of pairs at once: (P, H, L) would not fit in memory.
    """
    num_heads, length = attention_EHL.shape[1:]
    at_once = max(1, scores_at_once(state_RLD.device) // (num_heads * length))
    blocks = zip(tokens.head_P.split(at_once), tokens.tail_P.split(at_once), strict=True)
    both_PL = torch.cat(
        [
            (attention_EHL.index_select(0, head_B) * attention_EHL.index_select(0, tail_B)).sum(1)
            for head_B, tail_B in blocks
        ]
    )
    weight_PL = both_PL / (both_PL.sum(1, keepdim=True) + _EPSILON)
    # The pairs of a group share the states of their document, in one matrix product.
    num_groups = len(tokens.row_X)
    num_slots = num_groups * tokens.pairs_per_group
    weight_XKL = (
        weight_PL.new_zeros(num_slots, length)
        .index_copy(0, tokens.slot_P, weight_PL)
        .view(num_groups, tokens.pairs_per_group, length)
    )
    context_XKD = weight_XKL @ state_RLD.index_select(0, tokens.row_X)
    return context_XKD.flatten(0, 1).index_select(0, tokens.slot_P)
