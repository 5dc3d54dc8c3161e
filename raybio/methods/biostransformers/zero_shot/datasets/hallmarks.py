"""The Hallmarks of Cancer corpus (Baker et al. 2016): abstracts with labeled sentences.

An archive (.tar.gz) holds ``text/<PMID>.txt``, one sentence a line, and ``labels/<PMID>.txt``.
There, ``<`` opens the labels of a sentence, "AND" joins labels, and "--" joins the levels of a
label: "Resisting cell death--Apoptosis". An empty last level stands for the class above it. The
taxonomy has 37 classes: 10 hallmarks and 27 subclasses.
"""

import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from raybio.core.errors import DataError
from raybio.store.sources import MAX_WHOLE_BYTES
from raybio.store.text_lines import read_values

ClassPath = tuple[str, ...]
"""A class of the taxonomy by its path from the hallmark down."""

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


HALLMARKS: tuple[str, ...] = tuple(_SUBCLASSES)
"""The 10 hallmarks, in the order of Hanahan and Weinberg (2011)."""


def _taxonomy() -> Iterator[ClassPath]:
    for hallmark, subclasses in _SUBCLASSES.items():
        yield (hallmark,)
        for subclass in subclasses:
            yield (hallmark, *subclass.split("--"))


TAXONOMY: tuple[ClassPath, ...] = tuple(_taxonomy())
"""All 37 classes, each hallmark before its subclasses."""

_KNOWN = frozenset(TAXONOMY)


@dataclass(frozen=True)
class HallmarkDocument:
    """One abstract.

    Attributes:
        pmid: PubMed id.
        sentences: as in the file, tokenized.
        labels: classes of each sentence, most often none.
    """

    pmid: str
    sentences: tuple[str, ...]
    labels: tuple[tuple[ClassPath, ...], ...]

    @property
    def text(self) -> str:
        """The abstract as one text."""
        return " ".join(self.sentences)

    @cached_property
    def classes(self) -> frozenset[ClassPath]:
        """Classes of all sentences, and every class above these."""
        given = {path for labels in self.labels for path in labels}
        return frozenset(path[:depth] for path in given for depth in range(1, len(path) + 1))


def read_hallmarks(path: Path) -> tuple[HallmarkDocument, ...]:
    """Return the documents of the archive, ordered by PMID as text. Nothing is unpacked to disk.

    Raises:
        DataError: for an archive that cannot be read, a document without labels or the reverse,
            another number of labels than sentences, or a class that is not in the taxonomy.
    """
    path = Path(path)
    content = _members(path)
    texts = content["text"]
    labels = content["labels"]
    if not texts:
        raise DataError(
            f"{path}: holds no text/<PMID>.txt, want the folders text/ and labels/ of the corpus"
        )
    for present, required, name in ((texts, labels, "labels"), (labels, texts, "text")):
        missing = sorted(present.keys() - required.keys())
        if missing:
            raise DataError(
                f"{path}: {missing[0]} and {len(missing) - 1} more have no {name}/<PMID>.txt. "
                "Repack both folders."
            )
    return tuple(_document(path, pmid, texts[pmid], labels[pmid]) for pmid in sorted(texts))


def read_pmids(path: Path) -> frozenset[str]:
    """Return the PMIDs of a file with one a line, or of a table. Empty lines are ignored.

    Raises:
        DataError: if the file cannot be read, names nothing, or has a line that is no PMID.
    """
    path = Path(path)
    pmids = set()
    for number, line in read_values(path, "PMIDs", ("pmid", "id")):
        pmid = line.strip()
        if pmid and not (pmid.isascii() and pmid.isdigit()):
            raise DataError(
                f"{path}, line {number}: {pmid[:40]!r} is no PMID, want digits only. Repair the "
                "line."
            )
        if pmid:
            pmids.add(pmid)
    if not pmids:
        raise DataError(f"{path}: names no article, want one PMID a line")
    return frozenset(pmids)


def _members(path: Path) -> dict[str, dict[str, str]]:
    """Return the content of the files in the folders ``text`` and ``labels``, by PMID."""
    content: dict[str, dict[str, str]] = {"text": {}, "labels": {}}
    try:
        with tarfile.open(path) as archive:
            num_bytes = 0
            for member in archive:
                num_bytes += member.size
                if num_bytes > MAX_WHOLE_BYTES:
                    raise DataError(
                        f"{path}: holds more than {MAX_WHOLE_BYTES:,} bytes, which the corpus has "
                        "not. Fetch the file again"
                    )
                folder, _, name = member.name.rpartition("/")
                folder = folder.rpartition("/")[2]
                if folder not in content or not name.endswith(".txt"):
                    continue
                file = archive.extractfile(member)
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
            f"{path}, labels/{pmid}.txt: {len(pieces)} pieces that begin with '<', want one for "
            f"each of the {len(sentences)} sentences of text/{pmid}.txt"
        )
    labels = []
    for number, piece in enumerate(pieces, start=1):
        position = f"{path}, labels/{pmid}.txt, sentence {number}"
        labels.append(tuple(_classes(piece, position)))
    return HallmarkDocument(pmid, sentences, tuple(labels))


def _classes(piece: str, position: str) -> Iterator[ClassPath]:
    """Yield the classes of a sentence."""
    for label in piece.split("AND"):
        levels = tuple(level.strip() for level in label.split("--"))
        known = levels[:-1] if len(levels) > 1 and not levels[-1] else levels
        if known in _KNOWN:
            yield known
        elif label.strip() not in ("", "NULL"):
            raise DataError(
                f"{position}: class {label.strip()!r} is none of the taxonomy's 37, such as "
                f"{'--'.join(TAXONOMY[1])!r}"
            )
