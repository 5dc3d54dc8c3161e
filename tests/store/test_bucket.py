"""Objects of a bucket over the S3 protocol: conditions, large files, faults, and errors that say what to do."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from obstore.store import LocalStore

from raybio.core.errors import DamagedObjectError, MissingObjectError, StorageError
from raybio.core.location import BucketPath
from raybio.store import bucket_client, object_download
from raybio.store.bucket import PART_BYTES, BucketFolder
from raybio.store.bucket_client import explained
from raybio.store.object_download import download_object
from tests.s3 import ENVIRONMENT, S3

RANGE_BYTES = 100_000
SECRET = ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_download, "RANGE_BYTES", RANGE_BYTES)


@pytest.fixture
def folder(bucket: BucketPath) -> BucketFolder:
    return BucketFolder(bucket / "läufe ü" / "a%20b")


def large_content(num_bytes: int) -> bytes:
    return hashlib.shake_256(b"large").digest(num_bytes)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_objects_are_written_listed_read_and_deleted(folder: BucketFolder) -> None:
    assert folder.list() == []
    version = folder.write("b/ä *[1].txt", b"one")
    folder.write("a", b"")
    BucketFolder(folder.path.parent / "a%20b2").write("other", b"of a neighbor")
    assert [(info.name, info.num_bytes) for info in folder.list()] == [
        ("a", 0),
        ("b/ä *[1].txt", 3),
    ]
    assert [info.name for info in folder.list("b/")] == ["b/ä *[1].txt"]
    assert folder.info("b/ä *[1].txt") in folder.list()
    assert folder.info("absent") is None
    assert folder.read_version("b/ä *[1].txt") == (b"one", version)
    with pytest.raises(MissingObjectError, match="a%20b/absent: there is no such object"):
        folder.read("absent")
    folder.delete(["a", "absent"])
    folder.delete("absent")
    assert [info.name for info in folder.list()] == ["b/ä *[1].txt"]


def test_objects_that_a_console_makes_for_folders_are_no_files(bucket: BucketPath, s3: S3) -> None:
    host, port = s3.server_behind

    def put(key: str, content: bytes = b"") -> None:
        url = f"http://{host}:{port}/{bucket.bucket}/{key}"
        urllib.request.urlopen(urllib.request.Request(url, content, method="PUT")).close()

    put("models/")
    assert not BucketFolder(bucket / "models").has_objects()
    for key in ("models/first/", "models/first/1_Pooling/", "models/first/1_Pooling-x"):
        put(key)
    put("models/first/1_Pooling/config.json", b"{}")
    put("models/first/config.json", b"{}")
    folder = BucketFolder(bucket / "models" / "first")
    files = ["1_Pooling-x", "1_Pooling/config.json", "config.json"]
    assert [info.name for info in folder.list()] == files
    assert folder.children() == ({"1_Pooling-x", "config.json"}, {"1_Pooling"})
    assert BucketFolder(bucket / "models").has_objects()


def test_of_several_writers_one_creates_an_object_and_one_replaces_a_version(
    folder: BucketFolder,
) -> None:
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda n: folder.create("lease", f"{n}".encode()), range(8)))
        won = [version for version in created if version is not None]
        assert len(won) == 1
        assert folder.read_version("lease") == (f"{created.index(won[0])}".encode(), won[0])
        replaced = list(
            pool.map(lambda n: folder.replace("lease", f"new {n}".encode(), won[0]), range(8))
        )
    (winner,) = (version for version in replaced if version is not None)
    assert folder.read_version("lease")[1] == winner
    assert folder.replace("lease", b"late", won[0]) is None
    assert folder.replace("absent", b"x", winner) is None


def test_a_conditional_write_whose_answer_is_lost_counts_as_written(
    folder: BucketFolder, s3: S3
) -> None:
    s3.fail("lost", method="PUT")
    version = folder.create("lease", b"mine")
    assert version is not None and folder.read_version("lease") == (b"mine", version)
    s3.fail("lost", method="PUT")
    assert folder.replace("lease", b"mine, again", version) is not None
    assert [request.fault for request in s3.requests].count("lost") == 2


@pytest.mark.parametrize("kind", ["busy", "reset", "cut"])
def test_every_request_is_repeated_after_a_fault_that_passes(
    folder: BucketFolder, s3: S3, tmp_path: Path, kind: str
) -> None:
    content = large_content(RANGE_BYTES + 1)
    (tmp_path / "file").write_bytes(content)
    s3.fail(kind, method="PUT", times=2)
    s3.fail(kind, method="POST", times=2)
    folder.upload(tmp_path / "file", "large")
    folder.write("small", b"small")
    s3.fail(kind, method="GET", times=2)
    assert [info.name for info in folder.list()] == ["large", "small"]
    s3.fail(kind, method="GET", times=2)
    assert folder.read("small") == b"small"
    s3.fail(kind, method="GET", times=2)
    download_object(folder, "large", tmp_path / "copy", sha256=sha256(content))
    assert (tmp_path / "copy").read_bytes() == content
    s3.fail(kind, method="POST", times=1)
    folder.delete("small")
    assert [info.name for info in folder.list()] == ["large"]
    assert sum(request.fault == kind for request in s3.requests) >= 8


def test_a_large_file_travels_in_parts_and_ranges(
    folder: BucketFolder, s3: S3, tmp_path: Path
) -> None:
    content = large_content(PART_BYTES + 12345)
    (tmp_path / "file").write_bytes(content)
    folder.upload(tmp_path / "file", "large")
    assert sum("partNumber" in request.path for request in s3.requests) == 2
    download_object(folder, "large", tmp_path / "copy", sha256=sha256(content))
    assert (tmp_path / "copy").read_bytes() == content
    num_ranges = sum(request.range is not None for request in s3.requests)
    assert num_ranges == -(-len(content) // RANGE_BYTES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "file"]
    folder.write("empty", b"")
    download_object(folder, "empty", tmp_path / "nothing", sha256=sha256(b""))
    assert (tmp_path / "nothing").read_bytes() == b""


def killed_download(path: BucketPath, file: Path, when: Path) -> None:
    """Download in another process, and kill it when ``when`` names a range."""
    code = (
        "import sys; from pathlib import Path; from raybio.core.location import location; "
        "from raybio.store import bucket, object_download; path = location(sys.argv[1]); "
        "object_download.RANGE_BYTES = int(sys.argv[3]); folder = bucket.BucketFolder(path.parent); "
        "object_download.download_object(folder, path.name, Path(sys.argv[2]))"
    )
    arguments = [str(path), str(file), str(RANGE_BYTES)]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments])
    deadline = time.monotonic() + 120
    while not (when.is_file() and len(when.read_text().splitlines()) >= 3):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_killed_download_resumes_with_what_has_not_arrived(
    folder: BucketFolder, s3: S3, tmp_path: Path
) -> None:
    content = large_content(6 * RANGE_BYTES)
    (tmp_path / "file").write_bytes(content)
    folder.upload(tmp_path / "file", "large")
    # The last ranges wait for an answer that does not come, so that the process is killed first.
    for start in (4, 5):
        s3.hold(f"bytes={start * RANGE_BYTES}-")
    killed_download(folder.path / "large", tmp_path / "copy", tmp_path / "copy.ranges")
    s3.release()
    assert not (tmp_path / "copy").exists()
    s3.requests.clear()
    download_object(folder, "large", tmp_path / "copy", sha256=sha256(content))
    assert (tmp_path / "copy").read_bytes() == content
    # A request may be repeated on a busy machine, so ranges are counted and not requests.
    ranges = {request.range for request in s3.requests if request.range is not None}
    assert 2 <= len(ranges) <= 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "file"]


def leave_part(folder: BucketFolder, s3: S3, name: str, file: Path) -> None:
    """Leave a part of a download: its last range is denied when all others have arrived."""
    info = folder.info(name)
    assert info is not None
    num_ranges = -(-info.num_bytes // RANGE_BYTES)
    last = f"{name} bytes={(num_ranges - 1) * RANGE_BYTES}-"
    journal = file.with_name(f"{file.name}.ranges")

    def release() -> None:
        while not journal.exists() or journal.read_bytes().count(b"\n") < num_ranges:
            time.sleep(0.01)
        s3.release()

    s3.fail("denied", method="GET", containing=last)
    s3.hold(last)
    releasing = threading.Thread(target=release)
    releasing.start()
    with pytest.raises(StorageError, match="no permission to read"):
        download_object(folder, name, file)
    releasing.join()
    assert file.with_name(f"{file.name}.part").exists()


@pytest.mark.parametrize("tail", [b"1000", b"\0\0\0\0\0\0\0", b"\xff\xfe\n"])
def test_a_journal_whose_end_is_damaged_loses_only_its_end(
    tail: bytes, folder: BucketFolder, s3: S3, tmp_path: Path
) -> None:
    content = large_content(3 * RANGE_BYTES)
    folder.write("large", content)
    for _ in range(2):  # what the second start appends must not become part of the damage
        leave_part(folder, s3, "large", tmp_path / "copy")
        with (tmp_path / "copy.ranges").open("ab") as journal:
            journal.write(tail)
    s3.requests.clear()
    download_object(folder, "large", tmp_path / "copy", sha256=sha256(content))
    assert (tmp_path / "copy").read_bytes() == content
    assert len({request.range for request in s3.requests if request.range is not None}) < 3


def test_a_part_of_another_version_is_not_continued(
    folder: BucketFolder, s3: S3, tmp_path: Path
) -> None:
    folder.write("large", bytes(2 * RANGE_BYTES))
    leave_part(folder, s3, "large", tmp_path / "copy")
    content = large_content(2 * RANGE_BYTES)
    folder.write("large", content)
    download_object(folder, "large", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content


def test_a_damaged_part_is_downloaded_again_and_a_damaged_object_refused(
    folder: BucketFolder, s3: S3, tmp_path: Path
) -> None:
    content = large_content(2 * RANGE_BYTES)
    folder.write("large", content)
    leave_part(folder, s3, "large", tmp_path / "copy")
    part = tmp_path / "copy.part"
    part.write_bytes(bytes(part.stat().st_size))
    download_object(folder, "large", tmp_path / "copy", sha256=sha256(content))
    assert (tmp_path / "copy").read_bytes() == content
    damaged = bytearray(content)
    damaged[len(damaged) // 2] ^= 1
    folder.write("large", bytes(damaged))
    (tmp_path / "copy").unlink()
    with pytest.raises(
        DamagedObjectError, match="a%20b/large: its sha256 is .* damaged or changed"
    ):
        download_object(folder, "large", tmp_path / "copy", sha256=sha256(content))
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_is_replaced_during_a_download_is_not_mixed(
    folder: BucketFolder, tmp_path: Path
) -> None:
    version = folder.write("a", b"first")
    folder.write("a", b"other")
    with pytest.raises(StorageError, match="was replaced while it was read"):
        folder.read_range("a", 0, 3, version)


def refused(path: BucketPath) -> str:
    """Return the error of the check before long work; it comes in seconds and shows no secret."""
    with pytest.raises(StorageError) as error:
        BucketFolder(path, is_patient=False).check_writable("--out")
    assert SECRET not in str(error.value)
    assert ENVIRONMENT["AWS_ACCESS_KEY_ID"] not in str(error.value)
    assert str(error.value).startswith(f"--out {path}")
    return str(error.value)


def test_errors_say_what_is_wrong_and_what_to_do(
    bucket: BucketPath, s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    BucketFolder(bucket).check_writable("--out")
    assert BucketFolder(bucket).list() == []
    missing = refused(BucketPath("s3", "no-such-bucket", "a"))
    assert "there is no bucket 'no-such-bucket'" in missing and "Create it" in missing
    s3.fail("denied", method="PUT")
    assert "no permission to write (AccessDenied). Grant it" in refused(bucket / "a")
    s3.fail("denied", method="POST")
    assert "no permission to delete (AccessDenied)" in refused(bucket / "a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:s3cr3t@127.0.0.1:9")
    unreachable = refused(bucket / "a")
    assert "no answer at 127.0.0.1:9" in unreachable and "s3cr3t" not in unreachable
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert "no credentials were found" in refused(bucket / "a")
    # Without that variable a server of the cloud may have them; nothing answers here.
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    assert "export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in refused(bucket / "a")


@pytest.fixture
def brief_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that takes a server of half a second's silence for one that does not answer."""
    patience = bucket_client.IMPATIENT._replace(silence_seconds=0.5, max_pause_seconds=0.2)
    monkeypatch.setattr(bucket_client, "IMPATIENT", patience._replace(max_retries=2))
    # A server of a busy machine may seem silent many times.
    patient = patience._replace(max_retries=1000, retry_seconds=1500)
    monkeypatch.setattr(bucket_client, "PATIENT", patient)


def wait_for_requests(s3: S3, number: int) -> None:
    """Return when ``number`` requests have reached the proxy; pytest's limit ends a hang."""
    while len(s3.requests) < number:
        time.sleep(0.01)


def test_a_request_that_is_not_answered_is_repeated(
    folder: BucketFolder, s3: S3, brief_silence: None
) -> None:
    folder.write("a", b"content")
    s3.requests.clear()
    s3.hold("/a")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(folder.read, "a")
        wait_for_requests(s3, 2)
        assert not reading.done()
        s3.release()
        assert reading.result() == b"content"


def test_a_server_that_never_answers_is_an_error_after_some_repetitions(
    folder: BucketFolder, s3: S3, brief_silence: None
) -> None:
    folder.write("a", b"content")
    s3.requests.clear()
    s3.hold("/a")
    hurried = BucketFolder(folder.path, is_patient=False)
    with pytest.raises(StorageError, match="a: cannot read: no answer at 127.0.0.1"):
        hurried.read("a")
    # One try and its repetitions: some of them may reach the proxy of a busy machine late.
    wait_for_requests(s3, 3)
    with pytest.raises(StorageError, match="no answer at 127.0.0.1"):
        hurried.write("a", b"other")
    s3.release()
    assert folder.read("a") in (b"content", b"other")


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("403 Forbidden: <Code>InvalidAccessKeyId</Code>", "the credentials are not accepted"),
        ("400 Bad Request: <Code>ExpiredToken</Code>", "Renew those of the environment"),
        ("403 Forbidden: <Code>RequestTimeTooSkewed</Code>", "the clock of this machine is off"),
        (
            "400 Bad Request: <Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region>",
            "export AWS_REGION=eu-west-1",
        ),
        ("301 Moved: <Code>PermanentRedirect</Code>", "the bucket is in another region"),
        (
            "501 Not Implemented: <Code>NotImplemented</Code><Message>A header</Message>",
            "conditional writes (If-None-Match, If-Match). Choose a server",
        ),
        (
            "507 Full: <Code>StorageFull</Code><Message>no room</Message>",
            "answers 507 StorageFull no room",
        ),
    ],
)
def test_answers_of_amazon_s3_are_explained(answer: str, wanted: str) -> None:
    """Answers that moto does not give, in the words of the client."""
    from obstore.exceptions import GenericError

    error = GenericError(f"Server returned non-2xx status code: {answer}")
    assert wanted in str(explained(BucketPath("s3", "bucket", "a"), "write", error))


def test_a_profile_of_aws_is_read(
    bucket: BucketPath, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("boto3")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    file = tmp_path / "credentials"
    file.write_text("[mine]\naws_access_key_id = KEY\naws_secret_access_key = s3cr3t\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert BucketFolder(bucket).list() == []
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(StorageError, match=r"The profile of ~/.aws gives none: .*absent"):
        BucketFolder(bucket).list()


class _MetadataHandler(BaseHTTPRequestHandler):
    """The metadata server of an Amazon machine with the role ``raybio`` (IMDSv2)."""

    server: "MetadataServer"

    def log_message(self, *_) -> None:
        pass

    def do_PUT(self) -> None:
        self._send("/latest/api/token", "the token")

    def do_GET(self) -> None:
        roles = "/latest/meta-data/iam/security-credentials/"
        if self.headers.get("X-aws-ec2-metadata-token") != "the token":
            self.send_error(401)
        elif self.path == roles:
            self._send(roles, "raybio")
        else:
            self._send(f"{roles}raybio", json.dumps(ROLE))

    def _send(self, path: str, text: str) -> None:
        assert self.path == path
        self.server.paths.append(path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


ROLE = {
    "Code": "Success",
    "Type": "AWS-HMAC",
    "LastUpdated": "2026-01-01T00:00:00Z",
    "AccessKeyId": "ASIAROLE",
    "SecretAccessKey": "s3cr3t",
    "Token": "t0k3n",
    "Expiration": "2099-01-01T00:00:00Z",
}


class MetadataServer(ThreadingHTTPServer):
    paths: list[str]


def test_the_role_of_the_machine_gives_credentials(
    bucket: BucketPath, s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # without ~/.aws
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name)
    server = MetadataServer(("127.0.0.1", 0), _MetadataHandler)
    server.paths = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    try:
        folder = BucketFolder(bucket, is_patient=False)
        folder.write("a", b"content")
        assert folder.read("a") == b"content"
        s3.fail("denied")
        with pytest.raises(StorageError, match="no permission to read") as refused:
            folder.read("a")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert server.paths[-1].endswith("/security-credentials/raybio")
    assert all("Credential=ASIAROLE/" in request.authorization for request in s3.requests)
    assert not re.search("s3cr3t|t0k3n|ASIAROLE", str(refused.value))


@pytest.mark.parametrize("scheme", ["gs", "abfs"])
def test_other_clouds_without_credentials_are_refused_at_once(
    scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in bucket_client.CREDENTIAL_VARIABLES[scheme]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(bucket_client, "METADATA_HOST", "127.0.0.1")
    with pytest.raises(StorageError, match="no credentials were found"):
        BucketFolder(BucketPath(scheme, "bucket")).list()


def test_a_full_disk_is_an_error_of_the_disk(folder: BucketFolder, tmp_path: Path) -> None:
    import resource

    folder.write("a", bytes(1 << 20))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            download_object(folder, "a", tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    download_object(folder, "a", tmp_path / "copy")
    assert os.path.getsize(tmp_path / "copy") == 1 << 20


def test_of_many_objects_a_missing_one_keeps_no_other_from_being_deleted(
    tmp_path: Path, bucket: BucketPath
) -> None:
    """Google's and Azure's clients stop there, as does that of a local folder; Amazon's does not."""
    for store in (None, LocalStore(tmp_path)):
        folder = BucketFolder(bucket, is_patient=False)
        if store is not None:
            folder.__dict__["_store"] = store
        for name in ("a", "c", "d"):
            folder.write(name, b"x")
        folder.delete(["a", "b", "c", "a"])
        folder.delete("b")
        assert [info.name for info in folder.list()] == ["d"]
