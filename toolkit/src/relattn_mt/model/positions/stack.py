"""Positions of a stack: the modules that a model's `PositionSpec` describes, for an encoder or a decoder."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any, cast

from relattn import RelativeAttention, SelfAttention
from torch import Tensor, nn

from relattn_mt.config import ModelConfig
from relattn_mt.config.positions import (
    ClippedTables,
    DistanceBias,
    DistanceVectors,
    DotProduct,
    LearnedVectors,
    OtherMixer,
    Rotation,
    Sinusoids,
)
from relattn_mt.model.attention import PlainAttention, projections
from relattn_mt.model.layers import norm
from relattn_mt.model.mixers import TokenMixer
from relattn_mt.model.positions.absolute import LearnedSignal, SinusoidalSignal
from relattn_mt.model.positions.distance_terms import BiasAttention, TransformerXLAttention
from relattn_mt.model.positions.rotary import RotaryAttention
from relattn_mt.support.errors import InputError


class StackPositions(nn.Module):
    """How an encoder or a decoder represents word order.

    It adds a signal to embeddings, and builds the token mixer of each layer. Parameters that all layers share belong to
    it, those of one layer to its token mixer.

    Args:
        config: Configuration of the model. Its `position_spec` names the kinds of signal and mixer.
        is_causal: Whether this is a decoder, where a position sees only itself and earlier positions.

    Raises:
        InputError: There is no module for a kind.
    """

    def __init__(self, config: ModelConfig, *, is_causal: bool) -> None:
        super().__init__()
        self.config = config
        self.spec = config.position_spec
        self.is_causal = is_causal
        self.mixer = config.mixer(is_causal)
        self.signal: nn.Module | None = None
        match self.spec.signal:
            case None:
                pass
            case Sinusoids():
                self.signal = SinusoidalSignal()
            case LearnedVectors(max_length, is_fixed):
                self.signal = LearnedSignal(cast(int, max_length), config.dim, is_fixed)
            case unknown:
                raise self._unknown(unknown)
        self.bias: nn.Module | None = None  # function from distances to biases that all layers share
        if isinstance(self.mixer, DistanceBias) and not self.mixer.per_layer:
            self.bias = self._module(self.mixer, config.heads)
        self.norm = norm(config) if config.embedding_norm else nn.Identity()

    def _module(self, mixer: DistanceBias | OtherMixer, size: int) -> Any:
        return resolve_name(mixer.module)(size, is_causal=self.is_causal)

    def embed(self, embeddings: Tensor, start: int) -> Tensor:
        """Return embeddings with the signal of their positions added, normalized if the model does so.

        Args:
            embeddings: (rows, length, dim), at positions start, start + 1, ….
            start: Position of the first embedding.

        Raises:
            ValueError: A position is outside the range that the signal covers.
        """
        signal = 0.0 if self.signal is None else self.signal(embeddings, start)
        return cast(Tensor, self.norm(embeddings + signal))

    def token_mixer(self) -> TokenMixer:
        """Build the sub-layer in which the positions of one layer see each other."""
        heads = self.config.heads
        if isinstance(self.mixer, OtherMixer):
            return self._module(self.mixer, self.config.dim)
        # Projections are initialised before the attention: the order decides which weights a seed gives.
        query, key, value, out = projections(self.config)
        return SelfAttention(query, key, value, out, self.attention(), num_heads=heads, is_causal=self.is_causal)

    def attention(self) -> nn.Module:
        """Build the attention of one layer, a module with the interface of `PlainAttention`."""
        config = self.config
        match self.mixer:
            case DotProduct():
                return PlainAttention(config)
            case ClippedTables(left, right) as tables:
                return RelativeAttention(
                    config.head_size,
                    (left, right),
                    config.heads if tables.per_head else None,
                    tables="both" if tables.keys and tables.values else "keys" if tables.keys else "values",
                    beyond=tables.beyond,
                    dropout=config.attention_dropout,
                )
            case DistanceBias():
                own = self._module(self.mixer, config.heads) if self.bias is None else self.bias.forward
                return BiasAttention(config, own)
            case DistanceVectors():
                return TransformerXLAttention(config)
            case Rotation():
                return RotaryAttention(config)
        raise self._unknown(self.mixer)

    def _unknown(self, kind: object) -> InputError:
        return InputError(f"{self.spec.name} positions: there is no module for {type(kind).__name__}")
