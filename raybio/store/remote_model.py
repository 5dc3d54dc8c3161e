"""Models in buckets: models of runs, and other model folders."""

from pathlib import Path

from raybio.core.errors import ConfigError, named_by
from raybio.core.files import RUN
from raybio.core.location import BucketPath
from raybio.store.bucket import BucketFolder
from raybio.store.remote_folder import fetch_folder

EXPORT = "export"
"""The folder of a run with its model."""


def model_path(path: BucketPath, option: str) -> BucketPath:
    """Return the model folder of a run in a bucket; return any other path unchanged.

    Raises:
        ConfigError: for a run or sweep that has no model there.
        StorageError: for a bucket that is missing or refuses.
    """
    with named_by(option):
        files, folders = BucketFolder(path, is_patient=False).children()
    if RUN not in files:
        return path
    if EXPORT in folders:
        return path / EXPORT
    kind = "sweep" if "trials" in folders else "run"
    wanted = f"{path}/trials/TRIAL/export" if kind == "sweep" else "run its command to the end"
    raise ConfigError(f"{option} {path}: that {kind} has no model of its own; {wanted}")


def fetch_bucket_model(path: BucketPath, option: str) -> tuple[BucketPath, Path]:
    """Return where a model lies in a bucket, and this machine's copy of it.

    The record of its run lies next to the copy, as it does in the bucket.

    Args:
        path: folder of a run or of a model.
        option: the option that gave it, for errors.

    Raises:
        RaybioError: as ``model_path`` and ``fetch_folder``.
    """
    folder = model_path(path, option)
    siblings = (RUN,) if folder.name == EXPORT else ()
    return folder, fetch_folder(folder, option, siblings=siblings)
