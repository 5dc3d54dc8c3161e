"""The form of ids in a store, chosen so that the ids of links and of proteins agree.

    sp|P04637|P53_HUMAN     first word of a FASTA header, as UniProt writes it
    P04637                  accession
    P53_HUMAN               entry name

The form is the one in which most sampled ids of links are ids of proteins; ties go to the first of
``FORMS``. It is used for links and proteins; other ids stay as they are.

Shape letters: N ids.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raybio.methods.sppt.ids import find_ids

Form = Literal["first word", "accession", "entry name"]

FORMS: tuple[Form, ...] = ("first word", "accession", "entry name")

UNIPROT = r"^(?:sp|tr)\|([^|]+)\|([^|]+)$"
"""UniProt's first words: Swiss-Prot or TrEMBL, accession, entry name."""

_GROUP_BY_FORM = {"accession": r"\1", "entry name": r"\2"}

VERSION = r"^(.*[^.])\.[0-9]+$"
"""An id with a version, such as ENSP00000269305.9 or NP_000537.3."""

ISOFORM = r"^([OPQ][0-9][A-Z0-9]{3}[0-9]|[A-NR-Z][0-9](?:[A-Z][A-Z0-9]{2}[0-9]){1,2})-[0-9]+$"
"""UniProt's id of an isoform, such as Q12329-2: the accession, and a number."""

QUOTED_ID = r"(['\"]).+\1"

SEPARATORS = ".:|_-"
"""Characters after which a prefix may end."""

STRIP_VERSION = "--strip-version"

MIN_SHARE_OF_REMEDY = 0.1
"""Minimum share of the ids that an advice must make match; fewer may match by chance."""


@dataclass(frozen=True)
class IdRule:
    """The form of ids, and what is removed from them.

    Attributes:
        form: the part of UniProt's first words that is the id.
        strip_prefixes: texts that are removed from the beginning of ids, after ``form``.
        strip_version: remove a dot and a number at the end of ids, after the prefix.
    """

    form: Form = "first word"
    strip_prefixes: tuple[str, ...] = ()
    strip_version: bool = False

    def __call__(self, ids: pa.Array) -> pa.Array:
        """Return the ids of the store for ids of a file (N,); none becomes empty."""
        if self.form in _GROUP_BY_FORM:
            ids = pc.replace_substring_regex(ids, UNIPROT, _GROUP_BY_FORM[self.form])
        if self.strip_prefixes:
            # Of several that fit, the longest is removed.
            longest_first = sorted(self.strip_prefixes, key=len, reverse=True)
            prefixes = "|".join(re.escape(prefix) for prefix in longest_first)
            ids = pc.replace_substring_regex(ids, f"^(?:{prefixes})(.+)$", r"\1")
        if self.strip_version:
            ids = pc.replace_substring_regex(ids, VERSION, r"\1")
        return ids


class FormChoice(NamedTuple):
    """The rule with the chosen form, and the reason.

    Attributes:
        rule: the rule with the form that fits best.
        num_found: number of sampled ids of the links that are proteins, by form; empty where no id
            is UniProt's.
        num_sampled: number of sampled ids.
    """

    rule: IdRule
    num_found: dict[Form, int]
    num_sampled: int

    def __str__(self) -> str:
        """Return the form and the numbers, for the table of a store."""
        counts = ", ".join(f"{form}: {num:,}" for form, num in self.num_found.items())
        return (
            f"ids: {self.rule.form} of UniProt's headers (of {self.num_sampled:,} ids of the links "
            f"are proteins by {counts})"
        )


def choose_form(ids: pa.Array, proteins: pa.Array, rule: IdRule) -> FormChoice:
    """Choose the form of ids by a sample of the links.

    Args:
        ids: distinct ids of the sample.
        proteins: first words of all proteins.
        rule: what is removed from ids; its form is replaced.
    """
    num_found: dict[Form, int] = {}
    if not (_has_uniprot(ids) or _has_uniprot(proteins)):
        return FormChoice(rule, num_found, len(ids))
    for form in FORMS:
        candidate = replace(rule, form=form)
        num_found[form] = int((find_ids(candidate(ids), candidate(proteins)) >= 0).sum())
    best = max(FORMS, key=lambda form: num_found[form])
    return FormChoice(replace(rule, form=best), num_found, len(ids))


def _has_uniprot(ids: pa.Array) -> bool:
    return bool(pc.any(pc.match_substring_regex(ids, UNIPROT)).as_py())


def advise(unknown: Sequence[str], proteins: Sequence[str], stripped: Sequence[str] = ()) -> str:
    """Return an example id of each side, and what would make ids of links match proteins.

    Args:
        unknown: ids of links that are not among the proteins.
        proteins: ids of the proteins.
        stripped: prefixes that are removed from both already.

    Returns:
        A sentence for a message; "" if there is no such id or no protein.
    """
    if not unknown or not proteins:
        return ""
    quoted = [link_id for link_id in unknown if re.fullmatch(QUOTED_ID, link_id)]
    if len(quoted) >= MIN_SHARE_OF_REMEDY * len(unknown):
        return (
            f"Links have ids in quotes, such as {quoted[0]:.60}: where tabs or blanks divide the "
            "columns, quotes are part of an id. Write the file without quotes (in R: "
            "quote=FALSE), or with commas"
        )
    known = _KnownIds(proteins, stripped)
    examples: dict[str, list[tuple[str, str]]] = {}
    for link_id in unknown:
        if remedy := known.remedy(link_id):
            examples.setdefault(remedy.what, []).append((link_id, remedy.protein_id))
    best = max(examples, key=lambda what: len(examples[what]), default="")
    if not best or len(examples[best]) < MIN_SHARE_OF_REMEDY * len(unknown):
        return (
            f"No protein has an id such as {unknown[0]!r:.60}, which is in the links (proteins "
            f"have ids such as {proteins[0]!r:.60}), and no prefix or version makes them equal. "
            "Want the same ids in both files"
        )
    link_id, protein_id = examples[best][0]
    return (
        f"Links have ids such as {link_id!r:.60}, proteins such as {protein_id!r:.60}: {best} "
        f"makes {len(examples[best]):,} of {len(unknown):,} such ids fit"
    )


class _Remedy(NamedTuple):
    """A change that makes an id of a link match a protein."""

    what: str
    protein_id: str


class _KnownIds:
    """Ids of proteins, also without a prefix, a version or capital letters."""

    def __init__(self, proteins: Sequence[str], stripped: Sequence[str]) -> None:
        self._stripped = stripped
        self._keys = set(proteins)
        self._key_by_unversioned: dict[str, str] = {}
        self._key_by_lower: dict[str, str] = {}
        self._prefixed: dict[str, tuple[str, str]] = {}
        for key in proteins:
            self._key_by_unversioned.setdefault(_unversioned(key), key)
            self._key_by_lower.setdefault(key.lower(), key)
            for prefix, rest in _prefixes(key):
                self._prefixed.setdefault(rest, (prefix, key))
                self._prefixed.setdefault(_unversioned(rest), (prefix, key))

    def remedy(self, link_id: str) -> _Remedy | None:
        """Return the change that makes an id of a link match a protein; None if there is none."""
        for prefix, rest in [("", link_id), *_prefixes(link_id)]:
            option = self._strip(prefix) if prefix else ""
            if rest in self._keys:
                return _Remedy(option, rest)
            if key := self._key_by_unversioned.get(_unversioned(rest)):
                return _Remedy(f"{option} {STRIP_VERSION}".strip(), key)
        if link_id in self._prefixed:
            prefix, key = self._prefixed[link_id]
            more = "" if key.endswith(link_id) else f" {STRIP_VERSION}"
            return _Remedy(self._strip(prefix) + more, key)
        isoform = re.match(ISOFORM, link_id)
        if isoform and isoform[1] in self._keys:
            return _Remedy("writing isoforms as their accession, without -NUMBER,", isoform[1])
        if key := self._key_by_lower.get(link_id.lower()):
            return _Remedy("writing both in the same case", key)
        return None

    def _strip(self, prefix: str) -> str:
        prefixes = [prefix]
        if prefix in SEPARATORS and self._stripped:
            # --strip-prefix 4932 has left the dot of 4932.YAL001C.
            prefixes = [given + prefix for given in self._stripped]
        return " ".join(f"--strip-prefix {shlex.quote(prefix)}" for prefix in prefixes)


def _unversioned(key: str) -> str:
    return re.sub(VERSION, r"\1", key)


def _prefixes(key: str) -> list[tuple[str, str]]:
    """Return (prefix, rest) of an id at its separators; the rest is not empty."""
    parts = []
    for position, letter in enumerate(key[:-1]):
        if letter in SEPARATORS:
            parts.append((key[: position + 1], key[position + 1 :]))
    return parts
