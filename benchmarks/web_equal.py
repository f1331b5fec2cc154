"""Texts, tokens, scores and alignments in WebAssembly beside those of the native level `default`, which must be equal.

    python -m benchmarks.web_equal MODELS LINES --node NODE20 NODE24

MODELS are those of `benchmarks.web`: the packaged model, one of the size of Firefox's and one of OPUS-MT's, with
weights of 7 and of 8 bits. They run in Node.js and in chromium, with both engines, a beam of 1 and of 4. A twentieth of
the lines is enough for the size of OPUS-MT.
"""

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from relattn_mt.bundle import PACKAGED, read_bundle
from relattn_mt.web.export import export

from benchmarks.measure import Row, command, parse, record
from tests.support.pages import BROWSER
from tests.support.web_sites import in_8_bits, native, node_flags, serving

# Load a site, and return the seconds, the linear memory in bytes, and the results of calls as `native` returns them.
SCRIPT = """async ({ url, engine, calls }) => {
    const { Translator } = await import(url + 'relattn.mjs');
    const start = performance.now();
    const translator = await Translator.load(url, { engine });
    const seconds = (performance.now() - start) / 1000;
    const row = ({ text, ids, score, alignment }) => [text, ids, score, alignment];
    const rows = first => [first, ...first.alternatives].map(row);
    const results = calls.map(([texts, options]) => translator.translate(texts, options).map(rows));
    return { seconds, bytes: translator.memoryBytes, results };
}"""
IN_NODE = "(%s)(JSON.parse(require('fs').readFileSync(0))).then(found => console.log(JSON.stringify(found)));"


def in_node(node: str, site: Path, engine: str, calls: Sequence[Any]) -> dict[str, Any]:
    task = json.dumps({"url": f"{site.as_uri()}/", "engine": engine, "calls": calls})
    flags = [*node_flags(engine, node), "--max-old-space-size=8000"]
    process = subprocess.run(
        [node, *flags, "-e", IN_NODE % SCRIPT], input=task, capture_output=True, text=True, check=True
    )
    return json.loads(process.stdout)


def in_chromium(site: Path, engine: str, calls: Sequence[Any]) -> dict[str, Any]:
    with sync_playwright() as playwright, serving(site) as address:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address + "icon.svg")
        found = page.evaluate(SCRIPT, {"url": address, "engine": engine, "calls": calls})
        browser.close()
    return found


def main() -> None:
    parser = command("web_equal", __doc__)
    parser.add_argument("models", type=Path, help="folder of models")
    parser.add_argument("lines", type=Path, help="source lines")
    parser.add_argument("--node", nargs="+", default=["node"], help="programs of Node.js (%(default)s)")
    parser.add_argument("--count", type=int, default=2000, help="lines that are translated (%(default)s)")
    parser.add_argument("--model", nargs="+", help="names of models; by default, all")
    given = parse(parser, "web-equal.csv", threads=1)
    lines = given.lines.read_text(encoding="utf-8").splitlines()
    runtimes: dict[str, Callable[..., dict[str, Any]]] = {"Chromium": in_chromium}
    for node in given.node:
        runtimes[f"Node.js {version_of(node)}"] = partial(in_node, node)
    with tempfile.TemporaryDirectory() as folder:
        for name, bits in product(given.model or ("everyday-en-de", "tiny11", "opus-mt"), (7, 8)):
            path = PACKAGED / name if name == "everyday-en-de" else given.models / name / "bundle-7"
            if bits == 8:
                bundle = in_8_bits(read_bundle(path), Path(folder) / f"{name}-8")
                bundle.save()
                path = bundle.path
            site = Path(folder) / "site"
            export(read_bundle(path), site)
            texts = lines[: given.count // 20 if name == "opus-mt" else given.count]
            calls = [(texts, {"beam": beam, "nBest": 1, "to": "de", "align": True}) for beam in (1, 4)]
            expected = [[[row[:3] + row[4:] for row in each] for each in results] for results in native(path, calls)]
            for runtime, engine in product(runtimes, ("simd", "relaxed")):
                found = runtimes[runtime](site, engine, calls)
                for beam, own, its in zip((1, 4), found["results"], expected, strict=True):
                    equal = sum(mine == theirs for mine, theirs in zip(own, its, strict=True))
                    row: Row = {"model": name, "bits": bits, "engine": engine, "runtime": runtime, "beam": beam}
                    row |= {"lines": len(texts), "equal": equal, "load_s": f"{found['seconds']:.2f}"}
                    row["linear_memory_mib"] = f"{found['bytes'] / 2**20:.0f}"
                    print(row, flush=True)
                    record(given, [row], ("model", "bits", "engine", "runtime", "beam"))


def version_of(node: str) -> str:
    process = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    return process.stdout.strip().removeprefix("v")


if __name__ == "__main__":
    main()
