"""The manifest of a store: how it is read, and the checksums that it holds."""

import hashlib
import json
from typing import Any

from raybio.core.digest import json_digest
from raybio.core.errors import StoreError
from raybio.core.records import is_count

SCHEMA_VERSION = 2

MANIFEST = "manifest.json"

WITHOUT_LINK = "rows_without_a_link"
"""Manifest entry of stores of links: rows with content but without a link, which are skipped."""

DERIVED = "derived"
"""Folder in a store with files that are computed from it; the manifest does not list them."""

PREPARE_AGAIN = "Prepare it again with raybio prepare (--force replaces it)."

REPLACED = (
    "it was prepared again since. Prepare the former store again, or begin a new run with this one"
)
"""Error text about a store that was replaced by another one after it was opened."""

PREPARED_BY = {
    "proteins": "`raybio prepare proteins`",
    "linked texts": "`raybio prepare articles`",
    "topics": "`raybio prepare topics`",
    "task": "`raybio train finetune TASK --data FILES`",
    "articles": "`raybio prepare pairs` or `raybio prepare medline`",
    "sentences": "`raybio train contrastive_probe --sentences FILE`",
    "documents": "`raybio prepare documents`",
    "words": "`raybio prepare spert`",
    "search index": "`raybio search index`",
}
"""Kind of a store -> the command that makes one. Kinds of other packages are missing."""


def is_file_of_store(name: str) -> bool:
    """Return whether stores have files of this name directly in their folder."""
    return name == MANIFEST or ("/" not in name and name.endswith(".arrow"))


def command_for(kind: str) -> str:
    """Return the command that makes stores of a kind; "" for any kind."""
    return PREPARED_BY.get(kind, "`raybio prepare`")


def kind_and_command(kind: str) -> str:
    """Return a kind of store with the command that makes one, as words for an error."""
    return f"{kind}, made by {PREPARED_BY[kind]}" if kind in PREPARED_BY else kind


def parse_manifest(content: bytes, store: object) -> tuple[dict[str, Any], str]:
    """Return a manifest and its digest, the sha256 of its bytes.

    Args:
        content: bytes of the file.
        store: path of the store, for errors.

    Raises:
        StoreError: if the manifest is damaged, of another schema version, or names a file outside
            of the store.
    """
    path = f"{store}/{MANIFEST}"
    try:
        manifest = json.loads(content)
        version = manifest["schema_version"]
        checksum = manifest.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise StoreError(
            f"{path}: is damaged, want JSON as the store's writer left it. {PREPARE_AGAIN}"
        ) from None
    if type(version) is not int or version != SCHEMA_VERSION:
        raise StoreError(
            f"{store}: has store schema version {str(version)[:40]}, this raybio reads version "
            f"{SCHEMA_VERSION}. {PREPARE_AGAIN}"
        )
    if checksum != json_digest(manifest):
        raise StoreError(
            f"{path}: its content does not match its own checksum: it was changed. {PREPARE_AGAIN}"
        )
    if not _is_whole(manifest):
        raise StoreError(
            f"{path}: lacks the kind, the counts or the files of the store, so another version of "
            f"raybio wrote it. {PREPARE_AGAIN}"
        )
    for name in manifest["files"]:
        if not _is_file_name(name):
            raise StoreError(
                f"{path}: lists {name[:80]!r}, want names of files in the store's folder. Use no "
                "store of this source: raybio writes no such name."
            )
    return manifest, hashlib.sha256(content).hexdigest()


def _is_whole(manifest: dict[str, Any]) -> bool:
    """Return whether a manifest has the entries that every reader of a store needs."""
    kind = manifest.get("kind")
    counts = manifest.get("counts")
    files = manifest.get("files")
    if not isinstance(kind, str) or not isinstance(counts, dict) or not isinstance(files, dict):
        return False
    if "rows" not in counts or not all(map(is_count, counts.values())):
        return False
    return all(
        isinstance(facts, dict)
        and is_count(facts.get("bytes"))
        and isinstance(facts.get("sha256"), str)
        for facts in files.values()
    )


def _is_file_name(name: str) -> bool:
    """Return whether a name is a plain file name, so that it cannot leave the store's folder."""
    return name not in ("", ".", "..", MANIFEST) and "/" not in name and "\0" not in name
