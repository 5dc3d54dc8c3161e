"""Checks of buckets before a start, good and bad, over the S3 protocol."""

import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import pytest

from raybio.core.location import BucketPath
from raybio.runtime.preflight import buckets, nodes
from raybio.runtime.preflight.buckets import bucket_problem
from raybio.runtime.preflight.finding import ERROR, OK
from raybio.runtime.preflight.preflight import Intent, preflight
from raybio.runtime.run.options import RunOptions
from raybio.store import bucket_cache
from raybio.store.bucket import BucketFolder
from raybio.store.object_download import download_object
from raybio.store.remote_store import upload_store
from raybio.store.store import Store
from tests.runtime.preflight.test_preflight_nodes import node
from tests.s3 import S3


def test_a_bucket_that_works_has_no_problem_and_nothing_is_left_in_it(bucket: BucketPath) -> None:
    assert bucket_problem(bucket / "runs", writes=True) == ""
    assert "is no finished store" in bucket_problem(bucket / "store", writes=False)
    assert BucketFolder(bucket).list() == []


@pytest.mark.parametrize(
    ("method", "action"), [("PUT", "write"), ("GET", "read"), ("POST", "delete")]
)
def test_each_permission_that_is_missing_is_named(
    bucket: BucketPath, s3: S3, method: str, action: str
) -> None:
    s3.fail("denied", method=method, times=1)
    problem = bucket_problem(bucket / "runs", writes=True)
    assert problem.startswith(f"{bucket}/runs: no permission to {action} (AccessDenied)")


def test_a_server_that_ignores_conditions_is_refused(
    bucket: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BucketFolder, "create", BucketFolder.write)
    assert "the server ignores conditions" in bucket_problem(bucket / "runs", writes=True)


def test_another_clock_is_reported(bucket: BucketPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "time", lambda: time() + 7200)
    problem = bucket_problem(bucket, writes=True)
    assert re.search("the clock of this machine is 7[12][0-9]{2} s ahead of the server's", problem)


def test_a_bucket_of_another_region_is_reported(
    bucket: BucketPath, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    s3.region = "us-east-1"
    assert bucket_problem(bucket, writes=True) == ""
    s3.region = "eu-north-1"
    problem = bucket_problem(bucket, writes=True)
    assert "the bucket is in eu-north-1, and AWS_REGION is us-east-1" in problem


def test_buckets_of_store_and_runs_are_findings(
    bucket: BucketPath,
    s3: S3,
    tiny_store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    upload_store(tiny_store.path, bucket / "store", force=False)
    fetching: set[threading.Thread] = set()

    def fetch(*given: Any, **options: Any) -> None:
        fetching.add(threading.current_thread())
        download_object(*given, **options)

    monkeypatch.setattr("raybio.store.remote_store.download_object", fetch)

    def found(store: BucketPath, runs: BucketPath) -> dict[str, list[tuple[str, str]]]:
        options = RunOptions(store=store, runs=runs)
        intent = Intent(options=options, with_ray=False, method="sppt_protein")
        by_check: dict[str, list[tuple[str, str]]] = {}
        for finding in preflight(intent):
            by_check.setdefault(finding.check, []).append((finding.state, finding.found))
        return by_check

    good = found(bucket / "store", bucket / "runs")
    assert [state for state, _ in good["bucket"]] == [OK, OK]
    assert good["bucket"][0][1].startswith(f"{bucket}/runs is written with conditions")
    assert good["store"][0][0] == OK
    assert good["encoder"][0][0] == OK
    # Checks have a minute each, in threads of their own; a large store takes longer.
    assert fetching == {threading.main_thread()}
    assert any(str(tmp_path / "cache") in text for _, text in good["disk"])
    bad = found(BucketPath("s3", "none-such", "store"), bucket / "runs")
    assert [state for state, _ in bad["bucket"]] == [OK, ERROR]
    assert "there is no bucket 'none-such'" in bad["bucket"][1][1]
    assert "never-shown-secret" not in json.dumps([good, bad])


def test_a_node_without_permission_is_named_once() -> None:
    bad = replace(node("b"), bucket="s3://x: no permission", store="")
    finding = nodes.compare_buckets([node("a"), bad])
    assert (finding.state, finding.found) == (ERROR, "b: s3://x: no permission")
    assert nodes.compare_stores("ab" * 32, [node("a"), bad]).state == OK


def test_a_node_looks_at_the_manifest_and_fetches_nothing(
    bucket: BucketPath, tiny_store: Store, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    upload_store(tiny_store.path, bucket / "store", force=False)
    assert nodes._digest(str(bucket / "store")) == tiny_store.digest
    assert not (tmp_path / "cache").exists()
    assert "is no finished store" in nodes._digest(str(bucket / "other"))
    # Its cache must hold the store.
    monkeypatch.setenv("RAYBIO_CACHE_SIZE", "1kB")
    small = replace(node("b"), store=nodes._digest(str(bucket / "store")))
    finding = nodes.compare_stores(tiny_store.digest, [small])
    assert finding.state == ERROR
    assert re.search("b: .*buckets: .* exceed RAYBIO_CACHE_SIZE=1kB", finding.found)
    monkeypatch.delenv("RAYBIO_CACHE_SIZE")
    monkeypatch.setattr(bucket_cache, "SPARE_BYTES", 2**60)
    assert re.search("buckets: needs .* can be used", nodes._digest(str(bucket / "store")))
    open_copy = tmp_path / "cache" / "buckets" / f"store-{tiny_store.digest}"
    open_copy.mkdir(parents=True)  # it has a copy
    assert nodes._digest(str(bucket / "store")) == tiny_store.digest
