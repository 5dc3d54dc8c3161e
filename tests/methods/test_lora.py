"""Every system with adapters on the encoder of a run: what is trained, saved, resumed and exported."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from raybio.core.config import override_all
from raybio.core.digest import weights_digest
from raybio.core.errors import CheckpointError
from raybio.core.interfaces import Collective, Encoder, System
from raybio.encoders.export_files import EXPORT_FILES
from raybio.methods.relation_graphs.encoders.word_model import WordModel
from raybio.methods.relation_graphs.store import WordStore
from raybio.store.store import Store, open_store
from raybio.training.checkpoint import CheckpointStore
from raybio.training.loop import fit
from raybio.training.micro_batches import micro_batches
from raybio.training.settings import TrainingConfig
from tests.methods.conformance_cases import CASES, METHODS, tiny_config
from tests.methods.published_encoders import PUBLISHED
from tests.training.workers import run_workers

# One method with an encoder of residues, one of words.
pytestmark = pytest.mark.first_tier("sppt_protein", "relation_graphs")

LORA = {"encoder.lora.rank": 4, "encoder.lora.dropout": 0.1, "encoder.dropout": 0.1}


@pytest.fixture(scope="module", params=list(METHODS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest, name: str) -> Store:
    pytest.importorskip("peft")
    return request.getfixturevalue(CASES[name].store)


@pytest.fixture(scope="module")
def config(name: str, store: Store, tmp_path_factory: pytest.TempPathFactory) -> TrainingConfig:
    """Settings of a run with adapters on an exported encoder."""
    folder = tmp_path_factory.mktemp("source") / "export"
    METHODS[name].build(tiny_config(name, seed=5), store.path).export(folder, {})
    return tiny_config(name, **LORA, **{"encoder.source": str(folder)})


def walk(
    name: str, config: TrainingConfig, store: Store, folder: Path, stop_after: int = 1000
) -> System:
    """Train into ``folder``; leave the loop after a step as a killed process does."""
    system = METHODS[name].build(config, store.path)
    checkpoints = CheckpointStore(folder)
    for report in fit(system, config, checkpoints=checkpoints):
        if report.step >= stop_after:
            break
    checkpoints.wait()
    return system


@pytest.fixture(scope="module")
def unbroken(
    name: str, store: Store, config: TrainingConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[System, Path]:
    folder = tmp_path_factory.mktemp("unbroken")
    return walk(name, config, store, folder), folder


def embeddings(system: System, model: Encoder) -> torch.Tensor:
    """Return what a model makes of the first step's inputs, which ``system`` reads."""
    batch = system.batch_type.from_arrays(system.collate(0, 0, 1))
    cut = micro_batches(batch.to("cpu"), model, torch.device("cpu"), max_tokens=100_000)
    model.eval()
    with torch.no_grad():
        return torch.cat([model(tokens).embedding_RD for tokens, _ in cut])


def test_adapters_and_heads_alone_are_trained_and_saved(
    name: str, store: Store, config: TrainingConfig, unbroken: tuple[System, Path]
) -> None:
    system, folder = unbroken
    initial = dict(METHODS[name].build(config, store.path).model.named_parameters())
    saved = CheckpointStore(folder).latest()
    groups = saved.optimizer_description["groups"]
    updated = {key for group in groups for key in group["parameters"]}
    weights = saved.model_tensors()
    assert any("lora_B" in key for key in updated)
    assert updated == {key for key, weight in initial.items() if weight.requires_grad}
    for key, weight in system.model.named_parameters():
        if key in updated:
            assert key in weights
        else:
            assert torch.equal(weight, initial[key]), key
    # The language-model head that a task does not use may be a random one, which no source has.
    kept = {key for key in weights.keys() & initial.keys() if key not in updated}
    assert all(".cls.predictions." in key for key in kept), kept
    moments = load_file(saved.path / "optimizer.safetensors")
    assert {key.split(":", 1)[1] for key in moments} == updated
    changed = [key for key in updated if not torch.equal(weights[key], initial[key])]
    assert any("lora_B" in key for key in changed)


@pytest.mark.parametrize("stop_after", [3])
def test_a_run_that_is_left_and_started_again_ends_with_bit_identical_weights(
    name: str,
    store: Store,
    config: TrainingConfig,
    unbroken: tuple[System, Path],
    tmp_path: Path,
    stop_after: int,
) -> None:
    walk(name, config, store, tmp_path, stop_after)
    assert CheckpointStore(tmp_path).latest().step == 2
    resumed = walk(name, config, store, tmp_path)
    expected, _ = unbroken
    assert weights_digest(resumed.model.named_parameters()) == weights_digest(
        expected.model.named_parameters()
    )


def test_the_export_has_plain_weights_and_embeds_as_the_trained_encoder(
    name: str, store: Store, config: TrainingConfig, unbroken: tuple[System, Path], tmp_path: Path
) -> None:
    system, _ = unbroken
    before = weights_digest(system.model.state_dict().items())
    folder = system.export(tmp_path / "export", {})
    assert weights_digest(system.model.state_dict().items()) == before
    assert (folder / "config.json").is_file()
    assert not (folder / "adapter_config.json").exists()
    tensors = load_file(folder / "model.safetensors")
    assert not any("lora" in key or "base_layer" in key for key in tensors)
    source = load_file(Path(config.encoder.source) / "model.safetensors")
    assert tensors.keys() == source.keys()
    assert any(not torch.equal(weight, source[key]) for key, weight in tensors.items())
    plain = override_all(
        config,
        {
            "encoder.source": str(folder),
            "encoder.lora.rank": None,
            "encoder.lora.dropout": 0.0,
        },
    )
    reloaded = METHODS[name].build(plain, store.path)
    expected = embeddings(system, system.model)
    torch.testing.assert_close(embeddings(system, reloaded.model), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["relation_graphs"], indirect=True)
def test_an_export_of_words_is_loaded_without_adapters_and_peft(
    store: Store,
    unbroken: tuple[System, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system, _ = unbroken
    folder = system.export(tmp_path / "export", {})
    monkeypatch.setattr("raybio.encoders.lora.importlib.util.find_spec", lambda name: None)
    loaded = WordModel.load(folder, open_store(store.path, WordStore), "cpu")
    assert not any("lora" in key for key, _ in loaded.encoder.named_parameters())
    torch.testing.assert_close(
        embeddings(system, loaded.encoder), embeddings(system, system.model), rtol=1e-5, atol=1e-5
    )


# The tests above train BERT.
@pytest.mark.first_tier("esm2", "prott5", "modernbert", "character_bert")
@pytest.mark.parametrize("layout", list(PUBLISHED))
def test_adapters_fit_each_architecture(
    layout: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """They change nothing at first, and their export is what they have become."""
    pytest.importorskip("peft")
    published = PUBLISHED[layout]
    published.write(tmp_path / "source")
    plain = published.config(str(tmp_path / "source"))
    adapted = override_all(plain, {"encoder.lora.rank": 3, "encoder.lora.alpha": 7})
    method = METHODS[published.method]
    store = request.getfixturevalue(published.store)
    method.check(adapted, store)
    system = method.build(adapted, store.path)
    expected = embeddings(system, method.build(plain, store.path).model)
    assert torch.equal(embeddings(system, system.model), expected)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for weight in system.model.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn_like(weight))
    trained = embeddings(system, system.model)
    assert not torch.allclose(trained, expected, atol=1e-2)
    export = system.export(tmp_path / "export", {})
    reloaded = method.build(override_all(plain, {"encoder.source": str(export)}), store.path)
    torch.testing.assert_close(embeddings(system, reloaded.model), trained, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["finetune"], indirect=True)
def test_a_source_that_has_changed_is_refused_when_a_run_resumes(
    name: str, store: Store, config: TrainingConfig, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(config.encoder.source, source)
    config = override_all(config, {"encoder.source": str(source)})
    walk(name, config, store, tmp_path / "run", stop_after=3)
    (source / EXPORT_FILES).unlink()
    weights = load_file(source / "model.safetensors")
    next(iter(weights.values()))[0] += 1
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="encoder.source has changed. Restore it"):
        walk(name, config, store, tmp_path / "run")


def train_as_a_worker(
    rank: int,
    collective: Collective,
    folder: Path,
    name: str,
    config: TrainingConfig,
    store: str,
) -> None:
    system = METHODS[name].build(config, store)
    checkpoints = CheckpointStore(folder / f"{rank}")
    list(fit(system, config, collective=collective, checkpoints=checkpoints))
    # Rank 0 has written; rank 1 compares its weights with those.
    if rank:
        digest = weights_digest(system.model.named_parameters())
        (folder / "digest").write_text(digest)
    else:
        checkpoints.close()


@pytest.mark.parametrize("name", ["finetune"], indirect=True)
def test_two_workers_train_the_weights_of_one(
    name: str, store: Store, config: TrainingConfig, tmp_path: Path
) -> None:
    # Dropout differs between workers.
    config = override_all(config, {"encoder.lora.dropout": 0.0, "encoder.dropout": 0.0})
    alone = walk(name, config, store, tmp_path / "alone")
    run_workers(
        partial(train_as_a_worker, name=name, config=config, store=str(store.path)), 2, tmp_path
    )
    both = METHODS[name].build(config, store.path).model
    initial = {key: weight.detach().clone() for key, weight in both.named_parameters()}
    together = dict(CheckpointStore(tmp_path / "0").latest().model_tensors())
    expected = CheckpointStore(tmp_path / "alone").latest().model_tensors()
    assert together.keys() == expected.keys()
    moved = max(
        float((expected[key] - weight).abs().max())
        for key, weight in initial.items()
        if key in expected
    )
    assert moved > 0
    # Adam turns the rounding of a tiny gradient into a hundredth of a step, on some CPUs.
    for key, weight in expected.items():
        torch.testing.assert_close(together[key], weight, rtol=0, atol=0.01 * moved)
    both.load_state_dict(together, strict=False)
    assert (tmp_path / "digest").read_text() == weights_digest(both.named_parameters())
    assert alone.model.training
