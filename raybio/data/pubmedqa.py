"""PubMedQA (Jin et al., 2019): questions that are titles of articles, each with its abstract, cut at the conclusion.

The conclusion is the long answer; the rest of the abstract, in sections, are the contexts. ``ori_pqal.json`` holds the
1,000 questions labelled by experts; the unlabelled and the artificial set have the same form with fewer fields.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raybio.data.json_records import Record, read_json_object
from raybio.errors import DataError

DECISIONS = ("yes", "no", "maybe")
MOST_PMID_DIGITS = 17


@dataclass(frozen=True)
class PubMedQuestion:
    """One question with the article that answers it.

    Attributes:
        pmid: the article's PubMed id.
        question: the question; most often the article's title.
        contexts: sections of the abstract without its conclusion.
        sections: their names, such as "METHODS"; as many as contexts.
        long_answer: the conclusion.
        decision: the answer; None where nobody gave one.
        mesh_terms: the article's MeSH terms.
        year: of publication; None where unknown.
    """

    pmid: str
    question: str
    contexts: tuple[str, ...]
    sections: tuple[str, ...]
    long_answer: str
    decision: Literal["yes", "no", "maybe"] | None
    mesh_terms: tuple[str, ...]
    year: int | None

    @property
    def context(self) -> str:
        """The abstract without its conclusion, in one text."""
        return " ".join(self.contexts)


def read_pubmedqa(path: Path) -> tuple[PubMedQuestion, ...]:
    """Read ``ori_pqal.json``, plain or ``.gz``, in the order of the file.

    Raises:
        DataError: for a file that cannot be read, or a record that is not of the form.
    """
    records = read_json_object(path)
    if not records:
        raise DataError(f"{path}: holds no question, want PMID -> question as in ori_pqal.json")
    return tuple(_question(Record.of(path, pmid, value)) for pmid, value in records.items())


def _question(record: Record) -> PubMedQuestion:
    contexts, sections = record.texts("CONTEXTS"), record.texts("LABELS")
    if not (record.name.isascii() and record.name.isdigit() and len(record.name) <= MOST_PMID_DIGITS):
        raise DataError(f"{record.path}, record {record.name[:40]!r}: its name is no PMID. Repair the record.")
    if not contexts:
        raise record.wrong("CONTEXTS", "at least one text that is not blank")
    if sections and len(sections) != len(contexts):
        raise record.wrong("LABELS", f"one name for each of the {len(contexts)} contexts")
    decision = record.fields.get("final_decision")
    if decision is not None and decision not in DECISIONS:
        raise record.wrong("final_decision", f"one of {', '.join(DECISIONS)}")
    year = record.fields.get("YEAR")
    if year is not None and not (isinstance(year, str | int) and str(year).isdecimal() and len(str(year)) == 4):
        raise record.wrong("YEAR", "a year such as '2011'")
    return PubMedQuestion(
        pmid=record.name,
        question=record.text("QUESTION"),
        contexts=contexts,
        sections=sections,
        long_answer=record.text("LONG_ANSWER"),
        decision=decision,
        mesh_terms=record.texts("MESHES"),
        year=None if year is None else int(year),
    )
