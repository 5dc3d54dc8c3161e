"""The preparation of a store from source files: a draft, its quarantine and its provenance."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybio.core.errors import DataError
from raybio.store.data_sets import table_files
from raybio.store.quarantine import Quarantine
from raybio.store.sources import check_readable_files, describe_files
from raybio.store.writer import Draft

_SizeAndTime = tuple[int, int] | None
"""Bytes and time of modification (nanoseconds) of a file; None: there is none."""


@dataclass(frozen=True)
class Preparation:
    """A store that is being prepared.

    Attributes:
        draft: where it is written.
        quarantine: takes the records that are skipped.
        sources: the manifest's description of the source files, by role.
        parameters: the settings of the preparation.
        state_by_file: the source files as they were before they were read.
    """

    draft: Draft
    quarantine: Quarantine
    sources: Mapping[str, Any]
    parameters: Mapping[str, Any]
    state_by_file: Mapping[Path, _SizeAndTime]

    def provenance(self, **more: Any) -> dict[str, Any]:
        """Return what the manifest records of the input; call it when everything has been read.

        Args:
            more: other entries, such as the files that were skipped as a whole.

        Raises:
            DataError: if a source file has changed since the preparation began.
        """
        for file, state in self.state_by_file.items():
            if _state(file) != state:
                raise DataError(
                    f"{file}: changed while it was being read. Prepare again when nothing writes "
                    "to it."
                )
        return {
            "sources": self.sources,
            "parameters": self.parameters,
            "quarantine": self.quarantine.summary(),
            **more,
        }


@contextmanager
def preparing(
    out: str | Path,
    files_by_role: Mapping[str, Sequence[Path]],
    parameters: Mapping[str, Any],
    *,
    max_bad_share: float = 0.1,
    force: bool = False,
) -> Iterator[Preparation]:
    """Check and describe the source files, and open a draft; an error leaves no store behind.

    Args:
        out: folder of the store.
        files_by_role: source files, or folders of ``table_files``, by what they are, such as
            ``{"edges": [...]}``; roles without files are left out of the manifest.
        parameters: settings of the preparation, for the manifest; plain JSON.
        max_bad_share: maximum fraction of invalid records.
        force: replace an existing store.

    Raises:
        DataError: if a file is missing, is a folder, or cannot be read.
        StoreError: as ``Draft``.
    """
    given = {
        role: [file for path in paths for file in table_files(path)]
        for role, paths in files_by_role.items()
        if paths
    }
    for files in given.values():
        check_readable_files(files)
    with Draft(out, force=force) as draft:
        # Take the state first, so that a change while the file is described is detected.
        state_by_file = {file: _state(file) for files in given.values() for file in files}
        sources = {role: describe_files(files) for role, files in given.items()}
        yield Preparation(draft, Quarantine(max_bad_share), sources, parameters, state_by_file)


def _state(file: Path) -> _SizeAndTime:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
