"""MLflow's model registry: a run's export as a version of a registered model."""

import re
from dataclasses import dataclass
from typing import Any

from raybio.core.errors import ClusterError, ConfigError, first_line
from raybio.core.records import read_recomputable, read_record
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.tracking import mlflow as mlflow_run

_NAME = re.compile(r"[^/:'\"]+")
_ALIAS = re.compile(r"(?!(latest|v\d+)$)[\w-]+", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Registration:
    """The entry of a run in the registry.

    Attributes:
        name: name of the registered model.
        alias: alias that will point to the new version; None: no alias changes.
    """

    name: str
    alias: str | None = None

    def __post_init__(self) -> None:
        """Check the names before anything is trained.

        Raises:
            ConfigError: for a name or alias that MLflow refuses.
        """
        if not _NAME.fullmatch(self.name) or len(self.name) > mlflow_run.MAX_NAME_LETTERS:
            raise ConfigError(
                f"--register: got {self.name!r}, want up to {mlflow_run.MAX_NAME_LETTERS} letters "
                "without '/', ':' and quotes"
            )
        if self.alias is not None and not _ALIAS.fullmatch(self.alias):
            raise ConfigError(
                f"--alias: got {self.alias!r}, want letters, digits, '-' and '_', neither 'latest' "
                "nor a number of a version such as 'v1'"
            )


def register(folder: RunFolder, registration: Registration) -> str:
    """Make the export of a finished run a version of a registered model; return its number.

    A run has one version per name: registering it again only moves the alias. The version's source
    is the artifact ``export`` of the MLflow run, so it needs no files of its own.

    Args:
        folder: the run's folder, which MLflow has completely.
        registration: name and alias.

    Raises:
        ClusterError: if MLflow does not have the model, or does not answer.
    """
    saved = read_recomputable(folder.tracking, "tracking") or {}
    run_id = saved.get("run_id")
    if run_id is None or saved.get("pending", True):
        raise ClusterError(
            f"--register {registration.name}: MLflow does not have all of {folder.name} yet. Give "
            "the same command again once the server answers"
        )
    try:
        client = mlflow_run.open_client(saved["uri"])
        version = _version_of(client, registration.name, run_id, folder)
        if registration.alias is not None:
            client.set_registered_model_alias(registration.name, registration.alias, version)
    except Exception as error:  # an error of MLflow, its HTTP client or its database
        raise ClusterError(
            f"--register {registration.name}: MLflow did not take it ({first_line(error)[:200]}). "
            "The run is finished; the same command registers it"
        ) from None
    return version


def _version_of(client: Any, name: str, run_id: str, folder: RunFolder) -> str:
    """Return the number of the run's version of a registered model, created if there is none."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    known = client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
    if known:
        return str(known[0].version)
    identity = folder.read_identity() or {}
    result = read_record(folder.result, "result") or {}
    tags = {
        "method": identity.get("method", ""),
        "data_digest": identity.get("data_digest", ""),
        "weights_sha256": result.get("weights_sha256", ""),
    }
    source = f"{client.get_run(run_id).info.artifact_uri}/{folder.export.name}"
    return str(client.create_model_version(name, source, run_id=run_id, tags=tags).version)
