"""Reader of CANE's citation graphs (thunlp/CANE): one text a line, and pairs of line numbers."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from raybio.core.errors import DataError
from raybio.methods.sppt.articles.formats.corpus import single_group_corpus
from raybio.methods.sppt.corpus import Corpus, LinkCollector
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Spool
from raybio.store.sources import plain_or_gzip, read_lines

TEXTS = "data.txt"
LINKS = "graph.txt"
WANTED_TEXTS = "a text a line"
WANTED_LINKS = "two tab-separated numbers a line: line numbers of texts, from 0"


@dataclass(frozen=True)
class Cane:
    """A folder with ``data.txt`` and ``graph.txt``, plain or ``.gz``.

    The id of a text is its line number, from 0.
    """

    folder: Path

    @property
    def files(self) -> dict[str, list[Path]]:
        """The two files."""
        return {"texts": [self._file(TEXTS)], "links": [self._file(LINKS)]}

    def read(self, spool: Spool, quarantine: Quarantine) -> Corpus:
        """Read the texts, then the links between them.

        Raises:
            DataError: if a file is missing, empty or has too many bad lines.
        """
        texts = [line.strip() for line in read_lines(self._file(TEXTS), WANTED_TEXTS)]
        quarantine.saw("article", len(texts))
        has_text_N = np.array([bool(text) for text in texts], dtype=bool)
        for index in np.flatnonzero(~has_text_N):
            quarantine.add("article", "article without a text", TEXTS, int(index) + 1)
        quarantine.check("article")
        if not texts:
            raise DataError(f"{self._file(TEXTS)}: is empty, want {WANTED_TEXTS}")
        spool.append(pa.array([text.encode() for text in texts], pa.large_binary()))
        keys = pa.array([str(index) for index in range(len(texts))], pa.large_string())
        links = LinkCollector(quarantine, keys, spool.path.parent)
        links.add(*self._links(len(texts), quarantine), self._file(LINKS).name)
        quarantine.check("link")
        spooled_N = np.where(has_text_N, np.arange(len(texts)), -1)
        return single_group_corpus(keys, spooled_N, links.merged())

    def _links(
        self, num_texts: int, quarantine: Quarantine
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return both ends and the line number (E,) of each valid link."""
        links = []
        for number, line in enumerate(read_lines(self._file(LINKS), WANTED_LINKS), start=1):
            parts = line.split()
            if not parts:
                continue
            quarantine.saw("link", 1)
            is_pair = len(parts) == 2 and all(re.fullmatch("[0-9]{1,18}", part) for part in parts)
            if not is_pair or max(map(int, parts)) >= num_texts:
                reason = f"link that is not two numbers below {num_texts:,}, the number of texts"
                quarantine.add("link", reason, LINKS, number, line.strip())
                continue
            links.append((int(parts[0]), int(parts[1]), number))
        u_E, v_E, line_E = np.array(links, dtype=np.int64).reshape(-1, 3).T
        return u_E, v_E, line_E

    def _file(self, name: str) -> Path:
        return plain_or_gzip(Path(self.folder) / name)
