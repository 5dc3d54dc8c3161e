"""Requests to MLflow: one function for each, which may fail and can be retried."""

import contextlib
import functools
import logging
import math
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from raybio.core.config import flatten
from raybio.core.final_report import FinalReport
from raybio.core.records import read_recomputable
from raybio.methods import METHODS
from raybio.runtime.run.folder import RunFolder

KEY = "raybio.key"
"""The tag that identifies a run if the response with its id was lost."""

PARAMS_PER_BATCH = 100
MAX_PARAM_LETTERS = 6000
MAX_NAME_LETTERS = 250

_SETTINGS = {
    # Only raybio retries. MLflow would repeat a "create run" whose response was lost, and create a
    # second run.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


_creating = threading.Lock()

_VERSIONS = ("raybio", "ray", "mlflow", "torch", "transformers", "numpy", "pyarrow")


def open_client(uri: str) -> Any:
    """Return a client whose requests end within seconds."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # It logs a traceback per request; ``Tracker`` warns once a minute instead.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    from mlflow import MlflowClient

    if uri.startswith("sqlite:"):
        _create_database(Path(uri.removeprefix("sqlite:///").partition("?")[0]))
    return MlflowClient(tracking_uri=uri)


def _create_database(path: Path) -> None:
    """Create MLflow's database if there is none, atomically with all its tables.

    MLflow takes seconds to create the tables, and permanently refuses a database if that was
    interrupted.
    """
    from mlflow import MlflowClient

    with _creating, tempfile.TemporaryDirectory() as folder:
        if path.exists():
            return
        made = Path(folder) / path.name
        MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        copy = path.with_name(f".{path.name}.{os.getpid()}")
        shutil.copyfile(made, copy)
        try:
            # Another driver may have created it meanwhile. Unlike a rename, a link does not replace
            # it.
            with contextlib.suppress(FileExistsError):
                os.link(copy, path)
        finally:
            copy.unlink()


def reopen(client: Any, run_id: str) -> bool:
    """Set the run to running again; False only if the server says that it has no such run."""
    from mlflow.exceptions import MlflowException

    try:
        if client.get_run(run_id).info.lifecycle_stage == "deleted":
            return False
        client.update_run(run_id, status="RUNNING")
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            # This is an outage: the run may exist, and the request is retried.
            raise
        return False
    return True


def find_runs(client: Any, experiment_name: str, key: str) -> list[str]:
    """Return all runs with this key, including those of attempts whose response was lost."""
    experiment = client.get_experiment_by_name(experiment_name)
    if experiment is None:
        return []
    return [
        run.info.run_id
        for run in client.search_runs([experiment.experiment_id], f"tags.`{KEY}` = '{key}'")
    ]


def create_run(client: Any, uri: str, experiment_name: str, name: str, tags: dict[str, str]) -> str:
    """Create a run in an experiment, and the experiment if needed; return the run's id."""
    experiment = client.get_experiment_by_name(experiment_name)
    if experiment is None:
        artifacts = None
        if uri.startswith("sqlite:"):
            artifacts = (Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts").as_uri()
        experiment_id = client.create_experiment(experiment_name, artifact_location=artifacts)
    else:
        experiment_id = experiment.experiment_id
        if experiment.lifecycle_stage == "deleted":
            # A deleted experiment keeps its name but accepts no runs.
            client.restore_experiment(experiment_id)
    return str(client.create_run(experiment_id, run_name=name, tags=tags).info.run_id)


def tags_of(
    method: str, data_digest: str, encoder: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return tags: the method, the store's digest, the encoder's weights, versions, our commit.

    They contain nothing about the environment.
    """
    tags = {"method": method, "data_digest": data_digest, "version.python": sys.version.split()[0]}
    for package in _VERSIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            tags[f"version.{package}"] = metadata.version(package)
    for name, value in (encoder or {}).items():
        tags[f"encoder.{name}"] = value
    if commit := git_commit():
        tags["mlflow.source.git.commit"] = commit
    return tags


def describe(client: Any, run_id: str, config: dict[str, Any], data_digest: str) -> None:
    """Send the run's settings as parameters, and the digest of its store.

    Existing parameters of the run are kept, since MLflow does not let them change. An interrupted
    attempt may have sent them, and the next start may have another budget.
    """
    from mlflow.entities import Dataset, DatasetInput, Param

    known = client.get_run(run_id).data.params
    items = sorted((name, value) for name, value in flatten(config).items() if name not in known)
    for start in range(0, len(items), PARAMS_PER_BATCH):
        part = items[start : start + PARAMS_PER_BATCH]
        client.log_batch(
            run_id, params=[Param(name, str(value)[:MAX_PARAM_LETTERS]) for name, value in part]
        )
    dataset = Dataset(
        name="store", digest=data_digest[:36], source_type="raybio", source=data_digest
    )
    client.log_inputs(run_id, datasets=[DatasetInput(dataset)])


def metric_name(name: str) -> str:
    """Return the name without what MLflow refuses, such as the parentheses of "treats (drug)"."""
    return posixpath.normpath(re.sub(r"[^\w./: -]", "_", name))[:MAX_NAME_LETTERS]


def log_reports(client: Any, run_id: str, reports: list[dict[str, Any]]) -> None:
    """Send lines of ``metrics.jsonl``."""
    from mlflow.entities import Metric

    # Use the time of measurement, so that metrics that are sent twice after a timeout are stored
    # once.
    metrics = [
        Metric(metric_name(name), value, report["time_ms"], report["step"])
        for report in reports
        for name, value in report["metrics"].items()
    ]
    client.log_batch(run_id, metrics=metrics)


def final_scores(folder: RunFolder, method: str) -> list[dict[str, Any]]:
    """Return a report of the final evaluation; an empty list before it.

    ``final/SPLIT/SCORE`` are all scores of the trained model. ``rival/ROW/SPLIT/SCORE`` are the
    scores of the other rows of the table on which runs are compared.
    """
    outcome = read_recomputable(folder.outcome, "outcome") or {}
    report = FinalReport.from_json(outcome.get("final", {}))
    if report is None:
        return []
    layout = METHODS[method].table.shown(report.scores.values())
    metrics = {}
    for row, row_scores in report.scores.items():
        for split, own in row_scores.items():
            for name, score in own.items():
                is_compared = split in layout.compared and name in layout.measures
                if math.isnan(score["value"]):
                    continue  # undefined
                if row == "trained":
                    metrics[f"final/{split}/{name}"] = score["value"]
                elif is_compared:
                    metrics[f"rival/{row}/{split}/{name}"] = score["value"]
    if not metrics:
        return []
    # Use the time of the file, so that scores that are sent twice are stored once.
    return [
        {
            "step": outcome["step"],
            "time_ms": int(folder.outcome.stat().st_mtime * 1000),
            "metrics": metrics,
        }
    ]


def artifacts(folder: RunFolder) -> list[Path]:
    """Return the files to send: settings, results, warnings, reports, pictures and the model."""
    written = [
        path
        for kind in ("*.md", "*.csv", "*.html", "best.yaml")
        for path in sorted(folder.path.glob(kind))
    ]
    inside = [path for kept in (folder.plots, folder.export) for path in sorted(kept.rglob("*"))]
    notices = sorted(folder.path.glob("notices*.jsonl"))
    return [
        path
        for path in (folder.config, folder.result, *notices, *written, *inside)
        if path.is_file()
    ]


def log_artifact(client: Any, run_id: str, path: Path, folder: RunFolder) -> None:
    """Send a file of the run's folder under its relative path."""
    inside = path.parent.relative_to(folder.path).as_posix()
    client.log_artifact(run_id, str(path), artifact_path=None if inside == "." else inside)


def add(client: Any, run_id: str, paths: list[Path]) -> None:
    """Send files, and folders under their names."""
    for path in paths:
        if path.is_dir():
            client.log_artifacts(run_id, str(path), artifact_path=path.name)
        else:
            client.log_artifact(run_id, str(path))


@functools.cache
def git_commit() -> str | None:
    """Return the git commit of raybio's checkout; None if it is not a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return (
            subprocess.run(
                command, capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
            or None
        )
    except (OSError, subprocess.SubprocessError):
        return None
