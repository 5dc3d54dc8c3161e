"""A hub on the loopback that takes uploads: repositories with branches, commits and LFS files.

It speaks the requests of ``HfApi``: create_repo, create_branch, model_info, preupload, the LFS
batch, commit; and resolve, by which everything is downloaded. Transfers are checked as the real hub
does: an LFS file must have its size and sha256, a commit its parent.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import yaml

Files = dict[str, bytes]


@dataclass
class Repository:
    """Commits by branch, and the files of each commit."""

    is_private: bool
    commit_by_branch: dict[str, str] = field(default_factory=dict)
    files_by_commit: dict[str, Files] = field(default_factory=dict)

    def commit(self, branch: str, files: Files) -> str:
        number = len(self.files_by_commit)
        commit = hashlib.sha1(f"{branch} {number} {sorted(files)}".encode()).hexdigest()
        self.commit_by_branch[branch] = commit
        self.files_by_commit[commit] = dict(files)
        return commit

    def at(self, revision: str) -> tuple[str, Files] | None:
        commit = self.commit_by_branch.get(revision, revision)
        files = self.files_by_commit.get(commit)
        return None if files is None else (commit, files)


class UploadHub(ThreadingHTTPServer):
    """The hub.

    Attributes:
        may_write: token -> the owners that it may write for.
        repositories: by id.
        requests: "METHOD path" of each request.
        large: content by sha256 of the LFS store.
    """

    daemon_threads = True

    def __init__(self, may_write: dict[str, set[str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.may_write = may_write
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.large: dict[str, bytes] = {}
        self.url = f"http://127.0.0.1:{self.server_port}"

    def add(self, name: str, files: Files, *, is_private: bool = False) -> Repository:
        repository = Repository(is_private)
        repository.commit("main", {".gitattributes": b"", **files})
        self.repositories[name] = repository
        return repository


class _RefusalError(Exception):
    def __init__(self, status: int, message: str, code: str = "", **content: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.content = content


class _Handler(BaseHTTPRequestHandler):
    server: UploadHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._handle()

    def do_GET(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _handle(self) -> None:
        body = self._body()
        path = unquote(self.path.split("?")[0])
        self.server.requests.append(f"{self.command} {path}")
        try:
            self._answer_to(path.strip("/").split("/"), body)
        except _RefusalError as refusal:
            headers = {"X-Error-Message": str(refusal)}
            if refusal.code:
                headers["X-Error-Code"] = refusal.code
            content = {"error": str(refusal), **refusal.content}
            self._send(refusal.status, json.dumps(content).encode(), headers)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _answer_to(self, parts: list[str], body: bytes) -> None:
        match [self.command, *parts]:
            case ["POST", "api", "repos", "create"]:
                self._create(json.loads(body))
            case ["POST", "api", "validate-yaml"]:
                self._validate(json.loads(body)["content"])
            case ["PUT", "lfs", oid]:
                if hashlib.sha256(body).hexdigest() != oid:
                    raise _RefusalError(400, "the sha256 differs")
                self.server.large[oid] = body
                self._send(200, b"")
            case ["POST", "lfs", "verify"]:
                wanted = json.loads(body)
                if len(self.server.large[wanted["oid"]]) != wanted["size"]:
                    raise _RefusalError(400, "the size differs")
                self._json({})
            case ["POST", owner, name, "info", "lfs", "objects", "batch"]:
                self._writable(f"{owner}/{name.removesuffix('.git')}")
                self._batch(json.loads(body))
            case ["POST", "api", "models", owner, name, "branch", branch]:
                repository = self._writable(f"{owner}/{name}")
                if branch in repository.commit_by_branch:
                    raise _RefusalError(409, "the branch exists")
                start = json.loads(body).get("startingPoint", "main")
                repository.commit_by_branch[branch] = self._found(f"{owner}/{name}", start)[0]
                self._json({})
            case ["POST", "api", "models", owner, name, "preupload", _]:
                self._writable(f"{owner}/{name}")
                self._preupload(json.loads(body)["files"])
            case ["POST", "api", "models", owner, name, "commit", branch]:
                self._commit(f"{owner}/{name}", branch, body)
            case ["GET", "api", "models", owner, name]:
                self._info(f"{owner}/{name}", "main")
            case ["GET", "api", "models", owner, name, "revision", revision]:
                self._info(f"{owner}/{name}", revision)
            case ["GET", "api", "models", owner, name, "tree", revision]:
                self._tree(f"{owner}/{name}", revision)
            case ["GET" | "HEAD", owner, name, "resolve", revision, *file]:
                self._resolve(f"{owner}/{name}", revision, "/".join(file))
            case _:
                raise _RefusalError(404, "no such page")

    @property
    def _token(self) -> str | None:
        given = self.headers.get("Authorization")
        if given is None:
            return None
        token = given.removeprefix("Bearer ")
        if token not in self.server.may_write:
            raise _RefusalError(401, "Invalid credentials in Authorization header")
        return token

    def _check_may_write(self, owner: str) -> None:
        if owner not in self.server.may_write.get(self._token or "", ()):
            raise _RefusalError(403, "You don't have the rights to create or change a model here")

    def _readable(self, name: str) -> Repository:
        repository = self.server.repositories.get(name)
        owners = self.server.may_write.get(self._token or "", set())
        if repository is None or (repository.is_private and name.split("/")[0] not in owners):
            raise _RefusalError(404, "Repository not found", "RepoNotFound")
        return repository

    def _writable(self, name: str) -> Repository:
        repository = self._readable(name)
        self._check_may_write(name.split("/")[0])
        return repository

    def _create(self, wanted: dict) -> None:
        self._check_may_write(wanted["organization"])
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.server.repositories:
            url = f"{self.server.url}/{name}"
            raise _RefusalError(409, "You already created this model repo", url=url)
        self.server.add(name, {}, is_private=wanted.get("visibility") == "private")
        self._json({"url": f"{self.server.url}/{name}", "name": name})

    def _validate(self, content: str) -> None:
        header = yaml.safe_load(content.split("---\n")[1])
        errors = []
        if not str(header.get("license", "mit")).islower():
            errors.append({"message": '"license" must be one of [apache-2.0, mit, ...]'})
        body = json.dumps({"errors": errors, "warnings": []}).encode()
        self._send(400 if errors else 200, body)

    def _batch(self, wanted: dict) -> None:
        objects = []
        for each in wanted["objects"]:
            actions = {
                "upload": {"href": f"{self.server.url}/lfs/{each['oid']}"},
                "verify": {"href": f"{self.server.url}/lfs/verify"},
            }
            is_known = each["oid"] in self.server.large
            objects.append(each if is_known else each | {"actions": actions})
        self._json({"transfer": "basic", "objects": objects})

    def _preupload(self, files: list[dict]) -> None:
        answers = []
        for file in files:
            base64.b64decode(file["sample"])
            is_large = file["path"].endswith(".safetensors")
            mode = "lfs" if is_large else "regular"
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
        self._json({"files": answers})

    def _commit(self, name: str, branch: str, body: bytes) -> None:
        repository = self._writable(name)
        parent, files = repository.at(branch) or ("", {})
        files = dict(files)
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            match item["key"]:
                case "header":
                    if value.get("parentCommit", parent) != parent:
                        raise _RefusalError(
                            412, "A commit has happened since. Please refresh and try"
                        )
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.server.large[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        commit = repository.commit(branch, files)
        url = f"{self.server.url}/{name}/commit/{commit}"
        self._json({"commitUrl": url, "commitOid": commit})

    def _found(self, name: str, revision: str) -> tuple[str, Files]:
        found = self._readable(name).at(revision)
        if found is None:
            raise _RefusalError(404, "Invalid rev id", "RevisionNotFound")
        return found

    def _tree(self, name: str, revision: str) -> None:
        _, files = self._found(name, revision)
        entries = [
            {
                "type": "file",
                "path": file,
                "size": len(content),
                "oid": hashlib.sha1(content).hexdigest(),
            }
            for file, content in files.items()
        ]
        self._send(200, json.dumps(entries).encode())

    def _info(self, name: str, revision: str) -> None:
        commit, files = self._found(name, revision)
        siblings = [{"rfilename": file} for file in sorted(files)]
        self._json(
            {
                "id": name,
                "sha": commit,
                "private": self._readable(name).is_private,
                "tags": [],
                "siblings": siblings,
            }
        )

    def _resolve(self, name: str, revision: str, file: str) -> None:
        commit, files = self._found(name, revision)
        if file not in files:
            body = b""
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}
            self._send(404, body, headers)
            return
        etag = f'"{hashlib.sha256(files[file]).hexdigest()}"'
        self._send(200, files[file], {"X-Repo-Commit": commit, "ETag": etag})

    def _json(self, content: dict) -> None:
        self._send(200, json.dumps(content).encode())

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def upload_hub(may_write: dict[str, set[str]]) -> Iterator[UploadHub]:
    """Serve a hub while the block runs.

    Args:
        may_write: token -> the owners that it may write for.
    """
    server = UploadHub(may_write)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
