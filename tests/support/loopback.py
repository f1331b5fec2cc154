"""Loopback server for the part of the Hugging Face hub's HTTP API that downloading uses."""

import hashlib
import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # files by hash of the commit, oldest first
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Add `files` to those of a branch, and return the hash of the commit."""
        files = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        sha = hashlib.sha1(json.dumps([len(self.commits), sorted(files)]).encode()).hexdigest()
        self.commits[sha] = files
        self.branches[branch] = sha
        return sha


class Hub(ThreadingHTTPServer):
    """Hub with its repositories, a record of requests, and faults."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, Repository] = {}
        self.tokens = {"hf_writer"}
        self.asked: list[str] = []  # method and path of each request
        self.agents: set[str] = set()
        self.failing: dict[str, int] = {}  # part of a path → status of requests with it
        self.gated = False
        self.cuts: dict[str, int] = {}  # file name → number of bytes at its end that are not sent

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that reset their connection, and print all other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def reply(self, status: int, content: object = b"", headers: dict[str, str] | None = None, cut: int = 0) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) - cut])
            self.close_connection = self.close_connection or cut > 0

    def refuse(self, status: int, code: str, message: str) -> None:
        self.reply(status, {"error": message}, {"X-Error-Code": code, "X-Error-Message": message})

    def handle_any(self) -> None:
        hub, path = self.server, urlsplit(self.path).path
        hub.asked.append(f"{self.command} {path}")
        hub.agents.add(self.headers["User-Agent"])
        for part, status in hub.failing.items():
            if part in path:
                return self.refuse(status, "", "as the test wants it")
        token = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        if path.startswith("/api/"):
            org, name, verb, revision, *_ = [*path.split("/")[3:], "revision", "main"]
        else:
            org, name, verb, revision, *_ = [*path[1:].split("/"), "", ""]
        name = f"{org}/{name}"
        repository = hub.repositories.get(name)
        if repository is None or (repository.private and token not in hub.tokens):
            return self.refuse(404, "RepoNotFound", "Repository not found")
        if hub.gated:
            return self.refuse(403, "GatedRepo", f"Access to model {name} is restricted")
        sha = repository.branches.get(unquote(revision), revision)
        if sha not in repository.commits:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return self.show(name, repository, verb, sha)

    do_GET = do_HEAD = handle_any

    def show(self, name: str, repository: Repository, verb: str, sha: str) -> None:
        files = repository.commits[sha]
        if verb == "revision":
            siblings = [described(name, content) for name, content in files.items()] if "blobs" in self.path else []
            return self.reply(200, {"id": name, "sha": sha, "private": repository.private, "siblings": siblings})
        assert verb == "resolve"
        path = unquote(self.path.split("/resolve/")[1].split("/", 1)[1])
        if path not in files:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        etag = f'"{hashlib.sha256(files[path]).hexdigest()}"'
        return self.send_file(path, files[path], {"ETag": etag, "X-Repo-Commit": sha})

    def send_file(self, path: str, content: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a file, from the position that the client asks for."""
        start, status, headers = 0, 200, headers or {}
        if self.headers["Range"]:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                return self.refuse(416, "", "Range Not Satisfiable")
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        left = content[start:]
        return self.reply(status, left, headers, min(len(left), self.server.cuts.get(path, 0)))


def described(name: str, content: bytes) -> dict:
    """Return what the hub reports about a file: the hash of Git, and SHA-256 for Parquet, which is large."""
    about = {"rfilename": name, "size": len(content)}
    about["blobId"] = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    if name.endswith(".parquet"):
        about["lfs"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 130}
    return about


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Make writing fail, as on a full disk, after `size` bytes of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
