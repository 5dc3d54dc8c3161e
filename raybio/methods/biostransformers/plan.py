"""Plan of BioSTransformers: the (text, MeSH term) pairs of each step.

A text must not be contrasted with a term of its own article: for all pairs i != j of a global
batch, term j is not among the terms of article i.

- ``mask`` takes the pairs in shuffled order; the loss ignores such candidates.
- ``reject`` is the authors' greedy filling, made resumable. The stream of pairs is cut into windows
  of some steps. A pair that conflicts with its own batch moves to the next batch of the window that
  it fits. Pairs that fit nowhere fill the remaining slots and are masked. (A batch holds at most
  one pair of a term, and nearly every article has the term Humans.)
- ``drop`` is the authors' greedy filling as it is: pairs in shuffled order fill a batch, and a pair
  that conflicts with its batch is lost. Rare terms are seen more often than frequent ones. A batch
  that cannot be filled because of its first pairs starts again one pair later.

So every batch is full, and the batch of a step depends on the step number only. With ``mask`` and
``reject`` every epoch holds each pair exactly once.

Shape letters: P training pairs, B pairs of a step, W pairs of a window, K batches of a window, E
(article, term) entries, C columns of pairs.
"""

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import numpy as np

from raybio.core.cache import shared_array
from raybio.core.errors import ConfigError, DataError
from raybio.core.randomness import derive_seed, shuffled_epochs
from raybio.methods.biostransformers.batch_starts import BatchStarts
from raybio.methods.biostransformers.config import PairPlanConfig
from raybio.methods.biostransformers.pair_index import PairIndex
from raybio.methods.biostransformers.store import ArticleStore
from raybio.ops.segments import indptr_from_lengths

CHECK_TAGS = frozenset(
    [
        "Adolescent", "Adult", "Aged", "Aged, 80 and over", "Animals", "Cats", "Cattle",
        "Chick Embryo", "Child", "Child, Preschool", "Cricetinae", "Dogs", "Female", "Guinea Pigs",
        "Humans", "Infant", "Infant, Newborn", "Male", "Mice", "Middle Aged", "Pregnancy",
        "Rabbits", "Rats", "Swine", "Young Adult",
    ]
)  # fmt: skip
"""Terms that indexers consider for every article, too frequent to characterize one."""

PLAN_VERSION = "1"
"""Raised whenever ``reject`` or ``drop`` fills batches differently: caches keep older versions."""

MAX_OFFERS = 1_000_000
"""Pairs that ``drop`` offers to a batch, over all of its starts; always two epochs of one start."""

MIN_SHARED_PAIRS = 4096
"""Smaller windows are planned in milliseconds, by each process."""


@dataclass(frozen=True)
class StepPairs:
    """The pairs of a step's global batch.

    Attributes:
        article_B: store rows.
        field_B: index of the text in the plan's fields.
        term_B: term numbers.
        was_deferred_B: whether the pair did not fit its own batch.
        is_forced_B: whether the pair conflicts with others of its batch; the loss masks it.
        num_dropped_B: pairs of the stream that were dropped just before this one.
    """

    article_B: np.ndarray
    field_B: np.ndarray
    term_B: np.ndarray
    was_deferred_B: np.ndarray
    is_forced_B: np.ndarray
    num_dropped_B: np.ndarray

    def __len__(self) -> int:
        """Return B."""
        return len(self.article_B)

    def take(self, which: Any) -> "StepPairs":
        """Return some of the pairs, by any numpy index."""
        return StepPairs(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    @property
    def columns(self) -> np.ndarray:
        """All attributes in their order, int64 (C, B)."""
        return np.stack([getattr(self, name) for name in self.__dataclass_fields__]).astype(
            np.int64
        )

    @classmethod
    def from_columns(cls, column_CB: np.ndarray) -> "StepPairs":
        """Return the pairs with these ``columns``."""
        article_B, field_B, term_B, was_deferred_B, is_forced_B, num_dropped_B = column_CB
        return cls(
            article_B,
            field_B,
            term_B,
            was_deferred_B.astype(bool),
            is_forced_B.astype(bool),
            num_dropped_B,
        )


@dataclass(frozen=True)
class PairPlan:
    """Training pairs by step.

    Attributes:
        store: articles and their terms.
        config: settings.
        seed: the run's seed.

    Raises:
        DataError: if the store has no training pair.
        ConfigError: if a batch is larger than an epoch.
    """

    store: ArticleStore
    config: PairPlanConfig
    seed: int
    _windows: dict[int, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.num_pairs == 0:
            fields = " or ".join(self.config.fields)
            raise DataError(
                f"{self.store.location}: no training article has a {fields} and a term "
                "that is allowed, want at least one pair"
            )
        if self.config.global_batch_rows > self.num_pairs:
            raise ConfigError(
                f"plan.global_batch_rows is {self.config.global_batch_rows}, but there are only "
                f"{self.num_pairs:,} training pairs: give --set "
                f"plan.global_batch_rows={self.num_pairs} or less"
            )

    @property
    def num_pairs(self) -> int:
        """Number of pairs of an epoch (P)."""
        return int(self._bounds[-1])

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps with as many pairs as an epoch.

        With ``drop``, these steps use more than an epoch of the stream, since some are dropped.
        """
        return self.num_pairs / self.config.global_batch_rows

    def rows(self, step: int, *, is_shared: bool = False) -> StepPairs:
        """Return the pairs of the global batch of ``step``.

        Args:
            step: any step.
            is_shared: whether other processes of this machine want the same steps. Then one of them
                plans a window, and the others read it from the cache.

        Raises:
            ConfigError: with ``drop``, if an epoch of pairs does not fill a batch.
        """
        batch = self.config.global_batch_rows
        if self.config.conflicts == "mask":
            return self._stream(step * batch, (step + 1) * batch)
        if self.config.conflicts == "drop":
            start = self._starts.start(step)
            position_B = self._starts.positions(step)
            pairs = self._stream(position_B[0], position_B[-1] + 1).take(position_B - position_B[0])
            return replace(pairs, num_dropped_B=np.diff(position_B, prepend=start - 1) - 1)
        number, index = divmod(step, self.config.window_steps)
        if number not in self._windows:
            # Steps come in order, in blocks that may overlap two windows: keep the last two.
            while len(self._windows) > 1:
                del self._windows[min(self._windows)]
            if is_shared and self._window_pairs >= MIN_SHARED_PAIRS:
                window_CKB = shared_array(self._series, number, lambda: self._fill(number))
            else:
                window_CKB = self._fill(number)
            self._windows[number] = window_CKB
        return StepPairs.from_columns(self._windows[number][:, index])

    @property
    def _window_pairs(self) -> int:
        return self.config.window_steps * self.config.global_batch_rows

    @cached_property
    def _starts(self) -> BatchStarts:
        """With ``drop``: where in the stream the batches start."""
        return BatchStarts(self._series, self._fill_dropping)

    @cached_property
    def _series(self) -> str:
        """Name of the windows or starts in the cache, made of everything they depend on."""
        parts = [PLAN_VERSION, self.store.digest, self.config.model_dump_json(), str(self.seed)]
        return f"pairs-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}"

    def _fill(self, number: int) -> np.ndarray:
        """Return the columns of the pairs of each step of a window, int64 (C, K, B)."""
        num_steps = self.config.window_steps
        batch = self.config.global_batch_rows
        size = self._window_pairs
        pairs = self._stream(number * size, (number + 1) * size)
        chosen_KB, was_deferred_W, is_forced_W = fill_window(
            pairs.term_B.tolist(),
            self._indices[0].terms_of(pairs.article_B),
            num_steps,
            batch,
        )
        pairs = replace(pairs, was_deferred_B=was_deferred_W, is_forced_B=is_forced_W)
        return pairs.columns[:, chosen_KB]

    def _fill_dropping(self, start: int) -> np.ndarray:
        """Return the positions in the stream of the pairs (B,) of the batch that starts here.

        The first pairs of a batch may leave no room for the rest. Then it starts one pair later.
        """
        batch = self.config.global_batch_rows
        # This many consecutive pairs contain a whole epoch: pairs that have not fitted by then
        # never will.
        num_offered = 2 * self.num_pairs
        num_chosen = 0
        num_starts = max(1, min(self.num_pairs, MAX_OFFERS // num_offered))
        for begin in range(start, start + num_starts):
            filler = DroppingBatch(batch)
            first = begin
            while first < begin + num_offered:
                end = min(first + max(2 * batch, first - begin), begin + num_offered)
                pairs = self._stream(first, end)
                filler.offer(
                    pairs.article_B.tolist(),
                    pairs.term_B.tolist(),
                    self._indices[0].terms_of(pairs.article_B),
                )
                if filler.is_full:
                    return begin + np.array(filler.chosen, dtype=np.int64)
                first = end
            num_chosen = max(num_chosen, len(filler.chosen))
        raise ConfigError(
            f"plan.conflicts is drop, and only {num_chosen} of {self.num_pairs:,} pairs "
            f"fit into one batch without a conflict; plan.global_batch_rows is {batch}: make it "
            "smaller, set plan.stop_terms=check_tags, or take reject or mask"
        )

    def _stream(self, first: int, end: int) -> StepPairs:
        """Return these pairs of the endless stream of shuffled epochs."""
        size = end - first
        drawn_B = shuffled_epochs(
            first, size, num_rows=self.num_pairs, seed=self.seed, name="pairs"
        )
        false_B = np.zeros(size, dtype=bool)
        return StepPairs(*self._look_up(drawn_B), false_B, false_B, np.zeros(size, np.int64))

    def release(self) -> None:
        """Release the pages of a large store that steps have read."""
        for index in self._indices:
            index.columns.release()

    def _look_up(self, pair_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return article, field and term of each pair number."""
        field_B = np.searchsorted(self._bounds, pair_B, side="right") - 1
        article_B = np.empty(len(pair_B), dtype=np.int64)
        term_B = np.empty(len(pair_B), dtype=np.int64)
        for number, index in enumerate(self._indices):
            is_field_B = field_B == number
            articles, _, terms = index.look_up(pair_B[is_field_B] - self._bounds[number])
            article_B[is_field_B] = articles
            term_B[is_field_B] = terms
        return article_B, field_B, term_B

    @cached_property
    def _bounds(self) -> np.ndarray:
        """Pairs of field f have the numbers ``bounds[f]`` to ``bounds[f + 1] - 1``."""
        return indptr_from_lengths([len(index) for index in self._indices])

    @cached_property
    def _indices(self) -> list[PairIndex]:
        """The training pairs of each field."""
        is_stop_T = None
        if self.config.stop_terms == "check_tags":
            names = self.store.term_names.to_pylist()
            is_stop_T = np.array([name in CHECK_TAGS for name in names])
        indices = []
        for number, name in enumerate(self.config.fields):
            index = PairIndex(self.store, name, is_stop_T)
            if self.config.max_pairs_per_term is not None:
                key = derive_seed(self.seed, "cap", number)
                index = index.capped(self.config.max_pairs_per_term, key)
            indices.append(index)
        return indices


@lru_cache(maxsize=2)
def cached_plan(store: ArticleStore, config: PairPlanConfig, seed: int) -> PairPlan:
    """Return the plan, made once in each process: many collation tasks need it.

    It takes a pass over the store's pointers, and keeps a number for each 32 articles.
    """
    return PairPlan(store, config, seed)


def fill_window(
    term_W: list[int], terms_W: list[list[int]], num_batches: int, batch: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Assign the pairs of a window to batches, greedily without conflicts.

    A pair (article, term) fits a batch if its term is not among the terms of the batch's articles,
    and no term of its article is a term of the batch. So no article is twice in a batch: it has the
    terms of all of its pairs. Pairs of rare terms are assigned first: a pair of a term that nearly
    every article has would exclude nearly all others.

    Args:
        term_W: term of each pair, in the order of the stream: the own batch of pair w is
            ``w // batch``.
        terms_W: all terms of each pair's article; the pair's own is one of them.
        num_batches: K.
        batch: B; K * B is the number of pairs.

    Returns:
        The pairs of each batch (K, B), whether a pair is in another than its own batch (W,), and
        whether it fitted no batch (W,).
    """
    all_terms = np.fromiter(chain(term_W, *terms_W), np.int64)
    num_numbers = int(all_terms.max()) + 1
    num_articles_by_term = np.bincount(all_terms[len(term_W) :], minlength=num_numbers)
    order = np.argsort(num_articles_by_term[term_W], kind="stable").tolist()
    # Sets of batches are bits of an integer, so that the terms of a pair are read once instead of
    # once per batch.
    open_batches = (1 << num_batches) - 1
    with_target_T = [0] * num_numbers
    with_article_term_T = [0] * num_numbers
    pairs_K: list[list[int]] = [[] for _ in range(num_batches)]
    was_deferred = np.zeros(len(term_W), dtype=bool)
    is_forced = np.zeros(len(term_W), dtype=bool)
    unassigned = []
    for pair in order:
        target = term_W[pair]
        fits = open_batches & ~with_article_term_T[target]
        if fits:
            for term in terms_W[pair]:
                fits &= ~with_target_T[term]
        if not fits:
            unassigned.append(pair)
            continue
        own = pair // batch
        # Its own batch and those behind it come first.
        own_or_later = (fits >> own) << own
        candidates = own_or_later or fits
        chosen = candidates & -candidates
        number = chosen.bit_length() - 1
        was_deferred[pair] = number != own
        pairs_K[number].append(pair)
        if len(pairs_K[number]) == batch:
            open_batches &= ~chosen
        with_target_T[target] |= chosen
        for term in terms_W[pair]:
            with_article_term_T[term] |= chosen
    is_forced[unassigned] = True
    was_deferred[unassigned] = True
    free_slots = []
    for number, pairs in enumerate(pairs_K):
        free_slots += [number] * (batch - len(pairs))
    for pair, number in zip(unassigned, free_slots, strict=True):
        pairs_K[number].append(pair)
    return np.array(pairs_K, dtype=np.int64), was_deferred, is_forced


class DroppingBatch:
    """A batch that is filled as in the authors' code: a pair that does not fit is lost.

    A pair (article, term) fits if the batch has not been offered its article before, its term is
    not among the terms of the batch's articles, and no term of its article is a term of the batch.
    An article counts as offered even if its pair did not fit, as in the authors' code.

    Attributes:
        chosen: which of the offered pairs are in the batch, counted from the first.
    """

    def __init__(self, size: int) -> None:
        self.chosen: list[int] = []
        self._size = size
        self._num_offered = 0
        self._offered_articles: set[int] = set()
        self._targets: set[int] = set()
        self._article_terms: set[int] = set()

    @property
    def is_full(self) -> bool:
        """Whether no more pairs are taken."""
        return len(self.chosen) == self._size

    def offer(self, article_W: list[int], term_W: list[int], terms_W: list[list[int]]) -> None:
        """Take the pairs that fit, in order, until the batch is full.

        Args:
            article_W: article of each pair.
            term_W: term of each pair.
            terms_W: all terms of each pair's article.
        """
        for article, term, terms in zip(article_W, term_W, terms_W, strict=True):
            if self.is_full:
                return
            index = self._num_offered
            self._num_offered += 1
            if article in self._offered_articles:
                continue
            self._offered_articles.add(article)
            if term not in self._article_terms and self._targets.isdisjoint(terms):
                self.chosen.append(index)
                self._targets.add(term)
                self._article_terms.update(terms)
