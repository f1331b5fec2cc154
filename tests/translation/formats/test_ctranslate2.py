"""A model exported for CTranslate2 says what the bundle says, and one that it could not hold is refused whole."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import get_args

import ctranslate2
import pytest
import torch

from relattn.translation import bundle
from relattn.translation.commands import main as cli
from relattn.translation.config import Calibration, DataConfig, ModelConfig, Recipe, SearchConfig
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError
from relattn.translation.formats import argos
from relattn.translation.formats.ctranslate2 import write as module
from relattn.translation.formats.ctranslate2.directory import Quantization
from relattn.translation.formats.ctranslate2.translator import load
from relattn.translation.formats.ctranslate2.write import ctranslate2_search, export, require_exportable
from relattn.translation.formats.parity import Reference, check_lines
from relattn.translation.model.transformer import Transformer
from relattn.translation.search.types import Hypothesis, SamplingOptions
from relattn.translation.translate.glossary import Glossary
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import Translator

FILES = {"model.bin", "config.json", "shared_vocabulary.json", "tokenizer.model", "README.md"}
NO_PYTORCH = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Missing())
from relattn.translation.commands.main import main
sys.exit(main(sys.argv[1:]))
"""
LINES = ["one apple and two pears", "zwei Birnen und ein Apfel", "17 apples, 4 pears", "17 Äpfel, 4 Birnen"]
SEARCH = SearchConfig(
    beam_size=3, length_penalty="average", alpha=0.7, early_stopping=True, max_length_ratio=0.5, max_length_extra=5
)
SMALL = ModelConfig(dim=12, heads=3, feed_forward_dim=20, encoder_layers=2, decoder_layers=1, clip=3)
KINDS = {
    "relative": {},
    "keys": {"relative_tables": "keys"},
    "values": {"relative_tables": "values"},
    "left": {"clip": 4, "clip_right": 1},
    "right": {"clip": 0, "clip_right": 2},
    "clip 0": {"clip": 0},
    "post": {"norm": "post"},
    "sinusoidal": {"positions": "sinusoidal"},
    "learned": {"positions": "learned", "max_positions": 70},
    "none": {"positions": "none"},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(LINES * 5, 300, seed=1)


def of(options: dict) -> ModelConfig:
    options = dict(options)
    return replace(SMALL.with_positions(options.pop("positions", "relative"), clip=None), **options)


@pytest.fixture
def make(tmp_path, tokenizer):
    """make(options): the parts of a bundle with random weights, none of them small; `ends` makes translations end."""

    def make(options: dict, search: SearchConfig = SEARCH, ends: float = 0.0) -> bundle.Bundle:
        config = of(options)
        torch.manual_seed(1)
        model = Transformer(config, tokenizer.vocab_size)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.3 * torch.randn(parameter.shape)
            if ends:
                model.decoder_norm.bias += ends * model.embedding[tokenizer.special.eos]
        recipe = Recipe(model=config, search=search, data=DataConfig(src_lang="en", tgt_lang="pt_BR"))
        path = tmp_path / "bundle"
        bundle.save(path, model=model, recipe=recipe, tokenizer=tokenizer, card="# A model\n")
        return bundle.read_bundle(path)

    return make


def lines_of(words: list[int]) -> list[str]:
    draw = random.Random(1)
    vocabulary = " ".join(LINES).split()
    return [" ".join(draw.choice(vocabulary) for _ in range(count)) for count in words]


BLIND = "ignore:(positions. none|clip. 0):UserWarning"


@pytest.mark.sampled(9)
@pytest.mark.filterwarnings(BLIND)
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())
def test_an_export_says_what_the_bundle_says(tmp_path, make, options):
    parts = make(options)
    sample = lines_of([1, 2, 5, 8, 12, 17])
    report = export(parts, tmp_path / "out", quantization="float32", sample=sample)
    assert {file.name for file in (tmp_path / "out").iterdir()} == FILES
    theirs = load(tmp_path / "out", threads=1)
    assert (theirs.src_lang, theirs.tgt_lang, theirs.search) == (parts.src_lang, parts.tgt_lang, SEARCH)
    ours = parts.translator()
    src = [ours.tokenizer.encode(line) for line in sample]
    tgt = [ours.tokenizer.encode(line) for line in reversed(sample)]
    for mine, yours in zip(ours.log_probs(src, tgt), theirs.log_probs(src, tgt), strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(yours), rtol=0, atol=1e-4)
    greedy = TranslateOptions(search=replace(SEARCH, beam_size=1))
    assert [h.tokens for (h,) in ours.n_best(sample, greedy)] == [h.tokens for (h,) in theirs.n_best(sample, greedy)]
    assert report.parities.keys() == {"float32"}
    assert report.parities["float32"].lines == 6
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# A model\n\n## Export\n\n")
    assert card.endswith(f"## Export\n\n{report}\n")


def test_ctranslate2_alone_finds_what_it_expects(tmp_path, make):
    """As other programs use the directory: its own pieces in, without any special token."""
    parts = make({})
    export(parts, tmp_path / "out", quantization="float32", sample=LINES)
    ours, alone = parts.translator(), ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    pieces, _ = ours.tokenizer.vocabularies
    src, tgt = ours.tokenizer.encode(LINES[0]), ours.tokenizer.encode(LINES[1])
    (scored,) = alone.score_batch([[pieces[i] for i in src]], [[pieces[i] for i in tgt]])
    assert scored.log_probs == pytest.approx(ours.log_probs([src], [tgt])[0], abs=1e-4)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["layer_norm_epsilon"] == 1e-5
    assert scored.tokens == [*(pieces[i] for i in tgt), "</s>"]


def correlation(some: Sequence[float], others: Sequence[float]) -> float:
    """Of scores. How near products of whole numbers come is the processor's doing: without AVX512-VNNI their sums
    saturate, and weights at random are the worst case. A model with a wrong weight has none."""
    return statistics.correlation(some, others)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("quantization", get_args(Quantization))
def test_types_of_weights(tmp_path, make, quantization):
    parts = make({})
    report = export(parts, tmp_path / "out", quantization=quantization, sample=LINES)
    assert list(report.parities) == list(dict.fromkeys(("float32", quantization)))
    theirs = load(tmp_path / "out", threads=1)
    src = [parts.tokenizer.encode(line) for line in LINES]
    scores = [list(chain.from_iterable(each.log_probs(src, src))) for each in (theirs, parts.translator())]
    gap = max(abs(near - exact) for near, exact in zip(*scores, strict=True))
    assert (gap < 1e-4) == (quantization == "float32")
    assert correlation(*scores) > 0.9
    if not quantization.startswith("int"):
        assert max(gap, report.parities[quantization].worst) < 0.1
    sizes = {"float32": 4, "float16": 2, "bfloat16": 2, "int16": 2}
    weights = sum(t.numel() for t in parts.state.values()) * sizes.get(quantization, 1)
    assert weights < (tmp_path / "out" / "model.bin").stat().st_size < weights * 1.5 + 8000


@pytest.mark.whole
def test_lines_past_1024_pieces_are_read_whole(tmp_path, make):
    parts = make({})
    export(parts, tmp_path / "out", quantization="float32", sample=LINES)
    ours, theirs = parts.translator(), load(tmp_path / "out", threads=1)
    src = ours.tokenizer.encode(" ".join(lines_of([700])))
    assert len(src) > 1100
    assert theirs.log_probs([src], [src])[0] == pytest.approx(ours.log_probs([src], [src])[0], abs=1e-4)
    short = TranslateOptions(search=replace(SEARCH, beam_size=1, max_length_ratio=0.0, max_length_extra=6))
    text = ours.tokenizer.decode(src)
    (((mine,),), ((its,),)) = (translator.n_best([text], short) for translator in (ours, theirs))
    assert mine.tokens == its.tokens
    *of_pieces, _ = ours.log_probs([src], [its.tokens])[0]  # closed without an end
    assert its.score == pytest.approx(sum(of_pieces) / len(of_pieces) ** SEARCH.alpha, rel=1e-5)


def test_a_translation_does_not_depend_on_the_lines_beside_it(tmp_path, make):
    parts = make({}, replace(SEARCH, max_length_ratio=1.0, max_length_extra=2))
    export(parts, tmp_path / "out", quantization="float32", sample=LINES)
    theirs = load(tmp_path / "out", threads=1)
    sample = lines_of([1, 30, 2, 9, 1])
    together = [[h.tokens for h in found] for found in theirs.n_best(sample, TranslateOptions(n_best=2))]
    assert together == [[h.tokens for h in theirs.n_best([line], TranslateOptions(n_best=2))[0]] for line in sample]
    for line, found in zip(sample, together, strict=True):
        assert max(map(len, found)) < theirs.limit(len(parts.tokenizer.encode(line)))
    assert len(theirs.translate(["", sample[0], " "])) == 3


@pytest.mark.whole
def test_a_search_that_stops_early_finds_what_ctranslate2_finds(tmp_path, make):
    """All hypotheses of a line, unless one is closed at the limit of length, where they have other ends."""
    parts = make({}, replace(SEARCH, max_length_ratio=2.0, max_length_extra=20), ends=1.5)
    export(parts, tmp_path / "out", quantization="float32", sample=LINES)
    ours, theirs = parts.translator(), load(tmp_path / "out", threads=1)
    sample = lines_of([1, 2, 3, 5, 8, 9, 12, 14, 17, 20] * 3)
    limits = [ours.limit(len(ours.tokenizer.encode(line))) for line in sample]
    compared, gained = 0, 0.0
    for beam_size in (2, 3, 5):
        search = replace(theirs.search, beam_size=beam_size)
        options = TranslateOptions(n_best=beam_size, search=search)
        found = [translator.n_best(sample, options) for translator in (ours, theirs)]
        for mine, its, limit in zip(*found, limits, strict=True):
            if max(len(h.tokens) for h in its) + 1 < limit:
                assert [h.tokens for h in mine] == [h.tokens for h in its]
                assert [h.score for h in mine] == pytest.approx([h.score for h in its], rel=1e-4)
                compared += 1
        longer = TranslateOptions(search=replace(search, early_stopping=False))
        gained += sum(h.score for (h,) in ours.n_best(sample, longer)) - sum(h[0].score for h in found[0])
    assert compared > 45  # of 90
    assert gained > 0.1


def test_scores_are_by_the_same_penalty(tmp_path, make):
    parts = make({}, replace(SEARCH, max_length_extra=40), ends=1.5)
    export(parts, tmp_path / "out", quantization="float32", sample=LINES)
    theirs = load(tmp_path / "out", threads=1)
    ended = 0
    for name, alpha in (("average", 0.0), ("average", 0.7), ("none", 0.7)):
        options = TranslateOptions(n_best=3, search=replace(theirs.search, length_penalty=name, alpha=alpha))
        exponent = 0.0 if name == "none" else alpha
        for line, found in zip(LINES, theirs.n_best(LINES, options), strict=True):
            src = parts.tokenizer.encode(line)
            for hypothesis in found:
                length = len(hypothesis.tokens) + 1
                if length < theirs.limit(len(src)):
                    (scores,) = parts.translator().log_probs([src], [hypothesis.tokens])
                    assert hypothesis.score == pytest.approx(sum(scores) / length**exponent, rel=1e-5)
                    ended += 1
    assert ended


def test_penalties():
    gnmt, average = (SearchConfig(length_penalty=name, alpha=0.6) for name in ("gnmt", "average"))
    none = replace(average, length_penalty="none")
    assert ctranslate2_search(average, 20) == replace(average, early_stopping=True)
    assert ctranslate2_search(none, 20) == replace(none, early_stopping=True)
    found = ctranslate2_search(gnmt, 20)
    assert (found.length_penalty, found.alpha, found.early_stopping) == ("average", 0.48, True)
    grown = [((5 + n) / 6) ** 0.6 for n in (19, 21)]
    assert pytest.approx(grown[1] / grown[0], rel=1e-3) == 21**0.48 / 19**0.48  # near 20 both grow alike


def test_everything_that_ctranslate2_lacks_is_named_at_once(make, tmp_path):
    parts = make({"positions": "relative+sinusoidal", "tables_per_head": True, "beyond": "zero"})
    with pytest.raises(InputError, match=rf"^{parts.path}: .*relative\+sinusoidal.*tables_per_head.*beyond") as caught:
        export(parts, tmp_path / "out", quantization="float32", sample=LINES)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    for name in ("xl", "t5", "alibi", "rope", "rove", "lstm", "cnn"):
        with pytest.raises(InputError, match=f"^x: .* {name} positions"):
            require_exportable(SMALL.with_positions(name, clip=None), "x")


def test_an_export_that_disagrees_with_the_bundle_is_not_made(make, tmp_path, monkeypatch):
    parts = make({})
    export(parts, tmp_path / "out", quantization="float32", sample=LINES)
    before = (tmp_path / "out" / "model.bin").read_bytes()
    state = module._state
    monkeypatch.setattr(module, "_state", lambda model: {name: tensor.flip(0) for name, tensor in state(model).items()})
    with pytest.raises(InputError, match=f"{tmp_path / 'out'}: not exported: log-probabilities must differ by at most"):
        export(parts, tmp_path / "out", quantization="float32", sample=LINES)
    assert (tmp_path / "out" / "model.bin").read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"bundle", "out"}


def test_nothing_else_is_overwritten(make, tmp_path):
    parts = make({})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("all of it")
    with pytest.raises(InputError, match=r"out: not replaced, .* a model for C.*: thesis.txt$"):
        export(parts, tmp_path / "out", quantization="float32", sample=LINES)
    with pytest.raises(InputError, match="at least one line"):
        export(parts, tmp_path / "other", quantization="float32", sample=["", "  "])


@pytest.fixture
def exported(make, tmp_path) -> Path:
    export(make({"positions": "learned", "max_positions": 40}), tmp_path / "out", quantization="float32", sample=LINES)
    return tmp_path / "out"


@pytest.mark.parametrize("name", sorted(FILES - {"README.md"}))
def test_a_missing_file_is_named(exported, name):
    (exported / name).unlink()
    with pytest.raises(InputError, match=rf"^{exported}: not a complete model for CTranslate2: it has no {name}"):
        load(exported)


def test_damaged_files_are_named(exported, tokenizer):
    whole = {name: (exported / name).read_bytes() for name in FILES}

    def refused(name: str, content: bytes, message: str) -> None:
        (exported / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"^{exported / name}: {message}") as caught:
            load(exported)
        assert "\n" not in str(caught.value)
        (exported / name).write_bytes(whole[name])

    refused("model.bin", whole["model.bin"][:5000], "cannot be used on cpu: ")
    refused("model.bin", b"", "cannot be used on cpu: ")
    refused("config.json", b"{", "not YAML")
    refused("config.json", b"[]", "not an export of relattn")
    refused("config.json", b"[7]", "must be a mapping")
    config = json.loads(whole["config.json"])
    ours = config["relattn"]
    refused("config.json", json.dumps({**config, "relattn": 3}).encode(), "not an export of relattn")
    refused("config.json", json.dumps({"add_source_eos": True}).encode(), "not an export of relattn")
    refused("config.json", json.dumps({"relattn": {**ours, "beam": 2}}).encode(), "unknown setting .?beam")
    refused("config.json", json.dumps({"relattn": {**ours, "max_length": "x"}}).encode(), ".*max_length")
    refused("shared_vocabulary.json", b"[", "not JSON")
    other = Tokenizer.train(["other words than those"] * 9, 290, seed=1)
    (exported / "tokenizer.model").write_bytes(other.model_bytes)
    with pytest.raises(InputError, match=rf"^{exported}: the tokenizer and the vocabulary"):
        load(exported)
    (exported / "tokenizer.model").write_bytes(whole["tokenizer.model"])
    refused("shared_vocabulary.json", b'["<s>", 3]', "must be a list of pieces")
    load(exported)


def test_limits_of_length_travel(exported, caplog):
    theirs = load(exported)
    long = " ".join(lines_of([40]))
    with pytest.raises(InputError, match=r"line 2 has \d+ pieces, but this model reads at most 39"):
        theirs.translate(["one", long])
    search = replace(theirs.search, max_length_ratio=9.0, max_length_extra=90)
    ((best,),) = theirs.n_best(["one apple and two pears"], TranslateOptions(search=search))
    assert len(best.tokens) <= 39


def test_devices_that_are_none(exported):
    for device in ("cuda", "cuda:1", "gpu", "cuda:x"):
        with pytest.raises(InputError, match=rf"^{exported / 'model.bin'}: cannot be used on {device}: "):
            load(exported, device=device)


def test_confidences_travel(make, tmp_path):
    parts = make({}, ends=2.0)
    bundle.calibrate(parts.path, Calibration(bias=2.0, slope=0.5))
    export(bundle.read_bundle(parts.path), tmp_path / "out", quantization="float32", sample=LINES)
    ours, theirs = bundle.read_bundle(parts.path).translator(), load(tmp_path / "out")
    assert theirs.calibration == Calibration(bias=2.0, slope=0.5)
    alike = 0
    options = TranslateOptions(search=theirs.search)
    for line, (mine,), (its,) in zip(LINES, ours.n_best(LINES, options), theirs.n_best(LINES), strict=True):
        closed = len(its.tokens) + 1 >= theirs.limit(len(parts.tokenizer.encode(line)))  # without its end there
        if mine.tokens == its.tokens and not closed:
            alike += 1
            assert its.confidence == pytest.approx(mine.confidence, abs=1e-4)
    assert alike


def test_what_an_export_does_not_support_is_refused(exported):
    translator = load(exported)
    search = replace(translator.search, early_stopping=False)
    for options, message in (
        (TranslateOptions(glossary=Glossary([(1, LINES[0].split()[0], "Katze")])), "a glossary"),
        (TranslateOptions(search=search), "a search without early stopping"),
        (TranslateOptions(align=True), "alignment"),
        (TranslateOptions(sampling=SamplingOptions()), "sampling"),
    ):
        with pytest.raises(InputError, match=f"an export for CTranslate2 does not support {message}"):
            translator.translate(LINES[:1], options)
    with pytest.raises(InputError, match="an export for CTranslate2 does not support prefixes"):
        translator.translate(LINES[:1], prefixes=["Katze"])


def test_without_the_package(make, exported, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    for work in (
        lambda: load(exported),
        lambda: export(make({}), tmp_path / "other", quantization="int8", sample=LINES),
    ):
        with pytest.raises(InputError, match=r'^ctranslate2 cannot be imported: pip install "relattn\[export\]": '):
            work()


def test_drawn_lines_come_from_the_vocabulary(tokenizer):
    def draw(count: int, seed: int = 1, max_length: int | None = None) -> list[str]:
        translator = Fake(tokenizer, {}, None, max_length)
        return check_lines(translator, count, seed)

    lines = draw(50)
    assert lines == draw(50)
    assert lines != draw(50, seed=2)
    assert max(len(tokenizer.encode(line)) for line in lines) > 40
    assert max(len(tokenizer.encode(line)) for line in draw(50, max_length=20)) < 20
    shares, (pieces, _) = tokenizer.frequencies(), tokenizer.vocabularies
    assert not shares.keys() & set(pieces[:4])
    drawn = {pieces[i] for line in lines for i in tokenizer.encode(line)}
    assert drawn <= shares.keys()
    assert len(drawn) > 0.9 * len(shares)
    assert not any(piece.startswith("<0x") for piece in shares)
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.1)


class Fake(Translator):
    """A translator whose translations, and the scores of all tokens, are given."""

    def __init__(self, tokenizer, texts: dict[str, str], score, max_length: int | None = None) -> None:
        super().__init__(tokenizer, SEARCH, max_length=max_length)
        self.texts, self.score = texts, score

    def search_batch(self, requests, search, options):
        texts = [self.texts[self.tokenizer.decode(request.src_ids)] for request in requests]
        return [[Hypothesis(self.tokenizer.encode(text), 0.0)] for text in texts]

    def log_probs(self, src_ids, tgt_ids):
        return [[self.score(self.tokenizer.decode(src), token) for token in [*ids, 2]]
                for src, ids in zip(src_ids, tgt_ids, strict=True)]  # fmt: skip

    def align_batch(self, src_ids, tgt_ids):
        raise NotImplementedError


def test_agreement_is_counted(tokenizer):
    a = {"one": "a", "two": "bb", "17": "ccc", "4": "dd", "and": "e"}
    b = {"one": "a", "two": "b", "17": "cccc", "4": "ee", "and": " ".join(lines_of([40]))}
    ours = Fake(tokenizer, a, lambda src, token: -1.0 if src != "17" else -4.0 + (token == 2))
    theirs = Fake(tokenizer, b, lambda src, token: -1.0 - 0.25 * (src == "two" and token == 2))
    search = replace(SEARCH, alpha=0.0, max_length_extra=30)
    lines = check_lines(ours, ["one", "", "two", "4", "and"])
    parity = Reference(ours, lines, search).compare(theirs.log_probs, theirs)
    assert (parity.lines, parity.same, parity.worst, parity.worst_line) == (4, 1, 0.25, 2)
    counts = [len(tokenizer.encode(a[line])) + 1 for line in ("one", "two", "4", "and")]
    assert parity.tokens == sum(counts)
    assert parity.mean == pytest.approx(0.25 / sum(counts))
    assert list(parity.others.values()) == [1, 1, 1]
    swapped = Fake(tokenizer, b, ours.score)
    others = Reference(swapped, ["two"], search).compare(ours.log_probs, ours).others
    assert others.keys().isdisjoint(parity.others)
    assert "1 of 4 translations" in str(parity)


def test_the_command_line(make, tmp_path, capsys):
    parts, out = make({}), tmp_path / "out"
    (tmp_path / "in.txt").write_text("\n".join(LINES), encoding="utf-8")
    arguments = ["export", "ctranslate2", str(parts.path), "--out", str(out)]
    assert cli.main([*arguments, "--check_lines", str(tmp_path / "in.txt"), "--check_count", "3"]) == 0
    assert "in 3 lines" in capsys.readouterr().out
    assert cli.main([*arguments, "--quantization", "int8", "--check_count", "4"]) == 0
    told = capsys.readouterr().out
    assert "in 4 lines" in told
    assert "int8: log-probabilities" in told
    (tmp_path / "ref.txt").write_text("\n".join(LINES), encoding="utf-8")
    files = ["--src", str(tmp_path / "in.txt"), "--ref", str(tmp_path / "ref.txt"), "--threads", "1"]
    assert cli.main(["evaluate", str(out), *files]) == 0
    assert "BLEU" in capsys.readouterr().out
    assert cli.main(["score", str(out), "--src", files[1], "--tgt", files[3]]) == 0
    assert len([float(line) for line in capsys.readouterr().out.splitlines()]) == len(LINES)
    for wrong, message in (
        (["translate", str(out), str(out)], f"{out}: an export cannot be part of an ensemble"),
        (["translate", str(out), "--precision", "bf16"], f"{out}: the precision of an export is fixed"),
        (["evaluate", str(out), *files, "--early_stopping=false"], "a search without early stopping"),
        (["analyze", "positions", str(out), *files, "--width", "3"], "requires a bundle, got an export"),
        (["evaluate", str(out), *files, "--threads", "0"], "threads"),
        (["export", "ctranslate2", str(parts.path), "--out", ""], "out must name a directory"),
        ([*arguments, "--check_count", "0"], "check_count must be at least 1"),
        (["export", "marian", str(parts.path), "--out", str(out)], "marian"),
        (["export", "ctranslate2", str(out), "--out", str(tmp_path / "x")], "not a complete bundle"),
    ):
        assert cli.main(wrong) == 2
        assert message in capsys.readouterr().err


def test_an_export_translates_where_there_is_no_pytorch(make, tmp_path):
    parts, out = make({}), tmp_path / "out"
    export(parts, out, quantization="float32", sample=LINES)
    expected = load(out).translate(LINES)
    command = [sys.executable, "-c", NO_PYTORCH, "translate", str(out)]
    run = subprocess.run(command, input="\n".join(LINES), capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("".join(f"{line}\n" for line in expected), "")


def test_a_package_for_argos_translate(make, tmp_path):
    parts = make({})
    told = [
        argos.export(parts, tmp_path / name, quantization="int8", sample=LINES) for name in ("a.argosmodel", "b.zip")
    ]
    assert told[0] == told[1]
    assert (tmp_path / "a.argosmodel").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.argosmodel") as package:
        package.extractall(tmp_path / "installed")
    (root,) = (tmp_path / "installed").iterdir()
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert files == {
        "metadata.json",
        "sentencepiece.model",
        "README.md",
        "model/model.bin",
        "model/config.json",
        "model/shared_vocabulary.json",
    }
    about = json.loads((root / "metadata.json").read_text(encoding="utf-8"))
    assert {name: about[name] for name in ("from_code", "from_name", "to_code", "to_name")} == {
        "from_code": "en",
        "from_name": "English",
        "to_code": "pt",
        "to_name": "Portuguese",
    }
    assert (root / "sentencepiece.model").read_bytes() == parts.tokenizer.model_bytes
    pieces, _ = parts.tokenizer.vocabularies
    src = [[pieces[i] for i in parts.tokenizer.encode(line)] for line in LINES]
    scored = ctranslate2.Translator(str(root / "model"), intra_threads=1).score_batch(src, src)
    ours = parts.translator().log_probs(*([parts.tokenizer.encode(line) for line in LINES] for _ in range(2)))
    assert correlation(*(list(chain.from_iterable(s)) for s in (ours, [its.log_probs for its in scored]))) > 0.9


def test_a_package_needs_languages_and_a_place(make, tmp_path):
    parts = make({})
    with pytest.raises(InputError, match=r"^klingon: "):
        argos.export(replace(parts, src_lang="klingon"), tmp_path / "a", quantization="int8", sample=LINES)
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match=f"^{tmp_path / 'b'}: must be a file"):
        argos.export(parts, tmp_path / "b", quantization="int8", sample=LINES)
    assert {path.name for path in tmp_path.iterdir()} == {"bundle", "b"}
