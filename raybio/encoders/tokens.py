"""Texts to token ids, many at once, in any process.

Shape letters: R texts, T tokens of all texts end to end.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np
from tokenizers import Tokenizer

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

    def tokenise(self, texts: Sequence[str], max_length: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of ``texts``, each cut to ``max_length`` tokens with its special tokens kept.

        May be called by several threads.

        Args:
            texts: what to read.
            max_length: most tokens of a text, special ones included.

        Returns:
            tokens (T,), uint16 where the vocabulary fits and else int32, and row pointers (R + 1,), int64.

        Raises:
            ValueError: if ``max_length`` leaves no room for a word.
        """
        return _encode(_ready_tokenizer(self.json, max_length, self.cut), texts, self.vocabulary_size)


def _canonical_json(backend: Tokenizer) -> str:
    # Truncation and padding are what the last call left there.
    content = json.loads(backend.to_str()) | {"truncation": None, "padding": None}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _vocabulary_size(backend: Tokenizer) -> int:
    return max(backend.get_vocab(with_added_tokens=True).values()) + 1


@lru_cache(maxsize=16)
def _ready_tokenizer(source_json: str, max_length: int, cut: str) -> Tokenizer:
    backend = Tokenizer.from_str(source_json)
    num_special = backend.num_special_tokens_to_add(False)
    if max_length <= num_special:
        raise ValueError(f"max_length is {max_length}; want more than the {num_special} special tokens of each text")
    backend.enable_truncation(max_length, direction=cut)
    return backend


def _encode(backend: Tokenizer, texts: Sequence[str], vocabulary_size: int) -> tuple[np.ndarray, np.ndarray]:
    dtype = np.uint16 if vocabulary_size <= 1 << 16 else np.int32
    tokens, lengths = [np.empty(0, dtype)], []
    # In parts, because an encoding takes a hundred times the memory of its ids.
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        encodings = backend.encode_batch_fast(list(texts[start : start + TEXTS_AT_ONCE]))
        sizes = [len(encoding) for encoding in encodings]
        ids = chain.from_iterable(encoding.ids for encoding in encodings)
        tokens.append(np.fromiter(ids, dtype, count=sum(sizes)))
        lengths += sizes
    indptr_R1 = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.concatenate(tokens), indptr_R1
