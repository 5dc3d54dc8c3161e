"""Simulated demo documents for relations: a hidden graph of facts, and documents that state some.

Entities of three types have names and ids. A document states a few facts, each in one of several
wordings, and contains distractors: sentences that mention two unrelated entities. So relations must
be read, and cannot be guessed from co-occurrence. Facts recur in other documents, so entity pairs
recur.
"""

import gzip
from pathlib import Path

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.store.demo_corpus import DemoCorpus, InventedWords
from raybio.store.store import SPLITS

_ID_BY_TYPE = {"Gene": "{}", "Disease": "D{:06d}", "Chemical": "C{:06d}"}


_WORDINGS = {
    ("Association", "Gene", "Disease"): (
        "{} is associated with {}",
        "carriers of {} often suffer from {}",
    ),
    ("Positive_Correlation", "Disease", "Chemical"): (
        "{} was induced by {}",
        "{} appeared after doses of {}",
    ),
    ("Negative_Correlation", "Disease", "Chemical"): (
        "{} was relieved by {}",
        "{} improved under {}",
    ),
    ("Bind", "Gene", "Chemical"): (
        "{} binds {} directly",
        "the product of {} forms a complex with {}",
    ),
}
"""(relation, first type, second type) -> the wordings of a fact."""


_CO_MENTIONS = (
    "we studied {} and {}",
    "no link between {} and {} was found",
    "both {} and {} were measured",
    "samples with {} were compared with {}",
)


_OPENINGS = (
    "in this cohort",
    "as a rule",
    "in most patients",
    "during follow up",
    "we found that",
    "notably",
)


class DocumentsConfig(BaseConfig):
    """Size and shape of the simulated world."""

    num_entities: int = Field(40, ge=4, description="entities of each type")
    num_facts: int = Field(60, ge=1, description="facts of each relation")
    num_train: int = Field(1000, ge=1, description="training documents")
    num_dev: int = Field(100, ge=0, description="validation documents")
    num_test: int = Field(150, ge=0, description="test documents")
    facts_per_document: int = Field(2, ge=1, description="facts stated per document")
    co_mentions: int = Field(3, ge=0, description="sentences per document that state no fact")
    seed: int = Field(0, ge=0, description="seed of the simulation")


Entity = tuple[str, int]
"""(type, number)."""

Fact = tuple[str, Entity, Entity]
"""(relation, first entity, second entity)."""


def _prepare(raw: Path, store: Path, config: DocumentsConfig) -> DocumentStore:
    train, dev, test = write_documents(raw, config)
    return prepare_documents(store, [train], [dev], [test], min_type_pair_relations=1)


SIMULATED_DOCUMENTS = DemoCorpus(
    name="documents",
    version=1,
    config=DocumentsConfig,
    kind=DocumentStore,
    prepare_files=_prepare,
)
"""The demo corpus."""


def write_documents(directory: str | Path, config: DocumentsConfig) -> tuple[Path, Path, Path]:
    """Simulate documents, and write PubTator files for train, dev and test.

    The same settings give the same bytes.
    """
    rng = np.random.default_rng(config.seed)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    words = InventedWords(rng)
    names = {kind: [words.new() for _ in range(config.num_entities)] for kind in _ID_BY_TYPE}
    facts = _draw_facts(config, rng)
    paths = []
    number = 0
    for split, num_documents in zip(
        SPLITS, (config.num_train, config.num_dev, config.num_test), strict=True
    ):
        documents = []
        for _ in range(num_documents):
            number += 1
            documents.append(_document(number, names, facts, config, rng))
        paths.append(folder / f"{split}.PubTator.gz")
        paths[-1].write_bytes(gzip.compress("\n".join(documents).encode(), mtime=0))
    return paths[0], paths[1], paths[2]


def _draw_facts(config: DocumentsConfig, rng: np.random.Generator) -> list[Fact]:
    """Return distinct facts; a pair of entities has at most one relation."""
    facts: list[Fact] = []
    seen: set[tuple[Entity, Entity]] = set()
    for relation, first_type, second_type in _WORDINGS:
        pairs = [
            (
                (first_type, int(pair) // config.num_entities),
                (second_type, int(pair) % config.num_entities),
            )
            for pair in rng.permutation(config.num_entities**2)
        ]
        chosen = [pair for pair in pairs if pair not in seen][: config.num_facts]
        seen.update(chosen)
        facts += [(relation, head, tail) for head, tail in chosen]
    return facts


def _document(
    number: int,
    names: dict[str, list[str]],
    facts: list[Fact],
    config: DocumentsConfig,
    rng: np.random.Generator,
) -> str:
    """Return a document in PubTator's format that states some random facts."""
    size = min(config.facts_per_document, len(facts))
    stated = [facts[index] for index in rng.choice(len(facts), size, replace=False)]
    sentences = _sentences(stated, facts, config, rng)
    texts = []
    mentions = []
    offset = 0
    for index in rng.permutation(len(sentences)):
        pattern, ends = sentences[index]
        before, between, after = pattern.split("{}")
        for gap, (kind, entity) in zip((before, between), ends, strict=True):
            name = names[kind][entity]
            entity_id = _ID_BY_TYPE[kind].format(entity + 1)
            offset += len(gap)
            end = offset + len(name)
            mentions.append(f"{number}\t{offset}\t{end}\t{name}\t{kind}\t{entity_id}")
            offset = end
        texts.append(pattern.format(*(names[kind][entity] for kind, entity in ends)))
        offset += len(after) + 1
    lines = [f"{number}|t|{texts[0]}", f"{number}|a|{' '.join(texts[1:])}", *mentions]
    for relation, *ends in stated:
        first, second = (_ID_BY_TYPE[kind].format(entity + 1) for kind, entity in ends)
        lines.append(f"{number}\t{relation}\t{first}\t{second}")
    return "\n".join(lines) + "\n"


def _sentences(
    stated: list[Fact], facts: list[Fact], config: DocumentsConfig, rng: np.random.Generator
) -> list[tuple[str, tuple[Entity, Entity]]]:
    """Return patterns and their entities: one sentence per fact, and the distractors."""
    sentences = []
    for relation, head, tail in stated:
        wordings = _WORDINGS[relation, head[0], tail[0]]
        sentences.append((f"{rng.choice(_OPENINGS)} {rng.choice(wordings)}.", (head, tail)))
    entities = sorted({end for _, *ends in stated for end in ends})
    related = {frozenset(ends) for _, *ends in facts}
    unrelated = [
        (first, second)
        for first in entities
        for second in entities
        if first < second and frozenset((first, second)) not in related
    ]
    for _ in range(config.co_mentions if unrelated else 0):
        pair = unrelated[int(rng.integers(len(unrelated)))]
        sentences.append((f"{rng.choice(_OPENINGS)} {rng.choice(_CO_MENTIONS)}.", pair))
    return sentences
