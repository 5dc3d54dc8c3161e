import io
import tarfile
from collections import Counter

import pytest

from raybio.core.errors import DataError
from raybio.methods.biostransformers.zero_shot.datasets import hallmarks
from raybio.methods.biostransformers.zero_shot.datasets.hallmarks import (
    HALLMARKS,
    TAXONOMY,
    read_hallmarks,
)
from tests.paths import SHARED_DATA

CORPUS = SHARED_DATA / "hallmarks_of_cancer" / "hoc_text_labels.tar.gz"
real = pytest.mark.skipif(
    not CORPUS.exists(), reason="../shared/data/hallmarks_of_cancer is not there"
)


def archive(folder, **contents):
    """An archive with a member ``text/7.txt`` for the argument ``text_7``."""
    path = folder / "hoc.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name.replace("_", "/") + ".txt")
            raw = content.encode() if isinstance(content, str) else content
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
    return path


def test_a_document_has_the_labels_of_its_sentences_and_every_class_above_them(tmp_path):
    labels = (
        "< <Resisting cell death--Apoptosis "
        "ANDGenomic instability and mutation--DNA damage--Adducts"
        "< NULL<Cellular energetics--"
    )
    path = archive(tmp_path, text_7="One .\nTwo .\nThree .\nFour .\n", labels_7=labels)
    (document,) = read_hallmarks(path)
    assert (document.pmid, document.text) == ("7", "One . Two . Three . Four .")
    assert document.labels == (
        (),
        (
            ("Resisting cell death", "Apoptosis"),
            ("Genomic instability and mutation", "DNA damage", "Adducts"),
        ),
        (),
        (("Cellular energetics",),),
    )
    assert {path[0] for path in document.classes} == {
        "Resisting cell death",
        "Genomic instability and mutation",
        "Cellular energetics",
    }
    assert document.classes == {
        ("Resisting cell death",),
        ("Resisting cell death", "Apoptosis"),
        ("Genomic instability and mutation",),
        ("Genomic instability and mutation", "DNA damage"),
        ("Genomic instability and mutation", "DNA damage", "Adducts"),
        ("Cellular energetics",),
    }


def test_the_taxonomy_has_ten_hallmarks_and_each_class_below_one_has_its_parent():
    assert (len(HALLMARKS), len(TAXONOMY), len(set(TAXONOMY))) == (10, 37, 37)
    assert [path for path in TAXONOMY if len(path) > 1 and path[:-1] not in TAXONOMY] == []
    assert sorted({path[0] for path in TAXONOMY}) == sorted(HALLMARKS)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"text_7": "A .\nB .", "labels_7": "< "}, r"labels/7.txt: 1 pieces .* 2 sentences"),
        ({"text_7": "A .", "labels_7": "Apoptosis< "}, r"labels/7.txt: 1 pieces"),
        (
            {"text_7": "A .", "labels_7": "<Resisting cell death--Boredom"},
            r"labels/7.txt, sentence 1: class 'Resisting",
        ),
        (
            {"text_7": "A .", "labels_7": "< ", "text_8": "B ."},
            r"8 and 0 more have no labels/<PMID>.txt",
        ),
        (
            {"text_7": "A .", "labels_7": "< ", "labels_8": "< "},
            r"8 and 0 more have no text/<PMID>.txt",
        ),
        ({"text_7": b"\xff", "labels_7": "< "}, r"text/7.txt: is not UTF-8"),
        ({"other_7": "A ."}, r"holds no text/<PMID>.txt"),
    ],
)
def test_bad_input_is_named_by_file_and_record(tmp_path, contents, message):
    with pytest.raises(DataError, match=message) as caught:
        read_hallmarks(archive(tmp_path, **contents))
    assert "hoc.tar.gz" in str(caught.value)


def test_a_torn_or_missing_archive_is_refused(tmp_path):
    whole = archive(tmp_path, text_7="A .\n" * 5000, labels_7="< " * 5000).read_bytes()
    (tmp_path / "torn.tar.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "no.tar.gz").write_bytes(b"no archive at all")
    for name in ("torn.tar.gz", "no.tar.gz", "absent.tar.gz"):
        with pytest.raises(DataError, match=name):
            read_hallmarks(tmp_path / name)


@real
def test_the_corpus_has_the_counts_of_its_readme():
    documents = read_hallmarks(CORPUS)
    sentences = Counter(
        name for one in documents for given in one.labels for name in {path[0] for path in given}
    )
    found = Counter(name for one in documents for name in {path[0] for path in one.classes})
    assert (len(documents), sum(len(one.sentences) for one in documents)) == (1852, 17464)
    assert {name: (sentences[name], found[name]) for name in HALLMARKS} == {
        "Sustaining proliferative signaling": (993, 462),
        "Resisting cell death": (832, 429),
        "Genomic instability and mutation": (768, 333),
        "Activating invasion and metastasis": (667, 291),
        "Tumor promoting inflammation": (518, 240),
        "Evading growth suppressors": (366, 240),
        "Inducing angiogenesis": (358, 143),
        "Enabling replicative immortality": (295, 115),
        "Avoiding immune destruction": (226, 108),
        "Cellular energetics": (213, 105),
    }
    assert {path for one in documents for path in one.classes} == set(TAXONOMY)


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(hallmarks, "MAX_WHOLE_BYTES", 1000)
    path = archive(tmp_path, text_7="One .\n", labels_7="< NULL", other_8="x" * 2000)
    with pytest.raises(DataError, match=r"hoc\.tar\.gz: holds more than 1,000 bytes"):
        read_hallmarks(path)
