"""Public sets that the suites of ``raybio benchmark`` read: their files, licenses and checksums.

``benchmark_data.yaml`` lists them. The folder has the layout that the suites expect.
"""

import shutil
import zipfile
from collections.abc import Collection
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from raybio.core.errors import ConfigError
from raybio.core.plain_yaml import parse_yaml
from raybio.store.download import RemoteFile
from raybio.store.public_data import mirrored

BY_HAND = {
    "remote_homology": "TAPE's archive of it, unpacked: remote_homology_train.lmdb and others",
    "stability": "TAPE's archive of it, unpacked: stability_train.lmdb and others",
}
"""Folders that the suite ``proteins`` also reads -> their contents. No pinned source is known."""


class BenchmarkSet(NamedTuple):
    """A public set.

    Attributes:
        name: its folder below that of the download.
        license: terms of use, as the source states them.
        files: what is downloaded.
        unpacked: paths in the set's folder that its archive holds; empty if it is no archive.
    """

    name: str
    license: str
    files: tuple[RemoteFile, ...]
    unpacked: tuple[str, ...]

    def unpack(self, folder: Path) -> None:
        """Unpack the archive of a set, whose checksum has been verified.

        Args:
            folder: the folder of the download.
        """
        if not self.unpacked:
            return
        (archive_file,) = self.files
        with zipfile.ZipFile(folder / archive_file.path) as archive:
            for name in self.unpacked:
                path = folder / self.name / name
                path.parent.mkdir(parents=True, exist_ok=True)
                draft = path.with_name(f"{path.name}.part")
                with archive.open(f"{self.name}/{name}") as packed, draft.open("wb") as plain:
                    shutil.copyfileobj(packed, plain)
                draft.replace(path)


def benchmark_sets(chosen: Collection[str] = (), mirror: str = "") -> list[BenchmarkSet]:
    """Return public sets.

    Args:
        chosen: names; empty: all.
        mirror: as ``raybio.store.public_data.mirrored``.

    Raises:
        ConfigError: for an unknown name.
    """
    listed = _read_list()
    for name in chosen:
        if name in BY_HAND:
            raise ConfigError(f"--set {name}: is fetched by hand: {BY_HAND[name]}")
        if name not in listed:
            raise ConfigError(f"--set {name}: want some of {', '.join(listed)}")
    return [
        _benchmark_set(name, entry, mirror)
        for name, entry in listed.items()
        if not chosen or name in chosen
    ]


def _benchmark_set(name: str, entry: dict[str, Any], mirror: str) -> BenchmarkSet:
    address = mirrored(entry["address"], mirror)
    if "saved_as" in entry:
        files = [RemoteFile(address, f"{name}/{entry['saved_as']}")]
    else:
        files = [
            RemoteFile(
                address + about.get("at", path),
                f"{name}/{path}",
                about["bytes"],
                sha256=about["sha256"],
            )
            for path, about in entry["files"].items()
        ]
    unpacked = tuple(entry.get("unpacked", ()))
    return BenchmarkSet(name, entry["license"], tuple(files), unpacked)


@cache
def _read_list() -> dict[str, dict[str, Any]]:
    text = (files(__package__) / "benchmark_data.yaml").read_text(encoding="utf-8")
    listed: dict[str, dict[str, Any]] = parse_yaml(text)
    return listed
