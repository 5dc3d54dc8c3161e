"""Insert entity markers."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

NOT_READ = -1


_OPENS, _WORD, _CLOSES = 0, 1, 2


class TextTokens(NamedTuple):
    """The tokens of a text, without special ones, and the characters that each was made of: [start, end)."""

    id_T: np.ndarray
    start_T: np.ndarray
    end_T: np.ndarray


@dataclass(frozen=True)
class Markers:
    """Token ids that are no words.

    Attributes:
        prefix_ids: before a text.
        suffix_ids: behind it.
        opening_id: before a mention.
        closing_id: behind it.
        blank_id: in the place of the words of a blanked mention.
        mask_id: in the place of a word to be guessed.
    """

    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    opening_id: int
    closing_id: int
    blank_id: int
    mask_id: int


@dataclass(frozen=True)
class MarkedDocument:
    """A document's tokens.

    Attributes:
        id_S: token ids, special ones included.
        position_M: where the marker that opens each mention stands; ``NOT_READ`` for mentions that were cut away.
        is_plain_S: True at words outside of all mentions: what masked language modelling may hide.
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
    """Put markers around mentions, and one blank in the place of the words of those to be blanked.

    A mention spans all tokens that share a character with it; mentions may lie in one another. What is too long loses
    its end.

    Args:
        tokens: of the text.
        start_M: first character of each mention.
        end_M: the one behind its last.
        is_blank_M: which mentions are blanked.
        markers: the encoder's.
        max_tokens: most tokens of the result.
    """
    first_M = np.searchsorted(tokens.end_T, start_M, side="right")
    behind_M = np.searchsorted(tokens.start_T, end_M, side="left")
    is_there_M = behind_M > first_M
    number_M = np.flatnonzero(is_there_M)
    first_K, behind_K, is_blank_K = first_M[number_M], behind_M[number_M], is_blank_M[number_M]
    id_T, is_kept_T, is_inside_T = (
        tokens.id_T.astype(np.int64),
        *_covered(len(tokens.id_T), first_K, behind_K, is_blank_K),
    )
    id_T[first_K[is_blank_K]] = markers.blank_id
    is_kept_T[first_K[is_blank_K]] = True
    word_W = np.flatnonzero(is_kept_T)
    # Outer mentions open first and close last.
    place = np.concatenate([first_K, word_W, behind_K - 1])
    kind = np.repeat([_OPENS, _WORD, _CLOSES], [len(first_K), len(word_W), len(first_K)])
    depth = np.concatenate([-behind_K, np.zeros(len(word_W), np.int64), -first_K])
    order_S = np.lexsort((np.concatenate([number_M, word_W, -number_M]), depth, kind, place))
    opening_K, closing_K = (
        np.full(len(first_K), markers.opening_id),
        np.full(len(first_K), markers.closing_id),
    )
    id_S = np.concatenate([opening_K, id_T[word_W], closing_K])[order_S]
    no_word_K = np.zeros(len(first_K), dtype=bool)
    is_plain_S = np.concatenate([no_word_K, ~is_inside_T[word_W], no_word_K])[order_S]
    position_M = np.full(len(start_M), NOT_READ, dtype=np.int64)
    rank_S = np.empty(len(order_S), dtype=np.int64)
    rank_S[order_S] = np.arange(len(order_S))
    position_M[number_M] = rank_S[: len(first_K)] + len(markers.prefix_ids)
    room = max_tokens - len(markers.prefix_ids) - len(markers.suffix_ids)
    position_M[position_M >= room + len(markers.prefix_ids)] = NOT_READ
    outside = np.zeros(len(markers.prefix_ids), bool), np.zeros(len(markers.suffix_ids), bool)
    return MarkedDocument(
        id_S=np.concatenate([markers.prefix_ids, id_S[:room], markers.suffix_ids]).astype(np.int64),
        position_M=position_M,
        is_plain_S=np.concatenate([outside[0], is_plain_S[:room], outside[1]]),
    )


def _covered(
    num_tokens: int, first_K: np.ndarray, behind_K: np.ndarray, is_blank_K: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens no blanked mention covers, and which any mention covers."""

    def covered(chosen_K: np.ndarray) -> np.ndarray:
        change = np.bincount(first_K[chosen_K], minlength=num_tokens + 1)
        change -= np.bincount(behind_K[chosen_K], minlength=num_tokens + 1)
        return np.cumsum(change)[:num_tokens] > 0

    return ~covered(is_blank_K), covered(np.ones(len(first_K), dtype=bool))
