"""The encoder–decoder Transformer, whole at once for training and a few pieces at a time for search.

One embedding matrix serves source, target and output. While decoding, what has been seen is a `Cache`: a value that
`step` takes and returns, whose rows can be gathered freely (beams reordered, finished sentences dropped).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relattn.translation.config import ModelConfig
from relattn.translation.model.layers import DecoderLayer, EncoderLayer
from relattn.translation.model.positions import SCHEMES, NoPositions, warn_if_blind

KeysAndValues = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Cache:
    """What decoding has seen, a row a hypothesis."""

    memory: tuple[KeysAndValues, ...]  # a decoder layer: (rows, heads, src_len, head_dim), twice
    src_lengths: Tensor  # (rows,)
    seen: tuple[KeysAndValues, ...] | None  # a decoder layer: (rows, heads, length, head_dim), twice; None at the start

    @property
    def length(self) -> int:
        """Target positions held."""
        return 0 if self.seen is None else self.seen[0][0].shape[2]

    def select(self, rows: Tensor) -> Cache:
        """The cache of the given rows, (new_rows,) indices, in that order."""

        def gather(pairs: tuple[KeysAndValues, ...]) -> tuple[KeysAndValues, ...]:
            return tuple((key.index_select(0, rows), value.index_select(0, rows)) for key, value in pairs)

        seen = None if self.seen is None else gather(self.seen)
        return Cache(gather(self.memory), self.src_lengths.index_select(0, rows), seen)


class Transformer(nn.Module):
    """A Transformer for translation (Vaswani et al. 2017) with the position scheme the config names.

    Args:
        config: the model's dimensions and choices.
        vocab_size: pieces of the shared vocabulary.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        warn_if_blind(config)
        self.config, self.vocab_size = config, vocab_size
        self.embedding = nn.Parameter(torch.randn(vocab_size, config.dim) * config.dim**-0.5)
        scheme = SCHEMES[config.positions]
        self.src_positions, self.tgt_positions = scheme(config), scheme(config)
        self.encoder = nn.ModuleList(EncoderLayer(config, self.src_positions) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config, self.tgt_positions) for _ in range(config.decoder_layers))
        self.encoder_norm, self.decoder_norm = (
            nn.LayerNorm(config.dim) if config.norm == "pre" else nn.Identity() for _ in range(2)
        )
        self.dropout = nn.Dropout(config.dropout)

    @property
    def max_length(self) -> int | None:
        """Longest sequence, in pieces, end included, that the model can hold; None where there is no limit."""
        return self.src_positions.max_length

    def embed(self, tokens: Tensor, positions: NoPositions, start: int) -> Tensor:
        """(rows, length) pieces at positions from `start` on -> (rows, length, dim)"""
        scaled = F.embedding(tokens, self.embedding) * self.config.dim**0.5
        return self.dropout(positions.embed(scaled, start))

    def encode(self, src: Tensor, src_lengths: Tensor) -> Tensor:
        """(rows, src_len) pieces, right-padded, and their (rows,) lengths -> memory (rows, src_len, dim)"""
        x = self.embed(src, self.src_positions, 0)
        for layer in self.encoder:
            x = layer(x, src_lengths)
        return self.encoder_norm(x)

    def start(self, memory: Tensor, src_lengths: Tensor) -> Cache:
        """A cache that has seen no target yet, for (rows, src_len, dim) memory."""
        layers = cast("Iterable[DecoderLayer]", self.decoder)
        return Cache(tuple(layer.cross_attention.project(memory) for layer in layers), src_lengths, None)

    def decode(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """(rows, new) target pieces after those in the cache -> hidden states (rows, new, dim), and the new cache."""
        x = self.embed(tokens, self.tgt_positions, cache.length)
        seen = []
        for i, layer in enumerate(self.decoder):
            past = None if cache.seen is None else cache.seen[i]
            x, keys_and_values = layer(x, cache.memory[i], cache.src_lengths, past)
            seen.append(keys_and_values)
        return self.decoder_norm(x), Cache(cache.memory, cache.src_lengths, tuple(seen))

    def step(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """(rows, new) target pieces after those in the cache -> logits (rows, new, vocab) of what follows each."""
        hidden, cache = self.decode(tokens, cache)
        return F.linear(hidden, self.embedding), cache

    def forward(self, src: Tensor, src_lengths: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher forcing: logits (rows, tgt_len, vocab) of what follows each of (rows, tgt_len) target pieces."""
        return self.step(tgt_in, self.start(self.encode(src, src_lengths), src_lengths))[0]
