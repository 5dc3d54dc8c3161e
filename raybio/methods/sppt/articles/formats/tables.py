"""Reader of articles and citations as two tables with a header, in any form of ``read_table``.

The tables have the columns ``id title abstract`` and ``citing cited``. The first may have a column
``date`` or ``year`` (YYYY, YYYY-MM or YYYY-MM-DD).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError
from raybio.methods.sppt.articles.formats.corpus import date_number, single_group_corpus
from raybio.methods.sppt.corpus import Corpus, LinkCollector, check_has_links
from raybio.methods.sppt.ids import concatenate, find_ids, is_first_occurrence
from raybio.methods.sppt.table_columns import is_missing, read_table, skip_rows
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Spool
from raybio.store.table_rows import choose_columns

ARTICLE_COLUMNS = ("id", "title", "abstract")
DATE_COLUMNS = ("date", "year")
CITATION_COLUMNS = ("citing", "cited")


@dataclass(frozen=True)
class LinkedTables:
    """A table of articles and a table of citations.

    An article's text is its title and its abstract, joined by a blank. One of the two may be empty.
    """

    articles: Path
    citations: Path

    @property
    def files(self) -> dict[str, list[Path]]:
        """The two tables."""
        return {"articles": [Path(self.articles)], "citations": [Path(self.citations)]}

    def read(self, spool: Spool, quarantine: Quarantine) -> Corpus:
        """Read the articles, then look up the citations among them.

        Raises:
            DataError: if a table is missing, empty or has too many bad rows.
        """
        keys, spooled_N, date_N = self._read_articles(spool, quarantine)
        links = LinkCollector(quarantine, keys, spool.path.parent)
        file = Path(self.citations).name
        types = (pa.string(), pa.string())
        path = Path(self.citations)
        select = partial(choose_columns, path, required=CITATION_COLUMNS)
        wanted = "a table with the columns citing, cited"
        blocks = read_table(path, wanted, select, types, "link", quarantine)
        for citing, cited, line in blocks:
            quarantine.saw("link", len(citing))
            u_E = find_ids(citing, keys)
            v_E = find_ids(cited, keys)
            is_unknown = (u_E < 0) | (v_E < 0)
            reason = "link with an id that is not among the articles"
            skip_rows(is_unknown, reason, "link", file, line, [citing, cited], quarantine)
            links.add(u_E[~is_unknown], v_E[~is_unknown], line.to_numpy()[~is_unknown], file)
        quarantine.check("link")
        check_has_links([path], quarantine)
        return single_group_corpus(keys, spooled_N, links.merged(), date_N)

    def _read_articles(
        self, spool: Spool, quarantine: Quarantine
    ) -> tuple[pa.Array, np.ndarray, np.ndarray | None]:
        """Return the distinct ids (N,), the spool row of each text (N,), and the dates (N,)."""
        key_blocks = []
        line_blocks = []
        dates: list[int] = []
        for block_key, text, block_line, date in self._articles(quarantine):
            spool.append(text)
            key_blocks.append(block_key)
            line_blocks.append(block_line)
            dates += [date_number(value) for value in date]
        key = concatenate(key_blocks, pa.large_string())
        line = concatenate(line_blocks, pa.int64())
        is_first = is_first_occurrence(key)
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
        date_N = np.array(dates, np.int64)[is_first] if dates else None
        return key.filter(pa.array(is_first)), np.flatnonzero(is_first), date_N

    def _articles(
        self, quarantine: Quarantine
    ) -> Iterator[tuple[pa.Array, pa.Array, pa.Array, list[str]]]:
        """Yield id, text and line of each valid article, and dates if there are any, in blocks."""
        path = Path(self.articles)
        types = (pa.string(), *[pa.large_string()] * 3)
        select = partial(choose_columns, path, required=ARTICLE_COLUMNS, optional=(DATE_COLUMNS,))
        wanted = "a table with the columns id, title, abstract"
        blocks = read_table(path, wanted, select, types, "article", quarantine)
        empty = pa.scalar("", pa.large_string())
        blank = pa.scalar(" ", pa.large_string())
        for key, title, abstract, *dates, line in blocks:
            quarantine.saw("article", len(key))
            parts = [
                pc.if_else(pa.array(is_missing(part)), empty, part) for part in (title, abstract)
            ]
            text = pc.utf8_trim_whitespace(pc.binary_join_element_wise(*parts, blank))
            without_key = is_missing(key)
            without_text = np.asarray(pc.binary_length(text)) == 0
            for is_bad, reason in (
                (without_key, "article without an id"),
                (without_text & ~without_key, "article without a text"),
            ):
                skip_rows(is_bad, reason, "article", self.articles, line, [key], quarantine)
            kept = pa.array(~(without_key | without_text))
            date = dates[0].filter(kept).to_pylist() if dates else []
            yield (
                key.filter(kept),
                text.filter(kept).cast(pa.large_binary()),
                line.filter(kept),
                date,
            )
