"""Embedding rows on several workers loses none, repeats none, and gives what one process gives."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from raybio.core.errors import ConfigError
from raybio.core.interfaces import Collective
from raybio.methods import METHODS
from raybio.store.store import Store
from raybio.training import embed as encode
from raybio.training.collective import SingleProcess
from raybio.training.embed import embed_rows
from raybio.training.embedding_model import embedding_column
from raybio.training.loop import fit
from raybio.training.precision import Precision, embedding_precision
from tests.methods.conformance_cases import tiny_config
from tests.training.workers import run_workers

NAME = "sppt_protein"
# 1,001 rows: odd, more than are read at once, and with repetitions.
ROWS = np.resize(np.arange(64), 1001)[::-1].copy()


def embed(
    store: str | Path, rows: np.ndarray, collective: Collective, max_tokens: int = 4096
) -> torch.Tensor:
    from raybio.methods.sppt.collate import unmasked
    from raybio.methods.sppt.proteins.collate import ProteinRows, TokenTable
    from raybio.methods.sppt.proteins.store import ProteinStore
    from raybio.store.store import open_store

    model = METHODS[NAME].build(tiny_config(NAME), store).model
    read = partial(
        unmasked, ProteinRows(open_store(store, ProteinStore), TokenTable.of(model.vocabulary), 40)
    )
    return embed_rows(model, read, rows, collective, max_tokens=max_tokens)


def save_embeddings(rank: int, collective: Collective, folder: Path, store: str) -> None:
    save_file({"embedding": embed(store, ROWS, collective)}, folder / f"{rank}.safetensors")


def test_a_thousand_and_one_rows_over_three_workers_are_embedded_as_by_one(
    tiny_store: Store, tmp_path: Path
) -> None:
    alone = embed(tiny_store.path, ROWS, SingleProcess())
    run_workers(partial(save_embeddings, store=str(tiny_store.path)), 3, tmp_path)
    for rank in range(3):
        found = load_file(tmp_path / f"{rank}.safetensors")["embedding"]
        assert found.shape == (1001, 32)
        torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5)


def test_the_order_of_rows_is_kept_with_any_token_budget(
    tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = embed(tiny_store.path, np.arange(64), SingleProcess())
    monkeypatch.setattr(encode, "ROWS_AT_ONCE", 7)
    pieces = embed(tiny_store.path, np.arange(64), SingleProcess(), max_tokens=100)
    torch.testing.assert_close(pieces, whole, rtol=1e-5, atol=1e-5)
    shuffled = np.random.default_rng(0).permutation(64)
    torch.testing.assert_close(
        embed(tiny_store.path, shuffled, SingleProcess()), whole[shuffled], rtol=1e-5, atol=1e-5
    )


def test_evaluations_embed_in_the_precision_of_the_run(tiny_store: Store) -> None:
    """During training by ``fit``; a block of the same kind surrounds the final evaluation."""
    rows = np.arange(64)
    whole = embed(tiny_store.path, rows, SingleProcess())
    for name in ("fp32", "bf16"):
        config = tiny_config(NAME, **{"schedule.max_steps": 1, "schedule.evaluate_every_steps": 1})
        system = METHODS[NAME].build(config, tiny_store.path)
        seen = []

        def evaluate(model, collective, seen=seen):
            # The training state differs from the initial one: only the precision counts here.
            seen.append(embed(tiny_store.path, rows, collective))
            return {}

        list(fit(replace(system, evaluate=evaluate), config, precision=name))
        for found in seen:
            assert found.dtype == torch.float32
            assert torch.equal(found, whole) == (name == "fp32")
            torch.testing.assert_close(found, whole, rtol=0.1, atol=0.1)
        assert len(seen) == 2
    with embedding_precision(Precision("bf16", "cpu")):
        assert torch.equal(embed(tiny_store.path, rows, SingleProcess()), seen[0])
    assert torch.equal(embed(tiny_store.path, rows, SingleProcess()), whole)


def test_the_encoder_keeps_its_mode(tiny_store: Store) -> None:
    model = METHODS[NAME].build(tiny_config(NAME), tiny_store.path).model
    for mode in (True, False):
        model.train(mode)
        embed_rows(
            model,
            lambda rows: pytest.fail("nothing to read"),
            np.arange(0),
            SingleProcess(),
            max_tokens=9,
        )
        assert model.training is mode


def test_numbers_beyond_float16_are_refused() -> None:
    embedding = np.array([[65_504.0, 1.0], [7e4, -1e5]], np.float32)
    assert embedding_column(embedding, np.dtype("float32")).flatten().to_pylist()[3] == -1e5
    assert embedding_column(embedding[:1], np.dtype("float16")).flatten().to_pylist()[0] == 65_504
    with pytest.raises(ConfigError, match=r"size 100,000, .* 65,504. Choose --dtype float32"):
        embedding_column(embedding, np.dtype("float16"))
