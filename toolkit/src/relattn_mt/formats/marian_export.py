"""Export a bundle in Marian's format, for Firefox's engine (Bergamot), translateLocally and Marian: a directory.

    model.bin                      weights in float32, or matrices in int8 with the multipliers of activations
    vocab.spm                      SentencePiece model; srcvocab.spm and trgvocab.spm if the sides have their own
    lex.s2t.bin                    lexical shortlist, if the bundle has one
    config.intgemm8bitalpha.yml    settings of the search, by the name that translateLocally expects
    model_info.json                languages, for translateLocally
    README.md                      the bundle's card

Marian computes fixed sinusoids, and its decoder starts with an embedding of zeros. Other models are refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from relattn_mt.bundle import CARD, Bundle
from relattn_mt.config.positions import DotProduct, LearnedVectors
from relattn_mt.engine.decoder import NativeDecoder
from relattn_mt.engine.engine import NativeEngine
from relattn_mt.engine.terms import fairseq_sinusoids
from relattn_mt.formats import marian
from relattn_mt.formats.foreign_model import NEVER_GENERATED
from relattn_mt.formats.marian_shortlist import make_shortlist
from relattn_mt.formats.parity import Reference, Report
from relattn_mt.support.errors import InputError
from relattn_mt.support.files import putting, require_outside, require_replaceable, write_files
from relattn_mt.support.types import PathPair, Sample
from relattn_mt.tokens.imported_tokenizer import ImportedTokenizer
from relattn_mt.tokens.tokenizer import pieces_of, processor
from relattn_mt.weights import SCALE

_CONFIG = "config.intgemm8bitalpha.yml"
_INFO = "model_info.json"
_SHORTLIST = "lex.s2t.bin"
_FILES = _CONFIG, "model.bin", "vocab.spm", "srcvocab.spm", "trgvocab.spm", _SHORTLIST, _INFO, CARD
_SHORTLISTED = "none"  # Marian's name of the rows of the output layer that a shortlist selects
# intgemm: what inputs and outputs must be multiples of
_INNER = 64
_OUTER = 8
_ALIGNMENT = 256  # of data in bytes
_ROUNDING = 1e-3  # of sines of angles up to 1,023 in float32


def export(bundle: Bundle, out: Path, *, int8: bool, sample: Sample, text: PathPair | None = None) -> Report:
    """Write a bundle in Marian's format, and check that its import agrees with the bundle.

    Args:
        bundle: The bundle.
        out: The directory. An existing export is replaced.
        int8: Whether matrices are in int8. The multipliers of activations are those of the sample's translations,
            which requires PyTorch.
        sample: Lines for the check and the multipliers, or the number of lines to draw from the vocabulary.
        text: Sentences and their translations to make a shortlist from; None takes the bundle's, if it has one.

    Raises:
        InputError: The text cannot be read. Marian cannot represent the model, or the import disagrees. `out` holds
            something else or cannot be written. `out` is then unchanged.
    """
    require_outside(out, bundle.path)
    if unsupported := list(_unsupported(bundle, int8)):
        raise InputError(f"{bundle.path}: Marian does not support {'; '.join(unsupported)}")
    require_replaceable(out, _FILES, "Marian export")
    if text is not None:
        bundle = replace(bundle, shortlist=make_shortlist(bundle, text, [size for _, size in _sides(bundle)]))
    bias = np.array(bundle.state.get("output_bias", np.zeros(bundle.tokenizer.vocab_sizes[1])), np.float32)
    unknown = bundle.tokenizer.vocabularies[1].index(bundle.tokenizer.unknown_piece)
    bias[[*bundle.tokenizer.special.banned, unknown]] = NEVER_GENERATED  # Marian bans the unknown piece only
    model = replace(bundle.model, output_bias=True)
    bundle = replace(bundle, model=model, state={**bundle.state, "output_bias": bias})
    ours = bundle.in_float32().translator(precision="fp32")
    reference = Reference(ours, sample, bundle.search)
    kind = "int8" if int8 else "float32"
    with putting(out) as aside:
        aside.mkdir()
        _write(aside, bundle, _multipliers(bundle, reference) if int8 else {})
        foreign = marian.read(aside, None, None)
        weights = foreign.weights()
        decoder = NativeDecoder(
            foreign.config, foreign.tokenizer.vocab_sizes, foreign.quantized(weights) or weights, int8=int8
        )
        theirs = ours.with_engine(NativeEngine(decoder, bundle.shortlist))
        parity = reference.compare(theirs.log_probs)
        parity.require_close(f"{out}: not exported", kind)
        pairs = zip(vars(bundle.search).items(), vars(foreign.search).values(), strict=True)
        notes = [f"{name} of the bundle: {own}; of the export: {its}" for (name, own), its in pairs if own != its]
        report = Report(notes, {kind: parity})
        report.write(aside / CARD, bundle.card)
    return report


def _unsupported(bundle: Bundle, int8: bool) -> Iterator[str]:
    """Yield the features of a bundle that Marian cannot represent."""
    config = bundle.model
    spec = config.position_spec
    special = bundle.tokenizer.special
    state = bundle.in_float32().state
    tables = [state.get(f"{side}_positions.signal.weight") for side in ("src", "tgt")]
    are_fixed = all(x is not None and np.allclose(x, fairseq_sinusoids(*x.shape), atol=_ROUNDING) for x in tables)
    if not (isinstance(spec.signal, LearnedVectors) and isinstance(spec.mixer, DotProduct) and are_fixed):
        yield f"{config.positions} positions (only its own sinusoids: train with --model.positions marian)"
    if state["embedding"][special.bos].any():
        yield "an embedding of the first target token (train with --model.positions marian)"
    supported = {
        "norm": config.norm == "post",
        "activation": config.activation in marian.ACTIVATIONS.values(),
        "scaled_embeddings": config.scaled_embeddings,
        "feed_forward": config.feed_forward == "plain",
        "head_size": config.head_size == config.dim // config.heads,
        "norm_epsilon": 0.9e-6 < config.norm_epsilon < 1.1e-5,  # Marian has 1e-6
    }
    for name, is_supported in supported.items():
        if not is_supported:
            yield f"{name} {getattr(config, name)}"
    if special.src_begin or special.tgt_begin or special.src_end != (special.eos,) or not _sides(bundle):
        yield "this tokenizer (only SentencePiece, without language tokens)"
    if not int8:
        return
    sizes = config.dim, config.feed_forward_dim
    if any(size % _INNER for size in sizes):
        yield f"int8 with dim and feed_forward_dim {sizes}, which must be multiples of {_INNER}"
    size = bundle.tokenizer.vocab_sizes[1] - _added(bundle)
    if size % _OUTER:
        yield f"int8 with {size} target pieces, which must be a multiple of {_OUTER}"
    if config.shared_embeddings in ("inputs", "none"):
        yield "int8 with an output layer that is not the target's embeddings"


def _added(bundle: Bundle) -> int:
    """Return how many pieces the vocabulary has after those of its SentencePiece model: an import adds the start."""
    return int(isinstance(bundle.tokenizer, ImportedTokenizer))


def _sides(bundle: Bundle) -> list[tuple[bytes, int]]:
    """Return the SentencePiece model of each side and its size; nothing if their ids are not those of the weights."""
    files = [content for name, content in bundle.tokenizer.files.items() if name.endswith(".model")]
    sides = []
    for vocabulary, content in zip(bundle.tokenizer.vocabularies, (files[0], files[-1]), strict=True):
        try:
            pieces = pieces_of(processor(content))
        except InputError:  # codes of BPE
            return []
        if vocabulary[: len(pieces)] != pieces or len(vocabulary) > len(pieces) + _added(bundle):
            return []
        sides.append((content, len(pieces)))
    return sides


def _write(out: Path, bundle: Bundle, multipliers: Mapping[str, float]) -> None:
    """Write all files but the card. With multipliers of activations, by our names, the weights are in int8."""
    search = bundle.search
    files, sizes = zip(*_sides(bundle), strict=True)
    (out / "model.bin").write_bytes(_model(bundle, list(sizes), multipliers))
    vocabularies = ["vocab.spm"] if files[0] == files[1] else ["srcvocab.spm", "trgvocab.spm"]
    write_files(out, dict(zip(vocabularies, files, strict=False)))
    settings = marian.TABLES["config"] | {
        "vocabs": [vocabularies[0], vocabularies[-1]],
        "beam-size": search.beam_size,
        "normalize": 0.0 if search.length_penalty == "none" else search.alpha,
    }
    if search.max_length_ratio:
        settings["max-length-factor"] = search.max_length_ratio
    if multipliers:
        settings["gemm-precision"] = "int8shiftAlphaAll"
    if bundle.shortlist is not None:
        (out / _SHORTLIST).write_bytes(bundle.shortlist.content)
        settings["shortlist"] = [_SHORTLIST, False]
    (out / _CONFIG).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    name = f"{bundle.src_lang}-{bundle.tgt_lang}"
    info = {
        "modelName": name,
        "shortName": name,
        "type": "relattn",
        "version": 1,
        "API": 1,
        "src": bundle.src_lang,
        "srcTags": {bundle.src_lang: bundle.src_lang},
        "trg": bundle.tgt_lang,
        "trgTag": bundle.tgt_lang,
    }
    (out / _INFO).write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")


def _model(bundle: Bundle, sizes: list[int], multipliers: Mapping[str, float]) -> bytes:
    """Return the content of model.bin, with vocabularies of the given sizes."""
    config = bundle.model
    activations = {theirs: name for name, theirs in reversed(marian.ACTIVATIONS.items())}
    options = (
        marian.DEFAULTS
        | marian.TABLES["written"]
        | {
            "dim-emb": config.dim,
            "dim-vocabs": sizes,
            "enc-depth": config.encoder_layers,
            "dec-depth": config.decoder_layers,
            "transformer-dim-ffn": config.feed_forward_dim,
            "transformer-heads": config.heads,
            "transformer-ffn-activation": activations[config.activation],
            "transformer-decoder-autoreg": "rnn" if config.decoder_mixer == "ssru" else "self-attention",
            "dec-cell": "ssru" if config.decoder_mixer == "ssru" else "gru",
            "tied-embeddings": config.shared_embeddings == "target",
            "tied-embeddings-src": config.shared_embeddings == "inputs",
            "tied-embeddings-all": config.shared_embeddings == "all",
        }
    )
    if config.embedding_norm:
        options["transformer-postprocess-emb"] = "dn"
    layer, heads = config.alignment
    if config.alignment_layer != "assumed" and heads == 1:
        options |= {"guided-alignment": "text", "transformer-guided-alignment-layer": str(layer + 1)}
    names = marian.names_of(options, {})
    state = dict(bundle.in_float32().state)
    places = {place.name: ours for ours, place in names.places(config).items() if ours in state}
    items = []
    for name, ours in sorted(places.items()):
        if ours.endswith("signal.weight"):
            continue
        is_embedding = marian.EMBEDDING.search(name)
        tensor = state[ours]
        if ours in ("embedding", "src_embedding", "output_weight", "output_bias"):
            tensor = tensor[: sizes[0 if ours == "src_embedding" else 1]]
        if tensor.ndim == 1:
            items.append(_floats(name, tensor[None]))
            continue
        if not multipliers:
            items.append(_floats(name, tensor if is_embedding else tensor.T))
            continue
        scales = bundle.state.get(f"{ours}{SCALE}", np.zeros(1))[: len(tensor)]
        multiplier = np.float32(127 / max(np.abs(tensor).max(), 1e-30))
        if scales[0] > 0 and (scales == scales[0]).all():  # the integers are kept
            multiplier = np.float32(1 / scales[0])
        integers = np.rint(tensor * multiplier).clip(-127, 127).astype(np.int8)
        shape = tensor.shape if is_embedding else tensor.shape[::-1]
        items.append((name, marian.INTGEMM8, shape, integers.tobytes() + multiplier.tobytes()))
        if ours in multipliers:
            inputs = [name]
            if name == names.entries["output_weight"]:
                inputs.append(_SHORTLISTED)
            alpha = np.full((1, 1), multipliers[ours])
            items += [_floats(f"{matrix}{marian.MULTIPLIER}", alpha) for matrix in inputs]
    text = yaml.safe_dump(options).encode() + b"\0"
    return _as_bin([*items, (marian.OPTIONS, marian.INT8, (len(text),), text)])


def _floats(name: str, tensor: np.ndarray) -> tuple[str, int, tuple[int, ...], bytes]:
    return name, marian.FLOAT32, tensor.shape, np.ascontiguousarray(tensor, "<f4").tobytes()


def _as_bin(items: list[tuple[str, int, tuple[int, ...], bytes]]) -> bytes:
    """Return the content of a .bin with tensors of these names, types, shapes and data."""
    heads = struct.pack("<2Q", 1, len(items))
    names = b""
    shapes = b""
    contents = []
    for name, kind, shape, data in items:
        content = data + bytes(-len(data) % _ALIGNMENT)
        heads += struct.pack("<4Q", len(name) + 1, kind, len(shape), len(content))
        names += f"{name}\0".encode()
        shapes += struct.pack(f"<{len(shape)}i", *shape)
        contents.append(content)
    start = heads + names + shapes
    padding = -(len(start) + 8) % _ALIGNMENT
    return start + struct.pack("<Q", padding) + bytes(padding) + b"".join(contents)


def _multipliers(bundle: Bundle, reference: Reference) -> dict[str, float]:
    """Return the multiplier of each matrix's inputs, 127 / the largest of the reference's translations, by its name."""
    import torch

    model = bundle.make_model().eval()
    special = bundle.tokenizer.special
    largest = dict[str, float]()

    def record(name: str, x: torch.Tensor) -> None:
        largest[name] = max(largest.get(name, 0.0), x.abs().max().item())

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs, name=name: record(f"{name}.weight", inputs[0]))
    output = "embedding" if model.output_weight is None else "output_weight"
    model.decoder_norm.register_forward_hook(lambda _, inputs, result: record(output, result))
    with torch.inference_mode():
        for src, tgt in zip(reference.src_ids, reference.tgt_ids, strict=True):
            source = torch.tensor([[*src, *special.src_end]])
            model(source, torch.tensor([source.shape[1]]), torch.tensor([[special.bos, *tgt]]))
    return {name: 127 / max(value, 1e-30) for name, value in largest.items()}
