"""Show the attention of a model: the content term and the relative term of each score, per head, for one sentence.

A score of Shaw's relative positions is the sum q_i · k_j / √d + q_i · aK_(j−i) / √d. The first term depends on the
content at position j, the second only on its distance. Both are read from the model while it processes a sentence and
its translation. The relative term of each distance is also averaged over the queries of the sentence. Schemes of the
same form (Transformer-XL, T5, ALiBi) have both terms. Schemes that add positions to the embeddings have the first term
only. Rotary positions and layers without attention have no such terms.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any, Literal, cast

import torch
from relattn import RelativeAttention, SelfAttention
from relattn.positions import distances as distances_rows
from relattn.positions import labels
from relattn_mt.config import ModelConfig
from relattn_mt.config.positions import (
    ClippedTables,
    DistanceBias,
    DistanceVectors,
    DotProduct,
    LearnedVectors,
    Mixer,
    Sinusoids,
)
from relattn_mt.data.batching import collate
from relattn_mt.model.attention import CrossAttention
from relattn_mt.model.positions.distance_terms import DistanceAttention
from relattn_mt.model.torch_engine import TorchEngine
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.errors import InputError, require
from relattn_mt.text.patterns import has_text
from relattn_mt.translate.options import DEFAULTS, TranslateOptions
from relattn_mt.translate.prepare import require_readable
from relattn_mt.translate.translator import Translator
from torch import Tensor, nn

Part = Literal["encoder", "decoder", "cross"]  # part of a model whose attention is shown

DIGITS = 4  # decimals in JSON
_WITH_TERMS = (Sinusoids, LearnedVectors, DotProduct, ClippedTables, DistanceBias, DistanceVectors)


@dataclass(frozen=True)
class SelfView:
    """Self-attention of one layer over a sequence of n tokens.

    Attributes:
        content: (heads, queries, keys): content term of each score.
        relative: (heads, queries, keys): relative term of each score; None if the scheme has none.
        weights: (heads, queries, keys): softmax of their sum over the keys that a query may attend to.
        distances: Distances that the table has a row for, or that occur in the sequence.
        by_distance: (heads, distances): mean of the relative term over the queries; None if the scheme has none.
    """

    content: Tensor
    relative: Tensor | None
    weights: Tensor
    distances: list[int]
    by_distance: Tensor | None


@dataclass(frozen=True)
class Inspection:
    """Attention of a model over a sentence and its translation.

    Attributes:
        source: Source tokens, with the special tokens before and after the sentence.
        target: Input tokens of the decoder: begin of sentence, other given tokens and the translation.
        written: Output tokens of the decoder: the translation and end of sentence.
        translation: The translation as text.
        encoder: Self-attention of each encoder layer.
        decoder: Self-attention of each decoder layer.
        cross: Cross-attention of each decoder layer: (heads, target, source).
        special: Number of special tokens before and after the source sentence, and before the translation.
    """

    source: list[str]
    target: list[str]
    written: list[str]
    translation: str
    encoder: list[SelfView]
    decoder: list[SelfView]
    cross: list[Tensor]
    special: tuple[int, int, int]


def unsupported_reason(translator: Translator) -> str:
    """Return why `inspect` refuses a translator; empty if it does not."""
    config = model_of(translator).config
    if not shows_terms(config):
        name = f"{config.position_spec.name} positions and decoder_mixer {config.decoder_mixer}"
        return f"attention scores with {name} have no terms to show separately"
    return ""


def model_of(translator: Translator) -> Transformer:
    """Return the model of a translator. Raises InputError if it does not run on PyTorch."""
    if isinstance(translator.engine, TorchEngine):
        return translator.engine.model
    raise InputError("attention requires a translator on PyTorch, as Bundle.torch_translator returns it")


@torch.inference_mode()
def inspect(
    translator: Translator,
    line: str,
    options: TranslateOptions = DEFAULTS,
    *,
    longest: int = 1000,
) -> Inspection:
    """Return the attention of a model over a line and its best translation.

    Args:
        translator: Translator that runs on PyTorch.
        line: Line to translate.
        options: Options of the translation.
        longest: Maximum number of source tokens.

    Raises:
        InputError: The translator is not on PyTorch, its scheme has no separate terms, or the line is blank or long.
    """
    if reason := unsupported_reason(translator):
        raise InputError(reason)
    model = model_of(translator)
    spec = model.config.position_spec
    require(has_text(line), "the sentence must not be blank")
    require_readable(line, "the sentence")
    tokenizer, special = translator.tokenizer, translator.tokenizer.special
    src_ids = tokenizer.encode(line)
    require(len(src_ids) <= longest, f"the sentence must have at most {longest:,} tokens, got {len(src_ids):,}")
    ((best,),) = translator.n_best([line], replace(options, keep_literals=False))
    batch = collate([src_ids], [best.tokens], special).to(translator.engine.device)
    views: dict[nn.Module, Any] = {}
    thread = get_ident()

    def record(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if get_ident() != thread:  # a search in another thread
            return
        if isinstance(module, SelfAttention):
            views[module] = view(module, arguments[0], spec.mixer)
        elif isinstance(module, CrossAttention):
            views[module] = module.weights(*arguments)[0, :, len(special.tgt_begin) :]

    layers: dict[str, list[Any]] = {
        "encoder": [layer.self_attention for layer in model.encoder],
        "decoder": [layer.self_attention for layer in model.decoder],
        "cross": [layer.cross_attention for layer in model.decoder],
    }
    hooks = [module.register_forward_pre_hook(record) for modules in layers.values() for module in modules]
    try:
        model(batch.src, batch.src_lengths, batch.tgt_in)
    finally:
        for hook in hooks:
            hook.remove()
    source, target = tokenizer.vocabularies
    return Inspection(
        [source[i] for i in batch.src[0].tolist()],
        [target[i] for i in batch.tgt_in[0].tolist()],
        [target[i] for i in batch.tgt_out[0].tolist()],
        best.text,
        **{part: [views[module] for module in modules] for part, modules in layers.items()},
        special=(len(special.src_begin), len(special.src_end), 1 + len(special.tgt_begin)),
    )


def shows_terms(config: ModelConfig) -> bool:
    """Return whether the scores of a model are a sum of terms that `view` knows."""
    return config.decoder_mixer == "scheme" and all(
        isinstance(part, _WITH_TERMS) for part in config.position_spec.parts
    )


def view(layer: SelfAttention, x: Tensor, mixer: Mixer) -> SelfView:
    """Return the attention of a layer over one sequence, given its input of shape (1, n, dim) and its kind."""
    heads = (layer.num_heads, layer.head_dim)
    query, key = (project(x).unflatten(-1, heads).transpose(1, 2)[0] for project in (layer.query, layer.key))
    n, scale = x.shape[1], layer.head_dim**-0.5
    pairs = distances_rows(n, n, 0, x.device)  # (n, n)
    attention = layer.attention
    relative = by_distance = None
    distances: list[int] = []
    content = query
    if isinstance(mixer, ClippedTables) and mixer.keys:
        distances = list(range(-mixer.left, mixer.right + 1))
        rows = labels(pairs, mixer.left, mixer.right, clips=mixer.beyond == "clip")  # (n, n); −1 for no row
        rel_key = cast(nn.Module, cast(RelativeAttention, attention).rel_key)
        per_label = query @ rel_key().to(query.dtype).mT * scale  # (heads, n, labels)
        relative = per_label.gather(2, rows.clamp(min=0).expand(len(query), -1, -1)) * (rows >= 0)
        by_distance = per_label.mean(1)
    elif isinstance(mixer, DistanceBias | DistanceVectors):
        distances = list(range(1 - n, n))
        content, rel_query, table = (
            part.reshape(-1, *part.shape[-2:])
            for part in cast(DistanceAttention, attention).terms(query[None], torch.tensor(distances, device=x.device))
        )
        per_label = rel_query @ table.mT * scale
        relative = per_label.gather(2, (pairs + n - 1).expand(len(query), -1, -1))
        by_distance = per_label.mean(1)
    content_term = content @ key.mT * scale
    scores = content_term if relative is None else content_term + relative
    if layer.is_causal:
        scores = scores.masked_fill(pairs > 0, float("-inf"))
    return SelfView(content_term, relative, scores.float().softmax(-1), distances, by_distance)


def as_json(inspection: Inspection) -> str:
    """Return all numbers as JSON, with `DIGITS` decimals."""
    convert = lambda x: view_as_data(x) if isinstance(x, SelfView) else numbers(x)  # noqa: E731
    return json.dumps(vars(inspection), default=convert, ensure_ascii=False)


def view_as_data(view: SelfView) -> dict[str, Any]:
    """Return the attention of a layer as dictionaries and lists."""
    return {name: numbers(value) if isinstance(value, Tensor) else value for name, value in vars(view).items()}


def numbers(x: Tensor) -> Any:
    """Return a tensor as nested lists of rounded numbers."""
    return torch.round(x.double(), decimals=DIGITS).tolist()
