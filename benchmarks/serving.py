"""Measure a server under load. Each answer is compared with the translation of the same line alone.

    python -m benchmarks.serving MODEL --text FILE                        200 clients for a minute
    python -m benchmarks.serving MODEL --text FILE --seconds 1800         memory during half an hour

The result has requests per second, latency, memory and the processor cores used by server and clients. `directly` is
the number of sentences per second of the translator itself, with all lines in one call. At the end, the server gets
SIGTERM under load: `accepted` is the number of requests in its log, and `answered` the number that clients got an
answer to. Both must be equal.
"""

import argparse
import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import quantiles
from typing import IO

import httpx2

from benchmarks.measure import conditions, keep
from relattn.translation.data.text_files import read_lines

RESULTS = Path(__file__).parent / "results" / "serving-cpu.csv"
MAX_LINES = 500  # lines that requests are drawn from


def start(model: Path, arguments: list[str], log: IO[str] | None = None) -> tuple["subprocess.Popen[str]", str]:
    """Start a server. Return its process and its address."""
    command = [sys.executable, "-m", "relattn", "serve", str(model), "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log or subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    address = re.search(r"http://\S+", process.stdout.readline())
    assert address, "the server did not start"
    return process, address[0]


def resident(process: "subprocess.Popen[str]") -> int:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    kib = re.search(r"VmRSS:\s+(\d+)", status)
    assert kib
    return int(kib[1]) >> 10


def cpu_seconds(process: "subprocess.Popen[str]") -> float:
    """Return the processor time of a process."""
    user, system = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def alone(address: str, lines: list[str], languages: dict[str, str]) -> dict[str, str]:
    """Return the translation of each line, with one request at a time."""
    answers = {}
    async with httpx2.AsyncClient(base_url=address, timeout=120) as client:
        for line in lines:
            answer = await client.post("/translate", json={"q": line, **languages})
            answers[line] = answer.raise_for_status().json()["translatedText"]
    return answers


class Load:
    """Clients that send requests until the server refuses connections.

    Args:
        address: address of the server.
        expected: translation of each line.
        languages: parameters `source` and `target`.
    """

    def __init__(self, address: str, expected: dict[str, str], languages: dict[str, str]) -> None:
        self.address, self.expected, self.languages = address, expected, languages
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []

    async def client(self, number: int) -> None:
        draw, lines = random.Random(number), list(self.expected)
        async with httpx2.AsyncClient(base_url=self.address, timeout=120) as client:
            while True:
                line = draw.choice(lines)
                began = time.perf_counter()
                try:
                    answer = await client.post("/translate", json={"q": line, **self.languages})
                except httpx2.ConnectError:
                    self.statuses["refused"] += 1
                    return
                except httpx2.HTTPError as error:
                    self.statuses[type(error).__name__] += 1
                    return
                if answer.status_code == 200:
                    self.seconds.append(time.perf_counter() - began)
                    right = answer.json()["translatedText"] == self.expected[line]
                    self.statuses["right" if right else "wrong"] += 1
                else:
                    self.statuses[str(answer.status_code)] += 1
                    await asyncio.sleep(float(answer.headers.get("retry-after", "1")))


async def measure_load(
    process: "subprocess.Popen[str]", address: str, expected: dict[str, str], arguments: argparse.Namespace
) -> dict[str, object]:
    languages = {"source": arguments.source, "target": arguments.target}
    load = Load(address, expected, languages)
    clients = [asyncio.create_task(load.client(number)) for number in range(arguments.clients)]
    start_time, memory = time.perf_counter(), []
    server_cpu, client_cpu = cpu_seconds(process), time.process_time()
    while time.perf_counter() - start_time < arguments.seconds:
        await asyncio.sleep(min(5.0, arguments.seconds / 10))
        memory.append(resident(process))
    seconds, answered = time.perf_counter() - start_time, len(load.seconds)
    server_cpu, client_cpu = cpu_seconds(process) - server_cpu, time.process_time() - client_cpu
    before = Counter(load.statuses)
    process.send_signal(signal.SIGTERM)  # under load
    await asyncio.gather(*clients)
    process.wait(120)
    all_answered = sum(count for status, count in load.statuses.items() if status in ("right", "wrong", "429"))
    percentiles = quantiles(load.seconds[:answered], n=100)
    return {
        "clients": arguments.clients,
        "seconds": f"{seconds:.0f}",
        "answers": before["right"],
        "wrong": load.statuses["wrong"],
        "busy": before["429"],
        "other": sum(before.values()) - before["right"] - before["wrong"] - before["429"],
        "per_second": f"{answered / seconds:.1f}",
        "p50_ms": f"{1000 * percentiles[49]:.0f}",
        "p99_ms": f"{1000 * percentiles[98]:.0f}",
        "cores_of_server": f"{server_cpu / seconds:.2f}",
        "cores_of_clients": f"{client_cpu / seconds:.2f}",
        "answered": all_answered,
        "mib_first": memory[0],
        "mib_middle": memory[len(memory) // 2],
        "mib_last": memory[-1],
    }


def directly(model: Path, lines: list[str], threads: int) -> float:
    """Return the number of sentences per second of the translator itself, with all lines in one call."""
    code = (
        "import sys, time; from relattn.translation import load\n"
        "translator = load(sys.argv[1], threads=int(sys.argv[2])); lines = sys.stdin.read().split('\\n')\n"
        "translator.translate(lines[:50]); start = time.perf_counter(); translator.translate(lines)\n"
        "print(len(lines) / (time.perf_counter() - start))"
    )
    command = [sys.executable, "-c", code, str(model), str(threads)]
    return float(subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("model", type=Path, help="bundle or export")
    parser.add_argument("--text", type=Path, required=True, help="source lines, plain or .gz")
    parser.add_argument("--source", default="en", help="source language")
    parser.add_argument("--target", default="de", help="target language")
    parser.add_argument("--name", default="", help="name of the row in the results (default: that of the model)")
    parser.add_argument("--clients", type=int, default=200, help="number of clients")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the load")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of the server")
    parser.add_argument("--out", type=Path, default=RESULTS, help="CSV file of results")
    parser.add_argument(
        "--options", nargs=argparse.REMAINDER, default=[], help="options of `relattn serve`; this option must come last"
    )
    arguments = parser.parse_args()
    lines = list(dict.fromkeys(line for line in read_lines(arguments.text) if line.strip()))[:MAX_LINES]
    direct = directly(arguments.model, lines, arguments.threads)
    row: dict[str, object] = {"name": arguments.name or arguments.model.name, "directly": f"{direct:.1f}"}
    with tempfile.TemporaryFile("w+") as log:
        began = time.perf_counter()
        process, address = start(arguments.model, ["--threads", str(arguments.threads), *arguments.options], log)
        try:
            httpx2.get(f"{address}health").raise_for_status()
            row |= {"seconds_to_start": f"{time.perf_counter() - began:.1f}"}
            languages = {"source": arguments.source, "target": arguments.target}
            expected = asyncio.run(alone(address, lines, languages))
            row |= asyncio.run(measure_load(process, address, expected, arguments))
        finally:
            process.kill()
        log.seek(0)
        accepted = sum('"/translate"' in line for line in log) - len(lines)
        row |= {"accepted": accepted}
    print("  ".join(f"{key} {value}" for key, value in row.items()))
    keep(arguments.out, [row | conditions()], ("name", "clients", "seconds", "threads"))


if __name__ == "__main__":
    main()
