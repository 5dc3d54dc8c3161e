"""Labels by a tuned encoder: the figures are those of ``raybio train finetune``."""

from pathlib import Path

import numpy as np
import pytest

from raybio.benchmark.models import BenchmarkModel, read_models
from raybio.benchmark.tasks.labels import LabelsTask
from raybio.core.config import override_all
from raybio.core.errors import ConfigError
from raybio.methods import METHODS
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.run_loop import Training, train_single_process
from raybio.store.store import Store
from raybio.training.collective import SingleProcess
from tests.methods.conformance_cases import tiny_config
from tests.methods.sppt.downstream.test_own_tables import prepared, rows_of, write_csv

STEPS = 20
PEAK_LR = 1e-2


@pytest.mark.parametrize("name", ["remote_homology", "protein_multilabel"])
def test_a_tuned_encoder_has_the_figures_of_fine_tuning(
    name: str, tiny_store: Store, tiny_task: TaskStore, tmp_path: Path
) -> None:
    store = tiny_task
    if name == "protein_multilabel":
        store = prepared(name, write_csv(tmp_path / "a.csv", rows_of(name)), tmp_path / "store")
    system = METHODS["sppt_protein"].build(tiny_config("sppt_protein"), tiny_store.path)
    export = str(system.export(tmp_path / "proteins", {}))
    (model,) = read_models([export], tmp_path / "report")
    assert isinstance(model, BenchmarkModel)
    task = LabelsTask(
        name="own",
        labels=name,
        store=store.path,
        head="tuned",
        steps=STEPS,
        peak_lr=PEAK_LR,
    )
    scores = task.score(model)
    # The folder of the encoder is as before.
    assert model.embedding.digest() == model.digest

    settings = {
        "encoder.source": export,
        "encoder.max_length": model.whole_inputs.max_tokens,
        "optim.peak_lr": PEAK_LR,
        "schedule.max_steps": STEPS,
        "schedule.evaluate_every_steps": 0,
        "evaluation.rivals": False,
        "precision": "fp32",
    }
    config = override_all(METHODS["finetune"].config(), settings)
    system = METHODS["finetune"].build(config, store.path)
    folder = RunFolder(tmp_path, "run")
    folder.open("finetune", config, Path(store.path), store.digest, ())
    training = Training(system=system, config=config, folder=folder, device="cpu", precision="fp32")
    assert [report.step for report in train_single_process(training)][-1] == STEPS
    assert system.final_evaluate is not None
    final = system.final_evaluate(system.model, SingleProcess())
    trained = final.scores["trained"]
    assert trained["test"]["score"] != final.scores["initial"]["test"]["score"]
    assert scores.score == pytest.approx(trained["test"]["score"]["value"])
    assert scores.others[f"{task.measure} on dev"] == pytest.approx(
        trained["dev"]["score"]["value"]
    )
    units = final.unit_scores["trained"]["test"]
    assert scores.unit_ids == tuple(map(str, units.unit_U.tolist()))
    np.testing.assert_allclose(scores.numerator_U, units.value_by_measure["score"])
    assert scores.processor_seconds > 0

    # Rivals and chance are those of the frozen encoder's task, so the rows can be compared.
    frozen = LabelsTask(name="own", labels=name, store=store.path)
    rivals = task.rivals(None)
    for name, rival in frozen.rivals(None).items():
        assert rivals[name].score == rival.score
        assert rivals[name].unit_ids == scores.unit_ids
    assert task.facts().chance == frozen.facts().chance
    assert f"{STEPS} steps" in task.facts().protocol
    assert task.identity() != frozen.identity()


def test_frozen_encoders_have_the_figures_of_fine_tuning_for_sets_of_classes(
    tiny_store: Store, tmp_path: Path
) -> None:
    system = METHODS["sppt_protein"].build(tiny_config("sppt_protein"), tiny_store.path)
    export = str(system.export(tmp_path / "proteins", {}))
    (model,) = read_models([export], tmp_path / "report")
    assert isinstance(model, BenchmarkModel)
    data = write_csv(tmp_path / "a.csv", rows_of("protein_multilabel"))
    task = LabelsTask(name="own", labels="protein_multilabel", data=data)
    assert task.check() == ""
    store = prepared("protein_multilabel", data, tmp_path / "store")
    settings = {
        "encoder.source": export,
        "encoder.max_length": model.whole_inputs.max_tokens,
        "encoder.pooling": "auto",
    }
    config = tiny_config("finetune", **settings)
    system = METHODS["finetune"].build(config, store.path)
    assert system.final_evaluate is not None
    final = system.final_evaluate(system.model, SingleProcess())
    test = {stage: by_split["test"] for stage, by_split in final.scores.items()}
    facts = task.facts()
    assert "Ridge regression on standardized embeddings" in facts.protocol
    assert "dev chooses its penalty and threshold" in facts.protocol
    assert facts.chance == {
        "macro F1": pytest.approx(test["chance"]["macro_f1"]["value"]),
        "micro F1": pytest.approx(test["chance"]["micro_f1"]["value"]),
    }
    found = {"ridge on frozen encoder": task.score(model), **task.rivals(model)}
    assert found["ridge on frozen encoder"].others["kNN macro F1"] == pytest.approx(
        test["kNN on frozen encoder"]["macro_f1"]["value"]
    )
    compared = found.keys() & test.keys()
    assert len(compared) == 5  # ridge and kNN on one-hot and on 1-3-mers, too
    for stage in compared:
        scores = found[stage]
        assert scores.score == pytest.approx(test[stage]["macro_f1"]["value"])
        assert scores.others["micro F1"] == pytest.approx(test[stage]["micro_f1"]["value"])


def test_settings_of_a_training_are_refused_for_a_frozen_encoder() -> None:
    fields = {"name": "own", "labels": "remote_homology", "demo": True}
    with pytest.raises(
        ConfigError, match="task own: steps and peak_lr are ignored with head: frozen; leave"
    ):
        LabelsTask(**fields, steps=3000, peak_lr=1e-3).check()
    assert LabelsTask(**fields, head="tuned", steps=3000).check() == ""
