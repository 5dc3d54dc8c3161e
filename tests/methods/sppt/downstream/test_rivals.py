"""Rivals of fine-tuning against loops and scikit-learn, and what must not break them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from raybio.core.batch import IGNORED_LABEL, TokenBatch
from raybio.core.config import override_all
from raybio.core.interfaces import Collective, Encoder
from raybio.methods import METHODS
from raybio.methods.sppt.downstream import residue_rivals, rivals
from raybio.methods.sppt.downstream.evaluate import _TokenCounts
from raybio.methods.sppt.downstream.formats.example import Example
from raybio.methods.sppt.downstream.prepare import prepare_task
from raybio.methods.sppt.downstream.scores import class_scores, number_scores
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.training.collective import SingleProcess
from raybio.training.micro_batches import reads_packed
from tests.methods.conformance_cases import tiny_config
from tests.ops.threads import in_threads
from tests.training.workers import run_workers

LETTERS = "ACDEFG"

NUM_READ = 15
"""Residues that are read of a long protein in the tests: 16 tokens, of which the first is special."""


def store_of(folder: Path, task: str, rows: list[tuple[str, str, object]]) -> TaskStore:
    """Prepare (split, sequence, label) rows."""
    source = folder / "rows.txt"
    source.write_text("")
    examples = [
        Example(content=content, label=label, split=split, file=source, line=number)
        for number, (split, content, label) in enumerate(rows)
    ]
    return prepare_task(folder / "store", task, [source], iter(examples))


def variants(folder: Path, task: str = "fluorescence", lengths: tuple[int, ...] = (12, 11)):
    """Variants of one protein, whose mutations add up: dev and test have letters training lacks."""
    rng = np.random.default_rng(0)
    wild_type = rng.choice(list(LETTERS), max(lengths))
    effect = {letter: weight for letter, weight in zip("ACDEFGW", range(7), strict=True)}
    rows = []
    for split, size in (("train", 80), ("dev", 25), ("test", 25)):
        for _ in range(size):
            length = int(rng.choice(lengths)) + (2 if split == "test" else 0)
            letters = np.append(wild_type, ["A", "A"])[:length]
            place = rng.choice(10, 3, replace=False)
            letters[place] = rng.choice(list(LETTERS if split == "train" else "ACW"), 3)
            total = sum((1 + at) * effect[letters[at]] for at in place) + rng.normal()
            label = total if task == "fluorescence" else "low" if total < 40 else "high"
            rows.append((split, "".join(letters), label))
    return store_of(folder, task, rows)


def predictions(rival: rivals.TaskRival, store: TaskStore, split: str) -> dict[str, np.ndarray]:
    return rival.values(store.split_rows(split))


def full_one_hot(store: TaskStore) -> np.ndarray:
    longest = max(map(len, store.texts(store.split_rows("train"))))
    padded = [text[:longest].ljust(longest, "-") for text in store.texts(np.arange(store.num_rows))]
    letters = "-ACDEFGHIKLMNPQRSTVWY"
    return np.array([[float(a == b) for a in text for b in letters] for text in padded])


def test_one_hot_has_the_ridge_and_the_distances_of_a_column_for_each_residue(tmp_path) -> None:
    store = variants(tmp_path)
    features = rivals.one_hot(store)
    assert features is not None
    full_NF = full_one_hot(store)
    ours_NF = features.ridge_NF.toarray()
    np.testing.assert_allclose(
        ((ours_NF[:, None] - ours_NF) ** 2).sum(2), ((full_NF[:, None] - full_NF) ** 2).sum(2)
    )
    train = store.split_rows("train")
    found = {}
    for penalty in rivals.PENALTIES:
        model = Ridge(penalty).fit(full_NF[train], store.target_N[train])
        found[penalty] = model.predict(full_NF)
    fits = list(
        rivals.fitted_ridges(
            features.ridge_NF[train], store.target_N[train], num_classes=0, is_balanced=False
        )
    )
    for settings, fitted in fits:
        expected = found[settings["penalty"]]
        np.testing.assert_allclose(fitted.predict(features.ridge_NF), expected, atol=2e-3)
    # Dev chooses among them.
    rival = rivals.ridge_rival(store, features)
    by_penalty = {
        penalty: number_scores(
            predicted_N[store.split_rows("dev")], store.target_N[store.split_rows("dev")]
        )["spearman"].mean()
        for penalty, predicted_N in found.items()
    }
    dev = predictions(rival, store, "dev")["spearman"].mean()
    assert dev == pytest.approx(max(by_penalty.values()), abs=1e-6)
    assert by_penalty[rival.settings["penalty"]] == pytest.approx(dev, abs=1e-6)
    assert dev > 0.3


def test_positions_mean_nothing_where_training_has_many_lengths(tmp_path) -> None:
    store = variants(tmp_path, lengths=tuple(range(10, 10 + rivals.MAX_LENGTHS)))
    assert rivals.one_hot(store) is not None
    other = tmp_path / "other"
    other.mkdir()
    store = variants(other, lengths=tuple(range(10, 11 + rivals.MAX_LENGTHS)))
    assert rivals.one_hot(store) is None


@pytest.mark.parametrize("task", ["fluorescence", "remote_homology"])
def test_neighbors_predict_as_in_scikit_learn_and_dev_chooses_their_number(tmp_path, task) -> None:
    store = variants(tmp_path, task)
    rng = np.random.default_rng(1)
    vector_ND = rng.standard_normal((store.num_rows, 5))
    features = rivals.Features("vectors", vector_ND, vector_ND)
    rival = rivals.neighbor_rival(store, features)
    train, dev, test = (store.split_rows(split) for split in ("train", "dev", "test"))
    target_N = store.targets(np.arange(store.num_rows))
    kind = KNeighborsRegressor if task == "fluorescence" else KNeighborsClassifier
    score = number_scores if task == "fluorescence" else class_scores
    measure = "spearman" if task == "fluorescence" else "accuracy"
    on_dev = {}
    for k in rivals.NUM_NEIGHBORS:
        model = kind(k, algorithm="brute").fit(vector_ND[train], target_N[train])
        on_dev[k] = score(model.predict(vector_ND[dev]), target_N[dev])[measure].mean()
    best = max(on_dev, key=lambda k: on_dev[k])
    assert rival.settings == {"neighbors": best, "training_rows": 80}
    model = kind(best, algorithm="brute").fit(vector_ND[train], target_N[train])
    expected = score(model.predict(vector_ND[test]), target_N[test])
    for name, value_Q in predictions(rival, store, "test").items():
        np.testing.assert_allclose(value_Q, expected[name], atol=1e-9)


def texts_store(folder: Path) -> TaskStore:
    rng = np.random.default_rng(0)
    words = {"x": ["alpha", "amber"], "y": ["beta", "birch"], "z": ["gamma", "green"]}
    rows: list[tuple[str, str, object]] = []
    for split, size in (("train", 60), ("dev", 20), ("test", 20)):
        for _ in range(size):
            # "z" has no training row, and "y" is rare there.
            label = str(rng.choice(["x", "y", "z"], p=[0.8, 0.2, 0] if split == "train" else None))
            content = " ".join(rng.choice([*words[label], "the", "of", "?!"], 6))
            rows.append((split, content, label))
    return store_of(folder, "scicite", rows)


def test_words_of_texts_are_those_of_training_and_a_new_class_is_never_predicted(tmp_path) -> None:
    store = texts_store(tmp_path)
    features = rivals.tfidf(store)
    train, dev = store.split_rows("train"), store.split_rows("dev")
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", sublinear_tf=True
    )
    expected = vectorizer.fit_transform(store.texts(train)).toarray()
    np.testing.assert_allclose(features.ridge_NF[train].toarray(), expected)
    target_N = store.targets(np.arange(store.num_rows))
    rival = rivals.ridge_rival(store, features)
    best = -1.0
    for penalty in rivals.PENALTIES:
        for class_weight in (None, "balanced"):
            model = RidgeClassifier(penalty, class_weight=class_weight).fit(
                expected, target_N[train]
            )
            predicted = model.predict(features.ridge_NF[dev].toarray())
            assert 2 not in predicted
            best = max(best, class_scores(predicted, target_N[dev])["macro_f1"].mean())
    assert predictions(rival, store, "dev")["macro_f1"].mean() == pytest.approx(best)
    gold = target_N[store.split_rows("test")]
    values = predictions(rival, store, "test")["accuracy"]
    assert values[gold == 2].sum() == 0 < values[gold == 1].sum()


def test_many_classes_are_solved_in_the_dual_form(tmp_path, monkeypatch) -> None:
    store = texts_store(tmp_path)
    features = rivals.tfidf(store)
    train = store.split_rows("train")
    target_N = store.targets(np.arange(store.num_rows))
    monkeypatch.setattr(rivals, "MANY_CLASSES", 2)
    monkeypatch.setattr(rivals, "MAX_DUAL_ROWS", 50)
    rival = rivals.ridge_rival(store, features)
    assert rival.settings["training_rows"] == 50
    drawn = rivals.drawn_rows(train, 50)
    assert len(set(drawn.tolist()) & set(train.tolist())) == 50
    settings = rival.settings
    weight = None if settings["class_weight"] == "equal" else "balanced"
    model = RidgeClassifier(settings["penalty"], class_weight=weight, fit_intercept=False)
    model.fit(features.ridge_NF[drawn].toarray(), target_N[drawn])
    test = store.split_rows("test")
    expected = class_scores(model.predict(features.ridge_NF[test].toarray()), target_N[test])
    np.testing.assert_allclose(
        predictions(rival, store, "test")["macro_f1"], expected["macro_f1"], atol=1e-9
    )


def test_costly_searches_of_neighbors_draw_training_rows_and_report_it(
    tmp_path, monkeypatch
) -> None:
    store = texts_store(tmp_path)
    features = rivals.tfidf(store)
    monkeypatch.setattr(rivals, "MAX_REFERENCE_ROWS", 40)
    assert rivals.neighbor_rival(store, features).settings["training_rows"] == 40
    row_NF = features.neighbor_NF.toarray() != 0
    other = np.flatnonzero(store.split_number_N != 0)
    products = sum(
        int((row_NF[query] & row_NF[row]).sum())
        for query in other
        for row in rivals.drawn_rows(store.split_rows("train"), 40)
    )
    monkeypatch.setattr(rivals, "MAX_PRODUCTS", products)
    assert rivals.neighbor_rival(store, features).settings["training_rows"] == 40
    monkeypatch.setattr(rivals, "MAX_PRODUCTS", products - 1)
    assert rivals.neighbor_rival(store, features).settings["training_rows"] == 39


def test_frozen_embeddings_are_standardized_for_ridge_and_of_length_1_for_neighbors() -> None:
    rng = np.random.default_rng(0)
    embedding_ND = rng.standard_normal((50, 4)) * [1, 100, 0.01, 1] + [0, 5, 0, 3]
    embedding_ND[:, 3] = 3.0  # constant
    train, target_T = np.arange(40), rng.standard_normal(40)
    features = rivals.frozen_features(embedding_ND.astype(np.float32), train)
    ours = Ridge(0.5 / 4).fit(features.ridge_NF[train], target_T).predict(features.ridge_NF)
    theirs = make_pipeline(StandardScaler(), Ridge(0.5)).fit(embedding_ND[train], target_T)
    np.testing.assert_allclose(ours, theirs.predict(embedding_ND), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(features.neighbor_NF, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("task", ["fluorescence", "remote_homology"])
def test_equal_sequences_of_one_class_have_rivals_without_a_rank_correlation(
    tmp_path, task
) -> None:
    labels = {"train": ["a"], "dev": ["a", "b"], "test": ["b", "a"]}
    numbers = {split: [1.0, 2.0] for split in labels}
    by_split = labels if task == "remote_homology" else numbers
    rows = [
        (split, "ACDA", of_split[number % len(of_split)])
        for split, of_split in by_split.items()
        for number in range(4)
    ]
    store = store_of(tmp_path, task, rows)
    found = list(rivals.sequence_rivals(store, np.ones((store.num_rows, 3), np.float32)))
    assert [rival.name for rival in found] == [
        f"{model} on {features}"
        for features in ("one-hot", "1-3-mers", "frozen encoder")
        for model in ("ridge", "kNN")
    ]
    for rival in found:
        value_by_measure = predictions(rival, store, "test")
        if task == "fluorescence":
            assert np.isnan(value_by_measure["spearman"]).all(), rival.name
        else:
            assert value_by_measure["accuracy"].tolist() == [0, 1, 0, 1], rival.name


def structures(folder: Path) -> TaskStore:
    """A class by the letter, except for G: there it is that of the residue before it."""
    rng = np.random.default_rng(0)
    class_by_letter = {"A": "H", "C": "E", "D": "C", "W": "H"}
    rows: list[tuple[str, str, object]] = []
    for split, size in (("train", 40), ("dev", 12), ("test", 12)):
        for _ in range(size):
            letters = rng.choice(list("ACDG" if split == "train" else "ACDGW"), rng.integers(5, 20))
            classes: list[str] = []
            for letter in letters:
                given = class_by_letter.get(letter) or (classes[-1] if classes else "C")
                classes.append(given)
            shown = ["" if rng.random() < 0.1 else label for label in classes]
            rows.append((split, "".join(letters), shown))
    return store_of(folder, "secondary_structure", rows)


@pytest.fixture
def residue_system(tmp_path):
    store = structures(tmp_path)
    config = tiny_config("finetune", **{"encoder.max_length": NUM_READ + 1})
    system = METHODS["finetune"].build(config, store.path)
    return store, system.final_evaluate.__self__


def read_labels(store: TaskStore, row: int, num_read: int) -> list[tuple[int, int]]:
    """Position and class of the labeled residues among the first ``num_read``."""
    start, stop = store.indptr_N1[row : row + 2]
    classes = store.class_T[start:stop][:num_read]
    return [(place, int(label)) for place, label in enumerate(classes) if label >= 0]


def test_the_letter_of_a_residue_decides_as_in_a_loop(residue_system) -> None:
    store, evaluator = residue_system
    counts: dict[str, np.ndarray] = {}
    total = np.zeros(3, np.int64)
    for row in store.split_rows("train"):
        for place, label in read_labels(store, row, NUM_READ):
            letter = store.texts(np.array([row]))[0][place]
            counts.setdefault(letter, np.zeros(3, np.int64))[label] += 1
            total[label] += 1
    assert "W" not in counts
    correct = 0
    labeled = 0
    for row in store.split_rows("test"):
        for place, label in read_labels(store, row, NUM_READ):
            letter = store.texts(np.array([row]))[0][place]
            correct += int(counts.get(letter, total).argmax() == label)
            labeled += 1
    rival = residue_rivals.residue_letter_rival(residue_rivals.ResidueTask(store, evaluator.read))
    assert predictions(rival, store, "test")["accuracy"].mean() == pytest.approx(correct / labeled)
    truncated = evaluator.details()["test_labels_not_read"]
    all_labels = sum(len(read_labels(store, row, 99)) for row in store.split_rows("test"))
    assert 0 < truncated == all_labels - labeled


def test_windows_show_the_letters_around_a_residue_and_none_beyond_the_ends(residue_system) -> None:
    store, evaluator = residue_system
    task = residue_rivals.ResidueTask(store, evaluator.read)
    rows = store.split_rows("test")[[3, 0, 5]]
    window_KF = task.windows(rows).toarray()
    expected = []
    for row in rows:
        text = store.texts(np.array([row]))[0]
        for place, _ in read_labels(store, row, NUM_READ):
            features = np.zeros((residue_rivals.WINDOW, 256))
            for offset in range(-7, 8):
                if 0 <= place + offset < len(text):
                    features[offset + 7, ord(text[place + offset])] = 1
            expected.append(features.ravel())
    np.testing.assert_allclose(window_KF * residue_rivals.WINDOW**0.5, expected)


def test_states_are_those_of_the_labeled_tokens_with_any_number_of_workers(residue_system) -> None:
    store, evaluator = residue_system
    encoder = evaluator.initial_encoder().encoder.eval()
    rows = store.split_rows("dev")
    arguments = (store, evaluator.read, encoder, rows, 64)
    state_KD = residue_rivals.residue_states(*arguments, SingleProcess())
    expected = []
    for row in rows:
        token_T, _, is_special_T = evaluator.read(np.array([row]))
        batch = TokenBatch(
            torch.from_numpy(token_T.astype(np.int64)),
            torch.tensor([0, len(token_T)]),
            torch.full((len(token_T),), IGNORED_LABEL),
        )
        tokens = batch.pad(torch.tensor([0]), encoder.pad_id)
        with torch.no_grad():
            hidden_LD = encoder(tokens).hidden_RLD[0][: len(token_T)]
        places = [place for place, _ in read_labels(store, row, NUM_READ)]
        expected.append(hidden_LD[~is_special_T][places])
    np.testing.assert_allclose(state_KD, torch.cat(expected), atol=1e-5)
    by_rank = in_threads(
        3, lambda collective: residue_rivals.residue_states(*arguments, collective)
    )
    for states in by_rank:
        np.testing.assert_allclose(states, state_KD, atol=1e-6)


def test_ridge_on_windows_is_scikit_learns_and_sees_the_residue_before(
    residue_system, monkeypatch
) -> None:
    store, evaluator = residue_system
    task = residue_rivals.ResidueTask(store, evaluator.read)
    rival = residue_rivals.residue_ridge_rival(task, "windows", task.windows)
    train, test = store.split_rows("train"), store.split_rows("test")
    model = RidgeClassifier(rival.settings["penalty"])
    model.fit(task.windows(train).toarray(), task.classes(train))
    correct = model.predict(task.windows(test).toarray()) == task.classes(test)
    ours = predictions(rival, store, "test")["accuracy"].mean()
    assert ours == pytest.approx(correct.mean())
    letter = predictions(residue_rivals.residue_letter_rival(task), store, "test")
    assert ours > letter["accuracy"].mean() + 0.02
    # Whole proteins are drawn where training has too many residues.
    monkeypatch.setattr(residue_rivals, "MAX_RESIDUES", 100)
    few = residue_rivals.ResidueTask(store, evaluator.read)
    sizes = [len(few.classes(np.array([row]))) for row in few.training_rows]
    assert 80 < sum(sizes) <= 100
    monkeypatch.setattr(residue_rivals, "MAX_RESIDUES", 0)
    assert len(residue_rivals.ResidueTask(store, evaluator.read).training_rows) == 1


def test_dev_residues_choose_the_penalty_of_windows(residue_system, monkeypatch) -> None:
    """One model is right on dev rows only, the other on test rows only."""
    store, evaluator = residue_system
    task = residue_rivals.ResidueTask(store, evaluator.read)

    class RightOn:
        def __init__(self, split: str) -> None:
            self.rows = set(store.split_rows(split).tolist())

        def predict(self, features: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
            class_K, row_K = features
            is_right_K = np.isin(row_K, list(self.rows))
            return np.where(is_right_K, class_K, (class_K + 1) % 3)

    def features(row_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return task.classes(row_R), np.asarray(row_R)[task.residues(row_R)[0]]

    models = [({"penalty": split}, RightOn(split)) for split in ("test", "dev")]
    monkeypatch.setattr(residue_rivals, "fitted_ridges", lambda *_, **__: models)
    rival = residue_rivals.residue_ridge_rival(task, "windows", features)
    assert rival.settings["penalty"] == "dev"


def test_the_final_table_shows_rivals_that_no_setting_of_training_changes(tiny_task) -> None:
    config = tiny_config("finetune", **{"schedule.max_steps": 1})
    system = METHODS["finetune"].build(config, tiny_task.path)
    report = system.final_evaluate(system.model, SingleProcess())
    names = [
        f"{model} on {features}"
        for features in ("1-3-mers", "frozen encoder")
        for model in ("ridge", "kNN")
    ]
    assert list(report.scores) == ["chance", *names, "initial", "trained"]
    assert set(report.details["rivals"]) == set(names)
    for name in names:
        assert report.scores[name].keys() == report.scores["trained"].keys()
        score = report.scores[name]["test"]["score"]
        assert score["low"] <= score["value"] <= score["high"]
    assert report.scores["ridge on 1-3-mers"]["test"]["score"]["value"] > 0.9
    other = override_all(config, {"optim.peak_lr": 0.1, "encoder.head": "linear"})
    again = METHODS["finetune"].build(other, tiny_task.path).final_evaluate.__self__
    for name, found in again.rivals("cpu", SingleProcess()):
        assert found.scores == report.scores[name]


def _rivals_of_two_workers(rank: int, collective: Collective, folder: Path) -> None:
    config = tiny_config("finetune")
    evaluator = METHODS["finetune"].build(config, folder / "store").final_evaluate.__self__
    shared = dict(evaluator.rivals("cpu", collective))
    for name, alone in evaluator.rivals("cpu", SingleProcess()):
        assert shared[name].scores == alone.scores, (rank, name)
        assert shared[name].details == alone.details


@pytest.mark.nightly
def test_two_workers_compute_the_rivals_of_residues_as_one(tmp_path) -> None:
    structures(tmp_path)
    run_workers(_rivals_of_two_workers, 2, tmp_path)


@pytest.mark.parametrize("wrapper", [_TokenCounts, residue_rivals._LabeledStates])
def test_a_gpu_reads_residues_padded_without_a_warning(wrapper, caplog):
    encoder = Encoder()
    encoder.width = 4
    encoder.pad_id = 0
    assert not reads_packed(wrapper(encoder), torch.device("cuda"))
    assert caplog.messages == []
