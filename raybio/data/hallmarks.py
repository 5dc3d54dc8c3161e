"""The Hallmarks of Cancer corpus (Baker et al., 2016): abstracts whose sentences are labelled with what cancers do.

An archive (.tar.gz) holds ``text/<PMID>.txt``, one sentence a line, and ``labels/<PMID>.txt``, where ``<`` opens each
sentence's labels, "AND" joins several, and "--" joins the levels of one: "Resisting cell death--Apoptosis". A level
that is left empty at the end means the class above it. The taxonomy has 37 classes: 10 hallmarks and 27 below them.
"""

import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from raybio.data.source_files import read_lines
from raybio.errors import DataError

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
    "Tumor promoting inflammation": ("Immune response", "Inflammation", "Inflammation--Oxidative stress"),
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
        raise DataError(f"{path}: holds no text/<PMID>.txt, want the folders text/ and labels/ of the corpus")
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
            raise DataError(f"{path}, line {number}: {pmid[:40]!r} is no PMID, want digits alone. Repair the line.")
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
                file = archive.extractfile(member) if folder in content and name.endswith(".txt") else None
                if file is not None:
                    content[folder][name.removesuffix(".txt")] = file.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, {member.name}: is not UTF-8 ({error}). Fetch the file again.") from None
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: the archive is torn or damaged ({error}). Fetch the file again.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}), want a .tar.gz archive") from None
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
    labels = tuple(tuple(_classes(piece, f"{where} {number}")) for number, piece in enumerate(pieces, start=1))
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
