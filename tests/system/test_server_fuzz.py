"""Malformed requests never cause an internal error.

They come from the description of the API, or have damaged bytes: unusual Unicode and unpaired surrogates, broken HTML,
truncated files and forms, and wrong headers.
"""

import http.client
import json
import random
import tempfile
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from benchmarks.serving import serving
from tests.support.bundles import save_random_bundle

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
PATHS = ["/download_file/x", "/suggest", "/", "/x", "/spec", "/languages"]
PIECES = ["a", "\n", "\0", "\x1b[0m", "\ufeff", "\u202e", "😀", "\U0010ffff", "\ud800", "\u3000", "İ", "مرحبا"]
PIECES += ["<b>", "</b>", "<p class='", "<!--", "]]>", "<m0>", "</m0>", "<m0/>"]
PIECES += ["&lt;", "&#xd800;", "<script>", "{name}"]
PIECES += ["one apple. ", "../", "%00", "%s", "${x}", "' OR 1=1", "http://x.org/?a=b", "5 km", "1" * 50, "a" * 300]
KINDS = ["txt", "srt", "html", "docx", "xlsx", "odt", "epub", "md", "po", "xlf", "json"]
FILES = [*(f"a.{kind}" for kind in KINDS), "../../a.txt", "a.pdf", "", "x" * 300 + ".txt", "a\0.txt"]
CONTENTS = [b"1\n00:00:01,000 --> 00:00:02,000\nHello\n", b"PK\x03\x04" + b"\x9c" * 40, b"<p>one <b>apple</b></p>"]


def text(draw: random.Random) -> str:
    return "".join(draw.choices(PIECES, k=draw.randint(0, 12)))


def value(draw: random.Random, schema: dict[str, Any]) -> object:
    """Return a value of a parameter, which is rarely not of its type."""
    if draw.random() < 0.1:
        return draw.choice([text(draw), [text(draw)] * draw.randint(0, 4), 10**20, -5, 1e999, None, True, {}, [[]]])
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if schema.get("type") == "integer":
        return draw.choice([0, 1, schema.get("minimum", -1), schema["maximum"], schema["maximum"] + 1])
    return text(draw)


def body_of(draw: random.Random, kind: str, parameters: dict[str, object]) -> bytes:
    if kind == JSON:
        return json.dumps(parameters).encode()
    if kind == FORM:
        pairs = {name: str(each) for name, each in parameters.items()}
        return urllib.parse.urlencode(pairs, errors="surrogatepass").encode()
    start = "--x\r\nContent-Disposition: form-data; name="
    parts = [f'{start}"{name}"\r\n\r\n{each}\r\n' for name, each in parameters.items()]
    parts.append(f'{start}"file"; filename="{draw.choice(FILES)}"\r\n\r\n')
    content = draw.choice([*CONTENTS, text(draw).encode("utf-8", "surrogatepass")])
    return "".join(parts).encode("utf-8", "surrogatepass") + content + b"\r\n--x--\r\n"


def damage(draw: random.Random, body: bytes) -> bytes:
    """Remove, replace or repeat some bytes, in half of all bodies."""
    for _ in range(draw.choice([0, 0, 1, 3]) if body else 0):
        start = draw.randrange(len(body) + 1)
        body = body[:start] + draw.choice([b"", draw.randbytes(1), body[start : start + 20] * 2]) + body[start + 1 :]
    return body


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[http.client.HTTPConnection, dict[str, Any]]]:
    """Connection to a server, and its description of the bodies of requests by path."""
    model = save_random_bundle(tmp_path_factory.mktemp("fuzz") / "bundle")
    with tempfile.TemporaryFile("w+") as log:
        with serving(model, "--threads", "1", log=log) as (process, address):
            with urllib.request.urlopen(f"{address}spec") as answer:
                routes = {path: methods.get("post", {}) for path, methods in json.load(answer)["paths"].items()}
            bodies = {path: each["requestBody"]["content"] for path, each in routes.items() if "requestBody" in each}
            place = urllib.parse.urlsplit(address)
            with closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)) as connection:
                yield connection, bodies
            assert process.poll() is None
        log.seek(0)
        assert [line for line in log if line.startswith("relattn-mt: error: ")] == []


@pytest.mark.parametrize("seed", range(2))
def test_malformed_requests_cause_no_internal_error(server, seed):
    (connection, bodies), draw, statuses = server, random.Random(seed), Counter[int]()
    assert set(bodies) == {"/translate", "/detect", "/translate_file", "/words"}
    for _ in range(2500):
        path = draw.choice(list(bodies))
        kind = draw.choice(list(bodies[path])) if draw.random() < 0.8 else draw.choice([JSON, FORM, MULTIPART])
        properties = next(iter(bodies[path].values()))["schema"]["properties"]
        names = [name for name in properties if name != "file" and draw.random() < 0.95]
        given = {name: value(draw, properties[name]) for name in names}
        body = damage(draw, body_of(draw, kind, given))
        headers = {"Content-Type": f"{kind}; boundary=x" if kind == MULTIPART else kind}
        if draw.random() < 0.05:
            headers["Content-Type"] = draw.choice(["", "x", "multipart/form-data", "application/json; charset=x"])
        path = draw.choice(PATHS) if draw.random() < 0.05 else path
        connection.request("POST" if draw.random() < 0.95 else "GET", path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        statuses[answer.status] += 1
        assert answer.status < 500, (path, headers, body, content)
        if answer.getheader("connection") == "close":
            connection.close()
    assert {200, 400, 404, 405} <= set(statuses), statuses
