"""Masked language models with their heads: log-probabilities of tokens at the masks of texts.

N texts, L padded length, J positions in each, D width, V vocabulary, B texts of a batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from raybio.core.errors import ConfigError
from raybio.core.text import first_names
from raybio.encoders.checkpoints import load_pretrained, load_weights
from raybio.encoders.text_checkpoint import position_table

_TEXTS_AT_ONCE = 64


class MaskedLanguageModel:
    """A transformer with its language-model head, in evaluation mode.

    Attributes:
        model: any ``AutoModelForMaskedLM``.
        tokenizer: its tokenizer.
        mask_id: token id of the mask.
        pad_id: token id of padding.
        max_tokens: maximum length of a text, special tokens included; None without a limit.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast):
        """Wrap a model and its tokenizer."""
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.mask_id: int = tokenizer.mask_token_id
        self.pad_id: int = tokenizer.pad_token_id
        table = position_table(model)
        if table is None:  # ModernBERT and others without a table may state their training length
            self.max_tokens = getattr(model.config, "max_position_embeddings", None)
        else:
            # RoBERTa and its variants number positions from the padding id on.
            first = 0 if table.padding_idx is None else table.padding_idx + 1
            self.max_tokens = table.num_embeddings - first

    @torch.inference_mode()
    def log_probs(self, token_NL: Tensor, position_NJ: Tensor) -> Tensor:
        """Return log-probabilities (N, J, V), float32, of the tokens at positions of texts.

        Texts are padded on the right. The head, which is most of the work for short texts, is
        computed at these positions only.

        Raises:
            ConfigError: if logits are NaN or infinite.
        """
        token_NL = token_NL.to(self.model.device)
        position_NJ = position_NJ.to(self.model.device)
        # A predicted padding token inside a text is a token like any other.
        is_text_NL = (token_NL != self.pad_id).flip(1).cummax(1).values.flip(1)

        def keep_positions(module: Any, arguments: Any, output: Any) -> Any:
            state_NLD = output.last_hidden_state
            index_NJD = position_NJ[..., None].expand(-1, -1, state_NLD.shape[2])
            output.last_hidden_state = state_NLD.gather(1, index_NJD)
            return output

        hook = self.model.base_model.register_forward_hook(keep_positions)
        try:
            logits_NJV = self.model(
                input_ids=token_NL, attention_mask=is_text_NL.long(), return_dict=True
            ).logits
        finally:
            hook.remove()
        check_logits(logits_NJV, self.model.name_or_path)
        return logits_NJV.float().log_softmax(-1)

    def at_masks(self, texts: Sequence[np.ndarray]) -> Tensor:
        """Return log-probabilities (N, V) at the mask of each text (token ids)."""
        log_prob_NV = torch.empty(len(texts), self.model.config.vocab_size)
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        for start in range(0, len(order), _TEXTS_AT_ONCE):
            rows = order[start : start + _TEXTS_AT_ONCE]
            token_BL = torch.nn.utils.rnn.pad_sequence(
                [torch.from_numpy(texts[row]) for row in rows],
                batch_first=True,
                padding_value=self.pad_id,
            )
            position_B1 = (token_BL == self.mask_id).int().argmax(1, keepdim=True)
            log_prob_NV[rows] = self.log_probs(token_BL, position_B1)[:, 0].cpu()
        return log_prob_NV

    def cloze_tokens(self, texts: Sequence[str], max_tokens: int) -> list[np.ndarray]:
        """Return token ids of texts with a mask token, cut to ``max_tokens``.

        A text that is too long loses words at its beginning, then at its end; the mask and the
        special tokens stay.

        Raises:
            ValueError: if a text has no mask, or ``max_tokens`` is less than 3.
        """
        if max_tokens < 3:
            raise ValueError(
                f"max_tokens is {max_tokens}, want 3 at least: a mask between two special tokens"
            )
        tokens = []
        for ids, text in zip(self.tokenizer(list(texts))["input_ids"], texts, strict=True):
            token_L = np.array(ids, dtype=np.int64)
            tokens.append(_cut_around(token_L, self.mask_id, max_tokens, text))
        return tokens

    def name_tokens(self, names: Sequence[str]) -> list[tuple[int, ...]]:
        """Return token ids of names inside a text: after a space, without special tokens."""
        ids = self.tokenizer([f" {name}" for name in names], add_special_tokens=False)["input_ids"]
        return [tuple(name_ids) for name_ids in ids]


def check_logits(logits: Tensor, source: str) -> None:
    """Refuse logits (..., V) of a diverged language model. Logits of -inf are allowed.

    Args:
        logits: of a language model.
        source: its folder or hub id, for the message.

    Raises:
        ConfigError: if a logit is NaN or +inf, or all logits of a token are -inf.
    """
    largest = logits.amax(-1)  # NaN where any logit is
    if not largest.isfinite().all():
        raise ConfigError(
            f"model {source!r}: its logits are not finite, want numbers. Are its weights of a "
            "training that diverged?"
        )


def load_masked_lm(source: str) -> MaskedLanguageModel:
    """Load a masked language model in float32, from safetensors only and without remote code.

    Args:
        source: folder or hub id.

    Raises:
        ConfigError: if it cannot be found, or lacks its tokenizer or language-model head. A head
            with random weights would give answers without meaning.
    """
    tokenizer = load_pretrained(AutoTokenizer, source, "main")
    if None in (tokenizer.mask_token_id, tokenizer.pad_token_id):
        raise ConfigError(
            f"model {source!r}: its tokenizer has no mask or no padding token; "
            "want a model such as BERT"
        )
    model, missing = load_weights(AutoModelForMaskedLM, source, "main")
    missing = [name for name in missing if "pooler" not in name.split(".")]
    if missing:
        raise ConfigError(
            f"model {source!r} has no complete language-model head: {len(missing)} weights are not "
            f"in the file: {first_names(missing, 8)}. Use the checkpoint from which it was tuned, "
            "or omit mask-average and x-factr."
        )
    return MaskedLanguageModel(model, tokenizer)


def _cut_around(token_L: np.ndarray, mask_id: int, max_tokens: int, text: str) -> np.ndarray:
    mask_positions = np.flatnonzero(token_L == mask_id)
    if not len(mask_positions):
        raise ValueError(f"the text {text!r} has no mask token, want one where its answer belongs")
    num_excess = len(token_L) - max_tokens
    if num_excess <= 0:
        return token_L
    num_before = min(num_excess, int(mask_positions[0]) - 1)
    cut = np.delete(token_L, slice(1, 1 + num_before))
    return np.delete(cut, slice(len(cut) - 1 - (num_excess - num_before), len(cut) - 1))
