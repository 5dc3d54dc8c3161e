"""Conversion of command-line options to a ``RunSpec``, without Ray and without torch."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from raybio.core.config import (
    load,
    merge,
    name_digits,
    override_all,
    present_paths,
    recorded_config,
)
from raybio.core.errors import ConfigError
from raybio.core.files import RUN, check_local, check_writable_folder
from raybio.core.location import BucketPath, Location, absolute, location
from raybio.core.recipes import recipe_named
from raybio.core.records import read_record
from raybio.methods import METHODS, method_named
from raybio.runtime.run.folder import LAUNCH, RunFolder, usual_folder
from raybio.runtime.run.spec import DEVICES, Compute, RunSpec
from raybio.training.method import Method
from raybio.training.settings import TrainingConfig

DEMO = "demo"
"""Name of the recipe of a method's demo."""

FOLD = "data.fold"
"""The setting that chooses a fold of a cross-validation."""


Published = Callable[[TrainingConfig | None], Mapping[str, object]]
"""Returns published settings for a store, which --recipe, --config and --set override.

It is called twice: first with None, then with the configuration that results from all settings.
"""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a command line as given; None for missing ones.

    Attributes:
        store: a prepared store.
        recipe: name of settings that are shipped with the method, or ``demo``.
        config: YAML file of settings.
        settings: texts ``SETTING=VALUE``.
        values: settings of a call in Python: dotted path -> value.
        name: name of the run.
        runs: folder of all runs, or their path in a bucket.
        tracking: MLflow tracking URI.
        compute: workers, CPUs, GPUs and device.
        published: published settings of the job for its store.
        verbose: show Ray's own logs.
        accepts_long_run: the run may take more than a day on CPUs.
        is_strict: refuse to resume with other versions or on other hardware.
    """

    store: Location | None = None
    recipe: str | None = None
    config: Path | None = None
    settings: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    runs: Path | BucketPath | None = None
    tracking: str | None = None
    compute: Compute = Compute()
    published: Published | None = None
    verbose: bool = False
    accepts_long_run: bool = False
    is_strict: bool = False

    @property
    def given_settings(self) -> dict[str, Any]:
        """The individually given settings, as ``override_all`` takes them.

        Raises:
            ConfigError: for a text that is not SETTING=VALUE.
        """
        return {**parse_settings(self.settings), **self.values}


def resolve(method: str, options: RunOptions, name_prefix: str | None = None) -> RunSpec:
    """Turn options into the run that they describe.

    - Settings come from the method's defaults (the demo's without a store), published settings of
      the job, ``--recipe``, ``--config``, and ``--set``, in this order.
    - If an existing run is named without store and config, its own are used.
    - A configuration from the folder of a run or sweep implies its store, workers and device.

    Args:
        method: key in ``METHODS``, or a former name of a method.
        options: options of the command line.
        name_prefix: beginning of the default name; None: the method's first name.

    Raises:
        ConfigError: for wrong options.
        RecordError: if a record of the run of that name is damaged and cannot be rebuilt.
        StoreError: if the store is missing or damaged.
    """
    entry = method_named(method)
    if options.compute.device not in DEVICES:
        raise ConfigError(f"--device: got {options.compute.device!r}, want auto, cpu or gpu")
    runs, bucket = runs_folder(options.runs)
    if bucket is not None:
        from raybio.runtime.spool import spool  # local folders need none of it

        spool.check(bucket)
        if options.name:
            spool.refresh(RunFolder(runs, options.name), bucket)
    store, config = resolve_config(entry, options, runs)
    if store is not None and options.store is None and options.config is not None:
        print(f"store: {store}, for which {options.config} was made; --store changes that")
    # Other workers or threads would change the last bits of the result, and another tracking URI
    # would give the run a second MLflow run.
    own = RunFolder(runs, options.name).read_launch() if options.name else {}
    recorded = own
    if not recorded and options.config is not None:
        recorded = _recorded_setup(options.config)
    if store is None:
        store = entry.prepare_demo(default_folder("stores", "RAYBIO_STORES"))
        print(f"store: {store} (the built-in corpus, prepared on first use)", flush=True)
    from raybio.store.store import open_store  # reads Arrow files: wrong settings need none

    digest = open_store(store, entry.store).digest
    default_name = f"{name_prefix or entry.first_name}-{name_digits(config)[:8]}{digest[:4]}"
    run = RunSpec(
        method=entry.name,
        config=config,
        store=absolute(store),
        name=options.name or default_name,
        runs=runs,
        bucket=bucket,
        tracking=options.tracking or recorded.get("tracking"),
        compute=options.compute.or_recorded(recorded),
        explicit=frozenset(present_paths(entry.config, options.given_settings)),
        accepts_long_run=options.accepts_long_run or own.get("is_length_accepted", False),
        is_strict=options.is_strict,
        recipe=options.recipe or recorded.get("recipe"),
        verbose=options.verbose,
    )
    return run.in_steps()


def resolve_config(
    entry: Method, options: RunOptions, runs: Path
) -> tuple[Location | None, TrainingConfig]:
    """Return the store and the configuration, without writing anything.

    The store is None if the method's demo corpus would be prepared.

    Raises:
        ConfigError: for wrong settings.
    """
    store, base = _store_and_base(entry, options, runs)
    recipe = None
    if options.recipe not in (None, DEMO):
        recipe = recipe_named(str(options.recipe), entry.recipes)
        base = entry.config()

    def with_options(below: TrainingConfig) -> TrainingConfig:
        if options.recipe == DEMO:
            below = entry.demo
        if recipe is not None:
            below = merge(entry.config, recipe.settings, below)
        config = below if options.config is None else load(entry.config, options.config, below)
        return override_all(config, options.given_settings)

    if options.published is None:
        return store, with_options(base)
    # Resolve twice, since the steps of an epoch depend on the given batch.
    first = with_options(override_all(base, options.published(None)))
    return store, with_options(override_all(base, options.published(first)))


def base_configs(options: RunOptions) -> dict[str, Callable[[], TrainingConfig]]:
    """Return a function for each method that resolves its configuration.

    ``load_search_space`` takes such a mapping. The functions raise ConfigError for wrong settings.
    """

    def base(entry: Method) -> TrainingConfig:
        # Ignore the name, which is the sweep's and not a run's.
        _, config = resolve_config(entry, replace(options, name=None), Path())
        return config

    return {name: partial(base, entry) for name, entry in METHODS.items()}


def runs_folder(
    given: Path | BucketPath | None, kind: str = "runs", variable: str = "RAYBIO_RUNS"
) -> tuple[Path, BucketPath | None]:
    """Return the local folder of runs or sweeps, and their path in a bucket if they are in one.

    Args:
        given: value of ``--runs`` or ``--sweeps``; None: the variable's value, or the default.
        kind: ``runs`` or ``sweeps``.
        variable: the environment variable that names their folder.

    Raises:
        ConfigError: for a URI that is not supported.
    """
    chosen = given
    if chosen is None and os.environ.get(variable):
        chosen = location(os.environ[variable], variable)
    if not isinstance(chosen, BucketPath):
        return chosen or default_folder(kind, variable), None
    from raybio.runtime.spool.spool import spool_of  # local folders need none of it

    return spool_of(chosen), chosen


def sweeps_folder(
    given: Path | BucketPath | None, name: str | None
) -> tuple[Path, BucketPath | None]:
    """Return the local folder of sweeps, and their path in a bucket if they are in one.

    For a bucket, check access and update the driver's copy of the sweep from it.

    Args:
        given: value of ``--sweeps``; None: the value of ``RAYBIO_SWEEPS``, or the default.
        name: name of the sweep, if given.

    Raises:
        ConfigError: for a URI that is not supported.
        StorageError: if the bucket cannot be read or written.
    """
    sweeps, bucket = runs_folder(given, "sweeps", "RAYBIO_SWEEPS")
    if bucket is not None:
        from raybio.runtime.spool import spool  # local folders need none of it

        spool.check(bucket, "--sweeps")
        if name:
            spool.refresh(RunFolder(sweeps, name), bucket)
    return sweeps, bucket


def check_writable(folder: Path, bucket: BucketPath | None, option: str = "--runs") -> None:
    """Refuse a local folder of runs or sweeps that cannot be written, before anything is loaded.

    Args:
        folder: what ``runs_folder`` or ``sweeps_folder`` returned.
        bucket: the bucket they returned, which they have checked.
        option: the option that gave the folder.

    Raises:
        ConfigError: naming the option; also for the folder of a single run.
    """
    if bucket is None:
        check_writable_folder(folder, option)


def default_folder(kind: str, variable: str) -> Path:
    """Return ``usual_folder``, and print it in a Ray job.

    Raises:
        ConfigError: if the environment variable names a URI.
    """
    given = os.environ.get(variable)
    if given:
        check_local(given, variable)
    folder = usual_folder(kind, variable)
    if not given and folder != Path(kind):
        print(
            f"{kind} go to {folder}, since a job's working directory is deleted; {variable} "
            "changes that"
        )
    return folder


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Return the values of ``--set`` by path, as texts.

    Raises:
        ConfigError: for a text that is not SETTING=VALUE.
    """
    parsed = {}
    for text in settings:
        path, separator, value = text.partition("=")
        if not separator or not path:
            raise ConfigError(f"--set {text!r}: want SETTING=VALUE, such as optim.peak_lr=1e-4")
        parsed[path.strip()] = value
    return parsed


def _store_and_base(
    entry: Method, options: RunOptions, runs: Path
) -> tuple[Location | None, TrainingConfig]:
    if options.store is not None:
        return options.store, entry.config()
    if options.name is not None and options.config is None:
        folder = RunFolder(runs, options.name)
        identity = folder.read_identity()
        if identity is not None:
            if identity["method"] != entry.name:
                raise ConfigError(
                    f"--name {options.name}: is a run of {identity['method']}; choose another "
                    f"name for one of {entry.name}"
                )
            config = recorded_config(entry.config, identity["config"], folder.identity)
            return location(identity["store"]), config
    if options.config is not None:
        identity = read_record(options.config.with_name(RUN), "run")
        if identity is not None:
            return location(identity["store"]), entry.config()
    return None, entry.demo


def _recorded_setup(config: Path) -> dict[str, Any]:
    """Return the launch record next to a configuration, if a run or a sweep left it there."""
    if not config.with_name(RUN).is_file():
        return {}
    recorded = read_record(config.with_name(LAUNCH), "launch") or {}
    if not recorded.get("workers"):
        return {}
    setup = Compute().or_recorded(recorded)
    print(
        f"using the recorded setup of {config} ({setup}) for bit-identical results; override with "
        "--workers, --cpus-per-worker or --device"
    )
    return recorded
