"""Locations: a local path, or a path in a bucket that a URI names.

``location`` is the only function that reads a URI. A local location is a ``pathlib.Path``, one in a
bucket a ``BucketPath``; both have ``/``, ``name``, ``parent`` and ``str``.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from raybio.core.errors import ConfigError

SCHEMES = ("s3", "gs", "abfs")
"""Schemes of buckets: Amazon S3 and compatible services, Google Cloud Storage, Azure Blob
Storage."""

_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs"}
"""Schemes by which other programs name the same storage."""

SUPPORTED = (
    "a local path, s3://BUCKET/PATH, gs://BUCKET/PATH, abfs://CONTAINER/PATH or file:///PATH"
)

_URI = re.compile(
    r"(?=[A-Za-z][A-Za-z0-9+.-]+:/|(?i:s3[an]?|gcs|gs|abfss?|az|adl|wasbs?|hdfs|https?|file):)"
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>/{0,2})(?P<rest>.*)",
    re.DOTALL,
)
"""Matches a URI.

One slash is enough, since ``Path`` turns ``s3://bucket`` into ``s3:/bucket``. Schemes of buckets
need none; other schemes need one, since file names may have colons. A scheme has at least two
letters."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")

_AZURE_ACCOUNT = re.compile(r"(?P<container>[^@:]+)@(?P<account>[a-z0-9]{3,24})(\.[a-z0-9.-]+)?")

_SIGNATURE = re.compile(
    r"[?&](X-Amz-|X-Goog-|sig=|se=|AWSAccessKeyId=|GoogleAccessId=|Signature=)", re.IGNORECASE
)


@dataclass(frozen=True)
class BucketPath:
    """A path in a bucket: the name of one object, or a prefix of the names of several.

    Attributes:
        scheme: one of ``SCHEMES``.
        bucket: name of the bucket; for Azure, of the container.
        key: path in the bucket without slashes at its ends; "" for all of the bucket.
        account: storage account of Azure if the URI names it; otherwise the environment does.
    """

    scheme: str
    bucket: str
    key: str = ""
    account: str = ""

    def __str__(self) -> str:
        """Return the URI, which holds no credentials."""
        host = f"{self.bucket}@{self.account}.dfs.core.windows.net" if self.account else self.bucket
        return f"{self.scheme}://{host}" + (f"/{self.key}" if self.key else "")

    def __truediv__(self, name: str) -> "BucketPath":
        """Return the path of ``name`` below this one."""
        key = "/".join(part for part in (self.key, name.strip("/")) if part)
        return BucketPath(self.scheme, self.bucket, key, self.account)

    @property
    def name(self) -> str:
        """The last part of the path; of a whole bucket, its name."""
        return self.key.rpartition("/")[2] or self.bucket

    @property
    def parent(self) -> "BucketPath":
        """The path without its last part."""
        return BucketPath(self.scheme, self.bucket, self.key.rpartition("/")[0], self.account)


Location = Path | BucketPath


def is_uri(text: str | Path) -> bool:
    """Return whether a text is meant as a URI, of whatever scheme."""
    return _URI.match(os.fspath(text)) is not None


def location(given: str | os.PathLike[str] | BucketPath, option: str = "path") -> Location:
    """Return a local path, or the path in a bucket that a URI names.

    Args:
        given: a local path, which may begin with ``~``, or a URI. ``file:///PATH`` is local.
        option: the option that gave it, for errors.

    Raises:
        ConfigError: for another scheme, a URI without a bucket, or with credentials.
    """
    if isinstance(given, BucketPath):
        return given
    text = os.fspath(given)
    match = _URI.match(text)
    if match is None:
        return Path(text).expanduser()
    scheme = match["scheme"].lower()
    rest = match["rest"]
    shown = without_credentials(text)
    is_whole = len(match["slashes"]) == 2
    if scheme == "file" and not (is_whole and rest.startswith("/")):
        raise ConfigError(f"{option}: got {shown!r}, want file:///PATH with three slashes")
    if scheme == "file":
        return Path(unquote(rest))
    if scheme not in SCHEMES:
        hint = f", write {_OTHER_NAMES[scheme]}:" if scheme in _OTHER_NAMES else ""
        raise ConfigError(
            f"{option}: got {shown!r}, want {SUPPORTED}; {scheme}: is not supported{hint}"
        )
    if not is_whole:
        raise ConfigError(f"{option}: got {shown!r}, want two slashes: {scheme}://BUCKET/PATH")
    bucket, _, key = rest.partition("/")
    account = ""
    azure_match = _AZURE_ACCOUNT.fullmatch(bucket) if scheme == "abfs" else None
    if azure_match is not None:
        bucket = azure_match["container"]
        account = azure_match["account"]
    # A secret key may hold a slash, so that its end stands in the key.
    if "@" in bucket or ":" in bucket or _SIGNATURE.search(rest):
        raise ConfigError(
            f"{option}: got {shown!r}, a URI with credentials, which would be logged. Give the URI "
            "alone, and the credentials in the environment"
        )
    if not bucket:
        raise ConfigError(f"{option}: got {shown!r}, want a bucket: {scheme}://BUCKET/PATH")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(
            f"{option}: got {shown!r}; {bucket!r} cannot be the name of a bucket: want at least 3 "
            f"letters, digits, '.', '_' or '-', a letter or digit at both ends, as {scheme}://"
            "BUCKET/PATH"
        )
    key = key.strip("/")
    if any(part in ("", ".", "..") for part in key.split("/")) and key:
        raise ConfigError(f"{option}: got {shown!r}, want a path without empty parts, '.' and '..'")
    return BucketPath(scheme, bucket, key, account)


def absolute(path: Location) -> Location:
    """Return a local path as an absolute one; a path in a bucket is one already."""
    return path.absolute() if isinstance(path, Path) else path


def without_credentials(uri: str) -> str:
    """Return a URI without user, password and signature, as errors show it."""
    match = _URI.match(uri)
    if match is None:
        return uri
    host, slash, path = match["rest"].partition("/")
    if ":" in host and "@" in path:
        # The slash belongs to the secret key.
        host, slash, path = f"…@{match['rest'].rpartition('@')[2]}".partition("/")
    elif "@" in host and not (match["scheme"][:4] == "abfs" and _AZURE_ACCOUNT.fullmatch(host)):
        host = "…@" + host.rpartition("@")[2]
    elif ":" in host and not host.rpartition(":")[2].isdecimal():
        host = "…"
    signature = _SIGNATURE.search(path)
    if signature is not None:
        path = path[: signature.start()] + "?…"
    return f"{match['scheme']}:{match['slashes']}{host}{slash}{path}"
