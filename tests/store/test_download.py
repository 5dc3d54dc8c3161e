import gzip
import hashlib
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from raybio.cli.download import _BytesShown
from raybio.core.errors import DataError
from raybio.store import retrying_http
from raybio.store.download import RemoteFile, download_files
from raybio.store.public_data import pubmed_files
from raybio.store.retrying_http import RetryingHttp

CONTENT = {
    f"pubmed25n{number:04d}.xml.gz": gzip.compress(f"file {number} ".encode() * 40_000, 0)
    for number in range(1, 5)
}
FIRST, SECOND = list(CONTENT)[:2]


class Mirror(ThreadingHTTPServer):
    """NLM's layout on this machine; ``faults[path]`` lists one fault for each request."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.faults, self.requests, self.has_ranges = dict(CONTENT), {}, [], True
        for name, content in CONTENT.items():
            self.content[f"{name}.md5"] = (
                f"MD5({name})= {hashlib.md5(content).hexdigest()}\n".encode()
            )
        rows = [f'<a href="{name}">{name}</a>   2025-01-10 14:05   19M  ' for name in self.content]
        head = (
            '<html><body><pre><a href="/pubmed/">Parent Directory</a>\n'
            '<a href="README.txt">README.txt</a>'
        )
        self.content[""] = "\n".join([head, *reversed(rows), "</pre></body></html>"]).encode()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def requests_for(self, name):
        return [requests_range for requested, requests_range in self.requests if requested == name]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        mirror, name = self.server, self.path.removeprefix("/pubmed/baseline/")
        requests_range = self.headers.get("Range")
        mirror.requests.append((name, requests_range))
        faults = mirror.faults.get(name, [])
        fault = faults.pop(0) if faults else None
        if isinstance(fault, tuple):
            status, headers = fault
            return self._answer(status, headers, b"")
        if name not in mirror.content:
            return self._answer(404, {}, b"")
        content = fault if isinstance(fault, bytes) else mirror.content[name]
        start, status, headers = 0, 200, {}
        if requests_range and mirror.has_ranges:
            start, status = int(requests_range.removeprefix("bytes=").removesuffix("-")), 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            if start >= len(content):
                return self._answer(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
        cut = fault if isinstance(fault, int) else None
        return self._answer(status, headers, content[start:], cut)

    def _answer(self, status, headers, body, cut=None):
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body[:cut])
        self.close_connection = True


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    server = Mirror()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Naps(list):
    """Remembers how long it should have slept."""

    def __call__(self, seconds):
        self.append(seconds)


def fetch(mirror, folder, **options):
    progress = options.pop("progress", lambda *_: None)
    choice = {name: options.pop(name) for name in ("first", "last") if name in options}
    http = RetryingHttp(**{"sleep": Naps(), "timeout_seconds": 600.0, **options})
    return download_files(http, pubmed_files(http, mirror.url, **choice), folder, progress)


def test_all_files_come_in_order_of_name_with_their_md5_beside_and_nothing_else(mirror, tmp_path):
    messages = []
    paths = fetch(mirror, tmp_path / "new" / "folder", progress=lambda *what: messages.append(what))
    assert [path.name for path in paths] == list(CONTENT)
    assert all(path.read_bytes() == CONTENT[path.name] for path in paths)
    assert {path.name for path in paths[0].parent.iterdir()} == set(mirror.content) - {""}
    assert messages == [(name, number, 4) for number, name in enumerate(CONTENT, start=1)]


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"first": 2}, [2, 3, 4]),
        ({"last": 2}, [1, 2]),
        ({"first": 2, "last": 3}, [2, 3]),
    ],
)
def test_files_are_chosen_by_number(mirror, tmp_path, options, numbers):
    assert [int(path.name[9:13]) for path in fetch(mirror, tmp_path, **options)] == numbers


def test_an_empty_choice_is_refused_with_what_there_is(mirror, tmp_path):
    with pytest.raises(DataError, match="lists the numbers 1 to 4, none from first=7 to last=9"):
        fetch(mirror, tmp_path, first=7, last=9)


def test_a_file_that_another_command_downloads_is_refused_and_comes_whole(mirror, tmp_path):
    refused = []

    def begin_another(_):
        with pytest.raises(DataError, match=f"{FIRST}: another command downloads it. Wait for it"):
            fetch(mirror, tmp_path)
        # Another file of the same folder.
        fetch(mirror, tmp_path, first=2, last=2)
        refused.append(FIRST)

    mirror.faults[FIRST] = [1000]
    paths = fetch(mirror, tmp_path, sleep=begin_another)
    assert refused == [FIRST]
    assert all(path.read_bytes() == CONTENT[path.name] for path in paths)
    assert not list(tmp_path.glob(".*"))


def test_files_that_are_here_and_sound_are_not_fetched_again(mirror, tmp_path):
    fetch(mirror, tmp_path)
    mirror.requests.clear()
    (tmp_path / FIRST).write_bytes(CONTENT[FIRST][:-1] + b"?")
    paths = fetch(mirror, tmp_path)
    assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    assert {name for name, _ in mirror.requests} == {"", FIRST, f"{FIRST}.md5"}


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_connection_cut_in_the_middle_is_taken_up_again(mirror, tmp_path, has_ranges):
    mirror.has_ranges, mirror.faults[FIRST] = has_ranges, [100_000, 150_000]
    naps = Naps()
    (path,) = fetch(mirror, tmp_path, last=1, sleep=naps)
    assert path.read_bytes() == CONTENT[FIRST]
    expected = (
        [None, "bytes=100000-", "bytes=250000-"]
        if has_ranges
        else [None, "bytes=100000-", "bytes=150000-"]
    )
    assert mirror.requests_for(FIRST) == expected
    # Tries are counted, and waits grow, from the last byte that arrived.
    assert naps == [1.0, 1.0]


def test_the_bytes_of_a_file_are_reported_while_they_come(mirror, tmp_path):
    part = tmp_path / "file.part"
    seen = []
    http = RetryingHttp(sleep=Naps(), progress=lambda *bytes_here: seen.append(bytes_here))
    mirror.faults[FIRST] = [100_000]
    http.download(pubmed_files(http, mirror.url, last=1)[0].url, part, is_checked=True)
    assert {path for path, _, _ in seen} == {part}
    assert {num_all for _, _, num_all in seen} == {len(CONTENT[FIRST])}
    num_here = [num for _, num, _ in seen]
    assert num_here[0] == 100_000
    assert num_here[-1] == len(CONTENT[FIRST])
    assert num_here == sorted(num_here)


def test_the_bytes_of_a_file_are_shown_now_and_then(capsys):
    now = [0.0]
    show = _BytesShown(clock=lambda: now[0])
    for now[0], num_here in ((0.5, 1_000), (31.0, 2_000_000_000), (40.0, 3_000_000_000)):
        show(Path("links.gz.part"), num_here, 138_000_000_000)
    now[0] = 70.0
    show(Path("links.gz.part"), 4_000_000_000, None)
    assert capsys.readouterr().out == "    links.gz: 2 GB of 138 GB\n    links.gz: 4 GB\n"


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_call_goes_on_where_an_earlier_one_stopped(mirror, tmp_path, has_ranges):
    mirror.has_ranges = has_ranges
    (tmp_path / f"{FIRST}.part").write_bytes(CONTENT[FIRST][:200_000])
    (path,) = fetch(mirror, tmp_path, last=1)
    assert path.read_bytes() == CONTENT[FIRST]
    assert mirror.requests_for(FIRST) == ["bytes=200000-"]
    assert not (tmp_path / f"{FIRST}.part").exists()


@pytest.mark.parametrize("sent", ["bytes 0-9/400000", "bytes 200001-9/400000", "all", ""])
def test_another_range_than_requested_begins_anew(mirror, tmp_path, sent):
    mirror.faults[FIRST] = [(206, {"Content-Range": sent})]
    (tmp_path / f"{FIRST}.part").write_bytes(CONTENT[FIRST][:200_000])
    naps = Naps()
    (path,) = fetch(mirror, tmp_path, last=1, sleep=naps)
    assert path.read_bytes() == CONTENT[FIRST]
    assert (mirror.requests_for(FIRST), naps) == (["bytes=200000-", None], [1.0])


@pytest.mark.parametrize("left", ["whole", "too long", "other bytes"])
def test_what_an_earlier_call_left_is_checked_before_it_is_used(mirror, tmp_path, left):
    content = CONTENT[FIRST]
    leftover = {"whole": content, "too long": content + b"more", "other bytes": b"x" * 1000}[left]
    (tmp_path / f"{FIRST}.part").write_bytes(leftover)
    (path,) = fetch(mirror, tmp_path, last=1)
    assert path.read_bytes() == content


def test_a_wrong_md5_is_tried_once_more_from_scratch(mirror, tmp_path):
    mirror.faults[FIRST] = [b"damaged on the way"]
    (path,) = fetch(mirror, tmp_path, last=1)
    assert path.read_bytes() == CONTENT[FIRST]
    assert mirror.requests_for(FIRST) == [None, None]


def test_an_md5_that_is_wrong_twice_is_an_error_and_leaves_no_file(mirror, tmp_path):
    mirror.faults[FIRST] = [b"damaged", b"damaged again", b"and again"]
    with pytest.raises(DataError, match=rf"{FIRST}: its md5 is .*, want .*, twice"):
        fetch(mirror, tmp_path, last=1)
    assert list(tmp_path.iterdir()) == []


def test_the_other_layout_of_an_md5_file_is_read(mirror, tmp_path):
    mirror.content[f"{FIRST}.md5"] = (
        f"{hashlib.md5(CONTENT[FIRST]).hexdigest().upper()}  {FIRST}\n".encode()
    )
    assert fetch(mirror, tmp_path, last=1)[0].read_bytes() == CONTENT[FIRST]


@pytest.mark.parametrize(
    "content", [b"", b"<html>busy</html>", b"MD5(x)= " + b"0" * 32, b"MD5(%s)= 12" % FIRST.encode()]
)
def test_an_md5_file_that_is_none_is_shown(mirror, tmp_path, content):
    mirror.content[f"{FIRST}.md5"] = content
    with pytest.raises(DataError, match=r"xml\.gz\.md5: holds .*, want 'MD5\(pubmed25n0001"):
        fetch(mirror, tmp_path, last=1)


@pytest.mark.parametrize("name", ["", f"{FIRST}.md5", FIRST])
def test_a_busy_server_is_requested_again_after_growing_waits(mirror, tmp_path, name, caplog):
    mirror.faults[name] = [(503, {}), (429, {"Retry-After": "7"})]
    naps = Naps()
    assert fetch(mirror, tmp_path, last=1, sleep=naps)[0].read_bytes() == CONTENT[FIRST]
    assert naps == [1.0, 7.0]
    first, second = (message.partition(": HTTP ")[2] for message in caplog.messages)
    assert (first, second) == ("503; next try in 1 s", "429; next try in 7 s")


def test_a_server_that_stays_busy_is_given_up_after_so_many_tries(mirror, tmp_path):
    mirror.faults[FIRST] = [(503, {})] * 9
    naps = Naps()
    with pytest.raises(DataError, match=rf"{FIRST}: failed 4 times, the last time with: HTTP 503"):
        fetch(mirror, tmp_path, last=1, sleep=naps, num_tries=4)
    assert (len(mirror.requests_for(FIRST)), naps) == (4, [1.0, 2.0, 4.0])


def test_a_wait_is_never_longer_than_two_minutes(mirror, tmp_path):
    mirror.faults[FIRST] = [(503, {"Retry-After": "999999999"})]
    naps = Naps()
    fetch(mirror, tmp_path, last=1, sleep=naps)
    assert naps == [120.0]


def test_what_was_fetched_before_a_server_went_away_is_kept(mirror, tmp_path):
    mirror.faults[SECOND] = [100_000, (500, {}), (500, {})]
    with pytest.raises(DataError, match=rf"{SECOND}: failed 3 times"):
        fetch(mirror, tmp_path, num_tries=3)
    assert (tmp_path / f"{SECOND}.part").stat().st_size == 100_000
    mirror.requests.clear()
    fetch(mirror, tmp_path, last=2)
    assert (mirror.requests_for(FIRST), mirror.requests_for(SECOND)) == ([], ["bytes=100000-"])


def test_an_index_that_was_cut_is_requested_again(mirror, tmp_path):
    mirror.faults[""] = [300]
    assert len(fetch(mirror, tmp_path)) == 4


def test_a_file_that_is_not_there_is_not_requested_again(mirror, tmp_path):
    del mirror.content[SECOND]
    with pytest.raises(DataError, match=rf"{SECOND}: the server answers 404"):
        fetch(mirror, tmp_path)
    assert mirror.requests_for(SECOND) == [None]


def test_links_out_of_the_folder_are_not_followed(mirror, tmp_path):
    evil = [
        "../pubmed25n0009.xml.gz",
        "/etc/pubmed25n0009.xml.gz",
        "http://x/pubmed25n0009.xml.gz",
        "..",
        "x.xml.gz",
    ]
    evil += [
        "pubmed25n0009.xml.gz/../../x",
        "%2e%2e%2fpubmed25n0009.xml.gz",
        "pubmed25n0009.xml.gz%00",
        "PUBMED",
    ]
    mirror.content[""] = "".join(f'<a href="{link}">x</a>' for link in evil).encode()
    with pytest.raises(DataError, match=r"lists no file such as pubmed25n0001\.xml\.gz"):
        fetch(mirror, tmp_path / "here")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file:///etc/", "ftp://127.0.0.1/x"])
def test_the_server_may_not_send_us_to_another_kind_of_address(mirror, tmp_path, place):
    mirror.faults[""] = [(302, {"Location": place})]
    with pytest.raises(DataError, match="refused|answers 302"):
        fetch(mirror, tmp_path)


@pytest.mark.parametrize(
    "url",
    ["file:///etc", "ftp://x/y", "/etc", "", "http://", "https://[", "http://x/ y", "http://x/\n"],
)
def test_addresses_that_are_not_of_the_web_are_refused(tmp_path, url):
    with pytest.raises(DataError, match="want an address that begins with https://"):
        http = RetryingHttp()
        download_files(http, [RemoteFile(url, "x", 3)], tmp_path)


def test_a_redirect_never_drops_encryption():
    handler = retrying_http._SafeRedirectHandler()
    request = urllib.request.Request("https://a.example/x")
    for kind in ("http", "file", "ftp"):
        with pytest.raises(DataError, match=f"redirects to {kind}.*refused"):
            handler.redirect_request(request, None, 302, "Found", {}, f"{kind}://a.example/x")
    assert handler.redirect_request(request, None, 302, "Found", {}, "https://b.example/x")


def test_a_server_that_is_not_there_is_given_up(tmp_path, mirror):
    mirror.url = "http://127.0.0.1:9"
    with pytest.raises(DataError, match="failed 2 times, the last time with: .*refused"):
        fetch(mirror, tmp_path, num_tries=2)


def test_a_folder_that_cannot_be_written_is_named(mirror, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file: cannot be written"):
        fetch(mirror, tmp_path / "file")
