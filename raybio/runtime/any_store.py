"""A prepared store in Python: ``raybio.open_store(path)``. No model is imported for it."""

import os

from raybio.core.location import BucketPath
from raybio.methods import METHODS
from raybio.store import store as stores


def open_store(path: str | os.PathLike[str] | BucketPath, *, verify: bool = False) -> stores.Store:
    """Open a prepared store, as the class of its kind; ``Store`` for an unknown kind.

        store = raybio.open_store("stores/proteins")
        store.to_pyg("train")  # the graph of proteins or articles, for torch_geometric

    Args:
        path: its folder, or its path in a bucket.
        verify: also check the sha256 of every file that this machine has not verified yet.

    Raises:
        ConfigError: for a URI that is not supported.
        StorageError: if it cannot be fetched from a bucket.
        StoreError: if the store is missing, unfinished or damaged.
    """
    kinds = {method.store.kind: method.store for method in METHODS.values()}
    store = stores.open_store(path, verify=verify)
    kind = kinds.get(store.manifest["kind"])
    # Given its digest, this machine's copy of a store in a bucket is opened without a request.
    return store if kind is None else stores.open_store(path, kind, digest=store.digest)
