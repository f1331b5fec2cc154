"""Measure how long other requests to a server take while hostile ones run, and how much memory the server needs.

    python -m benchmarks.serving_attacks MODEL

Each row is one attack: six uploads at once from the address 127.0.0.2, or many connections. Meanwhile, a client at
127.0.0.1 sends GET /health, a plain text and a small file to translate, each in a thread. "mib" is the highest resident
memory of the server and its processes.
"""

import http.client
import io
import json
import socket
import tempfile
import threading
import time
import urllib.parse
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.measure import command, parse, record
from benchmarks.serving import serving

RUN = "<w:r><w:t>a</w:t></w:r>"
COPIES = 6  # uploads at once
SECONDS = 15.0  # longest duration of an attack


def multipart(name: str, content: bytes) -> tuple[str, bytes]:
    """Return the content type and the body of a form with a file to translate."""
    fields = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
        for key, value in {"source": "en", "target": "de"}.items()
    )
    head = f'{fields}--x\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return "multipart/form-data; boundary=x", head.encode() + content + b"\r\n--x--\r\n"


def word_file(body: str) -> bytes:
    """Return a Word document whose body is `body`, in XML."""
    import docx

    out, copy = io.BytesIO(), io.BytesIO()
    docx.Document().save(out)
    with zipfile.ZipFile(out) as old, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename == "word/document.xml":
                start, _, rest = content.decode().partition("<w:body>")
                content = f"{start}<w:body>{body}{rest[rest.rindex('<w:sectPr') :]}".encode()
            new.writestr(entry.filename, content)
    return copy.getvalue()


def subtitle(text: str) -> bytes:
    return f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n".encode()


FILES: dict[str, tuple[str, Callable[[], bytes]]] = {  # name of the file, and its content
    "unclosed comments, 4.8 MB": ("a.html", lambda: b"<!--" * 1_200_000),
    "unclosed tags, 4.8 MB": ("a.html", lambda: b"<a b='" * 800_000),
    "400 KB of <b>a</b>": ("a.html", lambda: b"<b>a</b>" * 50_000),
    "4.8 MB of <b></b>": ("a.html", lambda: b"<b></b>" * 690_000),
    "subtitle of 6,000 lines": ("a.srt", lambda: subtitle("\n".join(["ab"] * 6000))),
    "subtitle of 6,000 lines with <": ("a.srt", lambda: subtitle("\n".join(["<"] * 6000))),
    "Word, 1,000,000 empty paragraphs": ("a.docx", lambda: word_file("<w:p/>" * 1_000_000)),
    "Word, a paragraph of 300,000 runs": ("a.docx", lambda: word_file(f"<w:p>{RUN * 300_000}</w:p>")),
    "text of 20,000 characters, no space": ("a.txt", lambda: b"a" * 19_900),
    "text of 4.8 MB, no space": ("a.txt", lambda: b"a" * 4_800_000),
    "1,000 characters spelled in bytes": ("a.txt", lambda: "".join(map(chr, range(0x4E00, 0x4E00 + 1000))).encode()),
    "text of 4 MB, words of one letter": ("a.txt", lambda: b"a " * 2_000_000),
    "text of 100,000 sentences": ("a.txt", lambda: b"Two dogs run, and 33 sleep in 1999.\n" * 100_000),
}


def send(
    place: urllib.parse.SplitResult, method: str, path: str, kind: str, body: bytes, source: str = "127.0.0.1"
) -> tuple[str, float]:
    """Send a request from an address. Return its status, or the error, and its duration in seconds."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=20, source_address=(source, 0))
    try:
        connection.request(method, path, body or None, {"Content-Type": kind})
        answer = connection.getresponse()
        answer.read()
        return str(answer.status), time.perf_counter() - began
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__, time.perf_counter() - began
    finally:
        connection.close()


def memory(process: int) -> int:
    """Return the resident memory of a process and its children, in MiB."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    total = 0
    for each in [str(process), *children]:
        with suppress(OSError):  # it has ended
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1])
    return total * 4096 >> 20


def slow_connections(place: urllib.parse.SplitResult) -> Counter[str]:
    """Open connections and send a byte of a header per second on each."""
    connections, answers = [], Counter[str]()
    for _ in range(900):
        try:
            connections.append(socket.create_connection((place.hostname or "", place.port or 0), timeout=2))
        except OSError as error:
            answers[type(error).__name__] += 1
    until = time.monotonic() + SECONDS
    text = iter("GET /health HTTP/1.1\r\nX-Name: " + "a" * 1000)
    while time.monotonic() < until:
        byte = next(text).encode()
        for each in list(connections):
            try:
                each.sendall(byte)
            except OSError as error:
                answers[f"closed ({type(error).__name__})"] += 1
                connections.remove(each)
        time.sleep(1.0)
    answers["open at the end"] += len(connections)
    for each in connections:
        each.close()
    return answers


def during(place: urllib.parse.SplitResult, process: int, attack: Callable[[], object]) -> dict[str, object]:
    """Run an attack, and measure other requests meanwhile."""
    body = json.dumps({"q": "one hundred and fourteen", "source": "en", "target": "de"}).encode()
    kind, small = multipart("b.html", b"<p>one <b>hundred</b></p>")
    others = {
        "health": ("GET", "/health", "", b""),
        "text": ("POST", "/translate", "application/json", body),
        "file": ("POST", "/translate_file", kind, small),
    }
    seconds: dict[str, list[float]] = {name: [] for name in others}
    failed, highest, stop = Counter[str](), 0, threading.Event()

    def probe(name: str) -> None:
        while not stop.is_set():
            status, duration = send(place, *others[name])
            seconds[name].append(duration)
            if status != "200":
                failed[f"{name} {status}"] += 1
            time.sleep(0.02)

    threads = [threading.Thread(target=probe, args=[name]) for name in others]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    attacker = threading.Thread(target=attack, daemon=True)
    began = time.perf_counter()
    attacker.start()
    while attacker.is_alive() and time.perf_counter() - began < SECONDS:
        highest = max(highest, memory(process))
        time.sleep(0.05)
    duration = time.perf_counter() - began
    stop.set()
    for thread in threads:
        thread.join()
    row: dict[str, object] = {"seconds": f"{duration:.1f}", "mib": highest}
    for name, values in seconds.items():
        values.sort()
        for column, part in (("p50", 0.5), ("p99", 0.99), ("worst", 1.0)):
            row[f"{name}_{column}_ms"] = f"{1000 * values[min(len(values) - 1, int(part * len(values)))]:.0f}"
    return {**row, "failed": " ".join(f"{name}×{count}" for name, count in failed.items())}


def measure(name: str, model: Path, threads: int) -> dict[str, object]:
    """Start a server, run an attack by name, and return the columns of its row."""
    answers: Counter[str] = Counter()
    with tempfile.TemporaryFile("w+") as log, serving(model, "--threads", str(threads), log=log) as (process, address):
        place = urllib.parse.urlsplit(address)
        send(place, "POST", "/translate_file", *multipart("b.html", b"<p>one</p>"))  # loads modules
        file, content = FILES.get(name, ("", bytes))
        kind, body = multipart(file, content())

        def upload() -> None:
            answers[send(place, "POST", "/translate_file", kind, body, source="127.0.0.2")[0]] += 1

        def attack() -> None:
            if name == "nothing":
                time.sleep(SECONDS)
            elif not file:
                answers.update(slow_connections(place))
            attackers = [threading.Thread(target=upload, daemon=True) for _ in range(COPIES if file else 0)]
            for thread in attackers:
                thread.start()
            for thread in attackers:
                thread.join()

        row = during(place, process.pid, attack)
    return {**row, "answers": " ".join(f"{status}×{count}" for status, count in answers.items()) or "none yet"}


def main() -> None:
    parser = command("serving_attacks", __doc__)
    parser.add_argument("model", type=Path, help="bundle or export")
    names = ["nothing", "900 slow connections", *FILES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="attacks (all)")
    given = parse(parser, "serving-attacks-cpu.csv", threads=1)
    for name in given.only:
        row = {"name": name, **measure(name, given.model, given.threads)}
        record(given, [row], ("name",))


if __name__ == "__main__":
    main()
