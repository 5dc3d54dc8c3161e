"""What raybio writes is whole, old or new, after a power loss at any moment."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raybio.core import files
from raybio.core.csv_table import write_csv
from raybio.core.final_report import UnitScores
from raybio.core.records import write_record
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.export import export_text_encoder
from raybio.encoders.text import build_text_encoder
from raybio.evaluation.figures import new_figure, save_figure
from raybio.evaluation.report import Section, write_report
from raybio.evaluation.unit_scores import TRAINED, write_unit_scores
from raybio.runtime.embed_parts import Parts, join, write_shards
from tests.encoders.tiny_text import COUNT_BY_WORD
from tests.power_loss import Disk
from tests.store.test_store import parts, write_store

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="names of open files are read from /proc"
)
FACTS = {"origin": "this", "part_digest": "m", "model_digest": "m", "cut": ""}


def write_small_store(path: Path, version: int) -> None:
    sequences = ["ACD", "EFGH", "IKLMN", "P", "QRS" * version]
    write_store(path, force=True, **parts(sequences))


def write_export(path: Path, version: int) -> None:
    config = TextEncoderConfig(num_layers=1, width=16, num_heads=2, ffn_width=32, max_length=12)
    encoder = build_text_encoder(config, seed=version, count_by_word=COUNT_BY_WORD)
    export_text_encoder(encoder.eval(), path, card={})


def embedded(folder: Path, version: int) -> tuple[Parts, list[str]]:
    own = Parts(folder)
    (digest,) = own.cut(iter([pa.table({"key": ["a"], "content": [b"MKT"]})]))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.5, float(version)]), 2)
    table = pa.table({"key": ["a"], "embedding": vectors})
    own.write(0, table, input_digest=digest, model_digest="m")
    return own, [digest]


def write_embeddings(path: Path, version: int) -> None:
    own, inputs = embedded(path.with_name("parts"), version)
    join(own, inputs, path, **FACTS)


def write_folder_of_embeddings(path: Path, version: int) -> None:
    own, inputs = embedded(path.with_name("parts"), version)
    write_shards(own, inputs, path, **FACTS)


def write_scores(path: Path, version: int) -> None:
    scores = UnitScores(np.arange(2), {"lrap": np.array([0.5, version])})
    write_unit_scores(path, {TRAINED: {"val": scores}})


def draw(path: Path, version: int) -> None:
    figure = new_figure(1, 1)
    figure.text(0.5, 0.5, f"{version}")
    save_figure(figure, path)


WRITERS: dict[str, Callable[[Path, int], object]] = {
    "store": write_small_store,
    "export": write_export,
    "embeddings": write_embeddings,
    "folder of embeddings": write_folder_of_embeddings,
    "record": lambda path, version: write_record(path, "start", {"step": version}),
    "scores of units": write_scores,
    "table": lambda path, version: write_csv(path, [["a"], [version]]),
    "figure": draw,
    "report": lambda path, version: write_report(f"Of {version}", [Section("A")], path.parent),
}
NAMES = {"report": "report.md"}


@needs_proc
@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("name", WRITERS)
def test_a_power_loss_leaves_the_old_content_or_the_new_one(
    name: str, can_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:  # as on some network disks
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    target = tmp_path / NAMES.get(name, "target")
    before = None
    for version in (1, 2):
        disk = Disk(tmp_path, target)
        with disk.watched():
            WRITERS[name](target, version)
        after = disk.now()
        assert after != before
        # Without an exchange, a replaced folder is absent between two renames.
        whole = [before, after] if can_exchange or version == 1 else [before, after, None]
        assert [state for state in disk.states if state not in whole] == []
        assert disk.states[-2:] == [after, after]
        before = after


@needs_proc
def test_a_file_that_is_written_in_place_is_found(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("old")
    disk = Disk(tmp_path, target)
    with disk.watched():
        target.write_text("new")
    assert disk.states[-2:] == [{"": b"old"}] * 2
    disk = Disk(tmp_path, target)
    with disk.watched():
        (tmp_path / "new").write_text("newer")
        os.replace(tmp_path / "new", target)
    assert disk.states == [{"": b""}, {"": b"new"}]
