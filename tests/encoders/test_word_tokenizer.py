"""Tokenizers from counted words, and tokenizers as plain text."""

import os
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from raybio.core.errors import ConfigError
from raybio.encoders.tokenization import TEXTS_AT_ONCE, TokenizerSource
from raybio.encoders.word_tokenizer import build_word_tokenizer
from tests.encoders.tiny_text import SENTENCES, tiny_cased_tokenizer, tiny_tokenizer
from tests.minilm import WHY_NOT, minilm_folder

COUNTS = {"Gene": 5, "gene,": 2, "asthma": 7, "cell": 7, "cells": 1, "Zelle": 1}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    return sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)


def some_tokenizers() -> list[PreTrainedTokenizerFast]:
    real = minilm_folder()
    return [tiny_tokenizer(), *([AutoTokenizer.from_pretrained(real)] if real else [])]


def fingerprint(tokenizer: PreTrainedTokenizerFast) -> str:
    return TokenizerSource.of(tokenizer).fingerprint


def test_the_vocabulary_is_special_tokens_then_letters_then_words_by_count_and_alphabet():
    letters = sorted(set("geneasthmacellszelle,"))
    expected = [*SPECIAL, *letters, *[f"##{letter}" for letter in letters]]
    expected += ["asthma", "cell", "gene", "cells", "zelle"]
    assert vocabulary(build_word_tokenizer(COUNTS, size=1000)) == expected
    assert vocabulary(build_word_tokenizer(COUNTS, size=len(expected) - 3)) == expected[:-3]


def test_the_order_and_form_of_the_counts_do_not_matter():
    backwards = dict(reversed(COUNTS.items()))
    arrays = (list(COUNTS), np.array(list(COUNTS.values())))
    prints = {
        fingerprint(build_word_tokenizer(words, size=40)) for words in (COUNTS, backwards, arrays)
    }
    assert len(prints) == 1


def test_known_words_are_one_token_unknown_ones_are_letters_and_unseen_letters_are_unknown():
    tokenizer = build_word_tokenizer(COUNTS, size=1000)
    assert tokenizer.tokenize("Asthma, cells at GENE") == [
        "asthma",
        ",",
        "cells",
        "a",
        "##t",
        "gene",
    ]
    assert tokenizer.tokenize("β") == ["[UNK]"]
    ids = tokenizer("gene")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "gene", "[SEP]"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "gene"


def test_a_size_that_does_not_hold_the_letters_is_an_error():
    with pytest.raises(
        ConfigError,
        match=r"vocabulary of 20 tokens does not hold the 12 different.*want at least 29",
    ):
        build_word_tokenizer(COUNTS, size=20)


def test_the_tokenizer_survives_saving(tmp_path):
    tokenizer = build_word_tokenizer(COUNTS, size=1000, max_tokens=77)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert fingerprint(again) == fingerprint(tokenizer)
    assert again.model_max_length == 77


def test_the_fingerprint_changes_with_the_words_and_not_with_the_last_call():
    tokenizer = build_word_tokenizer(COUNTS, size=1000)
    before = fingerprint(tokenizer)
    tokenizer(SENTENCES, padding=True, truncation=True, max_length=5)
    assert fingerprint(tokenizer) == before
    others = [
        build_word_tokenizer(COUNTS | {"lung": 1}, size=1000),
        tiny_cased_tokenizer(),
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer.backend_tokenizer, pad_token="[UNK]", unk_token="[UNK]"
        ),
    ]
    assert len({before, *map(fingerprint, others)}) == 4


@pytest.mark.parametrize("max_length", [5, 12, 64])
@pytest.mark.parametrize("side", ["left", "right"])
def test_all_texts_at_once_give_the_tokens_of_one_text_at_a_time(max_length, side):
    texts = SENTENCES * 3 + ["[MASK] and [PAD] in a text", "naïve\u00a0Å\u200d\n\tx"]
    for tokenizer in some_tokenizers():
        tokenizer.truncation_side = side
        token_T, indptr_R1 = TokenizerSource.of(tokenizer).tokenize(texts, max_length)
        assert token_T.dtype == np.uint16
        assert indptr_R1.dtype == np.int64
        rows = [row.tolist() for row in np.split(token_T, indptr_R1[1:-1])]
        assert rows == [
            tokenizer(text, truncation=True, max_length=max_length)["input_ids"] for text in texts
        ]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_mask_is_kept_wherever_it_stands_in_a_text_that_is_too_long(side):
    words = ["the", "heart", "of", "a", "patient", "with", "heart", "failure", "asthma"] * 3
    texts = [" ".join([*words[:place], "[MASK]", *words[place:]]) for place in range(28)]
    for tokenizer in some_tokenizers():
        tokenizer.truncation_side = side
        source = TokenizerSource.of(tokenizer)
        cut_T, cut_R1 = source.tokenize(texts, 12)
        kept_T, kept_R1 = source.tokenize([*texts, *SENTENCES], 12, keep_mask=True)
        cut, kept = (np.split(*pair) for pair in ((cut_T, cut_R1[1:-1]), (kept_T, kept_R1[1:-1])))
        assert sum(source.mask_id not in row for row in cut) > 10
        for text, before, row in zip(texts, cut, kept, strict=False):
            whole = tokenizer(text)["input_ids"]
            body = row.tolist()[1:-1]
            assert (row[0], row[-1]) == (whole[0], whole[-1])
            assert source.mask_id in body
            assert any(whole[start : start + len(body)] == body for start in range(len(whole)))
            assert len(body) == 10
            if source.mask_id in before:
                assert row.tolist() == before.tolist()
            else:  # words on both sides, unless the text ends there
                here = body.index(source.mask_id)
                assert here > 0 or whole.index(source.mask_id) == 1
                assert here < 9 or whole.index(source.mask_id) == len(whole) - 2
        others = source.tokenize(SENTENCES, 12)[0]
        assert kept_T[kept_R1[len(texts)] :].tolist() == others.tolist()


def test_more_texts_than_are_read_at_once_come_out_in_order():
    source = TokenizerSource.of(tiny_tokenizer())
    texts = [SENTENCES[number % len(SENTENCES)] for number in range(TEXTS_AT_ONCE + 3)]
    token_T, indptr_R1 = source.tokenize(texts, 16)
    assert len(indptr_R1) == len(texts) + 1
    few_T, few_R1 = source.tokenize(texts[TEXTS_AT_ONCE:], 16)
    assert token_T[indptr_R1[TEXTS_AT_ONCE] :].tolist() == few_T.tolist()
    assert np.diff(indptr_R1)[TEXTS_AT_ONCE:].tolist() == np.diff(few_R1).tolist()


def test_no_texts_give_no_tokens():
    token_T, indptr_R1 = TokenizerSource.of(tiny_tokenizer()).tokenize([], 16)
    assert token_T.tolist() == []
    assert indptr_R1.tolist() == [0]


def test_a_large_vocabulary_gets_wide_ids():
    words = {f"w{number}": 1 for number in range(70_000)}
    tokenizer = build_word_tokenizer(words, size=70_000)
    token_T, _ = TokenizerSource.of(tokenizer).tokenize(["w69999 w1"], 16)
    assert token_T.dtype == np.int32
    assert token_T.tolist() == tokenizer("w69999 w1")["input_ids"]


def test_a_length_without_room_for_a_word_is_an_error():
    with pytest.raises(ValueError, match="max_length is 2; want more than the 2 special tokens"):
        TokenizerSource.of(tiny_tokenizer()).tokenize(["x"], 2)


def test_a_source_survives_pickling_and_knows_the_special_tokens():
    source = TokenizerSource.of(tiny_tokenizer())
    again = ForkingPickler.loads(ForkingPickler.dumps(source))
    assert again == source
    assert (again.pad_id, again.mask_id, again.special_ids) == (0, 4, (0, 1, 2, 3, 4))
    assert again.vocabulary_size == len(tiny_tokenizer())
    assert again.tokenize(SENTENCES, 16)[0].tolist() == source.tokenize(SENTENCES, 16)[0].tolist()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_after_parallel_tokenizing_tokenizes_silently_and_without_transformers():
    program = (
        "import os, sys\n"
        "from raybio.encoders.tokenization import TokenizerSource\n"
        "source, texts = TokenizerSource(sys.stdin.read(), 0, 4, (0, 1, 2, 3, 4), 100), ['some "
        "words', 'x'] * 50\n"
        "assert 'transformers' not in sys.modules\n"
        "expected = source.tokenize(texts, 16)[0].tolist()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(0 if source.tokenize(texts, 16)[0].tolist() == expected else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    source = TokenizerSource.of(tiny_tokenizer())
    environment = {
        name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"
    }
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command,
        input=source.json,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(minilm_folder() is None, reason=WHY_NOT)
def test_the_padding_in_minilms_own_file_is_not_applied():
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    _, indptr_R1 = TokenizerSource.of(tokenizer).tokenize(["asthma"], 128)
    assert indptr_R1.tolist() == [0, 3]
