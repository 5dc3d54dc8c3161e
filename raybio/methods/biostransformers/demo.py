"""Demo corpus: a small simulated literature in MEDLINE's format, prepared like real files.

A topic is a MeSH-like descriptor in a tree. Texts use words of the topic instead of its name. An
article has a few topics, mostly of one branch, and check tags. So the encoder has to learn which
term belongs to which text, and can predict it for unseen articles.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.prepare import prepare_medline
from raybio.methods.biostransformers.store import ArticleStore
from raybio.store.demo_corpus import DemoCorpus, InventedWords

CHECK_TAGS = {"Humans": 0.6, "Animals": 0.35, "Female": 0.4, "Male": 0.4, "Mice": 0.15}
"""Probability of each check tag."""

_COMMON = (
    "of", "the", "in", "and", "for", "with", "by", "on", "to", "from", "we", "a", "is", "are",
    "was", "that", "this", "these", "which", "between", "after", "under", "as",
)  # fmt: skip


class LiteratureConfig(BaseConfig):
    """Size and shape of the simulated literature."""

    num_articles: int = Field(3000, ge=50, description="number of articles")
    num_branches: int = Field(12, ge=1, description="branches of the tree of topics")
    topics_per_branch: int = Field(10, ge=2, description="topics of a branch")
    words_per_topic: int = Field(6, ge=2, description="words that texts use for a topic")
    num_files: int = Field(3, ge=1, description="number of files")
    seed: int = Field(0, ge=0, description="seed of the simulation")


@dataclass(frozen=True)
class _Topic:
    name: str
    branch: int
    words: list[str]


def _prepare(raw: Path, store: Path, config: LiteratureConfig) -> ArticleStore:
    return prepare_medline(
        store, write_literature(raw, config), ArticleConfig(validation_share=0.1)
    )


SIMULATED_LITERATURE = DemoCorpus(
    name="literature",
    version=2,
    config=LiteratureConfig,
    kind=ArticleStore,
    prepare_files=_prepare,
)
"""The demo corpus."""


def write_literature(directory: str | Path, config: LiteratureConfig) -> list[Path]:
    """Simulate a corpus and write it as gzip files of PubMed's baseline.

    Equal settings give equal bytes.
    """
    rng = np.random.default_rng(config.seed)
    topics = _topics(config, rng)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    parts = np.array_split(np.arange(config.num_articles), config.num_files)
    for number, part in enumerate(parts, start=1):
        path = folder / f"pubmed26n{number:04d}.xml.gz"
        articles = "".join(_article(1_000_000 + int(index), topics, config, rng) for index in part)
        content = (
            '<?xml version="1.0" encoding="utf-8"?>\n'
            f"<PubmedArticleSet>\n{articles}</PubmedArticleSet>\n"
        )
        path.write_bytes(gzip.compress(content.encode(), mtime=0))
        files.append(path)
    return files


def _topics(config: LiteratureConfig, rng: np.random.Generator) -> list[_Topic]:
    words = InventedWords(rng)
    topics = []
    for branch in range(config.num_branches):
        branch_name = words.new()
        for _ in range(config.topics_per_branch):
            own = [words.new() for _ in range(config.words_per_topic)]
            topics.append(_Topic(f"{words.new()} {branch_name}".capitalize(), branch, own))
    return topics


def _article(
    pmid: int, topics: list[_Topic], config: LiteratureConfig, rng: np.random.Generator
) -> str:
    branch = int(rng.integers(config.num_branches))
    near = [topic for topic in topics if topic.branch == branch]
    # As with real descriptors, some topics of a branch are frequent and some are rare.
    weight = 1 / np.arange(1, len(near) + 1)
    drawn = rng.choice(len(near), 2, replace=False, p=weight / weight.sum())
    chosen = [near[index] for index in drawn]
    if rng.random() < 0.5:
        chosen.append(topics[int(rng.integers(len(topics)))])
    distinct = list({topic.name: topic for topic in chosen}.values())
    tags = [name for name, share in CHECK_TAGS.items() if rng.random() < share]
    title = _text(distinct, int(rng.integers(7, 13)), rng)
    abstract = _text(distinct, int(rng.integers(25, 60)), rng)
    headings = [_heading(escape(topic.name), is_major=True) for topic in distinct]
    headings += [_heading(tag, is_major=False) for tag in tags]
    year = int(rng.integers(1990, 2026))
    return (
        '<PubmedArticle><MedlineCitation Status="MEDLINE">'
        f'<PMID Version="1">{pmid}</PMID><Article PubModel="Print">'
        f"<Journal><JournalIssue><PubDate><Year>{year}</Year></PubDate></JournalIssue></Journal>"
        f"<ArticleTitle>{title.capitalize()}.</ArticleTitle>"
        f"<Abstract><AbstractText>{abstract.capitalize()}.</AbstractText></Abstract></Article>"
        f"<MeshHeadingList>{''.join(headings)}</MeshHeadingList>"
        "</MedlineCitation></PubmedArticle>\n"
    )


def _heading(name: str, *, is_major: bool) -> str:
    major = "Y" if is_major else "N"
    return (
        f'<MeshHeading><DescriptorName MajorTopicYN="{major}">{name}</DescriptorName></MeshHeading>'
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
