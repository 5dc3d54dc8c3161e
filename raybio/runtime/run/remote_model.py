"""Models of runs in a bucket."""

from pathlib import Path

from raybio.core.errors import ConfigError, named_by
from raybio.core.location import BucketPath
from raybio.runtime.run.folder import RUN
from raybio.store.bucket import BucketFolder
from raybio.store.remote_folder import fetched_folder


def model_path(path: BucketPath, option: str) -> BucketPath:
    """Return the model folder of a run in a bucket; another path as it is.

    Raises:
        ConfigError: for a run or sweep that has no model there.
        StorageError: for a bucket that is missing or refuses.
    """
    with named_by(option):
        files, folders = BucketFolder(path, is_patient=False).children()
    if RUN not in files:
        return path
    if "export" in folders:
        return path / "export"
    kind = "sweep" if "trials" in folders else "run"
    wanted = f"{path}/trials/TRIAL/export" if kind == "sweep" else "run its command to the end"
    raise ConfigError(f"{option} {path}: that {kind} has no model of its own; {wanted}")


def fetched_model(path: BucketPath, option: str) -> tuple[BucketPath, Path]:
    """Return where a model lies in a bucket, and this machine's copy of it.

    Args:
        path: folder of a run or of a model.
        option: the option that gave it, for errors.

    Raises:
        RaybioError: as ``model_path`` and ``fetched_folder``.
    """
    found = model_path(path, option)
    return found, fetched_folder(found, option)
