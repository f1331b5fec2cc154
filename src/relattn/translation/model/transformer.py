"""The encoder–decoder Transformer, whole at once for training and a few pieces at a time for search.

One embedding matrix serves source, target and output, unless the config has it otherwise. While decoding, what has been
seen is a `Cache`: a value that `step` takes and returns, whose rows can be gathered freely (beams reordered, finished
sentences dropped).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relattn import AttentionCache
from relattn.translation.config import ModelConfig
from relattn.translation.errors import InputError
from relattn.translation.model.layers import DecoderLayer, EncoderLayer, layer_norm
from relattn.translation.model.linear import PRODUCTS, fastest, use_products
from relattn.translation.model.mixers import State
from relattn.translation.model.positions import SCHEMES, NoPositions, blindness

KeysAndValues = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Cache:
    """What decoding has seen, one row per hypothesis.

    A source is held once for `rows / sources` consecutive rows, the beam of a sentence, so reordering a beam copies
    nothing of it.
    """

    memory: tuple[KeysAndValues, ...]  # a decoder layer: (sources, heads, src_len, head_dim), twice
    src_lengths: Tensor  # (sources,)
    seen: tuple[AttentionCache | State, ...]  # a decoder layer: of (rows, heads, length, head_dim), or a state

    @property
    def length(self) -> int:
        """Target positions held."""
        return self.seen[0].length

    def select(self, rows: Tensor) -> Cache:
        """The cache of the given rows, (new_rows,) indices, in that order."""
        seen = tuple(layer.select(rows) for layer in self.seen)
        source = rows // self._each  # (new_rows,)
        sources, counts = source.unique_consecutive(return_counts=True)
        if counts.unique().numel() > 1:
            sources = source
        if torch.equal(sources, torch.arange(len(self.src_lengths), device=rows.device)):
            return replace(self, seen=seen)
        memory = tuple((key.index_select(0, sources), value.index_select(0, sources)) for key, value in self.memory)
        return Cache(memory, self.src_lengths[sources], seen)

    def move(self, rows: Tensor, to: Tensor, keep: int) -> Cache:
        """The cache of its first `keep` rows, once `rows` have been put in the place of those at `to`, each (moved,).

        In place, as `AttentionCache.move`: this cache is given up. Where a row takes the place of another source's, all
        rows of the two sources do.
        """
        each, left = self._each, keep // self._each
        seen = tuple(layer.move(rows, to, keep) for layer in self.seen)
        first = (to % each == 0) & (rows // each != to // each)
        if left == len(self.src_lengths) and not bool(first.any()):
            return replace(self, seen=seen)
        source, place = rows[first] // each, to[first] // each
        memory = tuple(
            (key.index_copy_(0, place, key[source])[:left], value.index_copy_(0, place, value[source])[:left])
            for key, value in self.memory
        )
        return Cache(memory, self.src_lengths.index_copy(0, place, self.src_lengths[source])[:left], seen)

    @property
    def _each(self) -> int:
        """Rows of a source."""
        return self.seen[0].batch // len(self.src_lengths)


class Transformer(nn.Module):
    """A Transformer for translation (Vaswani et al. 2017) with the position scheme the config names.

    Args:
        config: the model's dimensions and choices.
        vocab_size: pieces of the vocabulary, of both sides unless `tgt_vocab_size` is given.
        tgt_vocab_size: pieces of the target's.

    Raises:
        InputError: source and target share embeddings, but have vocabularies of different sizes.
    """

    products: str  # those of its linear maps, by their name in `linear.PRODUCTS`; `use_products` changes them

    def __init__(self, config: ModelConfig, vocab_size: int, tgt_vocab_size: int | None = None) -> None:
        super().__init__()
        told = blindness(config)
        if told is not None:
            warnings.warn(told, stacklevel=2)
        tgt_vocab_size = vocab_size if tgt_vocab_size is None else tgt_vocab_size
        self.config, self.vocab_size = config, tgt_vocab_size
        shared = config.shared_embeddings
        if vocab_size != tgt_vocab_size and shared in ("all", "inputs"):
            raise InputError(f"vocabularies of {vocab_size} and {tgt_vocab_size} pieces cannot share embeddings")
        self.embedding = _embedding(tgt_vocab_size, config.dim)
        self.src_embedding = None if shared in ("all", "inputs") else _embedding(vocab_size, config.dim)
        self.output_weight = None if shared in ("all", "target") else _embedding(tgt_vocab_size, config.dim)
        self.output_bias = nn.Parameter(torch.zeros(tgt_vocab_size)) if config.output_bias else None
        scheme = SCHEMES[config.positions]
        self.src_positions, self.tgt_positions = scheme(config, is_causal=False), scheme(config, is_causal=True)
        self.encoder = nn.ModuleList(EncoderLayer(config, self.src_positions) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config, self.tgt_positions) for _ in range(config.decoder_layers))
        self.encoder_norm, self.decoder_norm = (
            layer_norm(config) if config.norm == "pre" else nn.Identity() for _ in range(2)
        )
        self.dropout = nn.Dropout(config.dropout)
        use_products(self, fastest())

    @property
    def max_length(self) -> int | None:
        """Longest sequence, in pieces, end included, that the model can hold; None where there is no limit."""
        return self.src_positions.max_length

    @property
    def unembedding(self) -> Tensor:
        """(vocab, dim) what makes logits of hidden states."""
        return self.embedding if self.output_weight is None else self.output_weight

    def embed(self, tokens: Tensor, table: Tensor, positions: NoPositions, start: int) -> Tensor:
        """(rows, length) pieces at positions from `start` on -> (rows, length, dim)"""
        embedded = F.embedding(tokens, table)
        if self.config.scaled_embeddings:
            embedded = embedded * self.config.dim**0.5
        return self.dropout(positions.embed(embedded, start))

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, length, dim) hidden states -> (rows, length, vocab)"""
        return PRODUCTS[self.products](hidden, self.unembedding, self.output_bias)

    def encode(self, src: Tensor, src_lengths: Tensor) -> Tensor:
        """(rows, src_len) pieces, right-padded, and their (rows,) lengths -> memory (rows, src_len, dim)"""
        table = self.embedding if self.src_embedding is None else self.src_embedding
        x = self.embed(src, table, self.src_positions, 0)
        for layer in self.encoder:
            x = layer(x, src_lengths)
        return self.encoder_norm(x)

    def start(self, memory: Tensor, src_lengths: Tensor, capacity: int = 0) -> Cache:
        """A cache that has seen no target yet, for (rows, src_len, dim) memory, with room for `capacity` pieces."""
        layers = list(cast("Iterable[DecoderLayer]", self.decoder))
        sources = tuple(layer.cross_attention.project(memory) for layer in layers)
        seen = tuple(layer.empty_cache(len(memory), capacity) for layer in layers)
        return Cache(sources, src_lengths, seen)

    def decode(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """(rows, new) target pieces after those in the cache -> hidden states (rows, new, dim), and the new cache."""
        x = self.embed(tokens, self.embedding, self.tgt_positions, cache.length)
        seen = []
        for layer, memory, before in zip(self.decoder, cache.memory, cache.seen, strict=True):
            x, after = layer(x, memory, cache.src_lengths, before)
            seen.append(after)
        return self.decoder_norm(x), replace(cache, seen=tuple(seen))

    def step(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """(rows, new) target pieces after those in the cache -> logits (rows, new, vocab) of what follows each."""
        hidden, cache = self.decode(tokens, cache)
        return self.logits(hidden), cache

    def forward(self, src: Tensor, src_lengths: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher forcing: logits (rows, tgt_len, vocab) of what follows each of (rows, tgt_len) target pieces."""
        memory = self.encode(src, src_lengths)
        x = self.embed(tgt_in, self.embedding, self.tgt_positions, 0)
        for layer in self.decoder:
            x, _ = layer(x, memory, src_lengths)
        return self.logits(self.decoder_norm(x))


def _embedding(pieces: int, dim: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(pieces, dim) * dim**-0.5)
