"""``determinism``: deterministic kernels in steps, environment, record and notice."""

import json
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from raybio.core.errors import CheckpointError, ConfigError
from raybio.core.interfaces import LossReport
from raybio.core.version import changed_values
from raybio.methods import METHODS
from raybio.store.store import Store, open_store
from raybio.training import determinism
from raybio.training.checkpoint import CheckpointStore, newest_manifest
from raybio.training.collective import ProcessGroup
from raybio.training.determinism import (
    describe_arithmetic,
    deterministic_kernels,
    gather_arithmetic,
    set_environment,
)
from raybio.training.loop import fit
from raybio.training.settings import EXACT_ENVIRONMENT
from tests.methods.conformance_cases import tiny_config
from tests.training.workers import run_workers

CPU = torch.device("cpu")


def flags() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


def walk(
    store: Store,
    folder: Path,
    max_steps: int,
    *,
    is_strict: bool = False,
    collective: ProcessGroup | None = None,
    **settings: object,
) -> None:
    config = tiny_config(
        "sppt_protein",
        **{"schedule.max_steps": max_steps, "optim.schedule": "constant"},
        **settings,
    )
    system = METHODS["sppt_protein"].build(config, store.path)
    checkpoints = CheckpointStore(folder, is_strict=is_strict)
    list(fit(system, config, checkpoints=checkpoints, collective=collective))
    checkpoints.wait()


@pytest.mark.parametrize(("setting", "is_exact"), [("exact", True), ("fast", False)])
def test_a_step_uses_deterministic_kernels_and_restores_the_flags(
    setting: str,
    is_exact: bool,
    tiny_store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny_config("sppt_protein", determinism=setting)
    objective = type(METHODS["sppt_protein"].build(config, tiny_store.path).objective)
    original = objective.embedding_loss
    seen = []

    def noted(*args: Any) -> LossReport:
        seen.append(flags())
        return original(*args)

    monkeypatch.setattr(objective, "embedding_loss", noted)
    before = flags()
    walk(tiny_store, tmp_path, 1, determinism=setting)
    assert seen == [(True, False, False) if is_exact else before]
    assert flags() == before


def test_an_operation_without_a_deterministic_kernel_is_refused_with_the_way_out() -> None:
    def put() -> None:
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))

    before = flags()
    refused = pytest.raises(ConfigError, match=r"got exact, .*put_.* Set determinism=fast")
    with refused, deterministic_kernels("exact"):
        put()
    assert flags() == before
    with deterministic_kernels("fast"):
        put()
    with pytest.raises(RuntimeError, match="of another kind"), deterministic_kernels("exact"):
        raise RuntimeError("of another kind")


def test_exact_sets_the_environment_and_keeps_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EXACT_ENVIRONMENT:
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    set_environment("fast")
    assert not EXACT_ENVIRONMENT.keys() & os.environ.keys()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    set_environment("exact")
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert os.environ["NCCL_ALGO"] == "Ring"


def test_exact_lets_the_compiler_choose_deterministic_kernels_too() -> None:
    """Torch sets it with its own switch, so there is no setting of ours."""
    with deterministic_kernels("exact"):
        assert torch._inductor.config.deterministic
    assert not torch._inductor.config.deterministic


def test_a_checkpoint_records_the_arithmetic_and_a_resume_reports_what_has_changed(
    tiny_store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "raybio")
    walk(tiny_store, tmp_path, 1)
    manifest = newest_manifest(tmp_path)
    assert manifest is not None
    recorded = manifest["arithmetic"]
    assert recorded == describe_arithmetic(CPU, "exact")
    assert recorded["torch"] == torch.__version__ and recorded["device"].startswith("CPU with")
    walk(tiny_store, tmp_path, 2)
    assert "computed otherwise" not in caplog.text

    def described(device: torch.device, setting: str) -> dict[str, Any]:
        return describe_arithmetic(device, setting) | {"device": "NVIDIA H100", "driver": "570.1"}

    monkeypatch.setattr(determinism, "describe_arithmetic", described)
    with pytest.raises(CheckpointError, match="computed otherwise.*NVIDIA H100.*--strict"):
        walk(tiny_store, tmp_path, 3, is_strict=True)
    walk(tiny_store, tmp_path, 3, determinism="fast")
    assert "the checkpoint of step 2 was computed otherwise" in caplog.text
    for change in (
        f"device: {recorded['device']} -> NVIDIA H100",
        "driver: None -> 570.1",
        "determinism: exact -> fast",
    ):
        assert change in caplog.text
    caplog.clear()
    walk(tiny_store, tmp_path, 4, determinism="fast")
    assert "computed otherwise" not in caplog.text
    # The first steps were computed on something else.
    with pytest.raises(
        CheckpointError, match="then NVIDIA H100 -> NVIDIA H100.*Leave out --strict"
    ):
        walk(tiny_store, tmp_path, 5, determinism="fast", is_strict=True)


def describe_with_the_threads_of_a_rank(rank: int, collective: ProcessGroup, folder: Path) -> None:
    for name, threads in (("ranks", rank + 1), ("swapped", 2 - rank), ("equal", 1)):
        torch.set_num_threads(threads)
        described = gather_arithmetic(collective, CPU, "exact")
        (folder / f"{name}-{rank}.json").write_text(json.dumps(described))


def test_the_arithmetic_is_that_of_all_workers_whatever_their_ranks(tmp_path: Path) -> None:
    run_workers(describe_with_the_threads_of_a_rank, 2, tmp_path)
    described = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert described["ranks-0"]["threads"] == [1, 2]
    assert all(described["ranks-0"] == described[f"{name}-1"] for name in ("ranks", "swapped"))
    assert described["equal-0"] == described["equal-1"] == describe_with_threads(1)
    changes = changed_values(described["equal-0"], described["swapped-0"])
    assert changes == ["threads: 1 -> [1, 2]"]


def describe_with_threads(threads: int) -> dict[str, Any]:
    return describe_arithmetic(CPU, "exact") | {"threads": threads}


def train_with_swapped_threads(
    store: Path, rank: int, collective: ProcessGroup, folder: Path
) -> None:
    torch.set_num_threads(rank + 1)
    walk(open_store(store), folder, 1, collective=collective)
    collective.all_sum(torch.zeros(1))
    torch.set_num_threads(2 - rank)
    walk(open_store(store), folder, 2, collective=collective, is_strict=True)


def test_a_run_knows_the_arithmetic_of_all_its_workers(tiny_store: Store, tmp_path: Path) -> None:
    """On nodes that differ, the ranks of a restart may be swapped: the hardware is the same."""
    run_workers(partial(train_with_swapped_threads, tiny_store.path), 2, tmp_path)
    manifest = newest_manifest(tmp_path)
    assert manifest is not None
    assert manifest["step"] == 2
    assert manifest["arithmetic"]["threads"] == [1, 2]


def test_checkpoints_without_a_record_bring_no_notice() -> None:
    assert changed_values({}, describe_arithmetic(CPU, "exact")) == []
