"""Reader of FLIP's secondary structure: three FASTA files. Its tables are ``own_tables``."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from raybio.core.arrays import ZIP_ERRORS
from raybio.core.errors import DataError, one_line
from raybio.methods.sppt.downstream.formats.example import (
    SS3,
    UNKNOWN,
    Example,
    TaskFiles,
    existing,
)
from raybio.methods.sppt.downstream.formats.fasta_text import parse_fasta
from raybio.store.sources import read_lines, read_whole

SEQUENCES = "sequences.fasta"
LABELS = "sampled.fasta"
MASKS = "mask.fasta"


def read_flip_structure(name: str, source: Path) -> TaskFiles | None:
    """Return the examples of FLIP's secondary structure: a folder, or the ``splits.zip`` of it.

    Returns:
        None for another task, or if the files are missing.

    Raises:
        DataError: for a zip that is damaged or incomplete.
    """
    if name != "secondary_structure":
        return None
    names = (SEQUENCES, LABELS, MASKS)
    if source.is_file() and zipfile.is_zipfile(source):
        return TaskFiles([source], _structure_examples(_read_zip(source, names)))
    files = []
    text_by_name = {}
    for file_name in names:
        path = existing(source / file_name)
        if path is None:
            return None
        files.append(path)
        text_by_name[file_name] = "".join(read_lines(path, "FASTA"))
    return TaskFiles(files, _structure_examples(text_by_name))


def _read_zip(source: Path, names: tuple[str, ...]) -> dict[str, str]:
    try:
        with zipfile.ZipFile(source) as archive:
            member_by_name = {Path(member).name: member for member in archive.namelist()}
            if not set(names) <= member_by_name.keys():
                raise DataError(f"{source}: has not all of {', '.join(names)}")
            text_by_name = {}
            for name in names:
                with archive.open(member_by_name[name]) as member:
                    text_by_name[name] = read_whole(member, f"{source}, {name}").decode()
            return text_by_name
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({one_line(error)})") from None
    except ZIP_ERRORS as error:
        raise DataError(
            f"{source}: is a damaged zip ({one_line(error)}); want FLIP's splits.zip as it was made"
        ) from None


def _structure_examples(text_by_name: dict[str, str]) -> Iterator[Example]:
    sequence_by_id = _by_id(parse_fasta(text_by_name[SEQUENCES]))
    mask_by_id = _by_id(parse_fasta(text_by_name[MASKS]))
    records = parse_fasta(text_by_name[LABELS])
    for number, (header, labels) in enumerate(records.items(), start=1):
        if not header:
            raise DataError(
                f"{LABELS}: record {number} has no header, want an id and SET=train or SET=test"
            )
        key, *fields = header.split()
        sequence = sequence_by_id.get(key, "")
        mask = mask_by_id.get(key, "")
        if len(mask) != len(labels):
            raise DataError(
                f"{MASKS}: {key} has {len(mask)} marks, and {LABELS} {len(labels)} labels"
            )
        states = [
            SS3.get(label, UNKNOWN) if mark == "1" else ""
            for label, mark in zip(labels, mask, strict=True)
        ]
        yield Example(sequence.upper(), _split(fields), states, LABELS, number)


def _split(fields: list[str]) -> str:
    """Return the split of a header's fields, such as ``SET=train VALIDATION=False``."""
    value_by_name = dict(field.split("=", 1) for field in fields if "=" in field)
    if value_by_name.get("SET") == "test":
        return "test"
    return "dev" if value_by_name.get("VALIDATION") == "True" else "train"


def _by_id(content_by_header: dict[str, str]) -> dict[str, str]:
    return {
        header.split()[0]: content
        for header, content in content_by_header.items()
        if header.split()
    }
