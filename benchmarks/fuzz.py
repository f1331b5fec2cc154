"""Send thousands of malformed requests to a server, and check that none causes an internal error.

    python -m benchmarks.fuzz MODEL

Schemathesis (`pip install schemathesis`, a program of its own) generates valid and invalid requests from the
description of the API. Then come our own requests with damaged bytes: unusual Unicode and unpaired surrogates,
malformed HTML, truncated files, broken forms and wrong headers. The reported counts are those of the server's metrics.
"""

import argparse
import http.client
import json
import random
import re
import subprocess
import sys
import urllib.parse
from collections import Counter
from pathlib import Path

from benchmarks.serving import start

ROUTES = ["/translate", "/detect", "/translate_file", "/words", "/attention", "/suggest", "/download_file/x", "/", "/x"]
PIECES = [
    *(
        "a",
        "Hello world. ",
        "\n",
        "\x00",
        "\x1b[0m",
        "\ufeff",
        "\u202e",
        "😀",
        "\U0010ffff",
        "\ud800",
        "\u3000",
        "İ",
        "مرحبا",
    ),
    *(
        "<b>",
        "</b>",
        "<p class='",
        "<!--",
        "]]>",
        "<m0>",
        "</m0>",
        "<m0/>",
        "&lt;",
        "&#xd800;",
        "<script>",
        "{name}",
        "%s",
    ),
    *("../", "%00", "${x}", "' OR 1=1", "http://x.org/?a=b", "5 km", "1" * 50, "a" * 300, "one cat sat on a mat "),
]
FILES = ["a.txt", "a.srt", "a.html", "a.docx", "../../a.txt", "a.pdf", "", "x" * 300 + ".txt", "a\x00.txt"]
SUBTITLES = b"1\n00:00:01,000 --> 00:00:02,000\nHello\n"


def text(draw: random.Random) -> str:
    return "".join(draw.choice(PIECES) for _ in range(draw.randint(0, 12)))


def value(draw: random.Random) -> object:
    """Return a value for any parameter."""
    return draw.choice(
        [
            text(draw),
            [text(draw) for _ in range(draw.randint(0, 4))],
            draw.randint(-5, 10**20),
            1e999,
            None,
            True,
            {},
            [[]],
        ]
    )


def request(draw: random.Random) -> tuple[str, str, bytes, dict[str, str]]:
    """Return the method, path, body and headers of a request."""
    given: dict[str, object] = {
        "q": text(draw),
        "source": draw.choice(["en", "en", "en", "auto", "de", text(draw)]),
        "target": draw.choice(["de", "de", "de", "en", text(draw)]),
        "format": draw.choice(["text", "html", "html", text(draw)]),
        "alternatives": draw.choice([0, 1, 3, 10**9, "3", text(draw)]),
    }
    for name in list(given):
        if draw.random() < 0.05:
            given[name] = value(draw)
        if draw.random() < 0.05:
            del given[name]
    path, method = draw.choice(ROUTES[:5] if draw.random() < 0.8 else ROUTES), "POST" if draw.random() < 0.95 else "GET"
    kind = draw.choice(["json", "json", "form", "file"])
    if kind == "json":
        body, headers = json.dumps(given).encode(), {"Content-Type": "application/json"}
    elif kind == "form":
        pairs = {name: str(each) for name, each in given.items()}
        body = urllib.parse.urlencode(pairs, errors="surrogatepass").encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
    else:
        content = draw.choice(
            [SUBTITLES, b"PK\x03\x04" + draw.randbytes(40), text(draw).encode("utf-8", "surrogatepass")]
        )
        parts = [
            f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{each}\r\n'.encode("utf-8", "surrogatepass")
            for name, each in given.items()
        ]
        head = f'--x\r\nContent-Disposition: form-data; name="file"; filename="{draw.choice(FILES)}"\r\n\r\n'.encode()
        body = b"".join([*parts, head, content, b"\r\n--x--\r\n"])
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
    for _ in range(draw.choice([0, 0, 0, 1, 3])):  # damage
        if body:
            at = draw.randrange(len(body))
            body = body[:at] + draw.choice([b"", draw.randbytes(1), body[at : at + 20] * 2]) + body[at + 1 :]
    if draw.random() < 0.05:
        headers["Content-Type"] = draw.choice(
            ["", "x", "multipart/form-data", "application/json; charset=x", "text/html"]
        )
    return method, path, body, headers


def send_damaged(address: str, count: int, seed: int) -> Counter[int]:
    """Send our own requests. Return the number of responses by status."""
    draw, statuses = random.Random(seed), Counter[int]()
    host = urllib.parse.urlsplit(address)
    for _ in range(count):
        method, path, body, headers = request(draw)
        connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=60)
        connection.request(method, path, body, headers)
        statuses[connection.getresponse().status] += 1
        connection.close()
    return statuses


def counted(address: str) -> Counter[str]:
    """Return the number of requests by status, from the metrics of the server."""
    host = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=60)
    connection.request("GET", "/metrics")
    metrics = connection.getresponse().read().decode()
    connection.close()
    counts = Counter[str]()
    for status, number in re.findall(r'relattn_requests_total\{.*status="(\d+)"\} ([\d.]+)', metrics):
        counts[status] += int(float(number))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("model", type=Path, help="bundle or export")
    parser.add_argument("--examples", type=int, default=1000, help="number of requests of Schemathesis per route")
    parser.add_argument("--damaged", type=int, default=5000, help="number of our own requests")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    arguments = parser.parse_args()
    process, address = start(arguments.model, ["--threads", "1", "--beam_size", "2"])
    try:
        options = [
            "--checks",
            "not_a_server_error",
            "--max-examples",
            str(arguments.examples),
            "--seed",
            str(arguments.seed),
        ]
        program = Path(sys.executable).with_name("schemathesis")
        subprocess.run(
            [program, "run", f"{address}spec", *options, "--phases", "examples,coverage,fuzzing"], check=False
        )
        described = counted(address)
        send_damaged(address, arguments.damaged, arguments.seed)
        every = counted(address)
        alive = process.poll() is None
    finally:
        process.kill()
    print("Schemathesis:", dict(sorted(described.items())))
    print("damaged:", dict(sorted((every - described).items())))
    print(f"all {sum(every.values())}, internal errors: {sum(n for s, n in every.items() if s[0] == '5')}")
    if not alive or any(status[0] == "5" for status in every):
        sys.exit("the server had an internal error or stopped")


if __name__ == "__main__":
    main()
