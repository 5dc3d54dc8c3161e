"""Stores and source files in buckets: fetched once, verified, resumed, uploaded with the manifest last."""

import contextlib
import fcntl
import hashlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import raybio
from raybio.cli.stores import check_out, matching, prepare_store
from raybio.core.digest import canonical_json, json_digest
from raybio.core.errors import (
    ConfigError,
    DamagedObjectError,
    DamagedStoreError,
    StorageError,
    StoreError,
)
from raybio.core.location import BucketPath
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.store import bucket_cache, object_download, remote_store
from raybio.store.bucket import BucketFolder
from raybio.store.manifest import MANIFEST
from raybio.store.remote_store import upload_store
from raybio.store.sources import describe_files
from raybio.store.store import Store, open_store, pinned
from tests.s3 import S3
from tests.store.test_store import FILES, SEQUENCES, parts, write_store


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RAYBIO_CACHE_SIZE", raising=False)
    monkeypatch.setattr(bucket_cache, "_HELD", {})
    return bucket_cache.copies_folder()


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return write_store(tmp_path / "store", **parts())


@pytest.fixture
def remote(local: Store, bucket: BucketPath) -> BucketPath:
    path = bucket / "stores" / "läufe ü"
    upload_store(local.path, path, force=False)
    return path


def gets(s3: S3) -> list[str]:
    """Return the names of the objects whose content was read, once for each request."""
    return [
        r.path.rpartition("/")[2] for r in s3.requests if r.method == "GET" and "?" not in r.path
    ]


def test_a_store_by_uri_is_the_store_by_path(local: Store, remote: BucketPath, s3: S3) -> None:
    s3.requests.clear()
    store = raybio.open_store(str(remote))
    assert store.digest == local.digest and store.manifest == local.manifest
    assert store.location == remote and str(store.path).startswith(os.environ["RAYBIO_CACHE"])
    for name in local.manifest["files"]:
        assert (store.path / name).read_bytes() == (local.path / name).read_bytes()
    assert sorted(gets(s3)) == sorted([MANIFEST, *local.manifest["files"]])
    assert type(store) is type(local)
    assert open_store(remote, type(local), verify=True) is store
    assert gets(s3).count(MANIFEST) == 2 and len(gets(s3)) == len(local.manifest["files"]) + 2


def test_another_process_opens_the_copy_without_a_request(remote: BucketPath, s3: S3) -> None:
    store = open_store(remote)
    pickled = pickle.dumps(store)
    s3.requests.clear()
    assert pickle.loads(pickled) is store
    assert s3.requests == []
    # On a node that has no copy it is fetched, and only if it is still the same.
    bucket_cache.remove_copy(store.path)
    again = pickle.loads(pickled)
    assert again.digest == store.digest and again.path.is_dir()
    bucket_cache.remove_copy(store.path)
    BucketFolder(remote).write(MANIFEST, b"{}")
    with pytest.raises(StoreError, match="is damaged, want JSON"):
        pickle.loads(pickled)


def test_a_start_does_not_read_a_fetched_store_again(
    remote: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(remote)
    monkeypatch.setattr(
        "raybio.core.verification.sha256_of", lambda path, error: pytest.fail(f"read {path}")
    )
    open_store(remote, verify=True)


def test_a_manifest_larger_than_any_that_is_written_is_not_fetched(
    remote: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_bytes = len(BucketFolder(remote).read(MANIFEST))
    assert len(BucketFolder(remote).read(MANIFEST, num_bytes)) == num_bytes
    monkeypatch.setattr(remote_store, "MAX_RECORD_BYTES", num_bytes - 1)
    with pytest.raises(
        StoreError, match=rf"manifest\.json: holds {num_bytes:,} bytes, want at most"
    ):
        open_store(remote)


def test_a_copy_whose_manifest_was_torn_is_fetched_again(remote: BucketPath) -> None:
    store = open_store(remote)
    (store.path / MANIFEST).write_bytes(b"")
    assert open_store(remote).digest == store.digest


def test_source_files_of_a_bucket_with_versions_are_read(bucket: BucketPath) -> None:
    import boto3

    versions = {"Status": "Enabled"}
    client = boto3.client("s3", region_name="us-east-1")
    client.put_bucket_versioning(Bucket=bucket.bucket, VersioningConfiguration=versions)
    BucketFolder(bucket).write("a1.txt", b"first")
    (file,) = matching([f"{bucket}/a*.txt"])
    assert file.read_bytes() == b"first"


def test_what_is_no_store_is_refused(bucket: BucketPath, local: Store) -> None:
    with pytest.raises(StoreError, match="has no manifest.json, so it is no finished store"):
        open_store(bucket / "nothing")
    upload_store(local.path, bucket / "a", force=False)
    with pytest.raises(StoreError, match="a store exists already. Replace it with --force"):
        upload_store(local.path, bucket / "a", force=False)
    with pytest.raises(StoreError, match="a store exists already"):
        check_out(bucket / "a", force=False)
    check_out(bucket / "a", force=True)
    upload_store(local.path, bucket / "a", force=True)
    assert open_store(bucket / "a").digest == local.digest


@pytest.mark.parametrize(
    "name", ["/ABSOLUTE", "../outside", "a/b", "..", ".", "", "a\0b", MANIFEST]
)
def test_a_manifest_that_names_a_path_out_of_the_store_is_refused(
    name: str, local: Store, bucket: BucketPath, cache: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    name = str(victim) if name == "/ABSOLUTE" else name
    content = b"of the bucket's owner"
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {**local.manifest, "files": {**local.manifest["files"], name: facts}}
    # Whoever writes a manifest writes its checksum, too.
    written = canonical_json({**manifest, "checksum": json_digest(manifest)})
    path = bucket / "shared"
    upload_store(local.path, path, force=False)
    BucketFolder(path).write(MANIFEST, written)
    if name == str(victim):
        BucketFolder(path).write(name, content)
    for refused in (
        lambda: open_store(path),
        lambda: (local.path / MANIFEST).write_bytes(written) and open_store(local.path),
        lambda: upload_store(local.path, bucket / "other", force=False),
    ):
        with pytest.raises(StoreError, match="want names of files in the store's folder"):
            refused()
    assert not victim.exists()
    assert not cache.exists()


def test_a_damaged_object_is_refused_by_name_and_leaves_no_copy(
    remote: BucketPath, local: Store, cache: Path
) -> None:
    name = next(iter(local.manifest["files"]))
    content = bytearray((local.path / name).read_bytes())
    content[len(content) // 2] ^= 1
    BucketFolder(remote).write(name, bytes(content))
    with pytest.raises(DamagedObjectError, match=rf"{name}: its sha256 is .* damaged or changed"):
        open_store(remote)
    assert not list(cache.glob("store-*"))
    BucketFolder(remote).upload(local.path / name, name)
    assert open_store(remote).digest == local.digest


@pytest.mark.parametrize("damage", ["truncated", "changed"])
def test_a_damaged_copy_is_fetched_again(remote: BucketPath, local: Store, damage: str) -> None:
    store = open_store(remote)
    name = next(iter(store.manifest["files"]))
    content = bytearray((store.path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (store.path / name).write_bytes(content[:-1] if damage == "truncated" else content)
    if damage == "changed":
        with pytest.raises(DamagedStoreError, match="it is a copy, and fetched again"):
            store.verify()
    again = open_store(remote, verify=True)
    assert (again.path / name).read_bytes() == (local.path / name).read_bytes()


OPEN = "import sys; from raybio.store.store import open_store; print(open_store(sys.argv[1]).path)"


def opening(path: BucketPath) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OPEN, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_processes_fetch_a_store_once_and_a_killed_one_is_continued(
    remote: BucketPath, local: Store, s3: S3
) -> None:
    names = list(local.manifest["files"])
    last = names[-1]
    s3.requests.clear()
    s3.hold(f"/{last}")
    killed = opening(remote)
    wait_for(lambda: any(last in request.path for request in s3.requests))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    s3.release()
    s3.requests.clear()
    processes = [opening(remote) for _ in range(2)]
    output = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], output
    # What had arrived before the kill is not read again, and only one of the two has fetched.
    assert sorted(name for name in gets(s3) if name != MANIFEST) == [last]
    assert sum("fetching" in out for out, _ in output) == 1


def test_a_killed_upload_leaves_no_store(
    local: Store, bucket: BucketPath, s3: S3, tmp_path: Path
) -> None:
    path = bucket / "new"
    names = list(local.manifest["files"])
    code = (
        "import sys; from pathlib import Path; from raybio.core.location import location; "
        "from raybio.store.remote_store import upload_store; "
        "upload_store(Path(sys.argv[1]), location(sys.argv[2]), force=False)"
    )
    s3.hold(f"/{names[-1]}")
    killed = subprocess.Popen([sys.executable, "-c", code, str(local.path), str(path)])
    wait_for(lambda: any(r.method == "PUT" and names[-1] in r.path for r in s3.requests))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    with pytest.raises(StoreError, match="is no finished store"):
        open_store(path)
    s3.release()
    upload_store(local.path, path, force=False)
    assert open_store(path).digest == local.digest


def test_an_upload_sends_what_is_missing_and_never_mixes_two_stores(
    local: Store, bucket: BucketPath, s3: S3, tmp_path: Path
) -> None:
    path = bucket / "new"
    other = write_store(tmp_path / "other", **parts([sequence[::-1] for sequence in SEQUENCES]))
    assert other.digest != local.digest
    names = list(local.manifest["files"])
    s3.fail("denied", method="PUT", containing=f"/{names[-1]}", times=99)
    with pytest.raises(StorageError, match="no permission to write"):
        upload_store(local.path, path, force=False)
    s3.heal()
    before = [(info.name, info.version) for info in BucketFolder(path).list()]
    with pytest.raises(StoreError, match="another store is on its way there"):
        upload_store(other.path, path, force=False)
    assert [(info.name, info.version) for info in BucketFolder(path).list()] == before
    s3.requests.clear()
    upload_store(local.path, path, force=False)
    sent = [request.path for request in s3.requests if request.method == "PUT"]
    assert [name for name in names if any(path.endswith(f"/{name}") for path in sent)] == names[-1:]
    assert open_store(path).digest == local.digest

    # Another machine finishes another store while this one uploads.
    def uploads_too(text: str) -> None:
        if "uploading" in text:
            upload_store(other.path, path, force=True, report=lambda text: None)

    with pytest.raises(StoreError, match="another store is uploaded there since"):
        upload_store(local.path, path, force=True, report=uploads_too)
    assert open_store(path).digest == other.digest
    # A replacement that was interrupted: files of both stores have the same names and sizes.
    s3.fail("denied", method="PUT", containing=f"/{names[0]}", times=99)
    with pytest.raises(StorageError, match="no permission to write"):
        upload_store(local.path, path, force=True)
    s3.heal()
    upload_store(local.path, path, force=True)
    for name in names:
        assert BucketFolder(path).read(name) == (local.path / name).read_bytes()
    # Of the same store, both are content.
    path = bucket / "same"

    def same(text: str) -> None:
        if "uploading" in text:
            upload_store(local.path, path, force=False, report=lambda text: None)

    assert upload_store(local.path, path, force=False, report=same) == local.digest
    assert open_store(path, verify=True).digest == local.digest
    assert [info.name for info in BucketFolder(path).list()] == sorted([MANIFEST, *names])


def test_a_store_that_is_replaced_does_not_exist_until_all_of_it_has_arrived(
    remote: BucketPath, local: Store, s3: S3
) -> None:
    name = next(iter(local.manifest["files"]))
    s3.fail("denied", method="PUT", containing=name)
    with pytest.raises(StorageError, match="no permission to write"):
        upload_store(local.path, remote, force=True)
    with pytest.raises(StoreError, match="is no finished store"):
        open_store(remote)


def test_nothing_but_a_store_is_ever_replaced(local: Store, bucket: BucketPath) -> None:
    path = bucket / "stores"
    folder = BucketFolder(path)
    upload_store(local.path, path / "proteins", force=False)
    for name, in_error in (("first/run.json", "first/"), ("run.json", "run.json")):
        folder.write(name, b"{}")
        before = folder.list()
        for refused in (check_out, partial(upload_store, local.path)):
            for force in (False, True):
                with pytest.raises(
                    StoreError, match=f"holds {in_error}, which belongs to no store"
                ):
                    refused(path, force=force)
        assert folder.list() == before
        folder.delete([info.name for info in before])
    with pytest.raises(ConfigError, match="want a path in the bucket"):
        check_out(BucketPath(bucket.scheme, bucket.bucket), force=True)


def test_arrow_objects_without_a_manifest_are_no_store_and_never_deleted(
    local: Store, bucket: BucketPath
) -> None:
    path = bucket / "mine"
    BucketFolder(path).write("train.arrow", b"of the user")
    for refused in (check_out, partial(upload_store, local.path)):
        for force in (False, True):
            with pytest.raises(StoreError, match="holds train.arrow, but no manifest.json"):
                refused(path, force=force)
    assert BucketFolder(path).read("train.arrow") == b"of the user"


@pytest.mark.parametrize("num_deletions", [0, 1, 2])
def test_a_replacement_that_was_interrupted_while_it_deleted_is_replaced_again(
    local: Store,
    remote: BucketPath,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_deletions: int,
) -> None:
    other = write_store(tmp_path / "other", **parts([sequence[::-1] for sequence in SEQUENCES]))
    delete, write = BucketFolder.delete, BucketFolder.write
    deletions: list[object] = []

    def killed(self: BucketFolder, *names: Any) -> None:
        if len(deletions) == num_deletions:
            raise KeyboardInterrupt
        deletions.append(names)
        delete(self, *names)

    def writes(self: BucketFolder, name: str, content: bytes) -> None:
        if len(deletions) == 2:
            raise KeyboardInterrupt
        write(self, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(BucketFolder, "delete", killed)
        patch.setattr(BucketFolder, "write", writes)
        with pytest.raises(KeyboardInterrupt):
            upload_store(other.path, remote, force=True)
    # Nor do files of the same size count as uploaded ones of the store on its way.
    if num_deletions:
        with pytest.raises(StoreError, match="another store is on its way there"):
            upload_store(other.path, remote, force=False)
    upload_store(other.path, remote, force=True)
    assert open_store(remote, verify=True).digest == other.digest


def test_an_interrupted_upload_is_said_before_another_one_is_prepared(
    local: Store, bucket: BucketPath, s3: S3, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bucket / "new"
    s3.fail("denied", method="PUT", containing=MANIFEST, times=99)
    with pytest.raises(StorageError):
        upload_store(local.path, path, force=False)
    s3.heal()
    capsys.readouterr()
    check_out(path, force=True)
    assert not capsys.readouterr().out
    check_out(path, force=False)
    assert "an upload of a store has begun there" in capsys.readouterr().out
    s3.fail("denied", method="GET", containing="list-type", times=99)
    with pytest.raises(StorageError, match="no permission to list"):
        check_out(path, force=True)


def test_an_upload_that_overwrites_another_ones_file_says_so(
    local: Store, bucket: BucketPath, s3: S3, tmp_path: Path
) -> None:
    path = bucket / "new"
    other = write_store(tmp_path / "other", **parts([sequence[::-1] for sequence in SEQUENCES]))
    name = next(iter(local.manifest["files"]))
    s3.hold(f"/{name}")
    with ThreadPoolExecutor() as pool:
        late = pool.submit(upload_store, local.path, path, force=False)
        wait_for(lambda: any(r.method == "PUT" and name in r.path for r in s3.requests))
        BucketFolder(path).write("uploading.json", b"{}")
        s3.release()
        with pytest.raises(StoreError, match=f"Its {name} may have been overwritten"):
            upload_store(other.path, path, force=True)
            late.result()


def test_a_run_keeps_to_the_store_that_it_began_with(
    local: Store, remote: BucketPath, s3: S3, tmp_path: Path
) -> None:
    for path in (local.path, remote):
        copy = open_store(path)
        other = write_store(
            tmp_path / "other", **parts([sequence[::-1] for sequence in SEQUENCES]), force=True
        )
        with pinned(path, local.digest):
            assert open_store(path, verify=True).digest == local.digest
            if isinstance(path, BucketPath):
                upload_store(other.path, path, force=True)
                s3.requests.clear()
                # Nobody asks the bucket for a store that is here.
                assert open_store(path, verify=True).digest == local.digest
                assert not s3.requests
                bucket_cache.remove_copy(copy.path)
            else:
                shutil.rmtree(path)
                shutil.copytree(other.path, path)
            with pytest.raises(StoreError, match="it was prepared again since"):
                open_store(path)
        assert open_store(path).digest == other.digest


def test_a_file_of_another_store_is_never_read_as_one_of_this(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", **parts())
    same = open_store(tmp_path / "store", ProteinStore)
    write_store(tmp_path / "store", **parts(), force=True)
    assert bytes(same.residue_T) == bytes(store.residue_T)
    again = open_store(tmp_path / "store", Store)
    write_store(tmp_path / "store", **parts([sequence[::-1] for sequence in SEQUENCES]), force=True)
    with pytest.raises(StoreError, match="it was prepared again since"):
        again.column("rows.arrow", "length")
    # What is mapped stays readable, as a run that trains needs it.
    mapped = open_store(tmp_path / "store", ProteinStore)
    mapped.map_all()
    write_store(tmp_path / "store", **parts(), force=True)
    assert bytes(mapped.residue_T) != bytes(store.residue_T)


def test_a_cache_without_room_does_not_undo_an_upload(
    bucket: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bucket / "prepared"
    monkeypatch.setenv("RAYBIO_CACHE_SIZE", "200 gigs")
    with pytest.raises(ConfigError, match="want a size such as 200GB"):
        check_out(path, force=False)
    monkeypatch.delenv("RAYBIO_CACHE_SIZE")
    check_out(path, force=False)
    monkeypatch.setattr(bucket_cache, "SPARE_BYTES", 1 << 60)
    store = prepare_store(path, partial(write_store, **parts()), force=False)
    assert open_store(path).digest == store.digest


def test_a_store_is_prepared_uploaded_and_kept_as_a_copy(
    bucket: BucketPath, s3: S3, tmp_path: Path
) -> None:
    path = bucket / "prepared"
    check_out(path, force=False)
    store = prepare_store(path, partial(write_store, **parts()), force=False)
    assert store.location == path
    s3.requests.clear()
    assert open_store(path).digest == store.digest
    assert gets(s3) == [MANIFEST]
    assert not list((tmp_path / "cache" / "work").glob("prepared*"))
    assert [info.name for info in BucketFolder(path).list()] == sorted(
        [MANIFEST, *store.manifest["files"]]
    )


def prepare_small(folder: Path, *, source: Path, force: bool = False) -> ProteinStore:
    return write_store(folder, force=force, **parts(source.read_text().split()))


def test_a_store_whose_upload_failed_is_not_prepared_again(
    bucket: BucketPath, s3: S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bucket / "prepared"
    source = tmp_path / "sequences.txt"
    source.write_text("\n".join(SEQUENCES))

    def prepare(force: bool = False) -> ProteinStore:
        return prepare_store(path, partial(prepare_small, source=source), force=force)

    def fail() -> None:
        s3.fail("denied", method="PUT", containing=f"/{FILES[-1]}", times=99)
        with pytest.raises(StorageError, match="no permission.* the same command uploads the rest"):
            prepare()
        s3.heal()

    fail()
    folder = next((tmp_path / "cache" / "work").glob("*/prepared"))
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    fail()
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert "prepared by an earlier command" in capsys.readouterr().out
    # Of another input, or damaged, it is prepared again.
    source.write_text("\n".join(sequence[::-1] for sequence in SEQUENCES))
    with pytest.raises(StoreError, match="another store is on its way there"):
        prepare()
    assert "prepared by an earlier command" not in capsys.readouterr().out
    (folder / FILES[-1]).write_bytes(bytes((folder / FILES[-1]).stat().st_size))
    store = prepare(force=True)
    assert "prepared by an earlier command" not in capsys.readouterr().out
    assert store.residue_T[:3].tobytes() == b"DCA"
    assert open_store(path, verify=True).digest == store.digest


@contextlib.contextmanager
def as_another_user(cache: Path) -> Iterator[None]:
    """Let root, who may write any file, be another user of the cache."""
    user = os.geteuid()
    folders = [cache, *cache.parents][:-1]
    modes = {folder: folder.stat().st_mode for folder in folders}
    try:
        if user == 0:
            for folder in folders:
                folder.chmod(modes[folder] | (0o077 if folder == cache else 0o055))
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(user)
        for folder in folders:
            folder.chmod(modes[folder])


def test_a_copy_whose_lock_another_user_made_is_held(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "name").mkdir()
    lock = cache / ".name.lock"
    lock.touch(0o444)
    with as_another_user(cache):
        assert bucket_cache.held_copy("name") == cache / "name"
    with lock.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_copy_of_another_user_does_not_keep_ones_own_from_making_room(cache: Path) -> None:
    cache.mkdir(parents=True)
    for age, name in ((2, "theirs"), (1, "mine")):
        (cache / name).mkdir()
        for lock in (cache / f".{name}.making", cache / f".{name}.lock"):
            lock.touch()
            lock.chmod(0o444 if name == "theirs" else 0o666)
            time_of_use = time.time() - age
            os.utime(lock, (time_of_use, time_of_use))
    (cache / "mine").chmod(0o777)
    with as_another_user(cache):
        assert bucket_cache._remove_oldest(cache / "new")
        assert not bucket_cache._remove_oldest(cache / "new")
    assert [path.name for path in cache.glob("[a-z]*")] == ["theirs"]


def test_copies_that_nobody_uses_make_room_least_recently_used_first(
    bucket: BucketPath, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str) -> Path:
        return bucket_cache.cached_copy(
            name, 1_000_000, lambda folder: (folder / "f").write_bytes(bytes(1_000_000)) and None
        )

    def close() -> None:
        for folder in list(bucket_cache._HELD):
            bucket_cache._release(folder)

    for name in ("a", "b", "c"):
        fetch(name)
        time.sleep(0.01)
    close()
    held = fetch("a")
    monkeypatch.setenv("RAYBIO_CACHE_SIZE", "3.5 MB")
    fetch("d")
    # "a" is the oldest by its fetch, but was used last, and is in use.
    assert sorted(path.name for path in cache.glob("[a-z]")) == ["a", "c", "d"]
    monkeypatch.setenv("RAYBIO_CACHE_SIZE", "2.5MB")
    with pytest.raises(StorageError, match="exceed RAYBIO_CACHE_SIZE=2.5MB .* in use. Raise it"):
        fetch("e")
    assert held.is_dir()
    monkeypatch.setenv("RAYBIO_CACHE_SIZE", "2.5MiB")
    with pytest.raises(StorageError, match="exceed RAYBIO_CACHE_SIZE=2.5MiB by 38[0-9] kB"):
        fetch("e")
    monkeypatch.setenv("RAYBIO_CACHE_SIZE", "much")
    with pytest.raises(ConfigError, match="RAYBIO_CACHE_SIZE: got 'much', want a size"):
        fetch("f")


USE = (
    "import sys; from raybio.store.bucket_cache import cached_copy\n"
    "cached_copy('name', 1, lambda folder: (folder / 'f').write_text('first'))\n"
    "print('held', flush=True); sys.stdin.read()"
)


def write_again(folder: Path) -> None:
    (folder / "f").write_text("again")


@pytest.mark.timeout(30)
def test_a_removed_copy_is_made_again_by_the_process_that_used_it(cache: Path) -> None:
    folder = bucket_cache.cached_copy("name", 1, lambda folder: (folder / "f").touch())
    shutil.rmtree(folder)
    assert bucket_cache.cached_copy("name", 1, write_again) == folder
    assert (folder / "f").read_text() == "again"
    # It is held as the first one was.
    with (cache / ".name.lock").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.timeout(60)
def test_a_damaged_copy_is_made_again_while_another_process_uses_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = subprocess.Popen(
        [sys.executable, "-c", USE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert user.stdout is not None and user.stdout.readline() == "held\n"
        bucket_cache.remove_copy(cache / "name")
        folder = bucket_cache.cached_copy("name", 1, write_again)
        assert user.poll() is None
        assert (folder / "f").read_text() == "again"
        # The other process uses the new copy as it did the first one: nobody removes it.
        bucket_cache._release(folder)
        monkeypatch.setenv("RAYBIO_CACHE_SIZE", "1")
        with pytest.raises(StorageError, match="all other copies are in use"):
            bucket_cache.cached_copy("other", 1, write_again)
        assert (folder / "f").is_file()
    finally:
        user.communicate("")
    with pytest.raises(StorageError):
        bucket_cache.cached_copy("other", 1_000, write_again)
    assert not folder.exists()


def test_a_copy_that_another_process_has_made_again_is_not_removed_as_damaged(cache: Path) -> None:
    folder = bucket_cache.cached_copy("name", 1, lambda folder: (folder / "f").touch())
    folder.rename(cache / ".removed")
    folder.mkdir()
    write_again(folder)
    bucket_cache.remove_copy(folder)
    assert bucket_cache.held_copy("name") == folder
    assert (folder / "f").read_text() == "again"
    bucket_cache.remove_copy(folder)
    assert not folder.exists()


def test_a_process_that_waits_long_for_a_copy_says_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bucket_cache, "SILENT_SECONDS", 0.2)
    cache.mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool:
        with (cache / ".name.making").open("a") as maker:
            fcntl.flock(maker, fcntl.LOCK_EX)
            waiting = pool.submit(bucket_cache.cached_copy, "name", 1, write_again)
            wait_for(lambda: "another process makes this copy" in caplog.text)
            assert not waiting.done()
        assert waiting.result(60) == cache / "name"


def test_what_an_interrupted_fetch_left_is_removed_for_room(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        (folder / "f").write_bytes(bytes(1_000_000))
        raise OSError("interrupted")

    with pytest.raises(StorageError, match="interrupted"):
        bucket_cache.cached_copy("half", 1_000_000, fail)
    assert (cache / ".half.partial" / "f").is_file()
    monkeypatch.setenv("RAYBIO_CACHE_SIZE", "0.5MB")
    bucket_cache.cached_copy("name", 1_000, write_again)
    assert not (cache / ".half.partial").exists()


def test_a_disk_without_room_is_refused_before_anything_is_fetched(
    remote: BucketPath, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(bucket_cache.shutil, "disk_usage", lambda _: usage)
    s3.requests.clear()
    with pytest.raises(StorageError, match="Free some space, or set RAYBIO_CACHE"):
        open_store(remote)
    assert gets(s3) == [MANIFEST]


@pytest.fixture
def source_files(tmp_path: Path, bucket: BucketPath) -> tuple[list[Path], BucketPath]:
    """Files of one folder, here and in a bucket."""
    folder = tmp_path / "baseline"
    folder.mkdir()
    for name in ("b.xml.gz", "a.xml.gz", "c.txt", ".hidden.xml.gz"):
        (folder / name).write_bytes(hashlib.sha256(name.encode()).digest())
        BucketFolder(bucket / "pub med" / "baseline").upload(folder / name, name)
    BucketFolder(bucket / "pub med" / "baseline" / "deeper").write("d.xml.gz", b"deep")
    return [folder / "a.xml.gz", folder / "b.xml.gz"], bucket / "pub med"


def test_source_files_in_a_bucket_are_described_like_local_ones(
    source_files: tuple[list[Path], BucketPath], s3: S3
) -> None:
    local_files, folder = source_files
    pattern = f"{folder}/base*/*.xml.gz"
    files = matching([pattern])
    assert [file.name for file in files] == ["a.xml.gz", "b.xml.gz"]
    assert describe_files(files) == describe_files(local_files)
    assert describe_files(files[:1]) == describe_files(local_files[:1])
    s3.requests.clear()
    assert matching([pattern]) == files
    assert gets(s3) == []
    BucketFolder(folder / "baseline").write("a.xml.gz", b"new")
    assert matching([pattern])[0].read_bytes() == b"new"
    deep = matching([f"{folder}/**/*.xml.gz", str(folder / "baseline" / "c.txt")])
    assert [file.name for file in deep] == ["a.xml.gz", "b.xml.gz", "d.xml.gz", "c.txt"]


def test_one_object_is_found_without_listing_what_lies_next_to_it(
    source_files: tuple[list[Path], BucketPath], s3: S3
) -> None:
    local_files, folder = source_files
    s3.requests.clear()
    (file,) = matching([f"{folder}/baseline/a.xml.gz"])
    assert file.read_bytes() == local_files[0].read_bytes()
    assert not [request.path for request in s3.requests if "list-type" in request.path]
    # It is the copy that a pattern finds.
    assert matching([f"{folder}/baseline/a*.gz"]) == [file]
    (empty,) = (folder / "baseline" / name for name in ("empty.txt",))
    BucketFolder(folder / "baseline").write("empty.txt", b"")
    assert matching([str(empty)])[0].read_bytes() == b""


def test_patterns_without_objects_and_other_uris_are_refused(
    source_files: tuple[list[Path], BucketPath],
) -> None:
    _, folder = source_files
    with pytest.raises(ConfigError, match=r"--input .*\*\.fa: no such object"):
        matching([f"{folder}/*.fa"])
    with pytest.raises(ConfigError, match="it is a folder: give its files, such as 's3://"):
        matching([f"{folder}/baseline"])
    with pytest.raises(StorageError, match=r"^--dev s3://none.*there is no bucket"):
        matching(["s3://none-such/a"], "--dev")
    assert matching([f"file://{source_files[0][0]}"]) == [source_files[0][0]]


def test_a_full_disk_keeps_what_has_arrived(
    remote: BucketPath, local: Store, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    size = max(facts["bytes"] for facts in local.manifest["files"].values())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, limits[1]))
    try:
        with pytest.raises(StorageError, match="cannot be written .*Free some space"):
            open_store(remote)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    monkeypatch.setattr(object_download, "NUM_PARALLEL", 1)
    assert open_store(remote).digest == local.digest
