"""P18: 5,000 metric values to MLflow in sqlite: our log file and batches, beside ``mlflow.log_metric``.

Ours is all of it: a line of ``metrics.jsonl`` a report of ten values, read again and sent in batches. Of that a
training step pays only the line; the note says how much of a step that is. Five parts of 1,000 values are one pair
each, ours first or the peer first in turn.
"""

import tempfile
import time
from pathlib import Path
from statistics import median

import mlflow
from _measure import SMALL, report, seconds_of
from mlflow import MlflowClient

from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.tracking.tracker import Tracker

NAMES = tuple(f"metric_{number}" for number in range(10))
NUM_PARTS, REPORTS_PER_PART = 5, 4 if SMALL else 100
STEP_SECONDS = 0.2
"""A short step of a small model; the share of longer ones is less."""

Part = list[tuple[int, dict[str, float]]]


def part(number: int) -> Part:
    first = number * REPORTS_PER_PART
    return [
        (step, {name: step + 0.1 for name in NAMES})
        for step in range(first, first + REPORTS_PER_PART)
    ]


class Ours:
    """The log and the tracker of one run; ``send`` is what the tracking thread does every two seconds."""

    def __init__(self, folder: Path, uri: str) -> None:
        run = RunFolder(folder, "ours")
        run.path.mkdir(parents=True)
        self.log = MetricsLog(run.metrics)
        self.log.rewind(-1)
        self.tracker = Tracker(run, uri, "benchmark", {}, "digest")
        self.tracker._open()
        self.line_seconds: list[float] = []
        self.send_cpu_seconds = 0.0

    def write(self, reports: Part) -> None:
        for step, metrics in reports:
            start = time.perf_counter()
            self.log.append(step, metrics)
            self.line_seconds.append(time.perf_counter() - start)

    def write_and_send(self, reports: Part) -> None:
        self.write(reports)
        start = time.process_time()
        self.tracker._forward()
        self.send_cpu_seconds += time.process_time() - start


def log_each(reports: Part) -> None:
    for step, metrics in reports:
        for name, value in metrics.items():
            mlflow.log_metric(name, value, step=step)


def log_reports(reports: Part) -> None:
    for step, metrics in reports:
        mlflow.log_metrics(metrics, step=step)


def values(client: MlflowClient, run_id: str) -> dict[str, list[tuple[int, float]]]:
    return {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]
        for name in NAMES
    }


def main() -> None:
    for name, log in {
        "mlflow.log_metric": log_each,
        "mlflow.log_metrics, a report at once": log_reports,
    }.items():
        with tempfile.TemporaryDirectory(prefix="rb") as folder:
            uri = f"sqlite:///{folder}/mlflow.db"
            mlflow.set_tracking_uri(uri)
            ours = Ours(Path(folder) / "runs", uri)
            with mlflow.start_run() as run:
                log(
                    [(-1, dict.fromkeys(NAMES, 0.0))]
                )  # a warm-up; ours has had its own in opening the run
                ratios = []
                for number in range(NUM_PARTS):
                    reports, seconds = part(number), {}
                    sides = [("ours", ours.write_and_send), ("peer", log)]
                    for side, function in sides if number % 2 == 0 else reversed(sides):
                        seconds[side] = seconds_of(
                            lambda function=function, reports=reports: function(reports)
                        )
                    ratios.append(seconds["peer"] / seconds["ours"])
            client = MlflowClient(tracking_uri=uri)
            peer = {
                key: list(filter(is_no_warm_up, kept))
                for key, kept in values(client, run.info.run_id).items()
            }
            assert values(client, str(ours.tracker.run_id)) == peer
            num_values = NUM_PARTS * REPORTS_PER_PART * len(NAMES)
            line, sending = (
                median(ours.line_seconds),
                ours.send_cpu_seconds / len(ours.line_seconds),
            )
            note = (
                f"{num_values:,} values; a report costs training {line * 1e6:.0f} µs, {line / STEP_SECONDS:.3%} of a "
                f"step of {STEP_SECONDS} s if every step reports; the driver's thread another {sending * 1e6:.0f} µs "
                f"of processor time ({sending / STEP_SECONDS:.2%})"
            )
            report("P18", name, median(ratios), min(ratios), note)


def is_no_warm_up(point: tuple[int, float]) -> bool:
    return point[0] >= 0


if __name__ == "__main__":
    main()
