import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from raybio.core.config import override
from raybio.core.errors import CheckpointError, ConfigError, DivergedError
from raybio.core.interfaces import Collective
from raybio.methods.sppt.link_retrieval import CUTOFFS
from raybio.methods.sppt.proteins.config import Config
from raybio.methods.sppt.proteins.system import build
from raybio.store.store import Store
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import SingleProcess
from raybio.training.loop import changeable_settings, fit
from tests.methods.conformance_cases import tiny_config
from tests.methods.test_conformance import assert_equal_gradients, gradients
from tests.training.workers import run_workers

NAME = "sppt_protein"
LOSSES = ["multi_similarity", "multi_similarity_global", "margin_contrastive"]


def losses(config: Config, store: Store) -> list[dict[str, float]]:
    return [report.metrics for report in fit(build(config, store.path), config)]


def test_lambda_zero_reads_no_pairs_and_lambda_one_computes_no_vocabulary_scores(
    tiny_store: Store,
) -> None:
    without_graph = build(tiny_config(NAME, **{"objective.lambda_spml": 0.0}), tiny_store.path)
    assert len(without_graph.collate(0, 0, 1)["row_R"]) == 12
    assert set(losses(tiny_config(NAME, **{"objective.lambda_spml": 0.0}), tiny_store)[0]) >= {
        "loss",
        "mlm_loss",
    }
    without_text = build(tiny_config(NAME, **{"objective.lambda_spml": 1.0}), tiny_store.path)
    found = gradients(without_text, SingleProcess(), 0)
    assert not any("cls.predictions" in key for key in found)
    assert (
        "mlm_loss" not in losses(tiny_config(NAME, **{"objective.lambda_spml": 1.0}), tiny_store)[0]
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weight", [0.1, 0.9])
def test_the_loss_is_the_weighted_sum_of_its_two_parts(
    tiny_store: Store, loss: str, weight: float
) -> None:
    config = tiny_config(NAME, **{"objective.loss": loss, "objective.lambda_spml": weight})
    for metrics in losses(config, tiny_store):
        expected = (1 - weight) * metrics["mlm_loss"] + weight * metrics["spml_loss"]
        assert metrics["loss"] == pytest.approx(expected, rel=1e-5)


def test_the_language_model_loss_of_an_untrained_encoder_is_that_of_a_uniform_guess(
    tiny_store: Store,
) -> None:
    config = tiny_config(NAME, **{"objective.lambda_spml": 0.0, "schedule.max_steps": 1})
    assert losses(config, tiny_store)[0]["mlm_loss"] == pytest.approx(math.log(30), rel=0.1)


def test_a_length_beyond_the_positions_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match="4096.*64"):
        override(Config(), "encoder.max_positions", 64)


def test_the_back_of_sequences_is_no_crop_since_evaluations_read_the_front() -> None:
    with pytest.raises(ConfigError, match="input.crop"):
        override(Config(), "input.crop", "back")


def test_clean_anchors_are_refused_where_the_language_model_needs_masked_ones() -> None:
    with pytest.raises(ConfigError, match="lambda_spml = 1 only"):
        tiny_config(NAME, **{"objective.masked_anchors": False})
    assert not tiny_config(
        NAME, **{"objective.masked_anchors": False, "objective.lambda_spml": 1.0}
    ).objective.masked_anchors


def test_negatives_from_outside_the_group_are_counted(tiny_store: Store) -> None:
    assert losses(tiny_config(NAME), tiny_store)[0]["fallback_negatives"] == 0


def test_margin_contrastive_wants_as_many_negatives_as_positives() -> None:
    config = override(Config(), "objective.loss", "margin_contrastive")
    with pytest.raises(ConfigError, match="want equal numbers"):
        override(config, "plan.num_positives_per_anchor", 2)


def test_several_positives_and_negatives_train_with_either_loss(tiny_store: Store) -> None:
    for loss in LOSSES:
        per_anchor = {"plan.num_positives_per_anchor": 2, "plan.num_negatives_per_anchor": 2}
        config = tiny_config(NAME, **per_anchor, **{"objective.loss": loss})
        assert all(math.isfinite(metrics["loss"]) for metrics in losses(config, tiny_store))


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_weights(tiny_store: Store) -> None:
    config = tiny_config(NAME)
    system = build(config, tiny_store.path)
    with torch.no_grad():
        next(system.model.parameters())[:] = math.nan
    before = {key: value.clone() for key, value in system.model.state_dict().items()}
    with pytest.raises(DivergedError, match="step 0: loss nan"):
        list(fit(system, config))
    for key, value in system.model.state_dict().items():
        assert torch.equal(value.isnan(), before[key].isnan())
        assert torch.equal(value.nan_to_num(), before[key].nan_to_num())


def test_skipped_steps_are_counted(tiny_store: Store) -> None:
    config = tiny_config(NAME, on_nonfinite="skip")
    system = build(config, tiny_store.path)
    with torch.no_grad():
        next(system.model.parameters())[:] = math.nan
    assert list(fit(system, config))[-1].metrics["skipped_steps"] == 6


@pytest.mark.parametrize(("num_nodes", "num_groups"), [(50, 1), (3, 1), (3, 9), (0, 0)])
def test_the_table_names_the_settings_that_kept_proteins_from_choosing_the_step(
    tiny_store: Store, num_nodes: int, num_groups: int
) -> None:
    """Each of the two groups has 32 proteins."""
    settings = {
        "schedule.evaluate_every_steps": 2,
        "schedule.keep_best": "val/link_mrr",
        "evaluation.num_nodes_per_group": num_nodes,
        "evaluation.num_groups": num_groups,
    }
    system = build(tiny_config("sppt_protein", **settings), tiny_store.path)
    remarks = [
        remark for remark in system.final_evaluate.__self__.remarks() if "was chosen on" in remark
    ]
    names = ["evaluation.num_nodes_per_group"] * (num_nodes == 3)
    names += ["evaluation.num_groups"] * (num_groups == 1)
    assert len(remarks) == bool(names)
    for remark in remarks:
        assert remark.endswith(f" links ({', '.join(names)})")


def test_early_stopping_ends_a_run_whose_metric_no_longer_rises(tiny_store: Store) -> None:
    config = tiny_config(
        NAME,
        **{
            "schedule.evaluate_every_steps": 1,
            "schedule.early_stopping_metric": "val/link_mrr",
            "schedule.early_stopping_patience": 2,
            "schedule.max_steps": 40,
            "optim.peak_lr": 1e-12,
        },
    )
    reports = list(fit(build(config, tiny_store.path), config))
    assert reports[-1].reason == "early_stopping"
    assert reports[-1].step == 2


def test_a_stop_request_ends_the_run_after_the_step(tiny_store: Store) -> None:
    config = tiny_config(NAME)
    answers = iter([False, False, False, True])  # at the start, and after each step
    reports = list(fit(build(config, tiny_store.path), config, should_stop=lambda: next(answers)))
    assert (reports[-1].step, reports[-1].reason, reports[-1].is_last) == (3, "stopped", True)


def test_the_end_may_move_when_the_learning_rate_does_not_depend_on_it() -> None:
    assert "schedule.max_steps" in changeable_settings(Config())
    assert "schedule.max_steps" not in changeable_settings(
        override(Config(), "optim.schedule", "linear")
    )


def save_gradients(rank: int, collective: Collective, folder: Path, loss: str, store: str) -> None:
    system = build(
        tiny_config(NAME, **{"objective.loss": loss, "plan.global_batch_rows": 7}), store
    )
    found = gradients(system, collective, 3)
    save_file(found, folder / f"{rank}.safetensors")


@pytest.mark.nightly
@pytest.mark.parametrize("loss", LOSSES[1:])
def test_every_graph_loss_has_the_gradient_of_one_worker_on_two(
    tiny_store: Store, tmp_path: Path, loss: str
) -> None:
    system = build(
        tiny_config(NAME, **{"objective.loss": loss, "plan.global_batch_rows": 7}), tiny_store.path
    )
    alone = gradients(system, SingleProcess(), 3)
    run_workers(partial(save_gradients, loss=loss, store=str(tiny_store.path)), 2, tmp_path)
    assert_equal_gradients(load_file(tmp_path / "1.safetensors"), alone)


def test_another_tokenizer_is_refused_when_a_run_goes_on(tiny_store: Store, tmp_path: Path) -> None:
    config = tiny_config(NAME)
    system = build(config, tiny_store.path)
    list(fit(system, config, checkpoints=CheckpointStore(tmp_path)))
    other = replace(system, data_digest=system.data_digest[:-1] + "?")
    with pytest.raises(CheckpointError, match="data digest"):
        list(fit(other, config, checkpoints=CheckpointStore(tmp_path)))
    esm = build(tiny_config(NAME, **{"encoder.vocabulary": "esm"}), tiny_store.path)
    assert esm.data_digest != system.data_digest


def test_report_and_metrics_hold_precision_and_recall_at_the_cut_offs(tiny_store: Store) -> None:
    system = build(tiny_config(NAME), tiny_store.path)
    names = {f"{measure}_at_{k}" for measure in ("precision", "recall") for k in CUTOFFS}
    metrics = system.evaluate(system.model, SingleProcess())
    assert {f"train/link_{name}" for name in names} <= metrics.keys()
    scores = system.final_evaluate(system.model, SingleProcess()).scores
    for stage in ("chance", "random", "initial", "trained"):
        train = scores[stage]["train"]
        assert names <= train.keys(), stage
        recalls = [train[f"recall_at_{k}"]["value"] for k in CUTOFFS]
        assert recalls == sorted(recalls), stage
        for k in CUTOFFS:
            assert 0 <= train[f"precision_at_{k}"]["value"] <= 1, (stage, k)
