"""What a job is asked to train: arguments become a validated request, without Ray."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from raybio.core.config import fingerprint, load, override_all
from raybio.core.errors import ConfigError
from raybio.core.files import check_local
from raybio.core.records import read_record
from raybio.methods import METHODS
from raybio.runtime.run.folder import LAUNCH, RUN, RunFolder
from raybio.training.method import Method
from raybio.training.settings import TrainingConfig

FOLD = "data.fold"
"""Where a method's configuration says which part of a cross-validation is trained."""


ONE_FOLD = f"of a cross-validation: --set {FOLD}="


_DEVICES = {"auto": None, "cpu": False, "gpu": True}


Published = Callable[[TrainingConfig | None], Mapping[str, object]]
"""Settings that a job brings for its store, below --config and --set: of what all together come to, None at first."""


class Part(NamedTuple):
    """One of the trainings that a job is given, with its comparisons.

    Attributes:
        name: what tells it from the others.
        store: what it trains on.
        published: its own settings.
    """

    name: str
    store: Path
    published: Published


@dataclass(frozen=True)
class Arguments:
    """A job's arguments, as they were given."""

    store: Path | None = None
    config: Path | None = None
    settings: tuple[str, ...] = ()
    workers: int | None = None
    cpus_per_worker: float | None = None
    device: str = "auto"
    name: str | None = None
    runs: Path | None = None
    tracking_uri: str | None = None
    compare: tuple[str, ...] = ()
    seeds: int = 1
    verbose: bool = False
    yes: bool = False
    published: Published | None = None
    has_last_training: bool = False


def settle(method: str, arguments: Arguments, job: str = "run") -> dict[str, Any]:
    """Turn arguments into the fields of a ``TrainRequest``.

    The settings are the method's defaults (its demo's without a store), then ``--config``, then ``--set``. A name that
    exists, given without store and config, continues with what that run has. A configuration that a run or a sweep left
    in its folder brings their store, and the workers, threads and device that it was trained with.

    Raises:
        ConfigError: for anything that is wrong with the arguments.
        RecordError: if a record of the run of that name is damaged and cannot be written again.
        StoreError: if the store is missing or damaged.
    """
    entry = METHODS[method]
    if arguments.device not in _DEVICES:
        raise ConfigError(f"--device: got {arguments.device!r}, want auto, cpu or gpu")
    runs = default_folder("runs", "RAYBIO_RUNS") if arguments.runs is None else arguments.runs
    store, config = settled_config(entry, arguments, runs)
    if store is not None and arguments.store is None and arguments.config is not None:
        print(f"store: {store}, for which {arguments.config} was made; --store changes that")
    # With other workers or threads the result would not be bit-identical, with another tracking URI a second run.
    own = RunFolder(runs, arguments.name).read_launch() if arguments.name else {}
    earlier = own
    if not earlier and arguments.config is not None:
        earlier = _trained_with(arguments.config)
    if arguments.workers is not None or arguments.cpus_per_worker is not None:
        earlier = {name: value for name, value in earlier.items() if name != "threads_per_worker"}
    use_gpu = _DEVICES[arguments.device]
    if store is None:
        store = entry.prepare_demo(default_folder("stores", "RAYBIO_STORES"))
    from raybio.store.store import (
        open_store,
    )  # reads Arrow files: wrong settings are refused without

    digest = open_store(store, entry.store).digest
    return {
        "method": method,
        "config": config,
        "store": Path(store).absolute(),
        "name": arguments.name or f"{job}-{fingerprint(config)[:8]}{digest[:4]}",
        "runs": runs,
        "tracking": arguments.tracking_uri or earlier.get("tracking"),
        "workers": _given_or(arguments.workers, earlier.get("workers", 1)),
        "cpus_per_worker": _given_or(arguments.cpus_per_worker, earlier.get("cpus_per_worker")),
        "threads_per_worker": earlier.get("threads_per_worker"),
        "use_gpu": earlier.get("use_gpu") if use_gpu is None else use_gpu,
        "is_length_accepted": arguments.yes or own.get("is_length_accepted", False),
        "verbose": arguments.verbose,
        "explicit": frozenset(parse_settings(arguments.settings)),
    }


def base_configs(arguments: Arguments) -> dict[str, Callable[[], TrainingConfig]]:
    """Name of each method -> returns the settled configuration of ``arguments``, as ``load_search_space`` takes them.

    The functions raise ConfigError for settings that are wrong.
    """

    def base(entry: Method) -> TrainingConfig:
        # Runs are looked up by name, and sweeps have no name here.
        return settled_config(entry, replace(arguments, name=None), Path())[1]

    return {name: partial(base, entry) for name, entry in METHODS.items()}


def _given_or(value: Any, default: Any) -> Any:
    """``default`` only where nothing was given; 0 is a value, which is refused later."""
    return default if value is None else value


def settled_config(
    entry: Method, arguments: Arguments, runs: Path
) -> tuple[Path | None, TrainingConfig]:
    """The store, None where it would be the method's demo's, and the settings; nothing is written.

    Raises:
        ConfigError: for settings that are wrong.
    """
    store, base = _store_and_base(entry, arguments, runs)

    def settled(below: TrainingConfig) -> TrainingConfig:
        config = below if arguments.config is None else load(entry.config, arguments.config, below)
        return override_all(config, parse_settings(arguments.settings))

    if arguments.published is None:
        return store, settled(base)
    # Twice: how long an epoch is depends on what is given.
    first = settled(override_all(base, arguments.published(None)))
    return store, settled(override_all(base, arguments.published(first)))


def default_folder(kind: str, variable: str) -> Path:
    """``kind`` in the working directory; in a Ray job, whose working directory is thrown away, in ``~/raybio``."""
    if variable in os.environ:
        check_local(os.environ[variable], variable)
        return Path(os.environ[variable]).expanduser()
    if "runtime_resources" not in Path.cwd().parts:
        return Path(kind)
    place = Path.home() / "raybio" / kind
    print(
        f"{kind} go to {place}, since a job's working directory does not last; {variable} changes that"
    )
    return place


def _store_and_base(
    entry: Method, arguments: Arguments, runs: Path
) -> tuple[Path | None, TrainingConfig]:
    if arguments.store is not None:
        return arguments.store, entry.config()
    if arguments.name is not None and arguments.config is None:
        old = RunFolder(runs, arguments.name).read_identity()
        if old is not None:
            return Path(old["store"]), entry.config.from_mapping(old["config"])
    if (
        arguments.config is not None
        and (left := read_record(arguments.config.parent / RUN, "run")) is not None
    ):
        return Path(left["store"]), entry.config()
    return None, entry.demo


def _trained_with(config: Path) -> dict[str, Any]:
    """How the run or the sweep's best trial was trained in whose folder a configuration lies."""
    found = (
        read_record(config.with_name(LAUNCH), "launch") or {}
        if config.with_name(RUN).is_file()
        else {}
    )
    if not found.get("workers"):
        return {}
    told = f"{found['workers']} worker" + ("s" if found["workers"] > 1 else "")
    if found.get("threads_per_worker"):
        told += f" of {found['threads_per_worker']} threads"
    if found.get("use_gpu") is not None:
        told += f" on {'GPUs' if found['use_gpu'] else 'CPUs'}"
    print(f"{told}: so {config} was trained, and gives the same to the bit; options change that")
    return found


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Path -> value as it is written, of ``--set``.

    Raises:
        ConfigError: for one that is no SETTING=VALUE.
    """
    parsed = {}
    for text in settings:
        path, separator, value = text.partition("=")
        if not separator or not path:
            raise ConfigError(f"--set {text!r}: want SETTING=VALUE, such as optim.peak_lr=1e-4")
        parsed[path.strip()] = value
    return parsed
