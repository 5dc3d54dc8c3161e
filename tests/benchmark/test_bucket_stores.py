"""Stores of a suite's tasks in a bucket: the scores of local ones."""

from pathlib import Path

import pytest
import yaml

from raybio.benchmark.models import read_models
from raybio.benchmark.report import BenchmarkReport
from raybio.benchmark.run import run_benchmark
from raybio.benchmark.suite import read_suite, task_class
from raybio.core.errors import ConfigError
from raybio.core.location import BucketPath
from raybio.methods import METHODS
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.store.remote_store import upload_store
from raybio.store.store import Store
from tests.methods.conformance_cases import tiny_config
from tests.s3 import S3


@pytest.mark.nightly
def test_stores_in_a_bucket_have_the_scores_of_local_ones(
    s3: S3,
    bucket: BucketPath,
    tiny_store: Store,
    tiny_task: TaskStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    built = METHODS["sppt_protein"].build(tiny_config("sppt_protein"), tiny_store.path)
    export = Path(built.export(tmp_path / "first", {}))
    stores = {"links": tiny_store, "folds": tiny_task}
    for name, store in stores.items():
        upload_store(store.path, bucket / "stores" / name, force=False)

    def report(folder: str, locations: dict[str, str]) -> BenchmarkReport:
        suite = tmp_path / f"{folder}.yaml"
        tasks = [
            {"task": "links", "name": "links", "store": locations["links"]},
            {"task": "labels", "name": "folds", "labels": "remote_homology"}
            | {"store": locations["folds"]},
        ]
        suite.write_text(yaml.safe_dump({"title": "Own", "tasks": tasks}))
        out = tmp_path / folder
        models = read_models([str(export)], out)
        return run_benchmark(models, read_suite(str(suite), None), out, with_ray=False)

    local = report("local", {name: str(store.path) for name, store in stores.items()})
    remote = report("remote", {name: f"{bucket}/stores/{name}" for name in stores})
    assert [task.skipped for task in remote.tasks] == [{}, {}]
    assert remote.tasks == local.tasks
    # Results depend on what a store holds: those of the local ones are read back.
    (tmp_path / "remote" / "log.txt").unlink()
    again = report("remote", {name: str(store.path) for name, store in stores.items()})
    assert again.tasks == local.tasks
    assert "evaluating" not in (tmp_path / "remote" / "log.txt").read_text()


def test_a_store_that_is_not_in_the_bucket_skips_its_task(bucket: BucketPath) -> None:
    for task, settings, command in (
        ("links", {}, "raybio prepare proteins"),
        ("labels", {"labels": "remote_homology"}, "raybio train finetune TASK --data FILES"),
        ("relation-probe", {}, "raybio prepare documents"),
        ("entities-relations", {}, "raybio prepare spert"),
    ):
        fields = {"name": "own", "store": f"{bucket}/none", **settings}
        reason = task_class(task).from_mapping(fields).check()
        assert f"{bucket}/none: has no manifest.json" in reason
        assert f"`{command}`" in reason


def test_what_cannot_be_read_from_a_bucket_is_refused(tmp_path: Path) -> None:
    suite = tmp_path / "own.yaml"

    def refused(task: dict[str, str], match: str) -> None:
        suite.write_text(yaml.safe_dump({"tasks": [{"name": "own", **task}]}))
        with pytest.raises(ConfigError, match=match):
            read_suite(str(suite), None)

    labels = {"task": "labels", "labels": "protein_classification"}
    refused({**labels, "data": "s3://bucket/x.csv"}, "data: got s3://bucket/x.csv, want a local")
    refused({"task": "links", "store": "s3:/bucket/x"}, "store: got .*want two slashes")
    refused({"task": "links", "store": "http://host/x"}, "http: is not supported")


def test_paths_are_relative_to_the_suite_and_uris_are_kept(tmp_path: Path) -> None:
    suite = tmp_path / "own.yaml"
    for given, expected in (
        ("store", tmp_path / "store"),
        (f"file://{tmp_path}/store", tmp_path / "store"),
        ("s3://bucket/store", BucketPath("s3", "bucket", "store")),
    ):
        task = {"task": "links", "name": "own", "store": given}
        suite.write_text(yaml.safe_dump({"tasks": [task]}))
        (read,) = read_suite(str(suite), None).tasks
        assert read.store == expected  # type: ignore[attr-defined]
        assert read.to_mapping()["store"] == str(expected)
        assert type(read).from_mapping(read.to_mapping()) == read
