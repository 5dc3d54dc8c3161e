"""Figures of the paper, read from ``published.yaml``."""

from collections.abc import Collection
from functools import cache
from typing import NamedTuple

from raybio.core.published import published

PACKAGE = "raybio.methods.contrastive_probe"

BIOLAMA_SOURCES = ("CTD", "wikidata", "UMLS")
"""Sources of BioLAMA as the paper spells them."""

Pair = tuple[float, float]
"""Two accuracies in percent."""


class PublishedRow(NamedTuple):
    """A row of Table 3, accuracies in percent."""

    approach: str
    model: str
    acc_at_1: float
    acc_at_10: float | None


class PublishedBiolamaRow(NamedTuple):
    """A row of Table 7: source of BioLAMA -> (acc@1, acc@5) in percent."""

    approach: str
    model: str
    pair_by_source: dict[str, Pair]


@cache
def table_3() -> tuple[PublishedRow, ...]:
    """Return the approaches on the full set of MedLAMA."""
    return tuple(PublishedRow(**row) for row in published(PACKAGE)["table_3"])


@cache
def paper_prompts() -> dict[str, str]:
    """Return relation -> manual prompt (Table 5), relations in ascending order."""
    return dict(published(PACKAGE)["prompts"])


def is_medlama(relations: Collection[str]) -> bool:
    """Return whether a benchmark has the relations of MedLAMA, to which Tables 3 and 10 belong."""
    return set(relations) == paper_prompts().keys()


@cache
def table_6() -> dict[str, dict[str, float]]:
    """Return benchmark -> its statistics."""
    return dict(published(PACKAGE)["table_6"])


@cache
def table_7() -> tuple[PublishedBiolamaRow, ...]:
    """Return the approaches on the sources of BioLAMA."""
    rows = []
    for row in published(PACKAGE)["table_7"]:
        pair_by_source = {source: (row[source][0], row[source][1]) for source in BIOLAMA_SOURCES}
        rows.append(PublishedBiolamaRow(row["approach"], row["model"], pair_by_source))
    return tuple(rows)


@cache
def table_10() -> dict[str, dict[tuple[str, str], Pair]]:
    """Return model -> (query set, mean) -> (acc@1, acc@10) in percent."""
    pairs_by_model = {}
    for model, row in published(PACKAGE)["table_10"].items():
        full = (row["full"][0], row["full"][1])
        pairs_by_model[model] = {
            ("full", "macro"): full,
            ("full", "micro"): full,
            ("hard", "macro"): (row["hard macro"][0], row["hard macro"][1]),
            ("hard", "micro"): (row["hard micro"][0], row["hard micro"][1]),
        }
    return pairs_by_model


@cache
def expert_study() -> dict[str, float]:
    """Return the figures of the expert study (Section 5.3)."""
    return dict(published(PACKAGE)["expert_study"])
