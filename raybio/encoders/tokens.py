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

if TYPE_CHECKING:  # collating processes need no transformers
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
            keep_mask: a text that would lose its mask token is cut at the other side, or at both, instead.

        Returns:
            tokens (T,), uint16 where the vocabulary fits and else int32, and row pointers (R + 1,), int64.

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
        # Windows overlap by half, so that a mask far from both ends has words on both sides in one of them.
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
def _ready_tokenizer(source_json: str, max_length: int, cut: str, overlap: bool = False) -> Tokenizer:
    backend = Tokenizer.from_str(source_json)
    num_special = backend.num_special_tokens_to_add(False)
    if max_length <= num_special:
        raise ValueError(f"max_length is {max_length}; want more than the {num_special} special tokens of each text")
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
                as_kept(*pair) if pair[1].overflowing else pair[1] for pair in zip(part, encodings, strict=True)
            ]
        sizes = [len(encoding) for encoding in encodings]
        ids = chain.from_iterable(encoding.ids for encoding in encodings)
        tokens.append(np.fromiter(ids, dtype, count=sum(sizes)))
        lengths += sizes
    indptr_R1 = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.concatenate(tokens), indptr_R1


@dataclass(frozen=True)
class DocumentTokenizer:
    """A tokenizer that says which characters its tokens were made of, and knows the markers of mentions.

    Attributes:
        json: the Rust tokenizer's own JSON.
        prefix_ids: special tokens before a text.
        suffix_ids: special tokens behind it.
        opening_id: marker before a mention.
        closing_id: marker behind it.
        blank_id: what stands for the words of a blanked mention.
        mask_id: token id of a masked word.
    """

    json: str
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    opening_id: int
    closing_id: int
    blank_id: int
    mask_id: int

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerFast", opening: str, closing: str, blank: str) -> "DocumentTokenizer":
        """The source of a ``transformers`` tokenizer that has these markers."""
        backend = tokenizer.backend_tokenizer
        word = backend.encode("a", add_special_tokens=False).ids
        around = backend.encode("a").ids
        first = next(place for place in range(len(around)) if around[place : place + len(word)] == word)
        return cls(
            json=_canonical_json(backend),
            prefix_ids=tuple(around[:first]),
            suffix_ids=tuple(around[first + len(word) :]),
            opening_id=tokenizer.convert_tokens_to_ids(opening),
            closing_id=tokenizer.convert_tokens_to_ids(closing),
            blank_id=tokenizer.convert_tokens_to_ids(blank),
            mask_id=tokenizer.mask_token_id,
        )

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits that change with anything that changes the tokens of a text."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """Ids of all tokens that texts are made of, for random replacements."""
        vocabulary = _plain_tokenizer(self.json).get_vocab(with_added_tokens=False)
        special = {self.mask_id, *self.prefix_ids, *self.suffix_ids, self.opening_id, self.closing_id, self.blank_id}
        return np.array(sorted(set(vocabulary.values()) - special))

    def __call__(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token ids (T,) without special tokens, first character and the one behind the last of each (T,)."""
        encoding = _plain_tokenizer(self.json).encode(text, add_special_tokens=False)
        span_T2 = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return np.array(encoding.ids, dtype=np.int64), span_T2[:, 0], span_T2[:, 1]


@lru_cache(maxsize=4)
def _plain_tokenizer(source_json: str) -> Tokenizer:
    backend = Tokenizer.from_str(source_json)
    # A marker that a text happens to hold is no marker.
    backend.encode_special_tokens = True
    return backend
