"""Stores in buckets: fetched once a machine into its cache, and uploaded with the manifest last."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raybio.core.errors import ConfigError, MissingObjectError, StoreError
from raybio.core.files import TooLargeError
from raybio.core.location import BucketPath
from raybio.core.records import MAX_RECORD_BYTES
from raybio.core.text import size_text
from raybio.core.verification import Verification, file_state
from raybio.store.bucket import BucketFolder
from raybio.store.bucket_cache import (
    cached_copy,
    check_room,
    check_size_limit,
    copies_folder,
    held_copy,
)
from raybio.store.manifest import (
    MANIFEST,
    PREPARE_AGAIN,
    REPLACED,
    command_for,
    is_file_of_store,
    parse_manifest,
)
from raybio.store.object_download import download_object

UPLOADING = "uploading.json"
"""Names the store that is being uploaded; it is deleted after the manifest is written."""

NO_STORE = json.dumps({"digest": ""}).encode()
"""Content of ``uploading.json`` while the objects of a former store are deleted."""

Report = Callable[[str], None]
"""Function that shows a line about the transfer."""


def fetch_store(
    path: BucketPath, digest: str = "", report: Report = print, *, kind: str = ""
) -> Path:
    """Return the folder of this machine's copy of a store; it is fetched if there is none.

    Args:
        path: the store.
        digest: digest of its manifest, if known; a local copy is then used without a request.
        report: shows what is fetched.
        kind: the wanted kind of store, for the error if there is none.

    Raises:
        StoreError: if there is no store, or one of another digest.
        StorageError: if it cannot be fetched, or an object is damaged.
    """
    held = held_copy(_name(digest)) if digest else None
    if held is not None:
        return held
    content = _read_manifest(path, kind)
    manifest, stored = parse_manifest(content, path)
    if digest and stored != digest:
        raise StoreError(f"{path}: holds store {stored[:16]}, want {digest[:16]}: {REPLACED}")
    num_bytes = _num_bytes(manifest)
    folder = copies_folder() / _name(stored)

    def fetch(partial: Path) -> None:
        bucket = BucketFolder(path)
        report(f"{path}: fetching {size_text(num_bytes)} into {folder}")
        for name, facts in manifest["files"].items():
            # A file that exists was verified before it was renamed.
            if not (partial / name).is_file():
                download_object(bucket, name, partial / name, sha256=facts["sha256"])
        _record_verified(partial, folder, stored, list(manifest["files"]))
        (partial / MANIFEST).write_bytes(content)

    return cached_copy(_name(stored), num_bytes, fetch)


def store_digest(path: BucketPath) -> str:
    """Return the digest of a store without fetching it.

    Raises:
        StoreError: if there is no store.
        StorageError: if the bucket is missing or refuses.
    """
    return parse_manifest(_read_manifest(path), path)[1]


def check_copy_fits(path: BucketPath) -> None:
    """Refuse a store that this machine has no copy of and no room for; nothing is fetched.

    Raises:
        StorageError: if there is no room, or the bucket refuses.
        StoreError: if there is no store.
    """
    manifest, digest = parse_manifest(_read_manifest(path), path)
    if not has_copy(digest):
        check_room(_num_bytes(manifest))


def has_copy(digest: str) -> bool:
    """Return whether this machine has a copy of the store of this digest."""
    return (copies_folder() / _name(digest)).is_dir()


def _read_manifest(path: BucketPath, kind: str = "") -> bytes:
    try:
        return BucketFolder(path, is_patient=False).read(MANIFEST, MAX_RECORD_BYTES)
    except MissingObjectError:
        raise StoreError(
            f"{path}: has no manifest.json, so it is no finished store. Prepare one with "
            f"{command_for(kind)}."
        ) from None
    except TooLargeError as error:
        raise StoreError(f"{error}. {PREPARE_AGAIN}") from None


def _num_bytes(manifest: dict[str, Any]) -> int:
    return sum(facts["bytes"] for facts in manifest["files"].values())


def check_target(path: BucketPath, *, force: bool, report: Report = print) -> None:
    """Refuse a path of ``--out`` at which no store can be written, before long work starts.

    Args:
        path: where the store belongs.
        force: replace an existing store.
        report: shows that an upload to the path was interrupted.

    Raises:
        ConfigError: for a bucket without a path, or if ``RAYBIO_CACHE_SIZE`` is no size.
        StorageError: if the bucket is missing or refuses.
        StoreError: if a store exists already, and ``force`` is not set; or if something else lies
            below the path.
    """
    if not path.key:
        raise ConfigError(f"--out {path}: want a path in the bucket, such as {path}/store")
    check_size_limit()
    bucket = BucketFolder(path, is_patient=False)
    bucket.check_writable("--out")
    names = _names_of_store(bucket)
    if force:
        return
    _check_absent(bucket)
    if UPLOADING in names:
        report(
            f"{path}: an upload of a store has begun there and not ended. Only the same store "
            "resumes it; --force replaces it"
        )


def _names_of_store(bucket: BucketFolder) -> set[str]:
    """Return the names of the objects of a store, or of one whose upload has not ended.

    Raises:
        StoreError: if anything else lies there, which replacing the store would delete.
    """
    files, folders = bucket.children()
    others = sorted(name for name in files - {UPLOADING} if not is_file_of_store(name))
    others += sorted(f"{name}/" for name in folders)
    if others:
        raise StoreError(
            f"{bucket.path}: holds {others[0]}, which belongs to no store. Choose another --out."
        )
    if files and not files & {MANIFEST, UPLOADING}:
        raise StoreError(
            f"{bucket.path}: holds {min(files)}, but no {MANIFEST}, so it belongs to no store. "
            "Choose another --out."
        )
    return files


def upload_store(folder: Path, path: BucketPath, *, force: bool, report: Report = print) -> str:
    """Upload a prepared store, the manifest last, and return its digest.

    Until the manifest is there, the store does not exist, also where it replaces another one.
    ``uploading.json`` comes first. It names the digest, so that the files of two stores never mix,
    and an interrupted upload of the same store resumes.

    Raises:
        StorageError: if the bucket is missing or refuses.
        StoreError: if another store is there or on its way, and ``force`` is not set; if another
            upload with ``force`` has begun meanwhile; or if something else lies below the path.
    """
    bucket = BucketFolder(path)
    _names_of_store(bucket)
    content = (folder / MANIFEST).read_bytes()
    manifest, digest = parse_manifest(content, folder)
    claim = json.dumps({"digest": digest}).encode()
    if force:
        if _read_claim(bucket) != claim:
            # Without manifest and claim, the objects would count as foreign and be kept.
            bucket.write(UPLOADING, NO_STORE)
        bucket.delete(MANIFEST)
    else:
        _check_absent(bucket)
    present = {}
    if _claim(bucket, claim, force=force):
        present = {info.name: info.num_bytes for info in bucket.list()}
    facts_by_name = {
        name: facts
        for name, facts in manifest["files"].items()
        if present.get(name) != facts["bytes"]
    }
    num_bytes = sum(facts["bytes"] for facts in facts_by_name.values())
    report(f"{path}: uploading {size_text(num_bytes)}")
    last = ""
    for name in facts_by_name:
        if _is_finished(bucket, claim, digest, last):
            return digest
        bucket.upload(folder / name, name)
        last = name
    if not _is_finished(bucket, claim, digest, last):
        if bucket.create(MANIFEST, content) is None:
            raise _exists_already(path)
        bucket.delete(UPLOADING)
    return digest


def _claim(bucket: BucketFolder, claim: bytes, *, force: bool) -> bool:
    """Write which store is being uploaded; return whether an upload of it was interrupted.

    Raises:
        StoreError: if it is another one, and ``force`` is not set.
    """
    current = _read_claim(bucket)
    if current == claim:
        return True
    if force:
        # Files of another store with equal sizes could later be taken for uploaded ones.
        bucket.delete(sorted(_names_of_store(bucket) - {UPLOADING}))
        bucket.write(UPLOADING, claim)
    elif current is not None or bucket.create(UPLOADING, claim) is None:
        raise StoreError(
            f"{bucket.path}: another store is on its way there, or its upload was interrupted. "
            "Wait for it, replace it with --force, or choose another --out."
        )
    return False


def _read_claim(bucket: BucketFolder) -> bytes | None:
    try:
        return bucket.read(UPLOADING)
    except MissingObjectError:
        return None


def _is_finished(bucket: BucketFolder, claim: bytes, digest: str, last: str) -> bool:
    """Return whether another process has uploaded the same store meanwhile.

    Args:
        bucket: folder of the store.
        claim: content of ``uploading.json`` of this upload.
        digest: digest of this store.
        last: name of the last file that this process has uploaded; "" for none.

    Raises:
        StoreError: if another store is uploaded there since.
    """
    if _read_claim(bucket) == claim:
        return False
    if bucket.info(MANIFEST) is not None and store_digest(bucket.path) == digest:
        return True
    advice = "Choose another --out."
    if last:
        # Objects of both stores have the same names, and multipart uploads cannot be conditional.
        advice = (
            f"Its {last} may have been overwritten by this one's: prepare that store again with "
            "--force, and choose another --out for this one."
        )
    raise StoreError(f"{bucket.path}: another store is uploaded there since. {advice}")


def keep_as_copy(folder: Path, digest: str) -> None:
    """Move an uploaded store into the cache, so that this machine need not fetch it."""
    manifest, _ = parse_manifest((folder / MANIFEST).read_bytes(), folder)

    def move(partial: Path) -> None:
        for name in (*manifest["files"], MANIFEST):
            (folder / name).replace(partial / name)

    cached_copy(_name(digest), 0, move)


def _name(digest: str) -> str:
    return f"store-{digest}"


def _record_verified(partial: Path, folder: Path, digest: str, names: list[str]) -> None:
    """Record that the files are verified, so that a start does not read them again.

    Renaming their folder changes no file.
    """
    verification = Verification(folder, digest)
    for name in names:
        verification.add(name, file_state(partial / name, StoreError))


def _check_absent(bucket: BucketFolder) -> None:
    if bucket.info(MANIFEST) is not None:
        raise _exists_already(bucket.path)


def _exists_already(path: BucketPath) -> StoreError:
    return StoreError(
        f"{path}: a store exists already. Replace it with --force, or choose another --out."
    )
