"""Scores that runs share: the first run computes them, and the others read them.

Runs of a comparison have the same initial encoder and the same rivals. Their scores lie in one
folder next to the runs, in a file for each *identity*: everything that the scores depend on. A
change of anything in it gives another file, and files of an old identity are never read.
"""

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raybio.core.digest import digest_of
from raybio.core.errors import RecordError
from raybio.core.files import locked
from raybio.core.records import read_recomputable, write_record

_log = logging.getLogger(__name__)

Identity = Mapping[str, Any]
"""Everything that scores depend on; plain JSON."""


class SharedScores:
    """The scores that runs share in a folder, one file for each identity.

    Attributes:
        folder: the folder; the first run that writes creates it.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Share scores in a folder.

        Args:
            folder: the folder.
            settings: the whole configuration of the run, by section.
            facts: what scores depend on besides the configuration; plain JSON.
        """
        self.folder = folder
        self._settings = settings
        self._facts = facts

    def identity(self, ignored: frozenset[str], facts: Mapping[str, Any]) -> Identity:
        """Return the identity of scores.

        Args:
            ignored: sections of the configuration that the scores do not depend on.
            facts: what else they depend on; plain JSON.
        """
        settings = {name: part for name, part in self._settings.items() if name not in ignored}
        return {"settings": settings, **self._facts, **facts}

    def path(self, identity: Identity) -> Path:
        """Return the file of an identity."""
        return self.folder / f"{digest_of(identity)}.json"

    def read(self, identity: Identity) -> Any:
        """Return what was written for an identity; None, with a warning, if it is damaged."""
        path = self.path(identity)
        try:
            # The scores of many millions of units are larger than other records.
            record = read_recomputable(path, "shared scores", max_bytes=None)
        except (RecordError, OSError) as error:
            _log.warning("%s; the scores are computed again", error)
            return None
        if record is None:
            return None
        text = record.get("content")
        if not isinstance(text, str) or record.get("sha256") != _checksum(identity, text):
            _log.warning("%s: damaged; the scores are computed again", path)
            return None
        return json.loads(text)

    def write(self, identity: Identity, text: str) -> None:
        """Write a JSON text for an identity; a folder that cannot be written is a warning."""
        with self._or_warning():
            self.keep(identity, text)

    def keep(self, identity: Identity, text: str) -> None:
        """Write a JSON text for an identity.

        Raises:
            OSError: if the folder cannot be written.
        """
        # The scores are a text inside the JSON: they may contain NaN, and the checksum covers every
        # digit.
        checked = {"identity": identity, "sha256": _checksum(identity, text), "content": text}
        self.folder.mkdir(exist_ok=True)
        write_record(self.path(identity), "shared scores", checked)

    @contextlib.contextmanager
    def lock(self, identity: Identity) -> Iterator[None]:
        """Wait until no other process is at work on an identity, and hold it for a block."""
        with contextlib.ExitStack() as stack:
            with self._or_warning():
                self.folder.mkdir(exist_ok=True)
                stack.enter_context(locked(self.path(identity).with_suffix(".lock")))
            yield

    @contextlib.contextmanager
    def _or_warning(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            _log.warning("%s: %s; other runs compute the scores again", self.folder, error.strerror)


def _checksum(identity: Identity, text: str) -> str:
    return hashlib.sha256(f"{digest_of(identity)}\n{text}".encode()).hexdigest()
