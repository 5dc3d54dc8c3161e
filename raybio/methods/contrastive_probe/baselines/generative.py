"""Encoder-decoder language models (T5, SciFive, BART) that write the answer to a cloze query."""

from collections.abc import Sequence
from itertools import groupby

import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from raybio.core.errors import ConfigError
from raybio.encoders.checkpoints import load_pretrained, load_weights

SENTINEL, NEXT_SENTINEL = "<extra_id_0>", "<extra_id_1>"


TEXTS_AT_ONCE = 16


class AnswerWriter:
    """A model that fills the gap of a text by writing.

    Attributes:
        model: any ``AutoModelForSeq2SeqLM``, in evaluation mode.
        tokenizer: its own.
        has_sentinels: T5's way: it writes the missing piece alone, between two sentinels; otherwise it writes the whole
            text, as BART does.
        mask_token: what stands for the gap in a text.
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
        """The likeliest answers of a beam search to each text, the best first; some may be equal or empty.

        Texts of equal length are read together, so that nothing is padded and each has its own limit.

        Args:
            texts: each with ``mask_token`` once.
            num_beams: hypotheses kept.
            num_answers: of these, how many are returned.
            more_tokens: an output is at most so many tokens longer than its text.
        """
        ids = self.tokenizer(list(texts))["input_ids"]
        found: list[list[str]] = [[] for _ in texts]
        by_length = sorted(range(len(texts)), key=lambda row: len(ids[row]))
        for length, group in groupby(by_length, key=lambda row: len(ids[row])):
            rows = list(group)
            for start in range(0, len(rows), TEXTS_AT_ONCE):
                block = rows[start : start + TEXTS_AT_ONCE]
                token_NL = torch.tensor([ids[row] for row in block], device=self.model.device)
                written = self.model.generate(
                    input_ids=token_NL,
                    attention_mask=torch.ones_like(token_NL),
                    num_beams=num_beams,
                    num_return_sequences=num_answers,
                    max_length=length + more_tokens,
                    max_new_tokens=None,
                    do_sample=False,
                )
                outputs = self.tokenizer.batch_decode(written, skip_special_tokens=False)
                for place, row in enumerate(block):
                    mine = outputs[place * num_answers : (place + 1) * num_answers]
                    found[row] = [self.clean(output, texts[row]) for output in mine]
        return found

    def clean(self, output: str, text: str) -> str:
        """The answer in what was written for a text: without special tokens, the text around the gap and stops."""
        if self.has_sentinels:
            output = output.partition(NEXT_SENTINEL)[0]
        for special in self.tokenizer.all_special_tokens:
            output = output.replace(special, " ")
        answer = " ".join(output.split())
        if not self.has_sentinels:
            before = " ".join(text.partition(self.mask_token)[0].split())
            place = answer.casefold().find(before.casefold())
            answer = answer[place + len(before) :] if place >= 0 else answer
        return answer.strip(" .")


def load_answer_writer(source: str, revision: str = "main") -> AnswerWriter:
    """The encoder-decoder of a folder or a hub id, in float32: safetensors only, never with foreign code.

    Raises:
        ConfigError: if it cannot be found or reached, lacks weights, or its tokenizer has neither sentinels nor a mask.
    """
    tokenizer = load_pretrained(AutoTokenizer, source, revision)
    if SENTINEL not in tokenizer.get_vocab() and tokenizer.mask_token is None:
        raise ConfigError(
            f"model {source!r}: its tokenizer has neither {SENTINEL} nor a mask token; want a T5 or BART"
        )
    model, missing = load_weights(AutoModelForSeq2SeqLM, source, revision)
    if missing:
        raise ConfigError(
            f"model {source!r}: {len(missing)} weights are not in the file: {', '.join(missing[:8])}. The checkpoint "
            "is incomplete or of another architecture."
        )
    return AnswerWriter(model, tokenizer)


def writes_answers(source: str, revision: str = "main") -> bool:
    """Whether a folder or a hub id is an encoder-decoder; only its configuration is read.

    Raises:
        ConfigError: if it cannot be found or reached.
    """
    return bool(load_pretrained(AutoConfig, source, revision).is_encoder_decoder)
