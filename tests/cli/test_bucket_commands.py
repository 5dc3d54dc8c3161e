"""Commands with stores and source files in a bucket give what they give with local ones."""

import json
import sys
from pathlib import Path

import pytest

from raybio.cli.main import main
from raybio.core.config import override_all
from raybio.core.digest import weights_digest
from raybio.core.location import BucketPath
from raybio.methods import METHODS
from raybio.runtime.run.options import RunOptions, resolve
from raybio.store.bucket import BucketFolder
from raybio.store.remote_store import upload_store
from raybio.store.store import Store, open_store
from raybio.training.loop import fit
from tests.conftest import write_tables
from tests.s3 import ENVIRONMENT


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def prepare(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["raybio", "prepare", "proteins", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


def test_a_store_prepared_in_a_bucket_has_the_digest_of_a_local_one(
    tmp_path: Path,
    bucket: BucketPath,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    write_tables(tmp_path / "raw", num_groups=2, rows_per_group=16)
    # A record that is skipped is named by its file, in the manifest too.
    with (tmp_path / "raw" / "proteins.tsv").open("a") as file:
        file.write("bad\t1\tA1C\n")
    for name in ("proteins.tsv", "edges.tsv"):
        BucketFolder(bucket / "raw").upload(tmp_path / "raw" / name, name)
    local = ["--edges", "raw/edg*.tsv", "--proteins", "raw/proteins.tsv", "--out", "store"]
    prepare(monkeypatch, *local)
    uris = [f"{bucket}/raw/edg*.tsv", f"{bucket}/raw/proteins.tsv", f"{bucket}/store"]
    prepare(monkeypatch, "--edges", uris[0], "--proteins", uris[1], "--out", uris[2])
    written = capfd.readouterr()
    assert open_store(uris[2]).digest == open_store("store").digest
    assert uris[2] in written.out.replace("\n", "")
    assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"] not in written.out + written.err


def test_a_run_over_a_store_in_a_bucket_is_the_run_over_the_local_store(
    tmp_path: Path, bucket: BucketPath, tiny_store: Store, tiny_settings: dict[str, object]
) -> None:
    upload_store(tiny_store.path, bucket / "store", force=False)
    settings = tiny_settings | {"schedule.max_steps": 3, "schedule.evaluate_every_steps": 0}
    settings |= {"schedule.checkpoint_every_steps": 3, "schedule.keep_best": None}
    digests = []
    specs = []
    for number, store in enumerate((tiny_store.path, bucket / "store")):
        options = RunOptions(store=store, runs=tmp_path / "runs", name=f"run{number}")
        spec = resolve("sppt_protein", options)
        config = override_all(spec.config, settings)
        system = METHODS["sppt_protein"].build(config, spec.store)
        list(fit(system, config))
        digests.append(weights_digest(system.model.state_dict().items()))
        specs.append(spec)
    assert digests[0] == digests[1]
    assert str(specs[1].store) == f"{bucket}/store"
    folder = specs[1].folder
    folder.open("sppt_protein", specs[1].config, specs[1].store, tiny_store.digest, ())
    record = json.loads(folder.identity.read_text())
    assert f"{bucket}/store" in json.dumps(record)
    # The same name without options continues with the store that the run has.
    again = resolve("sppt_protein", RunOptions(runs=tmp_path / "runs", name="run1"))
    assert again.store == bucket / "store"
    assert again.config == specs[1].config
