"""Requests that no client would send, thousands of them: whether a server answers each without an error of its own.

    python -m benchmarks.fuzz MODEL

Schemathesis (`pip install schemathesis`, its own program) makes requests from the API's description, right ones and
wrong ones; then come requests of ours with damaged bytes: texts of all planes of Unicode and halves of them, HTML of
any kind, files that are cut or were never files, broken forms, headers that lie. What the server counted is what is
reported.
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

from benchmarks.serving import started

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
    """What may stand for any parameter."""
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
    """Method, path, body and headers."""
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


def damaged(address: str, count: int, seed: int) -> Counter[int]:
    """The statuses of so many requests of ours."""
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
    """Requests by status, as the server counted them."""
    host = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=60)
    connection.request("GET", "/metrics")
    told = connection.getresponse().read().decode()
    connection.close()
    found = Counter[str]()
    for status, number in re.findall(r'relattn_requests_total\{.*status="(\d+)"\} ([\d.]+)', told):
        found[status] += int(float(number))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("model", type=Path, help="bundle or export")
    parser.add_argument("--examples", type=int, default=1000, help="of Schemathesis, a route")
    parser.add_argument("--damaged", type=int, default=5000, help="requests of ours")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    process, address = started(arguments.model, ["--threads", "1", "--beam_size", "2"])
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
        damaged(address, arguments.damaged, arguments.seed)
        every = counted(address)
        alive = process.poll() is None
    finally:
        process.kill()
    print("from the description", dict(sorted(described.items())))
    print("damaged", dict(sorted((every - described).items())))
    print(f"all {sum(every.values())}, errors of the server's: {sum(n for s, n in every.items() if s[0] == '5')}")
    if not alive or any(status[0] == "5" for status in every):
        sys.exit("the server failed")


if __name__ == "__main__":
    main()
