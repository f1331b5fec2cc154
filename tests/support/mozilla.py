"""Loopback server with Mozilla's two lists of Firefox's models, and their files."""

import functools
import gzip
import hashlib
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from relattn_mt.firefox.registry import MIRROR

from tests.support.firefox_models import random_model, train_vocabulary, write_bin, write_shortlist
from tests.support.foreign_bundles import LINES

REGISTRY, RECORDS = "db/models.json", "v1/buckets/main/collections/translations-models-v2/records"
NAMES = {"model": "model", "lex": "lexicalShortlist", "vocab": "vocab", "srcvocab": "srcVocab", "trgvocab": "trgVocab"}


def model_files(directory: Path, *, two: bool = False, seed: int = 1) -> dict[str, bytes]:
    """Return the files of a small model by kind, with one vocabulary or two."""
    directory.mkdir(exist_ok=True)
    kinds = ("srcvocab", "trgvocab") if two else ("vocab",)
    files = {kind: train_vocabulary(directory / f"{kind}.{seed}.spm", LINES * 5, 40) for kind in kinds}
    pieces = 31
    options = {"tied_embeddings_all": False, "tied_embeddings": True} if two else {}
    tensors, settings = random_model(pieces, seed=seed, **options)  # type: ignore[arg-type]
    files["model"] = write_bin(directory / "model.bin", tensors, settings, int8=True)
    files["lex"] = write_shortlist(directory / "lex.bin", pieces)
    return {kind: file.read_bytes() for kind, file in files.items()}


@functools.cache
def compressed(content: bytes) -> bytes:
    """Return a file as .gz, which takes most of the time of a server that starts."""
    return gzip.compress(content, mtime=0)


def self_signed(address: str) -> bytes:
    """Return a new certificate for an IP address, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, address)])
    start = datetime(2020, 1, 1)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), start, datetime(2120, 1, 1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


class Mozilla(ThreadingHTTPServer):
    """Server with lists that a test may change, a record of requests, and faults by a part of the path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.registry: dict[str, Any] = {"generated": "2026-11-29", "baseUrl": "https://unused.invalid", "models": {}}
        self.records: dict[str, Any] = {"data": []}
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.statuses: dict[str, int] = {}
        self.redirects: dict[str, str] = {}
        self.cuts: dict[str, int] = {}  # number of bytes at the end that are not sent
        self.has_ranges = True

    def encrypt(self, certificate: Path) -> None:
        """Serve over HTTPS from now on, with a new certificate for 127.0.0.1; it is written to a file, with its key."""
        certificate.write_bytes(self_signed("127.0.0.1"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.url = self.url.replace("http:", "https:")

    def add(
        self,
        pair: str,
        files: dict[str, bytes],
        *,
        architecture: str = "base-memory",
        status: str | None = "Release",
        version: str = "3.0",
    ) -> str:
        """Add a model to both lists, as .gz to the registry and as .zst to the records. Return the weights' SHA-256."""
        src, tgt = pair.split("-", 1)
        digest = {kind: hashlib.sha256(content).hexdigest() for kind, content in files.items()}
        entry: dict[str, Any] = {"architecture": architecture, "releaseStatus": status, "files": {}}
        entry |= {"sourceLanguage": src, "targetLanguage": tgt, "metrics": {"flores200-plus": {"bleu": 38.8}}}
        for kind, content in files.items():
            path = f"models/{pair}/{architecture}_{digest['model'][:8]}/exported/{kind}.bin.gz"
            self.files[path] = compressed(content)
            entry["files"][NAMES[kind]] = {"path": path}
            packed = pyarrow.compress(content, "zstd", asbytes=True)
            location = f"main-workspace/translations-models-v2/{digest[kind][:16]}.zst"
            self.files[location] = packed
            attachment = {"location": location, "hash": hashlib.sha256(packed).hexdigest(), "size": len(packed)}
            record: dict[str, Any] = {
                "name": f"{kind}.bin",
                "sourceLanguage": src,
                "targetLanguage": tgt,
                "version": version,
            }
            record |= {"architecture": architecture, "fileType": kind, "attachment": attachment, "schema": 1}
            record |= {"decompressedSize": len(content), "decompressedHash": digest[kind]}
            self.records["data"].append({**record, "filter_expression": "" if status else "env.channel == 'nightly'"})
        weights = {"uncompressedSize": len(files["model"]), "uncompressedHash": digest["model"]}
        entry["files"]["model"] |= weights
        self.registry["models"].setdefault(pair, []).append(entry)
        return digest["model"]


class Handler(BaseHTTPRequestHandler):
    server: Mozilla
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        server, path = self.server, urlsplit(self.path).path.lstrip("/")  # of a proxy, a whole address
        server.asked.append(path)
        for part, url in server.redirects.items():
            if part in path:
                return self.reply(302, b"", {"Location": url})
        for part, status in server.statuses.items():
            if part in path:
                return self.reply(status, b"as the test wants it")
        lists = {REGISTRY: server.registry, RECORDS: server.records}
        if path in lists:
            content: Any = lists[path]
            return self.reply(200, content if isinstance(content, bytes) else json.dumps(content).encode())
        if path not in server.files:
            return self.reply(404, b"")
        content, begin = server.files[path], 0
        if server.has_ranges and (given := self.headers["Range"]):
            begin = int(given.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(content):
                return self.reply(416, b"")
        headers = {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"} if begin else {}
        cut = next((count for part, count in server.cuts.items() if part in path), 0)
        return self.reply(206 if begin else 200, content[begin:], headers, cut)

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int = 0) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) - cut])
        self.close_connection = self.close_connection or cut > 0


@contextmanager
def serving(cache: Path) -> Iterator[tuple[Mozilla, dict[str, str]]]:
    """Run a server, and yield it with the variables by which a process uses it with an empty cache."""
    with Mozilla() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server, {MIRROR: server.url, "XDG_CACHE_HOME": str(cache), "NO_PROXY": "127.0.0.1"}
        finally:
            server.shutdown()
            thread.join()


def start_import(name: str, variables: dict[str, str]) -> subprocess.Popen[str]:
    """Start a process that imports a model."""
    return subprocess.Popen(
        [sys.executable, "-m", "relattn_mt", "import", name],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
