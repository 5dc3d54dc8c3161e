"""BioASQ task b: biomedical questions with snippets and answers by experts.

Files are golden batches such as ``7B1_golden.json``, or a training file of the same form: an object
whose "questions" have id, body, type, snippets, ideal_answer and, except for summaries,
exact_answer. Of exact answers only those of yes/no questions are read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from raybio.core.errors import DataError
from raybio.store.json import Record, read_json_object

QUESTION_TYPES = ("yesno", "factoid", "list", "summary")


@dataclass(frozen=True)
class Snippet:
    """A passage of an article; ``document`` is the article's URL."""

    text: str
    document: str


@dataclass(frozen=True)
class BioasqQuestion:
    """One question.

    Attributes:
        id: id in BioASQ.
        body: the question.
        type: kind of answer.
        snippets: passages that answer it, repetitions included.
        ideal_answers: answers in prose, at least one.
        is_yes: answer of a yes/no question, None for others.
    """

    id: str
    body: str
    type: Literal["yesno", "factoid", "list", "summary"]
    snippets: tuple[Snippet, ...]
    ideal_answers: tuple[str, ...]
    is_yes: bool | None


def read_bioasq(paths: Path | Iterable[Path]) -> tuple[BioasqQuestion, ...]:
    """Return the questions of batches, in order of file and question.

    Args:
        paths: files, or one folder with ``*.json`` and ``*.json.gz``, which are read by name.

    Raises:
        DataError: for a folder without batches, a file that cannot be read, an invalid record, or a
            question that occurs twice.
    """
    questions: dict[str, BioasqQuestion] = {}
    for path in _files(paths):
        listed = read_json_object(path).get("questions")
        if not isinstance(listed, list):
            raise DataError(
                f'{path}: has no list of "questions"; want a BioASQ batch such as 7B1_golden.json'
            )
        for number, value in enumerate(listed, start=1):
            question = _bioasq_question(Record.of(path, f"number {number}", value))
            if question.id in questions:
                raise DataError(
                    f"{path}, record {question.id}: this question was read before; name each batch "
                    "once"
                )
            questions[question.id] = question
    return tuple(questions.values())


def _files(paths: Path | Iterable[Path]) -> list[Path]:
    if not isinstance(paths, str | Path):
        return [Path(path) for path in paths]
    if not Path(paths).is_dir():
        return [Path(paths)]
    files = sorted([*Path(paths).glob("*.json"), *Path(paths).glob("*.json.gz")])
    if not files:
        raise DataError(
            f"{paths}: holds no *.json or *.json.gz, want BioASQ batches such as 7B1_golden.json"
        )
    return files


def _bioasq_question(numbered: Record) -> BioasqQuestion:
    record = Record(numbered.path, numbered.text("id"), numbered.fields)
    kind: Any = record.fields.get("type")
    if kind not in QUESTION_TYPES:
        raise record.wrong("type", f"one of {', '.join(QUESTION_TYPES)}")
    answers: tuple[str, ...]
    if isinstance(record.fields.get("ideal_answer"), str):
        answers = (record.text("ideal_answer"),)
    else:
        answers = tuple(record.texts("ideal_answer"))
    if not answers:
        raise record.wrong("ideal_answer", "at least one text that is not blank")
    return BioasqQuestion(
        id=record.name,
        body=record.text("body"),
        type=kind,
        snippets=_snippets(record),
        ideal_answers=answers,
        is_yes=_is_yes(record) if kind == "yesno" else None,
    )


def _snippets(record: Record) -> tuple[Snippet, ...]:
    listed = record.fields.get("snippets", [])
    if not isinstance(listed, list):
        raise record.wrong("snippets", "a list")
    snippets = []
    for number, value in enumerate(listed, start=1):
        snippet = Record.of(record.path, f"{record.name}, snippet {number}", value)
        snippets.append(Snippet(snippet.text("text"), snippet.text("document")))
    return tuple(snippets)


def _is_yes(record: Record) -> bool:
    """Return a yes/no answer. Editions write "yes", "Yes" or ["yes"]."""
    value = record.fields.get("exact_answer")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    word = str(value).strip().lower()
    if word not in ("yes", "no"):
        raise record.wrong("exact_answer", "yes or no")
    return word == "yes"
