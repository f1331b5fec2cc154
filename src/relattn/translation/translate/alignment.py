"""Word alignment: the source word that cross-attention looks at most while a target word is generated.

The model reads the whole translation again. The attention weights are those of the last decoder layer but one, averaged
over heads; Garg et al. 2019 found that layer the best of six. Words are separated by spaces. The weight of a target
word on a source word is the sum over the pieces of both, and the largest weight gives the link. A target word has no
link if the special tokens around the source, mostly its end, have more weight than every word.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relattn.translation.data.batching import Batch
from relattn.translation.data.tokenizer import SpecialTokens, word_indices
from relattn.translation.model.attention import CrossAttention
from relattn.translation.model.ensemble import Ensemble
from relattn.translation.model.transformer import Transformer

Links = list[tuple[int, int]]  # (source word, target word), counted from 0, ordered by target word


def links(weights: np.ndarray, src_pieces: Sequence[str], tgt_pieces: Sequence[str], special: SpecialTokens) -> Links:
    """Return the links between words.

    Args:
        weights: (target pieces and the end, source pieces and their special tokens), as `attention` returns them.
        src_pieces: source pieces, without special tokens.
        tgt_pieces: target pieces, without the end.
        special: special tokens of the model.
    """
    source, target = word_indices(src_pieces), word_indices(tgt_pieces)
    no_word = len(source)
    columns = [None] * len(special.src_begin) + list(source) + [None] * len(special.src_end)
    words = [no_word if word is None else word for word in columns]
    totals = np.zeros((max((word for word in target if word is not None), default=-1) + 1, no_word + 1))
    for row, word in zip(weights, target, strict=False):
        if word is not None:
            np.add.at(totals[word], words, row)
    best = totals.argmax(1) if totals.size else np.empty(0, dtype=int)
    return [(int(word), at) for at, word in enumerate(best) if word < no_word]


def alignment_layer(model: Transformer) -> int:
    """Return the index of the decoder layer whose attention gives the alignment."""
    return max(0, len(model.decoder) - 2)


@torch.inference_mode()
def attention(model: Transformer | Ensemble, batch: Batch) -> Tensor:
    """Return the mean attention weights (rows, tgt_len, src_len) with which each target piece and the end are read."""
    weights: list[Tensor] = []
    thread = get_ident()

    def record(module: CrossAttention, arguments: tuple[Any, ...]) -> None:
        if get_ident() == thread:  # other threads may use the model at the same time
            weights.append(module.weights(*arguments).mean(1))

    members = model.members if isinstance(model, Ensemble) else [model]
    layers: list[Any] = [member.decoder[alignment_layer(member)] for member in members]
    hooks = [layer.cross_attention.register_forward_pre_hook(record) for layer in layers]
    try:
        model(batch.src, batch.src_lengths, batch.tgt_in)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(weights).mean(0)[:, -batch.tgt_out.shape[1] :]
