"""Bulk embedding holds a part at a time: peak memory does not grow with the rows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

FEW, MANY = 10_000, 100_000

CHILD = """
import contextlib, json, re, sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import build_protein_encoder
from raybio.methods.sppt.proteins.export import export_encoder
from raybio.runtime import embed, embed_actors
from raybio.runtime.model_folders import model_of_folder
from raybio.runtime.task_errors import NO_ERROR

num_rows, folder = int(sys.argv[1]), Path(sys.argv[2])
letters = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)
rng = np.random.default_rng(0)
with open(folder / "proteins.fasta", "wb") as file:
    for row in range(num_rows):
        file.write(b">p%d\\n%s\\n" % (row, rng.choice(letters, 300).tobytes()))
sizes = dict(num_layers=1, width=128, num_heads=2, ffn_width=128, max_positions=16)
encoder = build_protein_encoder(EncoderConfig(**sizes, pooling="mean"), seed=0).eval()
export_encoder(encoder, folder / "export", card={}, max_tokens=16)

def embed_parts(of_actors, missing, *_, **__):
    # In this process, in place of Ray's actors: the peak is that of driver and worker together.
    actor = embed_actors._EmbedPart(*of_actors, 1)
    for number in missing:
        assert actor(pa.table({"part": [number]})).to_pylist() == [NO_ERROR]

embed.connected = lambda *_, **__: contextlib.nullcontext(SimpleNamespace(threads_per_worker=1))
embed.embed_parts = embed_parts

def status(name):
    return int(re.search(rf"{name}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

before = status("VmHWM")
model = model_of_folder(folder / "export")
summary = embed.embed_file(model, folder / "proteins.fasta", folder / "out.parquet")
assert summary.num_rows == num_rows, summary
print(json.dumps({"imports": before, "work": status("VmHWM") - before}))
"""


def peak_mib(num_rows: int, folder: Path) -> dict[str, float]:
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(num_rows), str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    peak: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return peak


@pytest.mark.nightly
def test_ten_times_the_rows_do_not_take_the_memory_of_what_they_are(tmp_path: Path) -> None:
    few = peak_mib(FEW, tmp_path / "few")
    many = peak_mib(MANY, tmp_path / "many")
    # How much of the imports is resident differs by what else the machine does.
    print(f"peak RSS, MiB: {FEW:,} rows {few}, {MANY:,} rows {many}")
    # Inputs and embeddings of the other 90,000 rows are 70 MiB. Allocators settle after ten parts,
    # and 10,000 rows have three. When the rows of the output stayed in memory, it was 100 MiB.
    assert many["work"] - few["work"] < 50
