"""The skeleton of all preparations: what is checked before, and what an error leaves behind."""

from collections.abc import Callable
from pathlib import Path

import pytest

from raybio.core.errors import DataError, StoreError
from raybio.methods.biostransformers.prepare import prepare_pairs
from raybio.methods.contrastive_probe.prepare import prepare_sentences
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.formats.tables import Tables
from raybio.methods.sppt.synthetic.prepare import prepare_topics
from raybio.store.preparation import preparing

PIPELINES: dict[str, Callable[[Path, Path], object]] = {
    "articles": lambda out, file: prepare_pairs(out, [file]),
    "sentences": lambda out, file: prepare_sentences(out, [file]),
    "documents": lambda out, file: prepare_documents(out, [file]),
    "words": lambda out, file: prepare_words(out, [file], test=[file.with_name("test")]),
    "topics": lambda out, file: prepare_topics(out, [file]),
    "proteins": lambda out, file: prepare_proteins(out, Tables([file], [file])),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.txt"
    path.write_text("one and two\ntwo\n")
    return path


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_missing_file_is_refused_before_anything_is_created(
    pipeline: str, tmp_path: Path
) -> None:
    (tmp_path / "test").touch()
    with pytest.raises(DataError, match=r"nowhere\.txt: does not exist"):
        PIPELINES[pipeline](tmp_path / "store", tmp_path / "nowhere.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["test"]


def test_the_provenance_has_sources_by_role_and_what_was_skipped(
    source: Path, tmp_path: Path
) -> None:
    roles = {"sentences": [source], "exclude": []}
    with preparing(tmp_path / "store", roles, {"seed": 1}) as new:
        new.quarantine.add("sentence", "short", source.name, 1, "one")
        found = new.provenance(broken_files=[])
    assert list(found["sources"]) == ["sentences"]
    assert found["sources"]["sentences"]["bytes"] == 16
    assert (found["parameters"], found["broken_files"]) == ({"seed": 1}, [])
    assert found["quarantine"]["short"]["count"] == 1


@pytest.mark.parametrize("change", ["append", "same size", "remove"])
def test_a_file_that_changes_while_it_is_read_is_named_and_leaves_no_store(
    change: str, source: Path, tmp_path: Path
) -> None:
    with (
        pytest.raises(DataError, match=r"source\.txt: changed while it was being read"),
        preparing(tmp_path / "store", {"sentences": [source]}, {}) as new,
    ):
        if change == "remove":
            source.unlink()
        else:
            source.write_text("one\ntwo\nthree\n" if change == "append" else "TWO and one\none\n")
        new.provenance()
    assert not (tmp_path / "store").exists()
    assert not list(tmp_path.glob(".store*"))


def test_an_error_while_reading_leaves_no_store_and_an_existing_one_is_kept(
    source: Path, tmp_path: Path
) -> None:
    with (
        pytest.raises(DataError, match="1 of 1 sentence records are bad"),
        preparing(tmp_path / "store", {"sentences": [source]}, {}, max_bad_share=0.5) as new,
    ):
        new.quarantine.saw("sentence", 1)
        new.quarantine.add("sentence", "short", source.name, 1)
        new.quarantine.check("sentence")
    assert [path.name for path in tmp_path.iterdir()] == ["source.txt"]
    store = prepare_sentences(tmp_path / "store", [source]).path
    before = {path: path.read_bytes() for path in store.iterdir()}
    with (
        pytest.raises(StoreError, match="a store exists already"),
        preparing(store, {"sentences": [source]}, {}),
    ):
        pytest.fail("an existing store is refused before anything is read")
    assert {path: path.read_bytes() for path in store.iterdir()} == before
