"""Reader of protein domains with SCOP classes, for remote homology."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from raybio.methods.sppt.downstream.formats.example import Example, named_errors
from raybio.methods.sppt.downstream.formats.fasta_text import parse_fasta
from raybio.store.sources import read_lines

FOLD_FIELDS = 2
SUPERFAMILY_FIELDS = 3


def read_scop_domains(path: Path) -> Iterator[Example]:
    """Yield the domains of a FASTA file with headers such as ``d1dlya_ a.1.1.1``.

    The label is the fold. The last superfamily of each fold is test and the one before it dev, so
    that dev and test contain only remote homologs of training domains. A fold with one superfamily
    is training only.
    """
    wanted = "a header with an id and SCOP's class, such as d1dlya_ a.1.1.1"
    domains = []
    records = parse_fasta("".join(read_lines(path, "FASTA")))
    for number, (header, sequence) in enumerate(records.items(), start=1):
        with named_errors(path, f"record {number}", wanted):
            domains.append((header.split()[1], sequence))
    split_by_superfamily = _split_superfamilies({scop for scop, _ in domains})
    for number, (scop, sequence) in enumerate(domains, start=1):
        split = split_by_superfamily[_prefix(scop, SUPERFAMILY_FIELDS)]
        fold = _prefix(scop, FOLD_FIELDS)
        yield Example(sequence.upper(), split, fold, path.name, number)


def _split_superfamilies(classes: set[str]) -> dict[str, str]:
    superfamilies_by_fold: dict[str, set[str]] = defaultdict(set)
    for scop in classes:
        superfamily = _prefix(scop, SUPERFAMILY_FIELDS)
        superfamilies_by_fold[_prefix(scop, FOLD_FIELDS)].add(superfamily)
    split_by_superfamily = {}
    for superfamilies in superfamilies_by_fold.values():
        first, *others = sorted(superfamilies, key=_sort_key)
        split_by_superfamily[first] = "train"  # each fold keeps a training superfamily
        for superfamily in others:
            split_by_superfamily[superfamily] = "train"
        if others:
            split_by_superfamily[others[-1]] = "test"
        if len(others) > 1:
            split_by_superfamily[others[-2]] = "dev"
    return split_by_superfamily


def _sort_key(scop: str) -> list[tuple[bool, int, str]]:
    """Sort numeric fields as numbers, before other fields."""
    # By length and digits: Python refuses integers of thousands of digits.
    return [(not part.isdigit(), len(part), part) for part in scop.split(".")]


def _prefix(scop: str, num_fields: int) -> str:
    return ".".join(scop.split(".")[:num_fields])
