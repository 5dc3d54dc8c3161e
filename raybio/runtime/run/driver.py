"""One training run, seen from the driver: start or continue it in Ray Train, follow it, give it its true status."""

import contextlib
import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from raybio.core.errors import ConfigError, LongRunError, RaybioError
from raybio.core.final_report import FinalReport
from raybio.core.records import read_recomputable, read_record, write_record
from raybio.encoders.input_lengths import InputLengths
from raybio.evaluation.run_plots import plot_final, plot_run
from raybio.methods import METHODS
from raybio.runtime.cluster.connection import check_plan, connected
from raybio.runtime.cluster.resources import Node, Resources, check_resources
from raybio.runtime.cluster.stop_signals import StopSignals
from raybio.runtime.run.duration import DurationEstimate, epochs_in_words
from raybio.runtime.run.folder import COMPLETE, RunFolder
from raybio.runtime.run.metrics_log import MetricsTail, read_reports
from raybio.runtime.run.notices import NoticeTail
from raybio.runtime.run.precision import show_decision, worker_processors
from raybio.runtime.run.progress import ProgressView
from raybio.runtime.tracking.tracker import Tracker, tracking_uri
from raybio.store.store import open_store
from raybio.training.checkpoint import step_of_checkpoint
from raybio.training.loop import changeable_settings
from raybio.training.precision import Decision, Processor, decide_precision
from raybio.training.settings import TrainingConfig

REMEMBERED = (
    "workers",
    "cpus_per_worker",
    "threads_per_worker",
    "use_gpu",
    "tracking",
    "is_length_accepted",
)
"""Of a run's last start, what the next one does the same way unless it is told otherwise."""


_MLFLOW_STATUS = {
    "finished": "FINISHED",
    "early_stopping": "FINISHED",
    "stopped": "KILLED",
    "failed": "FAILED",
}


@dataclass(frozen=True)
class TrainRequest:
    """What to train, where, and with how much.

    Attributes:
        method: its name in ``METHODS``.
        config: the method's whole configuration.
        store: path of the prepared store.
        name: the run's name; the same name goes on with the same run.
        runs: folder of all runs, shared by driver and workers.
        tracking: MLflow tracking URI; None: ``mlflow.db`` beside ``runs``.
        workers: training workers.
        cpus_per_worker: logical CPUs that each reserves; None: chosen.
        threads_per_worker: that each computes with; None: as many as its CPUs.
        use_gpu: None: if there is a GPU for each worker.
        verbose: show Ray's own logs.
        is_length_accepted: the run may take more than a day on CPUs, or an earlier start has measured that it does not.
        parent_run_id: MLflow run that this one belongs to, as a trial or a baseline.
        precision: ``fp32`` or ``bf16``, decided by ``with_precision`` for all runs of a command; None: not yet.
        explicit: dotted paths of settings that the user gave one by one: what cannot be honoured is an error there.
        setup: called in each worker first; tests plant their faults with it.
    """

    method: str
    config: TrainingConfig
    store: str | Path
    name: str
    runs: str | Path
    tracking: str | None = None
    workers: int = 1
    cpus_per_worker: float | None = None
    threads_per_worker: int | None = None
    use_gpu: bool | None = None
    verbose: bool = False
    is_length_accepted: bool = False
    parent_run_id: str | None = None
    precision: str | None = None
    explicit: frozenset[str] = frozenset()
    setup: Callable[[int, Path], None] | None = None


@dataclass(frozen=True)
class Result:
    """How a run stands; what ``result.json`` holds.

    Attributes:
        status: ``finished``, ``early_stopping``, ``stopped`` (by a signal) or ``failed``.
        step: optimiser updates.
        precision: ``fp32`` or ``bf16``; None before the workers have started.
        metrics: the newest value of each metric.
        final: the final evaluation of a finished run, without its map; None where there is none.
        config: the whole configuration.
        checkpoint: path of the newest one.
        weights_sha256: over parameter names and bytes.
        mlflow_run_id: None if tracking could not be reached.
        was_finished: the run was complete before this start; nothing was trained.
        folder: where all of it lies.
        inputs: an ``InputLengths`` each as a mapping: which rows were cut, and where; ``remark`` says it in words.
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

    @property
    def is_complete(self) -> bool:
        """Whether training reached its end."""
        return self.status in COMPLETE


class InterruptedRunError(RaybioError):
    """A signal ended the run; its newest checkpoint is committed and the same command goes on from there."""

    def __init__(self, signal_number: int, message: str) -> None:
        """Remember the signal: the process ends with 128 + its number."""
        super().__init__(message)
        self.exit_code = 128 + signal_number


def check_request(request: TrainRequest) -> str:
    """Refuse what could only fail in the workers; returns the store's digest.

    Raises:
        ConfigError: if the run is not finished and its encoder or texts are not there, or its encoder does not read as
            much as the user set.
        StoreError: if the store is missing, damaged or of another kind.
    """
    entry = METHODS[request.method]
    store = open_store(request.store, entry.store)
    if _finished(RunFolder(request.runs, request.name), request.config) is None:
        entry.check(request.config, store)
        check_lengths(_input_lengths(request), request.explicit)
    return store.digest


_READS_NO_INPUT = {"seed", "schedule", "optim", "memory", "precision", "on_nonfinite", "objective"}
"""Parts of a configuration that change nothing about the lengths of inputs."""


def _input_lengths(request: TrainRequest) -> list[InputLengths]:
    entry = METHODS[request.method]
    digest = open_store(request.store, entry.store).digest
    reading = {
        name: part
        for name, part in request.config.to_mapping().items()
        if name not in _READS_NO_INPUT
    }
    key = (request.method, str(request.store), digest, json.dumps(reading, sort_keys=True))
    # Texts are tokenised to be counted, which takes seconds; the runs of a comparison mostly read alike.
    if key not in _counted:
        _counted[key] = entry.input_lengths(request.config, open_store(request.store, entry.store))
    return _counted[key]


_counted: dict[tuple[str, ...], list[InputLengths]] = {}


def check_lengths(lengths: Sequence[InputLengths], explicit: frozenset[str]) -> None:
    """Refuse a length that the user set and the encoder cannot read.

    Args:
        lengths: of the inputs.
        explicit: dotted paths of settings that the user gave one by one.

    Raises:
        ConfigError: with both lengths.
    """
    for one in lengths:
        if (
            one.setting not in explicit
            or one.setting_value is None
            or one.num_positions is None
            or one.setting_value <= one.num_positions
        ):
            continue
        raise ConfigError(
            f"{one.setting}: got {one.setting_value}, and the encoder reads at most {one.num_positions} tokens, special ones "
            f"included; the longest of the {one.name} has {one.longest:,} {one.unit}. Want at most {one.num_positions}, or "
            "an encoder with more positions"
        )


def train(request: TrainRequest) -> Result:
    """Start a run, go on with the one of that name, or return the result of one that is finished.

    Raises:
        CheckpointError: if the run of that name has other settings or another store, or no sound checkpoint.
        ConfigError: for a bad name or tracking URI, or settings that do not fit the store or the machine.
        ClusterError: if the plan does not fit the cluster, the storage does not hold, or the workers kept failing.
        DivergedError: if the loss is no longer finite.
        InterruptedRunError: if SIGINT or SIGTERM asked the run to end.
        RecordError: if a record of the run is damaged and cannot be written again.
        LongRunError: if a run on CPUs takes more than a day and that is not accepted; it is stopped at a checkpoint.
        StoreError: if the store is missing, or a file of it is not what was prepared.
    """
    folder = RunFolder(request.runs, request.name)
    uri = tracking_uri(request.tracking, Path(request.runs))
    digest = check_request(request)
    folder.make()
    with folder.lock("driver", timeout_seconds=5):
        store, free = Path(request.store).absolute(), changeable_settings(request.config)
        is_old = folder.open(request.method, request.config, store, digest, free)
        finished = _finished(folder, request.config) if is_old else None
        tracker = Tracker(
            folder, uri, request.method, request.config.to_mapping(), digest, request.parent_run_id
        )
        if finished is not None:
            tracker.catch_up()
            return finished
        # Both before anything is recorded: a plan that cannot run and a damaged store are no failed run.
        check_plan(request.workers, request.cpus_per_worker, request.use_gpu)
        open_store(request.store, verify=True)
        if request.precision is None:
            (request,) = with_precision([request])
        assert request.precision is not None  # the run is not finished
        # Not before: a plan that is refused must not be taken for the run's own by the next start.
        write_record(folder.launch, "launch", {key: getattr(request, key) for key in REMEMBERED})
        folder.record_precision(request.precision)
        start = folder.begin_start()
        # What the last start came to says nothing of this one, which may be killed before it can say so itself.
        for path in (
            folder.stop,
            folder.failure,
            folder.outcome,
            folder.unit_scores,
            folder.result,
        ):
            path.unlink(missing_ok=True)
        report_cuts(_input_lengths(request), folder, tracker)
        with StopSignals(folder.stop) as signals:
            return _run(request, folder, tracker, signals, start)


def with_precision(requests: Sequence[TrainRequest]) -> list[TrainRequest]:
    """Decide the precision of all runs of a command, once, and print the decision.

    A run that has begun keeps its own precision. Other runs with ``precision: auto`` take over what the first of
    these has recorded; only if none has begun, the machines decide. A request that has a precision is decided.
    Finished runs need no decision.

    Raises:
        ClusterError: if a plan does not fit, or a node of the cluster does not answer.
        ConfigError: for bf16 on GPUs without it.
    """
    # An explicit setting counts as it is: whether it is that of the run in the folder, ``open`` checks.
    recorded = {
        one.name: RunFolder(one.runs, one.name).precision
        if one.config.precision == "auto"
        else None
        for one in requests
    }
    begun = [name for name, precision in recorded.items() if precision]
    wanted: dict[str, str] = {}
    for one in requests:
        setting: str = one.config.precision
        if setting == "auto":
            setting = (
                recorded[one.name]
                or one.precision
                or (recorded[begun[0]] if begun else "")
                or "auto"
            )
        wanted[one.name] = setting
    unfinished = [
        one for one in requests if _finished(RunFolder(one.runs, one.name), one.config) is None
    ]
    undecided = [one for one in unfinished if one.precision is None]
    decisions: dict[str, Decision] = {}
    if undecided:
        settings = list(dict.fromkeys(wanted[one.name] for one in undecided))
        processors = [] if settings == ["fp32"] else _processors(undecided)
        for setting in settings:
            decision = decide_precision(setting, processors)
            origin = next((name for name in begun if recorded[name] == setting), None)
            show_decision(
                replace(decision, reason=f"as run {origin} began") if origin else decision
            )
            decisions[setting] = decision
    names = dict(recorded)
    for one in unfinished:
        names[one.name] = (
            decisions[wanted[one.name]].name if wanted[one.name] in decisions else wanted[one.name]
        )
    return [replace(one, precision=names[one.name]) for one in requests]


def _processors(requests: Sequence[TrainRequest]) -> list[Processor]:
    """Return the processors on which the workers of any of the requests may run."""
    plans = {(one.workers, one.cpus_per_worker, one.use_gpu): one for one in requests}
    processors = []
    for one in plans.values():

        def plan(nodes: Sequence[Node], one: TrainRequest = one) -> Resources:
            return check_resources(one.workers, one.cpus_per_worker, nodes, one.use_gpu)

        processors += worker_processors(plan, verbose=one.verbose)
    return processors


def report_cuts(lengths: list[InputLengths], folder: RunFolder, tracker: Tracker) -> None:
    """Print what is cut, and keep it in the run's folder and in MLflow."""
    counted = [asdict(one) | {"remark": one.remark} for one in lengths]
    write_record(folder.inputs, "inputs", {"inputs": counted})
    remarks = [one.remark for one in lengths if one.remark]
    for remark in remarks:
        print(remark, flush=True)
    cut = {f"inputs/{one.name}/cut_share": one.num_cut / max(one.num_counted, 1) for one in lengths}
    tracker.note({"inputs": "; ".join(remarks)} if remarks else {}, cut)


def _run(
    request: TrainRequest, folder: RunFolder, tracker: Tracker, signals: StopSignals, start: str
) -> Result:
    tracker.start()
    status = "failed"
    try:
        with connected(
            request.workers,
            request.cpus_per_worker,
            use_gpu=request.use_gpu,
            verbose=request.verbose,
        ) as resources:
            signals.install()
            signals.is_starting = False
            error = None
            if not signals.caught:
                order = _order(request, folder, resources, start)
                error = _fit_and_follow(request, order, folder, resources, tracker, signals.caught)
        status = _status(folder, signals.caught, error)
        if status == "failed":
            from raybio.runtime.run.worker_group import explained

            raise explained(folder, error)
        if status == "stopped":
            raise _interrupted(folder, request, signals.caught[0])
    except LongRunError:
        status = "stopped"
        raise
    except (KeyboardInterrupt, SystemExit) as error:  # while Ray was starting
        # Its own handler of SIGTERM, which is there meanwhile, exits with the signal's number.
        if isinstance(error, SystemExit) and error.code != signal.SIGTERM:
            raise
        status = "stopped"
        number = signals.caught[0] if signals.caught else signal.SIGTERM
        raise _interrupted(folder, request, number) from None
    finally:
        write_record(folder.result, "result", _summary(folder, request, status, tracker.run_id))
        if status in COMPLETE:
            with contextlib.suppress(OSError, ValueError):
                plot_run(read_reports(folder.metrics), folder.plots)
                outcome = read_record(folder.outcome, "outcome") or {}
                plot_final(FinalReport.from_json(outcome.get("final", {})), folder.plots)
        tracker.finish(_MLFLOW_STATUS[status])
        # The id may have come late, from a tracking server that was away.
        write_record(folder.result, "result", _summary(folder, request, status, tracker.run_id))
    return _result(read_record(folder.result, "result"), folder, was_finished=False)


def _interrupted(folder: RunFolder, request: TrainRequest, number: int) -> InterruptedRunError:
    step = _summary(folder, request, "stopped", None)["step"]
    name = signal.Signals(number).name
    return InterruptedRunError(
        number, f"{name}: stopped at step {step}; the same command goes on from there"
    )


def _fit_and_follow(
    request: TrainRequest,
    order: Any,
    folder: RunFolder,
    resources: Resources,
    tracker: Tracker,
    caught: list[int],
) -> BaseException | None:
    """Ray Train works in a thread; this one shows progress and turns a signal into a stopped run."""
    # Only now: these import Ray, and a run that is finished does without.
    from raybio.runtime.run.worker_group import fit_in_thread

    follower = _Follower(request, folder, resources)
    work = fit_in_thread(order, resources)
    with ProgressView(request.name, request.config.schedule.max_steps) as view:
        while work.thread.is_alive():
            work.thread.join(timeout=0.2)
            follower.update(view)
            if caught:
                tracker.kill()
                view.say(
                    "stopping at the next step; a checkpoint is written first (once more: at once)"
                )
            if len(caught) > 1 or (caught and _is_trained(folder, request.config)):
                break
            if folder.failure.exists():
                # Ray would start the workers again for nothing; a checkpoint that is being written gets its time.
                work.thread.join(timeout=10)
                break
        follower.update(view)
    if follower.refusal is not None and not caught:
        raise LongRunError(follower.refusal)
    return work.error


class _Follower:
    """Show what the workers write: warnings, the step they start from, reports; estimate how long the run takes.

    Attributes:
        refusal: why the run is stopped: it takes longer than anybody has accepted; None: it is not.
    """

    def __init__(self, request: TrainRequest, folder: RunFolder, resources: Resources) -> None:
        self.refusal: str | None = None
        self._folder = folder
        self._max_steps = request.config.schedule.max_steps
        self._batch_rows = getattr(getattr(request.config, "plan", None), "global_batch_rows", None)
        self._is_length_settled = bool(request.is_length_accepted or resources.gpus_per_worker)
        self._notices = NoticeTail(folder.notices)
        self._reports: MetricsTail | None = None
        self._duration = DurationEstimate(self._max_steps, 0)
        self._is_duration_shown = False
        self._epochs = ""

    def update(self, view: ProgressView) -> None:
        """Show in ``view`` what the workers have written since the last call."""
        for notice in self._notices.read():
            if "warning" in notice:
                view.warn(notice["warning"])
            else:
                self._start(view, notice["first_step"], notice["steps_per_epoch"])
        if self._reports is not None:
            reports = self._reports.read()
            view.update(reports)
            self._follow_length(view, reports)

    def _start(self, view: ProgressView, first_step: int, steps_per_epoch: float) -> None:
        self._duration.restart(first_step)
        is_restart = self._reports is not None
        if first_step or is_restart:
            view.say(f"resuming from step {first_step:,}")
        if is_restart:
            return
        # The log holds reports of earlier starts too; the report of step 0 belongs to this one.
        self._reports = MetricsTail(self._folder.metrics, after_step=first_step or -1)
        self._epochs = epochs_in_words(self._max_steps, steps_per_epoch, self._batch_rows)
        view.note(self._epochs)

    def _follow_length(self, view: ProgressView, reports: list[dict[str, Any]]) -> None:
        self._duration.update(reports)
        projection = self._duration.projection
        if projection is None or projection.num_steps == 0:
            return
        if not self._is_duration_shown:
            self._is_duration_shown = True
            view.note(f"{projection.described()}, until {projection.ends(time.time())}")
        if self._is_length_settled or not self._duration.is_certain:
            return
        self._is_length_settled = True
        if not projection.is_long:
            # A job that is retried on a busier machine must not be refused.
            launch = read_record(self._folder.launch, "launch") or {}
            write_record(self._folder.launch, "launch", launch | {"is_length_accepted": True})
            return
        self.refusal = (
            f"{self._folder.name}: {projection.described()} on CPUs; want a day at most, or --yes. The run is stopped "
            "at a checkpoint, and the same command with --yes resumes it. Or lower schedule.max_steps "
            f"({self._epochs}), make the encoder smaller, or train on a GPU"
        )
        view.note(
            "stopping at the next step: this takes more than a day on CPUs, and --yes was not given"
        )
        self._folder.stop.touch()


def _is_trained(folder: RunFolder, config: TrainingConfig) -> bool:
    """Whether the last step is saved, so that only the final evaluation is left, which the same command does again."""
    newest = folder.newest_checkpoint
    return newest is not None and step_of_checkpoint(newest) >= config.schedule.max_steps


def _order(request: TrainRequest, folder: RunFolder, resources: Resources, start: str) -> Any:
    from raybio.runtime.run.worker import Order

    assert request.precision is not None
    return Order(
        method=request.method,
        config=request.config.to_mapping(),
        store=str(Path(request.store).absolute()),
        runs=str(folder.path.parent),
        name=request.name,
        threads=request.threads_per_worker or resources.threads_per_worker,
        precision=request.precision,
        start=start,
        setup=request.setup,
    )


def _finished(folder: RunFolder, config: TrainingConfig) -> Result | None:
    content = read_recomputable(folder.result, "result")
    if read_recomputable(folder.outcome, "outcome") is None and folder.outcome.exists():
        return None  # damaged: the final evaluation is done again
    if content is None or content["status"] not in COMPLETE:
        return None
    if content["status"] == "finished" and content["step"] < config.schedule.max_steps:
        return None  # the run was made longer
    return _result(content, folder, was_finished=True)


def _result(content: dict[str, Any], folder: RunFolder, was_finished: bool) -> Result:
    final = FinalReport.from_json(content["final"])
    return Result(**content | {"final": final}, was_finished=was_finished, folder=folder)


def _summary(
    folder: RunFolder, request: TrainRequest, status: str, run_id: str | None
) -> dict[str, Any]:
    outcome = read_record(folder.outcome, "outcome") or {}
    reports, newest_checkpoint = read_reports(folder.metrics), folder.newest_checkpoint
    newest: dict[str, float] = {}
    for report in reports:
        newest |= report["metrics"]
        # What has become undefined has no newest value.
        newest = {
            name: value
            for name, value in newest.items()
            if name not in report.get("not_finite", {})
        }
    return {
        "status": status,
        "step": outcome.get("step", reports[-1]["step"] if reports else 0),
        "precision": outcome.get("precision"),
        "metrics": newest,
        # The map has some thousand points: it stays in outcome.json and becomes a picture.
        "final": {
            name: part for name, part in outcome.get("final", {}).items() if name != "embedding_map"
        },
        "config": request.config.to_mapping(),
        "checkpoint": newest_checkpoint and str(newest_checkpoint),
        "weights_sha256": outcome.get("weights_sha256"),
        "mlflow_run_id": run_id,
        "inputs": (read_recomputable(folder.inputs, "inputs") or {}).get("inputs", []),
    }


def _status(folder: RunFolder, caught: list[int], error: BaseException | None) -> str:
    """A signal excuses a run that stopped or was left behind, but no failure that came at the same time."""
    outcome = read_record(folder.outcome, "outcome")
    if outcome is not None and outcome["status"] in COMPLETE:
        return str(outcome["status"])
    if folder.failure.exists() or (outcome is None and error is not None):
        return "failed"
    return "stopped" if caught else "failed"
