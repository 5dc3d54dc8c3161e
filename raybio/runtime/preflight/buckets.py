"""Checks of buckets as this machine sees them: reach, permissions, region and clock."""

import os
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from time import time

from raybio.core.errors import RaybioError
from raybio.core.location import BucketPath
from raybio.runtime.preflight.this_machine import CONNECT_SECONDS
from raybio.store.bucket import BucketFolder
from raybio.store.bucket_client import endpoint
from raybio.store.remote_store import store_digest

MAX_CLOCK_SECONDS = 600.0
"""Clock difference to report; from 15 minutes on, clouds refuse signed requests."""


def bucket_problem(path: BucketPath, *, writes: bool) -> str:
    """Return what is wrong with a path of a bucket as seen from this machine; empty for nothing.

    Args:
        path: the path.
        writes: also test plain and conditional writes and deletion, as runs need; stores are only
            read.
    """
    try:
        if writes:
            BucketFolder(path, is_patient=False).check_conditional_writes("")
        else:
            store_digest(path)
    except RaybioError as error:
        return str(error)
    return _server_problem(path)


def _server_problem(path: BucketPath) -> str:
    """Return the problem that the response to an unsigned request shows: region or clock."""
    address = {
        "s3": f"https://{path.bucket}.s3.amazonaws.com",
        "gs": "https://storage.googleapis.com",
        "abfs": f"https://{path.account or os.environ.get('AZURE_STORAGE_ACCOUNT_NAME', '')}"
        ".blob.core.windows.net",
    }[path.scheme]
    request = urllib.request.Request(endpoint(path) or address, method="HEAD")
    started = time()
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_SECONDS) as response:
            headers = response.headers
    except urllib.error.HTTPError as error:
        # A bucket refuses unsigned requests, but with the same headers.
        headers = error.headers
    except (OSError, ValueError):
        # The bucket was reached before, so this request may lack a proxy.
        return ""
    region = headers.get("x-amz-bucket-region", "")
    chosen = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region and chosen and region != chosen:
        return f"{path}: the bucket is in {region}, and AWS_REGION is {chosen}; export the former"
    date = headers.get("Date")
    if date is None:
        return ""
    middle = (started + time()) / 2
    difference = middle - parsedate_to_datetime(date).timestamp()
    if abs(difference) > MAX_CLOCK_SECONDS:
        direction = "ahead of" if difference > 0 else "behind"
        return (
            f"{path}: the clock of this machine is {abs(difference):.0f} s {direction} the "
            "server's. Set it, for instance with ntp"
        )
    return ""
