"""Fetching of an encoder's source from a bucket to this machine, before anything reads it."""

from typing import Any

from raybio.core.location import BucketPath, is_uri, location


def fetch_encoder(config: Any, *, again: bool = False) -> None:
    """Fetch the source of the encoder of a run if it lies in a bucket; see ``fetch_source``.

    Args:
        config: the run's configuration.
        again: look for another version, as the start of a run does; otherwise this process keeps
            the one that it has.
    """
    encoder = getattr(config, "encoder", None)
    if encoder is not None and is_uri(encoder.source):
        fetch_source(encoder.source, "encoder.source", again=again)


def fetch_source(address: str, option: str, *, again: bool = False) -> None:
    """Fetch a model from a bucket into the cache, from which encoders with this address are read.

    Args:
        address: address of the folder of a finished run or of a model.
        option: the option that gave the address, for errors.
        again: look for another version.

    Raises:
        ConfigError: for a URI that is not supported, or a run without a model.
        StorageError: if there is nothing, or it cannot be fetched.
    """
    # Imported here: ``raybio --help`` needs neither.
    from raybio.encoders.sources import is_pinned, pin_folder
    from raybio.store.remote_model import fetch_bucket_model

    if is_pinned(address) and not again:
        return
    path = location(address, option)
    assert isinstance(path, BucketPath)
    pin_folder(address, fetch_bucket_model(path, option)[1])
