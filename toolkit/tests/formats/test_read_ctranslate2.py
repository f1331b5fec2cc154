"""Models that CTranslate2's own classes wrote, imported and compared with CTranslate2."""

import functools
import json
import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import sentencepiece
from ctranslate2.specs import TransformerSpec, common_spec, model_spec
from relattn_mt import bundle
from relattn_mt.config import SearchConfig
from relattn_mt.engine import decoder
from relattn_mt.formats import parity
from relattn_mt.formats.ctranslate2.model_bin import TYPES, ModelFile, read_model
from relattn_mt.formats.ctranslate2.read import read
from relattn_mt.formats.import_model import import_model
from relattn_mt.formats.names import CTRANSLATE2
from relattn_mt.support.errors import InputError
from relattn_mt.tokens.imported_tokenizer import ImportedTokenizer
from relattn_mt.translate.options import TranslateOptions

from tests.support.covering import pairwise
from tests.support.firefox_models import train_vocabulary
from tests.support.foreign_bundles import LINES, bpe_pieces, run_import

DIM, HEADS, INNER, CLIP = 12, 3, 20, 2
Activation = common_spec.Activation
SPECIALS = ["<unk>", "<blank>", "<s>", "</s>", "<start>", "<end>"]


def pieces_of(path: Path, seed: int) -> list[str]:
    if path.name == "bpe.model":
        pieces = [*SPECIALS, *bpe_pieces()]
    else:
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        pieces = [*SPECIALS, *(model.id_to_piece(i) for i in range(3, model.get_piece_size()))]
    return random.Random(seed).sample(pieces, len(pieces))


def write(
    path: Path, tokenizers: tuple[Path, Path], *, positions: str = "relative", shared: Sequence[str] = ("tgt", "out"),
    bias: bool = True, scaled: bool = False, weights: str | None = None, config: dict | None = None,
    sizes: tuple[int, int] = (DIM, HEADS), **spec: object,
) -> Path:  # fmt: skip
    """Write a model with random weights, as the converters of CTranslate2 do.

    Args:
        path: Directory of the model.
        tokenizers: SentencePiece models of source and target; if source and target are shared, the first is used.
        positions: "relative"; "table" for one that is added to embeddings; "sinusoids" that CTranslate2 computes.
        shared: Equal matrices among "src", "tgt" and "out".
        bias: Whether logits have a bias.
        scaled: Whether embeddings are scaled.
        weights: quantization.
        config: Settings of config.json.
        sizes: Dimension and number of heads.
        spec: Options of a TransformerSpec.
    """
    dim, heads = sizes
    src = pieces_of(tokenizers[0], 1)
    tgt = src if {"src", "tgt"} <= set(shared) else pieces_of(tokenizers[1], 2)
    spec = TransformerSpec.from_config((2, 1), heads, with_relative_position=positions == "relative", **spec)
    draw = np.random.default_rng(1)

    def random_array(*shape: int) -> np.ndarray:
        return draw.normal(0.2 * (len(shape) == 1), 0.4, shape).astype(np.float32)

    def fill(layer: object, name: str, value: object) -> None:
        leaf, scope = name.rsplit("/", 1)[-1], name.rsplit("/", 2)[-2]
        if value is not None and not (leaf == "bias" and "projection" not in name):
            return
        inputs, outputs = dim, dim
        if "ffn" in name:
            inputs, outputs = (dim, INNER) if scope == "linear_0" else (INNER, dim)
        elif scope == "linear_0" and "/attention/" not in name:
            outputs = 3 * dim
        elif scope == "linear_1" and "/attention/" in name:
            outputs = 2 * dim
        shapes = {"gamma": (dim,), "beta": (dim,), "bias": (outputs,), "weight": (outputs, inputs)}
        setattr(layer, leaf, random_array(*shapes.get(leaf, (2 * CLIP + 1, dim // heads))))

    model_spec.visit_spec(spec, fill)
    matrices = {name: random_array(len(pieces), dim) for name, pieces in (("src", src), ("tgt", tgt), ("out", tgt))}
    for name in shared:
        matrices[name] = matrices[shared[0]]
    spec.encoder.embeddings[0].weight = matrices["src"]
    spec.decoder.embeddings.weight, spec.decoder.projection.weight = matrices["tgt"], matrices["out"]
    spec.decoder.projection.bias = random_array(len(tgt)) if bias else model_spec.OPTIONAL
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = scaled
    if positions == "table":
        spec.encoder.position_encodings.encodings = random_array(40, dim)
        spec.decoder.position_encodings.encodings = random_array(43, dim)
    spec.register_source_vocabulary(src)
    spec.register_target_vocabulary(tgt)
    for name, value in (config or {}).items():
        setattr(spec.config, name, value)
    spec.validate()
    spec.optimize(weights)
    path.mkdir()
    spec.save(str(path))
    return path


def require_agreement(path: Path, parts: bundle.Bundle, *more: str) -> None:
    """Compare scores of given translations, and greedy translations, whose text has no special tokens."""
    search = SearchConfig(beam_size=1, max_length_ratio=0, max_length_extra=15)
    ours = replace(parts, search=search).translator(precision="fp32")
    lines = [*LINES, *more]
    src, tgt = [ours.tokenizer.encode(x) for x in lines], [ours.tokenizer.encode_target(x) for x in reversed(lines)]
    src_pieces, tgt_pieces = ours.tokenizer.vocabularies
    theirs = ctranslate2.Translator(str(path), compute_type="float32", intra_threads=1)
    sources = [[src_pieces[i] for i in row] for row in src]
    scored = theirs.score_batch(sources, [[tgt_pieces[i] for i in row] for row in tgt])
    for mine, its in zip(ours.log_probs(src, tgt), scored, strict=True):
        assert mine == pytest.approx(its.log_probs, abs=1e-4)
    results = theirs.translate_batch(sources, beam_size=1, max_decoding_length=14, min_decoding_length=0)
    for (mine,), its in zip(ours.n_best(lines, TranslateOptions(keep_literals=False)), results, strict=True):
        pieces = its.hypotheses[0][:14]
        end = next((i for i, piece in enumerate(pieces) if piece in SPECIALS), None)  # CTranslate2 bans no tokens
        assert [tgt_pieces[i] for i in mine.tokens][:end] == pieces[:end]
        assert not any(tgt_pieces[i] in mine.text for i in (*ours.tokenizer.special.banned, ours.tokenizer.special.eos))


@pairwise(
    positions=["relative", "table", "sinusoids"], shared=[("tgt", "out"), ("src", "tgt", "out"), ("src", "tgt")],
    activation=[number for number in Activation if number <= Activation.GELUSigmoid], pre_norm=[True, False],
    weights=[None, "int8", "int16", "float16", "bfloat16"], bias=[True, False], scaled=[True, False],
    config=[{}, {"add_source_bos": True, "add_source_eos": True, "decoder_start_token": "<start>"},
            {"add_source_eos": True, "eos_token": "<end>", "layer_norm_epsilon": 0.02}],
)  # fmt: skip
def test_imported_models_agree_with_ctranslate2(
    tmp_path, tokenizers, positions, shared, activation, weights, pre_norm, bias, scaled, config
):
    options = {"positions": positions, "shared": shared, "activation": activation, "weights": weights, "bias": bias}
    path = write(tmp_path / "model", tokenizers, **options, pre_norm=pre_norm, scaled=scaled, config=config)
    tgt_tokenizer = None if {"src", "tgt"} <= set(shared) else tokenizers[1]
    report = import_model(path, tmp_path / "bundle", tokenizer=tokenizers[0], tgt_tokenizer=tgt_tokenizer,
                          src_lang="en", tgt_lang="de", sample=["one pear"])  # fmt: skip
    assert report.parities["float32"].lines == 1
    parts = bundle.read_bundle(tmp_path / "bundle")
    expected = {"relative": ("relative", CLIP, None), "table": ("learned", None, 40)}
    found = parts.model.positions, parts.model.clip, parts.model.max_positions
    assert found == expected.get(positions, ("learned", None, 4096))
    require_agreement(path, parts, "pears 17" if positions == "table" else "pears " * 30)
    require_integers(path, parts, kept=weights == "int8")


def require_integers(path: Path, parts: bundle.Bundle, *, kept: bool) -> None:
    """Compare the integers and scales of a quantized bundle with those in a model.bin."""
    assert parts.is_quantized == kept
    tensors, places = read_model(path / "model.bin").tensors, CTRANSLATE2.places(parts.model)
    renamed = {"encoder/embeddings_0/weight": "encoder/embeddings/weight"}  # before version 3
    state = parts.state
    for ours, weight in state.items():
        if weight.dtype == np.int8:
            place = places[ours]
            name = place.name if place.name in tensors else renamed[place.name]
            expected = np.split(tensors[name], place.parts)[place.part]
            assert np.array_equal(weight[: len(expected)], expected)
            assert not weight[len(expected) :].any()
            scales = np.split(tensors[f"{name}_scale"], place.parts)[place.part]
            assert np.array_equal(state[f"{ours}_scale"][: len(expected)], 1 / scales)
    if kept and decoder.KERNELS is not None:
        src = [parts.tokenizer.encode(line) for line in LINES]
        tgt = [parts.tokenizer.encode_target(line) for line in reversed(LINES)]
        own, exact = parts.translator(), parts.translator(precision="fp32")
        assert "int8" in own.engine.name
        for mine, its in zip(own.log_probs(src, tgt), exact.log_probs(src, tgt), strict=True):
            assert mine == pytest.approx(its, abs=0.5)


def test_weights_in_int8_that_are_not_kept(tmp_path, tokenizers):
    """Integers or scales that no converter writes, or a weight of another type: the bundle is in float32."""
    name = "encoder/layer_0/ffn/linear_0/weight"
    path = write(tmp_path / "model", tokenizers, weights="int8")
    whole, tensors = (path / "model.bin").read_bytes(), read_model(path / "model.bin").tensors
    weight, scale = tensors[name], tensors[f"{name}_scale"]
    lowest = weight.copy()
    lowest[1, 2] = -128
    exact = weight / scale[:, None]
    for number, (changed, without) in enumerate((
        ({name: lowest}, []),
        ({f"{name}_scale": -scale}, []),
        ({name: exact}, [f"{name}_scale"]),
    )):  # fmt: skip
        (path / "model.bin").write_bytes(whole)
        change(path, changed, without)
        out = tmp_path / str(number)
        parts = run_import(path, out, "en", "de", tokenizer=tokenizers[0], tgt_tokenizer=tokenizers[1])
        require_integers(path, parts, kept=False)
        require_agreement(path, parts)


def change(path: Path, tensors: dict[str, np.ndarray | np.generic], without: Sequence[str] = ()) -> None:
    """Write a model.bin again with other tensors."""
    file = read_model(path / "model.bin")
    changed = {**file.tensors, **{name: np.asarray(value) for name, value in tensors.items()}}
    kept = {name: tensor for name, tensor in changed.items() if name not in without}
    (path / "model.bin").write_bytes(serialize(replace(file, tensors=kept)))


def serialize(file: ModelFile) -> bytes:
    """Return the content of a model.bin. A tensor that has several names is stored once if the version has aliases."""

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    records, aliases, names = [], [], {}
    for name, tensor in file.tensors.items():
        if file.version >= 3 and names.setdefault(id(tensor), name) != name:
            aliases.append(text(name) + text(names[id(tensor)]))
            continue
        content = tensor.tobytes()
        kind = (TYPES.index(str(tensor.dtype)), len(content)) if file.version >= 4 else (tensor.itemsize, tensor.size)
        shape = struct.pack(f"<B{tensor.ndim}I", tensor.ndim, *tensor.shape)
        records.append(text(name) + shape + struct.pack("<BI", *kind) + content)
    out = struct.pack("<I", file.version) + text(file.kind) + struct.pack("<I", file.revision)
    for each in (records, aliases)[: 2 if file.version >= 3 else 1]:
        out += struct.pack("<I", len(each)) + b"".join(each)
    return out


def test_all_unsupported_features_are_named(tmp_path, tokenizers):
    path, off = write(tmp_path / "model", tokenizers, activation=Activation.Sigmoid), np.int8(1)
    features = {
        "decoder/alibi": (off, "ALiBi"),
        "decoder/scale_embeddings": (off, "scale of embeddings"),
        "decoder/layernorm_embedding/gamma": (np.ones(DIM, np.float32), "norm of its target embeddings only"),
        "decoder/other_norm/gamma": (np.ones(DIM, np.float32), "RMS norms"),
        "encoder/layer_1/ffn/linear_0_noact/weight": (np.ones((INNER, DIM), np.float32), "gated"),
        "decoder/final_logit_softcapping": (np.float32(3), "decoder/final_logit_softcapping"),
    }
    change(path, {name: value for name, (value, _) in features.items()})
    with pytest.raises(InputError) as refused:
        read(path, *tokenizers)
    for fact in ("activation 6", *(fact for _, fact in features.values())):
        assert fact in str(refused.value)


def test_a_model_that_disagrees_is_not_imported(tmp_path, tokenizers, monkeypatch):
    """As if another version of CTranslate2 computed something else."""
    path, (src, tgt) = write(tmp_path / "model", tokenizers), tokenizers
    monkeypatch.setattr(parity, "TOLERANCE", 1e-9)
    importing = functools.partial(import_model, path, tmp_path / "bundle", tokenizer=src, tgt_tokenizer=tgt)
    with pytest.raises(InputError, match=f"{path}: not imported"):
        importing(src_lang="en", tgt_lang="de", sample=3)
    assert not (tmp_path / "bundle").exists()
    monkeypatch.setattr("relattn_mt.formats.import_model.find_spec", lambda name: None)
    assert "not checked" in str(importing(src_lang="en", tgt_lang="de", sample=3))


OLD = {2: ("TransformerBase", 2), 3: ("TransformerSpec", 3), 4: ("TransformerSpec", 3), 5: ("TransformerSpec", 4)}
BOTH = ("num_heads", "pre_norm", "activation", "embeddings_merge", "alignment_layer", "alignment_heads")


def rewrite(path: Path, version: int) -> None:
    """Write a directory again as versions of CTranslate2 before 3 did, with this version of model.bin."""
    file, config = read_model(path / "model.bin"), json.loads((path / "config.json").read_text())
    kind, revision = OLD[version]
    tensors = {}
    for name, tensor in file.tensors.items():
        name = name.removeprefix("encoder/").removeprefix("decoder/") if name.endswith(BOTH) else name
        if revision < 4:
            name = name.replace("embeddings_0/", "embeddings/")
            name = name.replace("/scale_embeddings", "/embeddings/multiply_by_sqrt_depth")
        tensors[name] = tensor
    if revision < 3:
        tensors = {name: tensor for name, tensor in tensors.items() if name not in BOTH}
        for name, tensor in list(tensors.items()):
            if tensor.dtype == np.int16:
                tensors[name] = np.rint(tensor * (1000 / tensors.pop(f"{name}_scale"))).astype(np.int16)
    flags = {"with_source_bos": config["add_source_bos"], "with_source_eos": config["add_source_eos"]}
    if config["decoder_start_token"] != config["bos_token"]:
        assert config["decoder_start_token"] == config["eos_token"]
        flags["with_target_bos"] = False
    if version >= 5:
        flags |= {"with_relative_position": "relative" in str([*tensors]), "user_decoder_start_tokens": False}
        for name in ("unk_token", "bos_token", "eos_token"):
            tensors[name] = np.array([*config[name].encode()], np.int8)
    tensors |= {name: np.array(value, np.int8) for name, value in flags.items()}
    (path / "model.bin").write_bytes(serialize(ModelFile(version, kind, revision, tensors)))
    (path / "config.json").unlink()
    for vocabulary in path.glob("*.json"):
        text = "".join(f"{piece}\n" for piece in json.loads(vocabulary.read_text()))
        vocabulary.with_suffix(".txt").write_bytes(text.encode())
        vocabulary.unlink()


@pairwise(
    version=[2, 3, 4, 5], positions=["relative", "table", "sinusoids"], shared=[("tgt", "out"), ("src", "tgt", "out")],
    weights=[None, "int8", "int16"], scaled=[True, False],
    config=[{}, {"add_source_bos": True, "add_source_eos": True, "decoder_start_token": "</s>"}],
)  # fmt: skip
def test_models_for_ctranslate2_before_version_3(
    tmp_path, tokenizers, version, positions, shared, weights, scaled, config
):
    """CTranslate2 itself reads them as before."""
    options = {"positions": positions, "shared": shared, "weights": weights, "scaled": scaled, "config": config}
    path = write(tmp_path / "model", tokenizers, **options, sizes=(24, 8))
    rewrite(path, version)
    given = {"tokenizer": tokenizers[0], "tgt_tokenizer": tokenizers[len(shared) == 2]}
    parts = run_import(path, tmp_path / "bundle", "en", "de", **given)
    assert parts.model.positions == ("relative" if positions == "relative" else "learned")
    require_agreement(path, parts)
    require_integers(path, parts, kept=weights == "int8")


def test_vocabularies_as_text(tmp_path, tokenizers):
    """CTranslate2 appends an unknown piece that is missing, and reads other line ends."""
    path = write(tmp_path / "model", tokenizers, shared=("src", "tgt", "out"))
    rewrite(path, 4)
    file = path / "shared_vocabulary.txt"
    *pieces, last, _ = file.read_text().split("\n")
    pieces = [{"<unk>": last, "<start>": "a\rb"}.get(piece, piece) for piece in pieces]
    file.write_bytes("".join(f"{piece}\r\n" for piece in pieces).encode())
    parts = run_import(path, tmp_path / "bundle", "en", "de", tokenizer=tokenizers[0])
    assert parts.tokenizer.vocabularies[0] == [*pieces, "<unk>"]
    require_agreement(path, parts)


def test_tables_next_to_relative_positions(tmp_path, tokenizers):
    """CTranslate2 does not use them."""
    path = write(tmp_path / "model", tokenizers)
    table = np.ones((40, DIM), np.float32)
    change(path, {f"{stack}/position_encodings/encodings": table for stack in ("encoder", "decoder")})
    require_agreement(
        path, run_import(path, tmp_path / "bundle", "en", "de", tokenizer=tokenizers[0], tgt_tokenizer=tokenizers[1])
    )


def test_tokenizers_of_the_other_side(tmp_path):
    """Both swapped, and one for both sides where each has its own, are refused. One with both vocabularies is not."""
    letters = " ".join(sorted({*"".join(LINES)} - {" "}))
    sides = [*LINES[::2], letters], [*LINES[1::2], letters]
    src, tgt = (train_vocabulary(tmp_path / f"{i}.model", lines * 9, 60) for i, lines in enumerate(sides))
    path = write(tmp_path / "model", (src, tgt))
    with pytest.raises(InputError, match=r"1\.model: must be the source's SentencePiece model, got the target's"):
        read(path, tgt, src)
    for model, side in ((src, "target"), (tgt, "source")):
        with pytest.raises(InputError, match=rf"a SentencePiece model for both sides must have the {side}'s"):
            read(path, model, None)
    both = train_vocabulary(tmp_path / "both.model", [*sides[0], *sides[1]] * 9, 90)
    joint = write(tmp_path / "joint", (both, both), shared=("tgt", "out"))
    for found in ("tokenizer.model", "source.spm", "target.spm"):  # those that are given have precedence
        (joint / found).write_bytes(src.read_bytes())
    tokenizer = read(joint, both, None).tokenizer
    assert isinstance(tokenizer, ImportedTokenizer)
    assert {tokenizer.files["tokenizer.model"]} == {both.read_bytes()}
