"""A model's weights in the form of the compiled decoder: maps in panels, heads padded, tables by label.

The structures are those of `decoder.h`. They point to tensors, which `Packing.kept` holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relattn.extension import FLOAT, GENERIC, GROUP, LARGEST, PAIRS
from relattn.translation.config import ModelConfig
from relattn.translation.config.positions import ClippedTables, DistanceBias, DistanceVectors
from relattn.translation.kernels.quantization import SCALE
from relattn.translation.model.layers import DecoderLayer
from relattn.translation.model.positions.distance_terms import DistanceAttention

PADDING, MARGIN = 16, 16  # as in `decoder.c`
TERMS = 64  # number of distances whose terms are computed at once
LOG2_E = 1 / math.log(2)


class Packing:
    """Packs the weights of one model.

    Args:
        structures: The structures of the kernel, by name.
        panel: Number of outputs of a panel.
        config: Configuration of the model.
        kernel: Kernel of the maps, which decides how they are packed. If it is not FLOAT, the model is quantized.
    """

    def __init__(self, structures: dict[str, Any], panel: int, config: ModelConfig, kernel: int = FLOAT) -> None:
        self.structures, self.panel, self.heads, self.kernel = structures, panel, config.heads, kernel
        self.mixer = config.position_spec.mixer
        self.head_dim = config.dim // config.heads
        self.padded = padded(self.head_dim)
        self.scale = LOG2_E / self.head_dim**0.5  # of scores
        self.kept: list[Tensor] = []

    def keep(self, tensor: Tensor) -> int:
        """Keep a tensor alive, and return its address."""
        tensor = tensor.contiguous()
        self.kept.append(tensor)
        return tensor.data_ptr()

    def map(self, weight: Tensor, bias: Tensor, scales: Tensor | None = None, *, padding: float = 0.0) -> Any:
        """Pack a weight (outputs, inputs), a bias and scales. `padding` is the bias of outputs that are added."""
        outputs, inputs = weight.shape
        end = torch.full((-outputs % self.panel,), padding)
        address = self.keep(torch.cat([bias, end]))
        if scales is None:
            floats = self.keep(self.panels(weight.T[None]))
            return self.structures["map"](floats, address, None, None, inputs, padded(outputs), FLOAT)
        kernel = GENERIC if self.kernel == PAIRS and weight.abs().max() > LARGEST else self.kernel
        scales = nn.functional.pad(scales, (0, len(end)))
        panels, sums = map(torch.from_numpy, pack(weight.numpy(), self.panel, kernel))
        return self.structures["map"](
            self.keep(panels), address, self.keep(scales), self.keep(sums), inputs, padded(outputs), kernel
        )

    def table(self, module: nn.Module, name: str, bias: Tensor | None = None, padding: float = 0.0) -> Any:
        """Pack embeddings (vocab, dim) as the outputs of a map."""
        weight, scales = weight_of(module, name)
        return self.map(weight, torch.zeros(len(weight)) if bias is None else bias, *scales, padding=padding)

    def linear(self, linear: nn.Linear) -> Any:
        """Pack a linear layer."""
        return self.map(*rows_of(linear))

    def panels(self, matrices: Tensor) -> Tensor:
        """Return matrices (count, inputs, outputs) as panels (count, outputs / panel, inputs, panel)."""
        outputs = matrices.shape[2]
        whole = nn.functional.pad(matrices, (0, -outputs % self.panel))
        return whole.unflatten(2, (-1, self.panel)).transpose(1, 2).contiguous()

    def norm(self, norm: nn.Module) -> Any:
        """Pack the weights of a layer normalization, or of `nn.Identity`, which has none."""
        if not isinstance(norm, nn.LayerNorm):
            return self.structures["norm"]()
        more = padded(len(norm.weight)) - len(norm.weight)
        vectors = (nn.functional.pad(each.detach(), (0, more)) for each in (norm.weight, norm.bias))
        return self.structures["norm"](*(self.keep(each) for each in vectors))

    def to_heads(self, linear: nn.Linear, times: float = 1.0) -> list[Tensor]:
        """Return the rows of a map to heads, times a factor, with the dimension of each head padded."""
        more = self.padded - self.head_dim
        weight, *vectors = rows_of(linear)
        rows = [weight * times if len(vectors) == 1 else weight, *(vector * times for vector in vectors)]
        by_head = (each.unflatten(0, (self.heads, -1)) for each in rows)
        return [nn.functional.pad(each, (0, 0) * (each.dim() - 2) + (0, more)).flatten(0, 1) for each in by_head]

    def from_heads(self, linear: nn.Linear) -> Any:
        """Pack a map from heads, with the dimension of each head padded."""
        weight, *vectors = rows_of(linear)
        more = (0, self.padded - self.head_dim)
        return self.map(nn.functional.pad(weight.unflatten(1, (self.heads, -1)), more).flatten(1), *vectors)

    def layer(self, layer: Any) -> Any:
        """Pack a layer of the encoder or the decoder. `distance_terms` adds the terms of distances."""
        own, is_causal = layer.self_attention, isinstance(layer, DecoderLayer)
        query = self.to_heads(own.query, self.scale)
        if isinstance(self.mixer, DistanceBias | DistanceVectors):
            content, _, _ = self.terms(own.attention, 0, 0)  # what is added to each query
            query[1] = query[1] + nn.functional.pad(content * self.scale, (0, self.padded - self.head_dim)).flatten()
        feed_in, _, _, feed_out = layer.feed_forward
        norms = [self.norm(residual.norm) for residual in layer.residuals]
        packed = self.structures["layer"](
            self_norm=norms[0],
            feed_norm=norms[-1],
            self_in=self.stacked(query, self.to_heads(own.key), self.to_heads(own.value)),
            self_out=self.from_heads(own.out),
            feed_in=self.linear(feed_in),
            feed_out=self.linear(feed_out),
        )
        if is_causal:
            packed.cross_norm = norms[1]
            packed.cross_query = self.map(*self.to_heads(layer.cross_attention.query, self.scale))
            packed.cross_out = self.from_heads(layer.cross_attention.out)
        if isinstance(self.mixer, ClippedTables):
            labels = self.mixer.left + 1 + (0 if is_causal else self.mixer.right)
            key, value = own.attention.rel_key, own.attention.rel_value
            if key is not None:
                table = self.table_rows(key.weight.detach(), labels)
                packed.rel_key = self.keep(self.panels(table.mT))
                packed.rel_key_head = 0 if len(table) == 1 else self.padded * -(-labels // self.panel) * self.panel
            if value is not None:
                table = self.table_rows(value.weight.detach(), labels)
                packed.rel_value = self.keep(table)
                packed.rel_value_head = 0 if len(table) == 1 else table[0].numel()
        return packed

    def memory_map(self, layers: Iterable[Any]) -> Any:
        """Pack the maps of a source to its keys and values in all layers, as one."""
        attentions = [layer.cross_attention for layer in layers]
        return self.stacked(*(self.to_heads(linear) for each in attentions for linear in (each.key, each.value)))

    def stacked(self, *maps: Sequence[Tensor]) -> Any:
        """Pack maps of the same inputs as one."""
        return self.map(*(torch.cat(parts) for parts in zip(*maps, strict=True)))

    def table_rows(self, table: Tensor, labels: int) -> Tensor:
        """Return the first rows of a table, (heads or 1, labels, padded head_dim)."""
        rows = table[None] if table.dim() == 2 else table
        return nn.functional.pad(rows[:, :labels], (0, self.padded - self.head_dim))

    def terms(self, attention: DistanceAttention, left: int, right: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return content and relative query (heads, 1, head_dim) of a query of zeros, and a table from −left to right.

        The table is computed in parts of fixed size, since PyTorch rounds the rows of small products differently: a
        distance must have the same terms in searches with other limits.
        """
        with torch.inference_mode():
            zeros, before = torch.zeros(1, self.heads, 1, self.head_dim), -(-(left + 1) // TERMS) * TERMS
            firsts = range(1 - before, right + 1, TERMS)
            parts = [attention.terms(zeros, torch.arange(first, first + TERMS)) for first in firsts]
            table, start = torch.cat([part[2] for part in parts], dim=1), before - 1 - left
            return parts[0][0][0], parts[0][1][0], table[:, start : start + left + 1 + right]

    def distance_terms(self, own: Any, attention: DistanceAttention, left: int, right: int) -> list[Tensor]:
        """Let a packed layer point to the terms of its scores for distances from −left to right, and return these."""
        content, relative, table = self.terms(attention, left, right)
        labels = left + 1 + right
        kept = []
        if isinstance(self.mixer, DistanceBias):
            bias = table[..., 0]  # times √head_dim
        else:
            panels = self.panels(nn.functional.pad(table, (0, self.padded - self.head_dim)).mT)
            own.rel_key, own.rel_key_head = panels.data_ptr(), panels[0].numel()
            kept.append(panels)
            bias = ((relative - content) * table).sum(-1)  # the kernel multiplies the table by the content query
        strips = nn.functional.pad(bias * self.scale, (MARGIN, MARGIN + padded(labels) - labels)).contiguous()
        own.rel_bias = strips.data_ptr()
        return [*kept, strips]


def pack(codes: np.ndarray, panel: int, kernel: int) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (outputs, inputs) in panels, and the numbers for each output or panel, as `int8.h` describes."""
    outputs, inputs = codes.shape
    codes = np.pad(codes, ((0, -outputs % panel), (0, -inputs % GROUP)))
    fours = codes.view(np.int32).reshape(-1, panel, codes.shape[1] // 4).swapaxes(1, 2)
    panels = np.ascontiguousarray(fours).view(np.int8).reshape(len(fours), -1, 8 * panel)  # (…, inputs / 8, bytes)
    if kernel != PAIRS:
        return panels, codes.sum(1, dtype=np.int32) * np.int32(-128)
    pairs = codes.view(np.int16)
    low, high = pairs << 8 >> 8, pairs >> 8
    sums = (low + high).reshape(len(codes), -1, 2, 2, 2)
    squares = (low * low + high * high).reshape(len(codes), -1, 4, 2)
    offsets = 128 * sums.sum(3, dtype=np.int16).cumsum(2, dtype=np.int16)  # (outputs, inputs / 16, 2, 2)
    offsets = offsets.reshape(len(panels), panel, -1, 2).swapaxes(1, 2)
    offsets = np.ascontiguousarray(offsets).view(np.int8).reshape(*panels.shape[:2], -1)
    largest = squares.sum(2, dtype=np.int16).reshape(len(panels), -1).max(1)
    return np.concatenate([panels, offsets], axis=2), largest.astype(np.int32)


def weight_of(module: nn.Module, name: str) -> tuple[Tensor, list[Tensor]]:
    """Return a weight, and its scales in a list, which is empty if the weight is not quantized."""
    scales = getattr(module, f"{name}{SCALE}", None)
    return getattr(module, name).detach(), [] if scales is None else [scales]


def rows_of(linear: nn.Linear) -> list[Tensor]:
    """Return the weight (outputs, inputs) of a linear layer, the bias, and the scales if it is quantized."""
    weight, scales = weight_of(linear, "weight")
    return [weight, linear.bias.detach(), *scales]


def padded(size: int) -> int:
    return -(-size // PADDING) * PADDING
