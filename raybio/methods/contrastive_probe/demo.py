"""The embedded default corpus for rewiring and probing: simulated facts, the sentences that tell them, and a benchmark.

A world of named entities: each relation has heads and tails of its own, and a head has a few tails. Sentences tell each
fact some times in several wordings; the benchmark asks for the tails in one of them, in the very files of MedLAMA. So
an encoder from scratch can learn from the sentences alone what the benchmark asks, and has to find it among all names.
"""

import csv
import gzip
import io
from pathlib import Path

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig, fingerprint
from raybio.methods.contrastive_probe.benchmark.build import COLUMNS
from raybio.methods.contrastive_probe.prepare import prepare_sentences
from raybio.methods.contrastive_probe.store import ClozeStore
from raybio.store.demo_corpus import InventedWords, cached_store
from raybio.store.store import SCHEMA_VERSION

VERSION = 1
"""Rises whenever the same settings give another corpus or another store of it."""


_RELATIONS = {
    "may_treat": ("might treat", ("is given against", "is a remedy for", "is used to treat")),
    "gene_encodes_product": (
        "encodes the gene product",
        ("is the gene of", "codes for", "is transcribed and gives"),
    ),
    "disease_has_finding": (
        "may have",
        ("often presents with", "is known by", "may show itself as"),
    ),
    "disease_has_site": (
        "can stem from the site",
        ("arises in", "is mostly located in", "begins within"),
    ),
}
"""Relation -> its words in the benchmark and in sentences, and further ones in sentences."""


_OPENINGS = (
    "",
    "it was reported that",
    "in this cohort",
    "we found that",
    "as a rule",
    "in most patients",
)


class KnowledgeConfig(BaseConfig):
    """Size and shape of the simulated world."""

    num_heads: int = Field(60, ge=2, description="heads of a relation")
    num_tails: int = Field(30, ge=4, description="tails of a relation")
    sentences_per_fact: int = Field(8, ge=1, description="sentences that tell a fact")
    seed: int = Field(0, ge=0, description="of everything")


def default_knowledge(directory: str | Path, config: KnowledgeConfig | None = None) -> ClozeStore:
    """The embedded corpus, simulated and prepared the first time, opened afterwards.

    Args:
        directory: where it is kept, under a name that depends on every setting.
        config: settings; the demo's if None.

    Raises:
        StoreError: if the directory cannot be written.
    """
    config = config or KnowledgeConfig()
    home = Path(directory) / f"knowledge-{VERSION}.{SCHEMA_VERSION}-{fingerprint(config)}"

    def make(raw: Path, store: Path) -> ClozeStore:
        sentences, benchmark = write_knowledge(raw, config)
        return prepare_sentences(store, [sentences], benchmark)

    return cached_store(home, ClozeStore, make)


def write_knowledge(directory: str | Path, config: KnowledgeConfig) -> tuple[Path, Path]:
    """Simulate, and write a sentence file and a folder in MedLAMA's layout. The same settings give the same bytes."""
    rng = np.random.default_rng(config.seed)
    folder = Path(directory)
    (folder / "benchmark").mkdir(parents=True, exist_ok=True)
    words, sentences = InventedWords(rng), list[str]()
    with (folder / "benchmark" / "prompts.csv").open("w", newline="", encoding="utf-8") as file:
        prompts = csv.writer(file, lineterminator="\n")
        prompts.writerow(["pid", "default_prompt", "human_prompt"])
        for number, (relation, (asked, others)) in enumerate(_RELATIONS.items()):
            prompts.writerow(
                [relation, f"[X] {relation.replace('_', ' ')} [Y] .", f"[X] {asked} [Y] ."]
            )
            facts = _facts(config, words, rng)
            content = _table(relation, facts, first_cui=1000 * (number + 1))
            (folder / "benchmark" / f"{relation}_{len(facts)}.csv").write_text(
                content, encoding="utf-8"
            )
            sentences += [
                f"{rng.choice(_OPENINGS)} {head} {rng.choice([asked, *others])} {tail}".strip()
                for head, tails in facts.items()
                for tail in tails
                for _ in range(config.sentences_per_fact)
            ]
    path = folder / "sentences.txt.gz"
    shuffled = [sentences[place] for place in rng.permutation(len(sentences))]
    path.write_bytes(gzip.compress(("\n".join(shuffled) + "\n").encode(), mtime=0))
    return path, folder / "benchmark"


def _facts(
    config: KnowledgeConfig, words: InventedWords, rng: np.random.Generator
) -> dict[str, list[str]]:
    family = words.new()
    tails = [
        f"{words.new()} {family}" if rng.random() < 0.5 else words.new()
        for _ in range(config.num_tails)
    ]
    facts = {}
    for _ in range(config.num_heads):
        chosen = rng.choice(config.num_tails, int(rng.integers(1, 4)), replace=False)
        facts[f"{words.new()} {words.new()}"] = sorted(tails[tail] for tail in chosen)
    return facts


def _table(relation: str, facts: dict[str, list[str]], first_cui: int) -> str:
    """A file of MedLAMA; no name shares a word with another's, so both scores of hardness are 0."""
    names = sorted({*facts, *(tail for tails in facts.values() for tail in tails)})
    cui_by_name = {name: f"C{first_cui + number:07d}" for number, name in enumerate(names)}
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(COLUMNS)
    for head, tails in facts.items():
        cuis = [cui_by_name[tail] for tail in tails]
        joined = " || ".join(tails), " || ".join(cuis)
        table.writerow(
            [
                cui_by_name[head],
                head,
                relation,
                cuis,
                tails,
                *joined,
                len(cuis),
                len(tails),
                0.0,
                0.0,
            ]
        )
    return buffer.getvalue()
