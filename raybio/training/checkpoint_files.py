"""The folder of one checkpoint: written in full, and used only after every byte was verified."""

import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file

from raybio.core.digest import file_digest, json_digest
from raybio.core.errors import CheckpointError
from raybio.core.files import TooLargeError, read_limited
from raybio.core.records import MAX_RECORD_BYTES
from raybio.core.version import VERSION
from raybio.training import durable
from raybio.training.snapshot import (
    BaseWeights,
    Tensors,
    TrainingState,
    restore_model,
    restore_optimizer,
)

FORMAT_VERSION = 2

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
MANIFEST = "manifest.json"
FILES = (MODEL, OPTIMIZER, STATE)

RETRY_DELAYS_SECONDS = (1.0, 5.0, 25.0)
"""Pauses after a failed save, and after an upload whose requests were repeated for minutes."""

FOLDER_NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?")
"""Names of the folders of checkpoints: the step, and a number if there are several of a step."""


class DamagedError(Exception):
    """A committed checkpoint is not what was written; the message names the file."""


class PrunedError(Exception):
    """A checkpoint was deleted between listing and reading, since newer ones are there."""


class Identity(NamedTuple):
    """The run that a checkpoint belongs to.

    Attributes:
        config: the whole configuration.
        config_fingerprint: its digest.
        data_digest: digest of the store.
        run: copies of the run's own records, from which a lost one is written again; empty if they
            are not known.
        arithmetic: values of ``determinism.gather_arithmetic``, on which the last bits depend; all
            that the run has used (``used_values``).
    """

    config: dict[str, Any]
    config_fingerprint: str
    data_digest: str
    run: Mapping[str, Any]
    arithmetic: Mapping[str, Any]


@dataclass(frozen=True)
class Contents:
    """Contents of a checkpoint: CPU tensors, which must not change during writing, and plain JSON.

    ``base_sha256`` is the digest of ``TrainingState.base``; None if the model is complete.
    """

    step: int
    model: Tensors
    optimizer: Tensors
    optimizer_description: dict[str, Any]
    extra: dict[str, Any]
    base_sha256: str | None


@dataclass(frozen=True)
class CheckpointState:
    """A checkpoint whose every byte was verified.

    Attributes:
        path: its folder.
        step: optimizer updates that it has seen.
        extra: ``TrainingState.extra`` of the save.
        manifest: its manifest, with the configuration and versions.
        optimizer_description: see ``snapshot.optimizer_tensors``.
        base_sha256: digest of the model's weights that it leaves out; None: it has all of them.
    """

    path: Path
    step: int
    extra: dict[str, Any]
    manifest: dict[str, Any]
    optimizer_description: dict[str, Any]
    base_sha256: str | None

    def model_tensors(self) -> Tensors:
        """Return the saved weights by name, on the CPU."""
        return load_file(self.path / MODEL)

    def restore(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        base: BaseWeights | None = None,
    ) -> None:
        """Load the weights into a freshly built model, and the state into its optimizer, if given.

        Args:
            model: the model.
            optimizer: over its parameters.
            base: its weights that checkpoints leave out; None: none.

        Raises:
            CheckpointError: if they have other names, shapes or dtypes, or ``base`` is not what the
                checkpoint was trained on.
        """
        base_sha256 = None if base is None else base.sha256
        if base_sha256 != self.base_sha256:
            raise CheckpointError(
                f"{self.path}: its adapters were trained on frozen weights of sha256 "
                f"{self.base_sha256}, and the model has {base_sha256}: encoder.source has changed. "
                "Restore it, or give the run a new name"
            )
        restore_model(model, self.model_tensors(), base)
        if optimizer is not None:
            state = TrainingState(model, optimizer, {})
            restore_optimizer(state, load_file(self.path / OPTIMIZER), self.optimizer_description)


def step_of_name(name: str) -> int:
    """Return the step of a checkpoint from the name of its folder."""
    match = FOLDER_NAME.fullmatch(name)
    assert match is not None
    return int(match[1])


def write_checkpoint(folder: Path, contents: Contents, identity: Identity) -> None:
    """Fill an empty folder and force it to the disk, the manifest last.

    Raises:
        OSError: with the file and the bytes written and wanted.
    """
    files = {
        MODEL: durable.write_tensors(folder / MODEL, contents.model),
        OPTIMIZER: durable.write_tensors(folder / OPTIMIZER, contents.optimizer),
        STATE: durable.write_json(
            folder / STATE,
            {
                "step": contents.step,
                "extra": contents.extra,
                "optimizer": contents.optimizer_description,
                "base_sha256": contents.base_sha256,
            },
        ),
    }
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": contents.step,
        "files": {name: record._asdict() for name, record in files.items()},
        "versions": {
            "raybio": VERSION,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
    }
    _write_manifest(folder, manifest, identity)


def copy_checkpoint(state: CheckpointState, folder: Path, identity: Identity) -> None:
    """Make ``folder`` a copy of a verified checkpoint that belongs to another run.

    Raises:
        OSError: if it cannot be written.
    """
    folder.mkdir()
    for name in FILES:
        durable.copy_file(state.path / name, folder / name)
    _write_manifest(folder, _without_checksum(state.manifest), identity)


def _write_manifest(folder: Path, manifest: dict[str, Any], identity: Identity) -> None:
    whole = manifest | identity._asdict()
    durable.write_json(folder / MANIFEST, whole | {"checksum": json_digest(whole)})


def read_checkpoint(folder: Path) -> CheckpointState:
    """Verify a committed checkpoint against its manifest.

    Raises:
        DamagedError: naming the file that is missing or is not what was written.
        OSError: if a file is there and cannot be read.
        CheckpointError: if it has another format version.
    """
    manifest = read_manifest(folder)
    for name in FILES:
        record = manifest["files"][name]
        try:
            num_bytes = (folder / name).stat().st_size
        except FileNotFoundError:
            raise DamagedError(f"{folder / name}: missing") from None
        if num_bytes != record["bytes"]:
            raise DamagedError(f"{folder / name}: {num_bytes:,} bytes, want {record['bytes']:,}")
        if file_digest(folder / name) != record["sha256"]:
            raise DamagedError(f"{folder / name}: its sha256 is not the manifest's")
    state = _read_json(folder / STATE)
    return CheckpointState(
        folder,
        state["step"],
        state["extra"],
        manifest,
        state["optimizer"],
        # Older checkpoints lack this key and hold all weights.
        state.get("base_sha256"),
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the verified manifest of a committed checkpoint; the files it lists are not read.

    Raises:
        DamagedError: if it is missing or is not what was written.
        OSError: if it cannot be read.
        CheckpointError: if it has another format version.
    """
    manifest = _read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or json_digest(_without_checksum(manifest)) != manifest.get(
        "checksum"
    ):
        raise DamagedError(f"{folder / MANIFEST}: its checksum does not fit its contents")
    version = manifest.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        versions = manifest.get("versions")
        written_by = versions.get("raybio") if isinstance(versions, dict) else None
        raise CheckpointError(
            f"{folder} has checkpoint format {str(version)[:40]}, this program reads "
            f"{FORMAT_VERSION}. Continue with raybio {written_by or 'of that time'}."
        )
    return manifest


def read_extra(folder: Path) -> dict[str, Any]:
    """Return ``TrainingState.extra`` of a committed checkpoint, unverified.

    Raises:
        DamagedError: if it is missing or no such JSON.
    """
    state = _read_json(folder / STATE)
    extra = state.get("extra") if isinstance(state, dict) else None
    if not isinstance(extra, dict):
        raise DamagedError(f"{folder / STATE}: lacks the state of the run")
    return extra


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_limited(path, MAX_RECORD_BYTES))
    except FileNotFoundError:
        raise DamagedError(f"{path}: missing") from None
    except TooLargeError as error:
        raise DamagedError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: not JSON ({error})") from None


def _without_checksum(manifest: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in manifest.items() if key != "checksum"}
