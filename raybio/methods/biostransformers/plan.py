"""Which (text, MeSH term) pairs make up each step (BioSTransformers, facts on false-negative-free batching).

A text must not be contrasted with a term of its own article: for all pairs i != j of a global batch, term j is none of
article i's terms. ``mask`` takes the pairs as they come and leaves such candidates out of the loss. ``reject`` is the
authors' greedy filling, made resumable: the stream of pairs is cut into windows of some steps, and a pair that does not
fit into its own batch goes into the next one of the window that it fits. What fits nowhere (a batch holds at most one
pair of a term, and few articles lack the term Humans) fills up what room is left, evenly, and is masked. So every epoch
holds each pair exactly once, every batch is full, and a step is a function of its number alone.

Shape letters: P training pairs, B pairs of a step, W pairs of a window, E (article, term) entries.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from raybio.core.errors import ConfigError, DataError
from raybio.core.randomness import derive_seed, hash_uniform, shuffled_epochs
from raybio.methods.biostransformers.config import PairPlanConfig
from raybio.methods.biostransformers.store import ArticleStore

CHECK_TAGS = frozenset(
    [
        "Adolescent", "Adult", "Aged", "Aged, 80 and over", "Animals", "Cats", "Cattle", "Chick Embryo", "Child",
        "Child, Preschool", "Cricetinae", "Dogs", "Female", "Guinea Pigs", "Humans", "Infant", "Infant, Newborn",
        "Male", "Mice", "Middle Aged", "Pregnancy", "Rabbits", "Rats", "Swine", "Young Adult",
    ]
)  # fmt: skip
"""Terms that indexers have to consider for every article: so common that they say little of one."""


@dataclass(frozen=True)
class StepPairs:
    """The pairs of a step's global batch, each (B,).

    Attributes:
        article_B: store rows.
        field_B: which text, as a number among the plan's fields.
        term_B: term numbers.
        was_deferred_B: whether the pair did not fit into its own batch.
        is_forced_B: whether it was taken although it does not fit; the loss masks it.
    """

    article_B: np.ndarray
    field_B: np.ndarray
    term_B: np.ndarray
    was_deferred_B: np.ndarray
    is_forced_B: np.ndarray

    def __len__(self) -> int:
        """B."""
        return len(self.article_B)

    def take(self, which: Any) -> "StepPairs":
        """Some of the pairs."""
        return StepPairs(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    def shard(self, rank: int, world: int) -> "StepPairs":
        """The slice of worker ``rank`` of ``world``."""
        return self.take(slice(len(self) * rank // world, len(self) * (rank + 1) // world))


@dataclass(frozen=True)
class PairPlan:
    """Training pairs in the order of their steps.

    Raises:
        DataError: if the store has no training pair.
        ConfigError: if a batch is larger than an epoch.
    """

    store: ArticleStore
    config: PairPlanConfig
    seed: int
    _windows: dict[int, "_Window"] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.num_pairs == 0:
            raise DataError(
                f"{self.store.path}: no training article has a {' or '.join(self.config.fields)} and a term that is "
                "allowed, want at least one pair"
            )
        if self.config.global_batch_rows > self.num_pairs:
            raise ConfigError(
                f"plan.global_batch_rows is {self.config.global_batch_rows}, but there are only {self.num_pairs:,} "
                "training pairs: make the batch smaller"
            )

    @property
    def num_pairs(self) -> int:
        """P, pairs of an epoch."""
        return int(self._bounds[-1])

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which every pair comes once."""
        return self.num_pairs / self.config.global_batch_rows

    def rows(self, step: int) -> StepPairs:
        """The pairs of the global batch of ``step``."""
        batch = self.config.global_batch_rows
        if self.config.conflicts == "mask":
            drawn = shuffled_epochs(
                step * batch, batch, num_rows=self.num_pairs, seed=self.seed, name="pairs"
            )
            nothing = np.zeros(batch, dtype=bool)
            return StepPairs(*self._look_up(drawn), nothing, nothing)
        number, place = divmod(step, self.config.window_steps)
        if number not in self._windows:
            while (
                len(self._windows) > 1
            ):  # steps come in order, in blocks that may lie across two windows
                del self._windows[min(self._windows)]
            self._windows[number] = self._fill(number)
        window = self._windows[number]
        return window.pairs.take(window.chosen_KB[place])

    def _fill(self, number: int) -> "_Window":
        num_steps, batch = self.config.window_steps, self.config.global_batch_rows
        size = num_steps * batch
        drawn = shuffled_epochs(
            number * size, size, num_rows=self.num_pairs, seed=self.seed, name="pairs"
        )
        article_W, field_W, term_W = self._look_up(drawn)
        indptr, term_E = self.store.term_indptr_N1, self.store.term_E
        terms = [
            term_E[indptr[article] : indptr[article + 1]].tolist() for article in article_W.tolist()
        ]
        chosen_KB, was_deferred_W, is_forced_W = fill_window(
            article_W.tolist(), term_W.tolist(), terms, num_steps, batch
        )
        return _Window(
            StepPairs(article_W, field_W, term_W, was_deferred_W, is_forced_W), chosen_KB
        )

    def _look_up(self, pair_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        field_B = np.searchsorted(self._bounds, pair_B, side="right") - 1
        entry_B = np.empty(len(pair_B), dtype=np.int64)
        for number, entries in enumerate(self._entries_by_field):
            here = field_B == number
            entry_B[here] = entries[pair_B[here] - self._bounds[number]]
        article_B = np.searchsorted(self.store.term_indptr_N1, entry_B, side="right") - 1
        return article_B, field_B, self.store.term_E[entry_B].astype(np.int64)

    @cached_property
    def _bounds(self) -> np.ndarray:
        """Pairs of field f are numbered from ``bounds[f]`` to ``bounds[f + 1] - 1``."""
        return np.concatenate(
            [[0], np.cumsum([len(entries) for entries in self._entries_by_field])]
        )

    @cached_property
    def _entries_by_field(self) -> list[np.ndarray]:
        """Entries that are training pairs, of each field; int32 where they fit."""
        store = self.store
        num_terms_N = np.diff(store.term_indptr_N1)
        allowed_E = np.repeat(~store.is_validation_N, num_terms_N)
        if self.config.stop_terms == "check_tags":
            is_stopped_T = np.isin(
                store.term_names.to_numpy(zero_copy_only=False), list(CHECK_TAGS)
            )
            allowed_E &= ~is_stopped_T[store.term_E]
        kind = np.int32 if len(allowed_E) < 2**31 else np.int64
        found = []
        for number, name in enumerate(self.config.fields):
            entry = np.flatnonzero(
                allowed_E & np.repeat(store.has_text_N(name), num_terms_N)
            ).astype(kind)
            found.append(self._capped(entry, number))
        return found

    def _capped(self, entry: np.ndarray, number: int) -> np.ndarray:
        cap = self.config.max_pairs_per_term
        if cap is None:
            return entry
        chance = hash_uniform(derive_seed(self.seed, "cap", number), entry)
        term = self.store.term_E[entry]
        order = np.lexsort([chance, term])
        first = np.flatnonzero(np.diff(term[order], prepend=-1))
        place = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
        return np.sort(entry[order[place < cap]])


@lru_cache(maxsize=2)
def plan_of(store: ArticleStore, config: PairPlanConfig, seed: int) -> PairPlan:
    """The plan, made once in each process: collation runs in many tasks, and a plan is not small."""
    return PairPlan(store, config, seed)


@dataclass(frozen=True)
class _Window:
    """The pairs of a window, and which of them each of its K batches takes (K, B)."""

    pairs: StepPairs
    chosen_KB: np.ndarray


def fill_window(
    article_W: list[int], term_W: list[int], terms_W: list[list[int]], num_batches: int, batch: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Put the pairs of a window into batches in which no text meets a term of its own article, as far as greed can.

    A pair (article, term) fits a batch if its article is not in it, its term is none of the articles' terms, and none
    of its article's terms is a term of the batch. Pairs of rare terms choose first: one of a term that nearly every
    article has would keep all of those out.

    Args:
        article_W: article of each pair, in the order of the stream: pair w's own batch is ``w // batch``.
        term_W: term of each.
        terms_W: all terms of the article of each.
        num_batches: how many batches, K.
        batch: pairs of each, B; K * B is the number of pairs.

    Returns:
        the pairs of each batch (K, B), whether a pair is in another than its own batch (W,), and whether it was taken
        although it does not fit (W,).
    """
    num_articles_by_term: Counter[int] = Counter(term for terms in terms_W for term in terms)
    order = sorted(range(len(article_W)), key=lambda pair: num_articles_by_term[term_W[pair]])
    batches = [_Batch() for _ in range(num_batches)]
    was_deferred, is_forced = (np.zeros(len(article_W), dtype=bool) for _ in range(2))
    left_over = []
    for pair in order:
        own = pair // batch
        for place in (*range(own, num_batches), *range(own)):
            if len(batches[place].pairs) < batch and batches[place].fits(
                article_W[pair], term_W[pair], terms_W[pair]
            ):
                batches[place].add(pair, article_W[pair], term_W[pair], terms_W[pair])
                was_deferred[pair] = place != own
                break
        else:
            left_over.append(pair)
    is_forced[left_over] = was_deferred[left_over] = True
    room = [place for place, one in enumerate(batches) for _ in range(batch - len(one.pairs))]
    for pair, place in zip(left_over, room, strict=True):
        batches[place].pairs.append(pair)
    return np.array([one.pairs for one in batches], dtype=np.int64), was_deferred, is_forced


class _Batch:
    """A batch that is being filled: its pairs, their articles and terms, and all terms of the articles."""

    def __init__(self) -> None:
        self.pairs: list[int] = []
        self.articles, self.targets, self.theirs = set[int](), set[int](), set[int]()

    def fits(self, article: int, term: int, terms: list[int]) -> bool:
        """Whether the pair is in conflict with none that is there."""
        return (
            article not in self.articles
            and term not in self.theirs
            and self.targets.isdisjoint(terms)
        )

    def add(self, pair: int, article: int, term: int, terms: list[int]) -> None:
        """Take the pair."""
        self.pairs.append(pair)
        self.articles.add(article)
        self.targets.add(term)
        self.theirs.update(terms)
