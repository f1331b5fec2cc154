"""Export a bundle for CTranslate2, which translates on CPUs and GPUs, also in int8, without PyTorch.

    model.bin                weights, in CTranslate2's own format
    config.json              special tokens, and in the group "relattn" the languages and the search
    shared_vocabulary.json   pieces in the order of their ids; two files if source and target differ
    tokenizer.model          SentencePiece model of both sides; an imported bundle has more tokenizer files
    README.md                the bundle's card

CTranslate2 supports clipped relative positions, with one table per layer for all heads, T5's biases, and vectors that
are added to embeddings. `formats/exportable.py` refuses other models.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from relattn_mt.bundle import CARD, TOKENIZER_FILES, Bundle
from relattn_mt.config import ModelConfig, SearchConfig, as_dict
from relattn_mt.config.positions import BucketBias, ClippedTables, LearnedVectors, Sinusoids
from relattn_mt.engine.library import LARGEST
from relattn_mt.engine.terms import sinusoids
from relattn_mt.formats.ctranslate2.directory import (
    CONFIG,
    DIRECTORY,
    MODEL,
    SECTION,
    SHARED,
    SOURCE,
    TARGET,
    ExportSettings,
    Quantization,
)
from relattn_mt.formats.ctranslate2.scores import CTranslate2Model
from relattn_mt.formats.exportable import require_exportable
from relattn_mt.formats.names import CTRANSLATE2, CTRANSLATE2_ACTIVATIONS
from relattn_mt.formats.parity import Reference, Report
from relattn_mt.support.errors import require, require_installed
from relattn_mt.support.files import putting, real_path, require_outside, require_replaceable, write_files
from relattn_mt.support.types import Sample
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer
from relattn_mt.weights import TensorDict, Tensors

FILES = CONFIG, MODEL, *(f"{name}.json" for name in (SHARED, SOURCE, TARGET)), *TOKENIZER_FILES["imported"], CARD
POSITIONS = 4096  # length of the table of our sinusoids, which differ from CTranslate2's
_log = logging.getLogger(__name__)


def export(
    bundle: Bundle,
    out: Path,
    *,
    quantization: Quantization,
    sample: Sample,
    one_pair: bool = False,
) -> Report:
    """Write a bundle for CTranslate2 and check that both agree.

    CTranslate2 does not add language tokens. Programs that call CTranslate2 directly must add them to each source.

    Args:
        bundle: The bundle.
        out: The directory. An existing export is replaced.
        quantization: Type of the weights, in which CTranslate2 may also compute. Scores are also checked in float32.
        sample: Lines for the check, or the number of lines to draw from the vocabulary.
        one_pair: Let CTranslate2 add the token before each source, which a model of several languages then has for the
            bundle's languages only.

    Raises:
        InputError: CTranslate2 is not installed, does not support the model or disagrees with the bundle; `out` holds
            something else or cannot be written. `out` is then unchanged.
    """
    require_outside(out, bundle.path)
    require_installed("export", "ctranslate2")
    require_exportable(bundle.model, bundle.path)
    require_computable(quantization)
    out = real_path(out)
    require_replaceable(out, FILES, DIRECTORY)
    ours = bundle.translator(precision="fp32")
    state = _state(bundle)
    _log.info("translating lines with the bundle")
    reference = Reference(ours, sample, bundle.search)
    lengths = [len(tokens) + 1 for tokens in reference.tgt_ids]
    search = ctranslate2_search(bundle.search, sum(lengths) / len(lengths))
    own, its = (f"{config.length_penalty}, α = {config.alpha}" for config in (bundle.search, search))
    report = Report(notes := [f"length penalty of the bundle: {own}; of the export: {its}"], {})
    with putting(out) as aside:
        kinds: list[Quantization] = ["float32", quantization]
        for weights in dict.fromkeys(kinds):
            _log.info("converting to %s, and scoring the translations with CTranslate2", weights)
            shutil.rmtree(aside, ignore_errors=True)
            adds = _write(aside, bundle, state, search, weights, one_pair=one_pair)
            theirs = CTranslate2Model(aside, bundle.tokenizer, adds)
            notes.append(f"{weights} was checked in CTranslate2's compute type {theirs.precision}")
            if weights.startswith("int8") and bundle.has_8_bits:
                notes.append(
                    f"{weights} has weights of 8 bits, as the bundle: without VNNI, sums of CTranslate2 saturate; it "
                    "moved the scores of a model by 0.06 nats per token"
                )
            report.parities[weights] = parity = reference.compare(theirs.log_probs)
            parity.require_close(f"{out}: not exported: {weights}", weights)
        report.write(aside / CARD, bundle.card)
    return report


def require_computable(quantization: Quantization) -> None:
    """Raise an InputError for int16 unless CTranslate2 computes in it here: elsewhere it would silently use int8."""
    from ctranslate2 import get_supported_compute_types

    types = get_supported_compute_types("cpu")
    message = f"int16 requires an Intel processor; CTranslate2 computes here in {', '.join(sorted(types))}"
    require(quantization != "int16" or "int16" in types, message)


def ctranslate2_search(search: SearchConfig, length: float) -> SearchConfig:
    """Return a search that CTranslate2 supports: with early stopping, and the length penalty len^α or none.

    ((5 + len) / 6)^α is not supported. Near a length n it grows as len^(α n / (n + 5)), which replaces it.

    Args:
        search: Search of the bundle.
        length: n, in tokens, end of sentence included.
    """
    search = replace(search, early_stopping=True)
    if search.length_penalty != "gnmt":
        return search
    return replace(search, length_penalty="average", alpha=round(search.alpha * length / (length + 5), 3))


def added_tokens(tokenizer: AnyTokenizer) -> tuple[bool, bool]:
    """Return whether CTranslate2 adds the token before each source, and the one after it, which is the end only."""
    special = tokenizer.special
    source, target = tokenizer.vocabularies
    ends = [source[i] for i in special.src_end] == [target[special.eos]]
    return len(special.src_begin) == 1 and (ends or not special.src_end), ends


def _write(
    out: Path,
    bundle: Bundle,
    state: Tensors,
    search: SearchConfig,
    weights: Quantization,
    *,
    one_pair: bool,
) -> tuple[bool, bool]:
    """Write the files of an export, except the card, in a new directory, and return `ForeignModel.adds`."""
    config = bundle.model
    tokenizer = bundle.tokenizer
    special = bundle.tokenizer.special
    has_pairs = bool(tokenizer.languages) and not one_pair
    adds_begin, adds_end = (False, False) if has_pairs else added_tokens(tokenizer)
    src_pieces, tgt_pieces = tokenizer.vocabularies
    spec = _spec(config, state)
    spec.register_source_vocabulary(src_pieces)
    spec.register_target_vocabulary(tgt_pieces)
    spec.config.bos_token = src_pieces[special.src_begin[0]] if adds_begin else tgt_pieces[special.bos]
    spec.config.eos_token = tgt_pieces[special.eos]
    spec.config.decoder_start_token = tgt_pieces[special.bos]
    spec.config.unk_token = tokenizer.unknown_piece
    spec.config.add_source_bos = adds_begin
    spec.config.add_source_eos = adds_end
    spec.config.layer_norm_epsilon = config.norm_epsilon
    settings = ExportSettings(
        src_lang=bundle.src_lang,
        tgt_lang=bundle.tgt_lang,
        pairs=list(map(" ".join, bundle.pairs)) if has_pairs else [],
        max_length=POSITIONS if isinstance(config.position_spec.signal, Sinusoids) else config.position_spec.max_length,
        search=search,
    )
    spec.config.add_attribute(SECTION, as_dict(settings))
    spec.validate()
    floats = {name: np.array(value.numpy()) for name, value in spec.variables().items()}
    spec.optimize(weights)
    if not bundle.has_8_bits:  # an export keeps weights of 8 bits
        _reduce_to_7_bits(spec, floats)
    out.mkdir(parents=True)
    spec.save(str(out))
    write_files(out, tokenizer.files)
    return adds_begin, adds_end


def _reduce_to_7_bits(spec: Any, floats: TensorDict) -> None:
    """Quantize the weights in int8 again, from `floats`, with integers from -63 to 63.

    On processors without VNNI, CTranslate2's products are sums of pairs in 16 bits, which 255 · 63 · 2 fits into.
    """
    from ctranslate2.specs.model_spec import NumpyVariable, index_spec

    variables = spec.variables()
    for name, value in variables.items():
        if f"{name}_scale" in variables and not isinstance(value, str) and value.dtype == "int8":
            scope, _, attribute = name.rpartition("/")
            part = index_spec(spec, scope)
            largest = np.abs(floats[name]).max(1, keepdims=True)
            scale = LARGEST / np.maximum(largest, np.float32(LARGEST) / np.finfo(np.float32).max)
            setattr(part, attribute, NumpyVariable(np.rint(floats[name] * scale).astype(np.int8)))
            setattr(part, f"{attribute}_scale", NumpyVariable(scale[:, 0]))


def _spec(config: ModelConfig, state: Tensors) -> Any:
    """Return CTranslate2's description of a model, with its weights."""
    from ctranslate2.specs import TransformerSpec, common_spec
    from ctranslate2.specs.model_spec import index_spec

    has_bias = isinstance(config.position_spec.mixer, BucketBias)
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm != "post",
        rms_norm=config.norm == "rms",
        ffn_glu=config.feed_forward == "gated",
        relative_attention_bias=has_bias,
        with_relative_position=config.position_spec.signal is None and not has_bias,  # without any, tables of zeros
        layernorm_embedding=config.embedding_norm,
        activation=common_spec.Activation(CTRANSLATE2_ACTIVATIONS[config.activation]),
        alignment_layer=-1 if config.alignment_layer == "assumed" else config.alignment_layer,
        alignment_heads=config.alignment[1],
    )
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = config.scaled_embeddings
    for name, tensor in CTRANSLATE2.scatter(state, config).items():
        scope, _, attribute = name.rpartition("/")
        setattr(index_spec(spec, scope), attribute, tensor)
    for stack, side in (("encoder", "src"), ("decoder", "tgt")):
        for number, layer in enumerate(getattr(spec, stack).layer):
            prefix = f"{stack}.{number}"
            if config.feed_forward == "gated":
                for leaf in ("weight", "bias"):
                    setattr(layer.ffn.linear_0_noact, leaf, state[f"{prefix}.feed_forward.gate.{leaf}"])
            if has_bias:
                bias = state.get(f"{side}_positions.bias.weight")
                own = f"{prefix}.self_attention.attention.bias.weight"
                layer.self_attention.relative_attention_bias = state[own] if bias is None else bias
                layer.self_attention.relative_attention_max_distance = np.int32(BucketBias.farthest)
            attentions = [layer.self_attention] if stack == "encoder" else [layer.self_attention, layer.attention]
            for attention in attentions if config.head_dim else ():
                attention.queries_scale = np.float32(config.head_dim**-0.5)
    return spec


def _state(bundle: Bundle) -> TensorDict:
    """Return all weights that CTranslate2 has of such a model, in float32, by our names."""
    config = bundle.model
    state = bundle.in_float32().state
    state = {"src_embedding": state["embedding"], "output_weight": state["embedding"], **state}
    left = right = 0
    match config.position_spec.signal, config.position_spec.mixer:
        case LearnedVectors(), _:
            return state
        case Sinusoids(), _:
            table = sinusoids(np.arange(POSITIONS), config.dim)
            return {**state, "src_positions.signal.weight": table, "tgt_positions.signal.weight": table}
        case None, BucketBias():
            return state
        case None, ClippedTables(left, right):
            pass
    wide = max(left, right)  # to the shorter side, the table repeats its edge row
    rows = np.arange(-wide, wide + 1).clip(-left, right) + left
    zeros = np.zeros((left + right + 1, config.head_size), np.float32)  # replace a table that the model does not have
    for name in CTRANSLATE2.places(config):
        if name.endswith((".rel_key.weight", ".rel_value.weight")):
            state[name] = state.get(name, zeros)[rows]  # (2 · wide + 1, head_dim)
    return state
