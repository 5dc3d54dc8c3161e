"""The embedded default corpus of articles that cite each other, in two tables, prepared by real code.

An article belongs to a school: two fields of research, and a dialect. It cites articles of its school. Fields tell in
words of which each article uses but a few, so that two articles of a school need have no word in common; which words
belong together has to be learned.
"""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig, fingerprint
from raybio.methods.sppt.articles.formats import ARTICLE_COLUMNS, CITATION_COLUMNS, LinkedTables
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.prepare import LinkedTextConfig, prepare_linked_texts
from raybio.store.demo_corpus import InventedWords, kept_store
from raybio.store.store import SCHEMA_VERSION

VERSION = 1
"""Rises whenever the same settings give another corpus or another store of it."""


class CitationsConfig(BaseConfig):
    """Size and shape of the simulated citations."""

    num_articles: int = Field(1200, ge=20, description="articles")
    num_schools: int = Field(60, ge=2, description="groups that cite each other")
    num_fields: int = Field(30, ge=2, description="fields of research; a school works in two")
    words_per_field: int = Field(40, ge=2, description="words of a field")
    words_per_article: int = Field(
        8, ge=1, description="of each of its fields, words that an article uses"
    )
    citations_per_article: int = Field(
        3, ge=1, description="articles of its school that an article cites"
    )
    seed: int = Field(0, ge=0, description="of everything")


def default_citations(
    directory: str | Path, config: CitationsConfig | None = None
) -> LinkedTextStore:
    """The embedded corpus, simulated and prepared the first time, opened afterwards.

    Args:
        directory: where it is kept, under a name that depends on every setting.
        config: settings; the demo's if None.

    Raises:
        StoreError: if the directory cannot be written.
    """
    config = config or CitationsConfig()
    home = Path(directory) / f"citations-{VERSION}.{SCHEMA_VERSION}-{fingerprint(config)}"

    def make(raw: Path, store: Path) -> LinkedTextStore:
        return prepare_linked_texts(
            store, write_citations(raw, config), LinkedTextConfig(heldout_share=0.15)
        )

    return kept_store(home, LinkedTextStore, make)


def write_citations(directory: str | Path, config: CitationsConfig) -> LinkedTables:
    """Simulate, and write two gzip tables. The same settings give the same bytes."""
    rng = np.random.default_rng(config.seed)
    words = InventedWords(rng)
    common = [words.new() for _ in range(25)]
    fields = [
        [words.new() for _ in range(config.words_per_field)] for _ in range(config.num_fields)
    ]
    fields_of_school = [
        rng.choice(config.num_fields, 2, replace=False) for _ in range(config.num_schools)
    ]
    school_N = rng.integers(config.num_schools, size=config.num_articles)
    articles, citations = [ARTICLE_COLUMNS], [CITATION_COLUMNS]
    for article, school in enumerate(school_N.tolist()):
        used = [
            fields[field][word]
            for field in fields_of_school[school]
            for word in rng.choice(config.words_per_field, config.words_per_article, replace=False)
        ]
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
    path.write_bytes(
        gzip.compress("".join("\t".join(row) + "\n" for row in rows).encode(), mtime=0)
    )
    return path
