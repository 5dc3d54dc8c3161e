import errno
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from raybio.cli.prepare import app as prepare_app
from raybio.core.errors import StoreError
from raybio.core.records import MAX_RECORD_BYTES
from raybio.methods import METHODS
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph_store import GROUPS, HELDOUT, INDICES, INDPTR, ROWS, LinkedRows
from raybio.methods.sppt.proteins.store import CLUSTERS, ProteinStore, commit_proteins
from raybio.store.manifest import PREPARED_BY
from raybio.store.ragged import Ragged, mapped_array
from raybio.store.store import Store, open_store
from raybio.store.writer import Draft

FILES = (ROWS, GROUPS, INDPTR, INDICES, HELDOUT, CLUSTERS)
SEQUENCES = ["ACD", "EFGH", "IKLMN", "P", "QRS"]


def parts(sequences=SEQUENCES, group_N=(0, 0, 0, 1, 1)):
    group = np.asarray(group_N, dtype=np.int32)
    lengths = [len(sequence) for sequence in sequences]
    letters = np.frombuffer("".join(sequences).encode(), dtype=np.uint8)
    return {
        "keys": pa.array([f"p{number}" for number in range(len(sequences))]),
        "content": Ragged(letters, np.concatenate([[0], np.cumsum(lengths)])),
        "group_N": group,
        "group_names": ["7", "12"],
        "group_labels": ["Seven", "Twelve"],
        "graph": Graph.from_edges(np.array([[0, 1], [1, 2], [3, 4]]), len(sequences), group),
        "heldout_E2": np.array([[0, 2]]),
        "cluster_N": np.arange(len(sequences)),
        "provenance": {"sources": {}, "parameters": {"seed": 3}, "quarantine": {}},
    }


def write_store(path, *, force=False, **parts):
    with Draft(path, force=force) as draft:
        provenance = parts.pop("provenance")
        return commit_proteins(draft, LinkedRows(**parts), provenance)


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "store", **parts())


def test_a_store_is_read_as_it_was_written(store):
    rows = [
        store.residue_T[store.indptr_N1[n] : store.indptr_N1[n + 1]].tobytes().decode()
        for n in range(5)
    ]
    assert rows == SEQUENCES
    assert store.num_rows == 5
    assert store.keys.to_pylist() == ["p0", "p1", "p2", "p3", "p4"]
    assert store.group_N.tolist() == [0, 0, 0, 1, 1]
    assert (store.group_names, store.group_labels) == (("7", "12"), ("Seven", "Twelve"))
    assert store.graph.has_edge([0, 1, 3, 0], [1, 2, 4, 2]).tolist() == [True, True, True, False]
    assert store.heldout.tolist() == [[0, 2]]
    assert store.manifest["counts"] == {
        "rows": 5,
        "residues": 16,
        "groups": 2,
        "links": 3,
        "heldout_links": 1,
    }
    assert store.manifest["parameters"] == {"seed": 3}


def test_arrays_are_views_of_the_mapped_files_of_the_smallest_type(store):
    pages = [
        store.residue_T,
        store.indptr_N1,
        store.group_N,
        store.graph.indptr,
        store.graph.indices,
        store.heldout,
    ]
    assert [array.dtype for array in pages] == [
        "uint8",
        "int64",
        "int32",
        "int32",
        "int32",
        "int32",
    ]
    assert not any(array.flags.writeable or array.flags.owndata for array in pages)


def test_a_store_pickles_as_its_path_and_is_mapped_once_a_process(store):
    content = pickle.dumps(store)
    assert len(content) < 400
    assert pickle.loads(content) is store
    assert open_store(store.path, ProteinStore) is store


def test_a_file_is_mapped_once(store, monkeypatch):
    mapped, real_map = [], pa.memory_map
    monkeypatch.setattr(pa, "memory_map", lambda path: mapped.append(path) or real_map(path))
    for name in store.manifest["files"]:
        first, second = store._batch(name), store._batch(name)
        assert first is second
    assert sorted(mapped) == sorted(str(store.path / name) for name in store.manifest["files"])
    # The mapping outlives the file that it was made of.
    open_files = [
        os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")
    ]
    assert not [path for path in open_files if path.startswith(str(store.path))]
    assert len(pickle.dumps(store)) < 400


FORK = """
import os, sys
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.store.store import open_store
store = open_store(sys.argv[1], ProteinStore)
expected = store.residue_T.tobytes()
child = os.fork()
if child == 0:
    os._exit(0 if store.residue_T.tobytes() == expected and store.graph.num_edges == 3 else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_process_reads_what_its_parent_has_mapped(store):
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", FORK, store.path],
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_replaced_store_is_not_opened_in_place_of_the_pickled_one(store):
    content = pickle.dumps(store)
    write_store(store.path, force=True, **parts(["ACD", "EFGH", "IKLMN", "P", "QRT"]))
    with pytest.raises(StoreError, match="prepared again since"):
        pickle.loads(content)
    assert open_store(store.path, ProteinStore).residue_T.tobytes().endswith(b"QRT")


def test_the_same_parts_give_the_same_bytes(store, tmp_path):
    again = write_store(tmp_path / "again", **parts())
    assert again.digest == store.digest
    for name in (*FILES, "manifest.json"):
        assert (again.path / name).read_bytes() == (store.path / name).read_bytes()


def test_nothing_but_the_store_is_left_in_the_folder(store):
    assert sorted(entry.name for entry in store.path.iterdir()) == sorted([*FILES, "manifest.json"])
    assert [entry.name for entry in store.path.parent.iterdir()] == ["store"]


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named_on_opening(store, name):
    content = (store.path / name).read_bytes()
    (store.path / name).write_bytes(content[:-1])
    with pytest.raises(
        StoreError, match=rf"{name}: holds {len(content) - 1:,} bytes, want {len(content):,}"
    ):
        open_store(store.path)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named_on_opening(store, name):
    (store.path / name).unlink()
    with pytest.raises(
        StoreError, match=rf"{name}: cannot be read \(No such file.*Prepare it again"
    ):
        open_store(store.path)


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_byte_is_found_by_verification(store, name):
    content = bytearray((store.path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (store.path / name).write_bytes(content)
    with pytest.raises(
        StoreError, match=rf"{name}: sha256 is .* damaged or changed after preparing"
    ):
        open_store(store.path, verify=True)


@pytest.mark.parametrize("position", range(0, 1000, 37))
def test_one_flipped_byte_of_the_manifest_is_found_on_opening(store, position):
    content = bytearray((store.path / "manifest.json").read_bytes())
    content[position % len(content)] ^= 1
    (store.path / "manifest.json").write_bytes(content)
    with pytest.raises(StoreError, match="Prepare it again"):
        open_store(store.path)


def test_a_folder_without_a_manifest_is_no_store(store):
    (store.path / "manifest.json").unlink()
    with pytest.raises(
        StoreError, match=r"has no manifest\.json, so it is no finished store.*raybio prepare"
    ):
        open_store(store.path)


def test_a_folder_around_a_store_is_refused_with_the_store(store):
    with pytest.raises(StoreError, match=f"want a store in it, such as {store.path}"):
        open_store(store.path.parent)


def test_a_missing_store_is_named(tmp_path):
    with pytest.raises(StoreError, match="does not exist. Prepare one"):
        open_store(tmp_path / "nowhere")


def test_another_schema_version_is_named(store):
    manifest = json.loads((store.path / "manifest.json").read_text())
    (store.path / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 99}))
    with pytest.raises(StoreError, match="schema version 99, this raybio reads version 2"):
        open_store(store.path)


def test_a_manifest_larger_than_any_that_is_written_is_not_read(store):
    with (store.path / "manifest.json").open("wb") as file:
        file.truncate(MAX_RECORD_BYTES + 1)  # a hole, which takes no room
    with pytest.raises(StoreError, match=r"manifest\.json: holds 268,435,457 bytes, want at most"):
        open_store(store.path)


def test_a_store_is_replaced_only_with_force(store):
    with pytest.raises(StoreError, match="a store exists already. Replace it with --force"):
        write_store(store.path, **parts())
    assert write_store(store.path, force=True, **parts()).digest == store.digest


def test_force_also_removes_what_was_computed_from_the_store(store):
    derived = store.derived_path("features.npy")
    derived.parent.mkdir()
    derived.write_bytes(b"of the old content")
    write_store(store.path, force=True, **parts())
    assert not derived.exists()


def test_force_never_replaces_a_folder_that_holds_something_else(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="holds files that belong to no store"):
        write_store(tmp_path / "home", force=True, **parts())
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_arrow_files_without_a_manifest_are_no_store_and_never_deleted(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.arrow").write_bytes(b"of the user")
    for force in (False, True):
        with pytest.raises(StoreError, match="holds files that belong to no store"):
            write_store(tmp_path / "mine", force=force, **parts())
    assert (tmp_path / "mine" / "train.arrow").read_bytes() == b"of the user"


def test_a_failure_while_writing_leaves_nothing_behind(tmp_path):
    with pytest.raises(RuntimeError, match="in the middle"), Draft(tmp_path / "store") as draft:
        (draft.folder / "spool").write_bytes(b"ACD")
        raise RuntimeError("in the middle")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_store_error(tmp_path):
    with (
        pytest.raises(StoreError, match=r"store: cannot be written .*No space left"),
        Draft(tmp_path / "store"),
    ):
        raise OSError(28, "No space left on device")


def test_two_processes_do_not_write_the_same_store(tmp_path):
    with (
        Draft(tmp_path / "store"),
        pytest.raises(StoreError, match="another process is preparing"),
        Draft(tmp_path / "store"),
    ):
        pass


def test_a_committed_draft_leaves_the_draft_of_the_next_writer(tmp_path):
    column = {"value": pa.array([1])}
    with Draft(tmp_path / "store") as first:
        first.commit(Store, {"a.arrow": column}, {"rows": 1}, {})
        second = Draft(tmp_path / "store", force=True).__enter__()
        (second.folder / "b.arrow").write_bytes(b"spooled")
    assert (second.folder / "b.arrow").read_bytes() == b"spooled"
    store = second.commit(Store, {"a.arrow": {"value": pa.array([2])}}, {"rows": 1}, {})
    second.__exit__(None, None, None)
    assert store.column("a.arrow", "value").to_pylist() == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_rows_that_are_not_sorted_by_group_are_refused(tmp_path):
    with pytest.raises(StoreError, match="sorted by group"):
        write_store(tmp_path / "store", **parts(group_N=(0, 1, 0, 1, 1)))


def test_opening_reads_only_the_manifest(store):
    for name in store.manifest["files"]:
        size = (store.path / name).stat().st_size
        (store.path / name).unlink()
        with open(store.path / name, "wb") as file:
            file.truncate(size)  # of the right size, and without content
    again = open_store(store.path)
    assert again.manifest == store.manifest
    with pytest.raises(StoreError, match="sha256"):
        again.verify()


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import test_store
from raybio.core import files
from raybio.store import writer as store_writer
# Every sync marks a point of the writing: a child dies at each of them.
really_sync = store_writer.sync
for point in range(40):
    child = os.fork()
    if child == 0:
        left = [point]
        def sync(path):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            really_sync(path)
        store_writer.sync = files.sync = sync
        test_store.write_store({path!r} + str(point), **test_store.parts())
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(point)
"""


def test_what_a_killed_writer_left_is_removed_folders_too(tmp_path):
    with pytest.raises(KeyboardInterrupt), Draft(tmp_path / "store") as draft:
        raise KeyboardInterrupt
    left = draft.folder / "tmp1"
    left.mkdir(parents=True)
    (left / "clusters.tsv").write_text("a")
    with Draft(tmp_path / "store") as draft:
        assert not left.exists()


def test_an_array_in_a_file_needs_its_room_before_it_is_written(tmp_path, monkeypatch):
    array_N = mapped_array(tmp_path / "a", 1000, np.int64)
    assert (array_N == 0).all()
    array_N[:] = 7
    assert (tmp_path / "a").stat().st_blocks * 512 >= 8000

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left on device, writing 8,000 bytes"):
        mapped_array(tmp_path / "b", 1000, np.int64)


def test_a_writer_killed_at_any_point_leaves_no_store_or_the_whole_one_and_the_next_writer_succeeds(
    store, tmp_path
):
    script = KILLED.format(tests=os.path.dirname(__file__), path=str(tmp_path / "killed"))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stderr
    num_points = int(done.stdout)
    assert num_points >= 8
    for point in range(num_points):
        path = tmp_path / f"killed{point}"
        is_committed = path.exists()
        # Only the sync of the parent folder comes after the rename.
        assert is_committed == (point == num_points - 1)
        if is_committed:
            assert open_store(path, verify=True).digest == store.digest
        else:
            with pytest.raises(StoreError, match="does not exist"):
                open_store(path)
            assert write_store(path, **parts()).digest == store.digest
            assert not (tmp_path / f".killed{point}.draft").exists()


def test_a_store_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_returned(
    tmp_path, monkeypatch
):
    calls = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(descriptor):
        calls.append("fsync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def noted_rename(path, target):
        calls.append(f"rename {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    store = write_store(tmp_path / "store", **parts())
    files = {f"fsync {name}" for name in store.manifest["files"]}
    assert set(calls[: len(files)]) == files
    assert calls[len(files) :] == [
        "fsync manifest.json.unfinished",
        "rename manifest.json",
        "rename .store.whole",
        "fsync .store.whole",
        "rename store",
        f"fsync {tmp_path.name}",
    ]


KILLED_WITH_FORCE = """
import os, sys
sys.path.insert(0, {tests!r})
import test_store
from pathlib import Path
from raybio.store.store import open_store
changed = test_store.parts() | {{"group_labels": ["Seven", "Other"]}}
# A child dies before each rename.
really_rename = Path.rename
for point in range(9):
    child = os.fork()
    if child == 0:
        left = [point]
        def rename(self, target):
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return really_rename(self, target)
        Path.rename = rename
        test_store.write_store({path!r}, force=True, **changed)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
    open_store({path!r}, verify=True)
print(point)
"""


def test_a_writer_killed_while_it_replaces_a_store_leaves_the_old_one_or_the_new_one(
    store, tmp_path
):
    """It was killed between two renames: the path had neither."""
    path = tmp_path / "folder" / "store"
    write_store(path, **parts())
    script = KILLED_WITH_FORCE.format(tests=os.path.dirname(__file__), path=str(path))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2
    assert open_store(path, verify=True).digest != store.digest
    assert [each.name for each in path.parent.iterdir()] == ["store"]


def test_errors_name_the_command_that_makes_the_wanted_store(tmp_path):
    for method in METHODS.values():
        command = PREPARED_BY[method.store.kind]
        with pytest.raises(StoreError, match=re.escape(f"Prepare one with {command}.")):
            open_store(tmp_path / "nowhere", method.store)


def test_the_commands_that_make_stores_exist():
    for command in PREPARED_BY.values():
        for name in re.findall("`raybio prepare ([a-z]+)`", command):
            result = CliRunner().invoke(prepare_app, [name, "--help"])
            assert result.exit_code == 0, name


class OtherStore(Store):
    kind = "others"


def test_a_store_of_another_kind_is_refused(store):
    with pytest.raises(StoreError, match="is a store of proteins, made by .*; want one of others"):
        open_store(store.path, OtherStore)
    assert open_store(store.path).digest == store.digest
