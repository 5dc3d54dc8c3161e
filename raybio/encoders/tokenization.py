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
import torch
from tokenizers import (
    Encoding,
    Tokenizer,
)

from raybio.core.batch import IGNORED_LABEL, TokenBatch
from raybio.core.errors import ConfigError

if TYPE_CHECKING:
    # Only for annotations: processes that collate do without transformers.
    from transformers import PreTrainedTokenizerFast

TEXTS_AT_ONCE = 4096


# A fork of a process that has tokenised in parallel would warn, and then do what is asked for here.
os.register_at_fork(after_in_child=lambda: os.environ.setdefault("TOKENIZERS_PARALLELISM", "false"))


@dataclass(frozen=True)
class TokenizerSource:
    """A tokenizer as plain text: small to pickle, and built once in each process that uses it.

    Attributes:
        json: the Rust tokenizer's own JSON, without truncation and padding.
        pad_id: token id of padding, None if it has none.
        mask_id: token id of a masked word, None if it has none.
        special_ids: ids of all special tokens, ascending.
        vocabulary_size: one more than the largest token id.
        cut: the side at which texts that are too long lose tokens.
    """

    json: str
    pad_id: int | None
    mask_id: int | None
    special_ids: tuple[int, ...]
    vocabulary_size: int
    cut: Literal["left", "right"] = "right"

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerFast") -> "TokenizerSource":
        """The source of a ``transformers`` tokenizer."""
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
        """64 hex digits that change with anything that changes the tokens of a text, cutting and padding excepted."""
        return hashlib.sha256(f"{self.json}\n{list(self.special_ids)}".encode()).hexdigest()

    def tokenise(
        self, texts: Sequence[str], max_length: int, *, keep_mask: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of ``texts``, each cut to ``max_length`` tokens with its special tokens kept.

        May be called by several threads.

        Args:
            texts: what to read.
            max_length: most tokens of a text, special ones included.
            keep_mask: a text that would lose its mask token is cut at the other side, or at both,
                instead.

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
        """What is kept of a text whose mask is not in ``cut``; ``cut`` itself if it has none."""
        mask = self.mask_id
        if mask is None or mask in cut.ids or not any(mask in part.ids for part in cut.overflowing):
            return cut
        other_side = "left" if self.cut == "right" else "right"
        # Windows overlap by half, so that a mask far from both ends has words on both sides in one
        # of them.
        whole = _ready_tokenizer(self.json, max_length, other_side, overlap=True).encode(text)
        windows = [part for part in (whole, *whole.overflowing) if mask in part.ids]
        return max(windows, key=lambda part: min(part.ids.index(mask), part.ids[::-1].index(mask)))


def _canonical_json(backend: Tokenizer) -> str:
    # Truncation and padding are what the last call left there.
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
    tokens, lengths = [np.empty(0, dtype)], []
    # In parts, because an encoding takes a hundred times the memory of its ids.
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        part = list(texts[start : start + TEXTS_AT_ONCE])
        encodings = backend.encode_batch_fast(part)
        if as_kept is not None:
            encodings = [
                as_kept(*pair) if pair[1].overflowing else pair[1]
                for pair in zip(part, encodings, strict=True)
            ]
        sizes = [len(encoding) for encoding in encodings]
        ids = chain.from_iterable(encoding.ids for encoding in encodings)
        tokens.append(np.fromiter(ids, dtype, count=sum(sizes)))
        lengths += sizes
    indptr_R1 = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.concatenate(tokens), indptr_R1


@dataclass(frozen=True)
class OffsetTokenizer:
    """A tokenizer as plain text that says which characters its tokens were made of.

    Attributes:
        json: the Rust tokenizer's own JSON.
        special_ids: ids of all special tokens and markers, ascending.
    """

    json: str
    special_ids: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerFast") -> "OffsetTokenizer":
        """The source of a ``transformers`` tokenizer."""
        backend = tokenizer.backend_tokenizer
        added = {
            number for number, token in backend.get_added_tokens_decoder().items() if token.special
        }
        return cls(_canonical_json(backend), tuple(sorted({*tokenizer.all_special_ids, *added})))

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits that change with anything that changes the tokens of a text."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """Ids of all tokens that texts are made of, ascending."""
        return np.setdiff1d(
            list(_plain_tokenizer(self.json).get_vocab().values()), self.special_ids
        )

    def __call__(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token ids (T,) without special tokens, first character and the one behind the last of each (T,)."""
        encoding = _plain_tokenizer(self.json).encode(text, add_special_tokens=False)
        span_T2 = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return np.array(encoding.ids, dtype=np.int64), span_T2[:, 0], span_T2[:, 1]


def word_pieces(
    tokenizer: "PreTrainedTokenizerFast", words: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of single words, as they stand inside a text: token ids end to end, and pointers (V + 1,), both int64.

    A word of which the tokenizer leaves nothing (a control character, say) is an unknown word.

    Raises:
        ConfigError: for such a word, if the tokenizer has no unknown word.
    """
    backend = _plain_tokenizer(_canonical_json(tokenizer.backend_tokenizer))
    # Behind a blank: tokenizers of bytes know a word's beginning by it.
    encodings = backend.encode_batch([f" {word}" for word in words], add_special_tokens=False)
    empty = next(
        (word for word, encoding in zip(words, encodings, strict=True) if not encoding.ids), None
    )
    if empty is not None and tokenizer.unk_token_id is None:
        raise ConfigError(
            f"encoder.source: its tokenizer leaves nothing of the word {empty!r} and has no "
            "unknown word; want a tokenizer that has, or sentences without that word"
        )
    ids = [encoding.ids or [tokenizer.unk_token_id] for encoding in encodings]
    return np.array(list(chain.from_iterable(ids)), np.int64), np.cumsum(
        [0, *map(len, ids)], dtype=np.int64
    )


def special_ids_around(
    tokenizer: "PreTrainedTokenizerFast",
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that a tokenizer puts before a text and behind it."""
    # Of the plain one: the tokenizer's own pads and cuts as it was last told to.
    backend = _plain_tokenizer(_canonical_json(tokenizer.backend_tokenizer))
    whole, word = backend.encode("a").ids, backend.encode("a", add_special_tokens=False).ids
    first = next(place for place in range(len(whole)) if whole[place : place + len(word)] == word)
    return tuple(whole[:first]), tuple(whole[first + len(word) :])


@lru_cache(maxsize=4)
def _plain_tokenizer(source_json: str) -> Tokenizer:
    backend = Tokenizer.from_str(source_json)
    # A marker that a text happens to hold is no marker.
    backend.encode_special_tokens = True
    return backend


Tokenise = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]
"""texts -> tokens (T,) and row pointers (R + 1,), special tokens included; picklable."""


def read_texts(texts: Sequence[str], tokenise: Tokenise) -> TokenBatch:
    """Texts for embedding."""
    token_T, indptr_R1 = tokenise(texts)
    return TokenBatch(
        token_T=torch.from_numpy(token_T.astype(np.int64)),
        indptr_R1=torch.from_numpy(indptr_R1.astype(np.int64)),
        label_T=torch.full((len(token_T),), IGNORED_LABEL),
    )
