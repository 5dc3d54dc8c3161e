"""Tokenizers from counted words, for runs without a hub."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from raybio.core.errors import ConfigError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

MAX_LETTERS_PER_WORD = 100


def build_word_tokenizer(
    words: Mapping[str, int] | tuple[Sequence[str], Sequence[int]],
    *,
    size: int,
    max_tokens: int = 512,
) -> PreTrainedTokenizerFast:
    """Return a BERT tokenizer (WordPiece) whose vocabulary is letters and frequent whole words.

    It folds case and strips accents, and depends on the counts only. Ids go to the special tokens,
    then to every letter as the start and as the continuation of a word (in the order of Unicode),
    then to the most frequent words, in alphabetical order among equally frequent ones.

    Args:
        words: frequency of each word, as a mapping or as (words, counts). They are split and
            normalized as by BERT, so they may contain punctuation.
        size: maximum tokens of the vocabulary.
        max_tokens: the tokenizer's ``model_max_length``.

    Raises:
        ConfigError: if ``size`` does not hold the letters.
    """
    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.BertPreTokenizer()
    pairs = words.items() if isinstance(words, Mapping) else zip(*words, strict=True)
    count_by_word = _count(pairs, normalizer, splitter)
    letters = sorted(set().union(*count_by_word))
    base = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    if size < len(base):
        raise ConfigError(
            f"a vocabulary of {size} tokens does not hold the {len(letters)} different letters of "
            f"the texts; want at least {len(base)}. Raise encoder.vocabulary_size"
        )
    frequent = sorted(count_by_word, key=lambda word: (-count_by_word[word], word))
    tokens = [*base, *(word for word in frequent if len(word) > 1)][:size]
    id_by_token = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.WordPiece(
            id_by_token, unk_token="[UNK]", max_input_chars_per_word=MAX_LETTERS_PER_WORD
        )
    )
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, id_by_token[token]) for token in ("[CLS]", "[SEP]")],
    )
    return _fast_tokenizer(tokenizer, max_tokens)


def build_character_tokenizer(words: Iterable[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of single lower-cased letters: the blank and those of ``words``.

    Letters are in the order of Unicode. A text begins with [CLS] and has no token at its end, as in
    SPPT's synthetic experiments (McDermott et al. 2023).
    """
    letters = sorted({" "}.union(*(word.lower() for word in words)))
    id_by_token = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *letters])}
    tokenizer = Tokenizer(models.WordLevel(id_by_token, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", id_by_token["[CLS]"])]
    )
    return _fast_tokenizer(tokenizer, max_tokens=512)


def _fast_tokenizer(tokenizer: Tokenizer, max_tokens: int) -> PreTrainedTokenizerFast:
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_tokens,
        **dict(zip(names, SPECIAL_TOKENS, strict=True)),
    )


def _count(
    pairs: Iterable[tuple[str, int]],
    normalizer: normalizers.Normalizer,
    splitter: pre_tokenizers.PreTokenizer,
) -> Counter[str]:
    count_by_word: Counter[str] = Counter()
    for word, count in pairs:
        for piece, _ in splitter.pre_tokenize_str(normalizer.normalize_str(word)):
            if len(piece) <= MAX_LETTERS_PER_WORD:
                count_by_word[piece] += int(count)
    return count_by_word
