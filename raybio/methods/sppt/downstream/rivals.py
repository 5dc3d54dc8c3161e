"""Rivals of fine-tuning: predictions that need no training of an encoder.

A fine-tuned encoder has learned something about a task only if it beats all of these.

Tasks with a class, a set of classes or a number a sequence: ridge regression, or the ridge
classifier, and k nearest neighbors, each on

- ``one-hot``: the residues at each position, where the training sequences have few lengths, such
  as variants of one protein;
- ``1-3-mers`` of proteins, or ``TF-IDF`` of the words and word pairs of texts;
- ``frozen encoder``: the embeddings that fine-tuning starts from.

``residue_rivals`` has the rivals of tasks with a class per residue. Dev chooses the penalty and the
number of neighbors; test rows choose nothing. All workers compute the same.

For sets of classes, ridge regression is fitted to 1 for each class that a row has and 0 for others,
and kNN predicts the share of neighbors with a class. Dev also chooses the threshold from which a
class is predicted, since scores of rare classes are below 1/2 nearly everywhere.

Shape letters: N rows of the store, T training rows, Q rows to predict, L positions, F features,
D width, C classes, X neighbors, Z residues that differ from the most frequent one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler, normalize

from raybio.core.arrays import Floats
from raybio.core.randomness import derive_seed, keyed_permutation
from raybio.methods.sppt.downstream.config import TASKS
from raybio.methods.sppt.downstream.scores import row_scores
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.store.store import SPLITS

PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
"""Candidate weights of the squared coefficients; rows of features have lengths near 1."""

NUM_NEIGHBORS = (1, 3, 5, 10, 20)
"""Candidate numbers of neighbors."""

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Candidate thresholds for sets of classes."""

MAX_LENGTHS = 10
"""If training sequences have more lengths, positions mean nothing, and there is no one-hot."""

MAX_REFERENCE_ROWS = 10_000
"""Maximum training rows in a search of neighbors; of more rows, this number is drawn."""

MAX_PRODUCTS = 2 * 10**10
"""Products of two nonzero features in a search of neighbors; for more, fewer rows are drawn."""

MANY_CLASSES = 100
"""With more classes, the ridge classifier is solved in its dual form, which costs T^3 / 3."""

MAX_DUAL_ROWS = 8000
"""Maximum training rows of the dual form; of more rows, this number is drawn."""

Matrix = Any
"""Rows of features, a dense or a sparse matrix."""

Values = Callable[[np.ndarray], dict[str, Floats]]
"""Rows (Q,) of the store -> contribution of each row to each measure."""


Predict = Callable[[np.ndarray], np.ndarray]
"""Rows (Q,) of the store -> their predictions."""


class TaskRival(NamedTuple):
    """Predictions of the rows of dev and test.

    Attributes:
        name: name of its row in tables.
        values: scores of rows.
        settings: what dev chose, and the number of training rows; plain JSON.
    """

    name: str
    values: Values
    settings: Mapping[str, Any]


class Features(NamedTuple):
    """A description of all rows of a store.

    Attributes:
        name: name of the description.
        ridge_NF: features of linear models; their rows have lengths near 1.
        neighbor_NF: features whose Euclidean distances decide which rows are near.
    """

    name: str
    ridge_NF: Matrix
    neighbor_NF: Matrix


def sequence_rivals(store: TaskStore, embedding_ND: np.ndarray) -> Iterator[TaskRival]:
    """Yield the rivals of a task with a class, a set of classes or a number a sequence.

    Args:
        store: the task.
        embedding_ND: embeddings of all rows by the encoder before training.
    """
    for features in _descriptions(store, embedding_ND):
        yield ridge_rival(store, features)
        yield neighbor_rival(store, features)


def ridge_rival(store: TaskStore, features: Features) -> TaskRival:
    """Return the predictions of ridge regression, or of the ridge classifier."""
    train_T = store.split_rows("train")
    if len(store.class_names) > MANY_CLASSES:
        train_T = drawn_rows(train_T, MAX_DUAL_ROWS)
    fits = fitted_ridges(
        features.ridge_NF[train_T],
        store.targets(train_T),
        num_classes=len(store.class_names),
        is_balanced=TASKS[store.task].measure == "macro_f1",
    )
    # Fit one after the other: the coefficients of many classes take gigabytes.
    candidates = (
        (
            settings | {"training_rows": len(train_T)},
            partial(_predict_rows, fitted, features.ridge_NF),
        )
        for settings, fitted in fits
    )
    return _best_on_dev(store, f"ridge on {features.name}", candidates)


def fitted_ridges(
    row_TF: Matrix, target_T: np.ndarray, *, num_classes: int, is_balanced: bool
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the settings and the fitted model of each candidate.

    Args:
        row_TF: training rows.
        target_T: their classes or numbers (T,), or whether they have each class (T, C).
        num_classes: classes of the task; 0: numbers.
        is_balanced: also try weights by which all classes count alike, for macro F1.
    """
    # The dual form takes sparse rows only without an intercept.
    is_dual = num_classes > MANY_CLASSES
    solver = {
        "tol": 1e-6,
        "fit_intercept": not is_dual,
        "solver": "cholesky" if is_dual else "auto",
    }
    for penalty in PENALTIES:
        if not num_classes or target_T.ndim == 2:
            yield {"penalty": penalty}, Ridge(penalty, **solver).fit(row_TF, target_T)
            continue
        for class_weight in (None, "balanced") if is_balanced else (None,):
            classifier = RidgeClassifier(penalty, class_weight=class_weight, **solver)
            settings = {"penalty": penalty, "class_weight": class_weight or "equal"}
            yield settings, classifier.fit(row_TF, target_T)


def neighbor_rival(store: TaskStore, features: Features) -> TaskRival:
    """Return the mean number, or the most frequent class, of the nearest training rows.

    Of equally frequent classes, the first in alphabetical order is predicted. For sets of classes
    it is the mean of each class's 0 and 1.
    """
    other_Q = np.flatnonzero(store.split_number_N != SPLITS.index("train"))
    reference_T = drawn_rows(store.split_rows("train"), MAX_REFERENCE_ROWS)
    num_products = _num_products(features.neighbor_NF, other_Q, reference_T)
    if num_products > MAX_PRODUCTS:
        num_rows = max(len(reference_T) * MAX_PRODUCTS // num_products, max(NUM_NEIGHBORS))
        reference_T = drawn_rows(reference_T, num_rows)
    target_T = store.targets(reference_T)
    num_classes = len(store.class_names) if TASKS[store.task].labels == "class" else 0
    num_found = min(max(NUM_NEIGHBORS), len(reference_T))
    index = NearestNeighbors(algorithm="brute").fit(features.neighbor_NF[reference_T])
    nearest_NX = np.zeros((store.num_rows, num_found), np.int64)
    nearest_NX[other_Q] = index.kneighbors(
        features.neighbor_NF[other_Q], num_found, return_distance=False
    )

    def predict(k: int, row_Q: np.ndarray) -> np.ndarray:
        return votes(target_T[nearest_NX[row_Q, :k]], num_classes)

    candidates = []
    for k in NUM_NEIGHBORS:
        settings = {"neighbors": min(k, num_found), "training_rows": len(reference_T)}
        candidates.append((settings, partial(predict, k)))
    return _best_on_dev(store, f"kNN on {features.name}", candidates)


def votes(target_QX: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the most frequent class of each row (Q,), or the mean over X if there are none."""
    if not num_classes:
        return target_QX.mean(axis=1)
    num_rows = len(target_QX)
    cell_QX = np.arange(num_rows)[:, None] * num_classes + target_QX
    count = np.bincount(cell_QX.ravel(), minlength=num_rows * num_classes)
    return count.reshape(num_rows, num_classes).argmax(axis=1)


def one_hot(store: TaskStore) -> Features | None:
    """Return the residue at each position; None if training has more than ``MAX_LENGTHS`` lengths.

    Shorter sequences are padded, longer ones are truncated to the longest training sequence. A
    column marks that a residue differs from the training rows' most frequent one at its position,
    and one column for each other residue marks which it is. Ridge regression with an intercept and
    Euclidean distances are the same as with a column for each residue, and nearly all entries are
    zero if sequences are variants of one protein.
    """
    train_T = store.split_rows("train")
    length_N = np.diff(store.indptr_N1)
    if len(np.unique(length_N[train_T])) > MAX_LENGTHS:
        return None
    num_positions = int(length_N[train_T].max())
    letter_NL = np.zeros((store.num_rows, num_positions), np.uint8)
    for row, start in enumerate(store.indptr_N1[:-1].tolist()):
        residues = store.residue_T[start : start + min(int(length_N[row]), num_positions)]
        letter_NL[row, : len(residues)] = residues
    common_L = [np.bincount(column_T).argmax() for column_T in letter_NL[train_T].T]
    row_Z, position_Z = np.nonzero(letter_NL != np.array(common_L, np.uint8))
    letter_Z = letter_NL[row_Z, position_Z].astype(np.int64)
    column_Z = num_positions + 256 * position_Z + letter_Z
    entries = (np.ones(2 * len(row_Z)), (np.tile(row_Z, 2), np.append(position_Z, column_Z)))
    row_NF = sp.csr_matrix(entries, shape=(store.num_rows, 257 * num_positions))
    return Features("one-hot", row_NF, row_NF)


def tfidf(store: TaskStore) -> Features:
    """Return TF-IDF vectors of length 1: words and word pairs of texts, 1- to 3-mers of proteins.

    Whole sequences count, including what the encoder truncates. Words and weights come from the
    training rows.
    """
    if TASKS[store.task].on_texts:
        name = "TF-IDF"
        vectorizer = TfidfVectorizer(
            ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", sublinear_tf=True
        )
    else:
        name = "1-3-mers"
        vectorizer = TfidfVectorizer(
            analyzer="char", ngram_range=(1, 3), lowercase=False, sublinear_tf=True
        )
    vectorizer.fit(store.texts(store.split_rows("train")))
    row_NF = vectorizer.transform(store.texts(np.arange(store.num_rows))).tocsr()
    return Features(name, row_NF, row_NF)


def frozen_features(embedding_ND: np.ndarray, train_T: np.ndarray) -> Features:
    """Return standardized embeddings of length 1 on average, and for neighbors unit vectors."""
    scaler = StandardScaler().fit(embedding_ND[train_T].astype(np.float64))
    standard_ND = scaler.transform(embedding_ND.astype(np.float64))
    return Features(
        "frozen encoder", standard_ND / np.sqrt(standard_ND.shape[1]), normalize(embedding_ND)
    )


def drawn_rows(row_N: np.ndarray, max_rows: int) -> np.ndarray:
    """Return at most ``max_rows`` of the rows, ascending; the same draw in all runs."""
    if len(row_N) <= max_rows:
        return row_N
    key = derive_seed(0, "rows of rivals")
    drawn = keyed_permutation(np.arange(max_rows), num_rows=len(row_N), key=key)
    return np.sort(row_N[drawn])


def _descriptions(store: TaskStore, embedding_ND: np.ndarray) -> Iterator[Features]:
    if not TASKS[store.task].on_texts:
        residues = one_hot(store)
        if residues is not None:
            yield residues
    yield tfidf(store)
    yield frozen_features(embedding_ND, store.split_rows("train"))


def _num_products(row_NF: Matrix, row_Q: np.ndarray, row_T: np.ndarray) -> int:
    """Return the number of products in dot products of two sets of sparse rows; 0 if dense."""
    if not sp.issparse(row_NF):
        return 0
    count_F = row_NF[row_Q].getnnz(axis=0).astype(np.int64)
    return int(count_F @ row_NF[row_T].getnnz(axis=0))


def _predict_rows(fitted: Any, row_NF: Matrix, row_Q: np.ndarray) -> np.ndarray:
    predicted_Q: np.ndarray = fitted.predict(row_NF[row_Q])
    return predicted_Q


def _at_least(threshold: float, predict: Predict, row_Q: np.ndarray) -> np.ndarray:
    has_class_QC: np.ndarray = predict(row_Q) >= threshold
    return has_class_QC


def _best_on_dev(
    store: TaskStore,
    name: str,
    candidates: Iterable[tuple[dict[str, Any], Predict]],
) -> TaskRival:
    """Return the candidate with the best score on dev, the first of equals.

    No more than two candidates are kept at a time.
    """
    task = TASKS[store.task]
    thresholds = THRESHOLDS if task.labels == "class_set" else (None,)
    dev = store.split_rows("dev")
    target_Q = store.targets(dev)
    best: tuple[dict[str, Any], Predict] | None = None
    best_score = -np.inf
    for settings, predict in candidates:
        predicted_Q = predict(dev)
        for threshold in thresholds:
            decided_Q = predicted_Q if threshold is None else predicted_Q >= threshold
            score = row_scores(task.labels, decided_Q, target_Q)[task.measure].mean()
            # A constant prediction has no rank correlation: NaN, which is never higher.
            if best is not None and not score > best_score:
                continue
            best_score = -np.inf if np.isnan(score) else score
            best = settings, predict
            if threshold is not None:
                best = settings | {"threshold": threshold}, partial(_at_least, threshold, predict)
    assert best is not None
    settings, predict = best

    def values(row_Q: np.ndarray) -> dict[str, Floats]:
        return row_scores(task.labels, predict(row_Q), store.targets(row_Q))

    return TaskRival(name, values, settings)
