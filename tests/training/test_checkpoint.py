"""Checkpoints: exact resume, damage, identity."""

import hashlib
import json
import logging
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from raybio.core.errors import CheckpointError
from raybio.core.records import MAX_RECORD_BYTES
from raybio.training import durable
from raybio.training.checkpoint import CheckpointStore
from raybio.training.checkpoint_files import DamagedError, read_extra, read_manifest
from raybio.training.optim import set_learning_rate
from raybio.training.snapshot import Staging, TrainingState
from tests.training.small_checkpoints import (
    DATA,
    FILES,
    Settings,
    SmallModel,
    names,
    new_state,
    open_store,
    save_steps,
    train,
    weights_hash,
)


def test_five_steps_a_checkpoint_and_five_more_end_with_the_bits_of_ten_steps(
    tmp_path: Path,
) -> None:
    unbroken = new_state()
    train(unbroken, range(10))

    broken = new_state()
    train(broken, range(5))
    store = open_store(tmp_path)
    store.save(broken, 5)
    train(broken, range(5, 8))  # while the thread writes
    store.close()

    resumed = new_state(seed=99)
    saved = CheckpointStore(tmp_path).load_newest(Settings(), DATA)
    assert saved.step == 5 and saved.extra == {"seen": 0}
    saved.restore(resumed.model, resumed.optimizer)
    train(resumed, range(5, 10))
    assert weights_hash(resumed.model) == weights_hash(unbroken.model)


def test_optimizer_state_is_saved_under_parameter_names_and_another_model_is_refused(
    tmp_path: Path,
) -> None:
    state = new_state()
    train(state, range(3))
    store = open_store(tmp_path)
    store.save(state, 3)
    store.close()
    saved = load_file(tmp_path / "step-00000003" / "optimizer.safetensors")
    parameter = state.model.head.bias
    assert torch.equal(saved["exp_avg:head.bias"], state.optimizer.state[parameter]["exp_avg"])
    assert not any("unused" in name or "frozen" in name for name in saved)

    model = SmallModel(1)
    model.__delattr__("embed")
    with pytest.raises(
        CheckpointError, match=r"missing in the checkpoint head.weight, unknown to the model embed"
    ):
        CheckpointStore(tmp_path).latest().restore(model)


@pytest.mark.parametrize("bias", [torch.zeros(3), torch.zeros(2, dtype=torch.float64)])
def test_a_model_of_another_shape_or_dtype_is_refused_and_unchanged(
    bias: torch.Tensor, tmp_path: Path
) -> None:
    save_steps(tmp_path, 1)
    other = SmallModel(1)
    other.unused.bias = nn.Parameter(bias)
    before = weights_hash(other)
    with pytest.raises(
        CheckpointError, match=r"unused.bias: the checkpoint has torch.float32 \(2,\)"
    ):
        CheckpointStore(tmp_path).latest().restore(other)
    assert weights_hash(other) == before


def test_a_checkpoint_is_what_the_model_was_when_save_was_called(
    tmp_path: Path, monkeypatch
) -> None:
    may_write = threading.Event()
    original = durable.write_tensors

    def late(path: Path, tensors: dict[str, Tensor]) -> durable.FileRecord:
        may_write.wait()
        return original(path, tensors)

    monkeypatch.setattr(durable, "write_tensors", late)
    state = new_state()
    train(state, range(1))
    expected = weights_hash(state.model)
    store = open_store(tmp_path)
    store.save(state, 1)
    train(state, range(1, 3))
    state.extra["seen"] = "changed"
    may_write.set()
    store.wait()
    saved = store.latest()
    other = new_state(5)
    saved.restore(other.model, other.optimizer)
    assert weights_hash(other.model) == expected and saved.extra == {"seen": 0}


def test_the_log_is_on_the_disk_before_a_checkpoint_that_follows_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text("{}\n")
    store = open_store(tmp_path / "checkpoints", log=log)
    events = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def noted_rename(source: Path, target: Path) -> None:
        events.append(str(target))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    store.save(new_state(), 1)
    store.close()
    assert events.index(str(log)) < events.index(str(store.directory / "step-00000001"))


def test_only_the_newest_are_kept_without_other_leftovers(tmp_path: Path) -> None:
    (tmp_path / ".writing-step-00000001-77").mkdir()
    (tmp_path / ".writing-step-00000001-77" / "model.safetensors").write_bytes(b"half")
    save_steps(tmp_path, 1, 2, 3, 4, keep=2)
    assert names(tmp_path) == ["step-00000003", "step-00000004"]
    assert names(tmp_path / "step-00000004") == FILES


def test_the_manifest_describes_the_files_and_their_run(tmp_path: Path) -> None:
    save_steps(tmp_path, 7)
    folder = tmp_path / "step-00000007"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["config"] == Settings().to_mapping() and manifest["data_digest"] == DATA
    assert manifest["step"] == 7 and manifest["versions"]["torch"] == torch.__version__
    for name in FILES[1:]:
        content = (folder / name).read_bytes()
        assert manifest["files"][name] == {
            "sha256": hashlib.sha256(content).hexdigest(),
            "bytes": len(content),
        }


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
        return
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "emptied":
        content.clear()
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["truncated", "flipped", "missing", "emptied"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_newest_is_skipped_with_a_warning_that_names_the_file(
    name: str, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_steps(tmp_path, 1, 2)
    damage(tmp_path / "step-00000002" / name, how)
    with caplog.at_level(logging.WARNING):
        saved = CheckpointStore(tmp_path).load_newest(Settings(), DATA)
    assert saved.step == 1
    assert str(tmp_path / "step-00000002" / name) in caplog.text
    # Found by its size, before its checksum is computed.
    if name != "manifest.json" and how in ("truncated", "emptied"):
        assert " bytes, want " in caplog.text

    damage(tmp_path / "step-00000001" / name, how)
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints can be used.*backup"):
        CheckpointStore(tmp_path).load_newest(Settings(), DATA)


def test_any_flipped_bit_of_a_manifest_is_detected(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    path = tmp_path / "step-00000001" / "manifest.json"
    good = path.read_bytes()
    manifest = CheckpointStore(tmp_path).latest().manifest
    for position in range(0, len(good), 7):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        path.write_bytes(bad)
        try:
            assert (
                CheckpointStore(tmp_path).latest().manifest == manifest
            )  # a blank became another blank
        except CheckpointError as error:
            assert "manifest.json" in str(error)


def test_saving_the_same_step_again_after_damage_replaces_it_without_a_gap(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2, keep=2)
    damage(tmp_path / "step-00000002" / "state.json", "flipped")
    save_steps(tmp_path, 2, keep=2)
    assert names(tmp_path) == ["step-00000001", "step-00000002-1"]
    assert CheckpointStore(tmp_path).latest().step == 2


def test_a_damaged_later_checkpoint_does_not_push_out_the_sound_ones(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 3, keep=2)
    damage(tmp_path / "step-00000003" / "model.safetensors", "flipped")
    save_steps(tmp_path, 2, keep=1)
    assert names(tmp_path) == ["step-00000002"]


def test_changed_settings_are_refused_by_name_unless_they_may_change(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    changed = Settings.from_mapping({"max_steps": 20, "optim": {"peak_lr": 0.1}})
    with pytest.raises(CheckpointError, match=r"max_steps: 10 -> 20; optim.peak_lr: 0.0003 -> 0.1"):
        CheckpointStore(tmp_path).load_newest(changed, DATA)
    allowed = CheckpointStore(tmp_path).load_newest(
        changed, DATA, ignore=["max_steps", "optim.peak_lr"]
    )
    assert allowed.step == 1


def test_a_checkpoint_older_than_a_setting_is_taken_with_its_default_and_no_other_value(
    tmp_path: Path,
) -> None:
    class Newer(Settings):
        added: int = 3

    save_steps(tmp_path, 1)
    assert CheckpointStore(tmp_path).load_newest(Newer(), DATA).step == 1
    with pytest.raises(CheckpointError, match="added: 3 -> 4"):
        CheckpointStore(tmp_path).load_newest(Newer(added=4), DATA)


def test_an_optimizer_saved_before_groups_had_their_own_rates_resumes(tmp_path: Path) -> None:
    state, resumed = new_state(), new_state(5)
    train(state, range(3))
    for group in state.optimizer.param_groups:
        del group["lr_ratio"]
    store = open_store(tmp_path)
    store.save(state, 3)
    store.close()
    CheckpointStore(tmp_path).latest().restore(resumed.model, resumed.optimizer)
    set_learning_rate(resumed.optimizer, 0.25)
    assert [group["lr"] for group in resumed.optimizer.param_groups] == [0.25, 0.25]


def test_changed_data_are_refused(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    with pytest.raises(CheckpointError, match="data digest: dddd.* -> eeee"):
        CheckpointStore(tmp_path).load_newest(Settings(), "e" * 64)


def test_an_empty_folder_has_no_checkpoint_and_saving_needs_an_identity(
    tmp_path: Path,
) -> None:
    store = CheckpointStore(tmp_path / "none")
    assert store.latest() is None
    with pytest.raises(CheckpointError, match="before load_newest"):
        store.save(new_state(), 1)


def test_a_manifest_larger_than_any_that_is_written_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(MAX_RECORD_BYTES + 1)  # a hole, which takes no room
    with pytest.raises(
        DamagedError, match=r"manifest\.json: holds 268,435,457 bytes, want at most"
    ):
        read_manifest(tmp_path)


@pytest.mark.parametrize("state", [[], {}, {"extra": None}])
def test_a_state_without_that_of_the_run_is_damaged(state: object, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(DamagedError, match=r"state\.json: lacks the state of the run"):
        read_extra(tmp_path)


def test_another_format_is_named_and_does_not_count_as_damage(tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("raybio.training.checkpoint_files.FORMAT_VERSION", 99)
        save_steps(tmp_path, 1)
    with pytest.raises(CheckpointError, match="format 99, this program reads 2"):
        CheckpointStore(tmp_path).latest()


def test_values_that_no_checkpoint_can_hold_are_refused_when_saving(tmp_path: Path) -> None:
    state = new_state()
    store = open_store(tmp_path)
    foreign = torch.optim.AdamW([nn.Parameter(torch.zeros(3))])
    with pytest.raises(CheckpointError, match=r"shape \(3,\) that is not in the model"):
        store.save(TrainingState(state.model, foreign, {}), 1)
    with pytest.raises(TypeError, match="not JSON serializable"):
        store.save(TrainingState(state.model, state.optimizer, {"object": object()}), 1)
    assert names(tmp_path) == []


def test_zero_steps_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        CheckpointStore(tmp_path, keep=0)


TENSORS = {
    "half": torch.arange(6).reshape(2, 3).bfloat16(),
    "scalar": torch.tensor(3.5),
    "none": torch.zeros(0, 4),
    "flags": torch.tensor([True, False, True]),
    "wide": torch.tensor([2**60, -1]),
    "odd": torch.tensor([1, 2, 3], dtype=torch.int16),
    "precise": torch.tensor([1 / 3], dtype=torch.float64),
    "gewöhnlich/ü": torch.ones(1),
}


def test_tensor_files_are_read_back_by_the_safetensors_package(tmp_path: Path) -> None:
    record = durable.write_tensors(tmp_path / "x.safetensors", TENSORS)
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor), name
    content = (tmp_path / "x.safetensors").read_bytes()
    assert record == (hashlib.sha256(content).hexdigest(), len(content))


def test_an_empty_tensor_file_can_be_read(tmp_path: Path) -> None:
    durable.write_tensors(tmp_path / "x.safetensors", {})
    assert load_file(tmp_path / "x.safetensors") == {}


def test_copies_equal_tensors_of_any_layout_and_use_the_same_memory_again() -> None:
    tensors = TENSORS | {"turned": torch.arange(6.0).reshape(2, 3).T}
    staging = Staging()
    places = []
    for _ in range(2):
        copies = staging.copy(tensors)
        for name, tensor in tensors.items():
            assert torch.equal(copies[name], tensor) and copies[name].is_contiguous(), name
            assert not tensor.numel() or copies[name].data_ptr() != tensor.data_ptr()
        places.append([copy.data_ptr() for copy in copies.values()])
    assert places[0] == places[1]
