"""P42: what a start reads of a store that its machine has verified before, beside reading everything."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from _measure import NUM_PAIRS, compare
from large_store import large_store

from raybio.store.store import open_store


def bytes_read(work: Callable[[], object]) -> int:
    """The bytes that this process gets by read calls meanwhile."""
    before = _bytes_so_far()
    work()
    return _bytes_so_far() - before


def _bytes_so_far() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rb") as folder:
        os.environ["RAYBIO_CACHE"] = f"{folder}/cache"
        store = large_store(folder)
        num_bytes = sum(facts["bytes"] for facts in store.manifest["files"].values())

        def start() -> object:
            return open_store(store.path, verify=True)

        first = bytes_read(start)
        resumed = bytes_read(start)
        assert first > num_bytes > resumed
        note = (
            f"a store of {num_bytes / 1e9:.2g} GB: the first start reads {first / 1e9:.2g} GB, a later one "
            f"{resumed / 1e3:.2g} kB (manifest and record)"
        )
        compare("P42", "every file each time", start, store.verify, pairs=NUM_PAIRS, note=note)


if __name__ == "__main__":
    main()
