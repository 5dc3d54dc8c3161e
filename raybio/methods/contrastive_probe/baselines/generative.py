"""Encoder-decoder language models (T5, SciFive, BART) that generate the answer to a cloze query."""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from raybio.core.errors import ConfigError
from raybio.core.text import first_names
from raybio.encoders.checkpoints import load_pretrained, load_weights
from raybio.methods.contrastive_probe.baselines.masked_lm import check_logits

SENTINEL = "<extra_id_0>"
NEXT_SENTINEL = "<extra_id_1>"

TEXTS_PER_BATCH = 16


class AnswerGenerator:
    """A model that fills the gap of a text by generation.

    Attributes:
        model: any ``AutoModelForSeq2SeqLM``, in evaluation mode.
        tokenizer: its tokenizer.
        has_sentinels: True for T5, which generates only the missing part, between two sentinels;
            False for BART, which generates the complete text.
        mask_token: the gap of a text.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast):
        """Wrap a model whose tokenizer has sentinels or a mask."""
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.has_sentinels = SENTINEL in tokenizer.get_vocab()
        self.mask_token: str = SENTINEL if self.has_sentinels else tokenizer.mask_token

    @torch.inference_mode()
    def answers(
        self,
        texts: Sequence[str],
        *,
        num_beams: int = 10,
        num_answers: int = 10,
        more_tokens: int = 80,
    ) -> list[list[str]]:
        """Return the best answers of a beam search to each text; some may be equal or empty.

        Texts of equal length form a batch, so nothing is padded and each text has its own limit.

        Args:
            texts: each with ``mask_token`` once.
            num_beams: number of hypotheses.
            num_answers: number of hypotheses returned.
            more_tokens: maximum tokens by which an output is longer than its text.

        Raises:
            ConfigError: if logits are NaN or +inf.
        """
        check = LogitsProcessorList([_FiniteCheck(self.model.name_or_path)])
        ids = self.tokenizer(list(texts))["input_ids"]
        answers: list[list[str]] = [[] for _ in texts]
        by_length = sorted(range(len(texts)), key=lambda row: len(ids[row]))
        for length, group in groupby(by_length, key=lambda row: len(ids[row])):
            rows = list(group)
            for start in range(0, len(rows), TEXTS_PER_BATCH):
                batch = rows[start : start + TEXTS_PER_BATCH]
                token_NL = torch.tensor([ids[row] for row in batch], device=self.model.device)
                generated = self.model.generate(
                    input_ids=token_NL,
                    attention_mask=torch.ones_like(token_NL),
                    num_beams=num_beams,
                    num_return_sequences=num_answers,
                    max_length=length + more_tokens,
                    max_new_tokens=None,
                    do_sample=False,
                    logits_processor=check,
                )
                outputs = self.tokenizer.batch_decode(generated, skip_special_tokens=False)
                for index, row in enumerate(batch):
                    own_outputs = outputs[index * num_answers : (index + 1) * num_answers]
                    answers[row] = [self.clean(output, texts[row]) for output in own_outputs]
        return answers

    def clean(self, output: str, text: str) -> str:
        """Return the answer in an output: no special tokens, stops, or text before the gap."""
        if self.has_sentinels:
            output = output.partition(NEXT_SENTINEL)[0]
        for special in self.tokenizer.all_special_tokens:
            output = output.replace(special, " ")
        answer = " ".join(output.split())
        if not self.has_sentinels:
            before = " ".join(text.partition(self.mask_token)[0].split())
            start = answer.casefold().find(before.casefold())
            if start >= 0:
                answer = answer[start + len(before) :]
        return answer.strip(" .")


class _FiniteCheck(LogitsProcessor):
    """Refuses NaN and +inf, from which a beam search would give empty answers."""

    def __init__(self, source: str):
        self.source = source

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return logits or log-probabilities (beams, V) as they are.

        Raises:
            ConfigError: if one is NaN or +inf.
        """
        check_logits(scores, self.source)
        return scores


def load_answer_generator(source: str) -> AnswerGenerator:
    """Load an encoder-decoder in float32, from safetensors only and without remote code.

    Args:
        source: folder or hub id.

    Raises:
        ConfigError: if it cannot be found, lacks weights, or its tokenizer has neither sentinels
            nor a mask.
    """
    tokenizer = load_pretrained(AutoTokenizer, source, "main")
    if SENTINEL not in tokenizer.get_vocab() and tokenizer.mask_token is None:
        raise ConfigError(
            f"model {source!r}: its tokenizer has neither {SENTINEL} nor a mask token; "
            "want a T5 or BART"
        )
    model, missing = load_weights(AutoModelForSeq2SeqLM, source, "main")
    if missing:
        raise ConfigError(
            f"model {source!r}: {len(missing)} weights are not in the file: "
            f"{first_names(missing, 8)}. The checkpoint is incomplete or of another architecture."
        )
    return AnswerGenerator(model, tokenizer)


def is_encoder_decoder(source: str) -> bool:
    """Return whether a folder or a hub id is an encoder-decoder; only its configuration is read.

    Raises:
        ConfigError: if it cannot be found.
    """
    return bool(load_pretrained(AutoConfig, source, "main").is_encoder_decoder)
