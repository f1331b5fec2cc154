"""The compiled decoder: a step for all hypotheses, or a whole search, in one call of C, on a CPU, in float32 or int8.

`NativeDecoder` has the part of `Transformer` that searches use, `encode`, `start` and `step`, and beam search itself,
which needs no logits outside of the kernel. `unsupported_reason` says which models it does not support; these run on
PyTorch.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relattn import extension
from relattn.extension import FLOAT
from relattn.translation.config import ModelConfig
from relattn.translation.config.positions import (
    ClippedTables,
    DistanceBias,
    DistanceVectors,
    DotProduct,
    LearnedVectors,
    Rotation,
    Sinusoids,
)
from relattn.translation.errors import Diverged
from relattn.translation.kernels.packing import TERMS, Packing, padded
from relattn.translation.kernels.quantization import quantized_weights
from relattn.translation.model.positions.absolute import angles
from relattn.translation.model.positions.stack import StackPositions
from relattn.translation.model.transformer import Transformer
from relattn.translation.search.types import DIVERGED, NEVER, Hypothesis, SearchRules

BLOCK = 16  # as in `decoder.c`
MOST_POSITIONS = 8192  # of a search: its memory per step and hypothesis grows with the limit
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "gelu_sigmoid", "swish")  # codes in `decoder.h`

# Kinds of signals and mixers.
SUPPORTED = (Sinusoids, LearnedVectors, DotProduct, ClippedTables, DistanceBias, DistanceVectors, Rotation)

FOLDER = Path(__file__).parent
SOURCE = extension.Source("decoder", "decoder.h")

KERNELS: extension.Kernels | None = None
MISSING = ""
try:
    KERNELS = extension.load_best(extension.SUPPORTED["float32"], "float32", FOLDER, SOURCE)
except OSError as error:
    MISSING = str(error)


def unsupported_reason(model: Transformer, device: torch.device) -> str | None:
    """Return why the compiled decoder does not run a model on a device, or None."""
    if model.embedding.dtype not in (torch.float32, torch.int8):
        return f"the compiled decoder computes in float32, not in {str(model.embedding.dtype).removeprefix('torch.')}"
    return unsupported_config_reason(model.config, device)


def unsupported_config_reason(config: ModelConfig, device: torch.device) -> str | None:
    """Return why the compiled decoder does not run a model of a configuration on a device, or None."""
    if KERNELS is None:
        return f"no compiled decoder: {MISSING}"
    if device.type != "cpu":
        return f"the compiled decoder runs on CPUs, not on {device.type}"
    if not supports_positions(config):
        return f"the compiled decoder does not support {config.positions} positions"
    return None


def int8_kernel() -> int:
    """Return the best kernel for maps in int8 on this processor. With PAIRS, maps beyond its range get GENERIC."""
    assert KERNELS is not None
    return extension.best_kernel(KERNELS)


def supports_positions(config: ModelConfig) -> bool:
    """Return whether the compiled decoder computes the position scheme of a model."""
    return config.position_spec.consists_of(*SUPPORTED)


@dataclass(frozen=True)
class NativeCache:
    """State of decoding, with one row per hypothesis; the counterpart of `transformer.Cache`.

    A step writes into the blocks of the cache that it is given. So two steps from the same cache disturb each other.

    Attributes:
        memory: What depends on the sources, for all steps.
        sources: (groups,) source of each rows / groups consecutive rows.
        blocks: Keys and values of BLOCK positions each: (at least rows, layers · heads · 2 · head_dim · BLOCK).
        rows: Number of rows.
        length: Number of target positions.
    """

    memory: Memory
    sources: Tensor
    blocks: tuple[Tensor, ...]
    rows: int
    length: int

    def select(self, rows: Tensor) -> NativeCache:
        """Return the cache of the given rows, as `transformer.Cache.select` does."""
        source = rows // (self.rows // len(self.sources))  # (new_rows,) place in `sources`
        places, counts = source.unique_consecutive(return_counts=True)
        if counts.unique().numel() > 1:
            places = source
        blocks = tuple(block.index_select(0, rows) for block in self.blocks)
        return replace(self, sources=self.sources[places], blocks=blocks, rows=len(rows))

    def move(self, rows: Tensor, to: Tensor, keep: int) -> NativeCache:
        """Copy `rows` over the rows `to` and keep the first `keep` rows, in place, as `transformer.Cache.move` does.

        No row may be both copied and overwritten.
        """
        per_source = self.rows // len(self.sources)
        self.memory.decoder.move(self, rows, to)
        first = to % per_source == 0
        places, sources = to[first] // per_source, self.sources[rows[first] // per_source]
        return replace(self, sources=self.sources.index_copy(0, places, sources)[: keep // per_source], rows=keep)


class Memory(NamedTuple):
    """What a search computes once: the sources' keys and values, and positions up to a limit.

    Attributes:
        decoder: The decoder.
        capacity: Largest number of target positions.
        arguments: Arguments of the kernel that are the same in all steps.
        src_lengths: (sources,) valid source positions.
        kept: Tensors that `arguments` points to.
    """

    decoder: NativeDecoder
    capacity: int
    arguments: dict[str, Any]
    src_lengths: Tensor
    kept: list[Any]


class NativeDecoder:
    """The decoder of a model, with its weights packed for the kernel.

    Args:
        model: A model with `unsupported_reason(model) is None`. Its weights must not change afterwards.
        kernel: Kernel of the maps: FLOAT, or one for a quantized model.
    """

    def __init__(self, model: Transformer, kernel: int = FLOAT) -> None:
        assert KERNELS is not None
        self.model, self.library, self.types = model, KERNELS.library, KERNELS.structures
        for function in (self.library.relattn_space, self.library.relattn_memory_space):
            function.restype = ctypes.c_ssize_t
        panel = extension.panel_of(KERNELS)
        config = model.config
        pack = self.pack = Packing(self.types, panel, config, kernel)
        self.spec = config.position_spec
        self.layers = [pack.layer(layer) for layer in model.decoder]
        self.memory_map = pack.memory_map(model.decoder)
        bias = model.output_bias
        logits_bias = torch.zeros(model.vocab_size) if bias is None else bias.detach()
        output_name = "embedding" if model.output_weight is None else "output_weight"
        output = pack.table(model, output_name, logits_bias, padding=-math.inf)

        def embedding(name: str) -> dict[str, Any]:
            if kernel == FLOAT:
                return {"embedding": pack.keep(getattr(model, name).detach())}
            return {"embedding_map": output if name == output_name else pack.table(model, name)}

        self.arguments: dict[str, Any] = {
            "output": output,
            **embedding("embedding"),
            "vocab": model.vocab_size,
            "dim": config.dim,
            "heads": config.heads,
            "head_dim": pack.padded,
            "rotary_dim": self.pack.head_dim // 2,
            "layer_count": config.decoder_layers,
            "pre_norm": config.norm == "pre",
            "activation": ACTIVATIONS.index(config.activation),
            "embedding_scale": config.dim**0.5 if config.scaled_embeddings else 1.0,
            "final_norm": pack.norm(model.decoder_norm),
            "epsilon": config.norm_epsilon,
        }
        self.encoder_arguments = {
            **self.arguments,
            **({} if model.src_embedding is None else embedding("src_embedding")),
            "layer_count": config.encoder_layers,
            "final_norm": pack.norm(model.encoder_norm),
        }
        self.encoder = [pack.layer(layer) for layer in model.encoder]
        self._encoder_positions: tuple[int, Any, Any] = (-1, None, None)  # their number, and what `_positions` returns

    def release(self) -> None:
        """Free the integers of a quantized model, which this decoder has packed. The model is of no more use."""
        for _, module, name in quantized_weights(self.model):
            getattr(module, name).data = torch.empty(0, dtype=torch.int8)

    @torch.inference_mode()
    def encode(self, src: Tensor, src_lengths: Tensor) -> Tensor:
        """Return the memory (rows, src_len, dim), as `Transformer.encode` does, with zeros in the padding.

        The memory of a source does not depend on the other sources.
        """
        src, src_lengths = src.contiguous(), src_lengths.contiguous()
        encoded = torch.zeros(*src.shape, self.model.config.dim)
        length = src.shape[1] if self.model.max_length else -(-src.shape[1] // TERMS) * TERMS
        held = self._encoder_positions
        if held[0] < length:
            stack = self.encoder, self.model.encoder, self.model.src_positions
            held = self._encoder_positions = length, *self._positions(*stack, length)
        arguments = self.types["arguments"](
            **self.encoder_arguments | held[1],
            tokens=src.data_ptr(),
            src_lengths=src_lengths.data_ptr(),
            encoded=encoded.data_ptr(),
            rows=len(src),
            src_len=src.shape[1],
        )
        self._call("encode", arguments)
        return encoded

    def _call(self, name: str, arguments: Any) -> None:
        """Call a function of the kernel with a workspace."""
        space_of = self.library.relattn_memory_space if name == "memory" else self.library.relattn_space
        space = torch.empty(space_of(ctypes.byref(arguments)))
        arguments.space = space.data_ptr()
        getattr(self.library, f"relattn_{name}")(ctypes.byref(arguments))

    def _positions(
        self, layers: Sequence[Any], modules: Iterable[Any], stack: StackPositions, length: int
    ) -> tuple[dict[str, Any], list[Any]]:
        """Return the arguments of a stack that depend on the number of positions, and what they point to.

        Args:
            layers: The packed layers.
            modules: The layers of the model.
            stack: The positions of the model's encoder or decoder.
            length: Number of positions.
        """
        mixer, left, right = self.spec.mixer, 0, 0  # the distances that have a label
        array = (self.types["layer"] * len(layers))(*layers)
        kept: list[Any] = [array]
        pointers = {"layers": ctypes.cast(array, ctypes.c_void_p)}
        if isinstance(mixer, ClippedTables):
            left, right = mixer.left, mixer.right
        elif isinstance(mixer, DistanceBias | DistanceVectors):
            left = right = length - 1
        right = 0 if stack.is_causal else right
        for packed, module in zip(array, modules, strict=True):
            if isinstance(mixer, DistanceBias | DistanceVectors):
                kept += self.pack.distance_terms(packed, module.self_attention.attention, left, right)
        if self.spec.signal is not None:
            kept.append(stack.embed(torch.zeros(1, length, self.model.config.dim), 0))
            pointers["signal"] = kept[-1].data_ptr()
        if isinstance(mixer, Rotation):
            angle = angles(torch.arange(length), self.pack.head_dim)
            kept.append(torch.cat([angle.cos(), angle.sin()], dim=1))
            pointers["rotation"] = kept[-1].data_ptr()
        clips = isinstance(mixer, ClippedTables) and mixer.beyond == "clip"
        return {**pointers, "left": left, "right": right, "clips": clips}, kept

    @torch.inference_mode()
    def start(self, memory: Tensor, src_lengths: Tensor, capacity: int) -> NativeCache:
        """Return a cache without target positions, as `Transformer.start` does, for at most `capacity` of them."""
        sources, src_len, _ = memory.shape
        width, count = padded(src_len), len(self.layers)
        keys_and_values = torch.empty(count, sources, self.pack.heads, 2, self.pack.padded * width)
        x = memory.flatten(0, 1).contiguous()
        arguments = self.types["memory"](
            keys_values=self.memory_map,
            x=x.data_ptr(),
            to=keys_and_values.data_ptr(),
            rows=len(x),
            x_row=x.stride(0),
            src_len=src_len,
            row_len=width,
            layer_count=count,
            heads=self.pack.heads,
            head_dim=self.pack.padded,
        )
        self._call("memory", arguments)
        positions, kept = self._positions(self.layers, self.model.decoder, self.model.tgt_positions, capacity)
        for packed, memory_of_layer in zip(kept[0], keys_and_values, strict=True):
            packed.memory = memory_of_layer.data_ptr()
        fixed = {**self.arguments, **positions, "src_len": src_len}
        held = Memory(self, capacity, fixed, src_lengths.contiguous(), [keys_and_values, *kept])
        return NativeCache(held, torch.arange(sources), (), sources, 0)

    def step(self, tokens: Tensor, cache: NativeCache) -> tuple[Tensor, NativeCache]:
        """Return the logits (rows, new, vocab) of the piece after each of `tokens`, as `Transformer.step` does."""
        logits = torch.empty(tokens.shape[1], len(tokens), self.model.vocab_size)
        for column, own in zip(tokens.T, logits, strict=True):
            cache = self._run(column.contiguous(), cache, logits=own)
        return logits.transpose(0, 1), cache

    def attention(self, tokens: Tensor, cache: NativeCache, layer: int) -> Tensor:
        """Return the mean attention weights of a layer for `tokens`, (rows, new, src_len), without source padding."""
        weights = torch.zeros(tokens.shape[1], len(tokens), cache.memory.arguments["src_len"])
        for column, own in zip(tokens.T, weights, strict=True):
            cache = self._run(column.contiguous(), cache, attention=own, layer=layer)
        return weights.transpose(0, 1)

    @torch.inference_mode()
    def search(
        self, memory: Tensor, src_lengths: Tensor, limits: Tensor, rules: SearchRules, given: Sequence[int] = ()
    ) -> list[list[Hypothesis]]:
        """Search a batch in one call of C, and return what `beam.search` returns for it, without prefixes of sentences.

        Args:
            memory: (sentences, src_len, dim), output of the encoder.
            src_lengths: (sentences,) valid source positions.
            limits: (sentences,) maximum number of generated tokens.
            rules: Settings of the search.
            given: The `rules.given` first tokens of all hypotheses.

        Raises:
            Diverged: The model's log-probabilities are NaN.
            MemoryError: The cache does not fit in memory.
        """
        sentences, capacity, beam = len(memory), int(limits.max()), rules.beam_size
        held, limits = self.start(memory, src_lengths, capacity).memory, limits.contiguous()
        first = torch.tensor(given, dtype=torch.long)
        banned = torch.tensor(rules.banned)
        penalties = torch.tensor([rules.penalty(length) for length in range(capacity + 2)])
        tokens = torch.empty(sentences, beam, capacity, dtype=torch.long)
        scores = torch.empty(sentences, beam)
        arguments = self.types["search"](
            step=self.types["arguments"](
                **held.arguments,
                src_lengths=held.src_lengths.data_ptr(),
                banned=banned.data_ptr(),
                banned_count=len(banned),
            ),
            limits=limits.data_ptr(),
            penalties=penalties.data_ptr(),
            tokens=tokens.data_ptr(),
            scores=scores.data_ptr(),
            given=first.data_ptr(),
            given_count=len(first),
            sentences=sentences,
            capacity=capacity,
            beam=beam,
            best=rules.n_best,
            early_stopping=(False, True, "heuristic").index(rules.early_stopping),
            bos=rules.bos,
            eos=rules.eos,
        )
        steps = self.library.relattn_search(ctypes.byref(arguments))
        if steps == -1:
            raise Diverged(DIVERGED)
        if steps == -2:
            raise MemoryError(f"the cache of a search must fit in memory, got {sentences} sentences and beam {beam}")
        found = zip(tokens[:, : rules.n_best, :steps].tolist(), scores[:, : rules.n_best].tolist(), strict=True)
        return [
            [Hypothesis(row[: row.index(rules.eos)], score) for row, score in zip(*each, strict=True) if score > NEVER]
            for each in found
        ]

    def move(self, cache: NativeCache, rows: Tensor, to: Tensor) -> None:
        """Copy rows of a cache over others, in place."""
        arguments = self._pointed(cache)
        rows, to = rows.contiguous(), to.contiguous()
        self.library.relattn_move(
            ctypes.byref(arguments),
            ctypes.c_void_p(rows.data_ptr()),
            ctypes.c_void_p(to.data_ptr()),
            ctypes.c_ssize_t(len(rows)),
        )

    def _run(self, tokens: Tensor, cache: NativeCache, *, layer: int = 0, **outputs: Tensor) -> NativeCache:
        """Run a step, and let it write its logits (rows, vocab) or the attention (rows, src_len) of a layer."""
        memory, at = cache.memory, cache.length
        if at >= memory.capacity:
            raise ValueError(f"a cache for {memory.capacity} positions must not get more")
        if at % BLOCK == 0:
            block = torch.empty(cache.rows, len(self.layers) * self.pack.heads * 2 * self.pack.padded * BLOCK)
            cache = replace(cache, blocks=(*cache.blocks, block))
        arguments = self._pointed(cache)
        inputs = {"tokens": tokens, "sources": cache.sources, "src_lengths": memory.src_lengths, **outputs}
        for name, tensor in inputs.items():
            setattr(arguments, name, tensor.data_ptr())
        arguments.rows, arguments.per_source = cache.rows, cache.rows // max(1, len(cache.sources))
        arguments.attention_layer = layer
        self._call("step", arguments)
        return replace(cache, length=at + 1)

    def _pointed(self, cache: NativeCache) -> Any:
        """Return arguments that point to the blocks of a cache."""
        arguments = self.types["arguments"](**cache.memory.arguments, position=cache.length)
        addresses = (ctypes.c_void_p * len(cache.blocks))(*(block.data_ptr() for block in cache.blocks))
        arguments.blocks = ctypes.cast(addresses, ctypes.c_void_p)
        return arguments
