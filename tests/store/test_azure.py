"""Objects over the protocol of Azure, whose listings name versions otherwise than its other answers."""

from pathlib import Path

import pytest

from raybio.core.location import BucketPath
from raybio.store.bucket import BucketFolder
from raybio.store.remote_folder import fetch_folder
from raybio.store.remote_sources import fetch_input_files


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))


def test_an_object_has_one_version_in_listings_and_everywhere_else(container: BucketPath) -> None:
    folder = BucketFolder(container / "some" / "folder")
    version = folder.create("lease", b"1")
    (listed,) = folder.list()
    assert version == listed.version
    assert folder.info("lease") == listed
    assert folder.read_version("lease") == (b"1", version)
    assert folder.read_range("lease", 0, 1, listed.version) == b"1"
    assert folder.replace("lease", b"2", listed.version) is not None
    assert folder.replace("lease", b"3", listed.version) is None
    folder.delete(["lease", "absent"])
    assert folder.list() == []
    folder.check_conditional_writes("--runs")


def test_folders_and_patterns_are_fetched(container: BucketPath) -> None:
    BucketFolder(container).write("model/config.json", b"{}")
    assert (fetch_folder(container / "model") / "config.json").read_bytes() == b"{}"
    (file,) = fetch_input_files(container / "model" / "*.json", "--input")
    assert file.read_bytes() == b"{}"
