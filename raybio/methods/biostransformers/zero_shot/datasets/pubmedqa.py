"""PubMedQA (Jin et al. 2019): questions that are titles of articles, with abstract and conclusion.

The conclusion is the long answer. The other sections of the abstract are the contexts.
``ori_pqal.json`` has the 1,000 questions labeled by experts. The unlabeled and the artificial set
have the same form with fewer fields.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raybio.core.errors import DataError
from raybio.store.json import Record, read_json_object, stream_object

DECISIONS = ("yes", "no", "maybe")
MAX_PMID_DIGITS = 17


@dataclass(frozen=True)
class PubMedQuestion:
    """One question with the article that answers it.

    Attributes:
        pmid: the article's PubMed id.
        question: the question, most often the article's title.
        contexts: sections of the abstract without its conclusion.
        long_answer: the conclusion.
        decision: the answer; None in unlabeled sets.
        mesh_terms: the article's MeSH terms.
        year: year of publication; None if unknown.
    """

    pmid: str
    question: str
    contexts: tuple[str, ...]
    long_answer: str
    decision: Literal["yes", "no", "maybe"] | None
    mesh_terms: tuple[str, ...]
    year: int | None

    @property
    def context(self) -> str:
        """The abstract without its conclusion, as one text."""
        return " ".join(self.contexts)


def read_pubmedqa(path: Path) -> tuple[PubMedQuestion, ...]:
    """Return the questions of ``ori_pqal.json``, plain or ``.gz``, in the order of the file.

    Raises:
        DataError: for a file that cannot be read, or an invalid record.
    """
    records = read_json_object(path)
    if not records:
        raise _no_question(path)
    return tuple(
        _pubmedqa_question(Record.of(path, pmid, value)) for pmid, value in records.items()
    )


def stream_articles(path: Path) -> Iterator[PubMedQuestion]:
    """Yield the questions of a file of any size without their answers, which may be missing.

    Raises:
        DataError: as ``read_pubmedqa``.
    """
    pmid = ""
    for pmid, value in stream_object(path):
        yield _pubmedqa_question(Record.of(path, pmid, value), has_answer=False)
    if not pmid:
        raise _no_question(path)


def _no_question(path: Path) -> DataError:
    return DataError(f"{path}: holds no question, want PMID -> question as in ori_pqal.json")


def _pubmedqa_question(record: Record, *, has_answer: bool = True) -> PubMedQuestion:
    contexts = record.texts("CONTEXTS")
    sections = record.texts("LABELS")
    is_number = record.name.isascii() and record.name.isdigit()
    if not is_number or len(record.name) > MAX_PMID_DIGITS:
        raise DataError(
            f"{record.path}, record {record.name[:40]!r}: its name is no PMID. Repair the record."
        )
    if not contexts:
        raise record.wrong("CONTEXTS", "at least one text that is not blank")
    if has_answer and sections and len(sections) != len(contexts):
        raise record.wrong("LABELS", f"one name for each of the {len(contexts)} contexts")
    decision = record.fields.get("final_decision")
    if decision is not None and decision not in DECISIONS:
        raise record.wrong("final_decision", f"one of {', '.join(DECISIONS)}")
    year = record.fields.get("YEAR")
    if year is not None:
        is_year = isinstance(year, str | int) and str(year).isdecimal() and len(str(year)) == 4
        if not is_year:
            raise record.wrong("YEAR", "a year such as '2011'")
    return PubMedQuestion(
        pmid=record.name,
        question=record.text("QUESTION"),
        contexts=contexts,
        long_answer=record.text("LONG_ANSWER") if has_answer else "",
        decision=decision,
        mesh_terms=record.texts("MESHES"),
        year=None if year is None else int(year),
    )
