"""BioASQ task b: biomedical questions with the snippets and the answers that experts gave them.

Files are golden batches such as ``7B1_golden.json`` or a training file of the same form: an object whose "questions"
each have id, body, type, snippets, ideal_answer and, save for summaries, exact_answer.

The Hallmarks of Cancer corpus (Baker et al., 2016): abstracts whose sentences are labelled with what cancers do.

An archive (.tar.gz) holds ``text/<PMID>.txt``, one sentence a line, and ``labels/<PMID>.txt``, where ``<`` opens each
sentence's labels, "AND" joins several, and "--" joins the levels of one: "Resisting cell death--Apoptosis". A level
that is left empty at the end means the class above it. The taxonomy has 37 classes: 10 hallmarks and 27 below them.

PubMedQA (Jin et al., 2019): questions that are titles of articles, each with its abstract, cut at the conclusion.

The conclusion is the long answer; the rest of the abstract, in sections, are the contexts. ``ori_pqal.json`` holds the
1,000 questions labelled by experts; the unlabelled and the artificial set have the same form with fewer fields.
"""

import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from raybio.core.errors import DataError
from raybio.store.json import Record, read_json_object
from raybio.store.sources import read_lines

QUESTION_TYPES = ("yesno", "factoid", "list", "summary")


@dataclass(frozen=True)
class Snippet:
    """A passage of an article; ``document`` is the article's address."""

    text: str
    document: str


@dataclass(frozen=True)
class BioasqQuestion:
    """One question.

    Attributes:
        id: BioASQ's own.
        body: the question.
        type: what kind of answer it wants.
        snippets: passages that answer it, as often as they are listed.
        ideal_answers: answers in prose, at least one.
        is_yes: the answer of a yes/no question, None for others.
        exact_answers: the entities of a factoid or list question, each with its synonyms; empty for others.
    """

    id: str
    body: str
    type: Literal["yesno", "factoid", "list", "summary"]
    snippets: tuple[Snippet, ...]
    ideal_answers: tuple[str, ...]
    is_yes: bool | None
    exact_answers: tuple[tuple[str, ...], ...]


def read_bioasq(paths: Path | Iterable[Path]) -> tuple[BioasqQuestion, ...]:
    """Read batches, in order of file (those of a folder: ``*.json`` and ``*.json.gz``, by name) and of question.

    Raises:
        DataError: for a folder without batches, a file that cannot be read, a record that is not of the form, or a
            question that comes twice.
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
                    f"{path}, record {question.id}: this question was read before; name each batch once"
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
    ideal = record.fields.get("ideal_answer")
    answers = (
        (record.text("ideal_answer"),) if isinstance(ideal, str) else record.texts("ideal_answer")
    )
    if not answers:
        raise record.wrong("ideal_answer", "at least one text that is not blank")
    return BioasqQuestion(
        id=record.name,
        body=record.text("body"),
        type=kind,
        snippets=_snippets(record),
        ideal_answers=answers,
        is_yes=_is_yes(record) if kind == "yesno" else None,
        exact_answers=_entities(record) if kind in ("factoid", "list") else (),
    )


def _snippets(record: Record) -> tuple[Snippet, ...]:
    listed = record.fields.get("snippets", [])
    if not isinstance(listed, list):
        raise record.wrong("snippets", "a list")
    parts = [
        Record.of(record.path, f"{record.name}, snippet {number}", one)
        for number, one in enumerate(listed, 1)
    ]
    return tuple(Snippet(part.text("text"), part.text("document")) for part in parts)


def _is_yes(record: Record) -> bool:
    """Editions write "yes", "Yes" or ["yes"]."""
    value = record.fields.get("exact_answer")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    word = str(value).strip().lower()
    if word not in ("yes", "no"):
        raise record.wrong("exact_answer", "yes or no")
    return word == "yes"


def _entities(record: Record) -> tuple[tuple[str, ...], ...]:
    """Editions write [["name", "synonym"], ...], ["name", ...] or "name"."""
    value = record.fields.get("exact_answer")
    listed = value if isinstance(value, list) else [value]
    synonyms: list[list[Any]] = [one if isinstance(one, list) else [one] for one in listed]
    if not synonyms or not all(isinstance(name, str) for names in synonyms for name in names):
        raise record.wrong("exact_answer", "a list of lists of names")
    return tuple(tuple(name.strip() for name in names) for names in synonyms)


_SUBCLASSES: dict[str, tuple[str, ...]] = {
    "Sustaining proliferative signaling": (
        "Cell cycle",
        "Growth factors growth promoting signals",
        "Growth factors growth promoting signals--Downstream signaling",
        "Receptors",
    ),
    "Evading growth suppressors": (
        "By deregulating cell cycle checkpoints",
        "By deregulating cell cycle checkpoints--Cell cycle",
        "By evading contact inhibition",
    ),
    "Resisting cell death": ("Apoptosis", "Autophagy", "Necrosis"),
    "Enabling replicative immortality": ("Immortalization", "Senescence"),
    "Inducing angiogenesis": (
        "By deregulating angiogenesis",
        "By deregulating angiogenesis--Angiogenic factors",
    ),
    "Activating invasion and metastasis": ("Invasion", "Metastasis"),
    "Genomic instability and mutation": (
        "DNA damage",
        "DNA damage--Adducts",
        "DNA damage--Strand breaks",
        "DNA repair mechanisms",
        "Mutation",
    ),
    "Tumor promoting inflammation": (
        "Immune response",
        "Inflammation",
        "Inflammation--Oxidative stress",
    ),
    "Cellular energetics": ("Glycolysis/Warburg effect",),
    "Avoiding immune destruction": ("Immune response", "Immunosuppression"),
}


ClassPath = tuple[str, ...]


HALLMARKS: tuple[str, ...] = tuple(_SUBCLASSES)
"""The 10 top classes, in the order of Hanahan and Weinberg (2011)."""


TAXONOMY: tuple[ClassPath, ...] = tuple(
    path
    for name, below in _SUBCLASSES.items()
    for path in [(name,), *((name, *subclass.split("--")) for subclass in below)]
)
"""All 37 classes by their path from the hallmark down, each hallmark before its subclasses."""


_KNOWN = frozenset(TAXONOMY)


@dataclass(frozen=True)
class HallmarkDocument:
    """One abstract.

    Attributes:
        pmid: its PubMed id.
        sentences: as in the file, tokenised.
        labels: the classes that each sentence was given, most often none.
    """

    pmid: str
    sentences: tuple[str, ...]
    labels: tuple[tuple[ClassPath, ...], ...]

    @property
    def text(self) -> str:
        """The abstract in one text."""
        return " ".join(self.sentences)

    @cached_property
    def classes(self) -> frozenset[ClassPath]:
        """What any sentence was labelled with, and every class above those."""
        given = {path for labels in self.labels for path in labels}
        return frozenset(path[:depth] for path in given for depth in range(1, len(path) + 1))

    @property
    def hallmarks(self) -> frozenset[str]:
        """Those of the 10 hallmarks that any sentence belongs to."""
        return frozenset(path[0] for path in self.classes)


def read_hallmarks(path: Path) -> tuple[HallmarkDocument, ...]:
    """Read the archive, nothing of which is unpacked to disk; documents in order of PMID as text.

    Raises:
        DataError: for an archive that cannot be read, a document without labels or the reverse, as many labels as
            sentences missing, or a class that the taxonomy does not have.
    """
    path = Path(path)
    content = _members(path)
    texts, labels = content["text"], content["labels"]
    if not texts:
        raise DataError(
            f"{path}: holds no text/<PMID>.txt, want the folders text/ and labels/ of the corpus"
        )
    for there, here, name in ((texts, labels, "labels"), (labels, texts, "text")):
        alone = sorted(there.keys() - here.keys())
        if alone:
            raise DataError(
                f"{path}: {alone[0]} and {len(alone) - 1} more have no {name}/<PMID>.txt. Repack both folders."
            )
    return tuple(_document(path, pmid, texts[pmid], labels[pmid]) for pmid in sorted(texts))


def read_pmids(path: Path) -> frozenset[str]:
    """A list of articles, such as a test split: one PMID a line; empty lines do not count.

    Raises:
        DataError: if the file cannot be read, names nothing, or has a line that is no PMID.
    """
    path = Path(path)
    pmids = set()
    for number, line in enumerate(read_lines(path, "a text file with one PMID a line"), start=1):
        pmid = line.strip()
        if pmid and not (pmid.isascii() and pmid.isdigit()):
            raise DataError(
                f"{path}, line {number}: {pmid[:40]!r} is no PMID, want digits alone. Repair the line."
            )
        if pmid:
            pmids.add(pmid)
    if not pmids:
        raise DataError(f"{path}: names no article, want one PMID a line")
    return frozenset(pmids)


def _members(path: Path) -> dict[str, dict[str, str]]:
    content: dict[str, dict[str, str]] = {"text": {}, "labels": {}}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                folder = folder.rpartition("/")[2]
                file = (
                    archive.extractfile(member)
                    if folder in content and name.endswith(".txt")
                    else None
                )
                if file is not None:
                    content[folder][name.removesuffix(".txt")] = file.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, {member.name}: is not UTF-8 ({error}). Fetch the file again."
        ) from None
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: the archive is torn or damaged ({error}). Fetch the file again."
        ) from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}), want a .tar.gz archive"
        ) from None
    return content


def _document(path: Path, pmid: str, text: str, label_line: str) -> HallmarkDocument:
    sentences = tuple(line.strip() for line in text.strip().split("\n"))
    before, *pieces = label_line.split("<")
    if before.strip() or len(pieces) != len(sentences):
        raise DataError(
            f"{path}, labels/{pmid}.txt: {len(pieces)} pieces that begin with '<', want one for each of the "
            f"{len(sentences)} sentences of text/{pmid}.txt"
        )
    where = f"{path}, labels/{pmid}.txt, sentence"
    labels = tuple(
        tuple(_classes(piece, f"{where} {number}")) for number, piece in enumerate(pieces, start=1)
    )
    return HallmarkDocument(pmid, sentences, labels)


def _classes(piece: str, where: str) -> Iterable[ClassPath]:
    for label in piece.split("AND"):
        levels = tuple(level.strip() for level in label.split("--"))
        known = levels[:-1] if len(levels) > 1 and not levels[-1] else levels
        if known in _KNOWN:
            yield known
        elif label.strip() not in ("", "NULL"):
            raise DataError(
                f"{where}: class {label.strip()!r} is none of the taxonomy's 37, such as {'--'.join(TAXONOMY[1])!r}"
            )


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
    return tuple(
        _pubmedqa_question(Record.of(path, pmid, value)) for pmid, value in records.items()
    )


def _pubmedqa_question(record: Record) -> PubMedQuestion:
    contexts, sections = record.texts("CONTEXTS"), record.texts("LABELS")
    if not (
        record.name.isascii() and record.name.isdigit() and len(record.name) <= MOST_PMID_DIGITS
    ):
        raise DataError(
            f"{record.path}, record {record.name[:40]!r}: its name is no PMID. Repair the record."
        )
    if not contexts:
        raise record.wrong("CONTEXTS", "at least one text that is not blank")
    if sections and len(sections) != len(contexts):
        raise record.wrong("LABELS", f"one name for each of the {len(contexts)} contexts")
    decision = record.fields.get("final_decision")
    if decision is not None and decision not in DECISIONS:
        raise record.wrong("final_decision", f"one of {', '.join(DECISIONS)}")
    year = record.fields.get("YEAR")
    if year is not None and not (
        isinstance(year, str | int) and str(year).isdecimal() and len(str(year)) == 4
    ):
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
