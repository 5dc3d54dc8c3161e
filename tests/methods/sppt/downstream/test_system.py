"""Fine-tuning on downstream tasks, beyond the conformance tests: residues, numbers and texts."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from raybio.core.batch import PaddedTokens
from raybio.core.config import override_all
from raybio.core.errors import ConfigError
from raybio.methods import METHODS
from raybio.methods.sppt.downstream.evaluate import MIN_NEW_ROWS
from raybio.methods.sppt.downstream.formats.read import read_task_files
from raybio.methods.sppt.downstream.heads import ConvTokenHead
from raybio.methods.sppt.downstream.prepare import prepare_task
from raybio.methods.sppt.scores import with_intervals
from raybio.store.store import Store
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import SingleProcess
from raybio.training.grad_cache import compute_gradients
from raybio.training.loop import fit
from raybio.training.precision import Precision
from tests.methods.conformance_cases import tiny_config
from tests.methods.test_conformance import assert_equal_gradients, gradients

NAME = "finetune"


def task_of(folder: Path, name: str) -> Store:
    """Alanine is helix, tryptophan strand, all else coil; a number is the share of alanine."""
    rng = np.random.default_rng(0)
    endings = {
        "train": "train",
        "dev": "valid",
        "test": "cb513" if name == "secondary_structure" else "test",
    }
    for split, ending in endings.items():
        records = []
        for _ in range(60 if split == "train" else 20):
            letters = rng.choice(
                list("AWGK"), int(rng.integers(10, 30)), p=rng.dirichlet(np.ones(4))
            )
            records.append(
                {
                    "primary": "".join(letters),
                    "ss3": [{"A": 0, "W": 1}.get(letter, 2) for letter in letters],
                    "stability_score": [float((letters == "A").mean())],
                }
            )
        (folder / f"{name}_{ending}.json").write_text(json.dumps(records))
    return prepare_task(folder / "store", name, *read_task_files(name, folder))


@pytest.fixture(params=["secondary_structure", "stability"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return task_of(tmp_path, request.param)


@pytest.mark.nightly
def test_residues_and_numbers_are_learned(store: Store) -> None:
    config = tiny_config(NAME, **{"schedule.max_steps": 120, "schedule.evaluate_every_steps": 60})
    system = METHODS[NAME].build(config, store.path)
    list(fit(system, config))
    final = system.final_evaluate(system.model, SingleProcess())
    score = {who: row["test"]["score"]["value"] for who, row in final.scores.items()}
    assert score["trained"] > max(0.85, score["initial"] + 0.1), score
    measure = {"secondary_structure": "accuracy", "stability": "spearman"}[store.task]
    assert final.details["measure"] == measure
    shown = {"accuracy": "accuracy", "spearman": "Spearman's ρ"}[measure]
    assert final.remarks == (f"score of {store.task}: {shown}",)
    trained = final.scores["trained"]["test"]
    assert trained[measure] == trained["score"]
    assert final.unit_scores["trained"]["test"].value_by_measure["score"].mean() == pytest.approx(
        score["trained"]
    )


def test_no_dropout_lies_between_a_protein_and_its_head(store: Store) -> None:
    """TAPE's heads have none; where sequences are nearly alike it is more than they differ by."""
    system = METHODS[NAME].build(tiny_config(NAME, **{"encoder.dropout": 0.5}), store.path)
    model = system.model.train()
    model.encoder.eval()
    tokens = system.batch_type.from_arrays(system.collate(0, 0, 1)).pad(
        torch.arange(4), model.pad_id
    )
    assert torch.equal(model(tokens).embedding_RD, model(tokens).embedding_RD)


def test_gradients_do_not_depend_on_micro_batches(store: Store) -> None:
    system = METHODS[NAME].build(tiny_config(NAME), store.path)
    small = gradients(system, SingleProcess(), 2, max_tokens=80)
    system.model.zero_grad(set_to_none=True)
    assert_equal_gradients(small, gradients(system, SingleProcess(), 2, max_tokens=100_000))


def test_chance_is_the_loss_of_the_best_constant_prediction_for_the_training_labels(
    store: Store,
) -> None:
    num_rows = len(store.split_rows("train"))
    config = tiny_config(NAME, **{"plan.global_batch_rows": num_rows})
    system = METHODS[NAME].build(config, store.path)

    def chance(constant_C: torch.Tensor) -> float:
        """Return the chance level of a step with all training rows."""
        objective = replace(system.objective, constant_scores_C=constant_C)
        _, terms = compute_gradients(
            replace(system, objective=objective),
            system.batch_type.from_arrays(system.collate(0, 0, 1)),
            SingleProcess(),
            max_tokens=10_000,
            gradient_caching=False,
            precision=Precision("fp32", "cpu"),
            seed_of=lambda number: number,
        )
        return float(terms["task_chance"])

    constant_C = system.objective.constant_scores_C
    least = chance(constant_C)
    if store.task == "stability":
        assert least == pytest.approx(0.5, rel=1e-5)  # half the variance of standardized numbers
    else:
        row_T = np.repeat(np.arange(store.num_rows), np.diff(store.indptr_N1))
        class_K = store.class_T[np.isin(row_T, store.split_rows("train"))]
        share_C = np.bincount(class_K) / len(class_K)
        assert least == pytest.approx(-(share_C * np.log(share_C)).sum(), rel=1e-5)
    for number in range(len(constant_C)):
        for change in (-0.1, 0.1):
            other_C = constant_C.clone()
            other_C[number] += change
            assert chance(other_C) > least


def test_scores_of_a_token_do_not_depend_on_padding() -> None:
    head = ConvTokenHead(16, 3).eval()
    hidden_RLD = torch.randn(1, 6, 16)
    alone = head(hidden_RLD, torch.ones(1, 6, dtype=torch.bool))
    padded = torch.cat([hidden_RLD, torch.randn(1, 4, 16)], 1)
    mask = torch.arange(10)[None] < 6
    torch.testing.assert_close(head(padded, mask)[:, :6], alone)


def numbers_of(folder: Path, test_sign: float) -> Store:
    """Shares of alanine; those of test are turned round by a sign of -1."""
    task_of(folder, "stability")
    path = folder / "stability_test.json"
    rows = [
        row | {"stability_score": [test_sign * row["stability_score"][0]]}
        for row in json.loads(path.read_text())
    ]
    path.write_text(json.dumps(rows))
    return prepare_task(folder / "signed", "stability", *read_task_files("stability", folder))


def test_nothing_is_chosen_by_test_rows_and_what_was_chosen_by_dev_is_scored(
    tmp_path: Path,
) -> None:
    found = []
    for sign in (1.0, -1.0):
        (tmp_path / str(sign)).mkdir()
        store = numbers_of(tmp_path / str(sign), sign)
        # The rate is too high, so that the last weights are not the best.
        settings = {
            "schedule.max_steps": 30,
            "schedule.evaluate_every_steps": 2,
            "schedule.keep_best": "val/log_likelihood",
            "optim.peak_lr": 0.03,
        }
        config = tiny_config(NAME, **settings)
        system = METHODS[NAME].build(config, store.path)
        checkpoints = CheckpointStore(tmp_path / str(sign) / "checkpoints")
        steps = fit(system, config, checkpoints=checkpoints)
        reports = [report.metrics for report in steps if report.is_evaluation]
        seen = [
            {name: value for name, value in one.items() if name.startswith("val/")}
            for one in reports
        ]
        scores = system.final_evaluate(system.model, SingleProcess()).scores["trained"]
        found.append(
            (seen, {split: scores[split]["spearman"]["value"] for split in ("dev", "test")})
        )
    (seen, upright), (seen_again, turned) = found
    assert seen == seen_again
    assert turned["dev"] == upright["dev"] and turned["test"] == pytest.approx(-upright["test"])
    after_start = seen[1:]
    likelihoods = [metrics["val/log_likelihood"] for metrics in after_start]
    best = int(np.argmax(likelihoods))
    assert best < len(likelihoods) - 1
    assert upright["dev"] == pytest.approx(after_start[best]["val/spearman"])


@pytest.mark.parametrize("num_new", [MIN_NEW_ROWS - 1, MIN_NEW_ROWS])
def test_test_rows_that_training_has_not_are_scored_apart_if_they_are_enough(
    tmp_path: Path, num_new: int
) -> None:
    new = [f"new {number}" for number in range(num_new)]
    rows = {"train": ["a", "b", "c", "d"], "dev": ["e", "f"], "test": ["a", *new, "b"]}
    for split, texts in rows.items():
        lines = [
            json.dumps({"text": f"text {text}", "label": "xy"[n % 2]})
            for n, text in enumerate(texts)
        ]
        (tmp_path / f"{split}.txt").write_text("\n".join(lines))
    store = prepare_task(tmp_path / "store", "scicite", *read_task_files("scicite", tmp_path))
    assert store.texts(store.new_rows("test")) == [f"text {text}" for text in new]
    assert store.known_from_training() == {"dev": 0, "test": 2}
    system = METHODS[NAME].build(tiny_config(NAME), store.path)
    final = system.final_evaluate(system.model, SingleProcess())
    measured = final.unit_scores["trained"]
    if num_new < MIN_NEW_ROWS:
        assert set(measured) == set(final.scores["trained"]) == {"dev", "test"}
        return
    assert measured["new_test"].unit_U.tolist() == store.new_rows("test").tolist()
    is_new = np.isin(measured["test"].unit_U, measured["new_test"].unit_U)
    correct = {split: one.value_by_measure["accuracy"] for split, one in measured.items()}
    assert correct["new_test"].tolist() == correct["test"][is_new].tolist()
    assert final.scores["trained"]["new_test"]["accuracy"]["value"] == pytest.approx(
        correct["new_test"].mean()
    )


def test_intervals_of_bounded_scores_end_at_their_limits() -> None:
    few = {
        "macro_f1": np.array([0.0] * 30 + [-0.4, 1.0]),
        "accuracy": np.array([1.0, 1.2, 0.7]),
        "spearman": np.array([-1.5, -1.0, -0.2]),
        "negative_mse": np.array([-3.0, -1.0, -2.0]),
    }
    plain = with_intervals(few, 0, {})
    cut = with_intervals(few, 0)
    assert plain["macro_f1"]["low"] < 0 == cut["macro_f1"]["low"]
    assert plain["accuracy"]["high"] > 1 == cut["accuracy"]["high"]
    assert plain["spearman"]["low"] < -1 == cut["spearman"]["low"]
    assert plain["macro_f1"]["high"] == cut["macro_f1"]["high"]
    assert plain["negative_mse"] == cut["negative_mse"]


def test_texts_are_tuned_and_exported(tiny_task: Store, tiny_store: Store, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for split, size in (("train", 60), ("dev", 20), ("test", 20)):
        words = {"a": ["alpha", "amber", "apple"], "b": ["beta", "birch", "bread"]}
        rows = [
            (label, " ".join(rng.choice([*words[label], "the", "of"], 8)))
            for label in rng.choice(["a", "b"], size)
        ]
        lines = (json.dumps({"text": text, "label": str(label)}) for label, text in rows)
        (tmp_path / f"{split}.txt").write_text("\n".join(lines))
    store = prepare_task(tmp_path / "store", "scicite", *read_task_files("scicite", tmp_path))
    config = tiny_config(NAME, **{"encoder.vocabulary_size": 200, "schedule.max_steps": 80})
    system = METHODS[NAME].build(config, store.path)
    list(fit(system, config))
    scores = system.final_evaluate(system.model, SingleProcess()).scores
    assert scores["trained"]["test"]["macro_f1"]["value"] > 0.9
    with_dropout = METHODS[NAME].build(override_all(config, {"encoder.dropout": 0.25}), store.path)
    assert with_dropout.model.dropout.p == 0.25  # before the head, as in the authors' code
    folder = system.export(tmp_path / "export", {})
    again = override_all(config, {"encoder.source": str(folder)})
    tuned = METHODS[NAME].build(again, store.path).model.encoder
    tokens = PaddedTokens(
        torch.tensor([[2, 7, 8, 3]]), torch.ones(1, 4, dtype=torch.bool), torch.full((1, 4), -100)
    )
    with torch.no_grad():
        pair = [one.eval()(tokens).embedding_RD for one in (tuned, system.model.encoder)]
    torch.testing.assert_close(*pair)
    # It reads no proteins, which is told before anything starts.
    for name, proteins in ((NAME, tiny_task), ("sppt_protein", tiny_store)):
        with pytest.raises(
            ConfigError, match="is no protein encoder: .* Give one whose tokens are single residues"
        ):
            METHODS[name].check(tiny_config(name, **{"encoder.source": str(folder)}), proteins)


@pytest.mark.parametrize(("kind", "on_tokens"), [("mlp", True), ("conv", False)])
def test_heads_that_are_not_for_the_task_are_refused(
    kind: str, on_tokens: bool, tiny_task: Store, tmp_path: Path
) -> None:
    store = task_of(tmp_path, "secondary_structure") if on_tokens else tiny_task
    with pytest.raises(ConfigError, match=f"encoder.head: got {kind}, and the task has labels of"):
        METHODS[NAME].check(tiny_config(NAME, **{"encoder.head": kind}), store)
