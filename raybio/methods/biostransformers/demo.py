"""The embedded default corpus of articles: a small simulated literature in MEDLINE's own format, prepared by real code.

There is a tree of topics, each a MeSH-like descriptor with words of its own that its texts use instead of its name; an
article has a few topics, mostly from one branch of the tree, and check tags. So which term belongs to which text has to
be learned, and can be told for articles that were never seen.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig, fingerprint
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.prepare import prepare_medline
from raybio.methods.biostransformers.store import ArticleStore
from raybio.store.demo_corpus import InventedWords, cached_store
from raybio.store.store import SCHEMA_VERSION

VERSION = 2
"""Rises whenever the same settings give another corpus or another store of it."""


CHECK_TAGS = {"Humans": 0.6, "Animals": 0.35, "Female": 0.4, "Male": 0.4, "Mice": 0.15}


_COMMON = (
    "of", "the", "in", "and", "for", "with", "by", "on", "to", "from", "we", "a", "is", "are", "was", "that", "this",
    "these", "which", "between", "after", "under", "as",
)  # fmt: skip


class LiteratureConfig(BaseConfig):
    """Size and shape of the simulated literature."""

    num_articles: int = Field(3000, ge=50, description="articles")
    num_branches: int = Field(12, ge=1, description="branches of the tree of topics")
    topics_per_branch: int = Field(10, ge=2, description="topics of each")
    words_per_topic: int = Field(6, ge=2, description="words that texts use for a topic")
    num_files: int = Field(3, ge=1, description="files that the articles are spread over")
    seed: int = Field(0, ge=0, description="of everything")


@dataclass(frozen=True)
class _Topic:
    name: str
    branch: int
    words: list[str]


def default_literature(
    directory: str | Path, config: LiteratureConfig | None = None
) -> ArticleStore:
    """The embedded corpus, simulated and prepared the first time, opened afterwards.

    Args:
        directory: where it is kept, under a name that depends on every setting.
        config: settings; the demo's if None.

    Raises:
        StoreError: if the directory cannot be written.
    """
    config = config or LiteratureConfig()
    home = Path(directory) / f"literature-{VERSION}.{SCHEMA_VERSION}-{fingerprint(config)}"

    def make(raw: Path, store: Path) -> ArticleStore:
        return prepare_medline(
            store, write_literature(raw, config), ArticleConfig(validation_share=0.1)
        )

    return cached_store(home, ArticleStore, make)


def write_literature(directory: str | Path, config: LiteratureConfig) -> list[Path]:
    """Simulate, and write gzip files as PubMed's baseline has them. The same settings give the same bytes."""
    rng = np.random.default_rng(config.seed)
    topics = _topics(config, rng)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, part in enumerate(
        np.array_split(np.arange(config.num_articles), config.num_files), start=1
    ):
        path = folder / f"pubmed26n{number:04d}.xml.gz"
        articles = "".join(_article(1_000_000 + int(index), topics, config, rng) for index in part)
        content = f'<?xml version="1.0" encoding="utf-8"?>\n<PubmedArticleSet>\n{articles}</PubmedArticleSet>\n'
        path.write_bytes(gzip.compress(content.encode(), mtime=0))
        files.append(path)
    return files


def _topics(config: LiteratureConfig, rng: np.random.Generator) -> list[_Topic]:
    words = InventedWords(rng)
    topics = []
    for branch in range(config.num_branches):
        family = words.new()
        for _ in range(config.topics_per_branch):
            own = [words.new() for _ in range(config.words_per_topic)]
            topics.append(_Topic(f"{words.new()} {family}".capitalize(), branch, own))
    return topics


def _article(
    pmid: int, topics: list[_Topic], config: LiteratureConfig, rng: np.random.Generator
) -> str:
    branch = int(rng.integers(config.num_branches))
    near = [topic for topic in topics if topic.branch == branch]
    # Within a branch some topics are common and some rare, as descriptors are.
    weight = 1 / np.arange(1, len(near) + 1)
    chosen = [
        near[index] for index in rng.choice(len(near), 2, replace=False, p=weight / weight.sum())
    ]
    if rng.random() < 0.5:
        chosen.append(topics[int(rng.integers(len(topics)))])
    distinct = list({topic.name: topic for topic in chosen}.values())
    tags = [name for name, share in CHECK_TAGS.items() if rng.random() < share]
    title = _text(distinct, int(rng.integers(7, 13)), rng)
    abstract = _text(distinct, int(rng.integers(25, 60)), rng)
    headings = [f'<MeshHeading><DescriptorName MajorTopicYN="Y">{escape(t.name)}</DescriptorName></MeshHeading>'
                for t in distinct]  # fmt: skip
    headings += [
        f'<MeshHeading><DescriptorName MajorTopicYN="N">{tag}</DescriptorName></MeshHeading>'
        for tag in tags
    ]
    return (
        f'<PubmedArticle><MedlineCitation Status="MEDLINE"><PMID Version="1">{pmid}</PMID><Article PubModel="Print">'
        f"<Journal><JournalIssue><PubDate><Year>{int(rng.integers(1990, 2026))}</Year></PubDate></JournalIssue>"
        "</Journal>"
        f"<ArticleTitle>{title.capitalize()}.</ArticleTitle><Abstract><AbstractText>{abstract.capitalize()}."
        f"</AbstractText></Abstract></Article><MeshHeadingList>{''.join(headings)}</MeshHeadingList>"
        "</MedlineCitation></PubmedArticle>\n"
    )


def _text(topics: list[_Topic], num_words: int, rng: np.random.Generator) -> str:
    words = []
    for _ in range(num_words):
        if rng.random() < 0.5:
            words.append(str(rng.choice(_COMMON)))
        else:
            topic = topics[int(rng.integers(len(topics)))]
            words.append(topic.words[int(rng.integers(len(topic.words)))])
    return " ".join(words)
