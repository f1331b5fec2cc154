"""Translation engines and servers with the same small model in int8: time to the first answer, speed and memory.

MODELS has the model in each format, named as in `MODELS`: a Transformer that all engines know, with sinusoids and layer
normalization after the residual connection. ENVIRONMENTS is a folder of virtual environments, each with one package and
its dependencies, named as in `MODELS`, and relattn-mt-server with the extra `serve`; missing ones are left out.

Each run is a new process (`engine_process.py`). It imports, loads the model and translates one line, which is timed
from the start of the process. Then it translates all lines: an engine in one call, a server in requests of 100 lines.
Memory is the peak of the process. Runs alternate. Bergamot runs without a shortlist. The splitter of Argos Translate,
whose model it downloads, is replaced by one that splits nothing.

    python -m benchmarks.engines MODELS LINES --environments DIR
"""

import json
import statistics
import subprocess
import time
import urllib.request
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, command, field_in_bytes, parse, record

PROCESS = Path(__file__).with_name("engine_process.py")
PORT, PART = 5917, 100  # lines per request to a server
MODELS = {  # environment -> its model
    "relattn-mt": "bundle",
    "ctranslate2": "ctranslate2",
    "bergamot": "marian",
    "argos": "model.argosmodel",
    "libretranslate": "model.argosmodel",
}
SERVERS = "relattn-mt", "libretranslate"
Figures = tuple[float, ...]  # seconds to the first answer, source words per second, peak MiB


def run(python: Path, *arguments: object) -> dict[str, Any]:
    """Run a process of an engine and return what it prints, with the seconds to the first answer as `first`."""
    start = time.time()
    line = [str(part) for part in (python, PROCESS, *arguments)]
    output = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return {**result, "first": result["first"] - start}


def engine(python: Path, name: str, model: Path, lines: Path, beam: int, threads: int) -> Figures:
    result = run(python, name, model, lines, beam, threads)
    return result["first"], result["together"]["words"], result["together"]["peak"]


def server(python: Path, name: str, model: Path, lines: list[str], threads: int) -> Figures:
    start = time.monotonic()
    line = [str(part) for part in (python, PROCESS, name, model, "serve", PORT, threads)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not ask(lines[:1]):
                if process.poll() is not None or time.monotonic() - start > 120:
                    raise SystemExit(f"{name} did not start")
                time.sleep(0.02)
            first, begun = time.monotonic() - start, time.monotonic()
            parts = [ask(lines[i : i + PART]) for i in range(0, len(lines), PART)]
            assert sum(len(part or ()) for part in parts) == len(lines)
            speed = sum(len(line.split()) for line in lines) / (time.monotonic() - begun)
            peak = field_in_bytes(f"/proc/{process.pid}/status", "VmHWM") or 0
        finally:
            process.terminate()
    return first, speed, peak / 2**20


def installed(environment: Path) -> int:
    """Return the MB of an environment's packages, without the installer and what is compiled in a first run."""
    files = (path for path in environment.resolve().glob("lib/python*/site-packages/**/*") if path.is_file())
    others = "pip", "setuptools", "__pycache__"
    counted = (path for path in files if not any(part.startswith(others) for part in path.parts[-9:]))
    return round(sum(path.lstat().st_size for path in counted) / 1e6)


def ask(lines: list[str]) -> list[str] | None:
    """Return translations by LibreTranslate's interface; None without an answer."""
    body = json.dumps({"q": lines, "source": "en", "target": "de"}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/translate", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)["translatedText"]
    except OSError:
        return None


def main() -> None:
    parser = command("engines", __doc__)
    parser.add_argument("models", type=Path, help="folder with the model in each format")
    parser.add_argument("lines", type=Path, help="source lines, at most 500")
    parser.add_argument("--environments", type=Path, required=True, help="folder of virtual environments")
    parser.add_argument("--repeats", type=int, default=3, help="alternating runs; a row has the median (%(default)s)")
    given = parse(parser, "engines-cpu.csv")
    lines = given.lines.read_text(encoding="utf-8").splitlines()
    found: dict[tuple[str, str, int], list[Figures]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for _, (name, model), beam in product(range(given.repeats), MODELS.items(), (1, 4)):
        path = given.models / model
        own = given.environments / f"{name}-server"
        places = {"engine": given.environments / name, "server": own if own.exists() else given.environments / name}
        if not places["engine"].exists() or not path.exists():
            continue
        for kind, place in places.items():
            sizes[name, kind] = sizes.get((name, kind)) or installed(place)
            python = place / "bin/python"
            if kind == "engine" and name != "libretranslate":
                figures = engine(python, name, path, given.lines, beam, given.threads)
            elif kind == "server" and name in SERVERS and beam == 4:
                figures = server(python, name, path, lines, given.threads)
            else:
                continue
            found.setdefault((name, kind, beam), []).append(figures)
    for (name, kind, beam), runs in found.items():
        first, speed, peak = map(statistics.median, zip(*runs, strict=True))
        row: Row = {"name": name, "kind": kind, "beam": beam, "words_per_second": f"{speed:.0f}"}
        row |= {"seconds_to_first": f"{first:.2f}", "peak_mib": f"{peak:.0f}", "installed_mb": sizes[name, kind]}
        record(given, [row], ("name", "kind", "beam"))


if __name__ == "__main__":
    main()
