"""Measure a server under load. Each answer is compared with the translation of the same line alone.

    python -m benchmarks.serving MODEL --text FILE --seconds 60

The column "directly" is the number of sentences per second of the translator itself, with all lines in one call. At the
end, the server gets SIGTERM under load: "accepted" is the number of requests in its log, and "answered" the number of
requests that clients got an answer to. They must be equal.
"""

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import IO

import httpx2
from relattn_mt import load
from relattn_mt.tokens.text_files import read_lines

from benchmarks.measure import command, parse, record


@contextmanager
def serving(model: Path, *options: str, log: IO[str]) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run a server. Yield its process and its address."""
    command = [sys.executable, "-m", "relattn_mt", "serve", "--port", "0", str(model), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            address = re.search(r"http://\S+/", first)
            assert address, f"the server did not start: {first}"
            yield process, address[0]
        finally:
            process.kill()


def usage(process: "subprocess.Popen[str]") -> tuple[float, int]:
    """Return the processor time of a process in seconds, and its resident memory in MiB."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") >> 20


async def send_until_refused(
    client: httpx2.AsyncClient,
    expected: dict[str, str],
    languages: dict[str, str],
    statuses: Counter[str],
    seconds: list[float],
) -> None:
    """Send requests one after the other until the server refuses a connection, and count the answers by status."""
    draw = random.Random(id(asyncio.current_task()))
    while True:
        line, began = draw.choice(list(expected)), time.perf_counter()
        try:
            answer = await client.post("/translate", json={"q": line, **languages})
        except httpx2.HTTPError as error:
            statuses["refused" if isinstance(error, httpx2.ConnectError) else type(error).__name__] += 1
            return
        if answer.status_code == 200:
            seconds.append(time.perf_counter() - began)
            statuses["right" if answer.json()["translatedText"] == expected[line] else "wrong"] += 1
        else:
            statuses[str(answer.status_code)] += 1
            await asyncio.sleep(float(answer.headers.get("retry-after", "1")))


async def measure(
    model: Path, lines: list[str], languages: dict[str, str], options: list[str], *, clients: int, seconds: float
) -> dict[str, object]:
    """Start a server, send requests of many clients for some seconds, stop it, and return the columns of the row."""
    began, statuses, latencies, memory = time.perf_counter(), Counter[str](), list[float](), list[int]()
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=clients)
    with tempfile.TemporaryFile("w+") as log:
        with serving(model, *options, log=log) as (process, address):
            async with httpx2.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
                (await client.get("health")).raise_for_status()
                start_seconds, expected = time.perf_counter() - began, {}
                for line in lines:
                    answer = await client.post("/translate", json={"q": line, **languages})
                    expected[line] = answer.raise_for_status().json()["translatedText"]
                arguments = (client, expected, languages, statuses, latencies)
                tasks = [asyncio.create_task(send_until_refused(*arguments)) for _ in range(clients)]
                began, server_cpu, client_cpu = time.perf_counter(), usage(process)[0], time.process_time()
                while (elapsed := time.perf_counter() - began) < seconds:
                    await asyncio.sleep(min(5.0, seconds / 10))
                    memory.append(usage(process)[1])
                cores = [(usage(process)[0] - server_cpu) / elapsed, (time.process_time() - client_cpu) / elapsed]
                before, percentiles, answers = Counter(statuses), quantiles(latencies, n=100), len(latencies)
                process.send_signal(signal.SIGTERM)  # under load
                await asyncio.gather(*tasks)
            process.wait(120)
        log.seek(0)
        accepted = sum('"/translate"' in line for line in log) - len(lines)
    counts = {"answers": before["right"], "wrong": statuses["wrong"], "busy": before["429"]}
    return {
        **{"seconds_to_start": f"{start_seconds:.1f}", "clients": clients, "seconds": f"{elapsed:.0f}", **counts},
        "other": sum(before.values()) - before["right"] - before["wrong"] - before["429"],
        "per_second": f"{answers / elapsed:.1f}",
        **{"p50_ms": f"{1000 * percentiles[49]:.0f}", "p99_ms": f"{1000 * percentiles[98]:.0f}"},
        **{"cores_of_server": f"{cores[0]:.2f}", "cores_of_clients": f"{cores[1]:.2f}"},
        "answered": statuses["right"] + statuses["wrong"] + statuses["429"],
        **{"mib_first": memory[0], "mib_middle": memory[len(memory) // 2], "mib_last": memory[-1]},
        "accepted": accepted,
    }


def main() -> None:
    parser = command("serving", __doc__)
    parser.add_argument("model", type=Path, help="bundle or export")
    parser.add_argument("--text", type=Path, required=True, help="source lines, plain or .gz; uses the first 500")
    parser.add_argument("--languages", nargs=2, default=["en", "de"], help="source and target language (%(default)s)")
    parser.add_argument("--name", default="", help="name of the row (default: that of the model)")
    parser.add_argument("--clients", type=int, default=200, help="number of clients (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the load (%(default)s)")
    given = parse(parser, "serving-cpu.csv", threads=os.cpu_count() or 1)
    lines = list(dict.fromkeys(line for line in read_lines(given.text) if line.strip()))[:500]
    languages = dict(zip(("source", "target"), given.languages, strict=True))
    translator = load(given.model, threads=given.threads)
    translator.translate(lines[:50])
    began = time.perf_counter()
    translator.translate(lines)
    row: dict[str, object] = {"name": given.name or given.model.name}
    row |= {"directly": f"{len(lines) / (time.perf_counter() - began):.1f}"}
    options = ["--threads", str(given.threads)]
    row |= asyncio.run(measure(given.model, lines, languages, options, clients=given.clients, seconds=given.seconds))
    record(given, [row], ("name", "clients", "seconds"))


if __name__ == "__main__":
    main()
