"""A prepared store of any kind, opened as the class of its kind; no model is imported for it."""

from raybio.core.location import Location
from raybio.methods import METHODS
from raybio.store.store import Store, open_store


def open_any_store(source: str | Location, *, verify: bool = False) -> Store:
    """Open a store as the class of its kind, ``Store`` for an unknown kind; see ``open_store``."""
    kinds = {method.store.kind: method.store for method in METHODS.values()}
    store = open_store(source, verify=verify)
    kind = kinds.get(store.manifest["kind"])
    # With its digest, a copy of a store in a bucket is opened without a request.
    return store if kind is None else open_store(source, kind, digest=store.digest)
