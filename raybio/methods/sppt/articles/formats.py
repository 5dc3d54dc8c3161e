"""Articles as two tables with a header, tab-separated, ``.gz`` too: ``id title abstract`` and ``citing cited``.

The layout of CANE's citation graphs (thunlp/CANE): a text a line, and pairs of line numbers, from 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError
from raybio.methods.sppt.graph_store import Corpus, LinkCollector, concatenated, find, first_of_each
from raybio.methods.sppt.proteins.formats import BLOCK_BYTES, read_columns, set_aside_rows
from raybio.methods.sppt.proteins.residues import is_missing
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Spool
from raybio.store.sources import plain_or_gzip, read_lines

ARTICLE_COLUMNS = ("id", "title", "abstract")


CITATION_COLUMNS = ("citing", "cited")


ONE_GROUP = ["all"]


NOUN = "articles with a text"


@dataclass(frozen=True)
class LinkedTables:
    """A table of articles (``id``, ``title``, ``abstract``; one of the last two may be empty) and one of citations.

    An article's text is its title and its abstract, with a blank between them.
    """

    articles: Path
    citations: Path

    @property
    def files(self) -> dict[str, list[Path]]:
        """The two tables."""
        return {"articles": [Path(self.articles)], "citations": [Path(self.citations)]}

    def read(self, spool: Spool, quarantine: Quarantine) -> Corpus:
        """Articles first; citations are then looked up among them."""
        keys, spooled_N = self._read_articles(spool, quarantine)
        links = LinkCollector(quarantine, keys)
        file = Path(self.citations).name
        kinds = (pa.string(), pa.string())
        for a, b, line in read_columns(
            self.citations, CITATION_COLUMNS, kinds, "link", quarantine, BLOCK_BYTES
        ):
            quarantine.saw("link", len(a))
            u_E, v_E = find(a, keys), find(b, keys)
            is_unknown = (u_E < 0) | (v_E < 0)
            set_aside_rows(
                is_unknown,
                "link with an id that is not among the articles",
                "link",
                file,
                line,
                [a, b],
                quarantine,
            )
            links.add(u_E[~is_unknown], v_E[~is_unknown], line.to_numpy()[~is_unknown], file)
        quarantine.check("link")
        return one_group(keys, spooled_N, links.merged(file))

    def _read_articles(self, spool: Spool, quarantine: Quarantine) -> tuple[pa.Array, np.ndarray]:
        keys, lines = [], []
        for key, text, line in self._articles(quarantine):
            spool.append(text)
            keys.append(key)
            lines.append(line)
        key, line = concatenated(keys, pa.large_string()), concatenated(lines, pa.int64())
        is_first = first_of_each(key)
        repeated = pa.array(np.flatnonzero(~is_first)[: quarantine.num_examples])
        examples = zip(line.take(repeated).to_pylist(), key.take(repeated).to_pylist(), strict=True)
        quarantine.add_many(
            "article", "duplicate id", Path(self.articles).name, int((~is_first).sum()), examples
        )
        quarantine.check("article")
        if not len(key):
            raise DataError(
                f"{self.articles}: holds no article with a text, want one a line below the header"
            )
        return key.filter(pa.array(is_first)), np.flatnonzero(is_first)

    def _articles(self, quarantine: Quarantine) -> Iterator[tuple[pa.Array, pa.Array, pa.Array]]:
        """Id, text and line of each good article, block by block."""
        kinds = (pa.string(), pa.large_string(), pa.large_string())
        blocks = read_columns(
            self.articles, ARTICLE_COLUMNS, kinds, "article", quarantine, BLOCK_BYTES
        )
        for key, title, abstract, line in blocks:
            quarantine.saw("article", len(key))
            nothing, blank = (pa.scalar(one, pa.large_string()) for one in ("", " "))
            parts = [
                pc.if_else(pa.array(is_missing(part)), nothing, part) for part in (title, abstract)
            ]
            text = pc.utf8_trim_whitespace(pc.binary_join_element_wise(*parts, blank))
            without_key, without_text = is_missing(key), np.asarray(pc.binary_length(text)) == 0
            shown, file = [key], self.articles
            set_aside_rows(
                without_key, "article without an id", "article", file, line, shown, quarantine
            )
            set_aside_rows(
                without_text & ~without_key,
                "article without a text",
                "article",
                file,
                line,
                shown,
                quarantine,
            )
            kept = pa.array(~(without_key | without_text))
            yield key.filter(kept), text.filter(kept).cast(pa.large_binary()), line.filter(kept)


def one_group(keys: pa.Array, spooled_N: np.ndarray, edge_E2: np.ndarray) -> Corpus:
    """Articles as one group: any two of them may be a pair that is not linked."""
    return Corpus(
        keys, np.zeros(len(keys), np.int32), spooled_N, edge_E2, ONE_GROUP, ONE_GROUP, NOUN
    )


TEXTS, LINKS = "data.txt", "graph.txt"


WANTED_TEXTS, WANTED_LINKS = (
    "a text a line",
    "two numbers a line, tab-separated: places of texts, from 0",
)


@dataclass(frozen=True)
class Cane:
    """A folder with ``data.txt`` and ``graph.txt``, plain or ``.gz``; the id of a text is its line number, from 0."""

    folder: Path

    @property
    def files(self) -> dict[str, list[Path]]:
        """The two files."""
        return {"texts": [self._file(TEXTS)], "links": [self._file(LINKS)]}

    def read(self, spool: Spool, quarantine: Quarantine) -> Corpus:
        """Texts first; links then name them by their places."""
        texts = [line.strip() for line in read_lines(self._file(TEXTS), WANTED_TEXTS)]
        quarantine.saw("article", len(texts))
        has_text_N = np.array([bool(text) for text in texts], dtype=bool)
        for place in np.flatnonzero(~has_text_N):
            quarantine.add("article", "article without a text", TEXTS, int(place) + 1)
        quarantine.check("article")
        if not texts:
            raise DataError(f"{self._file(TEXTS)}: is empty, want {WANTED_TEXTS}")
        spool.append(pa.array([text.encode() for text in texts], pa.large_binary()))
        keys = pa.array([str(place) for place in range(len(texts))], pa.large_string())
        links = LinkCollector(quarantine, keys)
        links.add(*self._links(len(texts), quarantine), self._file(LINKS).name)
        quarantine.check("link")
        spooled_N = np.where(has_text_N, np.arange(len(texts)), -1)
        return one_group(keys, spooled_N, links.merged(self._file(LINKS).name))

    def _links(
        self, num_texts: int, quarantine: Quarantine
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        found = []
        for number, line in enumerate(read_lines(self._file(LINKS), WANTED_LINKS), start=1):
            parts = line.split()
            if not parts:
                continue
            quarantine.saw("link", 1)
            is_pair = len(parts) == 2 and all(part.isascii() and part.isdigit() for part in parts)
            if not is_pair or max(map(int, parts)) >= num_texts:
                reason = f"link that is not two numbers below {num_texts:,}, the number of texts"
                quarantine.add("link", reason, LINKS, number, line.strip())
                continue
            found.append((int(parts[0]), int(parts[1]), number))
        u_E, v_E, line_E = np.array(found, dtype=np.int64).reshape(-1, 3).T
        return u_E, v_E, line_E

    def _file(self, name: str) -> Path:
        return plain_or_gzip(Path(self.folder) / name)
