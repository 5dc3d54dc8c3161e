"""Texts to token ids, many at once, in any process.

Shape letters: R texts, T tokens of all texts end to end.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np
from tokenizers import Encoding, Tokenizer

from raybio.core.batch import TokenBatch
from raybio.core.errors import ConfigError
from raybio.ops.segments import indptr_from_lengths

if TYPE_CHECKING:
    # For annotations only: processes that collate do not import transformers.
    from transformers import PreTrainedTokenizerFast

TEXTS_AT_ONCE = 4096

BYTES_PER_TOKEN = 4
"""Approximate number of bytes of text per token."""

# A fork of a process that has tokenized in parallel would warn, and then set exactly this.
os.register_at_fork(after_in_child=lambda: os.environ.setdefault("TOKENIZERS_PARALLELISM", "false"))


@dataclass(frozen=True)
class TokenizerSource:
    """A tokenizer as plain text: small to pickle, and built once in each process that uses it.

    Attributes:
        json: JSON of the Rust tokenizer, without truncation and padding.
        pad_id: token id of padding, None if it has none.
        mask_id: token id of the mask, None if it has none.
        special_ids: ids of all special tokens, ascending.
        vocabulary_size: one more than the largest token id.
        cut: the side at which longer texts are cut.
    """

    json: str
    pad_id: int | None
    mask_id: int | None
    special_ids: tuple[int, ...]
    vocabulary_size: int
    cut: Literal["left", "right"] = "right"

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerFast") -> "TokenizerSource":
        """Return the source of a ``transformers`` tokenizer."""
        return cls(
            json=_canonical_json(tokenizer.backend_tokenizer),
            pad_id=tokenizer.pad_token_id,
            mask_id=tokenizer.mask_token_id,
            special_ids=tuple(sorted(tokenizer.all_special_ids)),
            vocabulary_size=_vocabulary_size(tokenizer.backend_tokenizer),
            cut=tokenizer.truncation_side,
        )

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits of everything that determines tokens, except cut and padding."""
        return hashlib.sha256(f"{self.json}\n{list(self.special_ids)}".encode()).hexdigest()

    def identity(self, max_length: int) -> str:
        """Return what determines the tokens of texts that are cut to ``max_length``."""
        return f"tokenizer {self.fingerprint}, {max_length} tokens, cut {self.cut}"

    def tokenize(
        self, texts: Sequence[str], max_length: int, *, keep_mask: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return token ids of texts, each cut to ``max_length`` tokens with its special ones kept.

        Several threads may call it.

        Args:
            texts: the texts.
            max_length: maximum tokens of a text, special ones included.
            keep_mask: cut a text that would lose its mask token at the other side, or at both.

        Returns:
            tokens (T,), uint16 where the vocabulary fits and else int32, and row pointers (R + 1,),
            int64.

        Raises:
            ValueError: if ``max_length`` leaves no room for a word.
        """
        backend = _ready_tokenizer(self.json, max_length, self.cut)
        as_kept = partial(self._around_mask, max_length=max_length) if keep_mask else None
        return _encode(backend, texts, self.vocabulary_size, as_kept)

    def _around_mask(self, text: str, cut: Encoding, max_length: int) -> Encoding:
        """Return the part of a text around its mask if ``cut`` lacks the mask, else ``cut``."""
        mask = self.mask_id
        if mask is None or mask in cut.ids:
            return cut
        if not any(mask in part.ids for part in cut.overflowing):
            return cut
        other_side = "left" if self.cut == "right" else "right"
        # Windows overlap by half: in one of them, a mask far from both ends has words on both
        # sides.
        whole = _ready_tokenizer(self.json, max_length, other_side, overlap=True).encode(text)
        windows = [part for part in (whole, *whole.overflowing) if mask in part.ids]

        def distance_to_end(part: Encoding) -> int:
            return min(part.ids.index(mask), part.ids[::-1].index(mask))

        return max(windows, key=distance_to_end)


def _canonical_json(backend: Tokenizer) -> str:
    # Truncation and padding are leftovers of the last call.
    content = json.loads(backend.to_str()) | {"truncation": None, "padding": None}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _vocabulary_size(backend: Tokenizer) -> int:
    return max(backend.get_vocab(with_added_tokens=True).values()) + 1


@lru_cache(maxsize=16)
def _ready_tokenizer(
    source_json: str, max_length: int, cut: str, overlap: bool = False
) -> Tokenizer:
    backend = Tokenizer.from_str(source_json)
    num_special = backend.num_special_tokens_to_add(False)
    if max_length <= num_special:
        raise ValueError(
            f"max_length is {max_length}; want more than the {num_special} special tokens of each "
            "text"
        )
    stride = (max_length - num_special) // 2 if overlap else 0
    backend.enable_truncation(max_length, stride=stride, direction=cut)
    return backend


def _encode(
    backend: Tokenizer,
    texts: Sequence[str],
    vocabulary_size: int,
    as_kept: Callable[[str, Encoding], Encoding] | None,
) -> tuple[np.ndarray, np.ndarray]:
    dtype = np.uint16 if vocabulary_size <= 1 << 16 else np.int32
    tokens = [np.empty(0, dtype)]
    lengths: list[int] = []
    # Tokenize in parts, since an encoding takes a hundred times the memory of its ids.
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        part = list(texts[start : start + TEXTS_AT_ONCE])
        encodings = backend.encode_batch_fast(part)
        if as_kept is not None:
            for number, encoding in enumerate(encodings):
                if encoding.overflowing:
                    encodings[number] = as_kept(part[number], encoding)
        sizes = [len(encoding) for encoding in encodings]
        ids = chain.from_iterable(encoding.ids for encoding in encodings)
        tokens.append(np.fromiter(ids, dtype, count=sum(sizes)))
        lengths += sizes
    indptr_R1 = indptr_from_lengths(lengths)
    return np.concatenate(tokens), indptr_R1


@dataclass(frozen=True)
class OffsetTokenizer:
    """A tokenizer as plain text that returns the characters of each token.

    Attributes:
        json: JSON of the Rust tokenizer.
        special_ids: ids of all special tokens and markers, ascending.
    """

    json: str
    special_ids: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerFast") -> "OffsetTokenizer":
        """Return the source of a ``transformers`` tokenizer."""
        backend = tokenizer.backend_tokenizer
        added = {
            number for number, token in backend.get_added_tokens_decoder().items() if token.special
        }
        return cls(_canonical_json(backend), tuple(sorted({*tokenizer.all_special_ids, *added})))

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits of everything that determines the tokens of a text."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """Ids of all tokens that are not special, ascending."""
        return np.setdiff1d(
            list(_plain_tokenizer(self.json).get_vocab().values()), self.special_ids
        )

    def __call__(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokenize one text without special tokens.

        Returns:
            Token ids (T,), the first character of each (T,), and the end of each (T,), exclusive.
        """
        encoding = _plain_tokenizer(self.json).encode(text, add_special_tokens=False)
        span_T2 = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return np.array(encoding.ids, dtype=np.int64), span_T2[:, 0], span_T2[:, 1]


def word_pieces(
    tokenizer: "PreTrainedTokenizerFast", words: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens of single words inside a text: ids end to end, pointers (V + 1,), both int64.

    A word without any token (a control character, for example) becomes the unknown word.

    Raises:
        ConfigError: for such a word, if the tokenizer has no unknown word.
    """
    backend = _plain_tokenizer(_canonical_json(tokenizer.backend_tokenizer))
    # Byte-level tokenizers mark the beginning of a word by the blank before it.
    encodings = backend.encode_batch([f" {word}" for word in words], add_special_tokens=False)
    ids = []
    for word, encoding in zip(words, encodings, strict=True):
        if not encoding.ids and tokenizer.unk_token_id is None:
            raise ConfigError(
                f"encoder.source: its tokenizer leaves nothing of the word {word!r} and has no "
                "unknown word; want a tokenizer that has, or sentences without that word"
            )
        ids.append(encoding.ids or [tokenizer.unk_token_id])
    token_ids = np.array(list(chain.from_iterable(ids)), np.int64)
    indptr_V1 = np.cumsum([0, *map(len, ids)], dtype=np.int64)
    return token_ids, indptr_V1


def special_ids_around(
    tokenizer: "PreTrainedTokenizerFast",
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special tokens that a tokenizer puts before a text and after it."""
    # Use a plain copy: the tokenizer itself still pads and cuts as in its last call.
    backend = _plain_tokenizer(_canonical_json(tokenizer.backend_tokenizer))
    whole = backend.encode("a").ids
    word = backend.encode("a", add_special_tokens=False).ids
    for start in range(len(whole)):
        if whole[start : start + len(word)] == word:
            return tuple(whole[:start]), tuple(whole[start + len(word) :])
    raise AssertionError("a tokenizer changed the tokens of a text by adding special ones")


@lru_cache(maxsize=4)
def _plain_tokenizer(source_json: str) -> Tokenizer:
    backend = Tokenizer.from_str(source_json)
    # A special token that occurs in a text by chance is not special.
    backend.encode_special_tokens = True
    return backend


Tokenize = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]
"""texts -> tokens (T,) and row pointers (R + 1,), special tokens included; picklable."""


def read_texts(texts: Sequence[str], tokenize: Tokenize) -> TokenBatch:
    """Return a batch of texts to embed, without labels."""
    token_T, indptr_R1 = tokenize(texts)
    return TokenBatch.from_numpy(token_T, indptr_R1)
