"""Folders in buckets: fetched once, and again when they have changed."""

from pathlib import Path

import pytest

from raybio.core.errors import StorageError
from raybio.core.location import BucketPath
from raybio.store.bucket import BucketFolder, ObjectInfo
from raybio.store.remote_folder import fetch_folder
from raybio.store.remote_sources import fetch_input_files
from tests.s3 import S3


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_all_files_are_fetched_once_and_again_after_a_change(bucket: BucketPath, s3: S3) -> None:
    path = bucket / "runs" / "mine" / "export"
    folder = BucketFolder(path)
    folder.write("config.json", b"{}")
    folder.write("tokenizer/vocab.txt", b"a b")
    BucketFolder(bucket).write("runs/mine/exported", b"another file")
    first = fetch_folder(path)
    assert first.name == "export"
    assert files_of(first) == {"config.json": b"{}", "tokenizer/vocab.txt": b"a b"}
    s3.requests.clear()
    assert fetch_folder(path) == first
    assert [request.method for request in s3.requests] == ["GET"]  # the listing
    folder.write("config.json", b"{1}")
    assert files_of(fetch_folder(path))["config.json"] == b"{1}"


def test_nothing_there_and_names_that_would_leave_the_cache_are_refused(
    bucket: BucketPath, cache: Path
) -> None:
    with pytest.raises(StorageError, match=r"--model s3://\S+: there is nothing there"):
        fetch_folder(bucket / "nothing", "--model")
    assert not cache.exists()


@pytest.mark.parametrize("kind", ["folder", "weight*", "weights"])
def test_an_object_that_is_replaced_between_its_look_and_its_download_is_noticed(
    bucket: BucketPath, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = BucketFolder(bucket / "model")
    folder.write("weights", b"old")
    look = BucketFolder.info

    def replaced_after(self: BucketFolder, name: str) -> ObjectInfo | None:
        info = look(self, name)
        folder.write("weights", b"new")
        return info

    def fetch() -> Path:
        if kind == "folder":
            return fetch_folder(bucket / "model") / "weights"
        return fetch_input_files(bucket / "model" / kind, "--input")[0]

    with monkeypatch.context() as patch:
        patch.setattr(BucketFolder, "info", replaced_after)
        with pytest.raises(StorageError, match="was replaced while it was read"):
            fetch()
    assert fetch().read_bytes() == b"new"
