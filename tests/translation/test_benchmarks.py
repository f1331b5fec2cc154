"""The benchmark commands run, small, and write what they say. Their figures are made by hand, on a quiet machine."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sacrebleu.metrics import BLEU

from benchmarks import (
    asked,
    attention,
    decoding,
    errors,
    forms,
    length,
    linear,
    measure,
    millions,
    multi30k,
    orders,
    peers,
    picture,
    train_step,
)
from relattn import relative_attention
from relattn.translation import bundle
from relattn.translation.model.positions.schemes import SCHEMES
from relattn.translation.translate.torch_translator import TorchTranslator


def table(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A function that measures attention with more flags, into one file, and gives the rows of that."""
    monkeypatch.setattr(attention, "peak_memory", lambda *_: 1 << 20)  # a process each

    def run(*flags):
        command = ["attention", "--tokens", "10", "--repeats", "1", "--seconds", "0", *flags]
        monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "a.csv")])
        attention.main()
        return table(tmp_path / "a.csv")

    return run


@pytest.fixture
def stand_in(monkeypatch):
    """A peer that is ours under another name, with another's semantics: nothing beyond the window."""

    def make(case):
        options = {"clip": (case.left, case.right), "is_causal": case.is_causal, "beyond": "zero"}
        return lambda *inputs: relative_attention(*inputs, **options, backend="dense")

    monkeypatch.setitem(peers.PEERS, "VITS", replace(peers.PEERS["VITS"], package="torch", make=make))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("n", [5, 140])
def test_a_form_is_the_same_by_a_mask(form, is_causal, n):
    """Ours and PyTorch's with a bias of all pairs: outputs and gradients of all inputs, past T5's last bucket too."""
    case = peers.Case(2, 3, n, 8, 16, 16, is_causal, torch.float64)
    found = []
    for method in (form, f"{form} by mask"):
        inputs = attention.inputs_of(method, case, True)
        output = attention.attention(method, case)(*inputs)
        found.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
    for ours, by_mask in zip(*found, strict=True):
        torch.testing.assert_close(ours, by_mask, rtol=1e-11, atol=1e-11)


def test_attention(measured):
    rows = measured("--lengths", "5", "--methods", "auto", "dense", "reference")
    assert [(row["causal"], row["pass"], row["method"]) for row in rows] == [
        (causal, name, method)
        for causal in ("False", "True")
        for name in ("forward", "forward + backward")
        for method in ("plain", "auto", "dense", "reference")
    ]
    assert all(row["commit"] and row["device"] and row["torch"] and float(row["ms"]) > 0 for row in rows)
    assert [row["backend"] for row in rows[2:4]] == ["dense", "reference"]
    assert [float(row["operations ratio"]) for row in rows[2:4]] == [1 + 9 / 5, 2.0]  # 2n − 1 < 2k + 1 labels at n = 5


def test_attention_in_pieces(measured):
    """A second run replaces the rows that it measures again, and keeps the others."""
    before = measured("--lengths", "3", "5", "--methods", "dense")
    after = measured("--lengths", "5", "--methods", "reference")
    assert [row for row in after if row["n"] == "3"] == [row for row in before if row["n"] == "3"]
    methods = [row["method"] for row in after if row["n"] == "5" and row["causal"] == "True"]
    assert sorted(methods) == ["dense", "dense", "plain", "plain", "reference", "reference"]


def test_what_does_not_fit_is_left_out(measured, monkeypatch, capsys):
    monkeypatch.setattr(attention, "available_memory", lambda: 4 * 2 * 8 * 5 * 5 * 64 * 4)  # bytes of two n × n × d
    rows = measured("--lengths", "5", "--methods", "reference")
    assert [(row["pass"], row["method"]) for row in rows] == [
        (name, "plain") for name in ("forward", "forward + backward") * 2
    ]
    assert "5  reference left out: it needs about" in capsys.readouterr().out


def test_peer(measured, stand_in):
    rows = measured("--lengths", "5", "--methods", "VITS")
    assert {row["package"] for row in rows if row["method"] == "VITS"} == {f"torch {rows[0]['torch']}"}
    assert float(rows[1]["operations ratio"]) == 1 + 9 / 5


def test_a_peer_that_is_not_installed(measured, capsys):
    with pytest.raises(SystemExit):
        measured("--methods", "eole")
    assert "eole not installed; benchmarks/peers.py says how" in capsys.readouterr().err


@pytest.mark.parametrize("agrees", [True, False])
def test_peers_are_compared(stand_in, monkeypatch, capsys, agrees):
    if not agrees:
        monkeypatch.setitem(peers.PEERS, "VITS", replace(peers.PEERS["VITS"], same=relative_attention))
    monkeypatch.setattr(sys, "argv", ["peers", "VITS"])
    with pytest.raises(SystemExit) as exit:
        peers.main()
    assert exit.value.code == (0 if agrees else 1)
    verdicts = [line.rsplit(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines() if "n = " in line]
    assert verdicts == (["same"] * 6 if agrees else ["same", "same", "DIFFERENT"] * 2)  # the same within the window


@pytest.mark.parametrize("limit", [1e3, 1e-3])
def test_errors(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(errors, "LIMIT", limit)
    monkeypatch.setattr(sys, "argv", ["errors", "--lengths", "5", "--out", str(tmp_path / "e.csv")])
    with pytest.raises(SystemExit) as exit:
        errors.main()
    assert exit.value.code == (0 if limit > 1 else 1)
    rows = table(tmp_path / "e.csv")
    assert [row["result"] for row in rows] == list(errors.RESULTS) * 4
    for row in rows:
        assert 0 < float(row["error"]) < {"float32": 1e-5, "bfloat16": 1e-1}[row["dtype"]]


def test_picture(measured, tmp_path, monkeypatch):
    measured("--lengths", "3", "5", "--methods", "auto", "reference")
    results, out = tmp_path / "a.csv", tmp_path / "a.svg"
    monkeypatch.setattr(sys, "argv", ["picture", "--results", str(results), "--out", str(out)])
    picture.main()
    assert out.read_text().startswith("<?xml")
    heights = picture.spread({"a": 0.5, "b": 0.51, "c": 0.9}, gap=0.1)
    assert heights == pytest.approx({"a": 0.455, "b": 0.555, "c": 0.9})


def test_repeats_by_time(monkeypatch):
    """Quick work is repeated while it takes no longer than the seconds given; a long first run is not thrown away."""
    ran = []
    monkeypatch.setattr(measure, "measured", lambda work: work())
    works = {"quick": lambda: ran.append("quick") or 0.25, "slow": lambda: ran.append("slow") or 8.0}
    times = measure.alternate(works, repeats=3, seconds=2.0)
    assert (times["quick"].repeats, times["slow"].repeats) == (8, 3)
    assert (ran.count("quick"), ran.count("slow")) == (1 + 8, 3)
    assert ran[2:] == ["quick"] * 4 + ["slow"] + ["quick"] * 4 + ["slow"]


@pytest.mark.whole
def test_peak_memory():
    """What work needs beyond what was there before it, in a process that once held more."""
    assert 60 << 20 < measure.peak_memory(hold, (1 << 20,), (64 << 20,)) < 68 << 20


def hold(size):
    assert len(b"1" * 4 * size) == 4 * size
    return lambda: b"1" * size


@pytest.mark.whole
def test_train_step(tmp_path, monkeypatch):
    command = ["train_step", "--lengths", "4", "--tokens", "8", "--layers", "1", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "t.csv")])
    train_step.main()
    rows = table(tmp_path / "t.csv")
    assert [row["positions"] for row in rows] == list(train_step.SCHEMES)
    assert {row["positions"] for row in rows} > set(SCHEMES)
    assert rows[0]["positions"] == "none"
    assert float(rows[1]["ratio"]) == pytest.approx(float(rows[1]["ms"]) / float(rows[0]["ms"]), rel=1e-2)


@pytest.mark.whole
def test_train_step_with_and_without_onednn(tmp_path, monkeypatch):
    choices = []
    prepare = train_step.prepare
    monkeypatch.setattr(train_step.linear, "use_onednn", None)  # restored afterwards
    monkeypatch.setattr(
        train_step, "prepare", lambda *args, onednn: choices.append(onednn) or prepare(*args, onednn=onednn)
    )
    command = ["train_step", "--lengths", "4", "--tokens", "8", "--layers", "1", "--repeats", "1"]
    ways = ["--products", "onednn", "torch", "--schemes", "relative", "xl"]
    monkeypatch.setattr(sys, "argv", [*command, *ways, "--out", str(tmp_path / "t.csv")])
    train_step.main()
    rows = [(row["products"], row["positions"], row["ratio"]) for row in table(tmp_path / "t.csv")]
    assert [row[:2] for row in rows] == [(way, name) for way in ("onednn", "torch") for name in ("relative", "xl")]
    assert [row[2] for row in rows[::2]] == ["1.0", "1.0"]
    assert choices == [True, True, False, False]


@pytest.mark.parametrize("threads", ["1", "2"])
def test_linear(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(linear, "CASES", ((307, 61, 67),))
    for limit in ("MIN_FEATURES", "MIN_WORK", "MIN_PACKED_WEIGHT", "MIN_PACKED_WORK"):
        monkeypatch.setattr(linear.linear, limit, 0)  # restored afterwards
    monkeypatch.setattr(linear.linear, "use_onednn", None)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    command = ["linear", "--repeats", "1", "--seconds", "0", "--threads", threads]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "l.csv")])
    linear.main()
    linear.main()
    rows = table(tmp_path / "l.csv")
    passes = ["forward", *(["forward, bfloat16"] if linear.linear.has_bf16() else []), "forward + backward"]
    sizes = ("307", "61", "67")
    assert [(row["rows"], row["inputs"], row["outputs"], row["pass"]) for row in rows] == [(*sizes, p) for p in passes]
    for row in rows:
        products = 3 if "backward" in row["pass"] else 1
        assert (row["packed ms"] == "") == (products == 3)  # which is without gradients
        for way in ("torch", "onednn", "packed")[: 2 if products == 3 else 3]:
            rate = 2e-6 * products * 307 * 61 * 67 / float(row[f"{way} ms"])
            assert float(row[f"{way} GFLOP/s"]) == pytest.approx(rate, rel=0.1)


def test_length(finished, text, tmp_path, monkeypatch, capsys):
    files = ["--src", text["valid_src"], "--ref", text["valid_tgt"], "--out", str(tmp_path / "l.png")]
    command = ["length", f"mine={finished.out}/bundle", *files, "--edges", "2", "4", "--trained"]
    monkeypatch.setattr(sys, "argv", [*command, "4"])
    length.main()
    assert "| 1–2 | 2 |" in capsys.readouterr().out
    assert (tmp_path / "l.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(sys, "argv", [*command, "3"])
    with pytest.raises(SystemExit):
        length.main()
    assert "--trained 3 must be one of the --edges [2, 4]" in capsys.readouterr().err


def test_the_scale_of_published_figures():
    """BLEU of the words that Moses makes: punctuation stands apart, case does not matter, and nothing is smoothed."""
    references = ["Ein Mann fährt, langsam, Rad.", "Zwei Hunde (ein brauner) spielen im Schnee!"]
    apart = ["ein mann fährt , langsam , rad .", "zwei hunde ( ein brauner ) spielen im schnee !"]
    found = multi30k.published([references[0].upper(), "Zwei Hunde spielen im Schnee!"], references, "de")
    words = ["ein mann fährt , langsam , rad .", "zwei hunde spielen im schnee !"]
    want = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(words, [apart])
    assert found.bleu == want.score
    assert 0 < found.bleu < 100
    assert found.tokens == sum(len(line.split()) for line in apart)
    assert found.signature.startswith("nrefs:1|case:mixed|eff:no|tok:none|smooth:none|")
    assert multi30k.published(["Ein Hund."], ["Ein Hund."], "de").bleu == 0.0  # no four words in a row: not smoothed


def test_multi30k_scores_a_model_or_an_ensemble_on_both(finished, text, monkeypatch, capsys):
    bundles, asked = [f"{finished.out}/bundle"] * 2, []
    load = multi30k.load
    monkeypatch.setattr(multi30k, "load", lambda *paths: asked.append(paths) or load(*paths))
    for count in (1, 2):
        argv = ["multi30k", *bundles[:count], "--src", text["valid_src"], "--ref", text["valid_tgt"]]
        monkeypatch.setattr(sys, "argv", argv)
        multi30k.main()
        out = capsys.readouterr().out.splitlines()
        assert out[0].startswith("BLEU ")
        assert out[2].startswith("lower-cased Moses tokens: BLEU ")
    assert [len(paths) for paths in asked] == [1, 2]


@pytest.mark.whole
def test_decoding(tmp_path, monkeypatch, finished, text):
    """Every method translates the same lines; tokens are those of the translations, or of forced lengths."""
    shutil.copytree(f"{finished.out}/bundle", tmp_path / "bundle")
    monkeypatch.setattr(decoding, "apart", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(decoding, "peak_here", lambda work: (work(), 1 << 20)[1])  # this process has held more
    command = ["decoding", text["valid_src"], "--bundle", str(tmp_path / "bundle"), "--lines", "9", "--beams", "2", "1"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "d.csv")])
    decoding.main()
    rows = table(tmp_path / "d.csv")
    assert [(row["beam"], row["method"]) for row in rows] == [(b, m) for b in "21" for m in decoding.METHODS]
    lines = (Path(text["valid_src"]).read_text(encoding="utf-8").splitlines() * 2)[:9]
    found = bundle.read_bundle(tmp_path / "bundle").translator().n_best(lines)
    tokens = {row["method"]: int(row["tokens"]) for row in rows if row["beam"] == "2"}
    assert tokens["relattn"] == sum(len(best.tokens) + 1 for (best,) in found)
    assert tokens["transformers"] >= sum(len(line.split()) + 1 for line in lines)
    assert all(float(row["tokens_per_second"]) > 0 for row in rows)


def test_decoding_by_a_model_of_base_size(tmp_path, monkeypatch, text):
    """It never ends by itself: translations are as long as their sources, in an export too."""
    few = {"dim": 16, "heads": 2, "feed_forward_dim": 16, "encoder_layers": 1, "decoder_layers": 1}
    preset = decoding.PRESETS["wmt14-en-de-base"]
    small = replace(preset, model=replace(preset.model, **few))
    monkeypatch.setitem(decoding.PRESETS, "wmt14-en-de-base", small)
    monkeypatch.setattr(decoding, "apart", lambda function, *arguments: function(*arguments))
    command = ["decoding", text["train_src"], "--work", str(tmp_path), "--lines", "3", "--beams", "2", "--pieces", "4"]
    monkeypatch.setattr(
        sys, "argv", [*command, "--methods", "relattn", "ctranslate2", "--out", str(tmp_path / "d.csv")]
    )
    decoding.main()
    assert [row["tokens"] for row in table(tmp_path / "d.csv")] == ["15", "15"]


def test_what_translators_ask_for(tmp_path, monkeypatch, finished, text):
    """On the recipe's own text, which reads backwards, by a model that has learned nothing yet."""
    for name, side in (("train.en.gz", "train_src"), ("train.de.gz", "train_tgt")):
        (tmp_path / name).write_bytes(gzip.compress(Path(text[side]).read_bytes()))
    for name, side in (("test2016.en", "valid_src"), ("test2016.de", "valid_tgt")):
        shutil.copy(text[side], tmp_path / name)
    command = ["asked", f"{finished.out}/bundle", "--data", str(tmp_path), "--out", str(tmp_path / "a.csv")]
    monkeypatch.setattr(sys, "argv", command)
    asked.main()
    rows = {row["what"]: row for row in table(tmp_path / "a.csv")}
    assert rows["tags, kept"]["whole"] == rows["terms, with it"]["whole"] == "1.000"
    assert rows["tags, kept"]["bleu"] == rows["no tags"]["bleu"]
    assert float(rows["terms, without the glossary"]["whole"]) < 1
    assert -1 <= float(rows["confidence and chrF"]["pearson"]) <= 1


@pytest.mark.whole
def test_lines_whose_translation_depends_on_the_batch_are_listed(monkeypatch, capsys, finished, text):
    """A blank line and a repeated one are left out; of the others the second is spoiled, seven at a time."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(orders, "read_lines", lambda _: ["one cat", "", "two", "one cat", *map(str, range(10))])
    monkeypatch.setattr(sys, "argv", ["orders", f"{finished.out}/bundle", "--text", "x", "--lines", "9"])
    n_best = TorchTranslator.n_best

    def spoiled(self, lines, n):
        found = n_best(self, lines, n)
        if len(lines) == 7 and "two" in lines:
            at = lines.index("two")
            found[at] = [replace(found[at][0], text="spoiled", score=found[at][0].score - 0.25)]
        return found

    try:
        orders.main()
        assert capsys.readouterr().out.count(": 9 of 9 lines alike, scores within ") == 10
        monkeypatch.setattr(TorchTranslator, "n_best", spoiled)
        orders.main()
    finally:
        torch.set_num_threads(threads)
    told = capsys.readouterr().out
    assert "order 3, 7 at a time, 2 searched at once: 8 of 9 lines alike, scores within 2.5e-01" in told
    assert told.endswith("line 2: its translations are 2.5e-01 apart\n")


def test_a_dictionary_of_words_that_come_together():
    pairs = [
        ("A dog runs.", "Ein Hund läuft."),
        ("A cat runs.", "Eine Katze läuft."),
        ("The dog sat.", "Der Hund saß."),
    ]
    dice, sure = asked.dictionary(pairs * 5)
    assert dice("dog", "Hund.") == dice("Dog", "hund") == 1.0
    assert ("dog", "Hund") in sure
    assert dice("a", "Hund") == pytest.approx(2 * 5 / (10 + 10))
    assert asked.partner("dog", ["Ein", "Hund"], dice) == 1
    assert asked.partner("dog", ["Hund", "Hund"], dice) is None
    assert asked.partner("dog", ["Eine"], dice) is None


@pytest.mark.whole
def test_millions(tmp_path, monkeypatch):
    """At a few pairs: rows of what preparing and training took, of as many pairs as were asked for."""
    command = ["millions", "--pairs", "900", "--work", str(tmp_path / "w"), "--out", str(tmp_path / "m.csv")]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(millions, "STEPS", 3)
    millions.main()
    (row,) = table(tmp_path / "m.csv")
    assert (row["pairs"], row["processes"]) == ("900", "2")
    assert len(row["train MiB"].split()) == 2
    assert min(map(int, row["train MiB"].split())) > 100
    account = json.loads((tmp_path / "w" / "prepared" / "prepared.json").read_text())["account"]["dropped"]
    assert {name: account[name] for name in ("long", "empty", "duplicate")} == {
        "long": 15,
        "empty": 15,
        "duplicate": 15,
    }
