"""Masked language models with their heads: what stands at the masks of a text.

N texts, L padded length, J places asked about in each, D width, V vocabulary.

Scores of candidate names by what a masked language model says at one mask, and together with an encoder's scores.

Q queries, C candidate names, V vocabulary, B queries of a block, T word pieces of all names end to end, R relations.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from raybio.core.errors import ConfigError
from raybio.encoders.checkpoints import load_pretrained, load_weights
from raybio.encoders.text_checkpoint import position_table
from raybio.ops.retrieval import Scores


class MaskedLanguageModel:
    """A transformer with its language-model head, in evaluation mode.

    Attributes:
        model: any ``AutoModelForMaskedLM``.
        tokenizer: its own.
        mask_id: token id of a masked word.
        pad_id: token id of padding.
        max_tokens: longest text it has positions for, special tokens included; None if it sets no limit.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast):
        """Wrap a model and its tokenizer."""
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.mask_id: int = tokenizer.mask_token_id
        self.pad_id: int = tokenizer.pad_token_id
        table = position_table(model)
        # RoBERTa and its kin number positions from the padding id on.
        first = 0 if table is None or table.padding_idx is None else table.padding_idx + 1
        self.max_tokens = None if table is None else table.num_embeddings - first

    @torch.inference_mode()
    def log_probs(self, token_NL: Tensor, place_NJ: Tensor) -> Tensor:
        """Log-probabilities (N, J, V), float32, of the tokens at some places of texts that are padded on the right.

        The head, which is most of the work for short texts, is computed at those places alone.
        """
        device = self.model.device
        token_NL, place_NJ = token_NL.to(device), place_NJ.to(device)
        # A predicted padding token inside a text is a token like any other.
        is_text_NL = (token_NL != self.pad_id).flip(1).cummax(1).values.flip(1)

        def keep_places(module: Any, arguments: Any, output: Any) -> Any:
            output.last_hidden_state = output.last_hidden_state.gather(
                1, place_NJ[..., None].expand(-1, -1, output.last_hidden_state.shape[2])
            )
            return output

        hook = self.model.base_model.register_forward_hook(keep_places)
        try:
            logits_NJV = self.model(
                input_ids=token_NL, attention_mask=is_text_NL.long(), return_dict=True
            ).logits
        finally:
            hook.remove()
        return logits_NJV.float().log_softmax(2)

    def at_masks(self, texts: Sequence[np.ndarray], *, texts_at_once: int = 64) -> Tensor:
        """Log-probabilities (N, V) at the one mask of each text (token ids); texts of like length go together."""
        log_prob_NV = torch.empty(len(texts), self.model.config.vocab_size)
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        for start in range(0, len(order), texts_at_once):
            rows = order[start : start + texts_at_once]
            token_BL = torch.nn.utils.rnn.pad_sequence(
                [torch.from_numpy(texts[row]) for row in rows],
                batch_first=True,
                padding_value=self.pad_id,
            )
            place_B1 = (token_BL == self.mask_id).int().argmax(1, keepdim=True)
            log_prob_NV[rows] = self.log_probs(token_BL, place_B1)[:, 0].cpu()
        return log_prob_NV

    def cloze_tokens(self, texts: Sequence[str], max_tokens: int) -> list[np.ndarray]:
        """Token ids of texts that hold the mask token, cut to ``max_tokens`` with the mask kept.

        What is left out of a text that is too long stands at its beginning, then at its end; its special tokens stay.

        Raises:
            ValueError: if a text has no mask, or ``max_tokens`` has no room for it between two special tokens.
        """
        if max_tokens < 3:
            raise ValueError(
                f"max_tokens is {max_tokens}, want 3 at least: a mask between two special tokens"
            )
        return [
            _cut_around(np.array(ids, dtype=np.int64), self.mask_id, max_tokens, text)
            for ids, text in zip(self.tokenizer(list(texts))["input_ids"], texts, strict=True)
        ]

    def name_tokens(self, names: Sequence[str]) -> list[tuple[int, ...]]:
        """Token ids of names as they stand inside a text: without special tokens, after a blank."""
        ids = self.tokenizer([f" {name}" for name in names], add_special_tokens=False)["input_ids"]
        return [tuple(one) for one in ids]


def load_masked_lm(source: str, revision: str = "main") -> MaskedLanguageModel:
    """The masked language model of a folder or a hub id, in float32: safetensors only, never with foreign code.

    Raises:
        ConfigError: if it cannot be found or reached, or its language-model head or tokenizer is not there. A head
            with random weights would give answers too, and they would mean nothing.
    """
    tokenizer = load_pretrained(AutoTokenizer, source, revision)
    if None in (tokenizer.mask_token_id, tokenizer.pad_token_id):
        raise ConfigError(
            f"model {source!r}: its tokenizer has no mask or no padding token; want a model such as BERT"
        )
    model, missing = load_weights(AutoModelForMaskedLM, source, revision)
    missing = [name for name in missing if "pooler" not in name.split(".")]
    if missing:
        raise ConfigError(
            f"model {source!r} has no complete language-model head: {len(missing)} weights are not in the file: "
            f"{', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}. Take the checkpoint from which it was "
            "tuned, or leave mask-average and x-factr out."
        )
    return MaskedLanguageModel(model, tokenizer)


def _cut_around(token_L: np.ndarray, mask_id: int, max_tokens: int, text: str) -> np.ndarray:
    places = np.flatnonzero(token_L == mask_id)
    if not len(places):
        raise ValueError(f"the text {text!r} has no mask token, want one where its answer belongs")
    num_over = len(token_L) - max_tokens
    if num_over <= 0:
        return token_L
    num_before = min(num_over, int(places[0]) - 1)
    cut = np.delete(token_L, slice(1, 1 + num_before))
    return np.delete(cut, slice(len(cut) - 1 - (num_over - num_before), len(cut) - 1))


def mask_average_scores(
    log_probs: Callable[[int, int], Tensor],
    num_queries: int,
    names: Sequence[Sequence[int]],
    vocabulary_size: int,
) -> Scores:
    """A name's score is the mean log-probability of its word pieces at the one mask (Contrastive-Probe, mask average).

    As the paper says it; the authors' code averages logits, and counts padding as pieces of score 0. Names of the same
    pieces, in whatever order, have equal scores; one without pieces comes last.

    Args:
        log_probs: (first, end) -> log-probabilities (end - first, V) at those queries' masks.
        num_queries: Q.
        names: word pieces of each of the C names.
        vocabulary_size: V.
    """
    length_C = np.array([len(name) for name in names])
    piece_T = np.array([piece for name in names for piece in name], dtype=np.int64)
    name_T = np.repeat(np.arange(len(names)), length_C)
    shape = (len(names), vocabulary_size)
    # Counts are whole numbers, and rows are summed in order of piece: what ties on paper ties here.
    count_CV = sparse.csr_matrix((np.ones(len(piece_T)), (name_T, piece_T)), shape=shape)
    count_CV.sum_duplicates()

    def block(first: int, end: int) -> Tensor:
        log_prob_VB = log_probs(first, end).double().cpu().numpy().T
        score_CB = (count_CV @ log_prob_VB) / np.maximum(length_C, 1)[:, None]
        score_CB[length_C == 0] = -np.inf
        return torch.from_numpy(score_CB.T)

    return Scores(block, num_queries, len(names))


def restricted_scores(
    scores: Scores, relation_Q: NDArray, is_candidate_RC: NDArray[np.bool_]
) -> Scores:
    """The same scores, with the candidates that a query's relation does not allow behind all others."""

    def block(first: int, end: int) -> Tensor:
        score_BC = scores.block(first, end)
        is_out_BC = torch.from_numpy(~is_candidate_RC[relation_Q[first:end]])
        return score_BC.masked_fill_(is_out_BC.to(score_BC.device), -torch.inf)

    return replace(scores, block=block)


def hybrid_scores(
    retrieval: Scores, mask: Scores, is_single_C: NDArray[np.bool_], weight: float
) -> Scores:
    """An encoder's scores, with those of a masked language model mixed in where a candidate is a single token.

    Masked language models are better at single tokens and know nothing of others' lengths (the Contrastive-Probe
    paper's limits), so multi-token candidates keep the encoder's score. Of a query's single-token candidates the
    mask's scores are shifted and scaled to the mean and standard deviation of the encoder's, and the new score is
    (1 - weight) x encoder + weight x mask: as a group they neither gain nor lose against the others.

    Args:
        retrieval: finite scores of the encoder.
        mask: scores of the masked language model for the same queries and candidates, finite for single tokens.
        is_single_C: which candidates are single tokens of the masked language model.
        weight: 0: the encoder alone; 1: the language model alone orders single tokens among themselves.

    Raises:
        ValueError: if the weight is outside [0, 1], or the scores are not of the same queries and candidates.
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"weight is {weight}, want a share in [0, 1]")
    shapes = [(one.num_queries, one.num_candidates) for one in (retrieval, mask)]
    if shapes[0] != shapes[1] or shapes[0][1] != len(is_single_C):
        raise ValueError(
            f"scores of (queries, candidates) {shapes[0]} and {shapes[1]} and {len(is_single_C)} candidates that "
            "are or are not single tokens; want the same queries and candidates"
        )
    single_S = torch.from_numpy(np.flatnonzero(is_single_C))

    def block(first: int, end: int) -> Tensor:
        score_BC = retrieval.block(first, end)
        if len(single_S) and weight > 0:
            column_S = single_S.to(score_BC.device)
            encoder_BS = score_BC[:, column_S]
            mask_BS = mask.block(first, end).to(score_BC)[:, column_S]
            score_BC[:, column_S] = (1 - weight) * encoder_BS + weight * _on_scale_of(
                mask_BS, encoder_BS
            )
        return score_BC

    return replace(retrieval, block=block)


def _on_scale_of(score_BS: Tensor, other_BS: Tensor) -> Tensor:
    """Scores with each row's mean and standard deviation those of the other's row; equal scores stay equal."""
    centred_BS = score_BS - score_BS.mean(1, keepdim=True)
    spread_B1 = centred_BS.square().mean(1, keepdim=True).sqrt()
    other_spread_B1 = other_BS.std(1, correction=0, keepdim=True)
    ratio_B1 = torch.where(spread_B1 > 1e-12, other_spread_B1 / spread_B1.clamp(min=1e-12), 0.0)
    return other_BS.mean(1, keepdim=True) + centred_BS * ratio_B1
