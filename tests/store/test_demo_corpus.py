"""Demo corpora: prepared once, under a name that depends on every setting."""

from pathlib import Path

import pytest

from raybio.core.errors import StoreError
from raybio.methods.sppt.articles.demo import SIMULATED_CITATIONS, CitationsConfig
from tests.training.workers import forkserver

SMALL = CitationsConfig(num_articles=40, num_schools=4, num_fields=6, words_per_field=8)


def prepare_small(directory: Path) -> None:
    SIMULATED_CITATIONS.prepare(directory, SMALL)


def test_processes_that_ask_at_once_get_one_corpus(tmp_path: Path) -> None:
    processes = [forkserver().Process(target=prepare_small, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    (home,) = tmp_path.iterdir()
    before = (home / "store" / "manifest.json").stat().st_mtime_ns
    store = SIMULATED_CITATIONS.prepare(tmp_path, SMALL)
    assert store.path == home / "store"
    assert (home / "store" / "manifest.json").stat().st_mtime_ns == before


def test_other_settings_are_another_corpus_in_another_folder(tmp_path: Path) -> None:
    small = SIMULATED_CITATIONS.prepare(tmp_path, SMALL)
    other = SIMULATED_CITATIONS.prepare(tmp_path, SMALL.model_copy(update={"seed": 1}))
    assert small.digest != other.digest
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="the built-in corpus is kept there"):
        SIMULATED_CITATIONS.prepare(tmp_path / "file", SMALL)
