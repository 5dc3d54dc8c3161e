import os
from pathlib import Path

import pytest

from raybio.methods.mtb_mccl.documents.entities import EntityDocument, RawDocument
from raybio.methods.mtb_mccl.documents.writer import DOCUMENTS_AT_ONCE, DocumentCollector

EMPTY = EntityDocument((), (), (), (), (), ())


def open_files(folder: Path) -> list[str]:
    """Paths below a folder that this process has open."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if link.is_symlink()]
    return [target for target in targets if target.startswith(str(folder))]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="lists open files by /proc")
def test_a_full_disk_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "text.spool").symlink_to("/dev/full")
    collector = DocumentCollector(tmp_path)
    assert len(open_files(tmp_path)) > 5
    with pytest.raises(OSError, match="No space left"), collector:
        for number in range(DOCUMENTS_AT_ONCE):
            # So short that the file's buffer holds all of them until the file is closed.
            raw = RawDocument(str(number), "a", (), (), number)
            collector.add(raw, EMPTY, "train", "documents.txt")
    assert open_files(tmp_path) == []
