"""Insert entity markers around mentions, and replace blanked mentions by one [BLANK] token.

Shape letters: T tokens of a text, M mentions, K mentions with a token, W kept tokens, S tokens of
the result.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

NOT_READ = -1
"""Position of a mention that was truncated, or has no token."""

_OPENS = 0
_WORD = 1
_CLOSES = 2


class TextTokens(NamedTuple):
    """The tokens of a text, without special ones.

    Attributes:
        id_T: token ids.
        start_T: first character of each token.
        end_T: end of each token (exclusive).
    """

    id_T: np.ndarray
    start_T: np.ndarray
    end_T: np.ndarray


@dataclass(frozen=True)
class Markers:
    """Special token ids.

    Attributes:
        prefix_ids: ids before a text.
        suffix_ids: ids after a text.
        opening_id: id before a mention.
        closing_id: id after a mention.
        blank_id: replaces the tokens of a blanked mention.
        mask_id: replaces a token to be predicted.
    """

    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    opening_id: int
    closing_id: int
    blank_id: int
    mask_id: int


@dataclass(frozen=True)
class MarkedDocument:
    """The tokens of a document with markers.

    Attributes:
        id_S: token ids, special ones included.
        position_M: position of each mention's opening marker, or ``NOT_READ``.
        is_plain_S: True for tokens outside all mentions, which may be masked.
    """

    id_S: np.ndarray
    position_M: np.ndarray
    is_plain_S: np.ndarray


def insert_markers(
    tokens: TextTokens,
    start_M: np.ndarray,
    end_M: np.ndarray,
    is_blank_M: np.ndarray,
    markers: Markers,
    max_tokens: int,
) -> MarkedDocument:
    """Insert markers around mentions, and replace the tokens of blanked ones by a single token.

    A mention covers all tokens that share a character with it. Mentions may be nested. Documents
    that are too long are truncated at their end.

    Args:
        tokens: tokens of the text.
        start_M: first character of each mention.
        end_M: end of each mention (exclusive).
        is_blank_M: whether each mention is blanked.
        markers: special token ids.
        max_tokens: maximum number of tokens of the result.
    """
    first_M = np.searchsorted(tokens.end_T, start_M, side="right")
    behind_M = np.searchsorted(tokens.start_T, end_M, side="left")
    number_K = np.flatnonzero(behind_M > first_M)
    first_K = first_M[number_K]
    behind_K = behind_M[number_K]
    is_blank_K = is_blank_M[number_K]
    num_tokens = len(tokens.id_T)
    num_mentions = len(number_K)

    # Blank: keep one token of the mention, and replace it.
    id_T = tokens.id_T.astype(np.int64)
    is_kept_T = ~_is_covered(num_tokens, first_K[is_blank_K], behind_K[is_blank_K])
    id_T[first_K[is_blank_K]] = markers.blank_id
    is_kept_T[first_K[is_blank_K]] = True
    is_inside_T = _is_covered(num_tokens, first_K, behind_K)
    word_W = np.flatnonzero(is_kept_T)

    # Sort opening markers, words and closing markers by position; outer mentions open first and
    # close last.
    position = np.concatenate([first_K, word_W, behind_K - 1])
    kind = np.repeat([_OPENS, _WORD, _CLOSES], [num_mentions, len(word_W), num_mentions])
    nesting = np.concatenate([-behind_K, np.zeros(len(word_W), np.int64), -first_K])
    tie_breaker = np.concatenate([number_K, word_W, -number_K])
    order_S = np.lexsort((tie_breaker, nesting, kind, position))
    opening_K = np.full(num_mentions, markers.opening_id)
    closing_K = np.full(num_mentions, markers.closing_id)
    id_S = np.concatenate([opening_K, id_T[word_W], closing_K])[order_S]
    no_word_K = np.zeros(num_mentions, dtype=bool)
    is_plain_S = np.concatenate([no_word_K, ~is_inside_T[word_W], no_word_K])[order_S]

    # Opening markers come first in the unsorted order, so their ranks are their positions.
    rank_S = np.empty(len(order_S), dtype=np.int64)
    rank_S[order_S] = np.arange(len(order_S))
    num_prefix = len(markers.prefix_ids)
    num_suffix = len(markers.suffix_ids)
    room = max_tokens - num_prefix - num_suffix
    position_M = np.full(len(start_M), NOT_READ, dtype=np.int64)
    position_M[number_K] = rank_S[:num_mentions] + num_prefix
    position_M[position_M >= room + num_prefix] = NOT_READ
    return MarkedDocument(
        id_S=np.concatenate([markers.prefix_ids, id_S[:room], markers.suffix_ids]).astype(np.int64),
        position_M=position_M,
        is_plain_S=np.concatenate(
            [np.zeros(num_prefix, bool), is_plain_S[:room], np.zeros(num_suffix, bool)]
        ),
    )


def _is_covered(num_tokens: int, first_K: np.ndarray, behind_K: np.ndarray) -> np.ndarray:
    """Return which tokens lie in one of the spans [first, behind), bool (T,)."""
    change = np.bincount(first_K, minlength=num_tokens + 1)
    change -= np.bincount(behind_K, minlength=num_tokens + 1)
    return np.cumsum(change)[:num_tokens] > 0
