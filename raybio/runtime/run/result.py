"""State of a run: ``result.json``, and the typed result that ``train`` returns."""

import logging
from dataclasses import dataclass, field
from typing import Any

from raybio.core.errors import RecordError
from raybio.core.final_report import FinalReport
from raybio.core.records import FORMATS, fields_of, read_recomputable, read_record
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.training.settings import COMPLETE, TrainingConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """State of a run; the content of ``result.json``.

    Attributes:
        status: ``finished``, ``early_stopping``, ``stopped`` (by a signal) or ``failed``.
        step: optimizer updates.
        best_step: step of the best weights by ``schedule.keep_best``, which are evaluated and
            exported; None if they are the last ones.
        precision: ``fp32``, ``tf32`` or ``bf16``; None before the workers have started.
        metrics: the newest value of each metric.
        final: the final evaluation of a finished run, without its map; None if there is none.
        config: the whole configuration.
        checkpoint: path of the newest checkpoint.
        weights_sha256: digest of parameter names and bytes.
        mlflow_run_id: id of the MLflow run; None if the tracking server could not be reached.
        was_finished: whether the run was complete before this start, which trained nothing.
        folder: the run's folder.
        inputs: mappings of ``InputLengths``, with a ``remark`` if rows were cut.
    """

    status: str
    step: int
    precision: str | None
    metrics: dict[str, float]
    final: FinalReport | None
    config: dict[str, Any]
    checkpoint: str | None
    weights_sha256: str | None
    mlflow_run_id: str | None
    was_finished: bool
    folder: RunFolder
    inputs: list[dict[str, Any]] = field(default_factory=list)
    best_step: int | None = None

    @property
    def is_complete(self) -> bool:
        """Whether training reached its end."""
        return self.status in COMPLETE


def finished_result(folder: RunFolder, config: TrainingConfig) -> Result | None:
    """Return the result of a finished run; None if there is work left.

    Work is left if its outcome is damaged, so that the final evaluation is repeated, or if the run
    was extended.
    """
    content = read_recomputable(folder.result, "result")
    if read_recomputable(folder.outcome, "outcome") is None and folder.outcome.exists():
        return None
    if content is None or content.get("status") not in COMPLETE:
        return None
    try:
        result = result_of(content, folder, was_finished=True)
    except RecordError:
        _log.warning("%s: lacks what raybio writes now; it is written again", folder.result)
        return None
    if result.status == "finished" and result.step < config.schedule.max_steps:
        return None
    return result


def result_of(content: dict[str, Any], folder: RunFolder, *, was_finished: bool) -> Result:
    """Return the typed form of ``result.json``.

    Raises:
        RecordError: if it lacks a value, or has one of another type.
    """
    given = {"was_finished": was_finished, "folder": folder}
    fields = fields_of(Result, content | given, folder.result)
    if not isinstance(fields["final"], dict):
        raise RecordError(f"{folder.result}: final is no object. {FORMATS['result'].if_lost}")
    fields["final"] = FinalReport.from_json(fields["final"])
    return Result(**fields)


def summarize(
    folder: RunFolder, config: TrainingConfig, status: str, run_id: str | None
) -> dict[str, Any]:
    """Return the content of ``result.json``, from the other files of the folder."""
    outcome = read_record(folder.outcome, "outcome") or {}
    reports = read_reports(folder.metrics)
    newest_checkpoint = folder.newest_checkpoint
    metrics: dict[str, float] = {}
    for report in reports:
        metrics |= report["metrics"]
        # Drop metrics that have become undefined.
        for name in report.get("not_finite", {}):
            metrics.pop(name, None)
    # Leave out the map of some thousand points, which is in outcome.json and drawn as a picture.
    final = dict(outcome.get("final", {}))
    final.pop("embedding_map", None)
    return {
        "status": status,
        "step": outcome.get("step", reports[-1]["step"] if reports else 0),
        "best_step": outcome.get("best_step"),
        "precision": outcome.get("precision"),
        "metrics": metrics,
        "final": final,
        "config": config.to_mapping(),
        "checkpoint": None if newest_checkpoint is None else str(newest_checkpoint),
        "weights_sha256": outcome.get("weights_sha256"),
        "mlflow_run_id": run_id,
        "inputs": (read_recomputable(folder.inputs, "inputs") or {}).get("inputs", []),
    }


def status_of_run(folder: RunFolder, caught: list[int], error: BaseException | None) -> str:
    """Return ``finished``, ``early_stopping``, ``stopped`` or ``failed``.

    After a signal, a run without an outcome is ``stopped``, unless its workers failed. A run that
    stopped without a signal saw a stop file that the user made; if it was still waiting for CPUs,
    it leaves no outcome.
    """
    outcome = read_record(folder.outcome, "outcome")
    if outcome is not None and outcome["status"] in COMPLETE:
        return str(outcome["status"])
    if folder.failure.exists() or (outcome is None and error is not None):
        return "failed"
    is_stopped = bool(caught) or outcome is not None or folder.stop.exists()
    return "stopped" if is_stopped else "failed"
