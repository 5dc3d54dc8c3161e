"""The embedded default corpus for relations: a simulated world of facts, and documents that tell some of them.

Entities of three types have names and ids, and a hidden graph says which are related, and how. A document is about a
few of them: each fact it tells stands in one of several wordings, and sentences that merely name two entities stand
beside them, so that a relation has to be read and not guessed from what is named together. Facts come again in other
documents, so pairs of entities recur.
"""

import gzip
from pathlib import Path

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig, fingerprint
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.store.demo_corpus import InventedWords, cached_store
from raybio.store.store import SCHEMA_VERSION, SPLITS

VERSION = 1
"""Rises whenever the same settings give another corpus or another store of it."""


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
"""(relation, type of one end, type of the other) -> how documents tell it."""


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
    num_train: int = Field(1000, ge=1, description="documents to train on")
    num_dev: int = Field(100, ge=0, description="documents to choose settings on")
    num_test: int = Field(150, ge=0, description="documents to report on")
    facts_per_document: int = Field(2, ge=1, description="facts that a document tells")
    co_mentions: int = Field(3, ge=0, description="sentences of a document that tell no fact")
    seed: int = Field(0, ge=0, description="of everything")


Fact = tuple[str, tuple[str, int], tuple[str, int]]
"""Relation, and (type, number) of both entities."""


def default_documents(
    directory: str | Path, config: DocumentsConfig | None = None
) -> DocumentStore:
    """The embedded corpus, simulated and prepared the first time, opened afterwards.

    Args:
        directory: where it is kept, under a name that depends on every setting.
        config: settings; the demo's if None.

    Raises:
        StoreError: if the directory cannot be written.
    """
    config = config or DocumentsConfig()
    home = Path(directory) / f"documents-{VERSION}.{SCHEMA_VERSION}-{fingerprint(config)}"

    def make(raw: Path, store: Path) -> DocumentStore:
        train, dev, test = write_documents(raw, config)
        return prepare_documents(store, [train], [dev], [test], min_type_pair_relations=1)

    return cached_store(home, DocumentStore, make)


def write_documents(directory: str | Path, config: DocumentsConfig) -> tuple[Path, Path, Path]:
    """Simulate, and write files for training, dev and test in PubTator's format. The same settings give equal bytes."""
    rng, folder = np.random.default_rng(config.seed), Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    words = InventedWords(rng)
    names = {kind: [words.new() for _ in range(config.num_entities)] for kind in _ID_BY_TYPE}
    facts = _facts(config, rng)
    paths, number = [], 0
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


def _facts(config: DocumentsConfig, rng: np.random.Generator) -> list[Fact]:
    """Distinct facts; a pair of entities has one relation."""
    facts: list[Fact] = []
    seen: set[tuple[tuple[str, int], tuple[str, int]]] = set()
    for relation, first, second in _WORDINGS:
        pairs = rng.permutation(config.num_entities**2)
        ends = [
            ((first, int(pair) // config.num_entities), (second, int(pair) % config.num_entities))
            for pair in pairs
        ]
        chosen = [pair for pair in ends if pair not in seen][: config.num_facts]
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
    """A document in PubTator's format; of the facts about its entities it tells only those that were drawn."""
    size = min(config.facts_per_document, len(facts))
    told = [facts[place] for place in rng.choice(len(facts), size, replace=False)]
    entities = sorted({end for _, *ends in told for end in ends})
    related = {frozenset(ends) for _, *ends in facts}
    sentences = []
    for relation, head, tail in told:
        wordings = _WORDINGS[relation, head[0], tail[0]]
        sentences.append((f"{rng.choice(_OPENINGS)} {rng.choice(wordings)}.", (head, tail)))
    unrelated = [
        (a, b) for a in entities for b in entities if a < b and frozenset((a, b)) not in related
    ]
    for _ in range(config.co_mentions if unrelated else 0):
        pair = unrelated[int(rng.integers(len(unrelated)))]
        sentences.append((f"{rng.choice(_OPENINGS)} {rng.choice(_CO_MENTIONS)}.", pair))
    texts, mentions, at = [], [], 0
    for place in rng.permutation(len(sentences)):
        pattern, ends = sentences[place]
        before, between, after = pattern.split("{}")
        for gap, (kind, entity) in zip((before, between), ends, strict=True):
            name, one = names[kind][entity], _ID_BY_TYPE[kind].format(entity + 1)
            at += len(gap)
            mentions.append(f"{number}\t{at}\t{at + len(name)}\t{name}\t{kind}\t{one}")
            at += len(name)
        texts.append(pattern.format(*(names[kind][entity] for kind, entity in ends)))
        at += len(after) + 1
    lines = [f"{number}|t|{texts[0]}", f"{number}|a|{' '.join(texts[1:])}", *mentions]
    for relation, *ends in told:
        first, second = (_ID_BY_TYPE[kind].format(entity + 1) for kind, entity in ends)
        lines.append(f"{number}\t{relation}\t{first}\t{second}")
    return "\n".join(lines) + "\n"
