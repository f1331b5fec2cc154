"""Exports for CTranslate2 and Argos Translate, compared with the bundle."""

import json
import os
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import get_args

import ctranslate2
import numpy as np
import pytest
import sentencepiece
from relattn_mt import bundle
from relattn_mt.config import SCHEMES, SearchConfig
from relattn_mt.formats import argos, parity
from relattn_mt.formats.ctranslate2 import write as module
from relattn_mt.formats.ctranslate2.directory import Quantization
from relattn_mt.formats.ctranslate2.model_bin import read_model
from relattn_mt.formats.ctranslate2.write import ctranslate2_search, export
from relattn_mt.formats.exportable import ctranslate2_reasons
from relattn_mt.formats.parity import Reference
from relattn_mt.support.errors import InputError
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.translator import Translator

from tests.support.commands import assert_refused
from tests.support.covering import pairwise
from tests.support.engines import TextEngine
from tests.support.foreign_bundles import LINES, SEARCH, load_export, make_bundle, random_lines, run_import, tokenizer
from tests.support.schemes import config_of

FILES = {"model.bin", "config.json", "shared_vocabulary.json", "tokenizer.model", "README.md"}
GREEDY = replace(SEARCH, beam_size=1)


@pytest.fixture
def make(tmp_path) -> Callable[..., bundle.Bundle]:
    return lambda **options: make_bundle(tmp_path / "bundle", **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[bundle.Bundle, Path]:
    """A bundle that ends translations by itself, and its export. Read them, do not write to them."""
    path = tmp_path_factory.mktemp("made")
    search = replace(SEARCH, max_length_ratio=2.0, max_length_extra=20)
    parts = make_bundle(path / "bundle", ends=1.5, search=search)
    export(parts, path / "out", quantization="float32", sample=LINES)
    return parts, path / "out"


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> Path:
    """Export of a model that holds 40 pieces. Read it, do not write to it."""
    path = tmp_path_factory.mktemp("short")
    parts = make_bundle(path / "bundle", positions="learned", max_positions=40)
    export(parts, path / "out", quantization="float32", sample=LINES)
    return path / "out"


def is_valid(positions: str, tables: str | None, clips: tuple[int, int] | None, **_: object) -> bool:
    return (positions == "relative") == (tables is not None) == (clips is not None)


@pytest.mark.filterwarnings("ignore:(positions. none|clip. 0):UserWarning")
@pairwise(
    valid=is_valid,
    positions=[name for name in SCHEMES if not ctranslate2_reasons(config_of(name))],
    tables=[None, "both", "keys", "values"],
    clips=[None, (4, 1), (0, 2), (0, 0)],
    norm=["pre", "post", "rms"],
    activation=["relu", "gelu_tanh", "gelu_sigmoid", "swish"],
    shared=["all", "target", "none"],
    scaled=[True, False],
    bias=[False, True],
    feed_forward=["plain", "gated"],
    head_dim=[0, 6],
)
def test_export_agrees_with_the_bundle(
    make, tmp_path, positions, tables, clips, norm, activation, shared, scaled, bias, feed_forward, head_dim
):
    left, right = clips or (None, None)
    relative = {"relative_tables": tables, "clip": left, "clip_right": right}
    of_model = {"shared_embeddings": shared, "scaled_embeddings": scaled, "output_bias": bias, "norm_epsilon": 1e-3}
    of_model |= {"norm": norm, "activation": activation, "feed_forward": feed_forward, "head_dim": head_dim}
    parts = make(encoder_layers=2, positions=positions, **relative, **of_model)
    sample = random_lines([1, 5, 12])
    report = export(parts, tmp_path / "out", quantization="float32", sample=sample)
    assert {file.name for file in (tmp_path / "out").iterdir()} == FILES
    ours, theirs = parts.translator(), load_export(tmp_path / "out")
    assert (theirs.src_lang, theirs.tgt_lang, theirs.search) == (parts.src_lang, parts.tgt_lang, SEARCH)
    src, tgt = ([ours.tokenizer.encode(line) for line in lines] for lines in (sample, sample[::-1]))
    for mine, its in zip(ours.log_probs(src, tgt), theirs.log_probs(src, tgt), strict=True):
        assert its == pytest.approx(mine, abs=1e-4)
    greedy, banned = TranslateOptions(search=GREEDY), ours.tokenizer.special.banned  # CTranslate2 bans no tokens
    for (mine,), (its,) in zip(ours.n_best(sample, greedy), theirs.n_best(sample, greedy), strict=True):
        end = next((i for i, token in enumerate(its.tokens) if token in banned), None)
        assert mine.tokens[:end] == its.tokens[:end]
    assert report.parities["float32"].lines == 3
    assert (tmp_path / "out" / "README.md").read_text(encoding="utf-8") == f"# A model\n\n## Export\n\n{report}\n"


def correlation(some: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    """Return the correlation of scores. Without AVX512-VNNI the sums of int8 saturate, and random weights are the worst
    case, so no tolerance would hold. A model with a wrong weight has no correlation."""
    return statistics.correlation(*(list(chain.from_iterable(rows)) for rows in (some, others)))


def test_types_of_weights(make, tmp_path):
    parts = make()
    ours, src = parts.translator(), [tokenizer().encode(line) for line in LINES]
    exact = ours.log_probs(src, src)
    types = ctranslate2.get_supported_compute_types("cpu")
    for quantization in get_args(Quantization):
        if quantization == "int16" and "int16" not in types:
            with pytest.raises(InputError, match=r"int16 requires an Intel processor; .* in float32, int8"):
                export(parts, tmp_path / "out", quantization=quantization, sample=LINES[:2])
            continue
        report = export(parts, tmp_path / "out", quantization=quantization, sample=LINES[:2])
        used = ctranslate2.Translator(str(tmp_path / "out")).compute_type
        assert f"{quantization} was checked in CTranslate2's compute type {used}" in str(report)
        assert list(report.parities) == list(dict.fromkeys(("float32", quantization)))
        scores = load_export(tmp_path / "out").log_probs(src, src)
        worst = max(abs(a - b) for mine, its in zip(exact, scores, strict=True) for a, b in zip(mine, its, strict=True))
        assert (worst < 1e-4) == (quantization == "float32")
        assert correlation(exact, scores) > 0.9
        assert worst < 0.1 or quantization.startswith("int")
        sizes = {"float32": 4, "float16": 2, "bfloat16": 2, "int16": 2}
        weights = sum(weight.size for weight in parts.state.values()) * sizes.get(quantization, 1)
        assert weights < (tmp_path / "out" / "model.bin").stat().st_size < weights * 1.5 + 8000


def test_weights_in_int8_have_7_bits_unless_the_bundle_has_8(make, tmp_path, monkeypatch):
    """The largest sum of two products is then 255 · 63 · 2, which fits in 16 bits."""
    monkeypatch.setattr(parity, "MEAN_TOLERANCE", 9.0)  # CTranslate2's sums of 8 bits saturate without VNNI
    parts = make()
    bundle.quantize_bundle(parts, tmp_path / "quantized")
    of_7_bits = bundle.read_bundle(tmp_path / "quantized")
    doubled = {name: 2 * x if x.dtype == np.int8 else x for name, x in of_7_bits.state.items()}
    of_8_bits = replace(of_7_bits, state=doubled)
    for source, largest in ((parts, 63), (of_7_bits, 63), (of_8_bits, 127)):
        report = export(source, tmp_path / "out", quantization="int8", sample=LINES[:2])
        tensors = read_model(tmp_path / "out" / "model.bin").tensors
        quantized = [x for name, x in tensors.items() if f"{name}_scale" in tensors]
        assert len(quantized) > 8
        assert {int(np.abs(x).max()) for x in quantized} == {largest}
        assert ("saturate" in str(report)) == (largest == 127)


@pytest.mark.parametrize("quantization", ["int8", "bfloat16"])
def test_an_export_in_another_type_that_is_far_from_its_bundle_is_refused(make, tmp_path, monkeypatch, quantization):
    write = module._write

    def with_wrong_weights(out, bundle, state, search, weights, **options):
        if weights == quantization:
            state = {name: -each if name.startswith("encoder.0.") else each for name, each in state.items()}
        return write(out, bundle, state, search, weights, **options)

    monkeypatch.setattr(module, "_write", with_wrong_weights)
    with pytest.raises(InputError, match=f"not exported: {quantization}: .* on average: log-probabilities of"):
        export(make(), tmp_path / "out", quantization=quantization, sample=LINES)
    assert not (tmp_path / "out").exists()


def test_ctranslate2_alone_uses_an_export(made):
    """As other programs do: with pieces, without special tokens. Lines with more than 1024 pieces are not cut."""
    parts, out = made
    ours, alone = parts.translator(), ctranslate2.Translator(str(out), intra_threads=1)
    pieces, _ = ours.tokenizer.vocabularies
    src, tgt = ours.tokenizer.encode(LINES[0]), ours.tokenizer.encode(LINES[1])
    (scored,) = alone.score_batch([[pieces[i] for i in src]], [[pieces[i] for i in tgt]])
    assert scored.log_probs == pytest.approx(ours.log_probs([src], [tgt])[0], abs=1e-4)
    assert scored.tokens == [*(pieces[i] for i in tgt), "</s>"]
    long, theirs = ours.tokenizer.encode(" ".join(random_lines([700]))), load_export(out)
    assert len(long) > 1100
    options = TranslateOptions(search=replace(GREEDY, alpha=0.0, max_length_ratio=0.0, max_length_extra=6))
    (((its,),), expected) = theirs.n_best([ours.tokenizer.decode(long)], options), ours.log_probs([long], [tgt])[0]
    assert theirs.log_probs([long], [tgt])[0] == pytest.approx(expected, abs=1e-4)
    *of_pieces, end = ours.log_probs([long], [its.tokens])[0]
    is_cut = len(its.tokens) == 5  # at the length limit, CTranslate2 leaves out the end of sentence
    assert its.score == pytest.approx(sum(of_pieces) + (0 if is_cut else end), rel=1e-4)


def test_an_export_normalizes_text(made):
    """SentencePiece does, also without this toolkit, as users of CTranslate2 and Argos Translate run it."""
    parts, out = made
    theirs = load_export(out)
    model = sentencepiece.SentencePieceProcessor(model_file=str(out / "tokenizer.model"))
    clean = "17 Äpfel, 4 Birnen"
    for text in ("\ufeff17 Äpfel, 4 Birnen", " 17\xa0A\u0308pfel,\t4  Bir\u200bnen ", "１７ Äpfel, 4 Bir\xadnen\r"):
        assert model.encode(text) == parts.tokenizer.encode(clean)
        assert theirs.translate([text]) == theirs.translate([clean])
        assert parts.translator().translate([text]) == parts.translator().translate([clean])


@pytest.mark.parametrize(
    ("penalty", "alpha", "beam_size"), [("average", 0.7, 2), ("average", 0.0, 3), ("none", 0.7, 5)]
)
def test_early_stopping_finds_what_ctranslate2_finds(made, penalty, alpha, beam_size):
    """All hypotheses of a line with their scores, unless one is cut at the length limit, where the programs differ."""
    parts, out = made
    ours, theirs = parts.translator(), load_export(out)
    search = replace(theirs.search, length_penalty=penalty, alpha=alpha, beam_size=beam_size)
    options, lines = TranslateOptions(n_best=beam_size, search=search), random_lines([1, 2, 3, 5, 8, 9, 12, 14] * 2)
    compared = 0
    for line, mine, its in zip(lines, ours.n_best(lines, options), theirs.n_best(lines, options), strict=True):
        src = parts.tokenizer.encode(line)
        if max(len(h.tokens) for h in its) + 1 < ours.preparation.limit(len(src)):
            assert [h.tokens for h in mine] == [h.tokens for h in its]
            assert [h.score for h in its] == pytest.approx([h.score for h in mine], rel=1e-4)
            assert [h.confidence for h in its] == pytest.approx([h.confidence for h in mine], abs=1e-4)
            for h, log_probs in zip(its, ours.log_probs([src] * len(its), [h.tokens for h in its]), strict=True):
                exponent = 0.0 if penalty == "none" else alpha
                assert h.score == pytest.approx(sum(log_probs) / len(log_probs) ** exponent, rel=1e-4)
            compared += 1
    assert compared > 6


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize(("size", "penalty"), [(2, 1.0), (3, 1.1), (4, 1.3), (0, 1.3)])
def test_rules_against_repetition_are_those_of_ctranslate2(made, size, penalty, beam_size):
    parts, out = made
    ours, theirs, lines = parts.translator(), load_export(out), random_lines([2, 3, 5, 8, 9, 12, 14] * 4)
    search = replace(theirs.search, beam_size=beam_size, max_length_ratio=4.0, max_length_extra=20)
    options = TranslateOptions(search=replace(search, no_repeat_ngram=size, repetition_penalty=penalty))
    pairs = list(zip(lines, ours.n_best(lines, options), theirs.n_best(lines, options), strict=True))
    for line, (mine,), (its,) in pairs:
        if len(its.tokens) + 1 < ours.preparation.limit(len(parts.tokenizer.encode(line)), options.search):
            assert mine.tokens == its.tokens
            assert its.score == pytest.approx(mine.score, rel=1e-4)
    free = [best.tokens for best, *_ in ours.n_best(lines, TranslateOptions(search=search))]
    assert [mine.tokens for _, (mine,), _ in pairs] != free


def test_a_translation_does_not_depend_on_other_lines(made):
    parts, out = made
    theirs, sample = load_export(out), random_lines([1, 30, 2, 9, 1])
    options = TranslateOptions(n_best=2, search=replace(theirs.search, max_length_ratio=1.0, max_length_extra=2))
    together = [[h.tokens for h in found] for found in theirs.n_best(sample, options)]
    assert together == [[h.tokens for h in theirs.n_best([line], options)[0]] for line in sample]
    for line, found in zip(sample, together, strict=True):
        assert max(map(len, found)) < theirs.preparation.limit(len(parts.tokenizer.encode(line)), options.search)
    assert len(theirs.translate(["", sample[0], " "])) == 3


def test_search_settings_of_an_export():
    gnmt, average = (SearchConfig(length_penalty=name, alpha=0.6) for name in ("gnmt", "average"))
    for search in (average, replace(average, length_penalty="none")):
        assert ctranslate2_search(search, 20) == replace(search, early_stopping=True)
    found = ctranslate2_search(gnmt, 20)
    assert (found.length_penalty, found.alpha, found.early_stopping) == ("average", 0.48, True)
    near = [((5 + n) / 6) ** 0.6 for n in (19, 21)]
    assert near[1] / near[0] == pytest.approx(21**0.48 / 19**0.48, rel=1e-3)  # both grow alike near a length of 20


def test_all_unsupported_features_are_named(make, tmp_path):
    parts = make(positions="relative+sinusoidal", tables_per_head=True, beyond="zero")
    with pytest.raises(InputError) as refused:
        export(parts, tmp_path / "out", quantization="float32", sample=LINES)
    for fact in (str(parts.path), "relative+sinusoidal", "tables_per_head", "beyond"):
        assert fact in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_exports_that_are_refused_change_nothing(make, tmp_path, monkeypatch):
    parts, out = make(), tmp_path / "out"
    export(parts, out, quantization="float32", sample=LINES)
    before, state = (out / "model.bin").read_bytes(), module._state
    monkeypatch.setattr(module, "_state", lambda bundle: {name: each[::-1] for name, each in state(bundle).items()})
    with pytest.raises(InputError, match=f"{out}: not exported: float32: log-probabilities must differ"):
        export(parts, out, quantization="float32", sample=LINES)
    with pytest.raises(InputError, match="at least one line"):
        export(parts, tmp_path / "other", quantization="float32", sample=["", "  "])
    with pytest.raises(InputError, match="klingon"):
        argos.export(replace(parts, src_lang="klingon"), tmp_path / "a", quantization="int8", sample=LINES)
    (out / "thesis.txt").write_text("all of it")
    for path, fact in ((out, "Is a directory"), (out / "thesis.txt", "not a package")):
        with pytest.raises(InputError, match=f"{path}: .*{fact}"):
            argos.export(parts, path, quantization="int8", sample=LINES)
    with pytest.raises(InputError, match=r"out: not replaced, .*thesis\.txt"):
        export(parts, out, quantization="float32", sample=LINES)
    assert (out / "model.bin").read_bytes() == before
    assert (out / "thesis.txt").read_text() == "all of it"
    assert {file.name for file in tmp_path.iterdir()} == {"bundle", "out"}
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(InputError, match=r"toolkit\[export\]"):
        export(parts, tmp_path / "x", quantization="int8", sample=LINES)


def test_requests_that_are_refused(short):
    theirs = load_export(short)
    search = replace(theirs.search, max_length_ratio=9.0, max_length_extra=90)
    ((best,),) = theirs.n_best(["one apple and two pears"], TranslateOptions(search=search))
    assert len(best.tokens) <= 39
    for fact, line, options in (
        ("line 1 has .* at most 39", " ".join(random_lines([40])), TranslateOptions()),
        ("early stopping", LINES[0], TranslateOptions(search=replace(theirs.search, early_stopping=False))),
        ("alignments", LINES[0], TranslateOptions(align=True)),
    ):
        with pytest.raises(InputError, match=fact):
            theirs.translate([line], options)


class Scored(TextEngine):
    """Engine with given translations, and given scores of all tokens."""

    def __init__(self, texts: dict[str, str], score_of) -> None:
        super().__init__(tokenizer(), texts.__getitem__)
        self.score_of = score_of

    def score(self, sources, targets):
        texts = [self.tokenizer.decode(src[:-1]) for src in sources]
        return [[self.score_of(src, token) for token in ids[1:]] for src, ids in zip(texts, targets, strict=True)]


def scored(texts: dict[str, str], score_of) -> Translator:
    return Translator(Scored(texts, score_of), tokenizer(), SEARCH)


def test_the_largest_and_the_mean_difference_of_scores():
    translations = {"one": "a", "two": "bb", "4": "dd"}
    ours = scored(translations, lambda src, token: -1.0)
    theirs = scored(translations, lambda src, token: -1.0 - 0.25 * (src == "two" and token == 2))
    parity = Reference(ours, ["one", "two", "4"], SEARCH).compare(theirs.log_probs)
    assert (parity.lines, parity.worst, parity.worst_line) == (3, 0.25, 2)
    assert parity.tokens == sum(len(tokenizer().encode(text)) + 1 for text in translations.values())
    assert parity.mean == pytest.approx(0.25 / parity.tokens)
    nan = replace(parity, worst=float("nan"))
    with pytest.raises(InputError, match="refused: "):
        nan.require_close("refused")


def test_commands(relattn, make, tmp_path):
    parts, out = make(), tmp_path / "out"
    (tmp_path / "in.txt").write_text("\n".join(LINES), encoding="utf-8")
    arguments, text = ["export", "ctranslate2", parts.path, "--out", out], tmp_path / "in.txt"
    assert "in 3 lines" in relattn(*arguments, "--check_lines", text, "--check_count", 3).out
    printed = relattn(*arguments, "--quantization", "int8", "--check_count", 4).out
    assert "in 4 lines" in printed
    assert "int8: " in printed
    files = ["--src", text, "--ref", text, "--threads", "1"]
    for wrong, fact in (
        *(
            ([*command, out, *more], "relattn-mt import")
            for command, more in ((["translate"], []), (["evaluate"], files), (["serve"], ["--port=0"]))
        ),
        ([*arguments, "--check_count", "0"], "check_count"),
        (["export", "marian", parts.path, "--out", tmp_path / "x", "--quantization", "int16"], "got int16"),
        (["export", "ctranslate2", out, "--out", tmp_path / "x"], "not a complete bundle"),
    ):
        assert_refused(relattn(*wrong), fact)


def test_packages_for_argos_translate(make, tmp_path):
    """Equal models give equal packages. An older package is replaced, a link and a pipe are written through."""
    parts, names = make(), ("a.argosmodel", "b.zip", "pipe")
    (tmp_path / "link").symlink_to("b.zip")
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen("exec cat pipe > read", shell=True, cwd=tmp_path) as reader:
        try:
            for name in (*names, "a.argosmodel", "link"):
                argos.export(parts, tmp_path / name, quantization="int8", sample=LINES[:2])
            assert reader.wait(30) == 0
        finally:
            reader.kill()  # it waits for ever if an export fails
    assert len({(tmp_path / name).read_bytes() for name in ("a.argosmodel", "b.zip", "read")}) == 1
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "pipe").is_fifo()
    with zipfile.ZipFile(tmp_path / names[0]) as package:
        package.extractall(tmp_path / "installed")
    (root,) = (tmp_path / "installed").iterdir()
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    model = {f"model/{name}" for name in ("model.bin", "config.json", "shared_vocabulary.json")}
    assert files == {"metadata.json", "sentencepiece.model", "README.md", *model}
    about = json.loads((root / "metadata.json").read_text(encoding="utf-8"))
    languages = {"from_code": "en", "from_name": "English", "to_code": "pt", "to_name": "Portuguese"}
    assert about.items() >= languages.items()


def test_pairs_of_languages(relattn, tmp_path):
    """An export has the pairs of its bundle, and so has a bundle imported from it; a package has one pair."""
    pairs = (("en", "de"), ("de", "en"), ("en", "fr"))
    parts = make_bundle(tmp_path / "bundle", languages=("en", "de"), pairs=pairs, positions="learned", max_positions=60)
    export(parts, tmp_path / "export", quantization="float32", sample=LINES)
    argos.export(parts, tmp_path / "x.argosmodel", quantization="float32", sample=LINES)
    theirs = load_export(tmp_path / "export")
    search = TranslateOptions(search=theirs.search)
    for path in (tmp_path / "export", tmp_path / "x.argosmodel"):
        run_import(path, tmp_path / f"again-{path.name}")
    again = bundle.read_bundle(tmp_path / "again-export")
    assert theirs.pairs == parts.translator().pairs == again.translator().pairs == [*pairs]
    for pair in pairs:
        ours = parts.translator().with_languages(*pair)
        expected = [best.tokens for (best,) in ours.n_best(LINES, search)]
        for other in (theirs, again.translator()):
            directed = other.with_languages(*pair)
            assert [best.tokens for (best,) in directed.n_best(LINES, search)] == expected
            ids = [ours.tokenizer.encode(line) for line in LINES]
            for one, two in zip(directed.log_probs(ids, ids), ours.log_probs(ids, ids), strict=True):
                assert one == pytest.approx(two, abs=1e-4)
    packaged = bundle.read_bundle(tmp_path / "again-x.argosmodel").translator()
    assert packaged.pairs == [("en", "de")]
    ours = [best.tokens for (best,) in parts.translator().n_best(LINES, search)]
    assert [best.tokens for (best,) in packaged.n_best(LINES, search)] == ours
    for program in ("argos", "ctranslate2"):
        flags = ["--out", tmp_path / f"back-{program}", "--src_lang", "de", "--check_count", 3]
        assert relattn("export", program, tmp_path / "bundle", *flags).code == 0
        run_import(tmp_path / f"back-{program}", tmp_path / f"again-back-{program}")
        back = bundle.read_bundle(tmp_path / f"again-back-{program}")
        assert (back.src_lang, back.tgt_lang) == ("de", "en")
    assert_refused(
        relattn("export", "argos", tmp_path / "bundle", "--out", tmp_path / "x", "--tgt_lang", "it"), "tgt_lang"
    )
    config = json.loads((tmp_path / "export" / "config.json").read_text())
    config["relattn"]["pairs"] = ["en"]
    (tmp_path / "export" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="each of pairs must be two languages, got 'en'"):
        load_export(tmp_path / "export")
