"""The compiled engine: a model packed for steps and searches in C, on a CPU, in float32 or int8.

`NativeDecoder` has the encoder, the keys and values of a memory, and the arguments of steps and searches, which are in
`engine`. `unsupported_reason` says which models it does not support; these run on PyTorch.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from relattn_mt.config import ModelConfig
from relattn_mt.config.model import Activation
from relattn_mt.config.positions import (
    SSRU,
    ClippedTables,
    DistanceBias,
    DistanceVectors,
    DotProduct,
    LearnedVectors,
    Rotation,
    Sinusoids,
    require_length,
)
from relattn_mt.engine import library, loader
from relattn_mt.engine.library import FLOAT, KERNELS_OF_MAPS
from relattn_mt.engine.packing import Packing, address, aligned, padded, unknown
from relattn_mt.engine.quantization import quantize
from relattn_mt.engine.terms import TERMS, angles, sinusoids
from relattn_mt.search.types import SearchRules
from relattn_mt.support.types import Fields, VocabSizes
from relattn_mt.weights import TensorDict, Tensors, is_quantized

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

BLOCK = 16  # as in `workspace.h`
ACTIVATIONS = get_args(Activation)  # in the order of their codes in `relattn_mt.h`

# Kinds of signals and mixers.
SUPPORTED = (Sinusoids, LearnedVectors, DotProduct, ClippedTables, Rotation, DistanceBias, DistanceVectors)

KERNELS: loader.Kernels | None = None
MISSING = ""
try:
    KERNELS = library.load()
except OSError as error:
    MISSING = str(error)


def unsupported_reason(config: ModelConfig, device: str = "cpu", dtype: str = "float32") -> str | None:
    """Return why the compiled engine does not run a model of a configuration on a device in a dtype, or None."""
    if dtype != "float32":
        return f"the compiled engine computes in float32, not in {dtype}"
    if KERNELS is None:
        return f"no compiled engine: {MISSING}"
    if (kind := device.partition(":")[0]) != "cpu":
        return f"the compiled engine runs on CPUs, not on {kind}"
    if not supports_positions(config):
        return f"the compiled engine does not support {config.positions} positions"
    return None


def supports_positions(config: ModelConfig) -> bool:
    """Return whether the compiled engine computes the position scheme of a model."""
    spec = config.position_spec
    if isinstance(spec.mixer, DistanceBias) and not spec.mixer.in_numpy:
        return False
    return all(isinstance(part, SUPPORTED) for part in spec.parts)


@dataclass
class NativeState:
    """State of decoding.

    Attributes:
        capacity: Largest number of target positions.
        arguments: Arguments of the kernel that are the same in all steps.
        src_lengths: (sources,) valid source positions.
        kept: Arrays that `arguments` points to.
        sources: (rows,) source of each row.
        blocks: Keys and values of BLOCK positions each: (at least rows, layers · heads · 2 · head_dim · BLOCK).
        length: Number of target positions.
    """

    capacity: int
    arguments: Fields
    src_lengths: np.ndarray
    kept: list[Any]
    sources: np.ndarray
    blocks: list[np.ndarray] = field(default_factory=list)
    length: int = 0


class NativeDecoder:
    """A model with its weights packed for the kernel.

    Tokens and lengths are arrays of integers, of any kind that NumPy converts.

    Args:
        config: A configuration with `unsupported_reason(config) is None`.
        vocab_sizes: Number of source and of target pieces.
        weights: Weights by name, as in `weight_table`. They must not change afterwards. Those in 8 bits are dequantized
            unless `int8`.
        int8: Whether to compute in int8. Weights in float32 are then quantized.
        kernels: Kernels to pack for; by default those of this processor.

    Raises:
        InputError: Weights are not finite, or no code computes the signal or the mixer.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocab_sizes: VocabSizes,
        weights: Tensors,
        *,
        int8: bool,
        kernels: loader.Kernels | None = None,
    ) -> None:
        kernels = kernels or KERNELS
        assert kernels is not None
        kernel = kernels.int8_kernels[-1] if int8 else FLOAT  # with PAIRS, maps beyond its range get GENERIC
        self.config = config
        self.spec = config.position_spec
        self.functions = kernels.functions
        self.types = kernels.types
        self.name = f"compiled engine for {kernels.level}{KERNELS_OF_MAPS[kernel]}"
        self.precision = "int8" if int8 else "fp32"
        self.vocab_size = vocab_sizes[1]
        if int8 and not is_quantized(weights):
            weights = quantize(weights)
        pack = self.pack = Packing(kernels, config, weights, kernel)
        self.memory_arguments = {
            "keys_values": pack.memory_map(),  # first, since packing it needs most memory
            "x_row": config.dim,
            "layer_count": config.decoder_layers,
            "heads": config.heads,
            "head_dim": pack.padded,
        }
        output_name = "output_weight" if "output_weight" in weights else "embedding"
        bias = pack.read("output_bias") if config.output_bias else None
        output = pack.map(*pack.rows(output_name, bias), end=-math.inf)

        def embedding(name: str) -> Fields:
            if kernel == FLOAT:
                return {"embedding": pack.keep(pack.read(name))}
            return {"embedding_map": output if name == output_name else pack.map(*pack.rows(name))}

        shared = {
            "output": output,
            **embedding("embedding"),
            "vocab": self.vocab_size,
            "dim": config.dim,
            "heads": config.heads,
            "head_dim": pack.padded,
            "rotary_dim": config.head_size // 2,
            "pre_norm": config.norm != "post",
            "activation": ACTIVATIONS.index(config.activation),
            "embedding_scale": config.dim**0.5 if config.scaled_embeddings else 1.0,
            "epsilon": config.norm_epsilon,
        }
        self.arguments: dict[str, Fields] = {}
        self.layers: dict[str, list[Any]] = {}
        self.signals: TensorDict = {}
        for stack, side in (("decoder", "tgt"), ("encoder", "src")):
            layer_count = config.decoder_layers if stack == "decoder" else config.encoder_layers
            self.arguments[stack] = shared | {
                "layer_count": layer_count,
                "embedding_norm": pack.norm(f"{side}_positions.norm"),
                "final_norm": pack.norm(f"{stack}_norm"),
            }
            self.layers[stack] = [pack.layer(stack, number) for number in range(layer_count)]
            match self.spec.signal:
                case LearnedVectors():
                    self.signals[stack] = pack.read(f"{side}_positions.signal.weight")
                case None | Sinusoids():
                    pass
                case other:
                    raise unknown(config, other)
        if "src_embedding" in weights:
            self.arguments["encoder"] |= embedding("src_embedding")
        self.has_ssru = self.arguments["decoder"]["ssru"] = config.decoder_mixer == "ssru"
        pack.weights = {}
        of_layer = padded(config.dim) if self.has_ssru else config.heads * 2 * pack.padded * BLOCK
        self.cache_row = config.decoder_layers * of_layer
        self._encoder_positions: tuple[int, Any, Any] = (-1, None, None)  # their number, and what `positions` returns

    def encode(self, src: ArrayLike, src_lengths: ArrayLike) -> np.ndarray:
        """Return the memory (rows, src_len, dim), as `Transformer.encode` does, with zeros in the padding.

        The memory of a source does not depend on the other sources.
        """
        src = integers(src)
        src_lengths = integers(src_lengths)
        rows, src_len = src.shape
        encoded = aligned(rows, src_len, self.config.dim)
        encoded[...] = 0.0
        length = src_len if self.spec.max_length else -(-src_len // TERMS) * TERMS
        held = self._encoder_positions
        if held[0] < length:
            held = self._encoder_positions = length, *self.positions("encoder", length)
        arguments = self.types["step"](
            **held[1],
            tokens=address(src, np.int64),
            src_lengths=address(src_lengths, np.int64),
            encoded=address(encoded),
            rows=rows,
            src_len=src_len,
        )
        self.call("encode", arguments)
        return encoded

    def call(self, name: str, arguments: Any) -> None:
        """Call a function of the kernel with a workspace."""
        pointer = ctypes.addressof(arguments)
        space = aligned(self.functions["memory_space" if name == "memory" else "space"](pointer))
        arguments.space = address(space)
        self.functions[name](pointer)

    def positions(self, stack: str, length: int) -> tuple[Fields, list[Any]]:
        """Return the arguments of the encoder or the decoder for a number of positions, and what they point to."""
        require_length(self.spec.max_length, length)
        is_decoder = stack == "decoder"
        mixer = self.config.mixer(is_decoder)
        layers = (self.types["layer"] * len(self.layers[stack]))(*self.layers[stack])
        kept: list[Any] = [layers]
        arguments = self.arguments[stack] | {"layers": ctypes.addressof(layers)}
        left = right = 0  # the distances that have a label
        match mixer:
            case ClippedTables(left, right):
                arguments["clips"] = mixer.beyond == "clip"
                right = 0 if is_decoder else right
            case Rotation():
                angle = angles(np.arange(length), self.config.head_size)
                kept.append(np.concatenate([np.cos(angle), np.sin(angle)], axis=1))
                arguments["rotation"] = address(kept[-1])
            case DotProduct() | SSRU():
                pass
            case _:
                left = length - 1
                right = 0 if is_decoder else left
                for number, packed in enumerate(layers):
                    kept += self.pack.distance_terms(packed, f"{stack}.{number}.self_attention", left, right)
        if self.spec.signal is not None:
            is_learned = stack in self.signals
            kept.append(self.signals[stack] if is_learned else sinusoids(np.arange(length), self.config.dim))
            arguments["signal"] = address(kept[-1])
        return arguments | {"left": left, "right": right}, kept

    def start(self, memory: np.ndarray, src_lengths: ArrayLike, capacity: int) -> NativeState:
        """Return the state of a search before the first token, for at most `capacity` target positions."""
        sources, src_len, _ = memory.shape
        width = padded(src_len)
        count = self.config.decoder_layers
        keys_and_values = aligned(count, sources, self.config.heads, 2, self.pack.padded * width)
        x = np.ascontiguousarray(memory, np.float32).reshape(sources * src_len, -1)
        arguments = self.types["memory"](
            **self.memory_arguments,
            x=address(x),
            to=address(keys_and_values),
            rows=len(x),
            src_len=src_len,
            row_len=width,
        )
        self.call("memory", arguments)
        positions, kept = self.positions("decoder", capacity)
        for packed, memory_of_layer in zip(kept[0], keys_and_values, strict=True):
            packed.memory = address(memory_of_layer)
        kept.append(keys_and_values)
        fixed = {**positions, "src_len": src_len}
        return NativeState(capacity, fixed, integers(src_lengths), kept, np.arange(sources))

    def search_arguments(self, rules: SearchRules, capacity: int, fixed: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        """Return the arguments of a search, with `fixed` ones of its steps, and the arrays that they point to."""
        penalties = np.array([rules.penalty(length) for length in range(capacity + 2)], np.float32)
        banned = integers(rules.banned)
        step = self.types["step"](**fixed, banned=address(banned, np.int64), banned_count=len(banned))
        arguments = self.types["search"](
            step=step,
            penalties=address(penalties),
            beam=rules.beam_size,
            best=rules.n_best,
            early_stopping=(False, True, "heuristic").index(rules.config.early_stopping),
            bos=rules.bos,
            eos=rules.eos,
        )
        return arguments, [penalties, banned]


def integers(numbers: ArrayLike) -> np.ndarray:
    """Return numbers as the kernel reads them."""
    return np.ascontiguousarray(numbers, np.int64)
