"""Rivals of fine-tuning on tasks with a class a residue, without training of an encoder.

- ``residue letter``: the most frequent class of each residue's letter in training.
- ``ridge on window of 15``: a ridge classifier on the letters around each residue.
- ``ridge on frozen encoder``: a ridge classifier on the states that fine-tuning starts from.

As for fine-tuned models, only residues that the encoder reads count.

Shape letters: N rows of the store, T training rows, Q rows to predict, R rows at once, K their
labeled residues, M models, F features, D width, C classes, X letters of windows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn.functional import pad

from raybio.core.arrays import Floats, Integers
from raybio.core.batch import IGNORED_LABEL, PaddedTokens, TokenBatch, Tokens
from raybio.core.interfaces import Collective, Encoded, Encoder
from raybio.core.randomness import derive_seed, keyed_permutation
from raybio.methods.sppt.collate import ReadRows
from raybio.methods.sppt.downstream.collate import read_labeled, read_residues
from raybio.methods.sppt.downstream.rivals import Matrix, TaskRival, Values, fitted_ridges
from raybio.methods.sppt.downstream.scores import token_scores
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.ops.segments import entries_of_rows
from raybio.store.store import SPLITS
from raybio.training.embed import embed_rows

MAX_RESIDUES = 100_000
"""Maximum number of labeled training residues that classifiers are fitted to."""

WINDOW = 15
"""Residues of a window, the classified one in the middle."""

_ROWS_AT_ONCE = 512
"""Proteins whose residues are classified at once."""

States = Callable[[np.ndarray], np.ndarray]
"""Rows (R,) of the store -> states (K, D) of their labeled residues."""


def residue_rivals(store: TaskStore, read: ReadRows, states: States) -> Iterator[TaskRival]:
    """Yield the rivals of a task with a class a residue.

    Args:
        store: the task.
        read: reader of rows as tokens.
        states: states of the encoder before training.
    """
    task = ResidueTask(store, read)
    yield residue_letter_rival(task)
    yield residue_ridge_rival(task, f"ridge on window of {WINDOW}", task.windows)
    scaler = StandardScaler().fit(states(task.training_rows))

    def standardized(row_R: np.ndarray) -> np.ndarray:
        state_KD = scaler.transform(states(row_R))
        return state_KD / np.sqrt(state_KD.shape[1])

    yield residue_ridge_rival(task, "ridge on frozen encoder", standardized)


def residue_states(
    store: TaskStore,
    read: ReadRows,
    encoder: Encoder,
    row_R: np.ndarray,
    max_tokens: int,
    collective: Collective,
) -> np.ndarray:
    """Return an encoder's states (K, D) of the labeled residues of rows, float64.

    Args:
        store: the task.
        read: reader of rows as tokens.
        encoder: on the device that does the work.
        row_R: rows of the store.
        max_tokens: padded tokens that are encoded at once.
        collective: workers that share the rows.
    """

    def read_tokens(row_M: np.ndarray) -> LabeledTokens:
        batch = read_labeled(store, read, row_M)
        return LabeledTokens(batch.token_T, batch.indptr_R1, batch.label_T)

    state_KD = embed_rows(
        _LabeledStates(encoder), read_tokens, row_R, collective, max_tokens=max_tokens
    )
    return state_KD.cpu().double().numpy()


@dataclass(frozen=True)
class ResidueTask:
    """The labeled residues of a task that the encoder reads, in the order of its tokens.

    Attributes:
        store: the task.
        read: reader of rows as tokens.
    """

    store: TaskStore
    read: ReadRows

    def residues(self, row_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each labeled residue: its index in ``row_R`` (K,), and in the store (K,)."""
        _, indptr_R1, is_special_T = self.read(row_R)
        _, number_K, residue_K = read_residues(self.store, row_R, indptr_R1, is_special_T)
        is_labeled_K = self.store.class_T[residue_K] >= 0
        return number_K[is_labeled_K], residue_K[is_labeled_K]

    def classes(self, row_R: np.ndarray) -> Integers:
        """Return the classes (K,) of the labeled residues of rows."""
        return self.store.class_T[self.residues(row_R)[1]].astype(np.int64)

    @cached_property
    def training_rows(self) -> np.ndarray:
        """Training proteins with at most ``MAX_RESIDUES`` labeled residues, ascending.

        If there are more, proteins are drawn until the next one would exceed it, but at least one.
        """
        train_T = self.store.split_rows("train")
        key = derive_seed(0, "rows of rivals")
        order_T = keyed_permutation(np.arange(len(train_T)), num_rows=len(train_T), key=key)
        number_K, _ = self.residues(train_T[order_T])
        total_T = np.cumsum(np.bincount(number_K, minlength=len(train_T)))
        num_kept = max(int(np.searchsorted(total_T, MAX_RESIDUES, side="right")), 1)
        return np.sort(train_T[order_T[:num_kept]])

    def letters(self, row_R: np.ndarray) -> np.ndarray:
        """Return the letters (K,) of the labeled residues of rows, uint8."""
        return self.store.residue_T[self.residues(row_R)[1]]

    def windows(self, row_R: np.ndarray) -> sp.csr_matrix:
        """Return the one-hot letters (K, F) around each labeled residue; none beyond the ends.

        Rows have length 1 if the window lies inside the sequence.
        """
        number_K, residue_K = self.residues(row_R)
        start_K = self.store.indptr_N1[row_R][number_K]
        stop_K = self.store.indptr_N1[row_R + 1][number_K]
        rows = []
        columns = []
        for offset in range(-(WINDOW // 2), WINDOW // 2 + 1):
            position_K = residue_K + offset
            inside = np.flatnonzero((position_K >= start_K) & (position_K < stop_K))
            rows.append(inside)
            letter = self.store.residue_T[position_K[inside]].astype(np.int64)
            columns.append(256 * (offset + WINDOW // 2) + letter)
        row_X = np.concatenate(rows)
        entries = (np.full(len(row_X), WINDOW**-0.5), (row_X, np.concatenate(columns)))
        return sp.csr_matrix(entries, shape=(len(residue_K), 256 * WINDOW))


def residue_letter_rival(task: ResidueTask) -> TaskRival:
    """Return the most frequent class of each residue's letter in training.

    A letter that is not in training gets the most frequent class overall.
    """
    train_T = task.store.split_rows("train")
    class_K = task.classes(train_T)
    num_classes = len(task.store.class_names)
    cell_K = task.letters(train_T).astype(np.int64) * num_classes + class_K
    count_256C = np.bincount(cell_K, minlength=256 * num_classes).reshape(256, num_classes)
    count_256C[count_256C.sum(axis=1) == 0] = count_256C.sum(axis=0)
    class_256 = count_256C.argmax(axis=1)
    return TaskRival(
        "residue letter",
        residue_scores(task, lambda row_R: [class_256[task.letters(row_R)]], 1)[0],
        {"training_rows": len(train_T)},
    )


def residue_ridge_rival(
    task: ResidueTask, name: str, features: Callable[[np.ndarray], Matrix]
) -> TaskRival:
    """Return the predictions of a ridge classifier of residues.

    Args:
        task: the labeled residues.
        name: name of its row in tables.
        features: rows (R,) -> features (K, F) of their labeled residues.
    """
    train_T = task.training_rows
    fits = list(
        fitted_ridges(
            features(train_T),
            task.classes(train_T),
            num_classes=len(task.store.class_names),
            is_balanced=False,
        )
    )

    def predict(row_R: np.ndarray) -> list[np.ndarray]:
        row_KF = features(row_R)
        return [fitted.predict(row_KF) for _, fitted in fits]

    scores = residue_scores(task, predict, len(fits))
    dev = task.store.split_rows("dev")
    best = int(np.argmax([values(dev)["accuracy"].mean() for values in scores]))
    settings = fits[best][0] | {"training_rows": len(train_T)}
    return TaskRival(name, scores[best], settings)


def residue_scores(
    task: ResidueTask, predict: Callable[[np.ndarray], Sequence[np.ndarray]], num_models: int
) -> list[Values]:
    """Return the scores of each of several models on the rows of dev and test.

    Args:
        task: the labeled residues.
        predict: rows (R,) -> classes (K,) of their labeled residues, by each model.
        num_models: number of models.
    """
    labeled_N = np.zeros(task.store.num_rows)
    correct_MN = np.zeros((num_models, task.store.num_rows))
    other_Q = np.flatnonzero(task.store.split_number_N != SPLITS.index("train"))
    for start in range(0, len(other_Q), _ROWS_AT_ONCE):
        row_R = other_Q[start : start + _ROWS_AT_ONCE]
        number_K, _ = task.residues(row_R)
        class_K = task.classes(row_R)
        labeled_N[row_R] = np.bincount(number_K, minlength=len(row_R))
        for model, predicted_K in enumerate(predict(row_R)):
            is_correct_K = predicted_K == class_K
            correct_MN[model, row_R] = np.bincount(number_K, is_correct_K, minlength=len(row_R))

    def values(model: int, row_Q: np.ndarray) -> dict[str, Floats]:
        return token_scores(correct_MN[model, row_Q], labeled_N[row_Q])

    return [partial(values, model) for model in range(num_models)]


@dataclass(frozen=True)
class LabeledTokens(TokenBatch):
    """Token sequences whose embeddings are the states of the labeled tokens."""

    @property
    def num_embeddings(self) -> int:
        """Number of labeled tokens."""
        return int((self.label_T != IGNORED_LABEL).sum())

    def embedding_rows(self, row_M: Tensor) -> Tensor:
        """Return the numbers of the labeled tokens of sequences ``row_M``."""
        is_labeled_T = (self.label_T != IGNORED_LABEL).long()
        total_T1 = pad(is_labeled_T.cumsum(0), (1, 0))
        indptr_R1 = total_T1[self.indptr_R1].numpy()
        return torch.from_numpy(entries_of_rows(indptr_R1, row_M.numpy())[0])


class _LabeledStates(Encoder):
    """Returns the states of the labeled tokens as embeddings."""

    packing = False

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.width = encoder.width
        self.pad_id = encoder.pad_id

    def forward(self, tokens: Tokens) -> Encoded:
        assert isinstance(tokens, PaddedTokens)
        hidden_RLD = self.encoder(tokens).hidden_RLD
        return Encoded(hidden_RLD, hidden_RLD[tokens.label_RL != IGNORED_LABEL])

    def token_logits(self, hidden_KD: Tensor) -> Tensor:
        return hidden_KD
