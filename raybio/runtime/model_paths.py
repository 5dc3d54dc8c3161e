"""Conversion of a user's reference to a model or run into its folder, with errors for typos.

A model is given as the folder of a run, a model's folder, a path in a bucket or a hub id.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from raybio.core.errors import ConfigError
from raybio.core.files import RUN
from raybio.core.location import BucketPath, is_uri, location
from raybio.core.records import read_record
from raybio.core.text import first_names, near_names
from raybio.runtime.run.folder import RunFolder, usual_folder
from raybio.training.bucket_source import fetch_source

MAX_NAMED_RUNS = 10
"""Maximum number of runs that an error lists by name."""


def model_address(given: str, option: str) -> str:
    """Return the model folder of a run's folder; return other paths, URIs and hub ids unchanged.

    A path that begins with ``~`` is expanded.

    Raises:
        ConfigError: for a run that has no model yet, for a sweep, for a run's name without its
            folder, and for a missing name in an existing folder; the error names the option.
        StorageError: for a bucket that is missing or refuses.
    """
    if is_uri(given):
        path = location(given, option)
        if isinstance(path, BucketPath):
            # Imported here, since folders of this machine need no bucket.
            from raybio.store.remote_model import model_path

            return str(model_path(path, option))
        given = str(path)
    folder = Path(given).expanduser()
    if not folder.exists() and folder.parent != Path() and folder.parent.is_dir():
        near = near_names(
            folder.name, [sibling.name for sibling in folder.parent.iterdir() if sibling.is_dir()]
        )
        raise ConfigError(
            f"{option} {given}: there is no {folder.name} in {folder.parent}"
            + (
                f"; did you mean {' or '.join(near)}?"
                if near
                else ". Want a run, a model's folder, or a hub id"
            )
        )
    run = usual_folder("runs", "RAYBIO_RUNS") / given
    if not folder.exists() and folder.parent == Path() and (run / RUN).exists():
        raise ConfigError(
            f"{option} {given}: there is no such folder here; for the run of that name give {run}"
        )
    if (identity := read_record(folder / RUN, "run")) is None:
        return os.path.expanduser(given)
    if "space" in identity.get("config", {}):
        raise ConfigError(
            f"{option} {given}: is a sweep; want a trial's model: {folder}/trials/TRIAL/export"
        )
    if not (export := RunFolder(folder.parent, folder.name, None).export).is_dir():
        raise ConfigError(
            f"{option} {given}: that run has no model yet ({export.name}/); run its command to the "
            "end"
        )
    return str(export.absolute())


def model_folder(given: str, option: str) -> str:
    """Return the folder of a model, or its hub id; a model in a bucket is copied to this machine.

    Raises:
        RaybioError: as ``model_address``, or if the model cannot be fetched.
    """
    source = model_source(given, option)
    if not is_uri(source):
        return source
    # Imported here: it imports the hub's client, which takes a second.
    from raybio.encoders.sources import source_folder

    return str(source_folder(source))


def model_source(given: str, option: str) -> str:
    """Return ``encoder.source`` of a model; one in a bucket is fetched, and named by its URI.

    Raises:
        RaybioError: as ``model_folder``.
    """
    address = model_address(given, option)
    if is_uri(address):
        fetch_source(address, option, again=True)
    return address


def local_model(given: str, option: str) -> str:
    """Return the folder of a model; one in a bucket or on the hub is copied to this machine.

    A name without a slash is not a hub id. Code that opens the folder suggests runs with similar
    names.

    Raises:
        ConfigError: as ``model_folder``, or for a hub id that cannot be fetched.
    """
    folder = model_folder(given, option)
    if Path(folder).exists() or "/" not in folder:
        return folder
    # Imported here: it imports the hub's client, which takes a second.
    from raybio.encoders.hub import fetch_model

    return str(fetch_model(folder))


def near_runs(runs: Path, name: str) -> str:
    """Return runs whose names resemble a misspelt one, as words for an error.

    Args:
        runs: folder of the runs.
        name: a name that none of them has.
    """
    names = _names_of(runs)
    if not names:
        return f"there are no runs in {runs}"
    near = near_names(name, names)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there are {first_names(names, MAX_NAMED_RUNS)}"


def near_run_folders(given: str) -> str:
    """Return, as the end of an error, the folders of runs that a misspelt name may mean.

    Args:
        given: the name of no existing folder; for a path, no runs are suggested.
    """
    runs = usual_folder("runs", "RAYBIO_RUNS")
    if Path(given).parent != Path() or not runs.is_dir():
        return ""
    near = near_names(given, _names_of(runs))
    return f"; did you mean {' or '.join(str(runs / name) for name in near)}?" if near else ""


def check_distinct_names(runs: Sequence[Path]) -> None:
    """Refuse two runs of the same name, which would share an output folder.

    Raises:
        ConfigError: naming them.
    """
    path_by_name: dict[str, Path] = {}
    for run in runs:
        name = run.expanduser().absolute().name
        if name in path_by_name:
            raise ConfigError(
                f"{path_by_name[name]} and {run}: both are called {name}, and the output of one "
                "would replace the other's; give another --out for each"
            )
        path_by_name[name] = run


def _names_of(runs: Path) -> list[str]:
    return sorted(path.parent.name for path in runs.glob(f"*/{RUN}"))
