"""A server on the loopback that lays files out as the hub does."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LATER_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
LATER = "later"
"""A repository with a folder of this name has it as its ``main``, of ``LATER_COMMIT``."""

GATED = ".gated"
"""A repository with a file of this name is shown only with the token that the file holds."""

CUT = ".cut"
"""Of a repository with a file of this name, pickled weights arrive in half."""


class _Hub(BaseHTTPRequestHandler):
    """The hub's /{id}/resolve/{revision}/{file}, /api/models/{id} and its tree, for some repositories."""

    folder_by_id: dict[str, Path]
    id_by_older: dict[str, str]

    def do_HEAD(self):
        self._answer(with_body=False)

    def do_GET(self):
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.split("?")[0].strip("/").removeprefix("api/models/")
        owner, *below = path.split("/")
        # The oldest repositories have no owner.
        has_owner = owner not in self.folder_by_id.keys() | self.id_by_older.keys()
        name = "/".join([owner, *below[:1]]) if has_owner else owner
        if name in self.id_by_older:
            self.send_response(307)
            self.send_header("Location", self.path.replace(name, self.id_by_older[name], 1))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        folder, rest = self.folder_by_id.get(name), path[len(name) :].strip("/")
        body = (
            b""
            if folder is None
            else self._api(name, folder, rest)
            if "/api/" in self.path
            else _file(folder, rest)
        )
        is_gated = folder is not None and (folder / GATED).is_file()
        if is_gated and self.headers["Authorization"] != f"Bearer {(folder / GATED).read_text()}":
            self.send_response(403)
            self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        is_later = folder is not None and (folder / LATER).is_dir()
        commit = LATER_COMMIT if is_later and COMMIT not in rest else COMMIT
        self.send_response(200 if body else 404)
        if body:
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        else:
            self.send_header("X-Error-Code", "RepoNotFound" if folder is None else "EntryNotFound")
            self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            is_cut = rest.endswith(".bin") and (folder / CUT).is_file()
            self.wfile.write(body[: len(body) // 2] if is_cut else body)

    def _api(self, name: str, folder: Path, rest: str) -> bytes:
        files = {
            str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()
        }
        if rest in ("", "revision/main"):
            siblings = [{"rfilename": file} for file in files]
            info = {"id": name, "sha": COMMIT, "tags": [], "siblings": siblings}
            return json.dumps(info).encode()
        if rest == f"tree/{COMMIT}":
            return json.dumps([_entry(path, file) for path, file in files.items()]).encode()
        return b""

    def log_message(self, *_):
        pass


def _entry(path: str, file: Path) -> dict[str, object]:
    content = file.read_bytes()
    oid = hashlib.sha1(content).hexdigest()
    return {"type": "file", "path": path, "size": len(content), "oid": oid}


def _file(folder: Path, rest: str) -> bytes:
    later = folder / LATER if (folder / LATER).is_dir() else folder
    for revision, place in (("main", later), (LATER_COMMIT, later), (COMMIT, folder)):
        file = place / rest.removeprefix(f"resolve/{revision}/")
        if rest.startswith(f"resolve/{revision}/") and file.is_file():
            return file.read_bytes()
    return b""


@contextmanager
def serve_hub(
    folder_by_id: dict[str, Path], id_by_older: dict[str, str] | None = None
) -> Iterator[str]:
    """The address of a hub that holds these repositories, while the block runs.

    Requests of an older id are redirected, as those of bert-base-cased to google-bert's.
    """
    repositories = {"folder_by_id": folder_by_id, "id_by_older": id_by_older or {}}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("TinyHub", (_Hub,), repositories))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run_with_hub(program: str, text: str, folder_by_id: dict[str, Path], home: Path) -> str:
    """Return what a Python program prints that has ``text`` as its input and asks such a hub.

    Its caches are below ``home``.
    """
    inherited = {
        key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")
    }
    with serve_hub(folder_by_id) as address:
        own = {"HF_HOME": str(home / "hf"), "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"}
        own |= {"HF_HUB_DISABLE_XET": "1", "RAYBIO_CACHE": str(home / "cache")}
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=text,
            env=inherited | own,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout
