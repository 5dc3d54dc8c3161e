"""Demo corpus: simulated articles that cite each other, as two tables, prepared like real ones.

An article belongs to a school, which works in two fields of research, and cites articles of its
school. Each article uses few of the words of a field. Two articles of a school may have no word in
common, so the encoder has to learn which words belong together.
"""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.methods.sppt.articles.formats.tables import (
    ARTICLE_COLUMNS,
    CITATION_COLUMNS,
    LinkedTables,
)
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.config import LinkedTextConfig
from raybio.methods.sppt.prepare import prepare_linked_texts
from raybio.store.demo_corpus import DemoCorpus, InventedWords


class CitationsConfig(BaseConfig):
    """Size and shape of the simulated citations."""

    num_articles: int = Field(1200, ge=20, description="number of articles")
    num_schools: int = Field(60, ge=2, description="groups that cite each other")
    num_fields: int = Field(30, ge=2, description="fields of research; a school works in two")
    words_per_field: int = Field(40, ge=2, description="vocabulary size of a field")
    words_per_article: int = Field(
        8, ge=1, description="words that an article uses of each of its fields"
    )
    citations_per_article: int = Field(
        3, ge=1, description="articles of its own school that an article cites"
    )
    seed: int = Field(0, ge=0, description="seed of the simulation")


def _prepare(raw: Path, store: Path, config: CitationsConfig) -> LinkedTextStore:
    return prepare_linked_texts(
        store, write_citations(raw, config), LinkedTextConfig(heldout_share=0.15)
    )


SIMULATED_CITATIONS = DemoCorpus(
    name="citations",
    version=1,
    config=CitationsConfig,
    kind=LinkedTextStore,
    prepare_files=_prepare,
)
"""The demo corpus."""


def write_citations(directory: str | Path, config: CitationsConfig) -> LinkedTables:
    """Simulate a corpus and write it as two gzip tables. Equal settings give equal bytes."""
    rng = np.random.default_rng(config.seed)
    words = InventedWords(rng)
    common = [words.new() for _ in range(25)]
    vocabulary_by_field = [
        [words.new() for _ in range(config.words_per_field)] for _ in range(config.num_fields)
    ]
    fields_of_school = [
        rng.choice(config.num_fields, 2, replace=False) for _ in range(config.num_schools)
    ]
    school_N = rng.integers(config.num_schools, size=config.num_articles)
    articles: list[tuple[str, ...]] = [ARTICLE_COLUMNS]
    citations: list[tuple[str, ...]] = [CITATION_COLUMNS]
    for article, school in enumerate(school_N.tolist()):
        used: list[str] = []
        for field in fields_of_school[school]:
            drawn = rng.choice(config.words_per_field, config.words_per_article, replace=False)
            used += [vocabulary_by_field[field][word] for word in drawn]
        text = rng.permutation([*used, *rng.choice(common, len(used))])
        num_title = len(text) // 4
        articles.append((f"a{article}", " ".join(text[:num_title]), " ".join(text[num_title:])))
        colleagues = np.setdiff1d(np.flatnonzero(school_N == school), [article])
        cited = rng.permutation(colleagues)[: config.citations_per_article]
        citations += [(f"a{article}", f"a{other}") for other in cited.tolist()]
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    return LinkedTables(
        _write(folder / "articles.tsv.gz", articles), _write(folder / "citations.tsv.gz", citations)
    )


def _write(path: Path, rows: Sequence[tuple[str, ...]]) -> Path:
    lines = ["\t".join(row) + "\n" for row in rows]
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    return path
