"""Encoder-decoders of T5's and BART's kind, tiny and random, and the answers in their outputs."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from raybio.core.errors import ConfigError
from raybio.methods.contrastive_probe.baselines.generative import (
    AnswerGenerator,
    load_answer_generator,
)
from tests.encoders.tiny_text import save_tiny

WORDS = [
    "the",
    "gene",
    "is",
    "associated",
    "with",
    "disease",
    "asthma",
    "fever",
    "may",
    "treat",
    "aspirin",
    ".",
]
TEXTS = [
    "asthma associated with {}",
    "aspirin may treat {}",
    "the gene is associated with disease {}",
    "fever {}",
]


def tokenizer_of(kind):
    special = ["<pad>", "</s>", "<unk>"]
    special += ["<extra_id_0>", "<extra_id_1>"] if kind == "t5" else ["<s>", "<mask>"]
    backend = Tokenizer(
        models.WordLevel({word: row for row, word in enumerate([*special, *WORDS])}, "<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    single = "$A </s>" if kind == "t5" else "<s> $A </s>"
    ids = [(token, backend.token_to_id(token)) for token in ("</s>", "<s>") if token in special]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    if kind == "t5":
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            **names,
            additional_special_tokens=["<extra_id_0>", "<extra_id_1>"],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **names, bos_token="<s>", mask_token="<mask>"
    )


def model_of(kind, num_tokens):
    torch.manual_seed(0)
    if kind == "t5":
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
        special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
        return T5ForConditionalGeneration(T5Config(vocab_size=num_tokens, **sizes, **special))
    sizes = {
        f"{side}_{name}": 1
        for side in ("encoder", "decoder")
        for name in ("layers", "attention_heads")
    }
    sizes |= {
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "d_model": 16,
        "max_position_embeddings": 128,
    }
    special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 3, "decoder_start_token_id": 1}
    return BartForConditionalGeneration(
        BartConfig(vocab_size=num_tokens, **sizes, **special, forced_eos_token_id=1)
    )


def save_generative(path, kind):
    """Save a tiny encoder-decoder and its tokenizer, as save_pretrained writes them; return the folder."""
    with torch.random.fork_rng():
        tokenizer = tokenizer_of(kind)
        model_of(kind, len(tokenizer)).save_pretrained(path)
        tokenizer.save_pretrained(path)
    return path


@pytest.fixture(params=["t5", "bart"])
def folder(request, tmp_path):
    return save_generative(tmp_path, request.param)


def test_a_batch_gives_the_answers_of_single_texts_best_first(folder):
    generator = load_answer_generator(str(folder))
    texts = [text.format(generator.mask_token) for text in TEXTS]
    together = generator.answers(texts, num_beams=4, num_answers=3, more_tokens=4)
    assert [len(answers) for answers in together] == [3] * 4
    assert together == [
        generator.answers([text], num_beams=4, num_answers=3, more_tokens=4)[0] for text in texts
    ]
    ids = generator.tokenizer(texts[1], return_tensors="pt")["input_ids"]
    first = generator.model.generate(
        input_ids=ids,
        num_beams=4,
        max_length=ids.shape[1] + 4,
        max_new_tokens=None,
        do_sample=False,
    )
    assert together[1][0] == generator.clean(generator.tokenizer.decode(first[0]), texts[1])
    assert not any(
        special in answer for answers in together for answer in answers for special in ("<", ">")
    )


def generator_of(kind):
    tokenizer = tokenizer_of(kind)
    with torch.random.fork_rng():
        return AnswerGenerator(model_of(kind, len(tokenizer)), tokenizer)


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ("<pad><extra_id_0> fever<extra_id_1> disease</s>", "fever"),
        ("<pad> <extra_id_0>  the   disease . </s><pad>", "the disease"),
        ("<pad></s>", ""),
    ],
)
def test_t5_answers_between_its_sentinels(output, answer):
    assert generator_of("t5").clean(output, "asthma associated with  <extra_id_0>") == answer


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ("</s><s>asthma associated with fever.</s><pad>", "fever"),
        ("</s><s>Asthma  associated with fever . </s>", "fever"),  # blanks and case as it likes
        ("</s><s>the gene is fever</s>", "the gene is fever"),  # it wrote something else
    ],
)
def test_bart_answers_where_the_gap_was(output, answer):
    assert generator_of("bart").clean(output, "asthma associated with  <mask>") == answer


def test_a_model_without_a_decoder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_answer_generator(save_tiny(tmp_path, "bert"))
