"""Published clients of LibreTranslate's API, and the ways in which other programs send requests.

With RELATTN_CLIENTS=install, those in `PYTHON` and `NODE` are installed from their registries. Otherwise, only those
that are installed here are used.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from relattn_mt import load

from benchmarks.serving import serving
from tests.support.bundles import save_random_bundle

PYTHON, NODE = ["deep-translator==1.11.4", "translate==3.8.1"], ["translate@3.1.0", "libretranslate@1.0.1"]
TEXT = "Äpfel & one apple"
IN_PYTHON = {
    "libretranslatepy": "from libretranslatepy import LibreTranslateAPI as A; a = A(url);"
    "assert a.detect(text); assert a.languages(); print(a.translate(text, 'en', 'de'))",
    "deep_translator": "from deep_translator import LibreTranslator as L;"
    "print(L(source='en', target='de', custom_url=url, api_key='x').translate(text))",
    "translate": "from translate.providers import LibreProvider as L;"
    "print(L('de', from_lang='en', base_url=url).get_translation(text))",
}
REQUEST = "{q: text, source: 'en', target: 'de'}"
IN_NODE = {
    "libretranslate": "const {translate} = require('libretranslate');"
    "translate({query: text, source: 'en', target: 'de', apiurl: url.slice(0, -1)}).then(a => console.log(a))",
    "translate": "import('translate').then(async ({Translate}) => {const translate = Translate({"
    "engine: 'libre', url: url + 'translate', from: 'en', to: 'de'}); console.log(await translate(text))})",
    "fetch": f"fetch(url + 'translate', {{method: 'POST', body: new URLSearchParams({REQUEST})}})"
    ".then(a => a.json()).then(a => console.log(a.translatedText))",
}
WITH_CURL = {
    "form": ["-d", f"q={TEXT.replace('&', '%26')}", "-d", "source=en", "-d", "target=DE"],
    "json": ["-H", "Content-Type: application/json", "-d", json.dumps({"q": TEXT, "source": "en", "target": "de"})],
    "multipart": ["-F", f"q={TEXT}", "-F", "source=en", "-F", "target=de"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_bundle(tmp_path_factory.mktemp("clients") / "bundle")


@pytest.fixture(scope="module")
def expected(model: Path) -> str:
    return load(model).translate([TEXT])[0]


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    limits = ["--limits.header", "2", "--limits.connections", "60"]
    with tempfile.TemporaryFile("w+") as log:
        with serving(model, "--threads", "1", *limits, log=log) as (_, address):
            yield address
        log.seek(0)
        assert all(json.loads(line) for line in log)


def output(*command: str, folder: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a Python with published clients; without them, that of this process."""
    if not os.environ.get("RELATTN_CLIENTS"):
        return sys.executable
    folder = tmp_path_factory.mktemp("python")
    venv.create(folder, with_pip=True)
    output(str(folder / "bin" / "pip"), "install", "--quiet", *PYTHON)
    return str(folder / "bin" / "python")


@pytest.mark.parametrize("name", IN_PYTHON)
def test_python(python: str, address: str, expected: str, name: str) -> None:
    if subprocess.run([python, "-c", f"import {name}"], capture_output=True, check=False).returncode:
        pytest.skip(f"{name} is not installed: RELATTN_CLIENTS=install make test-system")
    assert output(python, "-c", f"url, text = {address!r}, {TEXT!r}; {IN_PYTHON[name]}") == expected


@pytest.mark.parametrize("name", IN_NODE)
def test_node(tmp_path: Path, address: str, expected: str, name: str) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed: apt-get install nodejs npm")
    if name != "fetch":
        if not os.environ.get("RELATTN_CLIENTS"):
            pytest.skip(f"{name} is not installed: RELATTN_CLIENTS=install make test-system")
        output("npm", "install", "--silent", *(each for each in NODE if each.startswith(f"{name}@")), folder=tmp_path)
    script = f"const url = {json.dumps(address)}, text = {json.dumps(TEXT)}; {IN_NODE[name]}"
    assert output("node", "-e", script, folder=tmp_path) == expected


@pytest.mark.parametrize("name", WITH_CURL)
def test_curl(address: str, expected: str, name: str) -> None:
    answer = output("curl", "--silent", f"{address}translate", *WITH_CURL[name])
    assert json.loads(answer) == {"translatedText": expected}


def test_answer_to_a_large_request_is_read(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{address}translate", b"x" * 20_000_000, timeout=60)
    with refused.value as answer:
        assert answer.code == 413


def connect(address: str, sent: bytes = b"") -> socket.socket:
    place = urllib.parse.urlsplit(address)
    connection = socket.create_connection((place.hostname or "", place.port or 0), timeout=20)
    connection.sendall(sent)
    return connection


def test_limits_of_connections(address: str) -> None:
    """An unfinished header is answered with 408, a connection too many with 429, an invalid request with JSON."""
    with connect(address, b"GET /health HTTP/1.1\r\n") as slow:
        began = time.monotonic()
        assert b" 408 " in slow.recv(1000)
        assert time.monotonic() - began > 1
    with connect(address, b"no HTTP\r\n\r\n") as wrong:
        assert json.loads(wrong.recv(1000).partition(b"\r\n\r\n")[2]) == {"error": "the request must be valid HTTP"}
    connections = [connect(address) for _ in range(31)]
    assert b" 429 " in connections[-1].recv(1000)
    for each in connections:
        each.close()
    proxied = urllib.request.Request(
        f"{address}translate_file",
        multipart(),
        {"Content-Type": "multipart/form-data; boundary=x", "X-Forwarded-Proto": "https", "Host": "example.org"},
    )
    for _ in range(20):  # until the connections are closed
        try:
            with urllib.request.urlopen(proxied, timeout=60) as answer:
                url = json.load(answer)["translatedFileUrl"]
            break
        except urllib.error.HTTPError as error:
            error.close()
            time.sleep(0.2)
    assert re.match("https://example.org/download_file/", url)


def multipart() -> bytes:
    fields = {"source": "en", "target": "de", 'file"; filename="a.txt': "one"}
    parts = (f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{each}\r\n' for name, each in fields.items())
    return "".join(parts).encode() + b"--x--\r\n"
