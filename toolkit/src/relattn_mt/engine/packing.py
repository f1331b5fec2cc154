"""A model's weights in the form of the compiled engine: maps in panels, heads padded, tables by label.

The structures are those of `relattn_mt.h`. They point to arrays, which `Packing.kept` holds. Weights are read and
packed one by one, so those of a file need no memory but for the one that is packed.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

import numpy as np

from relattn_mt.config import ModelConfig
from relattn_mt.config.positions import (
    ClippedTables,
    DistanceBias,
    DistanceVectors,
    DotProduct,
    Part,
    Rotation,
)
from relattn_mt.engine.library import FLOAT
from relattn_mt.engine.loader import Kernels
from relattn_mt.engine.quantization import in_float32, integers_of
from relattn_mt.engine.terms import TERMS, vector_terms
from relattn_mt.support.errors import InputError, require
from relattn_mt.weights import SCALE, Tensors

# as in `workspace.h`
PADDING = 16
MARGIN = 16
LINE = 64  # alignment of arrays in bytes, which makes reading them faster
LOG2_E = 1 / math.log(2)


class Packing:
    """Packs the weights of one model.

    Args:
        kernels: The kernels, which pack maps.
        config: Configuration of the model.
        weights: Weights of the model by name.
        kernel: Kernel of the maps, which decides how they are packed. If it is not FLOAT, the model is quantized.
    """

    def __init__(self, kernels: Kernels, config: ModelConfig, weights: Tensors, kernel: int) -> None:
        self.kernels = kernels
        self.structures = kernels.types
        self.kernel = kernel
        self.weights = weights
        self.config = config
        self.heads = config.heads
        self.head_dim = config.head_size
        self.mixer = config.position_spec.mixer
        self.padded = padded(self.head_dim)
        self.scale = LOG2_E / self.head_dim**0.5  # of scores
        self.kept: list[np.ndarray] = []
        self.terms: dict[str, partial[np.ndarray]] = {}  # a function of distances per self-attention, by its name

    def keep(self, array: np.ndarray, dtype: Any = np.float32) -> int:
        """Keep an array alive, or an aligned copy, and return its address. The arrays of a file are not writeable."""
        if array.ctypes.data % LINE or not (array.flags.c_contiguous and array.flags.writeable):
            copy = aligned(*array.shape, dtype=array.dtype)
            copy[...] = array
            array = copy
        self.kept.append(array)
        return address(array, dtype)

    def read(self, name: str) -> np.ndarray:
        """Return a weight in float32. Raises InputError if it is not finite."""
        weight = in_float32(self.weights, name)
        require(np.isfinite(weight).all(), f"weights must be finite, got NaN or infinity in {name}")
        return weight

    def rows(self, name: str, bias: np.ndarray | None = None) -> list[np.ndarray]:
        """Return a weight (outputs, inputs), a bias or zeros, and the scales of a weight in 8 bits."""
        if self.kernel == FLOAT or f"{name}{SCALE}" not in self.weights:
            weight = self.read(name)
            scales: list[np.ndarray] = []
        else:
            weight, *scales = integers_of(self.weights, name)
        if bias is None:
            bias = np.zeros(len(weight), np.float32)
        return [weight, bias, *scales]

    def linear_rows(self, prefix: str) -> list[np.ndarray]:
        """Return the rows of a linear layer with its bias."""
        return self.rows(f"{prefix}.weight", self.read(f"{prefix}.bias"))

    def map(self, *rows: np.ndarray, end: float = 0.0) -> Any:
        """Pack a map, and keep its memory; as `packed`."""
        packed, memory = self.packed(*rows, end=end)
        self.kept.append(memory)
        return packed

    def packed(
        self, weight: np.ndarray, bias: np.ndarray | None = None, scales: np.ndarray | None = None, *, end: float = 0.0
    ) -> tuple[Any, np.ndarray]:
        """Pack a weight (outputs, inputs), a bias and scales, and return the map and its memory.

        `end` is the bias of outputs that complete a panel.
        """
        outputs, inputs = weight.shape
        packing = self.structures["packing"](outputs=outputs, inputs=inputs, kernel=FLOAT, end_bias=end)
        weight = np.ascontiguousarray(weight)
        if scales is None:
            packing.weight = address(weight)
        else:
            packing.weight = address(weight, np.int8)
            packing.kernel = self.kernel
            scales = np.ascontiguousarray(scales)
            packing.scales = address(scales)
        if bias is not None:
            bias = np.ascontiguousarray(bias)
            packing.bias = address(bias)
        pack = self.kernels.functions["pack"]
        pointer = ctypes.addressof(packing)
        memory = aligned(pack(pointer), dtype=np.int8)
        packing.buffer = address(memory, np.int8)
        pack(pointer)
        return packing.map, memory

    def panels(self, rows: np.ndarray) -> tuple[np.ndarray, int]:
        """Return matrices (heads, labels, head_dim) in panels, and the stride of a head."""
        heads, labels, dim = rows.shape
        whole = with_zeros(rows, 1, -labels % self.kernels.panel)
        _, memory = self.packed(whole.reshape(-1, dim))
        return memory, whole[0].size if heads > 1 else 0

    def norm(self, prefix: str) -> Any:
        """Pack the weights that the model has for a normalization."""
        addresses = []
        for name in (f"{prefix}.weight", f"{prefix}.bias"):
            if name in self.weights:
                vector = self.read(name)
                addresses.append(self.keep(with_zeros(vector, 0, -len(vector) % PADDING)))
        return self.structures["norm"](*addresses)

    def to_heads(self, prefix: str, times: float = 1.0) -> list[np.ndarray]:
        """Return the rows of a map to heads, times a factor, with the dimension of each head padded."""
        weight, *vectors = self.linear_rows(prefix)
        if len(vectors) == 1:  # no scales, which would get the factor
            weight = weight * times
        padded_rows = []
        for array in (weight, *(vector * times for vector in vectors)):
            by_head = array.reshape(self.heads, self.head_dim, *array.shape[1:])
            padded_rows.append(self.pad(by_head, axis=1).reshape(-1, *array.shape[1:]))
        return padded_rows

    def from_heads(self, prefix: str) -> Any:
        """Pack a map from heads, with the dimension of each head padded."""
        weight, *vectors = self.linear_rows(prefix)
        by_head = self.pad(weight.reshape(len(weight), self.heads, -1), axis=2)
        return self.map(by_head.reshape(len(weight), -1), *vectors)

    def pad(self, array: np.ndarray, axis: int) -> np.ndarray:
        """Return an array with zeros after the dimension of heads, on an axis."""
        return with_zeros(array, axis, self.padded - self.head_dim)

    def layer(self, stack: str, number: int) -> Any:
        """Pack a layer of the encoder or the decoder. `distance_terms` adds the terms of distances."""
        prefix = f"{stack}.{number}"
        is_causal = stack == "decoder"
        packed = self.structures["layer"](
            self_norm=self.norm(f"{prefix}.residuals.0.norm"),
            feed_norm=self.norm(f"{prefix}.residuals.{2 if is_causal else 1}.norm"),
            feed_out=self.map(*self.linear_rows(f"{prefix}.feed_forward.3")),
        )
        feed_in = self.linear_rows(f"{prefix}.feed_forward.0")
        if self.config.feed_forward == "gated":
            feed_in = [with_zeros(part, 0, -len(part) % self.kernels.panel) for part in feed_in]
            packed.feed_gate = len(feed_in[0])
            packed.feed_in = self.stacked(feed_in, self.linear_rows(f"{prefix}.feed_forward.gate"))
        else:
            packed.feed_in = self.map(*feed_in)
        if is_causal:
            packed.cross_norm = self.norm(f"{prefix}.residuals.1.norm")
            packed.cross_query = self.map(*self.to_heads(f"{prefix}.cross_attention.query", self.scale))
            packed.cross_out = self.from_heads(f"{prefix}.cross_attention.out")
        own = f"{prefix}.self_attention"
        if is_causal and self.config.decoder_mixer == "ssru":
            parts = self.linear_rows(f"{own}.forget"), self.rows(f"{own}.value.weight")
            pad = padded(self.config.dim) - self.config.dim
            packed.self_in = self.stacked(*([with_zeros(array, 0, pad) for array in part] for part in parts))
        else:
            self._pack_attention(packed, own, is_causal)
        return packed

    def _pack_attention(self, packed: Any, own: str, is_causal: bool) -> None:
        """Add the self-attention of a name to a packed layer. Raises InputError for a mixer of another kind."""
        query = self.to_heads(f"{own}.query", self.scale)
        match self.mixer:
            case DistanceVectors():
                names = "u", "v", "distance.weight"
                u, v, weight = (self.read(f"{own}.attention.{name}").copy() for name in names)
                query[1] = query[1] + self.pad(u[:, 0] * self.scale, axis=1).reshape(-1)
                self.terms[own] = partial(vector_terms, u=u, v=v, weight=weight)
            case DistanceBias(per_layer=per_layer) as mixer:
                shared = "tgt_positions" if is_causal else "src_positions"
                prefix = f"{own}.attention" if per_layer else shared
                weights = {name: self.read(f"{prefix}.bias.{name}").copy() for name in mixer.weights(self.heads)}
                biases = resolve_name(mixer.in_numpy)
                self.terms[own] = partial(biases, heads=self.heads, is_causal=is_causal, **weights)
            case ClippedTables(left, right, keys, values):
                labels = left + 1 + (0 if is_causal else right)
                if keys:
                    table = self.table_rows(f"{own}.attention.rel_key.weight", labels)
                    memory, packed.rel_key_head = self.panels(table)
                    packed.rel_key = self.keep(memory, np.int8)
                if values:
                    table = self.table_rows(f"{own}.attention.rel_value.weight", labels)
                    packed.rel_value = self.keep(table)
                    packed.rel_value_head = 0 if len(table) == 1 else table[0].size
            case DotProduct() | Rotation():
                pass
            case other:
                raise unknown(self.config, other)
        packed.self_in = self.stacked(query, self.to_heads(f"{own}.key"), self.to_heads(f"{own}.value"))
        packed.self_out = self.from_heads(f"{own}.out")

    def memory_map(self) -> Any:
        """Pack the maps of a source to its keys and values in all layers, as one."""
        layers = range(self.config.decoder_layers)
        parts = (f"decoder.{i}.cross_attention.{part}" for i in layers for part in ("key", "value"))
        return self.stacked(*map(self.to_heads, parts))

    def stacked(self, *maps: Sequence[np.ndarray]) -> Any:
        """Pack maps of the same inputs as one."""
        return self.map(*(np.concatenate(parts) for parts in zip(*maps, strict=True)))

    def table_rows(self, name: str, labels: int) -> np.ndarray:
        """Return the first rows of a table, (heads or 1, labels, padded head_dim)."""
        table = self.read(name)
        rows = table[None] if table.ndim == 2 else table
        return self.pad(rows[:, :labels], axis=2)

    def distance_terms(self, packed: Any, own: str, left: int, right: int) -> list[np.ndarray]:
        """Let a packed layer point to the terms of its scores for distances from −left to right, and return these.

        `own` is the name of its self-attention.

        They are computed in parts of fixed size, since products of other sizes may be rounded differently: a distance
        must have the same terms in searches with other limits.
        """
        before = -(-(left + 1) // TERMS) * TERMS
        firsts = range(1 - before, right + 1, TERMS)
        start = before - 1 - left
        labels = left + 1 + right
        parts = [self.terms[own](np.arange(first, first + TERMS)) for first in firsts]
        biases = np.concatenate(parts, axis=1)[:, start : start + labels]
        kept = []
        if isinstance(self.mixer, DistanceVectors):
            memory, packed.rel_key_head = self.panels(self.pad(biases[..., :-1], axis=2))
            packed.rel_key = address(memory, np.int8)
            kept.append(memory)
            biases = biases[..., -1]
        strips = np.zeros((self.heads, MARGIN + padded(labels) + MARGIN), np.float32)
        strips[:, MARGIN : MARGIN + labels] = biases * LOG2_E
        packed.rel_bias = address(strips)
        return [*kept, strips]


def unknown(config: ModelConfig, part: Part) -> InputError:
    """Return the error for a signal or a mixer that `SUPPORTED` lists, but that no code computes."""
    kind = type(part).__name__
    return InputError(f"the compiled engine does not support {config.positions} positions: it has no code for {kind}")


def with_zeros(array: np.ndarray, axis: int, count: int) -> np.ndarray:
    """Return an array with `count` zeros after it on an axis; the array itself without any."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = 0, count
    return np.pad(array, widths) if count else array


def aligned(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Return a new array that begins at a multiple of LINE."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def address(array: np.ndarray, dtype: Any = np.float32) -> int:
    """Return the address of the first number of an array, which must be as the kernel reads it."""
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise TypeError(f"an array must have contiguous numbers of {np.dtype(dtype)}, got {array.dtype}")
    return array.ctypes.data


def padded(size: int) -> int:
    return -(-size // PADDING) * PADDING
