"""A run's folder: where its files lie, who may write into it, and what must stay the same between two starts."""

import contextlib
import difflib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from raybio.config import Config, changed_settings, difference
from raybio.errors import CheckpointError, ClusterError, ConfigError
from raybio.folders import check_local

COMPLETE = ("finished", "early_stopping")
"""What ``result.json`` calls runs that came to their end."""

RUN = "run.json"
"""The identity of a run: system, configuration, store, precision."""

LAUNCH = "launch.json"
"""How it was last started: workers, CPUs, tracking; a sweep's budget too."""

_NAME = re.compile(r"\w[\w.+-]{0,99}")


class RunFolder:
    """``runs/<name>``; workers and driver see it under one path."""

    def __init__(self, runs: str | Path, name: str) -> None:
        """Name the folder without touching it.

        Raises:
            ConfigError: for a name that is no plain word, or a folder of runs that is a URI.
        """
        check_local(runs, "folder of runs")
        if not _NAME.fullmatch(name) or ".." in name:
            raise ConfigError(
                f"--name: got {name!r}, want up to 100 letters, digits, '-', '+', '_' or '.', beginning with a letter "
                "or digit and without '..'"
            )
        self.name, self.path = name, Path(runs).expanduser().absolute() / name
        self.config = self.path / "config.yaml"
        self.identity = self.path / RUN
        self.launch = self.path / LAUNCH
        self.metrics = self.path / "metrics.jsonl"
        self.notices = self.path / "notices.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.outcome = self.path / "outcome.json"
        self.unit_scores = self.path / "unit_scores.npz"
        self.failure = self.path / "failure.json"
        self.result = self.path / "result.json"
        self.tracking = self.path / "tracking.json"
        self.plots = self.path / "plots"
        self.export = self.path / "export"
        self.stop = self.path / ".stop"
        self.ray = self.path / ".ray"

    @property
    def newest_checkpoint(self) -> Path | None:
        """The one from which the run goes on, if its bytes are whole."""
        # Only now: this imports torch, which takes seconds.
        from raybio.training.checkpoint import committed

        return next(iter(committed(self.checkpoints)), None)

    @property
    def max_steps(self) -> int | None:
        """How far the run is to go; None for a folder without a run."""
        identity = read_json(self.identity)
        return None if identity is None else int(identity["config"]["schedule"]["max_steps"])

    @property
    def precision(self) -> str | None:
        """The precision recorded in ``run.json``, or that of the newest checkpoint; None before it is decided."""
        recorded = (read_json(self.identity) or {}).get("precision")
        if recorded is None and (newest := self.newest_checkpoint) is not None:
            # A run that began before run.json had the field.
            recorded = (read_json(newest / "state.json") or {}).get("extra", {}).get("precision")
        return recorded

    def record_precision(self, name: str) -> None:
        """Write the run's precision into ``run.json``, once and for all; the driver holds the folder's lock.

        Raises:
            CheckpointError: if another one is recorded.
            ClusterError: if the folder cannot be written.
        """
        identity = read_json(self.identity)
        recorded = identity.get("precision", name)
        if recorded != name:
            raise CheckpointError(
                f"{self.identity}: the run computes in {recorded}, got {name}. Choose another --name to train in {name}"
            )
        try:
            write_json(self.identity, identity | {"precision": name})
        except OSError as error:
            raise self._unwritable(error) from None

    def make(self) -> None:
        """Make the empty folder, so that it can be locked.

        Raises:
            ClusterError: if it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> ClusterError:
        return ClusterError(
            f"{self.path}: the run's folder cannot be written ({error.strerror or error}). Choose a writable one "
            "with --runs or RAYBIO_RUNS"
        )

    def open(
        self,
        system: str,
        config: Config,
        store: Path,
        data_digest: str,
        free_settings: tuple[str, ...],
    ) -> bool:
        """Make the run, or check that the one in the folder is this one; returns whether it was there already.

        The driver does so while it holds the folder's lock.

        Args:
            system: its name in ``SYSTEMS``.
            config: the whole configuration.
            store: where the store lies now.
            data_digest: its digest.
            free_settings: dotted paths that may differ from the last start.

        Raises:
            CheckpointError: if the folder holds a run of another system, configuration or store, with the difference.
            ClusterError: if the folder cannot be written.
        """
        identity = {"system": system, "data_digest": data_digest}
        old = read_json(self.identity)
        if old is not None:
            free = tuple(f"{path}: " for path in free_settings)
            changes = difference({name: old.get(name) for name in identity}, identity)
            changes += [line for line in changed_settings(old["config"], config) if not line.startswith(free)]
            if changes:
                raise CheckpointError(
                    f"{self.path} holds a run with other settings: {'; '.join(changes)} (then -> now). Give the same "
                    "settings to continue it, or choose another --name"
                )
        self.make()
        try:
            mapping = config.to_mapping()
            kept = {"precision": old["precision"]} if old and "precision" in old else {}
            write_json(self.identity, identity | {"config": mapping, "store": str(store)} | kept)
            _replace(self.config, yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True))
        except OSError as error:
            raise self._unwritable(error) from None
        return old is not None

    @contextlib.contextmanager
    def lock(self, who: str, timeout_seconds: float) -> Iterator[None]:
        """Hold the folder as ``who`` (``driver`` or ``writer``); the lock ends with the process, however it ends.

        Raises:
            ClusterError: if another process holds it for longer than ``timeout_seconds``.
        """
        with _open_lock(self.path / f".{who}.lock") as file:
            deadline = time.monotonic() + timeout_seconds
            while not _try_lock(file):
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"{self.path}: another process is at work on this run (its {who} holds the lock for more than "
                        f"{timeout_seconds:.0f} s). Wait until it ends, stop it, or choose another --name"
                    )
                time.sleep(0.2)
            yield


def read_json(path: Path) -> Any:
    """The file's content, None if there is no such file or it is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
        return None


def model_folder(given: str, option: str) -> str:
    """The model of a run, if ``given`` is a run's folder; anything else as it is: a model's folder, or a hub id.

    Raises:
        ConfigError: for a run that has no model yet, for a sweep, and for what is not in a folder that is there, with
            the option that named it.
    """
    folder = Path(given).expanduser()
    if not folder.exists() and folder.parent != Path() and folder.parent.is_dir():
        near = difflib.get_close_matches(folder.name, [one.name for one in folder.parent.iterdir() if one.is_dir()])
        raise ConfigError(
            f"{option} {given}: there is no {folder.name} in {folder.parent}"
            + (f"; did you mean {' or '.join(near)}?" if near else ". Want a run, a model's folder, or a hub id")
        )
    if (identity := read_json(folder / RUN)) is None:
        return given
    if "space" in identity.get("config", {}):
        raise ConfigError(f"{option} {given}: is a sweep; want a trial's model: {folder}/trials/TRIAL/export")
    if not (export := RunFolder(folder.parent, folder.name).export).is_dir():
        raise ConfigError(f"{option} {given}: that run has no model yet ({export.name}/); run its command to the end")
    return str(export.absolute())


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` so that readers see the old file or the new one, never half of it."""
    _replace(path, json.dumps(content, indent=1, default=float, ensure_ascii=False) + "\n")


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _open_lock(path: Path) -> IO[str]:
    try:
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        raise ClusterError(
            f"{path}: cannot be written ({error.strerror}): workers and driver must share the runs folder. Choose one "
            "that all of them can write with --runs"
        ) from None


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
