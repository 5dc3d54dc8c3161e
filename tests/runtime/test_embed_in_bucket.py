"""Bulk embedding into a bucket: parts outlive the disk, and give the bytes of a local output."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from raybio.core.errors import ClusterError, ConfigError, StorageError, StoreError
from raybio.core.location import BucketPath
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import build_protein_encoder
from raybio.methods.sppt.proteins.export import export_encoder
from raybio.runtime import embed, embed_actors
from raybio.runtime.embed import embed_file
from raybio.runtime.embed_output import check_output_path, output_here
from raybio.runtime.model_folders import model_of_folder
from raybio.runtime.spool.lease import LEASE, acquire
from raybio.runtime.task_errors import raise_error_of
from raybio.store.bucket import BucketFolder
from raybio.store.remote_model import fetch_bucket_model
from tests.paths import ROOT
from tests.runtime.ray_nodes import Nodes
from tests.runtime.spool.bucket_job import lose_machine, remove
from tests.s3 import S3

SIZES = {"num_layers": 1, "width": 16, "num_heads": 2, "ffn_width": 32, "max_positions": 48}


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    letters = list("ACDEFGHIKLMNPQRSTVWY")
    path = tmp_path / "proteins.fasta"
    lines = [
        f">p{n}\n{''.join(rng.choice(letters, int(rng.integers(3, 40))))}\n" for n in range(23)
    ]
    path.write_text("".join(lines))
    return path


@pytest.fixture
def run(tmp_path: Path, bucket: BucketPath) -> BucketPath:
    """The folder of a finished run in a bucket, as far as embedding reads it."""
    encoder = build_protein_encoder(EncoderConfig(**SIZES, pooling="mean"), seed=0).eval()
    export_encoder(encoder, tmp_path / "export", card={}, max_tokens=40)
    folder = BucketFolder(bucket / "runs" / "mine")
    folder.write("run.json", b"{}")
    for path in (tmp_path / "export").rglob("*"):
        if path.is_file():
            folder.upload(path, f"export/{path.relative_to(tmp_path / 'export').as_posix()}")
    return folder.path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Parts are embedded in this process, in place of Ray's actors; the disk of the machine."""
    disk = tmp_path / "disk"
    monkeypatch.setenv("RAYBIO_CACHE", str(disk))
    resources = SimpleNamespace(threads_per_worker=None)
    monkeypatch.setattr(embed, "connected", lambda *_, **__: contextlib.nullcontext(resources))

    def embed_parts(of_actors: tuple[Any, ...], missing: list[int], *_: Any, **__: Any) -> None:
        actor = embed_actors._EmbedPart(*of_actors, None)
        for number in missing:
            for row in actor(pa.table({"part": [number]})).to_pylist():
                raise_error_of(row)

    monkeypatch.setattr(embed, "embed_parts", embed_parts)
    return disk


def etags(path: BucketPath, beginning: str) -> dict[str, str | None]:
    infos = BucketFolder(path).list()
    return {info.name: info.version.etag for info in infos if info.name.startswith(beginning)}


@pytest.mark.nightly
def test_parts_outlive_the_disk_and_the_output_has_the_bytes_of_a_local_one(
    fasta: Path,
    run: BucketPath,
    bucket: BucketPath,
    here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = tmp_path / "whole.parquet"
    embed_file(model_of_folder(tmp_path / "export"), fasta, whole, rows_per_part=4)
    out = bucket / "out" / "embeddings.parquet"

    def embedded() -> embed.EmbedSummary:
        shutil.rmtree(here, ignore_errors=True)
        path, folder = fetch_bucket_model(run, "--run")
        assert path == run / "export"
        return embed_file(
            model_of_folder(folder), fasta, out, model_in_bucket=path, rows_per_part=4
        )

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(embed, "join", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        embedded()
    parts = BucketFolder(bucket / "out" / "embeddings.parquet.parts")
    parts.delete("part-000003.parquet")
    content = bytearray(parts.read("part-000001.parquet"))
    content[60] ^= 1
    parts.write("part-000001.parquet", bytes(content))
    kept = etags(parts.path, "part-000000") | etags(parts.path, "part-000004")
    with monkeypatch.context() as patch:
        patch.setattr(embed.Parts, "delete", lambda self: None)
        summary = embedded()
    assert (summary.num_rows, summary.num_parts, summary.num_parts_found) == (23, 6, 4)
    assert kept.items() <= etags(parts.path, "part").items()
    assert BucketFolder(out.parent).read(out.name) == whole.read_bytes()
    # Parts that a killed command left next to its output are deleted.
    assert etags(parts.path, "part")
    assert embedded().num_parts == 0
    assert not parts.list()
    damaged = bytearray(whole.read_bytes())
    damaged[60] ^= 1
    BucketFolder(out.parent).write(out.name, bytes(damaged))
    with pytest.raises(StoreError, match=f"{out} exists and is damaged"):
        embedded()
    # Nothing of the output stays on this machine.
    assert not list(here.glob("work/embed-*/*"))


def test_parts_are_deleted_when_the_output_is_there(
    fasta: Path, run: BucketPath, bucket: BucketPath, here: Path, tmp_path: Path
) -> None:
    out = bucket / "embeddings.parquet"
    embed_file(model_of_folder(tmp_path / "export"), fasta, out, rows_per_part=12)
    assert [info.name for info in BucketFolder(bucket).list() if "embeddings" in info.name] == [
        "embeddings.parquet"
    ]


def test_what_a_killed_command_left_in_the_cache_is_deleted(
    bucket: BucketPath, here: Path, tmp_path: Path
) -> None:
    out = bucket / "embeddings.parquet"
    code = (
        "import os, signal, sys; from raybio.core.location import location\n"
        "from raybio.runtime.embed_output import output_here\n"
        "with output_here(location(sys.argv[1])) as file:\n"
        "    file.write_bytes(b'joined'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(out)], env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    (left,) = here.glob("work/embed-*/*")
    with output_here(out) as file:
        assert file == left and not file.exists()
        with (
            pytest.raises(StorageError, match="another command is at work on this embedding"),
            output_here(out),
        ):
            pass
    assert not list(here.glob("work/embed-*/*"))


def test_two_commands_never_work_on_one_output(
    fasta: Path,
    run: BucketPath,
    bucket: BucketPath,
    here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of_folder(tmp_path / "export")
    embed_parts = embed.embed_parts
    wanted = {
        bucket / "a.parquet": r"at work on this embedding: process \d+ on .* another --out",
        tmp_path / "a.parquet": "another command is at work on this embedding.* another --out",
    }
    for out, message in wanted.items():

        def second(*given: Any, out: Any = out, message: str = message, **options: Any) -> None:
            with pytest.raises(ClusterError, match=message):
                embed_file(model, fasta, out)
            embed_parts(*given, **options)

        monkeypatch.setattr(embed, "embed_parts", second)
        assert embed_file(model, fasta, out).num_rows == 23
    assert not (tmp_path / "a.parquet.parts").exists()
    assert not BucketFolder(bucket / "a.parquet.parts").list()

    # One that was taken for dead writes nothing more.
    def taken_over(*given: Any, **options: Any) -> None:
        folder = BucketFolder(bucket / "b.parquet.parts")
        folder.delete(LEASE)
        other = acquire(folder)
        try:
            with pytest.raises(ClusterError, match="the embedding has been started again"):
                embed_parts(*given, **options)
        finally:
            other.release()
        raise KeyboardInterrupt

    monkeypatch.setattr(embed, "embed_parts", taken_over)
    with pytest.raises(KeyboardInterrupt):
        embed_file(model, fasta, bucket / "b.parquet")
    assert not etags(bucket / "b.parquet.parts", "part")


def test_outputs_and_models_that_cannot_be_used_are_refused_before_anything_is_read(
    run: BucketPath, bucket: BucketPath, here: Path
) -> None:
    with pytest.raises(ConfigError, match="want a file in the bucket, such as"):
        check_output_path(bucket)
    with pytest.raises(StorageError, match="--out s3://no-such: there is no bucket 'no-such'"):
        check_output_path(BucketPath("s3", "no-such", "a.parquet"))
    for place in (bucket / "embeddings.csv", here.parent / "embeddings.csv"):
        with pytest.raises(ConfigError, match=r"embeddings.csv: embeddings are written as Parquet"):
            check_output_path(place)
    BucketFolder(bucket / "runs" / "young").write("run.json", b"{}")
    with pytest.raises(ConfigError, match="--run s3://.*young: that run has no model of its own"):
        fetch_bucket_model(bucket / "runs" / "young", "--run")
    with pytest.raises(StorageError, match="there is nothing there"):
        fetch_bucket_model(bucket / "runs" / "none", "--run")
    assert not here.exists()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"RAYBIO_CACHE": str(tmp_path / "disk")}


@pytest.mark.slow
@pytest.mark.nightly
def test_a_killed_command_with_an_empty_disk_embeds_the_missing_parts_alone(
    fasta: Path, run: BucketPath, bucket: BucketPath, tmp_path: Path, environment: dict[str, str]
) -> None:
    lines = fasta.read_text()
    fasta.write_text("".join(lines.replace(">p", f">{n}-") for n in range(40)))

    def command(out: object, name: str) -> subprocess.Popen[bytes]:
        (tmp_path / "disk").mkdir(exist_ok=True)
        arguments = ["--run", "mine", "--runs", str(bucket / "runs"), "--rows-per-part", "4"]
        arguments += ["--input", str(fasta), "--out", str(out)]
        with (tmp_path / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-W", "ignore", str(ROOT / "jobs" / "embed.py"), *arguments],
                stdout=log,
                stderr=log,
                cwd=tmp_path / "disk",
                env=os.environ | environment,
                start_new_session=True,
            )

    log = tmp_path / "whole.log"
    assert command(tmp_path / "whole.parquet", "whole").wait(timeout=1500) == 0, log.read_text()
    out = bucket / "out" / "embeddings.parquet"
    process = command(out, "killed")
    parts = BucketPath("s3", bucket.bucket, "out/embeddings.parquet.parts")
    while not etags(parts, "part"):
        assert process.poll() is None, (tmp_path / "killed.log").read_text()
        time.sleep(0.02)
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
    psutil.wait_procs(family, timeout=600)
    shutil.rmtree(tmp_path / "disk")
    before = etags(parts, "part")
    num_before = sum(name.endswith(".json") for name in before)
    assert 0 < num_before < 230
    process = command(out, "again")
    seen: dict[str, str | None] = {}
    while process.poll() is None:
        seen |= etags(parts, "part")
        time.sleep(0.05)
    text = (tmp_path / "again.log").read_text()
    assert process.returncode == 0, text
    assert f"{num_before} of 230 parts were embedded before" in text
    assert {name: seen.get(name) for name in before if name.endswith(".json")} == {
        name: etag for name, etag in before.items() if name.endswith(".json")
    }
    assert BucketFolder(out.parent).read(out.name) == (tmp_path / "whole.parquet").read_bytes()
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in text


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("lost", ["driver", "node"])
def test_a_driver_or_a_node_that_is_lost_between_parts_changes_no_byte(
    lost: str,
    ray_cluster: None,
    separate_nodes: Nodes,
    s3: S3,
    fasta: Path,
    run: BucketPath,
    bucket: BucketPath,
    tmp_path: Path,
) -> None:
    """Two actors on two nodes without a common folder; each is about to write a part."""
    whole = tmp_path / "whole.parquet"
    embed_file(model_of_folder(tmp_path / "export"), fasta, whole, rows_per_part=2)
    BucketFolder(bucket).upload(fasta, "inputs/proteins.fasta")
    fasta.unlink()
    out = bucket / "out" / "embeddings.parquet"
    parts = bucket / "out" / "embeddings.parquet.parts"
    command = [sys.executable, "-W", "ignore", str(ROOT / "jobs" / "embed.py")]
    command += ["--run", "mine", "--runs", str(bucket / "runs"), "--workers", "2"]
    command += ["--input", str(bucket / "inputs" / "proteins.fasta"), "--out", str(out)]
    command += ["--rows-per-part", "2"]
    disk = tmp_path / "driver"
    own = {"RAY_ADDRESS": separate_nodes.address, "RAYBIO_CACHE": str(disk / "cache")}
    log = tmp_path / "log"

    def start() -> subprocess.Popen[bytes]:
        disk.mkdir()
        with log.open("ab") as file:
            return subprocess.Popen(
                command,
                stdout=file,
                stderr=file,
                cwd=disk,
                env=separate_nodes.environment | own,
                start_new_session=True,
            )

    nodes = {name: separate_nodes.add_with_disk(tmp_path / name) for name in ("first", "second")}
    # An actor writes its parts one after the other: two that are held are those of both.
    held = [f"{parts.key}/part-{number:06d}.parquet" for number in range(4, 12)]
    for path in held:
        s3.hold(path)
    process = start()
    while sum(bool(s3.paths_with(path)) for path in held) < 2:
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    written = etags(parts, "part")
    assert {name for name in written if name.endswith(".json")} == {
        f"part-{number:06d}.json" for number in range(4)
    }
    for name in nodes:
        assert list((tmp_path / name).rglob("model.safetensors"))

    num_requests = len(s3.requests)
    if lost == "driver":
        lose_machine(process, disk)
        s3.release()
        for name in nodes:
            remove(tmp_path / name)
            (tmp_path / name).mkdir()
        process = start()
    else:
        separate_nodes.kill(nodes["first"])
        s3.release()
        remove(tmp_path / "first")
        separate_nodes.add_with_disk(tmp_path / "third")
    assert process.wait(timeout=1500) == 0, log.read_text()
    again = {request.path for request in s3.requests[num_requests:] if request.method == "PUT"}
    assert not [path for path in again if path.endswith(tuple(written))]
    assert BucketFolder(out.parent).read(out.name) == whole.read_bytes()
    assert not BucketFolder(parts).list()
    (found,) = re.findall(r"(\d+) of 12 parts were embedded before", log.read_text())
    if lost == "driver":
        assert 4 <= int(found) < 12
    else:
        # What the node had begun, an actor of another one embedded: the second, if it was done
        # before the third had its model.
        assert found == "0"
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in log.read_text()
