"""Readers of files that raybio writes and reads again, and of checkpoints, and a sound file of each."""

import io
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save
from transformers import AutoTokenizer

from raybio.benchmark.saved_embeddings import embedding_costs
from raybio.core.digest import json_digest
from raybio.core.errors import CheckpointError
from raybio.core.final_report import UnitScores
from raybio.core.records import fields_of, read_record, record_text
from raybio.encoders.checkpoints import check_source, load_pretrained
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.model_card import Card
from raybio.encoders.sentence_folder import read_sentence_folder, write_sentence_files
from raybio.encoders.sources import weights_files
from raybio.encoders.text import check_text_encoder
from raybio.evaluation.unit_scores import TRAINED, read_unit_scores, write_unit_scores
from raybio.methods.relation_graphs.config import WordEncoderConfig
from raybio.methods.relation_graphs.encoder import check_word_encoder
from raybio.runtime.embed_parts import check_output
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog, read_reports
from raybio.runtime.run.notices import WarningPrinter, read_starts
from raybio.runtime.run.result import Result, finished_result, result_of
from raybio.runtime.search.embeddings import read_embeddings
from raybio.runtime.spool.lease import Holder
from raybio.runtime.tune.trial import SweepSpec, earlier_trials
from raybio.store.manifest import SCHEMA_VERSION, parse_manifest
from raybio.store.store import open_store
from raybio.training.checkpoint_files import (
    FORMAT_VERSION,
    DamagedError,
    read_extra,
    read_manifest,
)
from raybio.training.loop import Report
from raybio.training.progress import Progress
from raybio.training.remote_checkpoints import last_step_of_log
from raybio.training.settings import TrainingConfig
from tests.encoders.tiny_text import save_tiny
from tests.runtime.tune.sweep_folder import spec_of
from tests.sound_inputs import Reader, json_lines

REPORTS = [
    {"step": 0, "time_ms": 1_700_000_000_000, "metrics": {"val/link_ndcg": 0.5}, "is_evaluation": True},
    {"step": 5, "time_ms": 1_700_000_001_000, "metrics": {"loss": 1.5, "epoch": 0.1}},
]  # fmt: skip
NOTICES = [
    {"time_ms": 1_700_000_000_000, "first_step": 0, "steps_per_epoch": 4.0, "device": "cpu"},
    {"time_ms": 1_700_000_000_500, "rank": 0, "warning": "a row is skipped"},
    {"time_ms": 1_700_000_000_700, "rank": 0, "progress": "evaluating"},
]
HOLDER = {
    "id": "0123456789abcdef",
    "counter": 3,
    "held_seconds": 30,
    "host": "node",
    "machine": "node-1-pid:[4026531836]",
    "pid": 7,
    "process_start": 12345,
}
CARD = "---\nname: Mine\ntags: [proteins]\ndate: 2020-01-02\n---\n\n# Mine\n"
FIRST_BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "vocab_size": 100,
    "hidden_act": "gelu",
}
"""A config.json without the model's type."""

MANIFEST = {
    "schema_version": SCHEMA_VERSION,
    "kind": "proteins",
    "files": {"rows.arrow": {"bytes": 10, "sha256": "0" * 64}},
    "counts": {"rows": 2},
}

RESULT = {
    "status": "finished",
    "step": 5,
    "best_step": None,
    "precision": "fp32",
    "metrics": {"loss": 1.5},
    "final": {"scores": {"trained": {"val": {"lrap": {"value": 0.5}}}}},
    "config": {"schedule": {"max_steps": 5}},
    "checkpoint": None,
    "weights_sha256": "0" * 64,
    "mlflow_run_id": None,
    "inputs": [],
}


@cache
def any_sweep() -> SweepSpec:
    with tempfile.TemporaryDirectory() as folder:
        return spec_of(Path(folder))


def sweep_in(folder: Path) -> SweepSpec:
    """Return a sweep of which a folder has the records."""
    spec = any_sweep()
    return replace(spec, run=replace(spec.run, runs=folder.parent, name=folder.name))


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read a log as all that follow a run do, and as a run that resumes."""
    reports = read_reports(path)
    last_step_of_log(path)
    for report in reports:
        json.dumps([report["step"] + 1, report["time_ms"] / 1000, *report["metrics"].items()])
    MetricsLog(path).rewind(3)
    assert read_reports(path) == [report for report in reports if report["step"] <= 3]
    return reports


def read_notices(path: Path) -> list[dict[str, Any]]:
    """Read notices as the driver and the model card do."""
    starts = read_starts(path)
    for start in starts:
        f"{start['first_step']:,} {start['steps_per_epoch']:.2f} {start['time_ms'] + 1}"
    content = path.read_bytes()
    path.unlink()
    printer = WarningPrinter()
    printer.follow(path)
    path.write_bytes(content)
    printer.show(path, "run")
    return starts


def read_holder(path: Path) -> str:
    """Read a lease as the next driver does."""
    holder = Holder.parse(path.read_bytes())
    holder.is_running()
    return str(holder)


def signed_manifest(content: Any) -> bytes:
    checksum = json_digest({name: value for name, value in content.items() if name != "checksum"})
    return json.dumps(content | {"checksum": checksum}).encode()


def signed_record(kind: str) -> Callable[[Any], bytes]:
    def sign(content: Any) -> bytes:
        header = ("format", "version", "checksum")
        plain = {name: value for name, value in content.items() if name not in header}
        return record_text(kind, plain).encode()

    return sign


def read_store(path: Path) -> int:
    """Read a store as every command does."""
    store = open_store(path.parent)
    return len(store.content_digest) + store.num_rows


def read_run(path: Path) -> Result:
    """Read a finished run as its own command does."""
    folder = RunFolder(path.parent.parent, path.parent.name, None)
    finished_result(folder, TrainingConfig())
    return result_of(read_record(path, "result") or {}, folder, was_finished=True)


def read_progress(path: Path) -> Progress:
    try:
        extra = read_extra(path.parent)
    except DamagedError as error:  # its caller takes an older checkpoint
        raise CheckpointError(str(error)) from None
    progress = Progress(**fields_of(Progress, extra, path))
    if progress.report is not None:
        Report(**fields_of(Report, progress.report, path))
    return progress


def unit_scores_file() -> bytes:
    scores = UnitScores(np.arange(3), {"lrap": np.array([0.5, 1.0, 0.25])})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "unit_scores.npz"
        write_unit_scores(path, {TRAINED: {"val": scores}})
        return path.read_bytes()


def embeddings_file() -> bytes:
    content = io.BytesIO()
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6, dtype=np.float32)), 3)
    table = pa.table({"key": ["a", "b"], "embedding": vectors})
    table = table.replace_schema_metadata({b"raybio": b"origin"})
    pq.write_table(table, content, write_page_checksum=True)
    return content.getvalue()


@cache
def tiny_checkpoint() -> Path:
    """A checkpoint of a text encoder that is in memory until the process ends."""
    folder = Path(tempfile.mkdtemp())
    save_tiny(folder)
    write_sentence_files(folder, width=32, pooling="mean", max_tokens=32)
    return folder


def write_checkpoint(folder: Path) -> None:
    shutil.copytree(tiny_checkpoint(), folder, dirs_exist_ok=True)


def checked_text_encoder(path: Path) -> bool:
    """Check a checkpoint as training does before it starts."""
    check_text_encoder(TextEncoderConfig(source=str(path.parent), max_length=32))
    return True


def checked_word_encoder(path: Path) -> bool:
    check_word_encoder(WordEncoderConfig(source=str(path.parent), num_frozen_layers=0))
    return True


def checked_weights(path: Path) -> bool:
    check_source(str(path.parent), "main")
    return True


def read_tokenizer(path: Path) -> object:
    return load_pretrained(AutoTokenizer, str(path.parent), "main")


def read_modules(path: Path) -> object:
    return read_sentence_folder(str(path.parent), "main")


RECORDS = {
    "log of reports": Reader(read_log, "metrics.jsonl", json_lines(*REPORTS), skips=True),
    "notices of workers": Reader(read_notices, "notices.jsonl", json_lines(*NOTICES), skips=True),
    "manifest of a store": Reader(
        lambda path: parse_manifest(path.read_bytes(), path.parent),
        "manifest.json",
        MANIFEST | {"checksum": json_digest(MANIFEST)},
    ),
    "manifest of a store, signed again": Reader(
        read_store,
        "manifest.json",
        MANIFEST,
        lambda folder: (folder / "rows.arrow").write_bytes(b"0" * 10),
        sign=signed_manifest,
    ),
    "manifest of a checkpoint, signed again": Reader(
        lambda path: read_manifest(path.parent),
        "manifest.json",
        {"format_version": FORMAT_VERSION, "step": 3, "versions": {"raybio": "0.2.0"}},
        sign=signed_manifest,
    ),
    "state of a checkpoint": Reader(
        read_progress,
        "state.json",
        {
            "step": 3,
            "extra": vars(Progress(3, report=Report(step=3, metrics={"loss": 1.5}).to_progress())),
        },
        sign=lambda content: json.dumps(content).encode(),
    ),
    "result, signed again": Reader(read_run, "result.json", RESULT, sign=signed_record("result")),
    "trials of a sweep, signed again": Reader(
        lambda path: earlier_trials(sweep_in(path.parent)),
        "trials.json",
        {"trials": [{"settings": {"optim.peak_lr": 0.1}, "branch": "", "donor": ""}]},
        sign=signed_record("trials"),
    ),
    "cost of embeddings, signed again": Reader(
        lambda path: embedding_costs(path.parent),
        "a.json",
        {"what": "", "sha256": "", "rows": 2, "seconds": 0.5, "device": "cpu", "peak_bytes": None},
        skips=True,
        sign=signed_record("benchmark embeddings"),
    ),
    "lease": Reader(read_holder, "lease.json", HOLDER, skips=True),
    "scores of units": Reader(read_unit_scores, "unit_scores.npz", unit_scores_file()),
    "embeddings to search": Reader(
        lambda path: list(read_embeddings(path)), "a.parquet", embeddings_file()
    ),
    "embeddings that are there": Reader(
        lambda path: check_output(path, "origin"), "a.parquet", embeddings_file()
    ),
    "card of a model": Reader(
        lambda path: Card.parse(path.read_bytes().decode(errors="replace")), "README.md", CARD
    ),
    "settings of a text encoder": Reader(
        checked_text_encoder,
        "config.json",
        tiny_checkpoint() / "config.json",
        write_checkpoint,
        3000,
    ),
    "settings of a word encoder": Reader(
        checked_word_encoder,
        "config.json",
        tiny_checkpoint() / "config.json",
        write_checkpoint,
        3000,
    ),
    "settings of the first BERT": Reader(
        checked_text_encoder, "config.json", FIRST_BERT, write_checkpoint, 3000
    ),
    "header of weights": Reader(
        checked_weights,
        "model.safetensors",
        save({"a.weight": np.zeros((2, 3), np.float32), "b": np.zeros(2)}),
        write_checkpoint,
    ),
    "tokenizer": Reader(
        read_tokenizer,
        "tokenizer.json",
        tiny_checkpoint() / "tokenizer.json",
        write_checkpoint,
        3000,
    ),
    "settings of a tokenizer": Reader(
        read_tokenizer,
        "tokenizer_config.json",
        tiny_checkpoint() / "tokenizer_config.json",
        write_checkpoint,
        3000,
    ),
    "modules of sentence-transformers": Reader(
        read_modules, "modules.json", tiny_checkpoint() / "modules.json", write_checkpoint
    ),
    "pooling of sentence-transformers": Reader(
        lambda path: read_modules(path.parent),
        "1_Pooling/config.json",
        tiny_checkpoint() / "1_Pooling" / "config.json",
        write_checkpoint,
    ),
    "list of parts of weights": Reader(
        lambda path: weights_files(str(path.parent), "main"),
        "model.safetensors.index.json",
        {"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}},
    ),
}
