"""Checkpoints that survive any kill: own format, checksums, one atomic commit, no pickle.

    checkpoints/step-00000100/
        model.safetensors      parameters and buffers; without frozen weights below adapters
        optimizer.safetensors  moments, by parameter name
        state.json             step, the loop's own state, which parameters the optimizer updates,
                               sha256 of the frozen weights
        manifest.json          sha256 and bytes of the files above, configuration, data digest,
                               versions, hardware and flags

A folder is written under another name and renamed when everything in it is on the disk. If the same
step is written again, because the first checkpoint is damaged, it becomes ``step-00000100-1``. One
process writes, any number may read.
"""

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from raybio.core.config import BaseConfig, changed_settings, fingerprint
from raybio.core.errors import CheckpointError
from raybio.core.files import sync
from raybio.core.version import used_values
from raybio.training import durable
from raybio.training.checkpoint_files import (
    FOLDER_NAME,
    RETRY_DELAYS_SECONDS,
    STATE,
    CheckpointState,
    Contents,
    DamagedError,
    Identity,
    PrunedError,
    copy_checkpoint,
    read_checkpoint,
    read_manifest,
    step_of_name,
    write_checkpoint,
)
from raybio.training.remote_checkpoints import RemoteCheckpoints, restore_log
from raybio.training.snapshot import Staging, TrainingState, model_tensors, optimizer_tensors

_WRITING = ".writing-"
_REMOVING = ".removing-"

_log = logging.getLogger(__name__)


class CheckpointStore:
    """The checkpoints of one run in one folder.

    Saving costs the training thread one copy to CPU memory. Another thread does the rest; its
    errors are raised by the next ``save``, ``wait`` or ``close``.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        keep: int = 3,
        run: Mapping[str, Any] | None = None,
        remote: RemoteCheckpoints | None = None,
        log: Path | None = None,
        is_strict: bool = False,
        retry_delays_seconds: tuple[float, ...] = RETRY_DELAYS_SECONDS,
    ) -> None:
        """Use ``directory``, made when first needed.

        Args:
            directory: folder of the checkpoints.
            keep: number of newest checkpoints that are kept.
            run: copies of the run's own records as plain JSON, stored in each manifest.
            remote: the run's checkpoints in a bucket. Only those are loaded then, and what is
                saved is uploaded.
            log: the run's log of metrics, forced to the disk before each checkpoint is committed.
            is_strict: refuse to resume where the result would not be bit-identical.
            retry_delays_seconds: pauses after a failed write.
        """
        if keep < 1:
            raise ValueError(
                f"got keep={keep}, want at least 1: a run needs something to resume from"
            )
        self.directory = Path(directory).absolute()
        self.keep = keep
        self.remote = remote
        self.log = log
        self.is_strict = is_strict
        self._run: Mapping[str, Any] = run or {}
        self._retry_delays_seconds = retry_delays_seconds
        self._identity: Identity | None = None
        self._known_damaged: set[Path] = set()
        self._model_staging = Staging()
        self._optimizer_staging = Staging()
        self._writer: threading.Thread | None = None
        self._failure: CheckpointError | None = None
        self._loaded: Path | None = None

    def check_writable(self) -> None:
        """Write, force to disk, rename and delete a file, as saving will.

        Raises:
            CheckpointError: if the storage does not allow it; call it before the first step.
        """
        probe = self.directory / f"{_WRITING}probe-{os.getpid()}"
        renamed = probe.with_name(probe.name.replace(_WRITING, _REMOVING))
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # A killed process may have left it: in a restarted container, process ids repeat.
            shutil.rmtree(probe, ignore_errors=True)
            shutil.rmtree(renamed, ignore_errors=True)
            probe.mkdir()
            durable.write_json(probe / STATE, {})
            durable.commit_folder(probe, renamed)
            shutil.rmtree(renamed)
        except OSError as error:
            raise CheckpointError(
                f"{self.directory}: checkpoints cannot be written there ({error}). Choose another "
                "folder for the run, or make this one writable."
            ) from error

    def load_newest(
        self,
        config: BaseConfig,
        data_digest: str,
        ignore: Iterable[str] = (),
        arithmetic: Mapping[str, Any] | None = None,
    ) -> CheckpointState | None:
        """Return the newest checkpoint that verifies; None if there is none.

        Later saves carry this configuration and digest, and all arithmetic that was used.

        A damaged one is skipped with a warning that names the file.

        Args:
            config: the run's whole configuration.
            data_digest: sha256 of the store that the run reads.
            ignore: dotted paths of settings that may differ.
            arithmetic: see ``Identity``; None: unknown.

        Raises:
            CheckpointError: if there are checkpoints and none verifies, or the newest belongs to
                another configuration or other data (the message lists what differs).
        """
        self._join_writer()
        self._identity = Identity(
            config.to_mapping(), fingerprint(config), data_digest, self._run, arithmetic or {}
        )
        newest = self.latest()
        if newest is None:
            return None
        changes = changed_settings(newest.manifest["config"], config, ignore)
        if newest.manifest["data_digest"] != data_digest:
            changes.append(f"data digest: {newest.manifest['data_digest']} -> {data_digest}")
        if changes:
            raise CheckpointError(
                f"{newest.path} belongs to other settings than this run: {'; '.join(changes)}. "
                "Resume with the old ones, or give the run a new name."
            )
        used = used_values(newest.manifest.get("arithmetic", {}), arithmetic or {})
        self._identity = self._identity._replace(arithmetic=used)
        self._loaded = newest.path
        return newest

    def latest(self) -> CheckpointState | None:
        """Return the newest checkpoint that verifies, of any configuration; None if there is none.

        Raises:
            CheckpointError: if there are checkpoints and none verifies, or their folder cannot be
                read.
        """
        reasons = []
        names = self._names()
        while names:
            name = names.pop(0)
            try:
                state = read_checkpoint(self._folder(name))
            except PrunedError:
                # Another process of the run has written newer checkpoints.
                names = self._names()
            except (DamagedError, OSError) as error:
                # An unreadable disk may recover, so only checkpoints that are proven damaged may be
                # deleted later.
                if isinstance(error, DamagedError):
                    self._mark_damaged(name)
                reasons.append(str(error))
            else:
                if reasons:
                    _log.warning(
                        "damaged checkpoint skipped (%s); resuming from step %d",
                        "; ".join(reasons),
                        state.step,
                    )
                return state
        if reasons:
            raise CheckpointError(
                f"{self.location}: none of the {len(reasons)} checkpoints can be used: "
                f"{'; '.join(reasons)}. Restore one from a backup, or delete them to start again."
            )
        return None

    def of_step(self, step: int) -> CheckpointState:
        """Return the checkpoint of a step, which ``save`` protects.

        Raises:
            CheckpointError: if there is none, or it is damaged.
        """
        self.wait_for(step)
        reasons = []
        for name in self._names():
            if step_of_name(name) == step:
                try:
                    return read_checkpoint(self._folder(name))
                except (DamagedError, OSError) as error:
                    reasons.append(str(error))
                except PrunedError:
                    reasons.append("it was deleted meanwhile")
        raise CheckpointError(
            f"{self.location}: the checkpoint of step {step}, the best one, cannot be used: "
            f"{'; '.join(reasons) or 'there is none'}. Restore it from a backup, or train again "
            "under a new name"
        )

    @property
    def location(self) -> str:
        """Where the checkpoints lie: a folder, or a path in a bucket."""
        if self.remote is None:
            return str(self.directory)
        return str(self.remote.bucket.path / "checkpoints")

    def _names(self) -> list[str]:
        """Return the names of the checkpoints from which a run can resume, newest first."""
        if self.remote is not None:
            return self.remote.names()
        try:
            return [folder.name for folder in list_checkpoints(self.directory)]
        except OSError as error:
            raise CheckpointError(
                f"{self.directory}: checkpoints cannot be looked for there ({error})"
            ) from error

    def _folder(self, name: str) -> Path:
        """Return the local folder of a checkpoint, fetched if need be."""
        return self.directory / name if self.remote is None else self.remote.fetch(name)

    def _mark_damaged(self, name: str) -> None:
        """Mark a damaged checkpoint for deletion after the next save."""
        if self.remote is None:
            self._known_damaged.add(self.directory / name)
        else:
            self.remote.mark_damaged(name)

    def restore_log(self, log: Path) -> None:
        """Replace ``log`` by the log that was stored with the loaded checkpoint, if any.

        Checkpoints on a disk store no log, since the log lies next to them.
        """
        if self.remote is not None and self._loaded is not None:
            restore_log(self._loaded, log)

    def save(self, state: TrainingState, step: int, protected_step: int | None = None) -> None:
        """Copy ``state`` now and write it in the background as the checkpoint of ``step``.

        It waits for the previous write, whose copy it overwrites.

        Args:
            state: what is saved.
            step: optimizer updates so far.
            protected_step: step of a checkpoint that is kept in addition to the newest ones.

        Raises:
            CheckpointError: if the previous write failed for good.
            ClusterError: if an upload failed for good, or another driver has the run.
        """
        if self._identity is None:
            raise CheckpointError(
                "save was called before load_newest, which says what configuration and data the "
                "checkpoints belong to"
            )
        self._join_writer()
        if self.remote is not None:
            self.remote.raise_failure()
        tensors, description = optimizer_tensors(state)
        # Deep copies, by way of JSON: the loop continues to change these while the thread writes.
        extra, description = json.loads(json.dumps([state.extra, description]))
        contents = Contents(
            step,
            self._model_staging.copy(model_tensors(state.model, state.base)),
            self._optimizer_staging.copy(tensors),
            description,
            extra,
            None if state.base is None else state.base.sha256,
        )
        self._writer = threading.Thread(
            target=self._write_with_retries,
            args=(contents, self._identity, protected_step),
            name="checkpoint-writer",
        )
        self._writer.start()

    def wait(self) -> None:
        """Return when nothing is being written or uploaded.

        Raises:
            CheckpointError: if the last write failed for good; once.
            ClusterError: as ``save``; once.
        """
        self._join_writer()
        if self.remote is not None:
            self.remote.wait()

    def wait_for(self, step: int) -> None:
        """Return when the checkpoint of a step is written and uploaded; errors as in ``wait``.

        Unlike ``wait``, do not wait for a newer one, which may itself wait for the report of its
        step.
        """
        self._join_writer()
        if self.remote is not None:
            self.remote.wait_for(step)

    def _join_writer(self) -> None:
        """Wait for the local write; the copies may then be overwritten."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        failure = self._failure
        self._failure = None
        if failure is not None:
            raise failure

    def join(self) -> None:
        """Return when nothing is being written to the folder; raise nothing.

        A process calls it before it gives up the folder, also after an error. Otherwise the running
        write could delete checkpoints of the next writer.
        """
        if self._writer is not None:
            self._writer.join()

    def close(self) -> None:
        """Finish writing and free the memory of the copies; see ``wait`` for what it raises."""
        self.wait()
        if self.remote is not None:
            self.remote.close()
        self._model_staging = Staging()
        self._optimizer_staging = Staging()

    def _write_with_retries(
        self, contents: Contents, identity: Identity, protected_step: int | None
    ) -> None:
        try:
            for delay_seconds in (*self._retry_delays_seconds, None):
                try:
                    self._write(contents, identity, protected_step)
                    return
                except OSError as error:
                    if delay_seconds is None:
                        self._failure = self._explain(contents.step, error)
                        return
                    _log.warning(
                        "checkpoint of step %d: %s; again in %g s",
                        contents.step,
                        error,
                        delay_seconds,
                    )
                    time.sleep(delay_seconds)
        except Exception as error:
            self._failure = CheckpointError(
                f"checkpoint of step {contents.step}: {type(error).__name__}: {error}"
            )
            self._failure.__cause__ = error

    def _write(self, contents: Contents, identity: Identity, protected_step: int | None) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._clean_up()
        folder = self.directory / f"{_WRITING}step-{contents.step:08d}-{os.getpid()}"
        folder.mkdir()
        try:
            write_checkpoint(folder, contents, identity)
            final = self._free_name(contents.step)
            if self.log is not None and self.log.exists():
                sync(self.log)
            durable.commit_folder(folder, final)
        except OSError:
            # A partial checkpoint on a full disk must not take up the space that the retry needs.
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if self.remote is not None:
            folders = list_checkpoints(self.directory)
            best = [path for path in folders if step_of_checkpoint(path) == protected_step]
            self.remote.upload(final, best[0] if best else None, protected_step)
        try:
            self._prune(final, protected_step)
        except OSError as error:
            _log.warning("old checkpoints could not be deleted: %s", error)

    def _free_name(self, step: int) -> Path:
        name = f"step-{step:08d}"
        taken = {path.name for path in list_checkpoints(self.directory)}
        return self.directory / next(free for free in _candidate_names(name) if free not in taken)

    def _prune(self, newest: Path, protected_step: int | None) -> None:
        """Delete damaged checkpoints, and all but the ``keep`` newest and the protected one."""
        sound = [
            path
            for path in list_checkpoints(self.directory)
            if path not in self._known_damaged and path != newest
        ]
        old = [
            path for path in sound[self.keep - 1 :] if step_of_checkpoint(path) != protected_step
        ]
        in_use = set() if self.remote is None else self.remote.in_use
        for path in [*old, *self._known_damaged]:
            if path.exists() and path not in in_use:
                durable.remove_folder(path, path.with_name(_REMOVING + path.name))
        self._known_damaged.clear()

    def _clean_up(self) -> None:
        """Delete leftovers of a killed process; there is one writer, so none is in use."""
        for prefix in (_WRITING, _REMOVING):
            for path in self.directory.glob(f"{prefix}*"):
                shutil.rmtree(path)

    def _explain(self, step: int, error: OSError) -> CheckpointError:
        try:
            free = f"{shutil.disk_usage(self.directory).free:,} bytes are free there"
            older = [path.name for path in list_checkpoints(self.directory)]
        except OSError:
            free = "the folder cannot be reached"
            older = ["their folder cannot be reached"]
        failure = CheckpointError(
            f"checkpoint of step {step} was not written, after "
            f"{len(self._retry_delays_seconds) + 1} tries: {error}; {free}. Earlier checkpoints "
            f"are untouched ({', '.join(older) or 'there are none'}). Make room or repair the "
            "storage, then give the same command again."
        )
        failure.__cause__ = error
        return failure


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the folders of the checkpoints in ``directory``, newest first, unverified.

    Raises:
        OSError: if the folder exists and cannot be read.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    matches = [match for match in map(FOLDER_NAME.fullmatch, names) if match]
    matches.sort(key=lambda match: (int(match[1]), int(match[2] or 0)), reverse=True)
    return [directory / match[0] for match in matches]


def newest_manifest(directory: Path) -> dict[str, Any] | None:
    """Return the newest manifest that verifies; None if there is none.

    Raises:
        CheckpointError: if it has another format version.
    """
    for folder in list_checkpoints(directory):
        try:
            return read_manifest(folder)
        except (DamagedError, OSError):
            continue
    return None


def delete_all_but_newest(directory: Path) -> None:
    """Delete all checkpoints but the newest of a finished run; warn if one cannot be deleted."""
    for path in list_checkpoints(directory)[1:]:
        try:
            durable.remove_folder(path, path.with_name(_REMOVING + path.name))
        except OSError as error:
            _log.warning("%s: an old checkpoint could not be deleted: %s", path, error)


def copy_to_run(source: Path, directory: Path, config: BaseConfig, run: Mapping[str, Any]) -> None:
    """Copy a checkpoint to another run, which resumes from its weights with other settings.

    Args:
        source: folder of the checkpoint.
        directory: folder of the other run's checkpoints.
        config: configuration of the other run.
        run: its records; see ``CheckpointStore``.

    Raises:
        CheckpointError: if the checkpoint is damaged, of another format, or cannot be copied.
    """
    try:
        state = read_checkpoint(source)
        identity = Identity(
            config.to_mapping(),
            fingerprint(config),
            state.manifest["data_digest"],
            run,
            state.manifest.get("arithmetic", {}),
        )
        directory.mkdir(parents=True, exist_ok=True)
        folder = directory / f"{_WRITING}{source.name}-{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        copy_checkpoint(state, folder, identity)
        durable.commit_folder(folder, directory / f"step-{state.step:08d}")
    except (DamagedError, OSError) as error:
        raise CheckpointError(f"{source}: cannot be copied to {directory}: {error}") from None


def step_of_checkpoint(folder: Path) -> int:
    """Return the step of a checkpoint from its folder, as ``list_checkpoints`` returns it."""
    return step_of_name(folder.name)


def _candidate_names(name: str) -> Iterator[str]:
    """Yield names for a checkpoint, the plain one first."""
    yield name
    revision = 1
    while True:
        yield f"{name}-{revision}"
        revision += 1
