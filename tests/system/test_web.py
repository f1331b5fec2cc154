"""Translation in WebAssembly, by `relattn-mt export web` and Node.js: equal to the native level `default`."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from relattn_mt.bundle import PACKAGED, read_bundle
from relattn_mt.tokens.tokenizer import normalized

from tests.support.firefox_models import random_model, train_vocabulary, write_bin, write_shortlist
from tests.support.foreign_bundles import run_import
from tests.support.marian_models import write as write_marian
from tests.support.transformers_models import m2m_100, t5
from tests.support.web_sites import in_8_bits, native, node_flags, serving

ROOT = Path(__file__).parents[2]
NODE = shutil.which("node")
MODEL = PACKAGED / "everyday-en-de"
pytestmark = [
    pytest.mark.skipif(NODE is None, reason="translation in WebAssembly is tested in Node.js: apt-get install nodejs"),
    pytest.mark.skipif(find_spec("ziglang") is None, reason="the engine is compiled by ziglang: make test-system"),
]

# Load a folder, run calls of `translate`, and print their results or the code of an error.
SCRIPT = """
const { folder, engine, module, calls, before } = JSON.parse(require('fs').readFileSync(0));
import(module ?? folder + 'relattn.mjs').then(async ({ Translator }) => {
    const progress = [], outcomes = [];
    eval(before);
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


def run(task: dict[str, Any], *flags: str) -> Any:
    """Run the script in Node.js."""
    command = [NODE, *flags, "-e", SCRIPT]
    process = subprocess.run(command, input=json.dumps(task), capture_output=True, text=True, encoding="utf-8")
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
    """Check texts, tokens, scores, confidence and alignments of all hypotheses of all calls."""
    for outcome, results in zip(found, expected, strict=True):
        for own, hypotheses in zip(outcome["found"], results, strict=True):
            for each, (*exact, confidence, alignment) in zip([own, *own["alternatives"]], hypotheses, strict=True):
                assert [each["text"], each["ids"], each["score"]] == exact
                assert each["confidence"] == pytest.approx(confidence, rel=1e-5)
                assert each.get("alignment", []) == alignment


@pytest.mark.parametrize("engine", ["simd", "relaxed"])
def test_texts_tokens_and_scores_are_equal(site, engine):
    english, german = sentences()
    assert len(english) + len(german) >= 600
    long = [" ".join(english[i : i + 7]) for i in range(0, 70, 7)]
    calls = [
        ([*english, *long, "", "▁ is a mark", "zero\u200bwidth 中文 🙂"], {"beam": 1, "nBest": 1, "to": "de"}),
        ([*english, *long], {"beam": 4, "nBest": 3, "to": "de"}),
        (german, {"beam": 4, "nBest": 1, "to": "en"}),
        ([*english[:60], *long, "50 % (“so”)", "…"], {"beam": 4, "nBest": 2, "to": "de", "align": True}),
    ]
    results = run({"folder": url(site), "engine": engine, "calls": calls}, *node_flags(engine, NODE))
    assert results["engine"] == engine
    require_equal(results["outcomes"], native(MODEL, calls))


@pytest.mark.parametrize("engine", ["simd", "relaxed"])
@pytest.mark.parametrize("kind", ["8 bits", "float32"])
def test_other_weights(kind, engine, tmp_path):
    path = tmp_path / "bundle"
    packaged = read_bundle(MODEL)
    bundle = in_8_bits(packaged, path) if kind == "8 bits" else replace(packaged.in_float32(), path=path)
    bundle.save()
    calls = [(sentences()[0][:40], {"beam": 4, "nBest": 2, "to": "de"})]
    task = {"folder": url(export(bundle.path, tmp_path / "site")), "engine": engine, "calls": calls}
    require_equal(run(task, *node_flags(engine, NODE))["outcomes"], native(bundle.path, calls))


OWN = ["<b>", "</b>", "aaa", "two words", "▁<x>", "🙂🙂"]
TOKENIZERS: dict[str, dict[str, Any]] = {
    "everyday-en-de": {},
    "unigram": {"model_type": "unigram"},
    "unigram, bytes, pieces of the user, all spaces": {
        "model_type": "unigram",
        "byte_fallback": True,
        "user_defined_symbols": OWN,
        "remove_extra_whitespaces": False,
    },
    "BPE, bytes": {"model_type": "bpe", "byte_fallback": True},
    "BPE, pieces of the user, lower case": {
        "model_type": "bpe",
        "user_defined_symbols": OWN,
        "normalization_rule_name": "nfkc_cf",
    },
    "BPE, as it is": {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
    },
}
RANGES = [(1, 127), (0xA0, 0x24F), (0x300, 0x36F), (0x400, 0x4FF), (0x900, 0x97F), (0x2000, 0x206F), (0x2581, 0x2581)]
RANGES += [(0x3000, 0x30FF), (0xAC00, 0xAD00), (0xFF00, 0xFFEF), (0x1D400, 0x1D500), (0x1F600, 0x1F64F)]


def random_lines(count: int) -> list[str]:
    draw = random.Random(1)
    words = " ".join([*sentences()[0], *sentences()[1]]).split()

    def part() -> str:
        match draw.randint(0, 5):
            case 0:
                return draw.choice(OWN) * draw.randint(1, 3)
            case 1 | 2:
                return chr(draw.randint(*draw.choice(RANGES)))
        return draw.choice(words) + draw.choice(["", " ", "  ", "."])

    return ["".join(part() for _ in range(draw.randint(0, 25))) for _ in range(count)]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_and_texts_are_those_of_sentencepiece(site, name, tmp_path):
    path = MODEL / "tokenizer.model"
    if options := TOKENIZERS[name]:
        path = tmp_path / "own.model"
        with path.open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter([*sentences()[0], *sentences()[1]]),
                model_writer=file,
                vocab_size=1000,
                hard_vocab_limit=False,
                minloglevel=2,
                **options,
            )
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    lines = random_lines(10_000)
    draw = random.Random(2)
    pieces = [*map(model.id_to_piece, range(model.get_piece_size())), "unknown", "▁?"]
    drawn = [draw.choices(pieces, k=draw.randint(0, 6)) + draw.choices(pieces[:300], k=6) for _ in lines]
    script = f"""
        const {{ model, lines, drawn }} = JSON.parse(require('fs').readFileSync(0));
        import({json.dumps(url(site) + "sentencepiece.mjs")}).then(({{ SentencePiece }}) => {{
            const own = new SentencePiece(require('fs').readFileSync(model));
            const found = lines.map(line => own.encode(line));
            const rows = found.map((each, i) => [
                each.map(({{ id }}) => id), each.map(({{ piece }}) => piece),
                own.normalize(lines[i]), own.decode(drawn[i])]);
            console.log(JSON.stringify(rows));
        }});
    """
    task = json.dumps({"model": str(path), "lines": lines, "drawn": drawn})
    process = subprocess.run([NODE, "-e", script], input=task, capture_output=True, text=True, encoding="utf-8")
    for line, given, found in zip(lines, drawn, json.loads(process.stdout), strict=True):
        normal = normalized(model, line)
        assert found == [model.encode(line), model.encode(line, out_type=str), normal, model.decode_pieces(given)]


def firefox(path: Path) -> Path:
    """Write a model of Firefox's kind, with two vocabularies and a shortlist."""
    path.mkdir()
    english, german = sentences()
    sides = [
        train_vocabulary(path / f"{name}.spm", lines, 200)
        for name, lines in (("srcvocab", english), ("trgvocab", german))
    ]
    sizes = [sentencepiece.SentencePieceProcessor(model_file=str(side)).get_piece_size() for side in sides]
    tied = {"tied_embeddings_all": False, "tied_embeddings": True}
    weights, options = random_model(sizes[0], target_vocab=sizes[1], dim=32, seed=3, **tied)
    write_bin(path / "model.bin", weights, options, int8=True)
    write_shortlist(path / "lex.s2t.bin", sizes[1], offsets=sizes[0], first=4, best=5)
    return path


IMPORTED: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "two vocabularies and a shortlist": (firefox, "en", "de"),
    "BPE, given tokens, 100 languages": (m2m_100, "en", "de"),
    "MADLAD-400, 3 languages": (
        partial(t5, tied=False, languages=("de", "en", "fr"), feed_forward_proj="gated-gelu"),
        "en",
        "de",
    ),
    "UMT5": (partial(t5, kind="UMT5", num_decoder_layers=2), "en", "de"),
    "unigram and BPE, two vocabularies": (partial(write_marian, shared=False), "en", "de"),
}


@pytest.mark.parametrize("kind", IMPORTED)
def test_imported_models(kind, tmp_path):
    write, src_lang, tgt_lang = IMPORTED[kind]
    write(tmp_path / "model")
    bundle = run_import(tmp_path / "model", tmp_path / "bundle", src_lang, tgt_lang)
    assert (bundle.shortlist is not None) == ("shortlist" in kind)
    lines = [
        *sentences()[0][:30],
        "<2fr> one __fr__two<2en>",
        "one apple and two pears",
        *(line[:20] for line in random_lines(60)),
    ]
    calls = [
        (lines, {"beam": 1, "nBest": 1, "to": tgt_lang, "align": True}),
        (lines, {"beam": 4, "nBest": 2, "to": tgt_lang}),
    ]
    if "languages" in kind:
        calls.append((lines, {"beam": 2, "nBest": 1, "to": "fr"}))
    results = run({"folder": url(export(tmp_path / "bundle", tmp_path / "site")), "engine": "simd", "calls": calls})
    require_equal(results["outcomes"], native(tmp_path / "bundle", calls))


@pytest.fixture
def address(copied: Path) -> Iterator[str]:
    with serving(copied) as address:
        yield address


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


LACKING = {  # what a browser lacks, as code that runs before a model is loaded
    "no-simd": "WebAssembly.validate = () => false",
    "compile": "WebAssembly.instantiate = async () => { throw new WebAssembly.CompileError('by a policy') }",
    "file": "globalThis.process = undefined",
}


@pytest.mark.parametrize("code", LACKING)
def test_what_a_browser_lacks_is_named(code, site):
    assert run({"folder": url(site), "calls": [], "before": LACKING[code]})["code"] == code


@pytest.mark.parametrize("pages", [10, 100])
def test_memory_for_less_than_the_engine_or_the_model(pages, site):
    failure = run({"folder": url(site), "engine": "simd", "calls": []}, f"--wasm-max-mem-pages={pages}")
    assert failure["code"] == "memory"
    assert "must fit in memory" in failure["message"]
