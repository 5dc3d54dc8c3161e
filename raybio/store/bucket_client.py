"""Clients of buckets: credentials and endpoint of the environment, retries, and their errors.

Errors never contain the secrets that sign requests.
"""

import os
import re
import socket
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from raybio.core.errors import MissingObjectError, StorageError
from raybio.core.location import BucketPath

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig


class Patience(NamedTuple):
    """How long a client tries.

    Attributes:
        max_retries: maximum number of retries of a request.
        retry_seconds: time after which a request is not repeated.
        max_pause_seconds: maximum pause between two tries.
        connect_seconds: maximum time to reach the server.
        silence_seconds: maximum time without a byte; a slow transfer may take longer.
    """

    max_retries: int
    retry_seconds: float
    max_pause_seconds: float
    connect_seconds: float
    silence_seconds: float


PATIENT = Patience(10, 180, 15, 5, 60)
"""Patience of long work."""

IMPATIENT = Patience(4, 15, 2, 3, 10)
"""Patience of checks before work, and of a lease."""

METADATA_HOST = "169.254.169.254"
"""Where a machine of the cloud gets its credentials."""

CREDENTIAL_VARIABLES = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_SKIP_SIGNATURE",
    ),
    "gs": (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_SKIP_SIGNATURE",
    ),
    "abfs": (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_SKIP_SIGNATURE",
    ),
}
"""Environment variables that give credentials."""

_GOOGLE_LOGIN = Path("~/.config/gcloud/application_default_credentials.json")

_STATUS = re.compile(r"status code: ([0-9]{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,200})")
_REGION = re.compile(r"(?:<Region>|expecting ')([a-z0-9-]+)")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_REFUSED_CREDENTIALS = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "AuthenticationFailed",
    "InvalidClientTokenId",
)


def client(path: BucketPath, is_patient: bool) -> "ObjectStore":
    """Return the client of a bucket, with the credentials of the environment.

    Raises:
        StorageError: if there are none, or the environment is incomplete.
    """
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    patience = PATIENT if is_patient else IMPATIENT
    retry: RetryConfig = {
        "max_retries": patience.max_retries,
        "retry_timeout": timedelta(seconds=patience.retry_seconds),
        "backoff": {
            "init_backoff": timedelta(seconds=0.1),
            "max_backoff": timedelta(seconds=patience.max_pause_seconds),
        },
    }
    options: ClientConfig = {
        "allow_http": endpoint(path).startswith("http://"),
        "connect_timeout": timedelta(seconds=patience.connect_seconds),
        "read_timeout": timedelta(seconds=patience.silence_seconds),
        "timeout": timedelta(minutes=15),
    }
    prefix = path.key or None
    try:
        if path.scheme == "s3":
            return S3Store(
                path.bucket,
                prefix=prefix,
                client_options=options,
                retry_config=retry,
                credential_provider=_profile_of_aws(path),
            )
        _check_metadata_server(path)
        if path.scheme == "gs":
            return GCSStore(path.bucket, prefix=prefix, client_options=options, retry_config=retry)
        account: Any = {"account_name": path.account} if path.account else {}
        return AzureStore(
            path.bucket, prefix=prefix, client_options=options, retry_config=retry, **account
        )
    except (BaseError, ValueError) as error:
        reason = _reason(str(error))
        if "Account must be specified" in reason:
            reason = "the storage account is missing: export AZURE_STORAGE_ACCOUNT_NAME"
        raise StorageError(
            f'{path}: the environment does not fit it ({reason}); the guide "Object storage" '
            "lists what is read"
        ) from None


def explained(path: BucketPath, action: str, error: Exception) -> StorageError:
    """Return an error that a user can act on, without the secrets that sign requests.

    Args:
        path: the object.
        action: what was done to it: "read".
        error: the error of the client.
    """
    text = str(error)
    code_match = _CODE.search(text)
    code = code_match[1] if code_match else ""
    status_match = _STATUS.search(text)
    status = status_match[1] if status_match else ""
    if any(words in text for words in _NO_BUCKET):
        return StorageError(
            f"{path}: there is no bucket {path.bucket!r}{_at_endpoint(path)}. Create "
            "it, or choose another"
        )
    if METADATA_HOST in text or "CredentialsError" in text:
        return no_credentials(path)
    if code == "RequestTimeTooSkewed":
        return StorageError(
            f"{path}: the clock of this machine is off ({code}). Set it, for instance with ntp"
        )
    if code in _REFUSED_CREDENTIALS:
        return StorageError(
            f"{path}: the credentials are not accepted ({code}){_at_endpoint(path)}. Renew those "
            "of the environment"
        )
    region_match = _REGION.search(text)
    if region_match or status == "301" or "Received redirect without LOCATION" in text:
        region = region_match[1] if region_match else "THE_REGION_OF_THE_BUCKET"
        return StorageError(f"{path}: the bucket is in another region. export AWS_REGION={region}")
    if status in ("401", "403") or "PermissionDenied" in type(error).__name__:
        return StorageError(
            f"{path}: no permission to {action} ({code or status or 'denied'}). Grant it to "
            "the credentials of the environment, or choose another path"
        )
    if isinstance(error, FileNotFoundError) or status == "404":
        return MissingObjectError(f"{path}: there is no such object")
    if "PreconditionError" in type(error).__name__:
        return StorageError(f"{path}: was replaced while it was read. Give the command again")
    if code == "NotImplemented" or status == "501":
        return StorageError(
            f"{path}: cannot {action}: the server{_at_endpoint(path)} lacks what the request needs "
            f"({status} {code}), such as conditional writes (If-None-Match, If-Match). Choose a "
            "server or a version that has them"
        )
    if status:
        message_match = _MESSAGE.search(text)
        why = f"{code} {message_match[1] if message_match else ''}".strip()
        return StorageError(
            f"{path}: cannot {action}: the server answers {status} {why}"
            f"{_at_endpoint(path)}. Try again later, or check the endpoint"
        )
    return StorageError(
        f"{path}: cannot {action}: no answer{_at_endpoint(path)} ({_reason(text)}). Check "
        "the network, the endpoint and a proxy"
    )


def no_credentials(path: BucketPath) -> StorageError:
    """Return the error of an environment without credentials."""
    ways = {
        "s3": "export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), or give the "
        "machine a role",
        "gs": "export GOOGLE_APPLICATION_CREDENTIALS, run `gcloud auth application-default login`, "
        "or give the machine a service account",
        "abfs": "export AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or give the "
        "machine an identity",
    }
    return StorageError(
        f"{path}: no credentials were found in the environment. To have some, {ways[path.scheme]}"
    )


def endpoint(path: BucketPath) -> str:
    """Return the address of the server as the environment gives it, "" for the cloud's own."""
    names = {
        "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "gs": ("GOOGLE_BASE_URL",),
        "abfs": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    }
    return next((os.environ[name] for name in names[path.scheme] if os.environ.get(name)), "")


def _at_endpoint(path: BucketPath) -> str:
    parts = urlsplit(endpoint(path))
    if not parts.hostname:
        return ""
    return f" at {parts.hostname}" + (f":{parts.port}" if parts.port else "")


def _profile_of_aws(path: BucketPath) -> Any:
    """Return the credentials of a profile in ``~/.aws``, None to use those of the environment."""
    if any(os.environ.get(name) for name in CREDENTIAL_VARIABLES["s3"]):
        return None
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
        os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config",
    )
    is_profile = bool(os.environ.get("AWS_PROFILE"))
    if not (is_profile or any(Path(file).expanduser().is_file() for file in files)):
        _check_metadata_server(path)
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise StorageError(
            f"{path}: AWS_PROFILE and ~/.aws are read by boto3, which is not installed. pip "
            "install 'raybio[aws]', or export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    try:
        return Boto3CredentialProvider()
    # boto3 and botocore raise many types, such as for a missing profile or an expired login.
    except Exception as error:
        raise StorageError(
            f"{no_credentials(path)}. The profile of ~/.aws gives none: {str(error)[:200]}"
        ) from None


def _check_metadata_server(path: BucketPath) -> None:
    """Refuse at once where neither the environment nor a metadata server gives credentials.

    The client would try to reach such a server for minutes.
    """
    if any(os.environ.get(name) for name in CREDENTIAL_VARIABLES[path.scheme]):
        return
    if path.scheme == "gs" and _GOOGLE_LOGIN.expanduser().is_file():
        return
    is_off = os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
    if path.scheme == "s3" and is_off:
        raise no_credentials(path)
    address = urlsplit(os.environ.get("AWS_METADATA_ENDPOINT", ""))
    server = (METADATA_HOST, 80)
    if path.scheme == "s3" and address.hostname:
        server = (address.hostname, address.port or 80)
    try:
        socket.create_connection(server, timeout=1.0).close()
    except OSError:
        raise no_credentials(path) from None


def _reason(text: str) -> str:
    """Return the first line of an error of the client, without the address that was requested."""
    line = text.strip().splitlines()[0] if text.strip() else "no reason is given"
    return re.sub(r"https?://\S+", "…", line)[-200:]
