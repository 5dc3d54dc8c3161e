"""Simulated demo sentences: reports of adverse drug effects.

Drugs and effects have invented names of one or two words. A sentence states that drugs cause
effects, in one of several wordings. It also names unrelated entities: a disease that a drug was
given for, a drug that did no harm, an effect that had another reason. So related pairs must be
recognized by reading. Names recur, but drugs and effects are paired anew for each sentence, so
memorizing pairs does not help.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.methods.relation_graphs.formats import TEST_SET, TRAIN_SET
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.relation_graphs.store import WordStore
from raybio.store.demo_corpus import DemoCorpus, InventedWords

DRUG = "Drug"
EFFECT = "Adverse-Effect"


_KIND_BY_SLOT = {"D": DRUG, "E": EFFECT, "F": EFFECT, "d": DRUG, "e": EFFECT}


_CAUSES = (
    "D induced E",
    "E was caused by D",
    "E developed under D",
    "D led to E and to F",
)
"""A cause, D, and its effects, E and F."""


_AFTER_DRUG = (", given for e ,", "but not d")


_AFTER_EFFECT = ("but no e",)


_OTHER_CLAUSES = ("d was given for e", "d did not cause e", "e was known before d")
"""Distractors d and e: after a cause, after an effect, in their own clause."""


_OPENINGS = ("", "notably ,", "we report that")


_LINKS = ("and", "while")


Names = dict[str, list[list[str]]]
"""Type -> the words of each name."""


class WordsConfig(BaseConfig):
    """Size and shape of the simulated reports."""

    num_sentences: int = Field(600, ge=10, description="sentences")
    num_folds: int = Field(5, ge=2, le=10, description="folds of the cross-validation")
    num_drugs: int = Field(40, ge=6, description="names of drugs")
    num_effects: int = Field(60, ge=6, description="names of adverse effects")
    two_word_share: float = Field(0.5, ge=0, le=1, description="share of names of two words")
    aside_rate: float = Field(
        0.3, ge=0, le=1, description="share of causes and effects with others named behind them"
    )
    clause_rate: float = Field(
        0.5, ge=0, le=1, description="fraction of sentences with a clause without a relation"
    )
    seed: int = Field(0, ge=0, description="of everything")


def _prepare(raw: Path, store: Path, config: WordsConfig) -> WordStore:
    sentences, splits = write_words(raw, config)
    return prepare_words(store, [sentences], splits=splits)


SIMULATED_WORDS = DemoCorpus(
    name="words",
    version=1,
    config=WordsConfig,
    kind=WordStore,
    prepare_files=_prepare,
)
"""The demo corpus."""


def write_words(directory: str | Path, config: WordsConfig) -> tuple[Path, Path]:
    """Simulate sentences; write SpERT's JSON and a file of folds. Same settings, same bytes."""
    rng = np.random.default_rng(config.seed)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    words = InventedWords(rng)
    names = {
        DRUG: _names(config.num_drugs, config.two_word_share, words, rng),
        EFFECT: _names(config.num_effects, config.two_word_share, words, rng),
    }
    sentences = [_sentence(number, names, config, rng) for number in range(config.num_sentences)]
    ids = [f"{number}" for number in rng.permutation(config.num_sentences)]
    folds = {}
    for fold in range(config.num_folds):
        test = ids[fold :: config.num_folds]
        folds[f"split_{fold + 1}"] = {
            TRAIN_SET: sorted(set(ids) - set(test), key=int),
            TEST_SET: test,
        }
    paths = folder / "sentences.json.gz", folder / "cv_splits.json.gz"
    for path, value in zip(paths, (sentences, folds), strict=True):
        path.write_bytes(gzip.compress(json.dumps(value).encode(), mtime=0))
    return paths


def _names(
    num: int, two_word_share: float, words: InventedWords, rng: np.random.Generator
) -> list[list[str]]:
    """Return names of one word, or of two words, one of which several names share."""
    families = [words.new() for _ in range(max(1, num // 10))]
    names = []
    for _ in range(num):
        name = [words.new()]
        if rng.random() < two_word_share:
            name.insert(int(rng.integers(2)), str(rng.choice(families)))
        names.append(name)
    return names


def _sentence(
    number: int, names: Names, config: WordsConfig, rng: np.random.Generator
) -> dict[str, Any]:
    """Return a sentence in SpERT's layout; its entities have different names."""
    pools = {kind: iter(rng.permutation(len(phrases)).tolist()) for kind, phrases in names.items()}
    tokens = list[str]()
    entities = list[dict[str, Any]]()
    relations = list[dict[str, Any]]()
    entities_of: dict[str, list[int]] = {}
    for part in _parts(config, rng):
        kind = _KIND_BY_SLOT.get(part)
        if kind is None:
            tokens.append(part)
            continue
        name = names[kind][next(pools[kind])]
        entities_of.setdefault(part, []).append(len(entities))
        entities.append({"type": kind, "start": len(tokens), "end": len(tokens) + len(name)})
        tokens += name
    for effect in sorted(entities_of["E"] + entities_of.get("F", [])):
        relations += [{"type": EFFECT, "head": effect, "tail": drug} for drug in entities_of["D"]]
    return {
        "tokens": [*tokens, "."],
        "entities": entities,
        "relations": relations,
        "orig_id": number,
    }


def _parts(config: WordsConfig, rng: np.random.Generator) -> Iterator[str]:
    """Words of a sentence, with the letters of ``_KIND_BY_SLOT`` in the places of names."""
    cause = list(_with_asides(str(rng.choice(_CAUSES)), config.aside_rate, rng))
    clauses = [cause]
    if rng.random() < config.clause_rate:
        clauses.insert(int(rng.integers(2)), str(rng.choice(_OTHER_CLAUSES)).split())
    yield from str(rng.choice(_OPENINGS)).split()
    yield from clauses[0]
    for clause in clauses[1:]:
        yield from str(rng.choice(_LINKS)).split()
        yield from clause


def _with_asides(clause: str, rate: float, rng: np.random.Generator) -> Iterator[str]:
    for word in clause.split():
        yield word
        asides = {"D": _AFTER_DRUG, "E": _AFTER_EFFECT, "F": _AFTER_EFFECT}.get(word)
        if asides and rng.random() < rate:
            yield from str(rng.choice(asides)).split()
