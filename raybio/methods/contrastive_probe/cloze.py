"""Cloze pairs: the first words of a sentence with a mask token are the query, its tail the answer.

Shape letters: B sentences of a step, N sentences of a worker's shard, R = 2 N sequences of the
shard (queries, then answers), T tokens end to end.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from raybio.core.batch import IGNORED_LABEL, deal
from raybio.core.errors import ConfigError
from raybio.core.randomness import derive_seed, hash_uniform, keyed_permutation, shuffled_epochs
from raybio.encoders.tokenization import Tokenize
from raybio.methods.contrastive_probe.config import ClozeConfig, ClozePlanConfig
from raybio.methods.contrastive_probe.store import ClozeStore


@dataclass(frozen=True)
class ClozePlan:
    """The sentences of each step: an endless stream of epochs, each a permutation of sentences.

    The seed defines an order of the sentence set. Training takes its beginning and evaluation holds
    out its end, so neither number changes the other's sentences (except for equal sentences).

    Attributes:
        store: the sentences.
        config: choice of the sentences.
        seed: the run's seed.

    Raises:
        ConfigError: if the sentence set is not in the store, or has too few sentences.
    """

    store: ClozeStore
    config: ClozePlanConfig
    seed: int

    def __post_init__(self) -> None:
        """Check that there are enough sentences."""
        sentence_set = self.config.sentence_set
        num_sets = len(self.store.set_names)
        if sentence_set != "all" and not 0 <= sentence_set < num_sets:
            raise ConfigError(
                f"plan.sentence_set is {sentence_set}, and {self.store.location} has {num_sets} "
                f"sets; want all or 0 to {num_sets - 1}"
            )
        first, end = self._bounds
        num_held_out = self.config.num_held_out_sentences
        if num_held_out > end - first:
            raise ConfigError(
                f"plan.num_held_out_sentences is {num_held_out:,}, and the chosen set has "
                f"{end - first:,}; want less"
            )
        num_sentences = self.config.num_sentences
        if num_sentences is not None and num_sentences > self.num_rows:
            without = " without the held-out ones and their equals" if num_held_out else ""
            raise ConfigError(
                f"plan.num_sentences is {num_sentences:,}, and the chosen set has "
                f"{self.num_rows:,}{without}; want at most as many"
            )
        batch_rows = self.config.global_batch_rows
        if batch_rows > self.num_rows:
            raise ConfigError(
                f"plan.global_batch_rows is {batch_rows:,}, and the training set has "
                f"{self.num_rows:,} sentences: a sentence would be contrasted with itself. "
                f"Give --set plan.global_batch_rows={self.num_rows} or less"
            )

    @property
    def num_rows(self) -> int:
        """Number of sentences of an epoch."""
        first, end = self._bounds
        subset = _subset_rows(self)
        return end - first if subset is None else len(subset)

    @property
    def steps_per_epoch(self) -> float:
        """Steps of an epoch; a fraction if the batch does not divide the sentences."""
        return self.num_rows / self.config.global_batch_rows

    def rows(self, step: int) -> np.ndarray:
        """Return the store rows of the global batch of ``step``, int64 (B,)."""
        batch_rows = self.config.global_batch_rows
        index_B = shuffled_epochs(
            step * batch_rows,
            batch_rows,
            num_rows=self.num_rows,
            seed=self.seed,
            name="sentences",
        )
        subset = _subset_rows(self)
        return self._bounds[0] + index_B if subset is None else subset[index_B]

    @property
    def trained_rows(self) -> np.ndarray:
        """Store rows of an epoch, int64."""
        subset = _subset_rows(self)
        return np.arange(*self._bounds) if subset is None else subset

    @property
    def held_out_rows(self) -> np.ndarray:
        """Store rows that are never trained on, int64."""
        first, end = self._bounds
        num_rows = end - first
        return self._ordered_rows(
            np.arange(num_rows - self.config.num_held_out_sentences, num_rows)
        )

    def _ordered_rows(self, index_M: np.ndarray) -> np.ndarray:
        """Return the store rows at positions of the seed's order."""
        first, end = self._bounds
        key = derive_seed(self.seed, "chosen")
        return first + keyed_permutation(index_M, num_rows=end - first, key=key)

    @property
    def _bounds(self) -> tuple[int, int]:
        """First row of the sentence set, and the row after its last."""
        set_bounds_S1 = self.store.set_bounds_S1
        sentence_set = self.config.sentence_set
        if sentence_set == "all":
            return 0, int(set_bounds_S1[-1])
        return int(set_bounds_S1[sentence_set]), int(set_bounds_S1[sentence_set + 1])


@lru_cache(maxsize=2)
def _subset_rows(plan: ClozePlan) -> np.ndarray | None:
    """Return the store rows of an epoch, int64; None for all rows of the set.

    They are made once in each process: they never travel with a plan.
    """
    first, end = plan._bounds
    num_held_out = plan.config.num_held_out_sentences
    if plan.config.num_sentences is None and not num_held_out:
        return None
    # A smaller ``num_sentences`` is a prefix of a larger one.
    row_M = plan._ordered_rows(np.arange(end - first - num_held_out))
    if num_held_out:
        row_M = row_M[~plan.store.equals(row_M, plan.held_out_rows)]
    return row_M[: plan.config.num_sentences]


@dataclass(frozen=True)
class ClozeCollate:
    """(step, rank, world) -> the arrays of a ``ClozeBatch``.

    Attributes:
        plan: the sentences of each step.
        config: settings by which they are divided.
        tokenize: the encoder's tokenizer, which cuts to ``config.max_tokens`` and keeps masks.
        mask_token: the tokenizer's mask token.
        seed: the run's seed.
    """

    plan: ClozePlan
    config: ClozeConfig
    tokenize: Tokenize
    mask_token: str
    seed: int

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        """Return the arrays of worker ``rank``'s shard of ``step``."""
        row_B = self.plan.rows(step)
        row_N = row_B[deal(self.plan.store.sentence_lengths(row_B), world) == rank]
        sentence_N = self.plan.store.sentences(row_N)
        query_N, answer_N = self._divide_sentences(sentence_N, row_N)
        text_R = [*query_N, *answer_N]
        token_T, indptr_R1 = self.tokenize(text_R)
        return {
            "token_T": token_T,
            "indptr_R1": indptr_R1,
            "label_T": np.full(len(token_T), IGNORED_LABEL, dtype=np.int16),
            "sentence_key_R": np.tile(_keys(sentence_N), 2),
            "text_key_R": _keys(text_R),
        }

    @property
    def held_out(self) -> tuple[list[str], list[str]]:
        """Queries and answers of the held-out sentences, divided as in training."""
        return self.divide(self.plan.held_out_rows)

    def divide(self, row_B: np.ndarray) -> tuple[list[str], list[str]]:
        """Return the queries and answers of store rows."""
        return self._divide_sentences(self.plan.store.sentences(row_B), row_B)

    def _divide_sentences(
        self, sentence_B: Sequence[str], row_B: np.ndarray
    ) -> tuple[list[str], list[str]]:
        words_B = [sentence.split(" ") for sentence in sentence_B]
        num_words_B = np.array([len(words) for words in words_B])
        size_B = tail_sizes(num_words_B, row_B, self.config, self.seed).tolist()
        queries = []
        answers = []
        for words, size in zip(words_B, size_B, strict=True):
            queries.append(" ".join([*words[:-size], self.mask_token]))
            answers.append(" ".join(words[-size:]))
        return queries, answers


def tail_sizes(
    num_words_B: np.ndarray, row_B: np.ndarray, config: ClozeConfig, seed: int
) -> np.ndarray:
    """Return the number of words of each answer, int64; at least one word stays in the query.

    ``random`` is uniform on 1 to 1 + floor(n x ratio). It is a function of (seed, row) only, so a
    sentence is divided in the same way in every epoch. ``fixed`` is n x ratio, rounded (halves to
    even).
    """
    if config.tail == "fixed":
        size_B = np.rint(num_words_B * config.mask_ratio)
    else:
        max_size_B = 1 + np.floor(num_words_B * config.mask_ratio)
        size_B = 1 + np.floor(hash_uniform(derive_seed(seed, "tails"), row_B) * max_size_B)
    return np.clip(size_B, 1, num_words_B - 1).astype(np.int64)


def _keys(texts: Sequence[str]) -> np.ndarray:
    """Return a number for each text, int64, equal for equal texts.

    It is a 64-bit hash: among the 2**17 texts of a very large step, the chance that any two
    different texts have equal keys is below one in 10**9.
    """
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype=np.int64)
