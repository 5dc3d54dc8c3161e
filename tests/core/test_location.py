"""Paths and URIs of buckets: what is read, and what is refused without showing a secret."""

from pathlib import Path

import pytest

from raybio.core.errors import ConfigError
from raybio.core.files import check_local
from raybio.core.location import BucketPath, is_uri, location


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("stores/a", Path("stores/a")),
        ("/läufe ü/meine runs", Path("/läufe ü/meine runs")),
        ("c:odd", Path("c:odd")),
        ("model:v2", Path("model:v2")),
        ("file:///stores/a%20b", Path("/stores/a b")),
        ("s3://bucket", BucketPath("s3", "bucket")),
        ("s3://bucket/", BucketPath("s3", "bucket")),
        ("S3://bucket/a b/ü/", BucketPath("s3", "bucket", "a b/ü")),
        ("gs://my_bucket.org/a", BucketPath("gs", "my_bucket.org", "a")),
        ("abfs://container/a", BucketPath("abfs", "container", "a")),
        (
            "abfs://container@account1.dfs.core.windows.net/a",
            BucketPath("abfs", "container", "a", "account1"),
        ),
    ],
)
def test_paths_and_uris_are_read(text: str, wanted: object) -> None:
    assert location(text) == wanted
    assert location(str(wanted)) == wanted
    assert location(wanted) == wanted  # type: ignore[arg-type]


def test_a_path_in_a_bucket_is_joined_as_a_local_one() -> None:
    path = BucketPath("s3", "bucket") / "a" / "b/c.txt"
    assert str(path) == "s3://bucket/a/b/c.txt"
    assert path.name == "c.txt"
    assert str(path.parent) == "s3://bucket/a/b"
    assert BucketPath("s3", "bucket").name == "bucket"
    assert str(location("abfs://container@account1.dfs.core.windows.net") / "a") == (
        "abfs://container@account1.dfs.core.windows.net/a"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hdfs://host/a", "hdfs: is not supported"),
        ("https://host/a", "https: is not supported"),
        ("s3a://bucket/a", "s3a: is not supported, write s3:"),
        ("gcs://bucket/a", "gcs: is not supported, write gs:"),
        ("abfss://c@account.dfs.core.windows.net/a", "abfss: is not supported, write abfs:"),
        ("s3:/bucket/a", "two slashes"),
        ("s3:bucket/a", "two slashes"),
        ("gs:bucket", "two slashes"),
        ("https:host/a", "https: is not supported"),
        ("file:a", "three slashes"),
        ("s3://", "want a bucket"),
        ("s3:///a", "want a bucket"),
        ("s3://-/a", "cannot be the name of a bucket"),
        ("s3://tb/a", "'tb' cannot be the name of a bucket: want at least 3 letters, digits"),
        ("s3://bucket/a//b", "empty parts"),
        ("s3://bucket/../b", "'..'"),
        ("file://stores/a", "three slashes"),
    ],
)
def test_other_uris_are_refused_with_the_option_and_what_is_supported(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        location(text, "--store")
    message = str(refused.value)
    assert message.startswith(f"--store: got '{text}'")
    assert why in message
    assert is_uri(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIAKEY:s3cr3t@bucket/a",
        "s3:AKIAKEY:s3cr3t@bucket/a",
        "file://AKIAKEY:s3cr3t@bucket/a",
        "s3://AKIAKEY:s3cr3t@/a",
        "gs://s3cr3t@bucket/a",
        "abfs://container:s3cr3t@account/a",
        "s3://bucket/a?X-Amz-Credential=s3cr3t&X-Amz-Signature=s3cr3t",
        "abfs://container@account1.dfs.core.windows.net/a?sig=s3cr3t",
        "ftp://user:s3cr3t@host/a",
        "s3://AKIAKEY:a/s3cr3t/b@bucket/a",
        "s3://AKIAKEY:s3cr3t/bucket/a",
        "s3://bucket/a?sv=1&Signature=s3cr3t",
        "https://host/a?GoogleAccessId=x&Signature=s3cr3t",
    ],
)
def test_credentials_in_a_uri_are_refused_and_not_shown(text: str) -> None:
    for check in (location, check_local):
        with pytest.raises(ConfigError) as refused:
            check(text, "--store")
        assert "s3cr3t" not in str(refused.value)
        assert "AKIAKEY" not in str(refused.value)
