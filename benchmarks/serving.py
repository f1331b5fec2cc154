"""A server under load: clients on loopback that all ask at once, each answer checked against the text translated alone.

    python -m benchmarks.serving MODEL --text FILE                        200 clients for a minute
    python -m benchmarks.serving MODEL --text FILE --seconds 1800         memory, over half an hour

Sentences a second stand beside what the same engine translates of the same lines when it is called directly, and beside
how many cores the server and the clients kept busy. At the end the server is told to stop under load: `accepted` is
what its log has, `answered` what clients got, the same number.
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
from relattn.translation.data.corpora import read_lines

RESULTS = Path(__file__).parent / "results" / "serving-cpu.csv"
MOST_LINES = 500  # that are drawn from


def started(model: Path, arguments: list[str], log: IO[str] | None = None) -> tuple["subprocess.Popen[str]", str]:
    """A server's process and its address."""
    command = [sys.executable, "-m", "relattn", "serve", str(model), "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log or subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found, "the server did not start"
    return process, found[0]


def resident(process: "subprocess.Popen[str]") -> int:
    """MiB of a process."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found
    return int(found[1]) >> 10


def cpu_seconds(process: "subprocess.Popen[str]") -> float:
    """What a process has had of the processor."""
    user, system = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def alone(address: str, lines: list[str], languages: dict[str, str]) -> dict[str, str]:
    """Each line's translation, one request at a time."""
    answers = {}
    async with httpx2.AsyncClient(base_url=address, timeout=120) as client:
        for line in lines:
            answer = await client.post("/translate", json={"q": line, **languages})
            answers[line] = answer.raise_for_status().json()["translatedText"]
    return answers


class Load:
    """Clients that ask until they are told to stop.

    Args:
        address: of the server.
        expected: lines, and what each is translated to.
        languages: source and target.
    """

    def __init__(self, address: str, expected: dict[str, str], languages: dict[str, str]) -> None:
        self.address, self.expected, self.languages = address, expected, languages
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.stopping = False

    async def client(self, number: int) -> None:
        draw, lines = random.Random(number), list(self.expected)
        async with httpx2.AsyncClient(base_url=self.address, timeout=120) as client:
            while not self.stopping:
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


async def load(
    process: "subprocess.Popen[str]", address: str, expected: dict[str, str], arguments: argparse.Namespace
) -> dict[str, object]:
    languages = {"source": arguments.source, "target": arguments.target}
    run = Load(address, expected, languages)
    clients = [asyncio.create_task(run.client(number)) for number in range(arguments.clients)]
    began, memory, of_server, of_clients = time.perf_counter(), [], cpu_seconds(process), time.process_time()
    while time.perf_counter() - began < arguments.seconds:
        await asyncio.sleep(min(5.0, arguments.seconds / 10))
        memory.append(resident(process))
    seconds, answered = time.perf_counter() - began, len(run.seconds)
    of_server, of_clients = cpu_seconds(process) - of_server, time.process_time() - of_clients
    before = Counter(run.statuses)
    process.send_signal(signal.SIGTERM)  # under load
    await asyncio.gather(*clients)
    process.wait(120)
    answered_in_all = sum(count for status, count in run.statuses.items() if status in ("right", "wrong", "429"))
    each = quantiles(run.seconds[:answered], n=100)
    return {
        "clients": arguments.clients,
        "seconds": f"{seconds:.0f}",
        "answers": before["right"],
        "wrong": run.statuses["wrong"],
        "busy": before["429"],
        "other": sum(before.values()) - before["right"] - before["wrong"] - before["429"],
        "per_second": f"{answered / seconds:.1f}",
        "p50_ms": f"{1000 * each[49]:.0f}",
        "p99_ms": f"{1000 * each[98]:.0f}",
        "cores_of_server": f"{of_server / seconds:.2f}",
        "cores_of_clients": f"{of_clients / seconds:.2f}",
        "answered": answered_in_all,
        "mib_first": memory[0],
        "mib_middle": memory[len(memory) // 2],
        "mib_last": memory[-1],
    }


def directly(model: Path, lines: list[str], threads: int) -> float:
    """Sentences a second of the engine itself, lines given to it all at once."""
    code = (
        "import sys, time, types; from relattn.translation import cli\n"
        "given = types.SimpleNamespace(threads=int(sys.argv[2]), device='cpu', precision=None, get=lambda name: None)\n"
        "_, translator = cli._load([sys.argv[1]], given); lines = sys.stdin.read().split('\\n')\n"
        "translator.translate(lines[:50]); began = time.perf_counter(); translator.translate(lines)\n"
        "print(len(lines) / (time.perf_counter() - began))"
    )
    command = [sys.executable, "-c", code, str(model), str(threads)]
    return float(subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("model", type=Path, help="bundle or export")
    parser.add_argument("--text", type=Path, required=True, help="source lines, plain or .gz")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--name", default="", help="of the row")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="of the server")
    arguments = parser.parse_args()
    lines = list(dict.fromkeys(line for line in read_lines(arguments.text) if line.strip()))[:MOST_LINES]
    direct = directly(arguments.model, lines, arguments.threads)
    row: dict[str, object] = {"name": arguments.name or arguments.model.name, "directly": f"{direct:.1f}"}
    with tempfile.TemporaryFile("w+") as log:
        began = time.perf_counter()
        process, address = started(arguments.model, ["--threads", str(arguments.threads), *arguments.options], log)
        try:
            httpx2.get(f"{address}health").raise_for_status()
            row |= {"seconds_to_start": f"{time.perf_counter() - began:.1f}"}
            languages = {"source": arguments.source, "target": arguments.target}
            expected = asyncio.run(alone(address, lines, languages))
            row |= asyncio.run(load(process, address, expected, arguments))
        finally:
            process.kill()
        log.seek(0)
        accepted = sum('"/translate"' in line for line in log) - len(lines)
        row |= {"accepted": accepted}
    print("  ".join(f"{key} {value}" for key, value in row.items()))
    keep(arguments.out, [row | conditions()], ("name", "clients", "seconds", "threads"))


if __name__ == "__main__":
    main()
