"""Which source word each word of a translation was written from: where cross-attention looks most.

The translation is read again, whole, and in one layer of the decoder, the last but one, the heads' weights are averaged
(Garg et al. 2019 found that layer the best of six). A word is a run of characters that are not spaces. The weight of a
target word on a source word is the sum over the pieces of both; the link is the heaviest, and there is none where the
marks around the source, its end above all, outweigh every word.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relattn.translation.data.batching import Batch
from relattn.translation.data.tokenizer import Marks, words_of
from relattn.translation.model.attention import CrossAttention
from relattn.translation.model.ensemble import Ensemble
from relattn.translation.model.transformer import Transformer

Links = list[tuple[int, int]]  # (source word, target word), counted from 0, by target words


def links(weights: np.ndarray, src_pieces: Sequence[str], tgt_pieces: Sequence[str], marks: Marks) -> Links:
    """The alignment of words.

    Args:
        weights: (target pieces and the end, source pieces and the marks around them), as `attention` gives them.
        src_pieces: of the source, without marks.
        tgt_pieces: of the target, without the end.
        marks: around sources.
    """
    source, target = words_of(src_pieces), words_of(tgt_pieces)
    of_words = np.zeros((max((w for w in target if w is not None), default=-1) + 1, len(source) + 1))  # the last: none
    none = len(source)
    around = [none] * len(marks.src_begin), [none] * len(marks.src_end)
    of_source = [*around[0], *(none if each is None else each for each in source), *around[1]]
    for row, word in zip(weights, target, strict=False):
        if word is not None:
            np.add.at(of_words[word], of_source, row)
    heaviest = of_words.argmax(1) if of_words.size else np.empty(0, dtype=int)
    return [(int(of), at) for at, of in enumerate(heaviest) if of < none]


@torch.inference_mode()
def attention(model: Transformer | Ensemble, batch: Batch) -> Tensor:
    """(rows, tgt_len, src_len): where the heads look, on average, as each target piece and the end are written."""
    found: list[Tensor] = []
    here = get_ident()

    def look(module: CrossAttention, arguments: tuple[Any, ...]) -> None:
        if get_ident() == here:  # and not a search in another thread
            found.append(module.weights(*arguments).mean(1))

    members = model.members if isinstance(model, Ensemble) else [model]
    layers: list[Any] = [member.decoder[max(0, len(member.decoder) - 2)] for member in members]
    hooks = [layer.cross_attention.register_forward_pre_hook(look) for layer in layers]
    try:
        model(batch.src, batch.src_lengths, batch.tgt_in)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found).mean(0)
