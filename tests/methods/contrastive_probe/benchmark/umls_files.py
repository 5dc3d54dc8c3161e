"""A small synthetic UMLS in the real layout: MRCONSO.RRF and MRREL.RRF with all columns.

Concepts have a preferred name, a synonym, a Spanish name and an obsolete one. Names contain quotes,
commas and non-ASCII letters. Relations come without atoms, twice, suppressed, of a concept to
itself, from other vocabularies, and in the inverse direction. Some heads have more answers than a
benchmark takes. Some heads contain the names of their answers, which the hardness filter detects.
"""

from pathlib import Path

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig

RELATIONS = {
    "may_treat": ("drug", "disease"),
    "may_prevent": ("vaccine", "disease"),
    "disease_has_abnormal_cell": ("disease", "cell"),
    "gene_encodes_gene_product": ("gene", "protein"),
}
"""Relation -> what its heads and tails are."""

_SYLLABLES = [
    first + second for first in "bcdfglmnprstv" for second in ("a", "e", "i", "o", "u", "é")
]
_ENDINGS = {
    "drug": "ine",
    "vaccine": "vac",
    "disease": "itis",
    "cell": "cyte",
    "gene": "",
    "protein": "ase",
}
_TAILS_OF_A_HUB = 12


class UmlsConfig(BaseConfig):
    """Size of the synthetic UMLS."""

    heads_per_relation: int = Field(40, ge=1, description="concepts that are a relation's heads")
    tails_per_kind: int = Field(30, ge=13, description="concepts of each kind that are tails")
    seed: int = Field(0, ge=0, description="of everything")


def conso_row(
    cui: str,
    aui: str,
    name: str,
    *,
    lat: str = "ENG",
    ts: str = "P",
    stt: str = "PF",
    ispref: str = "Y",
    sab: str = "NCI",
    suppress: str = "N",
) -> str:
    """Return one line of MRCONSO.RRF."""
    number = aui.removeprefix("A")
    atom = f"{cui}|{lat}|{ts}|L{number}|{stt}|S{number}|{ispref}|{aui}||{cui}||"
    return f"{atom}{sab}|PT|{cui}|{name}|0|{suppress}||\n"


def rel_row(head: str, relation: str, tail: str, *, sab: str = "NCI", suppress: str = "N") -> str:
    """Return one line of MRREL.RRF; ``head`` and ``tail`` are "CUI" or "CUI AUI"."""
    cui2, _, aui2 = head.partition(" ")
    cui1, _, aui1 = tail.partition(" ")
    kinds = ["AUI" if aui else "CUI" for aui in (aui1, aui2)]
    pair = f"{cui1}|{aui1}|{kinds[0]}|RO|{cui2}|{aui2}|{kinds[1]}"
    return f"{pair}|{relation}|R0||{sab}|{sab}|||{suppress}||\n"


def write_umls(folder: str | Path, config: UmlsConfig | None = None) -> Path:
    """Simulate, and write both files; the same settings give the same bytes.

    Returns:
        The folder, as ``build_medlama`` takes it.
    """
    config, folder = config or UmlsConfig(), Path(folder)
    rng = np.random.default_rng(config.seed)
    concepts = _Concepts(rng)
    tails = {
        kind: [concepts.new(kind) for _ in range(config.tails_per_kind)]
        for kind in ("disease", "cell", "protein")
    }
    lines: list[str] = []
    num_relations = 0
    for relation, (head_kind, tail_kind) in RELATIONS.items():
        for number in range(config.heads_per_relation):
            count = _TAILS_OF_A_HUB if number == 0 else int(rng.integers(1, 5))
            chosen = [
                tails[tail_kind][place]
                for place in rng.choice(config.tails_per_kind, count, replace=False)
            ]
            # Every fourth head gives an answer away.
            about = concepts.name_by_cui[chosen[0]] + " " if number % 4 == 3 else ""
            head = concepts.new(head_kind, about)
            for tail in chosen:
                lines += _relation(relation, head, tail, num_relations)
                num_relations += 1
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "MRCONSO.RRF").write_text("".join(concepts.lines), encoding="utf-8")
    (folder / "MRREL.RRF").write_text("".join(lines), encoding="utf-8")
    return folder


def _relation(relation: str, head: str, tail: str, number: int) -> list[str]:
    """Return the row, with or without atoms, and sometimes a row that a reader has to skip."""
    sab = ("NCI", "SNOMEDCT_US", "MED-RT")[number % 3]
    ends = (f"{head} {_aui(head)}", f"{tail} {_aui(tail)}") if number % 3 else (head, tail)
    row = rel_row(ends[0], relation, ends[1], sab=sab)
    others = {
        0: [row],
        1: [rel_row(head, relation, tail, sab=sab, suppress="O")],
        2: [rel_row(ends[1], f"inverse_of_{relation}", ends[0], sab=sab)],
        3: [rel_row(head, relation, tail, sab="MSH")],
        4: [rel_row(head, relation, head, sab=sab)],
        5: [rel_row(f"{head} {_aui(head, 3)}", relation, tail, sab=sab)],
    }
    return [row, *others.get(number % 11, [])]


def _aui(cui: str, atom: int = 0) -> str:
    return f"A{cui.removeprefix('C')}{atom}"


class _Concepts:
    """Concepts of four atoms each, with names that are never there twice."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.name_by_cui: dict[str, str] = {}
        self.lines: list[str] = []

    def new(self, kind: str, before: str = "") -> str:
        """The CUI of one more concept, whose lines are written."""
        cui = f"C{len(self.name_by_cui) + 1:07d}"
        name = f"{before}{self._word()}{_ENDINGS[kind]} {kind}"
        # Quotes have no special meaning, as in: Laennec's cirrhosis, "non-alcoholic".
        shown = {0: f'{name}, "so-called"', 1: f"{name}'s form"}.get(
            len(self.name_by_cui) % 9, name
        )
        self.name_by_cui[cui] = shown
        self.lines += [
            conso_row(
                cui,
                _aui(cui, 1),
                f"{name} synonym",
                ts="S",
                stt="VO",
                ispref="N",
                sab="SNOMEDCT_US",
            ),
            conso_row(cui, _aui(cui, 2), f"{name} española", lat="SPA", sab="SCTSPA"),
            conso_row(
                cui, _aui(cui, 3), f"{name} obsolete", suppress="OEY"[len(self.name_by_cui) % 3]
            ),
            conso_row(cui, _aui(cui), shown),
        ]
        return cui

    def _word(self) -> str:
        while True:
            word = "".join(self.rng.choice(_SYLLABLES, int(self.rng.integers(2, 5)))).capitalize()
            if not any(name.startswith(word) for name in self.name_by_cui.values()):
                return word
