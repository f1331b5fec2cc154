"""The commands translate and score."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relattn import translation
from relattn.translation import bundle
from relattn.translation.data.text_files import read_parallel
from relattn.translation.errors import InputError
from relattn.translation.evaluation import score
from relattn.translation.search.types import SamplingOptions
from relattn.translation.training import train
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.torch_translator import TorchTranslator
from tests.support.commands import assert_refused

LINES = ["one cat sat", "", "on two mat and one cat", "   ", "two", "one cat sat"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads=0"], "threads must be in [1, 1024], got 0"),
        (["--beam_size=0"], "beam_size must be in [1, 1000], got 0"),
        (["--alpha=-1"], "alpha must be in [0, 5], got -1.0"),
        (["--n_best=3"], "n_best must be at most the beam size 2, got 3"),
        (["--n_best=0"], "n_best must be at least 1, got 0"),
        (["--top-k=5"], "--top_k requires --sampling"),
        (["--seed=5"], "--seed requires --sampling"),
        (["--sampling", "--beam_size=3"], "--beam_size does not work with --sampling"),
        (["--sampling", "--early_stopping=true"], "--early_stopping does not work with --sampling"),
        (["--keep-tags", "--align"], "keep_tags does not work with align"),
        (["--glossary=nowhere.tsv"], "nowhere.tsv: no such file"),
        (["--sampling", "--temperature=0"], "temperature must be at least 0.001"),
        (["--prefix=nowhere.txt"], "nowhere.txt: no such file"),
    ],
)
def test_ways_of_translating_that_will_not_do(relattn, reading, model, arguments, message):
    reading(b"one cat\n")
    assert_refused(relattn("translate", model, *arguments), message)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (None, torch.float32)),  # as many as PyTorch has
        (["--threads=3"], (3, torch.float32)),
        (["--threads=1", "--precision=bf16"], (1, torch.bfloat16)),
    ],
)
def test_threads_and_precision_reach_the_model(relattn, reading, model, monkeypatch, arguments, expected):
    seen = []
    search_batch = TorchTranslator.search_batch

    def watched(self, *arguments):
        seen.append((self.workers, self.model.embedding.dtype))
        return search_batch(self, *arguments)

    monkeypatch.setattr(TorchTranslator, "search_batch", watched)
    reading(b"one cat\n")
    assert relattn("translate", model, *arguments).code == 0
    assert seen == [(expected[0] or torch.get_num_threads(), expected[1])]


def test_a_precision_that_there_is_not(relattn, model):
    result = relattn("translate", model, "--precision=fp8")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "fp8" in result.err
    with pytest.raises(InputError, match=r"^precision must be fp32 or bf16, got 'half'$"):
        bundle.read_bundle(model).translator(precision="half")


@pytest.mark.parametrize("device", ["abacus", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_there(relattn, model, device):
    result = relattn("translate", model, "--device", device)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"relattn: error: device {device} cannot be used: ")


def test_the_devices_message_is_short(relattn, model):
    result = relattn("translate", model, "--device", "xla")
    assert result.err.startswith("relattn: error: device xla cannot be used: ")
    assert len(result.err) < 200
    message = "device meta cannot be used: Tensor.item() cannot be called on meta tensors"
    assert_refused(relattn("translate", model, "--device", "meta"), message)


def test_lines_are_translated_in_order_and_in_silence(relattn, reading, model):
    reading("\r\n".join(LINES).encode())
    expected = bundle.read_bundle(model).translator().translate(LINES)
    assert relattn("translate", model) == (0, "".join(f"{line}\n" for line in expected), "")
    assert (expected[1], expected[3]) == ("", "")
    assert expected[0] == expected[5]
    assert len(set(expected)) == 4


def test_progress_is_for_terminals(relattn, reading, monkeypatch, model):
    reading(b"one\ntwo\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    result = relattn("translate", model)
    assert result.out.count("\n") == 2
    assert "2line" in result.err


def test_n_best(relattn, reading, model):
    reading("\n".join(LINES).encode())
    translator = bundle.read_bundle(model).translator()
    options = TranslateOptions(n_best=3, search=replace(translator.search, beam_size=3, alpha=0.0))
    expected = [
        f"{number} ||| {found.text} ||| {found.score:.4f}"
        for number, best in enumerate(translator.n_best(LINES, options))
        for found in best
    ]
    result = relattn("translate", model, "--n_best", 3, "--beam_size", 3, "--alpha", 0)
    assert result == (0, "".join(f"{line}\n" for line in expected), "")
    assert [line.split(" ||| ")[0] for line in expected] == [*"000", "1", *"222", "3", *"444", *"555"]


def test_input_that_is_not_utf_8(relattn, reading, model):
    reading(b"one cat\ntwo \xff mat\n")
    result = relattn("translate", model)
    assert (result.code, result.out.count("\n")) == (2, 1)  # what came before is translated
    assert result.err == "relattn: error: standard input: not UTF-8 at byte 12, in line 2: 0xff\n"


@pytest.mark.whole
def test_a_reader_that_goes_is_no_error(model):
    """Input without end: only the closed pipe stops it."""
    script = f"set -o pipefail; yes 'one cat' | {{ '{sys.executable}' -m relattn translate '{model}'; "
    script += "echo $? >&2; } | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.stdout.count("\n"), done.stderr) == (1, "0\n")


def test_prefixes_and_draws(relattn, reading, tmp_path, model):
    reading("\n".join(LINES).encode())
    (tmp_path / "prefixes").write_text("Katze\n\nzwei\n\neins\n\n", encoding="utf-8")
    expected = bundle.read_bundle(model).translator().translate(LINES, prefixes=["Katze", "", "zwei", "", "eins", ""])
    result = relattn("translate", model, "--prefix", tmp_path / "prefixes")
    assert result == (0, "".join(f"{line}\n" for line in expected), "")
    translator = bundle.read_bundle(model).translator()
    options = TranslateOptions(n_best=3, sampling=SamplingOptions(top_k=7, temperature=2.0, seed=5))
    expected = [
        f"{number} ||| {found.text} ||| {found.score:.4f}"
        for number, of_line in enumerate(translator.n_best(LINES, options))
        for found in of_line
    ]
    reading("\n".join(LINES).encode())
    flags = ("--sampling", "--top_k", 7, "--temperature", 2.0, "--seed", 5, "--n_best", 3)
    assert relattn("translate", model, *flags).out.split("\n") == [*expected, ""]


def test_a_glossary(relattn, reading, tmp_path, model):
    (tmp_path / "terms.tsv").write_text("cat\tlöwin frau\n", encoding="utf-8")
    reading("\n".join(LINES).encode())
    lines = relattn("translate", model, "--glossary", tmp_path / "terms.tsv").out.split("\n")[:-1]
    plain = bundle.read_bundle(model).translator().translate(LINES)
    for source, line, before in zip(LINES, lines, plain, strict=True):
        assert ("löwin frau" in line) == ("cat" in source)
        assert "cat" in source or line == before


def test_tags_are_kept(relattn, reading, model):
    reading(b"one <b>cat</b> sat\n{name}\n")
    lines = relattn("translate", model, "--keep_tags").out.split("\n")[:-1]
    (plain,) = bundle.read_bundle(model).translator().translate(["one cat sat"])
    assert lines[0].replace("<b>", "").replace("</b>", "") == plain
    assert lines[1] == "{name}"


def test_formats_and_alignments(relattn, reading, model):
    translator = bundle.read_bundle(model).translator()
    found = translator.n_best(LINES, TranslateOptions(n_best=2, align=True))
    expected = [(number, h) for number, of_line in enumerate(found, start=1) for h in of_line]
    assert any(h.alignment for _, h in expected)
    reading("\n".join(LINES).encode())
    result = relattn("translate", model, "--n_best", 2, "--align", "--format", "jsonl")
    rows = [json.loads(line) for line in result.out.split("\n")[:-1]]
    assert [(row["line"], row["translation"]) for row in rows] == [(number, h.text) for number, h in expected]
    assert [row["alignment"] for row in rows] == [" ".join(f"{a}-{b}" for a, b in h.alignment) for _, h in expected]
    assert [row["score"] for row in rows] == pytest.approx([h.score for _, h in expected], abs=1e-4)
    reading(b"")
    assert relattn("translate", model, "--format", "tsv") == (0, "line\tscore\tconfidence\ttranslation\n", "")
    reading(b"one cat sat")
    first = found[0][0]
    links = " ".join(f"{a}-{b}" for a, b in first.alignment)
    assert relattn("translate", model, "--align") == (0, f"{first.text} ||| {links}\n", "")


def test_score(relattn, reading, tmp_path, model):
    """An n-best list is scored as it was made, by its pieces and in sum."""
    translator = bundle.read_bundle(model).translator()
    src = [line for line in LINES if line.strip()] + [""]
    found = [best for (best,) in translator.n_best(src)]
    for name, lines in (("src", src), ("tgt", [best.text for best in found])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = ("--src", tmp_path / "src", "--tgt", tmp_path / "tgt")
    code, out, err = relattn("score", model, *files)
    assert (code, err) == (0, "")
    for line, best in zip(out.splitlines()[:-1], found, strict=False):
        penalty = ((5 + len(best.tokens) + 1) / 6) ** 0.6
        assert float(line) == pytest.approx(best.score * penalty, abs=2e-4)
    rows = [line.split("\t") for line in relattn("score", model, *files, "--tokens").out.splitlines()]
    assert [total for total, _ in rows] == out.splitlines()
    for (total, pieces), best in zip(rows, found, strict=True):
        named, log_probs = pieces.split(" ")[::2], pieces.split(" ")[1::2]
        assert named == [translator.tokenizer.vocabularies[1][i] for i in (*best.tokens, 2)]
        assert sum(map(float, log_probs)) == pytest.approx(float(total), abs=1e-4 * len(log_probs))


def test_pairs_that_cannot_be_scored(relattn, tmp_path, model):
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("eins\n" + "x" * 20_000 + "\n")
    (tmp_path / "c").write_text("eins\n")
    of = {side: f"{tmp_path}/{side}" for side in "abc"}
    message = "target line 2 has 20,000 characters; at most 16,384 are read"
    assert_refused(relattn("score", model, "--src", of["a"], "--tgt", of["b"]), message)
    message = f"{of['a']} and {of['c']} must have the same number of lines, got 2 and 1"
    assert_refused(relattn("score", model, "--src", of["a"], "--tgt", of["c"]), message)


def test_several_bundles_are_an_ensemble(relattn, reading, text, model, another):
    expected = translation.load(model, another).translate(LINES)
    assert expected not in [bundle.read_bundle(path).translator().translate(LINES) for path in (model, another)]
    reading("\n".join(LINES).encode())
    assert relattn("translate", model, another) == (0, "".join(f"{line}\n" for line in expected), "")
    pairs = list(read_parallel(text["valid_src"], text["valid_tgt"]))
    scores = score(translation.load(model, another).translate([src for src, _ in pairs]), [ref for _, ref in pairs])
    arguments = ("--src", text["valid_src"], "--ref", text["valid_tgt"])
    assert relattn("evaluate", model, another, *arguments) == (0, f"{scores}\n", "")


def test_bundles_that_make_no_ensemble(relattn, reading, tmp_path, model, finished, make_recipe):
    reading(b"one\n")
    config = Path(model, "config.yaml").read_text(encoding="utf-8")
    turned = tmp_path / "turned"
    shutil.copytree(model, turned)
    (turned / "config.yaml").write_text(config.replace("src_lang: en", "src_lang: fr"), encoding="utf-8")
    message = f"models of an ensemble must have the same languages, got en to de for {model} and fr to de for {turned}"
    assert_refused(relattn("translate", model, turned), message)
    recipe = make_recipe(tmp_path / "run", data={"vocab_size": 290})
    train.train(recipe, show=False)
    other = f"{recipe.out}/bundle"
    message = f"models of an ensemble must have the same tokenizer; those of {model} and {other} differ"
    assert_refused(relattn("translate", model, other), message)
    assert_refused(
        relattn("translate", model, tmp_path / "none"), f"{tmp_path}/none: no such directory; a bundle is a directory"
    )


def test_control_characters_of_names_do_not_reach_the_terminal(relattn, tmp_path):
    result = relattn("translate", tmp_path / "\x1b[31mred\u202e")
    assert_refused(result, r"\x1b[31mred\u202e: no such directory")


def test_a_sentence_that_is_not_utf8_is_refused(relattn, tmp_path, model):
    result = relattn("analyze", "attention", model, "one \udcff", "--out", tmp_path / "x.png")
    assert_refused(result, r"the sentence must be UTF-8, got 'one \udcff'")
    assert list(tmp_path.iterdir()) == []
