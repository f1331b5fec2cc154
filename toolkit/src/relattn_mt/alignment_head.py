"""The layer and the heads of a model whose attention aligns words best, measured with a lexicon of a parallel text.

Candidates are all heads of each decoder layer, averaged, and each head alone. A configuration names the first heads of
a layer, so a head that is chosen becomes the first one: heads have no order, and the model computes the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from relattn_mt.bundle import Bundle
from relattn_mt.config import ModelConfig
from relattn_mt.search.engine import Engine
from relattn_mt.support.types import IdRows, SentencePair
from relattn_mt.text.lexicon import Agreement, agreement, lexicon
from relattn_mt.translate.translator import Translator
from relattn_mt.weights import SCALE

# sentence pairs for the lexicon, and to align
LEXICON_PAIRS = 100_000
MEASURED_PAIRS = 500
LEAST_WORDS = 100  # that must be measured before anything is chosen


class AttentionHead(NamedTuple):
    """A decoder layer, and one of its heads, or None for all; counted from 0."""

    layer: int
    head: int | None = None

    def __str__(self) -> str:
        head = "all heads" if self.head is None else f"head {self.head + 1}"
        return f"{head} of decoder layer {self.layer + 1}"


class _Aligner(Engine, Protocol):
    """An engine whose alignment can be that of other layers and heads."""

    alignment: tuple[int, int]


def measure(
    translator: Translator, config: ModelConfig, pairs: Sequence[SentencePair], sources: Mapping[str, str]
) -> dict[AttentionHead, Agreement]:
    """Return how well the attention of each place agrees with a lexicon on pairs of sentences.

    Args:
        translator: Translator of a bundle.
        config: Configuration of its model.
        pairs: Sources and translations.
        sources: Source word of each target word, as `lexicon.lexicon` returns it.
    """
    tokenizer = translator.tokenizer
    held = []
    for source, target in pairs:
        src_ids = tokenizer.encode(source)
        tgt_ids = tokenizer.encode_target(target)
        if src_ids and tgt_ids and translator.preparation.holds(src_ids, tgt_ids):
            held.append((src_ids, tgt_ids))
    sides = [src for src, _ in held], [tgt for _, tgt in held]
    lines = [(tokenizer.decode_source(src), tokenizer.decode(tgt)) for src, tgt in held]
    found = {}
    for place, weights in _attention(translator, config, *sides):
        links = [each.links for each in translator.runner.alignments(*sides, weights)]
        found[place] = agreement(sources, lines, links)
    return found


def _attention(
    translator: Translator, config: ModelConfig, src_ids: IdRows, tgt_ids: IdRows
) -> Iterator[tuple[AttentionHead, list[np.ndarray]]]:
    """Yield the attention weights of each sentence for each place. An engine gives those of the first heads."""
    engine: _Aligner = copy(translator.engine)  # type: ignore[assignment]
    runner = translator.with_engine(engine).runner
    for layer in range(config.decoder_layers):
        before: list[np.ndarray] = []  # the sum of the heads before
        for head in range(config.heads):
            engine.alignment = layer, head + 1
            mean = runner.attention(src_ids, tgt_ids)
            total = [weights * (head + 1) for weights in mean]
            if config.heads > 1:
                alone = [a - b for a, b in zip(total, before, strict=True)] if before else total
                yield AttentionHead(layer, head), alone
            before = total
        yield AttentionHead(layer), before


def with_best(bundle: Bundle, pairs: Sequence[SentencePair]) -> tuple[Bundle, str]:
    """Return a bundle whose configuration names the best place, and a note about it.

    If the text says too little, the bundle stays as it is.

    Args:
        bundle: Any bundle that the compiled engine or PyTorch runs.
        pairs: Sources and translations.
    """
    sources = lexicon(pairs[:LEXICON_PAIRS])
    measured = pairs[:: max(1, len(pairs) // MEASURED_PAIRS)][:MEASURED_PAIRS]
    found = measure(bundle.translator(), bundle.model, measured, sources)
    place = max(found, key=lambda each: (found[each].right, each.head is None, each.layer))
    words = sum(found[place])
    if words < LEAST_WORDS:
        return bundle, f"word alignment: not measured, since a lexicon of the text knows {words} of its words"
    note = f"word alignment: {place}, right for {found[place].accuracy:.1%} of {words:,} words that a lexicon knows"
    return with_head(bundle, place), note


def with_head(bundle: Bundle, place: AttentionHead) -> Bundle:
    """Return a bundle whose configuration names a place. A head becomes the first of its layer."""
    model = replace(bundle.model, alignment_layer=place.layer, alignment_heads=0 if place.head is None else 1)
    state = dict(bundle.state)
    if place.head:
        rows = np.arange(model.heads * model.head_size).reshape(model.heads, -1)  # of each head
        order = np.concatenate([rows[[place.head]], np.delete(rows, place.head, axis=0)]).ravel()
        prefix = f"decoder.{place.layer}.cross_attention"
        for part in ("query", "key", "value"):
            for leaf in ("weight", "bias", f"weight{SCALE}"):
                name = f"{prefix}.{part}.{leaf}"
                if name in state:
                    state[name] = np.ascontiguousarray(state[name][order])
        state[f"{prefix}.out.weight"] = np.ascontiguousarray(state[f"{prefix}.out.weight"][:, order])
    return replace(bundle, model=model, state=state)
