"""Training in Python: ``raybio.train(method, ...)``."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybio.core.config import BaseConfig, present_path
from raybio.core.errors import ConfigError, RaybioError
from raybio.core.fields import fields
from raybio.core.location import BucketPath, location
from raybio.core.search_space import quoted
from raybio.methods import method_named
from raybio.runtime.compare.table import ResultTable
from raybio.runtime.compare.variations import compare
from raybio.runtime.load import TrainedModel, load
from raybio.runtime.run.options import RunOptions, check_writable, resolve
from raybio.runtime.run.result import Result
from raybio.runtime.run.spec import Compute
from raybio.training.settings import Device

ARGUMENTS = {
    "store": "store",
    "config": "config",
    "recipe": "recipe",
    "name": "name",
    "runs": "runs",
    "tracking-uri": "tracking_uri",
    "workers": "workers",
    "cpus-per-worker": "cpus_per_worker",
    "device": "device",
    "verbose": "verbose=True",
    "yes": "accepts_long_run=True",
}
"""Option of the command line -> argument of ``train``, for messages."""


@dataclass(frozen=True)
class Run:
    """A finished run. It can be used as the path of its folder (``os.PathLike``).

    Attributes:
        result: step, metrics and final scores.
        table: the final scores as the table of ``raybio train``, with rivals.
    """

    result: Result
    table: ResultTable

    @property
    def folder(self) -> Path:
        """The run's folder; for a run in a bucket, the copy of this process."""
        return self.result.folder.path

    @property
    def export(self) -> Path:
        """The trained model: a folder for ``transformers``, or for ``encoder.source``."""
        return self.result.folder.export

    def load(self) -> TrainedModel:
        """Return the trained model; see ``raybio.load``."""
        return load(self.folder)

    def __fspath__(self) -> str:
        """Return the run's folder."""
        return str(self.folder)

    def __repr__(self) -> str:
        """Return the status and the folder of the run."""
        return f"<raybio run {self.folder}: {self.result.status} at step {self.result.step:,}>"


def train(
    method: str,
    *,
    store: str | os.PathLike[str] | BucketPath | None = None,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    recipe: str | None = None,
    name: str | None = None,
    runs: str | os.PathLike[str] | BucketPath | None = None,
    tracking_uri: str | None = None,
    workers: int | None = None,
    cpus_per_worker: float | None = None,
    device: Device = "auto",
    accepts_long_run: bool = False,
    verbose: bool = False,
) -> Run:
    """Train a method as ``raybio train METHOD --no-baseline`` does, and return the run.

        run = raybio.train("sppt_protein", store="stores/mine", config={"schedule.max_steps": 200})
        run.result.metrics["val/link_mrr"]
        run.load().encode(["MKTAYIAKQR"])  # float32 (1, D)

    It trains in the Ray cluster that this process has joined (``ray.init``) or that ``RAY_ADDRESS``
    names. Otherwise it starts a temporary cluster on this machine. The same call again resumes an
    interrupted run, and returns a finished one without training.

    Args:
        method: a method, such as ``sppt_protein``; ``raybio train --help`` lists them.
        store: folder of a prepared store, or its path in a bucket; None: the method's built-in
            corpus, with the settings of its demo.
        config: settings that differ from the method's or the recipe's: a mapping of dotted paths or
            of nested names to values, or the path of a YAML file.
        recipe: settings that come with the method, or ``demo``.
        name: name of the run; None: made from settings and store.
        runs: folder of all runs, or their path in a bucket; None: ``RAYBIO_RUNS``, or ``runs``.
        tracking_uri: URI of MLflow; None: ``mlflow.db`` next to ``runs``.
        workers: training workers; None: 1, or as the run began.
        cpus_per_worker: logical CPUs that each worker reserves; None: chosen by availability.
        device: ``auto`` takes GPUs if there is one for each worker.
        accepts_long_run: the run may take more than a day on CPUs.
        verbose: show Ray's own logs.

    Raises:
        ConfigError: for wrong arguments or settings.
        StoreError: if the store is missing or damaged.
        CheckpointError: if the run of that name has other settings or another store.
        ClusterError: if the plan does not fit, or the workers kept failing.
        DivergedError: if the loss is no longer finite.
        InterruptedRunError: if a signal, such as Ctrl-C, ended the run after a checkpoint.
    """
    config_type = method_named(method).config
    file = None
    values: dict[str, Any] = {}
    if isinstance(config, str | os.PathLike):
        file = Path(config)
    elif config is not None:
        values = settings_by_path(config_type, config)
    options = RunOptions(
        store=None if store is None else location(store, "store"),
        recipe=recipe,
        config=file,
        values=values,
        name=name,
        runs=None if runs is None else location(runs, "runs"),
        tracking=tracking_uri,
        compute=Compute(workers=workers, cpus_per_worker=cpus_per_worker, device=device),
        verbose=verbose,
        accepts_long_run=accepts_long_run,
    )
    with _errors_of_arguments(), _joined_cluster():
        spec = resolve(method, options)
        check_writable(spec.runs, spec.bucket)
        result, table = compare(spec)
    return Run(result, table)


def settings_by_path(
    model: type[BaseConfig], config: Mapping[str, Any], prefix: str = ""
) -> dict[str, Any]:
    """Return settings by dotted path, as ``override_all`` takes them.

    Args:
        model: class of the settings.
        config: values by dotted path, by nested names, or both. Strings are taken literally.
        prefix: path of the section that ``config`` is, with a dot at its end.

    Raises:
        ConfigError: if ``config`` is not a mapping, or has a setting twice.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"config: got {type(config).__name__}, want a mapping of settings, such as "
            '{"schedule.max_steps": 200}, or the path of a YAML file'
        )
    known = {field.path for field in fields(model)}
    values: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and present_path(model, path) not in known:
            inner = settings_by_path(model, value, f"{path}.")
        else:
            plain = os.fspath(value) if isinstance(value, os.PathLike) else value
            inner = {path: quoted(plain)}
        twice = sorted(values.keys() & inner.keys())
        if twice:
            raise ConfigError(f"config: {twice[0]} is given twice, want each setting once")
        values |= inner
    return values


def argument_names(message: str) -> str:
    """Return a message of the command line with options replaced by arguments of ``train``.

    Options of other commands are kept.
    """
    message = re.sub(r"--set ([\w.]+)=([^\s,;]+?)(?=[\s,;]|\.?$)", r'config={"\1": \2}', message)
    message = message.replace("--init", 'config={"encoder.source": MODEL}')
    message = re.sub(r"--device (cpu|gpu)\b", r'device="\1"', message)
    message = re.sub(r"--set\b", "config", message)
    message = re.sub(
        rf"--({'|'.join(ARGUMENTS)})(?![\w-])", lambda match: ARGUMENTS[match[1]], message
    )
    return re.sub(r"\b([Tt]he same|[Tt]he run's whole|its) command\b", r"\1 call", message)


@contextlib.contextmanager
def _errors_of_arguments() -> Iterator[None]:
    """Context in which errors name arguments of ``train``, not options of the command line."""
    try:
        yield
    except RaybioError as error:
        error.args = (argument_names(str(error)),)
        raise


@contextlib.contextmanager
def _joined_cluster() -> Iterator[None]:
    """Context in which ``RAY_ADDRESS`` names the cluster that this process has joined, if any.

    Plans are then checked against the cluster, not against this machine.
    """
    ray: Any = sys.modules.get("ray")
    is_joined = ray is not None and ray.is_initialized()
    if not is_joined or os.environ.get("RAY_ADDRESS"):
        yield
        return
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    try:
        yield
    finally:
        del os.environ["RAY_ADDRESS"]
