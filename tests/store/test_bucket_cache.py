import errno
import fcntl
import os
from pathlib import Path

import pytest

from raybio.core.errors import StorageError
from raybio.store.bucket_cache import cached_copy


def test_a_cache_on_a_disk_without_file_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path))
    with pytest.raises(StorageError, match=r"no file locks.*set RAYBIO_CACHE to a folder on a"):
        cached_copy("one", 1, lambda folder: None)
