"""Scores of models that a command evaluates: a run in MLflow with a child for each model."""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raybio.core.digest import digest_of
from raybio.core.errors import first_line
from raybio.runtime.tracking import mlflow as mlflow_run
from raybio.runtime.tracking.tracker import shown_uri

_log = logging.getLogger(__name__)

_EXPERIMENT = "benchmark"
"""The experiment in MLflow that all of these runs are in."""


def track_models(
    uri: str,
    key: str,
    name: str,
    metrics_by_model: Mapping[str, Mapping[str, float]],
    files: Sequence[Path],
) -> str | None:
    """Write the scores to MLflow; return the id of the parent run.

    The same call again finds its runs and sends only changes. An outage is only a warning, since
    the report on disk is complete.

    Args:
        uri: URI of the tracking server or database.
        key: key of the report, by which its runs are found again.
        name: name of the parent run.
        metrics_by_model: model -> metric -> value.
        files: artifacts of the parent.
    """
    try:
        client = mlflow_run.open_client(uri)
        parent = _run_of(client, uri, key, name, {})
        for model, metrics in metrics_by_model.items():
            tags = {"mlflow.parentRunId": parent}
            # Use a digest: folder names may have quotes, which a search does not accept.
            own_key = digest_of({"parent": key, "model": model})
            child = _run_of(client, uri, own_key, model, tags)
            _send(client, child, metrics)
            client.set_terminated(child)
        mlflow_run.add(client, parent, [*files])
        client.set_terminated(parent)
        return parent
    except Exception as error:  # any error of the server, the network or the database
        _log.warning(
            "MLflow at %s did not take the scores (%s); the same command sends them again",
            shown_uri(uri),
            first_line(error),
        )
        return None


def _run_of(client: Any, uri: str, key: str, name: str, tags: dict[str, str]) -> str:
    existing = mlflow_run.find_runs(client, _EXPERIMENT, key)
    if existing:
        return existing[0]
    return mlflow_run.create_run(client, uri, _EXPERIMENT, name, {mlflow_run.KEY: key} | tags)


def _send(client: Any, run_id: str, metrics: Mapping[str, float]) -> None:
    known = client.get_run(run_id).data.metrics
    named = {mlflow_run.metric_name(name): value for name, value in metrics.items()}
    changed = {name: value for name, value in named.items() if known.get(name) != value}
    if changed:
        time_ms = int(time.time() * 1000)
        mlflow_run.log_reports(
            client, run_id, [{"step": 0, "time_ms": time_ms, "metrics": changed}]
        )
