"""Cloze pairs of sentences: the head of a sentence and a mask token ask for its tail (Contrastive-Probe, facts §3.1).

Shape letters: B sentences of a step, N sentences of a worker's shard, R = 2 N sequences of the shard (queries, then
answers), G = 2 B sequences of the global batch, T tokens end to end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raybio.core.batch import IGNORED_LABEL
from raybio.core.errors import ConfigError
from raybio.core.randomness import derive_seed, hash_uniform, keyed_permutation, shuffled_epochs
from raybio.encoders.tokenization import Tokenise
from raybio.methods.contrastive_probe.config import ClozeConfig, ClozePlanConfig
from raybio.methods.contrastive_probe.store import ClozeStore


def tail_sizes(
    num_words_B: np.ndarray, row_B: np.ndarray, config: ClozeConfig, seed: int
) -> np.ndarray:
    """Words of each sentence's answer, int64: at least one, and one at least stays in the query.

    ``random`` is uniform on 1 to 1 + floor(n x ratio), a function of (seed, row) alone, so a sentence is divided alike
    in every epoch; ``fixed`` is n x ratio, rounded (halves to even).
    """
    if config.tail == "fixed":
        size_B = np.rint(num_words_B * config.mask_ratio)
    else:
        most_B = 1 + np.floor(num_words_B * config.mask_ratio)
        size_B = 1 + np.floor(hash_uniform(derive_seed(seed, "tails"), row_B) * most_B)
    return np.clip(size_B, 1, num_words_B - 1).astype(np.int64)


@dataclass(frozen=True)
class ClozePlan:
    """The sentences of each step: an endless stream of epochs, each a permutation of the chosen sentences.

    The seed puts the set in an order: what is trained on is its beginning and what is held out its end, so neither
    number moves the other's sentences, but for equal ones.

    Attributes:
        store: the sentences.
        config: which of them.
        seed: the run's seed.

    Raises:
        ConfigError: if the set is not in the store, or it has too few sentences.
    """

    store: ClozeStore
    config: ClozePlanConfig
    seed: int

    def __post_init__(self) -> None:
        """Check that there is enough to contrast."""
        chosen, num_sets = self.config.sentence_set, len(self.store.set_names)
        if chosen != "all" and not 0 <= chosen < num_sets:
            raise ConfigError(
                f"plan.sentence_set is {chosen}, and {self.store.path} has {num_sets} sets; want all or 0 to "
                f"{num_sets - 1}"
            )
        held_out, has = self.config.num_held_out_sentences, self._range[1] - self._range[0]
        if held_out > has:
            raise ConfigError(
                f"plan.num_held_out_sentences is {held_out:,}, and the chosen set has {has:,}; want less"
            )
        wanted = self.config.num_sentences
        if wanted is not None and wanted > self.num_rows:
            without = " without those held out and their equals" if held_out else ""
            raise ConfigError(
                f"plan.num_sentences is {wanted:,}, and the chosen set has {self.num_rows:,}{without}; want at most as "
                "many"
            )
        if self.config.global_batch_rows > self.num_rows:
            raise ConfigError(
                f"plan.global_batch_rows is {self.config.global_batch_rows:,}, and {self.num_rows:,} sentences are "
                "trained on: a sentence would be contrasted with itself. Make the batch smaller"
            )

    @property
    def num_rows(self) -> int:
        """Sentences of an epoch."""
        first, end = self._range
        return end - first if self._chosen_rows is None else len(self._chosen_rows)

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which every sentence comes once; a fraction where the batch does not divide them."""
        return self.num_rows / self.config.global_batch_rows

    def rows(self, step: int) -> np.ndarray:
        """Store rows of the global batch of ``step``, int64 (B,)."""
        batch = self.config.global_batch_rows
        drawn_B = shuffled_epochs(
            step * batch, batch, num_rows=self.num_rows, seed=self.seed, name="sentences"
        )
        return self._range[0] + drawn_B if self._chosen_rows is None else self._chosen_rows[drawn_B]

    @property
    def trained_rows(self) -> np.ndarray:
        """Store rows of an epoch, int64."""
        return np.arange(*self._range) if self._chosen_rows is None else self._chosen_rows

    @cached_property
    def held_out_rows(self) -> np.ndarray:
        """Store rows that are never trained on, int64."""
        first, end = self._range
        return self._in_order(
            np.arange(end - first - self.config.num_held_out_sentences, end - first)
        )

    @cached_property
    def _chosen_rows(self) -> np.ndarray | None:
        """Store rows of an epoch, int64, where they are not all of the set; 8 bytes a sentence."""
        first, end = self._range
        num_held_out = self.config.num_held_out_sentences
        if self.config.num_sentences is None and not num_held_out:
            return None
        # A smaller number takes a part of what a larger one takes.
        row_M = self._in_order(np.arange(end - first - num_held_out))
        if num_held_out:
            row_M = row_M[~self.store.equals(row_M, self.held_out_rows)]
        return row_M[: self.config.num_sentences]

    def _in_order(self, place_M: np.ndarray) -> np.ndarray:
        first, end = self._range
        return first + keyed_permutation(
            place_M, num_rows=end - first, key=derive_seed(self.seed, "chosen")
        )

    @cached_property
    def _range(self) -> tuple[int, int]:
        bounds, chosen = self.store.set_bounds_S1, self.config.sentence_set
        return (
            (0, int(bounds[-1]))
            if chosen == "all"
            else (int(bounds[chosen]), int(bounds[chosen + 1]))
        )


@dataclass(frozen=True)
class ClozeCollate:
    """(step, rank, world) -> the arrays of a ``ClozeBatch``.

    Attributes:
        plan: which sentences.
        config: how they are divided.
        tokenise: the encoder's tokenizer, cut to ``config.max_tokens``, masks being kept.
        mask_token: the tokenizer's own.
        seed: the run's seed.
    """

    plan: ClozePlan
    config: ClozeConfig
    tokenise: Tokenise
    mask_token: str
    seed: int

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        """The arrays of worker ``rank``'s shard of ``step``."""
        row_B = self.plan.rows(step)
        sentence_B = self.plan.store.sentences(row_B)
        query_B, answer_B = self._divide(sentence_B, row_B)
        bounds = [len(row_B) * place // world for place in range(world + 1)]
        shards = [slice(*pair) for pair in zip(bounds, bounds[1:], strict=False)]

        def gathered(first_B: list[str], second_B: list[str]) -> list[str]:
            # Columns stand as they are gathered: each worker's queries and then its answers.
            return [text for shard in shards for text in (*first_B[shard], *second_B[shard])]

        text_G = gathered(query_B, answer_B)
        size = bounds[rank + 1] - bounds[rank]
        own_R = 2 * bounds[rank] + np.arange(2 * size)
        positive_R = 2 * bounds[rank] + (np.arange(2 * size) + size) % max(2 * size, 1)
        token_T, indptr_R1 = self.tokenise([text_G[column] for column in own_R.tolist()])
        text_id_G, sentence_id_G = _ids(text_G), _ids(gathered(sentence_B, sentence_B))
        ignore_RG = (
            (sentence_id_G == sentence_id_G[own_R, None])
            | (text_id_G == text_id_G[own_R, None])
            | (text_id_G == text_id_G[positive_R, None])
        )
        ignore_RG[np.arange(2 * size), positive_R] = False
        return {
            "token_T": token_T,
            "indptr_R1": indptr_R1,
            "label_T": np.full(len(token_T), IGNORED_LABEL, dtype=np.int16),
            "positive_R": positive_R,
            "ignore_RG": ignore_RG,
        }

    @property
    def held_out(self) -> tuple[list[str], list[str]]:
        """Queries and answers of the held-out sentences, divided as in training."""
        return self.divided(self.plan.held_out_rows)

    def divided(self, row_B: np.ndarray) -> tuple[list[str], list[str]]:
        """Queries and answers of some rows."""
        return self._divide(self.plan.store.sentences(row_B), row_B)

    def _divide(self, sentence_B: list[str], row_B: np.ndarray) -> tuple[list[str], list[str]]:
        """Queries and answers of the sentences."""
        words = [sentence.split(" ") for sentence in sentence_B]
        size_B = tail_sizes(
            np.array([len(one) for one in words]), row_B, self.config, self.seed
        ).tolist()
        pairs = list(zip(words, size_B, strict=True))
        return (
            [" ".join([*one[:-size], self.mask_token]) for one, size in pairs],
            [" ".join(one[-size:]) for one, size in pairs],
        )


def _ids(text_G: list[str]) -> np.ndarray:
    """A number a text, the same for equal ones."""
    number_by_text: dict[str, int] = {}
    return np.array(
        [number_by_text.setdefault(text, len(number_by_text)) for text in text_G], dtype=np.int64
    )
