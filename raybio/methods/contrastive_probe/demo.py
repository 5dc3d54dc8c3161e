"""The built-in default corpus: simulated facts, sentences that state them, and a benchmark.

Each relation has its own heads and tails, and a head has a few tails. Sentences state each fact
several times in several wordings. The benchmark queries the tails in one of the wordings, in
MedLAMA's files. So an encoder can learn the answers from the sentences, and has to find them among
all names.
"""

import csv
import gzip
import io
from pathlib import Path

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.methods.contrastive_probe.benchmark.build import COLUMNS
from raybio.methods.contrastive_probe.benchmark.medlama import SEPARATOR
from raybio.methods.contrastive_probe.prepare import prepare_sentences
from raybio.methods.contrastive_probe.store import ClozeStore
from raybio.store.demo_corpus import DemoCorpus, InventedWords

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
"""Relation -> its wording in the benchmark and in sentences, and more wordings in sentences."""


_OPENINGS = (
    "",
    "it was reported that",
    "in this cohort",
    "we found that",
    "as a rule",
    "in most patients",
)


class KnowledgeConfig(BaseConfig):
    """Size of the simulated corpus."""

    num_heads: int = Field(60, ge=2, description="heads of a relation")
    num_tails: int = Field(30, ge=4, description="tails of a relation")
    sentences_per_fact: int = Field(8, ge=1, description="sentences of a fact")
    seed: int = Field(0, ge=0, description="random seed")


def _prepare(raw: Path, store: Path, config: KnowledgeConfig) -> ClozeStore:
    sentences, benchmark = write_knowledge(raw, config)
    return prepare_sentences(store, [sentences], benchmark)


SIMULATED_KNOWLEDGE = DemoCorpus(
    name="knowledge",
    version=2,
    config=KnowledgeConfig,
    kind=ClozeStore,
    prepare_files=_prepare,
)
"""The demo corpus."""


def write_knowledge(directory: str | Path, config: KnowledgeConfig) -> tuple[Path, Path]:
    """Simulate a corpus; write a sentence file and a benchmark folder, and return their paths.

    The same settings give the same bytes.
    """
    rng = np.random.default_rng(config.seed)
    benchmark = Path(directory) / "benchmark"
    benchmark.mkdir(parents=True, exist_ok=True)
    words = InventedWords(rng)
    sentences: list[str] = []
    with (benchmark / "prompts.csv").open("w", newline="", encoding="utf-8") as file:
        prompts = csv.writer(file, lineterminator="\n")
        prompts.writerow(["pid", "default_prompt", "human_prompt"])
        for index, (relation, (prompt, more_wordings)) in enumerate(_RELATIONS.items()):
            default = f"[X] {relation.replace('_', ' ')} [Y] ."
            prompts.writerow([relation, default, f"[X] {prompt} [Y] ."])
            facts = _facts(config, words, rng)
            content = _table(relation, facts, first_cui=1000 * (index + 1))
            table_path = benchmark / f"{relation}_{len(facts)}.csv"
            table_path.write_text(content, encoding="utf-8")
            wordings = [prompt, *more_wordings]
            for head, tails in facts.items():
                for tail in tails:
                    for _ in range(config.sentences_per_fact):
                        opening = rng.choice(_OPENINGS)
                        sentences.append(f"{opening} {head} {rng.choice(wordings)} {tail}".strip())
    path = Path(directory) / "sentences.txt.gz"
    shuffled = [sentences[index] for index in rng.permutation(len(sentences))]
    path.write_bytes(gzip.compress(("\n".join(shuffled) + "\n").encode(), mtime=0))
    return path, benchmark


def _facts(
    config: KnowledgeConfig, words: InventedWords, rng: np.random.Generator
) -> dict[str, list[str]]:
    """Return head -> its tails in ascending order; half of the tails share a second word."""
    shared_word = words.new()
    tails = []
    for _ in range(config.num_tails):
        has_shared_word = rng.random() < 0.5
        tails.append(f"{words.new()} {shared_word}" if has_shared_word else words.new())
    facts = {}
    for _ in range(config.num_heads):
        chosen = rng.choice(config.num_tails, int(rng.integers(1, 4)), replace=False)
        facts[f"{words.new()} {words.new()}"] = sorted(tails[tail] for tail in chosen)
    return facts


def _table(relation: str, facts: dict[str, list[str]], first_cui: int) -> str:
    """Return a file of MedLAMA; head and tails share no word, so both scores of hardness are 0."""
    names = sorted({*facts, *(tail for tails in facts.values() for tail in tails)})
    cui_by_name = {name: f"C{first_cui + index:07d}" for index, name in enumerate(names)}
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(COLUMNS)
    for head, tails in facts.items():
        cuis = [cui_by_name[tail] for tail in tails]
        tail_names = SEPARATOR.join(tails)
        tail_cuis = SEPARATOR.join(cuis)
        row = [cui_by_name[head], head, relation, cuis, tails, tail_names, tail_cuis]
        table.writerow([*row, len(cuis), len(tails), 0.0, 0.0])
    return buffer.getvalue()
