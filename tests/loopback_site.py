"""A web site on this machine, with files, sizes, versions and ranges as a static server has them."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Site(ThreadingHTTPServer):
    """Serves ``files`` by path.

    Attributes:
        files: path -> content; a test may replace them between requests.
        requests: (method, path, Range, If-Range) of each request.
        cuts: path -> after how many bytes the connection is cut, once each.
        has_etags: files have an ETag.
        knows_head: requests of sizes are answered.
        honors_if_range: ranges of another version of a file are answered by the whole file.
    """

    daemon_threads = True

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(files)
        self.requests = []
        self.cuts = {}
        self.has_etags = True
        self.honors_if_range = True
        self.knows_head = True
        self.url = f"http://127.0.0.1:{self.server_port}"

    def gets(self, path):
        return [request[2:] for request in self.requests if request[:2] == ("GET", path)]


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer("HEAD")

    def do_GET(self):
        self._answer("GET")

    def _answer(self, method):
        site = self.server
        wanted = self.headers.get("Range")
        version = self.headers.get("If-Range")
        site.requests.append((method, self.path, wanted, version))
        if method == "HEAD" and not site.knows_head:
            self.send_error(405)
            return
        content = site.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        etag = f'"{hash(content) & 0xFFFFFFFF:x}"'
        # Before the headers: a client that has them may already set up the next answer.
        cuts = site.cuts.get(self.path, []) if method == "GET" else []
        num_sent = cuts.pop(0) if cuts else None
        start, status = 0, 200
        if wanted and (version in (None, etag) or not site.honors_if_range):
            start, status = int(wanted.removeprefix("bytes=").removesuffix("-")), 206
        self.send_response(status)
        if status == 206:
            last = len(content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        if site.has_etags:
            self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if method == "GET":
            self.wfile.write(content[start:][:num_sent])
        self.close_connection = True


@contextmanager
def serve(files):
    """Serve files on a port of its own."""
    site = Site(files)
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.shutdown()
        thread.join()
        site.server_close()
