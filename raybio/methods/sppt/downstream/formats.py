"""The files of downstream tasks, a reader a layout: TAPE's, FLIP's, SciBERT's and others.

``read_task_files`` looks at what is there: a folder, or one file.
"""

import csv
import json
import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raybio.core.errors import DataError
from raybio.methods.sppt.downstream.config import TASKS
from raybio.methods.sppt.downstream.store import SPLITS
from raybio.methods.sppt.downstream.tape_lmdb import lmdb_records
from raybio.methods.sppt.downstream.tasks import UNKNOWN, Example
from raybio.store.json import stream_records
from raybio.store.sources import MAX_LINE_LENGTH, open_source, plain_or_gzip, read_lines

TAPE_KEYS = {
    "remote_homology": "fold_label",
    "secondary_structure": "ss3",
    "stability": "stability_score",
    "fluorescence": "log_fluorescence",
}


TAPE_SPLITS = {
    "train": ("train",),
    "dev": ("valid",),
    "test": ("test", "test_fold_holdout", "cb513"),
}


SCIBERT_SPLITS = {"train": "train.txt", "dev": "dev.txt", "test": "test.txt"}


SS3 = {0: "H", 1: "E", 2: "C"} | {letter: letter for letter in "HEC"}
"""TAPE's numbers of the three states, and the states themselves."""


GFP = (
    "SKGEELFTGVVPILVELDGDVNGHKFSVSGEGEGDATYGKLTLKFICTTGKLPVPWPTLVTTLSYGVQCFSRYPDHMKQHDFFKSAMPEGYVQERTIFFKDDGNYKTRAEVKFEGD"
    "TLVNRIELKGIDFKEDGNILGHKLEYNYNSHNVYIMADKQKNGIKVNFKIRHNIEDGSVQLADHYQQNTPIGDGPVLLPDNHYLSTQSALSKDPNEKRDHMVLLEFVTAAGITHGM"
    "DELYK"
)
"""Wild type of Sarkisyan et al., 2016, without the first methionine; places of mutations count from 0."""


GFP_TRAINING_MUTATIONS = 3
"""TAPE trains on variants with at most so many mutations and tests on the others."""


class TaskFiles(NamedTuple):
    """The files of a task, and what reads them."""

    files: list[Path]
    examples: Iterator[Example]


def read_task_files(name: str, source: Path) -> TaskFiles:
    """What a folder or file holds of a task.

    Args:
        name: one of ``TASKS``.
        source: a folder with TAPE's files (``*_train.lmdb`` or ``*_train.json``, ...), with SciBERT's ``train.txt``,
            ``dev.txt`` and ``test.txt``, or with FLIP's three FASTA files of secondary structure (a zip of it too);
            or a file: FLIP's CSV (``sequence, target, set, validation``), the table of GFP's genotypes, or a FASTA file
            whose headers have SCOP's classes. All but LMDB and the zip may be gzip.

    Raises:
        DataError: if it is not there, or holds no layout of the task; later, from the examples, what is damaged.
    """
    source = Path(source)
    if not source.exists():
        raise DataError(f"{source}: does not exist, want the files of {name}")
    layouts: list[Callable[[str, Path], TaskFiles | None]] = (
        [_scibert] if TASKS[name].on_texts else [_tape, _flip, _one]
    )
    for layout in layouts:
        if (found := layout(name, source)) is not None:
            return found
    wanted = (
        "train.txt, dev.txt and test.txt"
        if TASKS[name].on_texts
        else "TAPE's LMDB or JSON, or FLIP's files"
    )
    raise DataError(
        f"{source}: holds no layout of {name} that we know; want {wanted} (docs/methods/sppt.md)"
    )


def _scibert(name: str, source: Path) -> TaskFiles | None:
    paths = {split: _there(source / file) for split, file in SCIBERT_SPLITS.items()}
    present = {split: path for split, path in paths.items() if path is not None}
    return TaskFiles(list(present.values()), _scibert_examples(present)) if present else None


def _scibert_examples(paths: dict[str, Path]) -> Iterator[Example]:
    for split, path in paths.items():
        for number, line in enumerate(read_lines(path, "a JSON object a line"), start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                text, label = record["text"], record["label"]
            except (ValueError, KeyError, TypeError):
                raise DataError(
                    f"{path}, line {number}: want an object with text and label"
                ) from None
            if (text, label) != (
                "tokens",
                "category",
            ):  # the header of a table that SciBERT's field set was made of
                yield Example(str(text), split, str(label), path.name, number)


def _tape(name: str, source: Path) -> TaskFiles | None:
    found: dict[str, Path] = {}
    for split, endings in TAPE_SPLITS.items():
        for ending in endings:
            there = [_there(source / f"{name}_{ending}.{kind}") for kind in ("lmdb", "json")]
            paths = [path for path in there if path is not None]
            if len(paths) > 1:
                names = " and ".join(path.name for path in paths)
                raise DataError(f"{source}: has {names}; want one of them, since they may differ")
            if paths:
                found[split] = paths[0]
    return (
        TaskFiles([_file(path) for path in found.values()], _tape_examples(name, found))
        if found
        else None
    )


def _tape_examples(name: str, paths: dict[str, Path]) -> Iterator[Example]:
    key, labels = TAPE_KEYS[name], TASKS[name].labels
    for split, path in paths.items():
        records = (
            lmdb_records(path)
            if path.suffix == ".lmdb"
            else (record for _, record in stream_records(path))
        )
        for number, record in enumerate(records, start=1):
            with _told(
                path, f"record {number}", f"an object with primary and {key}, such as TAPE's"
            ):
                sequence, value = record["primary"], record[key]
                if labels == "residues":
                    label: object = [SS3.get(one, UNKNOWN) for one in value]
                elif labels == "number":
                    label = float(np.ravel(value)[0])
                else:
                    label = str(value)
            yield Example(str(sequence).upper(), split, label, path.name, number)  # type: ignore[arg-type]


def _file(path: Path) -> Path:
    """What holds the records of an LMDB folder."""
    return path / "data.mdb" if path.is_dir() else path


def _flip(name: str, source: Path) -> TaskFiles | None:
    """FLIP's secondary structure: ``sequences.fasta``, ``sampled.fasta`` (labels) and ``mask.fasta``."""
    if name != "secondary_structure":
        return None
    names = ("sequences.fasta", "sampled.fasta", "mask.fasta")
    if source.is_file() and zipfile.is_zipfile(source):
        try:
            with zipfile.ZipFile(source) as archive:
                members = {Path(member).name: member for member in archive.namelist()}
                if not set(names) <= members.keys():
                    raise DataError(f"{source}: has not all of {', '.join(names)}")
                texts = {one: archive.read(members[one]).decode() for one in names}
        except (zipfile.BadZipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
            raise DataError(
                f"{source}: is a damaged zip ({error}); want FLIP's splits.zip as it was made"
            ) from None
        return TaskFiles([source], _flip_examples(texts))
    paths = {one: _there(source / one) for one in names}
    if None in paths.values():
        return None
    texts = {
        one: "".join(read_lines(path, "FASTA")) for one, path in paths.items() if path is not None
    }
    return TaskFiles([path for path in paths.values() if path is not None], _flip_examples(texts))


def _flip_examples(texts: dict[str, str]) -> Iterator[Example]:
    sequences, masks = (_by_id(_fasta(texts[one])) for one in ("sequences.fasta", "mask.fasta"))
    for number, (header, labels) in enumerate(_fasta(texts["sampled.fasta"]).items(), start=1):
        if not header:
            raise DataError(
                f"sampled.fasta: record {number} has no header, want an id and SET=train or SET=test"
            )
        key, *facts = header.split()
        told = dict(fact.split("=", 1) for fact in facts if "=" in fact)
        split = (
            "test"
            if told.get("SET") == "test"
            else "dev"
            if told.get("VALIDATION") == "True"
            else "train"
        )
        sequence, mask = sequences.get(key, ""), masks.get(key, "")
        if len(mask) != len(labels):
            raise DataError(
                f"mask.fasta: {key} has {len(mask)} marks, and sampled.fasta {len(labels)} labels"
            )
        known = [
            SS3.get(label, UNKNOWN) if mark == "1" else ""
            for label, mark in zip(labels, mask, strict=True)
        ]
        yield Example(sequence.upper(), split, known, "sampled.fasta", number)


def _one(name: str, source: Path) -> TaskFiles | None:
    if not source.is_file():
        return None
    with open_source(source, "a table or FASTA") as file:
        first = file.readline(MAX_LINE_LENGTH).decode(errors="replace")
    if not first.strip():
        raise DataError(
            f"{source}: is empty, or begins with an empty line; want the files of {name}"
        )
    if first.startswith(">") and name == "remote_homology":
        return TaskFiles([source], _scop_examples(source))
    columns = {column.strip() for column in first.replace("\t", ",").split(",")}
    if {"sequence", "target", "set"} <= columns:
        return TaskFiles([source], _csv_examples(name, source))
    if {"aaMutations", "medianBrightness"} <= columns and name == "fluorescence":
        return TaskFiles([source], _gfp_examples(source))
    return None


def _csv_examples(name: str, path: Path) -> Iterator[Example]:
    """FLIP's tables: ``sequence, target, set, validation``."""
    is_number = TASKS[name].labels == "number"
    for number, row in _table(path, "FLIP's CSV"):
        with _told(
            path,
            f"line {number}",
            "sequence, target (a number, if the task has one), set (train or test)",
        ):
            split = "dev" if row.get("validation") == "True" else row["set"]
            label = float(row["target"]) if is_number else row["target"]
            if split not in SPLITS:
                raise ValueError(f"set is {split!r}")
        yield Example(row["sequence"].upper(), split, label, path.name, number)


def _gfp_examples(path: Path) -> Iterator[Example]:
    """Genotypes such as ``SA108D:SK3R``."""
    for number, row in _table(path, "a table of genotypes"):
        residues, mutations = list(GFP), [one for one in row["aaMutations"].split(":") if one]
        with _told(
            path,
            f"line {number}",
            "mutations such as SA108D, places counted from 0, and a brightness",
        ):
            for mutation in mutations:
                old, place, new = mutation[1], int(mutation[2:-1]), mutation[-1]
                if GFP[place] != old:
                    raise ValueError(f"{mutation}, where the wild type has {GFP[place]}")
                residues[place] = new
            brightness = float(row["medianBrightness"])
        split = "train" if len(mutations) <= GFP_TRAINING_MUTATIONS else "test"
        yield Example("".join(residues), split, brightness, path.name, number)


def _scop_examples(path: Path) -> Iterator[Example]:
    """Domains with headers such as ``d1dlya_ a.1.1.1``; of each fold its last superfamily is test, the one before dev.

    So a fold is told by relatives too remote to be of its superfamily. Folds of one superfamily are training alone.
    """
    rows = []
    for number, (header, sequence) in enumerate(
        _fasta("".join(read_lines(path, "FASTA"))).items(), start=1
    ):
        with _told(
            path,
            f"record {number}",
            "a header with an id and SCOP's class, such as d1dlya_ a.1.1.1",
        ):
            rows.append((header.split()[1], sequence))
    superfamilies: dict[str, set[str]] = defaultdict(set)
    for scop, _ in rows:
        superfamilies[_first(scop, 2)].add(_first(scop, 3))
    split_of = {}
    for found in superfamilies.values():
        ordered = sorted(found, key=_numbers_first)
        for place, one in enumerate(reversed(ordered)):
            is_left = place < len(ordered) - 1
            split_of[one] = (
                "test" if place == 0 and is_left else "dev" if place == 1 and is_left else "train"
            )
    for number, (scop, sequence) in enumerate(rows, start=1):
        yield Example(
            sequence.upper(), split_of[_first(scop, 3)], _first(scop, 2), path.name, number
        )


def _numbers_first(scop: str) -> list[tuple[bool, int, str]]:
    return [
        (not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in scop.split(".")
    ]


def _first(scop: str, fields: int) -> str:
    return ".".join(scop.split(".")[:fields])


@contextmanager
def _told(path: Path, place: str, wanted: str) -> Iterator[None]:
    """What goes wrong with one record becomes an error that names it."""
    try:
        yield
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise DataError(f"{path}, {place}: cannot be read ({error}), want {wanted}") from None


def _table(path: Path, wanted: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Line and fields, by their names, of a table whose first line names them; commas or tabs."""
    lines = list(read_lines(path, wanted))
    rows = csv.reader(lines, delimiter="\t" if "\t" in lines[0] else ",")
    names = [name.strip() for name in next(rows)]
    for row in rows:
        if row:
            if len(row) != len(names):
                raise DataError(
                    f"{path}, line {rows.line_num}: has {len(row)} columns, want {len(names)}, as the header"
                )
            yield rows.line_num, dict(zip(names, (field.strip() for field in row), strict=True))


def _fasta(text: str) -> dict[str, str]:
    """Header -> everything below it; FASTA of labels and marks is no FASTA of residues.

    Raises:
        DataError: if two records have one header.
    """
    records = [
        record.split("\n", 1)
        for record in re.split("^>", text.replace("\r", ""), flags=re.MULTILINE)[1:]
    ]
    found: dict[str, str] = {}
    for number, (header, *rest) in enumerate(records, start=1):
        if header.strip() in found:
            raise DataError(
                f"FASTA, record {number}: header {header.strip()!r} is there twice, want each once"
            )
        found[header.strip()] = "".join(rest).replace("\n", "").strip()
    return found


def _by_id(records: dict[str, str]) -> dict[str, str]:
    return {header.split()[0]: value for header, value in records.items() if header.split()}


def _there(path: Path) -> Path | None:
    found = plain_or_gzip(path)
    return found if _file(found).is_file() else None
