"""The encoder's source in the record of a run: its commit on the hub, or the digest of its weights.

The driver resolves a branch once. Workers, and later starts of the run, read that commit. What lies
in a bucket is fetched by each machine; workers refuse other weights than the driver's.
"""

from typing import Any

from raybio.core.errors import CheckpointError
from raybio.core.location import is_uri
from raybio.encoders.config import SCRATCH
from raybio.encoders.sources import pin_commit, source_record
from raybio.runtime.run.folder import RunFolder, changed_encoder
from raybio.training.bucket_source import fetch_encoder, fetch_source


def encoder_record(config: Any) -> dict[str, str] | None:
    """Return the record of the encoder's source; None for random weights.

    Args:
        config: the run's configuration.

    Raises:
        ConfigError: if the source cannot be found or reached.
    """
    encoder = getattr(config, "encoder", None)
    if encoder is None or encoder.source == SCRATCH:
        return None
    fetch_encoder(config)
    return source_record(encoder.source, encoder.revision)


def pin_encoder(folder: RunFolder) -> None:
    """Make this process load the commit that is recorded in a run's folder, if any.

    Raises:
        RecordFormatError: if the record has another format version.
    """
    _pin_commit(folder.encoder)


def pin_on_worker(record: dict[str, str] | None) -> None:
    """Make this process load the source that ``encoder_record`` recorded, or refuse to train.

    Raises:
        CheckpointError: if the source lies in a bucket, and its weights were replaced meanwhile.
        RaybioError: if it cannot be fetched.
    """
    _pin_commit(record)
    if record is None or not is_uri(record["source"]):
        return
    fetch_source(record["source"], "encoder.source", again=True)
    now = source_record(record["source"], record["revision"])
    if now != record:
        raise CheckpointError(changed_encoder(record, now))


def _pin_commit(record: dict[str, str] | None) -> None:
    if record is not None and "commit" in record:
        pin_commit(record["source"], record["revision"], record["commit"])
