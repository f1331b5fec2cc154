"""A server under load: 200 clients at once, clients that never finish a request, a glossary, and SIGTERM."""

import asyncio
import http.client
import json
import random
import socket
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.serving import measure, serving
from tests.support.bundles import LINES, save_random_bundle

LANGUAGES = {"source": "en", "target": "de"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_bundle(tmp_path_factory.mktemp("load") / "bundle")


def test_every_client_gets_its_own_translation(model):
    """Also those whose requests were accepted when SIGTERM arrived."""
    draw, words = random.Random(1), " ".join(LINES).split()
    lines = [" ".join(draw.choices(words, k=draw.randint(1, 20))) for _ in range(100)]
    found = asyncio.run(measure(model, lines, LANGUAGES, ["--threads", "1"], clients=200, seconds=40))
    assert (found["wrong"], found["other"]) == (0, 0)
    assert found["answered"] == found["accepted"]
    assert found["answers"] > 200
    assert found["mib_last"] < found["mib_middle"] + 50


def test_unfinished_requests_block_nobody(model):
    head = (
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    with (
        tempfile.TemporaryFile("w+") as log,
        serving(model, "--limits.seconds", "2", log=log) as (_, address),
        ExitStack() as stack,
    ):
        place = urllib.parse.urlsplit(address)
        slow = [stack.enter_context(socket.create_connection((place.hostname, place.port))) for _ in range(200)]
        for each in slow:
            each.sendall(head)
        for each in slow[:100]:
            each.close()
        query = urllib.parse.urlencode({"q": "one apple", **LANGUAGES})
        assert urllib.request.urlopen(f"{address}translate?{query}", b"", timeout=30).status == 200
        for each in slow[100:]:
            each.settimeout(30)
            assert b" 408 " in each.recv(200)


def test_a_glossary_delays_no_other_client():
    """Of two quiet cores. The sentences lack a term of 60 pieces, the most that a sentence may have."""
    words = [
        "small",
        "big",
        "red",
        "green",
        "old",
        "new",
        "nice",
        "cold",
        "warm",
        "dark",
        "clean",
        "dirty",
        "cheap",
        "fine",
        "good",
        "bad",
    ]
    lines = [f"My flat is {first} and {second}." for first in words for second in words[:2]]
    costly = {"q": lines, **LANGUAGES, "glossary": {"flat": " ".join(["Wohnung"] * 30)}}

    def post(place: str, client: str, body: dict[str, object]) -> float:
        begin = time.monotonic()
        connection = http.client.HTTPConnection(place, timeout=120, source_address=(client, 0))
        connection.request("POST", "/translate", json.dumps(body), {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        connection.close()
        return time.monotonic() - begin

    with tempfile.TemporaryFile("w+") as log, serving(Path("everyday-en-de"), log=log) as (_, address):
        place = urllib.parse.urlsplit(address).netloc
        post(place, "127.0.0.2", {"q": "How are you?", **LANGUAGES})
        others = [threading.Thread(target=post, args=(place, "127.0.0.1", costly)) for _ in range(2)]
        for each in others:
            each.start()
        waits = []
        while any(each.is_alive() for each in others):
            waits.append(post(place, "127.0.0.2", {"q": "Where is the station?", **LANGUAGES}))
            time.sleep(0.05)
        waits.sort()
        assert waits[-1] <= 0.5, f"{len(waits)} requests waited {waits[len(waits) // 2]:.3f} s in the median"
