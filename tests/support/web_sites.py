"""Sites of `relattn-mt export web`: what Node.js and a browser translate with them, and what the native engine does."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from relattn_mt.bundle import Bundle
from relattn_mt.weights import SCALE

NATIVE = """
import json, sys
from dataclasses import replace
from relattn_mt import load
from relattn_mt.translate.options import TranslateOptions
task = json.load(sys.stdin)
results = []
for texts, options in task["calls"]:
    translator = load(task["bundle"]).with_languages(tgt_lang=options.get("to", ""))
    assert "for plain" in translator.engine.name
    search = replace(translator.search, beam_size=options["beam"])
    align = options.get("align", False)
    chosen = TranslateOptions(n_best=options["nBest"], search=search, keep_literals=False, copy=False, align=align)
    found = translator.n_best(texts, chosen)
    results.append([[(x.text, x.tokens, x.score, x.confidence, x.alignment) for x in each] for each in found])
json.dump(results, sys.stdout)
"""


def native(bundle: Path, calls: list[Any]) -> list[Any]:
    """Return the results of the native engine at the level `default`: per call and text, hypotheses, best first."""
    task = json.dumps({"bundle": str(bundle), "calls": calls})
    environment = os.environ | {"RELATTN_LEVEL": "default"}
    command = [sys.executable, "-c", NATIVE]
    process = subprocess.run(command, input=task, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads(process.stdout)


def node_flags(engine: str, node: str) -> list[str]:
    """Return the options with which Node.js runs an engine. Node.js 20 compiles relaxed SIMD rightly only with them."""
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    is_old = int(version.removeprefix("v").partition(".")[0]) < 21
    return ["--no-liftoff", "--experimental-wasm-relaxed-simd"] if engine == "relaxed" and is_old else []


def in_8_bits(bundle: Bundle, path: Path) -> Bundle:
    """Return a bundle in 7 bits with codes that are doubled and half of the scales, which are the same numbers."""
    is_code = {name: f"{name}{SCALE}" in bundle.state for name in bundle.state}
    factors = {name: 2 if is_code[name] else 0.5 if name.endswith(SCALE) else 1 for name in bundle.state}
    state = {name: (x * factors[name]).astype(x.dtype) for name, x in bundle.state.items()}
    assert any(abs(state[name].astype(int)).max() > 63 for name in state if is_code[name])
    return replace(bundle, path=path, state=state)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(folder: Path, handler: type[SimpleHTTPRequestHandler] = _Quiet) -> Iterator[str]:
    """Yield the address of a server of a folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()
