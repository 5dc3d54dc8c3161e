"""Demo sentences of the synthetic graphs: simulated topics, prepared like real sentences."""

import gzip
from pathlib import Path

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.methods.sppt.synthetic.config import TopicConfig
from raybio.methods.sppt.synthetic.prepare import prepare_topics
from raybio.methods.sppt.synthetic.store import TopicStore
from raybio.store.demo_corpus import DemoCorpus, InventedWords


class SentencesConfig(BaseConfig):
    """Size and shape of the simulated sentences."""

    num_sentences: int = Field(
        12_000, ge=50, description="sentences; half of them have one topic, half have three"
    )
    num_topics: int = Field(12, ge=3, description="topics")
    words_per_topic: int = Field(40, ge=5, description="vocabulary size of a topic")
    words_per_sentence: int = Field(12, ge=5, description="length of a sentence in words")
    seed: int = Field(0, ge=0, description="seed of the simulation")


def _prepare(raw: Path, store: Path, config: SentencesConfig) -> TopicStore:
    topics = TopicConfig(num_topics=config.num_topics, min_count=5)
    return prepare_topics(store, [write_sentences(raw, config)], topics)


SIMULATED_TOPICS = DemoCorpus(
    name="topics",
    version=1,
    config=SentencesConfig,
    kind=TopicStore,
    prepare_files=_prepare,
)
"""The demo corpus."""


def write_sentences(directory: str | Path, config: SentencesConfig) -> Path:
    """Simulate sentences and write them to a gzip file, one a line.

    Equal settings give equal bytes.
    """
    rng = np.random.default_rng(config.seed)
    invented = InventedWords(rng)
    topics_words = [
        [invented.new() for _ in range(config.words_per_topic)] for _ in range(config.num_topics)
    ]
    words = np.array(topics_words)
    lines = []
    for sentence in range(config.num_sentences):
        topics = rng.choice(config.num_topics, 1 if sentence % 2 else 3, replace=False)
        weight = rng.dirichlet(np.ones(len(topics)))
        topic_W = rng.choice(topics, config.words_per_sentence, p=weight)
        word_W = rng.integers(config.words_per_topic, size=len(topic_W))
        lines.append(" ".join(words[topic_W, word_W]))
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sentences.txt.gz"
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
    return path
