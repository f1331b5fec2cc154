"""Models in Marian's own files: weights, translations of Bergamot, options, and damaged files."""

import gzip
import json
import shutil
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from relattn_mt.bundle import Bundle, quantize_bundle, read_bundle
from relattn_mt.config import ModelConfig
from relattn_mt.formats.ctranslate2 import write as ctranslate2
from relattn_mt.formats.import_model import read
from relattn_mt.formats.marian import _read
from relattn_mt.formats.marian_export import export
from relattn_mt.model.transformer import Transformer
from relattn_mt.model.weights import arrays_of
from relattn_mt.support.errors import InputError
from relattn_mt.text.aligner import Aligner
from relattn_mt.tokens.tokenizer import pieces_of, processor
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.weights import SCALE

from tests.support.firefox_models import (
    FLOAT32,
    as_bin,
    random_model,
    train_vocabulary,
    write_bin,
    write_npz,
    write_shortlist,
)
from tests.support.foreign_bundles import FIXTURES, LINES, SEARCH, bpe_pieces, make_bundle, run_import, tokenizer
from tests.support.loopback import files_no_larger_than

PIECES = 45  # of the vocabulary
SELF_ATTENTION = {"transformer_decoder_autoreg": "self-attention", "transformer_ffn_activation": "gelu"}
NORMED = {"transformer_postprocess_emb": "dn"}
TIED = {"tied_embeddings_all": False, "tied_embeddings": True}
TWO = {"two": True, "shortlist": {"first": 4}}
CUT = TranslateOptions(copy=False, keep_literals=False)


def directory(
    path: Path,
    *,
    int8: bool = False,
    npz: bool = False,
    shortlist: dict[str, Any] | None = None,
    two: bool = False,
    **options: Any,
) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a directory as Firefox has it, perhaps with two vocabularies, and return it with the weights."""
    path.mkdir()
    if two:
        own = {"srcvocab": [f"{line} {i}" for line in LINES for i in range(10)], "trgvocab": LINES * 10}
        files = [train_vocabulary(path / f"{name}.ende.spm", lines, 40) for name, lines in own.items()]
        sizes = [processor(file.read_bytes()).get_piece_size() for file in files]
        options |= {"vocab": sizes[0], "target_vocab": sizes[1], **TIED}
        shortlist = shortlist and {"vocab": sizes[1], "offsets": sizes[0]}
    tensors, options = random_model(options.pop("vocab", PIECES), **options)
    if npz:
        write_npz(path / "model.npz", tensors, options)
    else:
        write_bin(path / "model.ende.intgemm.alphas.bin", tensors, options, int8=int8)
    if not two:
        shutil.copy(FIXTURES / "sentencepiece.model", path / "vocab.ende.spm")
    if shortlist is not None:
        write_shortlist(path / "lex.50.50.ende.s2t.bin", **{"vocab": PIECES, **shortlist})
    return path, tensors


# What Bergamot 0.4.5 translates LINES to, with beam 1.
BERGAMOT: dict[str, tuple[dict[str, Any], list[str]]] = {
    "ssru": (
        {"seed": 23},
        ["ssststststssssssssssssssssstssss", "ssssssssssssssssssssssssssssss", "ttt,,,ststsststststststststs",
         "stt,ststststssssstsssststsstst"],
    ),
    "self-attention": (
        {"seed": 25, **SELF_ATTENTION, **TIED},
        ["e7tttt7ttttt7t7tt sit7ttt7t7t7t7t7t", "h7h7h7h7h7h7h7h7hhhhhhhhhhh7h7", "777777777777777777777777777777",
         "hhhhhhhhhhhhhhhhhhhhhhhhhhhhhh"],
    ),
    "normed embeddings": (
        {"seed": 23, **NORMED},
        ["apple " * 30, "ppppppppppppfelAAmpppppppp", "p" * 30,
         "ei apple apple applemmm apple apple apple apple apple apple appleei appleei apple apple applemei app"],
    ),
    "two vocabularies, a shortlist and narrow heads": (
        {"seed": 5, "dim": 48, "inner": 64, "layers": (2, 2), "transformer_heads": 8, **TWO},
        ["4ff4fff4f4fff4t14f4f4444444444444444", "Birnen" + " Birnen" * 41, "f" * 26, "eeeeee4fff44444opffff4of4fff"],
    ),
    "shortlist": (
        {"seed": 22, "shortlist": {}},
        ["on on on on onec on on on onec on on on onecei on on on onec on on onecc",
         "on onenenenepfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfeleeepfelpfelpfelpfel",
         "enenenenpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfel",
         "eeeeeepfelpfelpfelpfelpfelpfelpfelpfelpfelpfelpfelepfeleee"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BERGAMOT)
def test_translations_are_those_of_bergamot(tmp_path, name):
    options, expected = BERGAMOT[name]
    path, _ = directory(tmp_path / "model", **options)
    parts = run_import(path, tmp_path / "bundle", src_lang="", tgt_lang="")
    assert (parts.src_lang, parts.tgt_lang) == ("en", "de")
    texts = parts.translator().translate(LINES, CUT)
    for mine, its in zip(texts, expected, strict=True):
        length = min(len(mine), len(its))  # Bergamot's limit is that of the longest line of a batch
        assert length > 10
        assert mine[:length] == its[:length]
    if name.startswith("two"):  # in batches of one line
        assert texts == expected


@pytest.mark.parametrize("options", [{}, {**SELF_ATTENTION, **TIED}, {"tied_embeddings_all": False, **NORMED}])
def test_an_export_has_the_weights_of_the_file(tmp_path, options):
    path, tensors = directory(tmp_path / "model", shortlist={}, **options)
    parts = run_import(path, tmp_path / "bundle", src_lang="", tgt_lang="")
    report = export(parts, tmp_path / "export", int8=False, sample=LINES)
    assert report.parities["float32"].lines == len(LINES)
    written = _read(tmp_path / "export" / "model.bin")
    unknown = pieces_of(processor((path / "vocab.ende.spm").read_bytes())).index("<unk>")
    tensors["decoder_ff_logit_out_b"][0, unknown] = -1e4
    theirs = _read(write_npz(tmp_path / "expected.npz", tensors, {}))
    assert written.tensors.keys() == theirs.tensors.keys()
    assert all(np.array_equal(written.tensors[name], theirs.tensors[name]) for name in theirs.tensors)
    lists = [next(folder.glob("lex*")).read_bytes() for folder in (path, tmp_path / "export")]
    assert lists[0] == lists[1]
    again = run_import(tmp_path / "export", tmp_path / "again", src_lang="", tgt_lang="")
    assert (again.src_lang, again.tgt_lang) == ("en", "de")
    export(parts, tmp_path / "export", int8=False, sample=LINES)  # replaces it
    (tmp_path / "export" / "config.intgemm8bitalpha.yml").unlink()
    with pytest.raises(InputError, match="export: not replaced, because it contains more than a Marian export"):
        export(parts, tmp_path / "export", int8=False, sample=LINES)
    (tmp_path / "other" / "model.bin").mkdir(parents=True)
    with pytest.raises(InputError, match=r"other: not replaced, .*model\.bin"):
        export(parts, tmp_path / "other", int8=False, sample=LINES)


def test_an_export_in_int8(tmp_path):
    """Integers and multipliers of weights stay, and those of activations follow from the largest ones."""
    path, _ = directory(tmp_path / "model", int8=True, dim=64, inner=64, layers=(1, 1), vocab=40)
    vocabulary = train_vocabulary(tmp_path / "vocab.spm", [f"{line} {i}" for line in LINES for i in range(10)], 40)
    vocabulary.replace(path / "vocab.ende.spm")
    parts = run_import(path, tmp_path / "bundle", src_lang="", tgt_lang="")
    export(parts, tmp_path / "export", int8=True, sample=LINES)
    written, theirs = _read(tmp_path / "export" / "model.bin"), _read(next(path.glob("model*")))
    for name, scale in theirs.scales.items():
        assert np.array_equal(written.scales[name], scale)
        assert np.array_equal(written.tensors[name], theirs.tensors[name])
        activations = 127 / written.tensors[f"{name}_QuantMultA"]
        assert 0.5 < activations < 60
    assert written.tensors["none_QuantMultA"] == written.tensors["Wemb_QuantMultA"]  # with and without a shortlist
    file = tmp_path / "export" / "model.bin"
    content, own = file.read_bytes(), read(tmp_path / "export", None, None).weights()
    for name in (b"none", b"Wemb"):  # a model with one of the two
        file.write_bytes(content.replace(name + b"_QuantMultA", b"ffn1_QuantMultA"))
        assert all(np.array_equal(x, own[name]) for name, x in read(file.parent, None, None).weights().items())
    query, key, value = (written.tensors[f"encoder_l1_self_W{part}_QuantMultA"] for part in "qkv")
    assert query == key == value  # of the same input


def test_a_trained_student(tmp_path):
    """Training changes neither the positions nor the embedding of the first target token."""
    settings = {"positions": "marian", "decoder_mixer": "ssru", "norm": "post", "norm_epsilon": 1e-6}
    config = ModelConfig(**settings, output_bias=True, dim=64, heads=2, feed_forward_dim=16, encoder_layers=1)  # type: ignore[arg-type]
    torch.manual_seed(1)
    pieces = tokenizer()
    model = Transformer(config, pieces.vocab_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        ids = torch.randint(0, pieces.vocab_size, (2, 5))
        model(ids, torch.tensor([5, 4]), ids.flip(1)).square().mean().backward()
        optimizer.step()
    parts = Bundle(tmp_path / "bundle", config, SEARCH, "en", "de", arrays_of(model), pieces)
    parts.save()
    report = export(parts, tmp_path / "export", int8=False, sample=LINES)
    assert report.parities["float32"].lines == len(LINES)
    assert report.notes == ["max_length_extra of the bundle: 5; of the export: 2"]
    with pytest.raises(InputError, match=r"does not support norm_epsilon 0\.1"):
        export(replace(parts, model=replace(config, norm_epsilon=0.1)), tmp_path / "x", int8=False, sample=LINES)
    parts.state["embedding"][pieces.special.bos] += 1
    with pytest.raises(InputError, match=r"an embedding of the first target token \(train with"):
        export(parts, tmp_path / "export", int8=False, sample=LINES)


@pytest.mark.parametrize("two", [False, True])
def test_a_shortlist_from_text(tmp_path, two):
    """It has the 50 likeliest pieces of those that are twice in the same pair, by the aligner's probabilities."""
    draw = np.random.default_rng(1)
    words = ["".join(draw.choice(list("abcdefgh"), 4)) for _ in range(90)]
    sources = [[words[i] for i in draw.integers(0, 90, 6)] for _ in range(500)]
    targets = [[word[::-1] for word in reversed(line)] for line in sources]
    texts = [[" ".join(line) for line in side] for side in (sources, targets)]
    model = tmp_path / "model"
    model.mkdir()
    sides = texts if two else [[*texts[0], *texts[1]]]
    names = ["srcvocab", "trgvocab"] if two else ["vocab"]
    files = [train_vocabulary(model / f"{name}.ende.spm", own, 200) for name, own in zip(names, sides, strict=True)]
    own = [processor(file.read_bytes()) for file in (files[0], files[-1])]
    sizes = [each.get_piece_size() for each in own]
    tensors, options = random_model(sizes[0], target_vocab=sizes[1], **(TIED if two else {}))
    write_bin(model / "model.ende.intgemm.alphas.bin", tensors, options)
    paths = []
    for name, lines in zip(("en", "de"), texts, strict=True):
        paths.append(tmp_path / name)
        paths[-1].write_text("".join(f"{line}\n" for line in lines))
    parts = run_import(model, tmp_path / "bundle", src_lang="", tgt_lang="")
    export(parts, tmp_path / "export", int8=False, sample=2, text=(paths[0], paths[1]))
    assert run_import(tmp_path / "export", tmp_path / "again", src_lang="", tgt_lang="").shortlist is not None

    pairs = [(own[0].encode(src), own[1].encode(tgt)) for src, tgt in zip(*texts, strict=True)]
    counts = Counter(key for src, tgt in pairs for key in product(set(src), set(tgt)))
    sides = [[np.array(ids) for ids in side] for side in zip(*pairs, strict=True)]
    aligner = Aligner(*sides, parts.tokenizer.vocab_sizes)
    probabilities = dict(zip(aligner.keys.tolist(), aligner.tables[0].tolist(), strict=True))
    likely: dict[int, dict[int, float]] = {}
    for (s, t), count in counts.items():
        if count > 1:
            likely.setdefault(s, {})[t] = probabilities[s << 32 | t]
    content = (tmp_path / "export" / "lex.s2t.bin").read_bytes()
    offsets = np.frombuffer(content, "<u8", sizes[0] + 1, 48)
    ids = np.frombuffer(content, "<u4", offset=48 + 8 * len(offsets))
    is_cut = False
    for s, (begin, end) in enumerate(pairwise(offsets.tolist())):
        row, chosen = likely.get(s, {}), ids[begin:end].tolist()
        assert sorted({*chosen}) == chosen
        assert len(chosen) == min(50, len(row))
        rest = [row[t] for t in row.keys() - {*chosen}]
        is_cut = is_cut or bool(rest)
        assert min((row[t] for t in chosen), default=1.0) >= max(rest, default=0.0) - 1e-12
    assert is_cut
    paths[0].write_text("one two\n")
    paths[1].write_text("one two\n")
    with pytest.raises(InputError, match="a shortlist requires more text"):
        export(parts, tmp_path / "other", int8=False, sample=2, text=(paths[0], paths[1]))


def test_a_damaged_shortlist_in_a_bundle(tmp_path):
    path, _ = directory(tmp_path / "model", shortlist={})
    assert run_import(path, tmp_path / "bundle", src_lang="", tgt_lang="").shortlist is not None
    file = tmp_path / "bundle" / "shortlist.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-12] + bytes([content[-12] ^ 1]) + content[-11:])
    with pytest.raises(InputError, match=r"shortlist\.bin: the checksum of the shortlist is wrong"):
        read_bundle(tmp_path / "bundle")


@pytest.mark.parametrize("options", [{}, TWO])
def test_an_import_is_trained_and_exported_again(tmp_path, options):
    """Training keeps Marian's sinusoids, and the first target token without an embedding."""
    path, _ = directory(tmp_path / "model", **options)
    parts = run_import(path, tmp_path / "bundle", src_lang="", tgt_lang="")
    model, special = parts.make_model(), parts.tokenizer.special
    src = torch.tensor([[*parts.tokenizer.encode(LINES[0]), *special.src_end]])
    tgt = torch.tensor([[special.bos, *parts.tokenizer.encode_target(LINES[1])]])
    model(src, torch.tensor([src.shape[1]]), tgt).square().mean().backward()
    torch.optim.Adam(model.parameters(), 1e-3).step()
    trained = replace(parts, state=arrays_of(model))
    assert not np.array_equal(trained.state["embedding"], parts.state["embedding"])
    report = export(trained, tmp_path / "export", int8=False, sample=LINES)
    assert report.parities["float32"].lines == len(LINES)


def test_exports_of_a_model_with_ssru(tmp_path):
    """The message of another format names the one that has it."""
    path, _ = directory(tmp_path / "model")
    parts = run_import(path, tmp_path / "bundle", src_lang="", tgt_lang="")
    with pytest.raises(
        InputError, match=r"CTranslate2 does not support decoder_mixer ssru; .* exported to marian and web$"
    ):
        ctranslate2.export(parts, tmp_path / "out", quantization="float32", sample=LINES)


def test_models_that_marian_does_not_represent(tmp_path):
    relative = make_bundle(tmp_path / "relative")
    with pytest.raises(InputError, match=r"relative positions .*; an embedding of the first .*; norm pre") as caught:
        export(relative, tmp_path / "export", int8=False, sample=LINES)
    assert "\n" not in str(caught.value)
    path, _ = directory(tmp_path / "model")
    parts = run_import(path, tmp_path / "bundle", src_lang="", tgt_lang="")
    with pytest.raises(InputError, match=r"\(16, 24\), which must be multiples of 64; int8 with 45 target pieces"):
        export(parts, tmp_path / "export", int8=True, sample=LINES)
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize(("int8", "narrow", "beam"), [(False, False, 1), (True, False, 4), (True, True, 1)])
def test_a_shortlist_excludes_other_pieces(tmp_path, int8, narrow, beam):
    """A line has the translation and the score of a model with a very low bias of the pieces that its list lacks."""
    path, _ = directory(tmp_path / "model", int8=int8, shortlist={}, seed=22)
    parts = run_import(path, tmp_path / "bundle", src_lang="", tgt_lang="")
    if narrow:
        quantize_bundle(parts, tmp_path / "7 bits")
        parts = read_bundle(tmp_path / "7 bits")
    options = replace(CUT, search=replace(parts.search, beam_size=beam))
    found, special, sizes = parts.translator().n_best(LINES, options), parts.tokenizer.special, set()
    for line, (best,) in zip(LINES, found, strict=True):
        source = [*parts.tokenizer.encode(line), *special.src_end]
        assert parts.shortlist is not None
        allowed = parts.shortlist.pieces(source, [special.eos], special.banned)
        bias = np.full(PIECES + 1, -1e4, np.float32)
        bias[allowed] = parts.state["output_bias"][allowed]
        other = replace(parts, shortlist=None, state={**parts.state, "output_bias": bias})
        ((expected,),) = other.translator().n_best([line], options)
        assert (best.text, best.score) == (expected.text, pytest.approx(expected.score, abs=1e-5))
        sizes.add(len(allowed))
    assert len(sizes) > 1
    assert max(sizes) < PIECES


@pytest.mark.parametrize(
    "options", [{}, SELF_ATTENTION, TIED, {"tied_embeddings_all": False, "tied_embeddings_src": True}]
)
def test_bin_and_npz_hold_the_same_model(tmp_path, options):
    options = {**options, "guided_alignment": "text"}
    models = [read(directory(tmp_path / str(npz), npz=npz, **options)[0], None, None) for npz in (False, True)]
    one, other = (model.weights() for model in models)
    assert models[0].config == models[1].config
    assert all(np.array_equal(one[name], other[name]) for name in one.keys() | other.keys())


def test_int8_keeps_the_integers(tmp_path):
    path, tensors = directory(tmp_path / "model", int8=True)
    parts = run_import(path, tmp_path / "bundle", src_lang="", tgt_lang="")
    state = parts.state
    quantize_bundle(parts, tmp_path / "7 bits")
    narrow = read_bundle(tmp_path / "7 bits")
    assert np.abs(narrow.state["embedding"]).max() == 63
    with pytest.raises(InputError, match=r"quantized already$"):
        quantize_bundle(narrow, tmp_path / "again")
    for ours, theirs in (("embedding", "Wemb"), ("decoder.0.self_attention.forget.weight", "decoder_l1_rnn_Wf")):
        weight = tensors[theirs] if theirs == "Wemb" else tensors[theirs].T
        multiplier = np.float32(127 / np.abs(weight).max())
        rows = len(weight)  # then comes the row of zeros that starts the decoder
        assert np.array_equal(state[ours][:rows], np.rint(weight * multiplier))
        assert not state[ours][rows:].any()
        assert state[f"{ours}{SCALE}"][:rows] == pytest.approx(1 / multiplier)


def test_files_that_settings_name(tmp_path):
    """Two vocabularies, a search, languages of Firefox and of translateLocally, and a shortlist."""
    path, _ = directory(tmp_path / "model", **TIED)
    for side in ("srcvocab", "trgvocab"):
        shutil.copy(path / "vocab.ende.spm", path / f"{side}.ende.spm")
    (path / "vocab.ende.spm").unlink()
    (path / "lex.50.50.ende.s2t.bin").write_bytes(b"")
    shutil.copy(path / "model.ende.intgemm.alphas.bin", path / "other.bin")
    names = "models: [dir/other.bin]\nvocabs: [srcvocab.ende.spm, trgvocab.ende.spm]\n"
    (path / "config.yml").write_text(
        f"{names}beam-size: 3\nnormalize: 0.5\nmax-length-factor: 1.5\nword-penalty: 0.2\n"
    )
    (path / "metadata.json").write_text(json.dumps({"sourceLanguage": "fr", "targetLanguage": "nl"}))
    model = read(path, None, None)
    assert (model.source.name, model.languages) == ("other.bin", ("fr", "nl"))
    assert model.shortlist == path / "lex.50.50.ende.s2t.bin"
    assert model.notes == ("not taken from config.yml: word-penalty 0.2",)
    search = model.search
    assert (search.beam_size, search.alpha, search.max_length_ratio) == (3, 0.5, 1.5)
    (path / "metadata.json").unlink()
    (path / "model_info.json").write_text(json.dumps({"srcTags": {"es": "Spanish"}, "trgTag": "pt"}))
    assert read(path, None, None).languages == ("es", "pt")
    for name in ("models", "vocabs", "shortlist"):
        (path / "config.yml").write_text(f"{{models: [other.bin], {name}: [absent.bin, false]}}")
        with pytest.raises(InputError, match=rf"the settings name absent\.bin in {name}"):
            read(path, None, None)
    (path / "config.yml").unlink()
    with pytest.raises(InputError, match=r"must have one file of models, got model\S+, other.bin$"):
        read(path, None, None)
    for name, value in (
        ("beam-size", "9" * 400),
        ("beam-size", "2.5"),
        ("beam-size", "true"),
        ("normalize", "9" * 400),
        ("normalize", "6.0"),
        ("max-length-factor", "-1.0"),
    ):
        (path / "config.yml").write_text(f"{names}{name}: {value}\n")
        with pytest.raises(InputError, match=rf"config\.yml: {name} must be "):
            read(path, None, None)


def test_the_settings_of_the_decoder_come_first(tmp_path):
    """Marian writes MODEL.decoder.yml beside each file of weights, and the training's config.yml has another search."""
    path, _ = directory(tmp_path / "model", npz=True)
    beam = lambda: read(path, None, None).search.beam_size  # noqa: E731
    (path / "config.yml").write_text("beam-size: 12\ntrain-sets: [a, b]\n")
    assert beam() == 12
    (path / "config.intgemm8bitalpha.yml").write_text("beam-size: 2\n")
    assert beam() == 2
    (path / "model.npz.decoder.yml").write_text("beam-size: 6\nmodels: [/of/the/training/other.npz]\n")
    assert beam() == 6
    (path / "model.npz.best-bleu.npz.decoder.yml").write_text("beam-size: 7\n")
    assert beam() == 6
    shutil.copy(path / "model.npz", path / "model.npz.best-bleu.npz")
    with pytest.raises(InputError, match=r"must have decoder\.yml or one \*\.decoder\.yml, got model\.npz\.best"):
        read(path, None, None)
    (path / "model.npz.decoder.yml").unlink()
    model = read(path, None, None)
    assert (model.search.beam_size, model.source.name) == (7, "model.npz.best-bleu.npz")
    (path / "decoder.yml").write_text("beam-size: 5\nmodels: [model.npz]\n")
    model = read(path, None, None)
    assert (model.search.beam_size, model.source.name) == (5, "model.npz")


@pytest.mark.parametrize(
    "names",
    [["srcvocab.ende.spm"], ["trgvocab.ende.spm"], ["srcvocab.spm", "vocab.spm"], ["vocab.de.spm", "vocab.en.spm"],
     ["opus.src.vocab.yml"]],
)  # fmt: skip
def test_a_missing_vocabulary(tmp_path, names):
    path, _ = directory(tmp_path / "model")
    content = (path / "vocab.ende.spm").read_bytes()
    (path / "vocab.ende.spm").unlink()
    for name in names:
        (path / name).write_bytes(content)
    refuse(
        path,
        tmp_path,
        "must have one vocabulary, or srcvocab and trgvocab, unless decoder.yml names them in vocabs, got "
        f"{', '.join(names)}",
    )
    if names[0].endswith(".spm"):
        (path / "decoder.yml").write_text(f"vocabs: [{names[0]}, {names[-1]}]")
        assert read(path, None, None).tokenizer.vocab_sizes == (PIECES + 1, PIECES + 1)


@pytest.mark.parametrize("two", [False, True])
def test_files_as_they_are_published(tmp_path, two):
    """Compressed files give the same bundle as unpacked ones; .zst is read where there is no .gz."""
    path, _ = directory(tmp_path / "model", int8=True, **(TWO if two else {"shortlist": {}}))
    expected = run_import(path, tmp_path / "expected", "", "")
    lists = next(path.glob("lex*"))
    for suffix, compress in ((".gz", gzip.compress), (".zst", partial(pyarrow.compress, codec="zstd", asbytes=True))):
        packed = tmp_path / f"packed{suffix}"
        packed.mkdir()
        for file in path.iterdir():
            (packed / f"{file.name}{suffix}").write_bytes(compress(file.read_bytes()))
        if suffix == ".gz":
            (packed / f"{next(path.glob('*vocab*')).name}.zst").write_bytes(b"not read")
        parts = run_import(packed, tmp_path / f"bundle{suffix}", "", "")
        assert (parts.src_lang, parts.tgt_lang, parts.tokenizer.digest) == ("en", "de", expected.tokenizer.digest)
        assert parts.is_quantized
        assert parts.shortlist is not None
        assert parts.shortlist.content == lists.read_bytes()
        assert parts.state.keys() == expected.state.keys()
        assert all(np.array_equal(parts.state[name], weight) for name, weight in expected.state.items())
        whole = (packed / f"{lists.name}{suffix}").read_bytes()
        (packed / f"{lists.name}{suffix}").write_bytes(whole[:-9])
        refuse(packed, tmp_path, f"{lists.name}{suffix}: cannot be read: ")
        (packed / f"{lists.name}{suffix}").write_bytes(b"text")
        refuse(packed, tmp_path, f"{lists.name}")
        (packed / f"{lists.name}{suffix}").write_bytes(compress(b"text"))
        refuse(packed, tmp_path, f"{lists.name}: not a binary shortlist")
        with files_no_larger_than(1000):
            refuse(packed, tmp_path, "cannot be written: File too large")


def test_a_broken_link_beside_a_compressed_file(tmp_path):
    """Where a link leads that has the name of an unpacked file, nothing is written."""
    path, _ = directory(tmp_path / "model", int8=True)
    weights = next(path.glob("*.bin"))
    (path / f"{weights.name}.gz").write_bytes(gzip.compress(weights.read_bytes()))
    weights.unlink()
    weights.symlink_to(tmp_path / "elsewhere")
    (path / "loop").symlink_to(path / "loop")
    run_import(path, tmp_path / "bundle", "", "")
    assert not (tmp_path / "elsewhere").exists()


def test_directories_of_hplt_and_bitextor(tmp_path):
    """One vocabulary with the pair in its name, weights with the name of a score, and no settings."""
    path, _ = directory(tmp_path / "model", npz=True)
    expected = run_import(path, tmp_path / "expected", "en", "de")
    (path / "model.npz").rename(path / "model.npz.best-chrf.npz")
    (path / "vocab.ende.spm").rename(path / "model.en-zh_hant.spm")
    for name in ("source.spm", "target.spm", "config.json", "model.npz.optimizer.npz"):
        (path / name).write_bytes(b"of other programs")
    parts = run_import(path, tmp_path / "bundle", "", "")
    assert (parts.src_lang, parts.tgt_lang) == ("en", "zh_hant")
    assert all(np.array_equal(parts.state[name], weight) for name, weight in expected.state.items())


@pytest.mark.parametrize(
    "names",
    [["vocab.spm"], ["vocab.srcs.spm"], ["vocab.trgl.spm"], ["opensource.vocab.yml"], ["vocab.src-trg.spm"],
     ["srcvocab.srcs.spm", "trgvocab.srcs.spm"], ["vocab.src.spm", "vocab.trg.spm"], ["source-vocab.yml",
     "target-vocab.yml"], ["vocab_SRC.yml", "vocab_TGT.yml"], ["opus.src.vocab.yml", "opus.trg.vocab.yml"]],
)  # fmt: skip
def test_names_of_vocabularies(tmp_path, names):
    """Also with codes of languages that begin as the name of a side: Serbian and Czech, Turkish and Galician."""
    path, _ = directory(tmp_path / "model", **TIED)
    content = (path / "vocab.ende.spm").read_bytes()
    (path / "vocab.ende.spm").unlink()
    pieces = ["</s>", "<unk>", *bpe_pieces()[-PIECES + 2 :]]
    for name in names:
        (path / name).write_bytes(content)
        if name.endswith(".yml"):
            (path / name).write_text("".join(f'"{piece}": {i}\n' for i, piece in enumerate(pieces)))
    for side in ("source", "target"):
        shutil.copy(FIXTURES / "bpe.model", path / f"{side}.bpe")
    assert read(path, None, None).tokenizer.vocab_sizes == (PIECES + 1, PIECES + 1)


def test_codes_of_subword_nmt(tmp_path):
    path, _ = directory(tmp_path / "model", npz=True)
    (path / "vocab.ende.spm").unlink()
    pieces = bpe_pieces()[-PIECES + 2 :]
    (path / "vocab.yml").write_text("".join(f'"{x}": {i}\n' for i, x in enumerate(["</s>", "<unk>", *pieces])))
    for side in ("source", "target"):
        shutil.copy(FIXTURES / "bpe.model", path / f"{side}.bpe")
    tokenizer = run_import(path, tmp_path / "bundle", "en", "de").tokenizer
    assert [tokenizer.vocabularies[0][i] for i in tokenizer.encode("17 apples")] == ["17", "apples"]
    assert tokenizer.vocabulary.bpe == "opus-mt"
    (path / "target.bpe").write_text("a b c\n")
    refuse(path, tmp_path / "none", "target.bpe: line 1 must have two pieces, got 'a b c'")


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict, dict], object]:
    return lambda tensors, options: tensors.update({name: change(tensors[name])})


EDITS: list[tuple[Any, str]] = [  # of the weights and the options, and what the message must have
    ({"transformer-preprocess": "n"}, "model.npz: not supported: transformer-preprocess n"),
    ({"transformer-postprocess-top": "n", "right-left": True}, "transformer-postprocess-top n; right-left True"),
    ({"transformer-ffn-activation": "tanh", "type": "s2s"}, "type s2s; transformer-ffn-activation tanh"),
    ({"transformer-decoder-autoreg": "average-attention"}, "transformer-decoder-autoreg average-attention"),
    ({"dec-cell": "gru"}, "dec-cell gru"),
    ({"transformer-new-option": 3}, "not supported: transformer-new-option 3"),
    ({"transformer-heads": 3}, "heads must divide dim"),
    ({"transformer-heads": "two"}, "model.npz: transformer-heads must be a whole number, got 'two'"),
    ({"dim-emb": 24}, "dim-emb must be 16, as its tensors have it, got 24"),
    ({"enc-depth": 6}, "enc-depth must be 2"),
    ({"transformer-dim-ffn": 7}, "transformer-dim-ffn must be 24"),
    ({"dim-vocabs": [40, 45]}, "dim-vocabs must be [45, 45]"),
    ({"tied-embeddings-all": False}, "model.npz: has no encoder_Wemb"),
    ({"transformer-decoder-autoreg": "self-attention"}, "not supported: decoder_l1_rnn_W; "),
    (changed("Wemb", lambda x: x[:-1]), "the vocabularies must have [44, 44] pieces"),
    (lambda tensors, options: tensors.pop("Wemb"), "model.npz: has no Wemb"),
    (changed("Wemb", lambda x: x[0, 0]), "model.npz: Wemb must have two dimensions, got shape (1,)"),
    (changed("Wemb", lambda x: x * np.nan), "Wemb must hold finite numbers"),
    (changed("encoder_l1_self_Wq", lambda x: x[:, :8]), "encoder_l1_self_Wq must have shape (16, 16), got (8, 16)"),
    (changed("encoder_l2_ffn_b1", lambda x: x[None]), "encoder_l2_ffn_b1 must have shape (24,)"),
    (changed("decoder_ff_logit_out_b", lambda x: x[:, 1:]), "decoder_ff_logit_out_b must have shape (46,), got (45,)"),
    (changed("decoder_l1_rnn_Wf", lambda x: x > 0), "decoder_l1_rnn_Wf must be a dense tensor of floating-point"),
    (lambda tensors, options: tensors.pop("decoder_l1_rnn_ffn_ln_scale"), "decoder_l1_rnn_ffn_ln_scale is missing"),
    (lambda tensors, options: tensors.update(extra_W=tensors["Wemb"]), "not supported: extra_W"),
    (lambda tensors, options: options.clear(), "model.npz: must have options by name"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "fact"), EDITS, ids=[fact for _, fact in EDITS])
def test_damaged_models(tmp_path, edit, fact):
    path, tensors = directory(tmp_path / "model", npz=True)
    _, options = random_model(PIECES)
    edit(tensors, options) if callable(edit) else options.update(edit)
    write_npz(path / "model.npz", tensors, options)
    refuse(path, tmp_path, fact)


def refuse(path: Path, folder: Path, fact: str) -> None:
    with pytest.raises(InputError) as caught:
        run_import(path, folder / "bundle", "en", "de")
    message = str(caught.value)
    assert message.startswith(str(path))
    assert fact in message
    assert "\n" not in message
    assert not (folder / "bundle").exists()


def test_damaged_files(tmp_path):
    path, _ = directory(tmp_path / "model", int8=True)
    file, vocabulary = next(path.glob("model*")), path / "vocab.ende.spm"
    whole = file.read_bytes()
    one = lambda name, kind, shape, data: as_bin([(name, kind, shape, data)])  # noqa: E731
    for content, fact in (
        (whole[:-900], "damaged one: ends within special:model.yml"),
        (whole[:300], "ends within the "),
        (whole[:8], "ends within the number of tensors"),
        (whole[:8] + struct.pack("<Q", 10**18) + whole[16:], "ends within the "),
        (one("Wemb", 0x204, (2, 2), b"\0" * 16), "Wemb must have type float32, int8 or intgemm8, got 0x204"),
        (one("Wemb", FLOAT32, (20, 20), b"\0" * 256), "Wemb, (20, 20), must have 1,600 bytes"),
        (one("Wemb", FLOAT32, (-2, -2), b"\0" * 256), "Wemb, (-2, -2), must have"),
        (one("Wemb", 0x4101, (2, 2), b"\0" * 16), "Wemb must have a positive multiplier, got 0.0"),
        (one("Wemb", FLOAT32, (2,) * 9, b"\0" * 2048), "Wemb must have at most 8 dimensions, got 9"),
        (as_bin([("x", FLOAT32, (1,), b"\0" * 4)] * 2), "x must be there once"),
    ):  # fmt: skip
        file.write_bytes(content)
        refuse(
            path, tmp_path, f"{file.name}: not a model of Marian, or a damaged one: {fact.partition(': ')[2] or fact}"
        )
    file.write_bytes(whole)
    shortlist = write_shortlist(path / "lex.ende.s2t.bin", PIECES)
    lists = shortlist.read_bytes()
    for content, fact in (
        (lists[:-4], "lex.ende.s2t.bin: a shortlist must have"),
        (lists[:30], "lex.ende.s2t.bin: not a binary shortlist of Marian"),
        (lists[:99] + b"!" + lists[100:], "the checksum of the shortlist is wrong"),
        (write_shortlist(shortlist, PIECES, offsets=44).read_bytes(), "must be for 45 source pieces, got 44"),
        (write_shortlist(shortlist, 2 * PIECES, offsets=45).read_bytes(), "must be for 45 target pieces, got id "),
    ):
        shortlist.write_bytes(content)
        refuse(path, tmp_path, fact)
    shortlist.unlink()
    vocabulary.write_bytes(vocabulary.read_bytes()[:-40])
    refuse(path, tmp_path, "vocab.ende.spm: not a SentencePiece model, or a damaged one")
    vocabulary.unlink()
    refuse(path, tmp_path, "must have one file of vocabs per side, got none")
    (path / "vocab.yml").write_text("</s>: 0\n<unk>: 2\n")
    refuse(path, tmp_path, "vocab.yml: the ids must be 0, 1, 2")
    (path / "decoder.yml").write_text("beam-size: [")
    refuse(path, tmp_path, "decoder.yml: not YAML")
    (path / "decoder.yml").write_text("beam-size: two")
    (path / "vocab.yml").unlink()
    shutil.copy(FIXTURES / "sentencepiece.model", vocabulary)
    refuse(path, tmp_path, "decoder.yml: beam-size must be a whole number, got 'two'")
