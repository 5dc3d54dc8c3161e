"""Precision is measured on CPUs and agreed upon by all workers."""

import logging
from pathlib import Path

import pytest
import torch

from raybio.errors import ConfigError
from raybio.training import precision
from raybio.training.gather import ProcessGroup
from raybio.training.precision import PrecisionName, bf16_speedup, resolve_precision
from tests.training.workers import run_workers


def product_dtype(name: str) -> torch.dtype:
    with resolve_precision(name, "cpu").autocast():
        return torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype


def test_bf16_multiplies_in_bf16_and_fp32_in_fp32() -> None:
    assert product_dtype("bf16") == torch.bfloat16
    assert product_dtype("fp32") == torch.float32


@pytest.mark.parametrize(("speedup", "name"), [(0.3, "fp32"), (1.0, "fp32"), (2.5, "bf16")])
def test_auto_on_a_cpu_takes_bf16_only_where_it_was_measured_faster(
    speedup: float, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "bf16_speedup", lambda device: speedup)
    assert resolve_precision("auto", "cpu").name == name


@pytest.mark.parametrize(
    ("setting", "speedup", "says"),
    [("bf16", 0.33, ["3.0 times"]), ("bf16", 0.95, []), ("fp32", 0.3, []), ("auto", 0.3, [])],
)
def test_bf16_that_is_slow_on_a_cpu_is_done_as_asked_with_one_warning(
    setting: PrecisionName,
    speedup: float,
    says: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(precision, "bf16_speedup", lambda device: speedup)
    assert resolve_precision(setting, "cpu").name == ("bf16" if setting == "bf16" else "fp32")
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(says)
    assert all(f"take {text} as long as in fp32. Set precision=auto" in messages[0] for text in says)


def test_the_measurement_gives_a_ratio() -> None:
    assert 0.01 < bf16_speedup("cpu", width=64) < 100


def one_slow_worker(rank: int, collective: ProcessGroup, folder: Path) -> None:
    precision.bf16_speedup = lambda device: 3.0 if rank == 0 else 0.5
    assert resolve_precision("auto", "cpu", collective).name == "fp32"
    precision.bf16_speedup = lambda device: 3.0
    assert resolve_precision("auto", "cpu", collective).name == "bf16"
    warnings: list[logging.LogRecord] = []
    logging.getLogger(precision.__name__).addFilter(lambda record: warnings.append(record) or False)
    precision.bf16_speedup = lambda device: 0.3
    resolve_precision("bf16", "cpu", collective)
    assert len(warnings) == (rank == 0)


def test_workers_agree_on_fp32_if_one_of_them_is_slower_with_bf16_and_one_of_them_warns(tmp_path: Path) -> None:
    run_workers(one_slow_worker, 2, tmp_path)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="'fp16'; want fp32, bf16 or auto"):
        resolve_precision("fp16", "cpu")
