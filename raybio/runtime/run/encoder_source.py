"""The encoder's source in the record of a run: its commit on the hub, or the digest of its weights.

The driver resolves a branch once. Workers, and later starts of the run, read that commit.
"""

from typing import Any

from raybio.encoders.config import SCRATCH
from raybio.encoders.sources import pin_commit, source_record
from raybio.runtime.run.folder import RunFolder


def encoder_record(config: Any) -> dict[str, str] | None:
    """Return what is recorded of the encoder's source; None for random weights.

    Args:
        config: the run's configuration.

    Raises:
        ConfigError: if the source cannot be found or reached.
    """
    encoder = getattr(config, "encoder", None)
    if encoder is None or encoder.source == SCRATCH:
        return None
    return source_record(encoder.source, encoder.revision)


def pin_encoder(folder: RunFolder) -> None:
    """Make this process load the commit that is recorded in a run's folder, if there is one.

    Raises:
        RecordFormatError: if the record has another format version.
    """
    pin_record(folder.encoder)


def pin_record(record: dict[str, str] | None) -> None:
    """Make this process load the commit of a record of ``encoder_record``, if it has one."""
    if record is not None and "commit" in record:
        pin_commit(record["source"], record["revision"], record["commit"])
