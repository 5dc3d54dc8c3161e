"""The training loop: resume, early stopping, signals."""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from raybio.core.batch import TokenBatch
from raybio.core.errors import CheckpointError, ClusterError, ConfigError, DivergedError
from raybio.core.interfaces import Collective, LossReport, Objective
from raybio.methods import METHODS
from raybio.store.store import Store
from raybio.training import step as step_module
from raybio.training.checkpoint import CheckpointStore, list_checkpoints, step_of_checkpoint
from raybio.training.collective import SingleProcess
from raybio.training.grad_cache import compute_gradients
from raybio.training.loop import Report, fit, local_batches
from raybio.training.micro_batches import micro_batches
from raybio.training.precision import Precision
from raybio.training.settings import TrainingConfig
from raybio.training.step import TrainStep
from tests.methods.conformance_cases import tiny_config
from tests.training.workers import run_workers

NAME = "sppt_protein"


class Walk:
    """Two workers whose folders differ: only rank 0 has the checkpoint of an earlier start."""

    def __init__(self, store: str, folder: Path) -> None:
        self.store, self.folder = store, folder

    def __call__(self, rank: int, collective: Collective, folder: Path) -> None:
        config = tiny_config(NAME)
        checkpoints = CheckpointStore(self.folder / str(rank))
        with pytest.raises(ClusterError, match="steps 0 to 4"):
            list(
                fit(
                    METHODS[NAME].build(config, self.store),
                    config,
                    collective=collective,
                    checkpoints=checkpoints,
                )
            )


def test_workers_with_different_checkpoints_refuse_to_resume(
    tiny_store: Store, tmp_path: Path
) -> None:
    config = tiny_config(NAME)
    checkpoints = CheckpointStore(tmp_path / "0")
    for report in fit(
        METHODS[NAME].build(config, tiny_store.path), config, checkpoints=checkpoints
    ):
        if report.step == 4:
            break
    checkpoints.close()
    run_workers(Walk(str(tiny_store.path), tmp_path), 2, tmp_path)


def test_every_step_is_reported_once_and_in_order(tiny_store: Store) -> None:
    config = tiny_config(
        NAME, **{"schedule.evaluate_every_steps": 3, "schedule.log_every_steps": 2}
    )
    reports = list(fit(METHODS[NAME].build(config, tiny_store.path), config))
    assert [report.step for report in reports] == [0, 1, 2, 3, 4, 6]
    assert [report.step for report in reports if report.is_evaluation] == [0, 3, 6]
    assert [report.is_last for report in reports] == [False] * 5 + [True]


def reports_by_clock_of_stream(
    store: str, collective: Collective, seconds_per_batch: float
) -> list[Report]:
    """Train by a clock that only the stream of this worker moves."""
    now = 0.0
    config = tiny_config(NAME, **{"schedule.log_every_steps": 2})
    system = METHODS[NAME].build(config, store)

    def slow(first_step: int) -> Iterator[tuple[int, TokenBatch]]:
        nonlocal now
        for item in local_batches(system, 6, collective)(first_step):
            now += seconds_per_batch
            yield item

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: now)
        return list(fit(system, config, batches=slow, collective=collective))


def stall_by_step(reports: Sequence[Report]) -> dict[int, float]:
    return {report.step: report.metrics["stall_seconds"] for report in reports}


def test_a_report_says_how_long_the_loop_waited_for_input(tiny_store: Store) -> None:
    reports = reports_by_clock_of_stream(str(tiny_store.path), SingleProcess(), 2.0)
    assert stall_by_step(reports) == {1: 2.0, 2: 2.0, 3: 2.0, 4: 2.0, 6: 4.0}
    assert reports[-1].metrics["steps_per_second"] == 0.5


def wait_for_second_input(rank: int, collective: Collective, folder: Path, store: str) -> None:
    reports = reports_by_clock_of_stream(store, collective, 2.0 if rank == 1 else 0.25)
    assert stall_by_step(reports) == {1: 2.0, 2: 2.0, 3: 2.0, 4: 2.0, 6: 4.0}


def test_every_worker_reports_the_wait_of_the_one_whose_input_is_slowest(
    tiny_store: Store, tmp_path: Path
) -> None:
    run_workers(partial(wait_for_second_input, store=str(tiny_store.path)), 2, tmp_path)


def test_a_finished_run_takes_no_step_and_a_longer_one_resumes(
    tiny_store: Store, tmp_path: Path
) -> None:
    def steps(max_steps: int) -> list[int]:
        config = tiny_config(NAME, **{"schedule.max_steps": max_steps})
        system = METHODS[NAME].build(config, tiny_store.path)
        return [
            report.step for report in fit(system, config, checkpoints=CheckpointStore(tmp_path))
        ]

    assert steps(4) == [1, 2, 3, 4]
    assert steps(4) == [4]
    assert steps(6) == [5, 6]


def test_collective_operations_are_named_by_the_updates_before_them(
    tiny_store: Store, tmp_path: Path
) -> None:
    """A worker that waits says so, in the starts of a run too."""

    class Noted(SingleProcess):
        """Keeps the step of each sum that a worker would wait for."""

        def __init__(self) -> None:
            self.steps: list[int | None] = []

        def all_sum(self, tensor: torch.Tensor) -> torch.Tensor:
            self.steps.append(self.step)
            return super().all_sum(tensor)

        def all_max(self, tensor: torch.Tensor) -> torch.Tensor:
            self.steps.append(self.step)
            return super().all_max(tensor)

    def steps(max_steps: int) -> list[int | None]:
        config = tiny_config(NAME, **{"schedule.max_steps": max_steps})
        system = METHODS[NAME].build(config, tiny_store.path)
        collective = Noted()
        for _ in fit(system, config, collective=collective, checkpoints=CheckpointStore(tmp_path)):
            pass
        return list(dict.fromkeys(collective.steps))

    assert steps(3) == [0, 1, 2, 3]
    assert steps(5) == [3, 4, 5]


def test_changed_settings_are_refused_with_the_difference(
    tiny_store: Store, tmp_path: Path
) -> None:
    for changes in ({}, {"objective.lambda_spml": 0.25}):
        config = tiny_config(NAME, **changes)
        run = fit(
            METHODS[NAME].build(config, tiny_store.path),
            config,
            checkpoints=CheckpointStore(tmp_path),
        )
        if not changes:
            list(run)
            continue
        with pytest.raises(CheckpointError, match=r"objective.lambda_spml: 0.5 -> 0.25"):
            next(run)


def train_on_two(rank: int, collective: Collective, folder: Path, store: str) -> None:
    config = tiny_config(NAME, **{"schedule.max_steps": 4})
    checkpoints = CheckpointStore(folder / "run")
    list(
        fit(
            METHODS[NAME].build(config, store),
            config,
            collective=collective,
            checkpoints=checkpoints,
        )
    )
    checkpoints.close()


def test_one_worker_resumes_a_run_of_two_with_the_same_samples_and_nearly_equal_losses(
    tiny_store: Store, tmp_path: Path
) -> None:
    config = tiny_config(NAME)
    alone = [report.metrics for report in fit(METHODS[NAME].build(config, tiny_store.path), config)]
    run_workers(partial(train_on_two, store=str(tiny_store.path)), 2, tmp_path)
    system = METHODS[NAME].build(config, tiny_store.path)
    rest = [
        report.metrics
        for report in fit(system, config, checkpoints=CheckpointStore(tmp_path / "run"))
    ]
    assert len(rest) == 2
    for found, expected in zip(rest, alone[4:], strict=True):
        assert found["tokens"] == expected["tokens"]
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)


def test_an_undefined_metric_is_no_improvement_and_never_the_best(tiny_store: Store) -> None:
    """NaN first, as the rank correlation of a model that predicts a constant at its start."""
    config = early_stopping_config(**{"schedule.evaluate_every_steps": 2})
    system = METHODS[NAME].build(config, tiny_store.path)
    values = iter([math.nan, 0.1, math.nan, 0.2, math.nan, math.nan])
    system = replace(system, evaluate=lambda model, collective: {"val/link_mrr": next(values)})
    *_, last = fit(system, config)
    assert (last.step, last.reason) == (10, "early_stopping")


def train_apart(rank: int, collective: Collective, folder: Path, store: str) -> None:
    """Train on two workers of which one has other last digits in an evaluation."""
    config = early_stopping_config(**{"schedule.evaluate_every_steps": 2})
    values = iter([0.1, 0.5, 0.5 + 1e-9 * rank, 0.3, 0.5, 0.5, 0.5])
    system = METHODS[NAME].build(config, store)
    system = replace(system, evaluate=lambda model, collective: {"val/link_mrr": next(values)})
    checkpoints = CheckpointStore(folder / "run")
    *_, last = fit(system, config, collective=collective, checkpoints=checkpoints)
    assert (last.step, last.best_step, last.reason) == (6, 2, "early_stopping")
    checkpoints.close()


def test_workers_whose_evaluations_differ_in_the_last_digits_stop_together(
    tiny_store: Store, tmp_path: Path
) -> None:
    run_workers(partial(train_apart, store=str(tiny_store.path)), 2, tmp_path)


@pytest.mark.parametrize("num_steps", [0, 3])
def test_a_stream_that_ends_too_early_is_refused(tiny_store: Store, num_steps: int) -> None:
    config = tiny_config(NAME)
    system = METHODS[NAME].build(config, tiny_store.path)
    with pytest.raises(ConfigError, match=f"ended after step {num_steps}, want 6 steps"):
        list(fit(system, config, batches=local_batches(system, num_steps)))


def early_stopping_config(**more: object) -> TrainingConfig:
    """Settings without learning: no evaluation beats the first, and the run stops at step 6."""
    settings = {
        "schedule.evaluate_every_steps": 3,
        "schedule.early_stopping_metric": "val/link_mrr",
        "schedule.early_stopping_patience": 2,
        "schedule.max_steps": 12,
        "optim.peak_lr": 1e-12,
    }
    return tiny_config(NAME, **(settings | more))


def test_a_run_that_stopped_early_stays_stopped_when_it_is_started_again(
    tiny_store: Store, tmp_path: Path
) -> None:
    config = early_stopping_config()
    for _ in range(2):
        system = METHODS[NAME].build(config, tiny_store.path)
        last = list(fit(system, config, checkpoints=CheckpointStore(tmp_path)))[-1]
        assert (last.step, last.reason) == (6, "early_stopping")


def test_a_run_stopped_before_it_begins_evaluates_nothing(
    tiny_store: Store, tmp_path: Path
) -> None:
    """On a large benchmark the evaluation at the start takes minutes."""
    system = METHODS[NAME].build(early_stopping_config(), tiny_store.path)
    settings = {"checkpoints": CheckpointStore(tmp_path), "should_stop": lambda: True}
    (only,) = fit(system, early_stopping_config(), **settings)
    assert (only.step, only.reason, only.is_last, only.metrics) == (0, "stopped", True, {})


def test_a_signal_on_an_evaluation_step_does_not_lose_the_evaluation(
    tiny_store: Store, tmp_path: Path
) -> None:
    config = early_stopping_config()
    answers = iter([False, False, False, True])
    system = METHODS[NAME].build(config, tiny_store.path)
    checkpoints = CheckpointStore(tmp_path)
    stopped = list(fit(system, config, checkpoints=checkpoints, should_stop=lambda: next(answers)))
    assert (stopped[-1].step, stopped[-1].reason, stopped[-1].is_evaluation) == (
        3,
        "stopped",
        False,
    )
    rest = list(
        fit(
            METHODS[NAME].build(config, tiny_store.path),
            config,
            checkpoints=CheckpointStore(tmp_path),
        )
    )
    assert (rest[0].step, rest[0].is_evaluation) == (3, True)
    # The report is whole: the next checkpoint and the log have no other of this step.
    assert rest[0].metrics.items() >= stopped[-1].metrics.items()
    assert (rest[-1].step, rest[-1].reason) == (6, "early_stopping")


def test_a_run_that_is_ended_where_it_stands_is_evaluated_there(
    tiny_store: Store, tmp_path: Path
) -> None:
    def reports(max_steps: int, answers: list[bool]) -> list[Report]:
        own = {"schedule.max_steps": max_steps, "schedule.evaluate_every_steps": 2}
        config = tiny_config(NAME, **own)
        system = METHODS[NAME].build(config, tiny_store.path)
        checkpoints = CheckpointStore(tmp_path)
        given = iter(answers)
        return list(
            fit(system, config, checkpoints=checkpoints, should_stop=lambda: next(given, False))
        )

    stopped = reports(6, [False, False, False, True])[-1]
    assert (stopped.step, stopped.reason, stopped.is_evaluation) == (3, "stopped", False)
    ended = reports(3, [])
    assert [(one.step, one.is_evaluation, one.reason) for one in ended] == [
        (3, True, ""),
        (3, False, "finished"),
    ]
    assert [one.is_evaluation for one in reports(3, [])] == [False]


class WantedOnce:
    """Two workers; only rank 1 wants a checkpoint, after the second step."""

    def __init__(self, store: str, folder: Path) -> None:
        self.store, self.folder = store, folder

    def __call__(self, rank: int, collective: Collective, folder: Path) -> None:
        config = tiny_config(NAME, **{"schedule.checkpoint_every_steps": 1000})
        checkpoints = CheckpointStore(self.folder)
        answers = iter([False, rank == 1, False, False, False])  # at the last step nobody is asked
        reports = fit(
            METHODS[NAME].build(config, self.store),
            config,
            collective=collective,
            checkpoints=checkpoints,
            should_checkpoint=lambda: next(answers),
        )
        taken = []
        for report in reports:
            if report.is_checkpoint:
                checkpoints.wait()
                collective.all_sum(torch.zeros(1))  # rank 0 has written it
                taken.append(
                    (
                        report.step,
                        report.is_last,
                        step_of_checkpoint(list_checkpoints(self.folder)[0]),
                    )
                )
        assert taken == [(2, False, 2), (6, True, 6)]
        assert next(answers, None) is None


def test_a_checkpoint_requested_by_one_worker_is_saved_at_that_step_and_the_run_continues(
    tiny_store: Store, tmp_path: Path
) -> None:
    run_workers(WantedOnce(str(tiny_store.path), tmp_path / "run"), 2, tmp_path)


def keeping_config(**more: object) -> TrainingConfig:
    """Settings of a run whose best evaluation lies in its middle."""
    settings = {
        "schedule.evaluate_every_steps": 2,
        "schedule.max_steps": 8,
        "schedule.checkpoint_every_steps": 2,
        "schedule.keep_checkpoints": 1,
        "schedule.keep_best": "val/link_mrr",
    }
    return tiny_config(NAME, **(settings | more))


class ValuesByEvaluation:
    """An evaluation that gives the values of a list, and keeps the weights that it saw."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = iter(values)
        self.weights: list[dict[str, torch.Tensor]] = []

    def __call__(self, model: torch.nn.Module, collective: Collective) -> dict[str, float]:
        self.weights.append(
            {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        )
        return {"val/link_mrr": next(self.values)}


def assert_same_weights(model: torch.nn.Module, expected: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_the_best_weights_are_restored_at_the_end_and_the_last_ones_stay_on_disk(
    tiny_store: Store, tmp_path: Path
) -> None:
    config = keeping_config()
    evaluation = ValuesByEvaluation([0.1, math.nan, 0.5, 0.3, 0.5])
    system = replace(METHODS[NAME].build(config, tiny_store.path), evaluate=evaluation)
    checkpoints = CheckpointStore(tmp_path, keep=1)
    *_, last = fit(system, config, checkpoints=checkpoints)
    assert (last.step, last.best_step, last.reason) == (8, 4, "finished")
    assert_same_weights(system.model, evaluation.weights[2])
    assert [step_of_checkpoint(path) for path in list_checkpoints(tmp_path)] == [8, 4]
    newest = checkpoints.latest()
    assert newest is not None
    for name, tensor in newest.model_tensors().items():
        assert torch.equal(tensor, evaluation.weights[4][name])


def test_a_finished_run_restores_its_best_weights_again_and_a_longer_one_trains_its_last_ones(
    tiny_store: Store, tmp_path: Path
) -> None:
    def train(max_steps: int, values: Sequence[float]) -> tuple[int | None, torch.nn.Module]:
        config = keeping_config(**{"schedule.max_steps": max_steps})
        evaluation = ValuesByEvaluation(values)
        system = replace(METHODS[NAME].build(config, tiny_store.path), evaluate=evaluation)
        *_, last = fit(system, config, checkpoints=CheckpointStore(tmp_path, keep=1))
        return last.best_step, system.model

    best_step, model = train(8, [0.1, 0.2, 0.5, 0.3, 0.4])
    again_step, again = train(8, [])
    assert (best_step, again_step) == (4, 4)
    assert_same_weights(again, model.state_dict())
    longer_step, longer = train(10, [0.6])
    assert longer_step is None
    config = keeping_config(**{"schedule.max_steps": 10, "schedule.keep_best": None})
    system = METHODS[NAME].build(config, tiny_store.path)
    list(fit(system, config))
    assert_same_weights(longer, system.model.state_dict())


@pytest.mark.parametrize("last_step", [7, 8])
def test_a_run_that_is_longer_than_at_first_says_that_its_former_last_step_counts(
    tiny_store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, last_step: int
) -> None:
    for max_steps, values in ((last_step, [0.1, 0.2, 0.5, 0.3, 0.4]), (10, [0.6, 0.7])):
        config = keeping_config(**{"schedule.max_steps": max_steps})
        evaluation = ValuesByEvaluation(values)
        system = replace(METHODS[NAME].build(config, tiny_store.path), evaluate=evaluation)
        list(fit(system, config, checkpoints=CheckpointStore(tmp_path)))
    messages = [record.getMessage() for record in caplog.records]
    is_said = any("step 7 was the run's last one" in message for message in messages)
    assert is_said == (last_step == 7)


def test_evaluations_drop_nothing_out_and_training_goes_on_with_dropout(tiny_store: Store) -> None:
    in_evaluation = []

    def evaluate(model: torch.nn.Module, collective: Collective) -> dict[str, float]:
        in_evaluation.append(model.training)
        return {"val/link_mrr": 0.0}

    config = keeping_config()
    system = replace(METHODS[NAME].build(config, tiny_store.path), evaluate=evaluate)
    afterwards = [system.model.training for report in fit(system, config) if report.is_evaluation]
    assert (in_evaluation, afterwards) == ([False] * 5, [True] * 5)


def test_the_start_is_not_the_best_step(tiny_store: Store, tmp_path: Path) -> None:
    """A run that fails soon after its start must not hold a checkpoint that bars other settings."""
    config = keeping_config()
    evaluation = ValuesByEvaluation([0.9, 0.1, 0.2, 0.4, 0.3])
    system = replace(METHODS[NAME].build(config, tiny_store.path), evaluate=evaluation)
    first, *_, last = fit(system, config, checkpoints=CheckpointStore(tmp_path, keep=1))
    assert not first.is_checkpoint and last.best_step == 6
    assert_same_weights(system.model, evaluation.weights[3])


def test_early_stopping_keeps_the_best_weights(tiny_store: Store, tmp_path: Path) -> None:
    stopping = {
        "schedule.keep_best": None,
        "schedule.early_stopping_metric": "val/link_mrr",
        "schedule.early_stopping_patience": 2,
    }
    config = keeping_config(**stopping)
    evaluation = ValuesByEvaluation([0.1, 0.5, 0.2, 0.3])
    system = replace(METHODS[NAME].build(config, tiny_store.path), evaluate=evaluation)
    *_, last = fit(system, config, checkpoints=CheckpointStore(tmp_path, keep=1))
    assert (last.step, last.best_step, last.reason) == (6, 2, "early_stopping")
    assert_same_weights(system.model, evaluation.weights[1])


def test_a_damaged_best_checkpoint_is_named(tiny_store: Store, tmp_path: Path) -> None:
    config = keeping_config()
    evaluation = ValuesByEvaluation([0.1, 0.2, 0.5, 0.3, 0.4])
    system = replace(METHODS[NAME].build(config, tiny_store.path), evaluate=evaluation)
    checkpoints = CheckpointStore(tmp_path, keep=1)
    with pytest.raises(CheckpointError, match="checkpoint of step 4, the best one"):
        for report in fit(system, config, checkpoints=checkpoints):
            if report.step == 6:
                (best,) = [path for path in list_checkpoints(tmp_path) if path.name.endswith("04")]
                (best / "model.safetensors").write_bytes(b"")


@pytest.mark.parametrize("setting", ["keep_best", "early_stopping_metric"])
def test_a_metric_that_nothing_evaluates_is_refused(
    tiny_store: Store, tmp_path: Path, setting: str
) -> None:
    config = keeping_config(**{"schedule.keep_best": None, f"schedule.{setting}": "val/link_mrrr"})
    system = METHODS[NAME].build(config, tiny_store.path)
    with pytest.raises(ConfigError, match=rf"schedule\.{setting} 'val/link_mrrr' is not evaluated"):
        list(fit(system, config))
    with pytest.raises(ConfigError, match="no validation rows"):
        list(fit(replace(system, evaluate=None), config))
    with pytest.raises(ConfigError, match=f"{setting} needs evaluations"):
        keeping_config(
            **{
                "schedule.keep_best": None,
                f"schedule.{setting}": "val/link_mrr",
                "schedule.evaluate_every_steps": 0,
            }
        )


@dataclass(frozen=True)
class NotFiniteAt:
    """An objective whose loss is NaN in one call, or the gradient of it alone."""

    inner: Objective
    call: int
    only_gradient: bool = False
    calls: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def embedding_loss(self, *arguments: Any) -> LossReport:
        report = self.inner.embedding_loss(*arguments)
        self.calls.append(len(self.calls))
        if len(self.calls) - 1 != self.call:
            return report
        if not self.only_gradient:
            return LossReport(report.loss * math.nan, report.terms)
        loss = report.loss * 1.0
        loss.register_hook(lambda gradient: gradient * math.nan)
        return LossReport(loss, report.terms)


def weights_after(
    store: Store,
    num_steps: int,
    call: int | None = None,
    only_gradient: bool = False,
    **changes: object,
) -> tuple[dict[str, torch.Tensor], int, str]:
    """Weights of a run, how many steps it began, and why it failed."""
    settings = {"schedule.max_steps": num_steps, "schedule.log_every_steps": 100}
    config = tiny_config(NAME, **settings, **changes)
    system = METHODS[NAME].build(config, store.path)
    objective = NotFiniteAt(system.objective, -1 if call is None else call, only_gradient)
    message = ""
    try:
        list(fit(replace(system, objective=objective), config))
    except DivergedError as error:
        message = str(error)
    weights = {name: weight.detach() for name, weight in system.model.named_parameters()}
    return weights, len(objective.calls), message


def test_a_loss_that_is_not_finite_is_read_a_step_later_and_leaves_the_weights_before(
    tiny_store: Store,
) -> None:
    expected, _, _ = weights_after(tiny_store, 5)
    weights, num_begun, message = weights_after(tiny_store, 9, call=5)
    assert message.startswith("step 5: loss nan, gradient norm nan")
    assert num_begun == 7  # the step after it was launched, and its update skipped
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_a_gradient_that_is_not_finite_is_not_applied_where_the_loss_is_finite(
    tiny_store: Store,
) -> None:
    expected, _, _ = weights_after(tiny_store, 5)
    weights, _, message = weights_after(tiny_store, 9, call=5, only_gradient=True)
    assert re.match(r"step 5: loss \d+\.\d+, gradient norm nan", message)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_each_step_drops_out_other_units_and_a_repeated_one_the_same(tiny_store: Store) -> None:
    config = tiny_config(NAME, **{"encoder.dropout": 0.5})

    def norm(step: int) -> float:
        """The gradient of the first batch, in another step."""
        system = METHODS[NAME].build(config, tiny_store.path)
        ((_, batch),) = local_batches(system, 1)(0)
        system.model.train()
        take = TrainStep(system, config, SingleProcess(), Precision("fp32", "cpu"))
        return take(step, batch)["gradient_norm"]

    assert norm(3) == norm(3)
    assert norm(3) != norm(4)


@pytest.mark.parametrize("caching", [False, True])
def test_the_loss_gets_embeddings_in_the_order_of_the_batch(
    caching: bool, tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro-batches are sorted by length."""
    system = METHODS[NAME].build(tiny_config(NAME), tiny_store.path)
    model = system.model.eval()
    ((_, batch),) = local_batches(system, 1)(0)
    assert batch.length_R.tolist() != sorted(batch.length_R.tolist(), reverse=True)
    expected_RD = torch.zeros(batch.num_rows, model.width)
    with torch.no_grad():
        for tokens, rows in micro_batches(batch, model, torch.device("cpu"), max_tokens=1):
            expected_RD[rows] = model(tokens).embedding_RD
    seen = []
    embedding_loss = type(system.objective).embedding_loss

    def noted(objective: Objective, embedding_RD: torch.Tensor, *args: Any) -> LossReport:
        seen.append(embedding_RD.detach())
        return embedding_loss(objective, embedding_RD, *args)

    monkeypatch.setattr(type(system.objective), "embedding_loss", noted)
    compute_gradients(
        system,
        batch,
        SingleProcess(),
        max_tokens=64,
        gradient_caching=caching,
        precision=Precision("fp32", "cpu"),
        seed_of=lambda number: number,
    )
    torch.testing.assert_close(seen, [expected_RD], rtol=1e-5, atol=1e-5)


class SecondWorker(SingleProcess):
    rank = 1


def test_each_worker_and_micro_batch_drops_out_other_units(
    tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []

    def noted(*arguments: Any, seed_of: Callable[[int], int], **options: Any) -> Any:
        seeds.extend([seed_of(0), seed_of(1)])
        return compute_gradients(*arguments, seed_of=seed_of, **options)

    monkeypatch.setattr(step_module, "compute_gradients", noted)
    config = tiny_config(NAME)
    system = METHODS[NAME].build(config, tiny_store.path)
    ((_, batch),) = local_batches(system, 1)(0)
    for collective in (SingleProcess(), SecondWorker()):
        take = TrainStep(system, config, collective, Precision("fp32", "cpu"))
        for step in (3, 4):
            take(step, batch)
    assert len(set(seeds)) == len(seeds) == 8


def test_a_stopped_run_is_saved_and_its_skipped_steps_are_counted_over_all_starts(
    tiny_store: Store, tmp_path: Path
) -> None:
    settings = {"schedule.max_steps": 6, "schedule.checkpoint_every_steps": 100}
    config = tiny_config(NAME, **settings, on_nonfinite="skip")
    system = METHODS[NAME].build(config, tiny_store.path)
    broken = replace(system, objective=NotFiniteAt(system.objective, 1))
    stops = iter([False, False, False, True])
    checkpoints = CheckpointStore(tmp_path)
    *_, stopped = fit(broken, config, checkpoints=checkpoints, should_stop=lambda: next(stops))
    assert (stopped.step, stopped.reason, stopped.is_checkpoint) == (3, "stopped", True)
    system = METHODS[NAME].build(config, tiny_store.path)
    *_, last = fit(system, config, checkpoints=CheckpointStore(tmp_path))
    assert last.reason == "finished"
    assert stopped.metrics["skipped_steps"] == last.metrics["skipped_steps"] == 1


def test_a_step_that_is_skipped_changes_nothing_and_those_after_it_do(tiny_store: Store) -> None:
    changes = {"on_nonfinite": "skip", "optim.schedule": "constant"}
    before, _, _ = weights_after(tiny_store, 5, **changes)
    skipped, _, _ = weights_after(tiny_store, 6, call=5, **changes)
    after, _, message = weights_after(tiny_store, 7, call=5, **changes)
    assert message == ""
    assert all(torch.equal(skipped[name], before[name]) for name in before)
    assert any(not torch.equal(after[name], before[name]) for name in before)


def test_no_checkpoint_holds_a_step_that_diverged(tiny_store: Store, tmp_path: Path) -> None:
    settings = {"schedule.max_steps": 9, "schedule.log_every_steps": 100}
    config = tiny_config(NAME, **settings, **{"schedule.checkpoint_every_steps": 6})
    system = METHODS[NAME].build(config, tiny_store.path)
    system = replace(system, objective=NotFiniteAt(system.objective, 5))
    with pytest.raises(DivergedError, match="step 5"):
        list(fit(system, config, checkpoints=CheckpointStore(tmp_path)))
    assert list_checkpoints(tmp_path) == []
