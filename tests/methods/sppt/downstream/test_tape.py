"""TAPE's files, as LMDB and as JSON."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest

from raybio.core.errors import DataError
from raybio.methods.sppt.downstream.formats.read import read_task_files
from tests.methods.sppt.downstream.test_formats import contents, prepared, write_lmdb, write_tape


@pytest.fixture(params=["json", "lmdb"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_tapes_classes(tmp_path: Path, kind: str) -> None:
    rows = {
        "train": [{"primary": "ACD", "fold_label": 7}, {"primary": "EFG", "fold_label": 3}],
        "valid": [{"primary": "HIK", "fold_label": 7}],
        "test_fold_holdout": [
            {"primary": "LMN", "fold_label": 3},
            {"primary": "PQR", "fold_label": 99},
        ],
        "test_family_holdout": [{"primary": "AAA", "fold_label": 3}],
    }
    store = prepared(
        tmp_path, "remote_homology", write_tape(tmp_path, "remote_homology", rows, kind)
    )
    assert list(store.class_names) == [
        "3",
        "7",
        "99",
    ]  # what training does not have is told wrong, and counts
    assert contents(store, "train") == ["ACD", "EFG"]
    assert store.target_N[store.split_rows("train")].tolist() == [1, 0]
    assert contents(store, "test") == ["LMN", "PQR"]


def test_tapes_numbers_are_lists_of_one(tmp_path: Path, kind: str) -> None:
    rows = {
        "train": [
            {"primary": "ACD", "stability_score": [1.5]},
            {"primary": "ACE", "stability_score": [0.5]},
        ],
        "valid": [{"primary": "ACF", "stability_score": [-1.0]}],
        "test": [{"primary": "ACG", "stability_score": [2.0]}],
    }
    store = prepared(tmp_path, "stability", write_tape(tmp_path, "stability", rows, kind))
    assert store.target_N.tolist() == [1.5, 0.5, -1.0, 2.0]
    assert list(store.class_names) == []


def test_tapes_residues(tmp_path: Path, kind: str) -> None:
    rows = {
        "train": [{"primary": "ACD", "ss3": [0, 1, 2]}, {"primary": "EF", "ss3": "CC"}],
        "valid": [{"primary": "A", "ss3": [0.0]}],
        "cb513": [{"primary": "C", "ss3": [1]}],
    }
    store = prepared(
        tmp_path, "secondary_structure", write_tape(tmp_path, "secondary_structure", rows, kind)
    )
    assert list(store.class_names) == ["C", "E", "H"]
    assert store.class_T.tolist() == [2, 1, 0, 0, 0, 2, 1]


def test_a_split_in_both_of_tapes_forms_needs_a_choice(tmp_path: Path) -> None:
    row = [{"primary": "ACD", "stability_score": [1.5]}]
    for kind in ("json", "lmdb"):
        write_tape(tmp_path, "stability", {"train": row}, kind)
    with pytest.raises(
        DataError, match="has stability_train.lmdb and stability_train.json; want one"
    ):
        read_task_files("stability", tmp_path)


class Shell:
    """A pickle that writes a file when it is read as pickles usually are."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_an_lmdb_file_runs_no_code_and_is_left_as_it_is(tmp_path: Path) -> None:
    sound = [
        pickle.dumps({"primary": letters, "fold_label": len(letters)}) for letters in ("ACD", "EF")
    ]
    for split in ("train", "test_fold_holdout"):
        write_lmdb(tmp_path / f"remote_homology_{split}.lmdb", sound, is_folder=False)
    before = sorted(path.name for path in tmp_path.iterdir())
    files, examples = read_task_files("remote_homology", tmp_path)
    assert [(one.split, one.content, one.label) for one in examples] == [
        ("train", "ACD", "3"),
        ("train", "EF", "2"),
        ("test", "ACD", "3"),
        ("test", "EF", "2"),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == before

    write_lmdb(
        tmp_path / "stability_train.lmdb", [pickle.dumps({"primary": Shell(tmp_path / "made")})]
    )
    with pytest.raises(
        DataError, match=r"record 0: cannot be read \(it asks for posix.mkdir\), want a pickle"
    ):
        list(read_task_files("stability", tmp_path).examples)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "value", [np.array([None]), np.array(["a"]), np.array([(1, 2)], dtype="i4,i4")]
)
def test_an_array_of_anything_but_numbers_is_refused(tmp_path: Path, value: np.ndarray) -> None:
    write_lmdb(
        tmp_path / "stability_train.lmdb",
        [pickle.dumps({"primary": "ACD", "stability_score": value})],
    )
    with pytest.raises(DataError, match=r"record 0: cannot be read \(it holds values of type"):
        list(read_task_files("stability", tmp_path).examples)


@pytest.mark.parametrize("type_", [">f8", "<f4", "i2", "u1", "?"])
def test_arrays_keep_their_numbers(tmp_path: Path, type_: str) -> None:
    value = np.array([[1, 0]], dtype=type_)
    rows = [{"primary": "ACD", "stability_score": one} for one in (value, value[0, 0])]
    write_lmdb(tmp_path / "stability_train.lmdb", [pickle.dumps(row) for row in rows])
    assert [one.label for one in read_task_files("stability", tmp_path).examples] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "is no LMDB file, or damaged"),
        (lambda path: path.write_bytes(b"x" * 9000), "is no LMDB file, or damaged"),
        (lambda path: path.unlink(), "holds no known layout of remote_homology"),
    ],
)
def test_a_damaged_lmdb_file_is_named(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    write_lmdb(
        tmp_path / "remote_homology_train.lmdb", [pickle.dumps({"primary": "ACD", "fold_label": 1})]
    )
    spoil(tmp_path / "remote_homology_train.lmdb" / "data.mdb")
    with pytest.raises(DataError, match=message):
        list(read_task_files("remote_homology", tmp_path).examples)


def test_a_record_that_an_lmdb_file_lacks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "remote_homology_train.lmdb"
    write_lmdb(path, [pickle.dumps({"primary": "ACD", "fold_label": 1})])
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as change:
        change.put(b"num_examples", pickle.dumps(2))
    with pytest.raises(DataError, match="has no record '1', want TAPE's layout"):
        list(read_task_files("remote_homology", tmp_path).examples)
