"""Batches of text methods are the same whether this machine has a cache of tokens or not."""

from pathlib import Path

import numpy as np
import pytest

from raybio.core.config import override_all
from raybio.methods import METHODS
from raybio.store import token_cache
from raybio.store.bucket_cache import copies_folder

SETTINGS = {"biostransformers": {"plan.fields": "title,abstract"}, "sppt_mag": {}}


@pytest.mark.parametrize("name", SETTINGS)
def test_batches_are_equal_before_and_after_texts_are_cached(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(token_cache, "_OPENED", {})
    method = METHODS[name]
    store = method.prepare_demo(tmp_path / "store")
    assert method.build(method.demo, store).prepare_node is None  # not for a short run
    settings = {"schedule.max_steps": 10**7, **SETTINGS[name]}
    system = method.build(override_all(method.demo, settings), store)
    shards = [(step, rank, world) for step in (0, 5, 123_456) for rank, world in ((0, 1), (2, 3))]
    before = [system.collate(*shard) for shard in shards]
    assert not copies_folder().exists()
    assert system.prepare_node is not None
    system.prepare_node()
    assert list(copies_folder().glob("tokens-*"))
    for shard, expected in zip(shards, before, strict=True):
        arrays = system.collate(*shard)
        assert arrays.keys() == expected.keys()
        for key, array in expected.items():
            np.testing.assert_array_equal(arrays[key], array)
            assert arrays[key].dtype == array.dtype

    def refuse(*_: object) -> None:
        raise AssertionError("a text was tokenized that is in the cache")

    monkeypatch.setattr("raybio.encoders.tokenization._encode", refuse)
    system.collate(7, 0, 1)
