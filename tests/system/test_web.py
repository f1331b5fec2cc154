"""Translation in WebAssembly, by `relattn-mt export web` and Node.js: equal to the native level `default`."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from relattn_mt.bundle import PACKAGED, read_bundle
from relattn_mt.weights import SCALE

ROOT = Path(__file__).parents[2]
NODE = shutil.which("node")
MODEL = PACKAGED / "everyday-en-de"
pytestmark = [
    pytest.mark.skipif(NODE is None, reason="translation in WebAssembly is tested in Node.js: apt-get install nodejs"),
    pytest.mark.skipif(find_spec("ziglang") is None, reason="the engine is compiled by ziglang: make test-system"),
]

# Load a folder, run calls of `translate`, and print their results or the code of an error.
SCRIPT = """
const { folder, engine, module, calls } = JSON.parse(require('fs').readFileSync(0));
import(module ?? folder + 'relattn.mjs').then(async ({ Translator }) => {
    const progress = [], outcomes = [];
    try {
        const translator = await Translator.load(folder, { engine, onProgress: each => progress.push(each) });
        for (const [texts, options] of calls)
            try {
                if (options === 'free') translator.free();
                const found = options === 'free' ? [] : translator.translate(texts, options);
                outcomes.push({ found, bytes: translator.memoryBytes });
            } catch (error) {
                outcomes.push({ code: error.code, message: error.message });
            }
        console.log(JSON.stringify({ engine: translator.engine, progress, outcomes }));
    } catch (error) {
        console.log(JSON.stringify({ code: error.code, message: error.message }));
    }
});
"""
NATIVE = """
import json, sys
from dataclasses import replace
from relattn_mt import load
from relattn_mt.translate.options import TranslateOptions
task = json.load(sys.stdin)
results = []
for texts, options in task["calls"]:
    translator = load(task["bundle"]).with_languages(tgt_lang=options["to"])
    assert "for plain" in translator.engine.name
    search = replace(translator.search, beam_size=options["beam"])
    chosen = TranslateOptions(n_best=options["nBest"], search=search, keep_literals=False, copy=False)
    results.append([[(x.text, x.tokens, x.score) for x in found] for found in translator.n_best(texts, chosen)])
json.dump(results, sys.stdout)
"""


def run(task: dict[str, Any], *flags: str) -> Any:
    """Run the script in Node.js."""
    command = [NODE, *flags, "-e", SCRIPT]
    process = subprocess.run(command, input=json.dumps(task), capture_output=True, text=True, encoding="utf-8")
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads(process.stdout)


def node_flags(engine: str) -> list[str]:
    """Return the options with which Node.js runs an engine. Node.js 20 compiles relaxed SIMD rightly only with them."""
    version = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout
    is_old = int(re.match(r"v(\d+)", version)[1]) < 21
    return ["--no-liftoff", "--experimental-wasm-relaxed-simd"] if engine == "relaxed" and is_old else []


def native(bundle: Path, calls: list[Any]) -> list[Any]:
    """Return the results of the native engine at the level `default`."""
    task = json.dumps({"bundle": str(bundle), "calls": calls})
    environment = os.environ | {"RELATTN_LEVEL": "default"}
    command = [sys.executable, "-c", NATIVE]
    process = subprocess.run(command, input=task, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads(process.stdout)


def export(bundle: Path, out: Path) -> Path:
    command = [sys.executable, "-m", "relattn_mt", "export", "web", str(bundle), "--out", str(out)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return out


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(MODEL, tmp_path_factory.mktemp("web") / "site")


@pytest.fixture
def copied(site: Path, tmp_path: Path) -> Path:
    """A copy of the site that a test may damage."""
    return shutil.copytree(site, tmp_path / "copy")


def url(folder: Path) -> str:
    return folder.as_uri() + "/"


def sentences() -> tuple[list[str], list[str]]:
    """Return English and German sentences of the recipe, each once."""
    files = (ROOT / "recipes" / name for name in ("everyday-phrases.tsv", "everyday-held-out.tsv"))
    pairs = [line.split("\t") for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    english, german = (list(dict.fromkeys(side)) for side in zip(*(pair[:2] for pair in pairs), strict=True))
    return english, german


def require_equal(found: list[Any], expected: list[Any]) -> None:
    """Check texts, tokens and scores of all hypotheses of all calls."""
    for outcome, results in zip(found, expected, strict=True):
        for own, hypotheses in zip(outcome["found"], results, strict=True):
            listed = [own, *own["alternatives"]]
            assert [[each["text"], each["ids"], each["score"]] for each in listed] == hypotheses


@pytest.mark.parametrize("engine", ["simd", "relaxed"])
def test_texts_tokens_and_scores_are_equal(site, engine):
    english, german = sentences()
    assert len(english) + len(german) >= 600
    long = [" ".join(english[i : i + 7]) for i in range(0, 70, 7)]
    calls = [
        ([*english, *long, "", "▁ is a mark", "zero\u200bwidth 中文 🙂"], {"beam": 1, "nBest": 1, "to": "de"}),
        ([*english, *long], {"beam": 4, "nBest": 3, "to": "de"}),
        (german, {"beam": 4, "nBest": 1, "to": "en"}),
    ]
    results = run({"folder": url(site), "engine": engine, "calls": calls}, *node_flags(engine))
    assert results["engine"] == engine
    require_equal(results["outcomes"], native(MODEL, calls))


@pytest.mark.parametrize("engine", ["simd", "relaxed"])
@pytest.mark.parametrize("kind", ["8 bits", "float32"])
def test_other_weights(kind, engine, tmp_path):
    """Codes that are doubled, with half of the scales, are the same numbers in 8 bits."""
    bundle = replace(read_bundle(MODEL), path=tmp_path / "bundle")
    if kind == "float32":
        bundle = bundle.in_float32()
    else:
        is_code = {name: f"{name}{SCALE}" in bundle.state for name in bundle.state}
        factors = {name: 2 if is_code[name] else 0.5 if name.endswith(SCALE) else 1 for name in bundle.state}
        state = {name: (x * factors[name]).astype(x.dtype) for name, x in bundle.state.items()}
        assert any(abs(state[name].astype(int)).max() > 63 for name in state if is_code[name])
        bundle = replace(bundle, state=state)
    bundle.save()
    calls = [(sentences()[0][:40], {"beam": 4, "nBest": 2, "to": "de"})]
    task = {"folder": url(export(bundle.path, tmp_path / "site")), "engine": engine, "calls": calls}
    require_equal(run(task, *node_flags(engine))["outcomes"], native(bundle.path, calls))


def test_tokens_of_random_lines_are_those_of_sentencepiece(site):
    model = sentencepiece.SentencePieceProcessor()
    content = (MODEL / "tokenizer.model").read_bytes()
    model.LoadFromSerializedProto(content)
    draw = random.Random(1)
    words = " ".join(sentences()[0]).split()
    ranges = [
        (32, 127),
        (0xA0, 0x24F),
        (0x300, 0x36F),
        (0x400, 0x4FF),
        (0x3040, 0x30FF),
        (0x1F600, 0x1F64F),
        (0x2000, 0x206F),
    ]

    def piece() -> str:
        if draw.random() < 0.5:
            return draw.choice(words) + draw.choice(["", " ", "  ", "."])
        return chr(draw.randint(*draw.choice(ranges)))

    lines = ["".join(piece() for _ in range(draw.randint(0, 25))) for _ in range(2000)]
    script = f"""
        const {{ model, lines }} = JSON.parse(require('fs').readFileSync(0));
        import({json.dumps(url(site) + "sentencepiece.mjs")}).then(({{ SentencePiece }}) => {{
            const own = new SentencePiece(require('fs').readFileSync(model));
            console.log(JSON.stringify(lines.map(line => [own.encode(line), own.decode(own.encode(line))])));
        }});
    """
    task = json.dumps({"model": str(MODEL / "tokenizer.model"), "lines": lines})
    process = subprocess.run([NODE, "-e", script], input=task, capture_output=True, text=True, encoding="utf-8")
    for line, found in zip(lines, json.loads(process.stdout), strict=True):
        ids = model.encode(line)
        assert found == [ids, model.decode(ids).replace("\n", " ")], repr(line)


@pytest.fixture
def address(copied: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(copied))) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def test_files_come_from_a_server_with_progress(address, copied):
    task = {"folder": address, "module": url(copied) + "relattn.mjs", "calls": [(["Good morning."], {})]}
    results = run(task)
    assert results["outcomes"][0]["found"][0]["text"] == "Guten Morgen."
    loaded = [each["loaded"] for each in results["progress"]]
    assert loaded == sorted(loaded)
    assert len(loaded) > 3
    sizes = sum(path.stat().st_size for path in copied.iterdir() if path.suffix in (".bin", ".model", ".wasm"))
    assert sizes - 200_000 < loaded[-1] == results["progress"][0]["total"] < sizes  # one of the engines
    next(copied.glob("*.bin")).unlink()
    assert run(task)["code"] == "not-found"
    assert run({**task, "folder": "http://127.0.0.1:9/"})["code"] == "network"


def test_memory_does_not_grow_and_is_given_back(site):
    texts = sentences()[0][:40]
    calls = [*[(texts, {"beam": 4})] * 4, ([], "free"), (texts, {})]
    outcomes = run({"folder": url(site), "calls": calls})["outcomes"]
    assert len({each["bytes"] for each in outcomes[1:4]}) == 1
    assert outcomes[0]["bytes"] < 60e6
    assert outcomes[4]["bytes"] == 0
    assert outcomes[5]["code"] == "freed"


def test_a_search_that_does_not_fit_leaves_the_translator_usable(site):
    calls = [([sentences()[0][0] * 20], {"beam": 200}), (["Good morning."], {"beam": 1})]
    first, second = run({"folder": url(site), "calls": calls}, "--wasm-max-mem-pages=400")["outcomes"]
    assert first["code"] == "memory"
    assert second["found"][0]["text"] == "Guten Morgen."


OPTIONS = [
    ("text", {}, "option"),
    ([3], {}, "option"),
    (["a"], {"beam": 0}, "option"),
    (["a"], {"beam": 1.5}, "option"),
    (["a"], {"beam": 2, "nBest": 3}, "option"),
    (["a"], {"to": "fr"}, "option"),
    (["a", "b " * 600], {}, "too-long"),
]


def test_wrong_arguments_have_a_code_and_one_sentence(site):
    outcomes = run({"folder": url(site), "calls": [(texts, options) for texts, options, _ in OPTIONS]})["outcomes"]
    assert [each["code"] for each in outcomes] == [code for *_, code in OPTIONS]
    assert all("\n" not in each["message"] and len(each["message"]) < 120 for each in outcomes)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def overwrite(offset: int, content: bytes, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[offset : offset + len(content) or None] = content
    path.write_bytes(data)


DAMAGE = [
    ("*.bin", cut, "damaged"),
    ("*.bin", partial(overwrite, 0, b"x"), "damaged"),
    ("*.bin", partial(overwrite, -4, b"\xff\xff\xff\x7f"), "damaged"),
    ("*.bin", partial(overwrite, 8, b"\x63"), "version"),
    ("*.model", cut, "damaged"),
    ("*.wasm", partial(overwrite, 100, b"\xff" * 400), "damaged"),
    ("model.json", partial(overwrite, 0, b"x"), "damaged"),
    ("model.json", lambda path: path.write_text('{"format": 2}'), "version"),
    ("model.json", Path.unlink, "not-found"),
]


@pytest.mark.parametrize(("name", "damage", "code"), DAMAGE)
def test_damaged_files_are_named(name, damage, code, copied):
    for path in copied.glob(name):
        damage(path)
    assert run({"folder": url(copied), "calls": []})["code"] == code
