"""The layouts of downstream tasks' files, sound and broken."""

import gzip
import json
import pickle
import zipfile
from itertools import pairwise
from pathlib import Path

import lmdb
import numpy as np
import pytest

from raybio.core.errors import DataError
from raybio.methods.sppt.downstream.formats.gfp import GFP
from raybio.methods.sppt.downstream.formats.read import read_task_files
from raybio.methods.sppt.downstream.prepare import prepare_task
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.store import sources
from raybio.store.store import open_store
from tests.paths import SHARED_DATA

GENOTYPES = SHARED_DATA / "protein_fluorescence"
GENOTYPES /= "amino_acid_genotypes_to_brightness.tsv.gz"


def prepared(tmp_path: Path, name: str, source: Path) -> TaskStore:
    prepare_task(tmp_path / "store", name, *read_task_files(name, source))
    return open_store(tmp_path / "store", TaskStore, verify=True)


def contents(store: TaskStore, split: str) -> list[str]:
    return store.texts(store.split_rows(split))


Rows = dict[str, list[dict[str, object]]]


def write_tape(folder: Path, name: str, rows: Rows, kind: str = "json") -> Path:
    for ending, records in rows.items():
        path = folder / f"{name}_{ending}.{kind}"
        if kind == "json":
            path.write_text(json.dumps(records))
        else:
            write_lmdb(path, [as_in_tape(record) for record in records])
    return folder


def as_in_tape(record: dict[str, object]) -> bytes:
    """Return a pickle as TAPE has them: arrays for lists, numpy 1, and keys that no task reads."""
    own = {
        name: np.array(value) if isinstance(value, list) else value
        for name, value in record.items()
    }
    own |= {"id": b"0", "protein_length": np.int64(len(str(record["primary"])))}
    content = pickle.dumps(own, protocol=2)
    assert b"numpy._core" in content
    return content.replace(b"numpy._core", b"numpy.core")


def write_lmdb(path: Path, pickles: list[bytes], *, is_folder: bool = True) -> None:
    with (
        lmdb.open(str(path), subdir=is_folder) as environment,
        environment.begin(write=True) as change,
    ):
        change.put(b"num_examples", pickle.dumps(len(pickles)))
        for number, content in enumerate(pickles):
            change.put(str(number).encode(), content)


def test_a_zip_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_WHOLE_BYTES", 1000)
    path = tmp_path / "splits.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("sequences.fasta", "sampled.fasta", "mask.fasta"):
            archive.writestr(name, f">a SET=train\n{'A' * 2000}\n")
    with pytest.raises(
        DataError, match=r"splits\.zip, sequences\.fasta: has more than 1,000 bytes"
    ):
        read_task_files("secondary_structure", path)


def test_a_damaged_zip_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "splits.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("sequences.fasta", "sampled.fasta", "mask.fasta"):
            archive.writestr(name, f">a SET=train\n{'ACDEFGHIKL' * 50}\n")
    whole = bytearray(path.read_bytes())
    whole[60:90] = bytes(30)
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"splits.zip: is a damaged zip"):
        read_task_files("secondary_structure", path)


@pytest.mark.parametrize(
    "labels, message",
    [
        (">\nHEC\n", "record 1 has no header"),
        (">a SET=test\nHEC\n>a SET=test\nHEC\n", "'a SET=test' is there twice"),
    ],
)
def test_headers_of_flip_that_are_none_are_reported(
    tmp_path: Path, labels: str, message: str
) -> None:
    (tmp_path / "sequences.fasta").write_text(">a\nACD\n")
    (tmp_path / "mask.fasta").write_text(">a\n111\n")
    (tmp_path / "sampled.fasta").write_text(labels)
    with pytest.raises(DataError, match=message):
        list(read_task_files("secondary_structure", tmp_path).examples)


def test_labels_that_flip_does_not_have_are_set_aside(tmp_path: Path) -> None:
    splits = dict.fromkeys("efghijk", "SET=train VALIDATION=False")
    splits |= {"b": "SET=train VALIDATION=True", "c": "SET=test"}
    (tmp_path / "sequences.fasta").write_text("".join(f">{key}\nACD\n" for key in "bcdefghijk"))
    (tmp_path / "mask.fasta").write_text("".join(f">{key}\n111\n" for key in "bcdefghijk"))
    (tmp_path / "sampled.fasta").write_text(
        "".join(f">{key} {message}\nHEC\n" for key, message in splits.items())
        + ">d SET=train\nHXC\n"
    )
    store = prepared(tmp_path, "secondary_structure", tmp_path)
    assert list(store.class_names) == ["C", "E", "H"]
    assert store.manifest["quarantine"]["residue with a label that is none"]["count"] == 1


def test_classes_of_scop_need_not_be_numbers(tmp_path: Path) -> None:
    path = tmp_path / "scop.fasta"
    path.write_text(
        "".join(
            f">d{place} {one}\nACD\n" for place, one in enumerate(("a.1.1.1", "a.1.x.1", "a.1.2.1"))
        )
    )
    splits = [one.split for one in read_task_files("remote_homology", path).examples]
    assert splits == ["train", "test", "dev"]


def test_an_empty_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "stability.csv").write_text("")
    with pytest.raises(DataError, match="stability.csv: is empty"):
        read_task_files("stability", tmp_path / "stability.csv")


def test_rows_that_stand_in_training_too_are_counted(tmp_path: Path) -> None:
    rows = {
        "train": [{"primary": one, "stability_score": [1.0]} for one in ("ACD", "ACE")],
        "valid": [{"primary": "ACF", "stability_score": [1.0]}],
        "test": [{"primary": one, "stability_score": [2.0]} for one in ("ACD", "ACG")],
    }
    store = prepared(tmp_path, "stability", write_tape(tmp_path, "stability", rows))
    assert store.known_from_training() == {"dev": 0, "test": 1}


def test_flips_residues_with_unresolved_ones(tmp_path: Path) -> None:
    fasta = {
        "sequences.fasta": ">a\nACD\nE\n>b\nFG\n>c\nHI\n",
        "sampled.fasta": ">a SET=train VALIDATION=False\nCHHE\n>b SET=train VALIDATION=True\nCC\n"
        ">c SET=test VALIDATION=False\nHH\n",
        "mask.fasta": ">a\n0111\n>b\n11\n>c\n10\n",
    }
    with zipfile.ZipFile(tmp_path / "splits.zip", "w") as archive:
        for name, text in fasta.items():
            archive.writestr(f"splits/{name}", text)
            (tmp_path / name).write_text(text)
    for source in (tmp_path / "splits.zip", tmp_path):
        files, examples = read_task_files("secondary_structure", source)
        store = prepare_task(tmp_path / f"of {source.name}", "secondary_structure", files, examples)
        assert [contents(store, split) for split in ("train", "dev", "test")] == [
            ["ACDE"],
            ["FG"],
            ["HI"],
        ]
        assert list(store.class_names) == ["C", "E", "H"]
        assert store.class_T.tolist() == [-1, 2, 2, 1, 0, 0, 2, -1]


def test_flips_tables(tmp_path: Path) -> None:
    path = tmp_path / "split.csv"
    path.write_text(
        "sequence, target, set, validation\nacd,1.5,train,\nACE,2,train,True\nACF,3,test,\n"
    )
    store = prepared(tmp_path, "stability", path)
    assert [contents(store, split) for split in ("train", "dev", "test")] == [
        ["ACD"],
        ["ACE"],
        ["ACF"],
    ]


def test_genotypes_of_gfp_are_split_by_their_mutations(tmp_path: Path) -> None:
    path = tmp_path / "gfp.tsv.gz"
    lines = [
        "aaMutations\tuniqueBarcodes\tmedianBrightness\tstd",
        "\t1\t3.7\t.1",
        "SA0K\t1\t1.3\t.1",
    ]
    lines[-1] = f"S{GFP[0]}0A\t1\t1.3\t.1"
    many = ":".join(f"S{GFP[place]}{place}A" for place in range(1, 5))
    lines += [f"S{GFP[2]}2*\t1\t1.3\t.1", f"{many}\t1\t2.5\t.1"]
    singles = range(5, 11)
    lines += [f"S{GFP[place]}{place}A\t1\t1.3\t.1" for place in singles]
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    store = prepared(tmp_path, "fluorescence", path)
    seen = sorted(contents(store, "train") + contents(store, "dev"))
    mutated = [f"{GFP[:place]}A{GFP[place + 1 :]}" for place in (0, *singles)]
    assert seen == sorted([GFP, *mutated])
    assert contents(store, "test") == [f"{GFP[0]}AAAA{GFP[5:]}"]
    assert store.manifest["quarantine"]["stop symbol '*' in the sequence"]["count"] == 1


def test_a_mutation_of_another_wild_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gfp.tsv").write_text(
        "aaMutations\tuniqueBarcodes\tmedianBrightness\tstd\nSW0A\t1\t1.3\t.1\n"
    )
    with pytest.raises(
        DataError, match=r"gfp.tsv, line 2: cannot be read \(SW0A, where the wild type has S\)"
    ):
        prepared(tmp_path, "fluorescence", tmp_path / "gfp.tsv")


def test_scops_last_superfamily_of_a_fold_is_test(tmp_path: Path) -> None:
    rows = {
        "a.1.1.1": "AAA",
        "a.1.2.1": "CCC",
        "a.1.10.1": "DDD",
        "a.1.10.2": "EEE",
        "b.2.1.1": "FFF",
    }
    fasta = "".join(
        f">d{n} {scop} (A:) some protein\n{letters}\n"
        for n, (scop, letters) in enumerate(rows.items())
    )
    (tmp_path / "domains.fa").write_text(fasta)
    store = prepared(tmp_path, "remote_homology", tmp_path / "domains.fa")
    assert [contents(store, split) for split in ("train", "dev", "test")] == [
        ["AAA", "FFF"],
        ["CCC"],
        ["DDD", "EEE"],
    ]
    assert list(store.class_names) == ["a.1", "b.2"]


def test_sciberts_lines(tmp_path: Path) -> None:
    lines = [{"text": f"Sentence {n}", "label": "ab"[n % 2], "metadata": {}} for n in range(10)]
    (tmp_path / "train.txt.gz").write_bytes(
        gzip.compress("".join(f"{json.dumps(one)}\n" for one in lines).encode())
    )
    (tmp_path / "test.txt").write_text(
        json.dumps({"text": "tokens", "label": "category"}) + "\n" + json.dumps(lines[0])
    )
    store = prepared(tmp_path, "acl_arc", tmp_path)
    assert [len(store.split_rows(split)) for split in ("train", "dev", "test")] == [9, 1, 1]
    assert store.count_by_word["sentence"] == 11
    (tmp_path / "dev.txt").write_text("no json\n")
    with pytest.raises(DataError, match=r"dev.txt, line 1: want an object with text and label"):
        prepare_task(tmp_path / "again", "acl_arc", *read_task_files("acl_arc", tmp_path))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"primary": "", "fold_label": 1}, "row without a sequence"),
        ({"primary": "AC1", "fold_label": 1}, "letter that is not an amino acid"),
    ],
)
def test_bad_rows_are_refused_with_their_place(
    tmp_path: Path, record: dict[str, object], reason: str
) -> None:
    good = {"primary": "ACD", "fold_label": 1}
    rows = {"train": [good, record], "valid": [good], "test_fold_holdout": [good]}
    with pytest.raises(DataError, match=rf"{reason}: 1, first remote_homology_train.json:2"):
        prepared(tmp_path, "remote_homology", write_tape(tmp_path, "remote_homology", rows))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("stability", {"primary": "ACD", "stability_score": None}, "record 2: cannot be read"),
        ("stability", {"primary": "ACD", "stability_score": []}, "record 2: cannot be read"),
        ("secondary_structure", {"primary": "ACD", "ss3": 3}, "record 2: cannot be read"),
        (
            "secondary_structure",
            {"primary": "ACD", "ss3": [0, 1, 7]},
            "residue with a label that is none: 1, first",
        ),
        (
            "secondary_structure",
            {"primary": "ACD", "ss3": [0, 1]},
            "other number of labels than residues: 1",
        ),
        ("remote_homology", {"fold_label": 1}, "record 2: cannot be read"),
    ],
)
def test_records_that_are_none_are_reported_with_their_number(
    tmp_path: Path, name: str, record: dict[str, object], message: str
) -> None:
    good = {"primary": "ACD", "stability_score": [1.0], "ss3": [0, 1, 2], "fold_label": 1}
    rows = {
        "train": [good, record],
        "valid": [good],
        "test": [good],
        "test_fold_holdout": [good],
        "cb513": [good],
    }
    with pytest.raises(DataError, match=message):
        prepared(tmp_path, name, write_tape(tmp_path, name, rows))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "sequence,target,set\nACD,x,train\n",
            "label that is no finite number: 1, first split.csv:2",
        ),
        ("sequence,target,set\nACD,1\n", "line 2: .*2 columns, want 3"),
        ("sequence,target,set\nACD,1,last\n", "line 2: the split is 'last', want train"),
    ],
)
def test_lines_that_are_none_are_reported(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "split.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        prepared(tmp_path, "stability", tmp_path / "split.csv")


def test_a_task_of_one_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "domains.fa").write_text(
        ">a x.1.1.1 alpha->beta\nAAA\n>b x.1.2.1\nCCC\n>c x.1.3.1\nDDD\n"
    )
    with pytest.raises(DataError, match="has 1 classes .x.1., want two at least"):
        prepared(tmp_path, "remote_homology", tmp_path / "domains.fa")
    (tmp_path / "domains.fa").write_text(">a\nAAA\n")
    with pytest.raises(
        DataError, match="record 1: cannot be read .* want a header with an id and SCOP's class"
    ):
        prepared(tmp_path, "remote_homology", tmp_path / "domains.fa")


def test_what_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist, want the files of acl_arc"):
        read_task_files("acl_arc", tmp_path / "nowhere")
    with pytest.raises(
        DataError, match=r"holds no known layout of stability; want TAPE's LMDB or JSON"
    ):
        read_task_files("stability", tmp_path)
    rows = [{"primary": "ACD" * n, "stability_score": [1.0]} for n in range(1, 5)]
    write_tape(tmp_path, "stability", {"train": rows})
    with pytest.raises(DataError, match="the task has no test rows"):
        prepared(tmp_path, "stability", tmp_path)


def test_labels_of_residues_stand_at_their_tokens(tmp_path: Path) -> None:
    from raybio.core.batch import IGNORED_LABEL
    from raybio.methods.sppt.downstream.collate import read_labeled
    from raybio.methods.sppt.proteins.collate import ProteinRows, TokenTable

    rows = {
        "train": [{"primary": "ACDEF", "ss3": [0, 1, 2, 0, 1]}, {"primary": "EF", "ss3": [2, 1]}],
        "valid": [{"primary": "A", "ss3": [0]}],
        "cb513": [{"primary": "C", "ss3": [1]}],
    }
    store = prepared(
        tmp_path, "secondary_structure", write_tape(tmp_path, "secondary_structure", rows)
    )
    table = TokenTable(np.arange(256), cls_id=1, eos_id=2, mask_id=3, residue_ids=np.arange(65, 90))
    batch = read_labeled(store, ProteinRows(store, table, 6), np.array([1, 0]))
    letters = [
        "".join(map(chr, batch.token_T[a + 1 : b - 1])) for a, b in pairwise(batch.indptr_R1)
    ]
    assert letters == ["EF", "ACDE"]  # cut to six tokens with two special ones
    skip = IGNORED_LABEL
    assert batch.label_T.tolist() == [skip, 0, 1, skip, skip, 2, 1, 0, 2, skip]


@pytest.mark.skipif(not GENOTYPES.exists(), reason="no table of GFP's genotypes")
def test_the_table_of_gfps_genotypes(tmp_path: Path) -> None:
    """TAPE has 26,808 and 27,217 rows: those with a stop codon too."""
    files, examples = read_task_files("fluorescence", GENOTYPES)
    store = prepare_task(tmp_path / "store", "fluorescence", files, examples)
    assert store.manifest["quarantine"]["stop symbol '*' in the sequence"]["count"] == 2310
    assert [len(store.split_rows(split)) for split in ("train", "dev", "test")] == [
        20958,
        5240,
        25517,
    ]
    assert store.known_from_training() == {"dev": 0, "test": 0}
