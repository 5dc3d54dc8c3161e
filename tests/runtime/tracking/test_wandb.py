"""Metrics of a run in an offline run of Weights & Biases, as its own reader sees them."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raybio.core.errors import ConfigError
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog, read_reports
from raybio.runtime.tracking.wandb import TIME, write_offline_run
from raybio.training.settings import TrainingConfig


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs", "first")
    folder.make()
    log = MetricsLog(folder.metrics)
    log.append(1, {"loss": 2.0, "val/link_mrr": 0.25})
    log.append(3, {"loss": 1.5})
    return folder


def records(path: Path) -> Iterator[Any]:
    """The records in the file of an offline run."""
    from wandb.proto import wandb_internal_pb2

    # LevelDB's log format behind seven bytes: blocks of records, whole or in parts.
    content = path.read_bytes()
    assert content[:4] == b":W&B"
    payload = b""
    position = 7
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length = int.from_bytes(content[position + 4 : position + 6], "little")
        payload += content[position + 7 : position + 7 + length]
        is_last_part = content[position + 6] in (1, 4)
        position += 7 + length
        if not is_last_part:
            continue
        record = wandb_internal_pb2.Record()
        record.ParseFromString(payload)
        payload = b""
        yield record


def rows(path: Path) -> list[dict[str, float]]:
    """The rows of the history in the file of an offline run."""
    found = []
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {item.key or "/".join(item.nested_key): item.value_json for item in items}
            found.append({name: json.loads(value) for name, value in row.items()})
    return found


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_offline_run_has_every_value_with_its_step(folder: RunFolder, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    for _ in range(2):  # the second replaces the first
        assert write_offline_run(folder, tmp_path / "out", "raybio") == 3
    (path,) = (tmp_path / "out" / "first" / "wandb").glob("offline-run-*/*.wandb")
    times = [report["time_ms"] / 1000 for report in read_reports(folder.metrics)]
    found = [
        {
            name: value
            for name, value in row.items()
            if name in ("_step", "loss", "val/link_mrr", TIME)
        }
        for row in rows(path)
    ]
    assert found == [
        {"_step": 1, "loss": 2.0, "val/link_mrr": 0.25, TIME: times[0]},
        {"_step": 3, "loss": 1.5, TIME: times[1]},
    ]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_runs_of_one_name_in_two_folders_do_not_replace_each_other(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    ids = []
    for place in ("one", "two", "one"):
        folder = RunFolder(tmp_path / place, "first")
        folder.open("sppt_protein", TrainingConfig(), Path("/store"), "d" * 64, ())
        MetricsLog(folder.metrics).append(1, {"loss": 2.0})
        write_offline_run(folder, tmp_path / "out", "raybio")
        (path,) = (tmp_path / "out" / "first" / "wandb").glob("offline-run-*/*.wandb")
        ids += [record.run.run_id for record in records(path) if record.HasField("run")]
    assert ids[0] == ids[2] != ids[1]


def test_what_is_no_run_and_a_missing_extra_are_refused(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="other has no metrics.jsonl; want the folder of a run"):
        write_offline_run(RunFolder(tmp_path, "other"), tmp_path / "out", "raybio")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"wandb is not installed: .*raybio\[wandb\]"):
        write_offline_run(folder, tmp_path / "out", "raybio")
