"""The encoder–decoder Transformer.

Training computes all positions at once, with `Transformer.forward`. Search computes a few at a time:
`Transformer.step` takes a `Cache` and returns a new one. Beam search reorders, repeats and drops rows of the cache.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from relattn_mt.config import ModelConfig
from relattn_mt.config.positions import LearnedVectors
from relattn_mt.model.dropout import Dropout
from relattn_mt.model.layers import DecoderLayer, EncoderLayer, norm
from relattn_mt.model.mixers import MixerCache
from relattn_mt.model.positions.stack import StackPositions
from relattn_mt.tokens.tokenizer import SpecialTokens
from relattn_mt.weights import require_vocab_sizes

_BOS = SpecialTokens().bos


@dataclass(frozen=True)
class Cache:
    """State of decoding, with one row per hypothesis.

    Each source is stored once, for rows / sources consecutive rows: the hypotheses of one sentence. Reordering them
    therefore copies nothing of the source.

    Attributes:
        memory: Per decoder layer, the keys and values of the sources: (sources, heads, src_len, head_dim) each.
        src_lengths: (sources,) valid source positions.
        layers: Per decoder layer, the cache of its token mixer for the target positions so far.
    """

    memory: tuple[tuple[Tensor, Tensor], ...]
    src_lengths: Tensor
    layers: tuple[MixerCache, ...]

    @property
    def length(self) -> int:
        """Number of target positions in the cache."""
        return self.layers[0].length

    @property
    def rows(self) -> int:
        """Number of hypotheses."""
        return self.layers[0].batch

    def select(self, rows: Tensor) -> Cache:
        """Return the cache of the given rows: (new_rows,) indices, which may repeat.

        Consecutive rows of one source still share it if each source has the same number of them. Otherwise the result
        stores one source per row.
        """
        layers = tuple(layer.select(rows) for layer in self.layers)
        source = rows // (self.rows // len(self.src_lengths))  # (new_rows,)
        sources, counts = source.unique_consecutive(return_counts=True)
        if counts.unique().numel() > 1:
            sources = source
        if torch.equal(sources, torch.arange(len(self.src_lengths), device=rows.device)):
            return replace(self, layers=layers)
        memory = tuple((key.index_select(0, sources), value.index_select(0, sources)) for key, value in self.memory)
        return Cache(memory, self.src_lengths[sources], layers)


class Transformer(nn.Module):
    """A Transformer for translation (Vaswani et al. 2017) with the position scheme that its configuration names.

    By default one embedding matrix serves source, target and output; `config.shared_embeddings` changes that. A model
    that cannot tell word order emits a warning when it is created.

    Args:
        config: Configuration of the model.
        vocab_size: Number of pieces in the vocabulary, or in the source vocabulary if `tgt_vocab_size` is given.
        tgt_vocab_size: Number of pieces in the target vocabulary. Default: `vocab_size`.

    Attributes:
        max_length: Longest sequence in pieces, including the end, that the model supports. None: no limit.
        recompute: Whether layers store only their inputs for the backward pass, and compute the rest again there. This
            saves memory and costs a second forward pass. Dropout is the same both times, so gradients do not change.

    Raises:
        InputError: Source and target share embeddings, but their vocabularies have different sizes.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, tgt_vocab_size: int | None = None) -> None:
        super().__init__()
        spec = config.position_spec
        if spec.order_warning is not None:
            warnings.warn(spec.order_warning, stacklevel=2)
        tgt_vocab_size = vocab_size if tgt_vocab_size is None else tgt_vocab_size
        self.config = config
        self.vocab_sizes = (vocab_size, tgt_vocab_size)
        shared = config.shared_embeddings
        require_vocab_sizes(config, self.vocab_sizes)
        self.embedding = _embedding(tgt_vocab_size, config.dim)
        self.src_embedding = None if shared in ("all", "inputs") else _embedding(vocab_size, config.dim)
        self.output_weight = None if shared in ("all", "target") else _embedding(tgt_vocab_size, config.dim)
        self.output_bias = nn.Parameter(torch.zeros(tgt_vocab_size)) if config.output_bias else None
        self.src_positions = StackPositions(config, is_causal=False)
        self.tgt_positions = StackPositions(config, is_causal=True)
        encoder = [EncoderLayer(config, self.src_positions.token_mixer()) for _ in range(config.encoder_layers)]
        self.encoder = nn.ModuleList(encoder)
        decoder = [DecoderLayer(config, self.tgt_positions.token_mixer()) for _ in range(config.decoder_layers)]
        self.decoder = nn.ModuleList(decoder)
        self.encoder_norm = nn.Identity() if config.norm == "post" else norm(config)
        self.decoder_norm = nn.Identity() if config.norm == "post" else norm(config)
        if isinstance(spec.signal, LearnedVectors) and spec.signal.fixed:
            with torch.no_grad():
                self.embedding[_BOS] = 0
            # The first target token stays without an embedding. In an imported model it is another one than _BOS.
            self.embedding.register_hook(lambda gradient: gradient * self.embedding.detach().any(1, keepdim=True))
        self.dropout = Dropout(config.dropout)
        self.max_length = spec.max_length
        self.recompute = False

    def embed(self, tokens: Tensor, table: Tensor, positions: StackPositions, start: int) -> Tensor:
        """Return the embeddings of pieces, with their positions.

        Args:
            tokens: (rows, length) pieces at positions start, start + 1, ….
            table: (vocab, dim) embedding matrix.
            positions: Positions of the encoder or the decoder.
            start: Position of the first piece.

        Returns:
            (rows, length, dim).
        """
        embedded = F.embedding(tokens, table)
        if self.config.scaled_embeddings:
            embedded = embedded * self.config.dim**0.5
        return self.dropout(positions.embed(embedded, start))

    def _run(self, layer: nn.Module, *args: Any) -> Any:
        """Return the output of a layer, whose activations are recomputed in the backward pass if so configured."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(layer, *args, use_reentrant=False)
        return layer(*args)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits (rows, length, vocab) of hidden states (rows, length, dim)."""
        weight = self.embedding if self.output_weight is None else self.output_weight
        return linear(hidden, weight, self.output_bias)

    def encode(self, src: Tensor, src_lengths: Tensor) -> Tensor:
        """Run the encoder.

        Args:
            src: (rows, src_len) source pieces, padded on the right.
            src_lengths: (rows,) valid source positions.

        Returns:
            The memory, (rows, src_len, dim).
        """
        table = self.embedding if self.src_embedding is None else self.src_embedding
        x = self.embed(src, table, self.src_positions, 0)
        for layer in self.encoder:
            x = self._run(layer, x, src_lengths)
        return self.encoder_norm(x)

    def start(self, memory: Tensor, src_lengths: Tensor, capacity: int = 0) -> Cache:
        """Return a cache without target positions.

        Args:
            memory: (rows, src_len, dim), as `encode` returns it.
            src_lengths: (rows,) valid source positions.
            capacity: Number of target positions to reserve memory for.
        """
        layers = list(cast("Iterable[DecoderLayer]", self.decoder))
        sources = tuple(layer.cross_attention.project(memory) for layer in layers)
        empty = tuple(layer.self_attention.empty_cache(len(memory), capacity) for layer in layers)
        return Cache(sources, src_lengths, empty)

    def step(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Return the logits (rows, new, vocab) of the piece after each of `tokens`, and the new cache.

        Args:
            tokens: (rows, new) target pieces that follow those in the cache.
            cache: State after the earlier pieces.
        """
        x = self.embed(tokens, self.embedding, self.tgt_positions, cache.length)
        layers = []
        for layer, memory, before in zip(self.decoder, cache.memory, cache.layers, strict=True):
            x, after, _ = layer(x, memory, cache.src_lengths, before)
            layers.append(after)
        return self.logits(self.decoder_norm(x)), replace(cache, layers=tuple(layers))

    def forward(
        self, src: Tensor, src_lengths: Tensor, tgt_in: Tensor, alignment: tuple[int, int] | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Compute all logits at once, with teacher forcing.

        Args:
            src: (rows, src_len) source pieces, padded on the right.
            src_lengths: (rows,) valid source positions.
            tgt_in: (rows, tgt_len) target pieces, padded on the right.
            alignment: A decoder layer, and the number of its first heads whose attention is returned too, as in
                `ModelConfig.alignment`.

        Returns:
            Logits (rows, tgt_len, vocab) of the piece after each of `tgt_in`. With `alignment`, a pair of them and the
            mean attention weights (rows, tgt_len, src_len) of these heads, float32.
        """
        number, heads = alignment or (0, 0)
        memory = self.encode(src, src_lengths)
        x = self.embed(tgt_in, self.embedding, self.tgt_positions, 0)
        weights = None
        for index, layer in enumerate(self.decoder):
            if index == number:
                x, _, weights = self._run(layer, x, memory, src_lengths, None, heads)
            else:
                x, _, _ = self._run(layer, x, memory, src_lengths)
        logits = self.logits(self.decoder_norm(x))
        return logits if weights is None else (logits, weights)


def _embedding(pieces: int, dim: int) -> nn.Parameter:
    """Return a random embedding matrix (pieces, dim), normal with variance 1 / dim."""
    return nn.Parameter(nn.init.normal_(torch.empty(pieces, dim), std=dim**-0.5))


class SkipInitialization(TorchFunctionMode):
    """Within this context, leave the weights of new models uninitialised. For models whose weights are loaded next.

    The state of the random generator does not change. Random initialisation on the device "meta" would import sympy,
    torch._dynamo and Triton, which takes two seconds.
    """

    DRAWS = (nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_, Tensor.uniform_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.DRAWS:
            return args[0] if args else kwargs["tensor"]
        return (torch.empty if func is torch.randn else func)(*args, **kwargs)
