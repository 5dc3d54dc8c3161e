"""Encoders in published layouts: from a hub on the loopback to training, exactly as the others."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from raybio.core.digest import weights_digest
from raybio.core.errors import ConfigError
from raybio.methods import METHODS
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests.encoders.hub import COMMIT, run_with_hub
from tests.methods.published_encoders import PUBLISHED
from tests.methods.test_conformance import assert_equal_gradients, gradients, save_file
from tests.training.workers import run_workers

PROGRAM = """
import json, sys
from raybio.core.errors import ConfigError
from raybio.encoders.sources import source_record
from raybio.methods import METHODS
from raybio.store.store import open_store
from raybio.training.loop import fit
for name, (method, settings, store) in json.load(sys.stdin).items():
    entry = METHODS[method]
    config = entry.config.from_mapping(settings)
    try:
        entry.check(config, open_store(store, entry.store))
        first = next(iter(fit(entry.build(config, store), config)))
    except ConfigError as error:
        print(json.dumps([name, f"ConfigError: {error}"]))
        continue
    record = source_record(config.encoder.source, config.encoder.revision)
    print(json.dumps([name, record["commit"], record["weights"], first.metrics["loss"]]))
"""

NEW = pytest.mark.parametrize("name", ["tape", "esmc", "prott5", "modernbert"])
"""One layout for each way of reading: a conversion, each new architecture."""


@pytest.fixture
def store(request, name):
    return request.getfixturevalue(PUBLISHED[name].store)


@pytest.fixture
def source(name, tmp_path) -> str:
    PUBLISHED[name].write(tmp_path / name)
    return str(tmp_path / name)


@pytest.mark.nightly
def test_every_layout_trains_from_a_hub_and_a_missing_or_unsafe_one_is_refused(request, tmp_path):
    repositories = {}
    cases = {}
    for name, layout in PUBLISHED.items():
        layout.write(tmp_path / name)
        repositories[f"tiny/{name}"] = tmp_path / name
        store = request.getfixturevalue(layout.store)
        config = layout.config(f"tiny/{name}")
        cases[name] = (layout.method, config.to_mapping(), str(store.path))
    for name, method in (("unsafe", "bert"), ("missing", "bert"), ("unsafe_tape", "tape")):
        PUBLISHED[method].write(tmp_path / name)
        weights = tmp_path / name / "pytorch_model.bin"
        if name == "missing":
            weights.unlink()
        else:
            torch.save({"a": print}, weights)
        repositories[f"tiny/{name}"] = tmp_path / name
        _, settings, store_path = cases[method]
        encoder = settings["encoder"] | {"source": f"tiny/{name}"}
        cases[name] = (PUBLISHED[method].method, settings | {"encoder": encoder}, store_path)
    shown = run_with_hub(PROGRAM, json.dumps(cases), repositories, tmp_path)
    result_by_name = {}
    for line in shown.splitlines():
        name, *result = json.loads(line)
        result_by_name[name] = result
    assert result_by_name.keys() == cases.keys()
    for name in PUBLISHED:
        assert len(result_by_name[name]) == 3, result_by_name[name]
        commit, weights, loss = result_by_name[name]
        assert commit == COMMIT
        assert (tmp_path / name / weights).is_file()
        assert 0 < loss < 100
    assert "it has no weights" in result_by_name["missing"][0]
    for name in ("unsafe", "unsafe_tape"):
        assert "more than tensors, and reading it would run code" in result_by_name[name][0]


def walk(name: str, source: str, store, folder: Path, stop_after: int | None = None) -> str:
    """Train into ``folder``; leave the loop after some step as a killed process does."""
    config = PUBLISHED[name].config(source)
    system = METHODS[PUBLISHED[name].method].build(config, store.path)
    checkpoints = CheckpointStore(folder)
    for report in fit(system, config, checkpoints=checkpoints):
        if stop_after is not None and report.step >= stop_after:
            break
    checkpoints.wait()
    return weights_digest(system.model.named_parameters())


@pytest.mark.first_tier("tape", "modernbert")
@NEW
def test_a_run_left_at_a_step_and_started_again_ends_with_bit_identical_weights(
    name, source, store, tmp_path
):
    """With the dropout of the checkpoint, where it has one."""
    expected = walk(name, source, store, tmp_path / "unbroken")
    walk(name, source, store, tmp_path / "run", stop_after=3)
    assert walk(name, source, store, tmp_path / "run") == expected


def _save_gradients(rank, collective, folder, name, source, store_path):
    config = PUBLISHED[name].config(source, **{"encoder.dropout": 0.0})
    system = METHODS[PUBLISHED[name].method].build(config, store_path)
    found = gradients(system, collective, 3, gradient_caching=True, max_tokens=100)
    save_file(found, folder / f"{rank}.safetensors")


@pytest.mark.nightly
@NEW
def test_two_workers_give_the_gradient_of_one_worker_with_the_whole_batch(
    name, source, store, tmp_path
):
    config = PUBLISHED[name].config(source, **{"encoder.dropout": 0.0})
    system = METHODS[PUBLISHED[name].method].build(config, store.path)
    alone = gradients(system, SingleProcess(), 3)
    work = partial(_save_gradients, name=name, source=source, store_path=str(store.path))
    run_workers(work, 2, tmp_path)
    for rank in range(2):
        assert_equal_gradients(load_file(tmp_path / f"{rank}.safetensors"), alone)


@pytest.mark.parametrize("name", ["prott5"])
def test_a_t5_is_not_trained_as_a_language_model(name, source, store):
    layout = PUBLISHED[name]
    check = METHODS[layout.method].check
    check(layout.config(source), store)
    for changes in ({"objective.lambda_spml": 0.5}, {"objective.masked_anchors": "true"}):
        changes = {"objective.masked_anchors": "true"} | changes
        with pytest.raises(ConfigError, match="no mask token and no language-model head"):
            check(layout.config(source, **changes), store)
