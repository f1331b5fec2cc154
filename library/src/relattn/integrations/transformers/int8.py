"""Linear layers in int8 on CPUs, for inference.

A weight is quantized per output, and the rows of an input as they come, each with its own scale, so a row has the same
output in any batch. Sums are exact. The products are those of `backends.native`, chosen by the features of the
processor: dot products with weights of 8 bits, or pairs of products with weights of 7 bits on AVX2 and AVX-512 without
VNNI. On processors with AMX, PyTorch multiplies with oneDNN, which uses it. Where there is none of these, layers keep
float32, with a warning: other products of integers are slower.

Some channels of trained models are much larger than the others, and then most integers of a row are small. Where they
are large, the columns of the next weight are usually small. So inputs are divided by powers of two, and the columns
multiplied, until the columns are about equally large. This is SmoothQuant (Xiao et al. 2023) without examples: the
powers follow from the weight.

The weights in float32 do not change, so parameters keep their names and `restore` is exact. Exported models compute in
float32, because integers that are exact here may not be exact on another processor. Compiled models do so too, because
their graphs would not notice changes of a weight.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relattn.backends.native import int8 as native_int8
from relattn.backends.native import library
from relattn.backends.native.int8 import GENERIC, LARGEST_WIDE, MOST_IN_PANEL, MOST_INPUTS
from relattn.integrations.transformers.forward_patch import Scope, is_exporting

LEAST = 64  # inputs and outputs; smaller layers gain nothing
MOST_SMOOTHED = 12  # logarithm of the largest power of two that a column is multiplied with
SAMPLED = 8  # rows and columns of a weight in which changes are looked for, or a few more
_BLOCK = 512  # rows that are computed at once, which bounds the memory of their sums
_TINY = torch.finfo(torch.float32).tiny
_log = logging.getLogger(__name__)
_shared = threading.local()  # of `shared_input`


class Integers(NamedTuple):
    """Weights in int8 of layers that read the same input: one weight, with the outputs of all layers one after another.

    Attributes:
        identities: What shows that a weight has changed, per layer.
        weight: The integers, for `product`.
        factors: (inputs,) with which inputs are multiplied first, or None.
    """

    identities: tuple[Any, ...]
    weight: Any
    factors: Tensor | None


class Int8Linear(nn.Linear):
    """A linear layer that computes in int8 if no gradient is needed, and else in float32.

    `nn.Linear` becomes one by exchanging its class (`quantize`).
    """

    _integers: Integers | None = None  # also of the layers with which it was computed
    scopes: tuple[Scope, ...] = ()  # of the calls that need it in int8; a copy has none, and stays as it is

    @property
    def lasts(self) -> bool:
        """Whether it still computes in int8 when all blocks have ended."""
        return not self.scopes or any(not scope.is_block for scope in self.scopes)

    def forward(self, input: Tensor) -> Tensor:
        if is_exporting() or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return super().forward(input)
        layers = getattr(_shared, "layers", ())
        layers = layers if self in layers else (self,)
        if len(layers) > 1 and getattr(_shared, "input", None) is input:
            return _shared.outputs[layers.index(self)]
        parameters = [x for layer in layers for x in (layer.weight, layer.bias) if x is not None]
        is_plain = all(x.dtype == torch.float32 and x.is_cpu for x in (input, *parameters))
        is_plain = is_plain and all("weight" in layer._parameters for layer in layers)  # not computed from parameters
        # PyTorch refuses inputs of another width. A weight may have been replaced by one of another shape.
        width = input.shape[-1:]
        is_plain = is_plain and all(layer.weight.shape == (layer.out_features, *width) for layer in layers)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (input, *parameters)):
            _warn_of_gradients()
            is_plain = False
        if not is_plain or input.numel() == 0:
            return super().forward(input)
        outputs = _multiply(layers, input)
        if len(layers) > 1:
            _shared.input = input
            _shared.outputs = outputs
        return outputs[layers.index(self)]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_integers", "scopes")}


def quantize(model: nn.Module, keep: Sequence[str] = (), scope: Scope | None = None) -> list[Int8Linear]:
    """Let the linear layers of a model compute in int8, and return those that would not do so without `scope`.

    Layers with fewer than 64 inputs or outputs, the layer of the output embeddings, and the modules named in `keep`
    with all their parts keep float32.

    Raises:
        ValueError: `keep` is a string, or has a name of no module or of one in int8; a weight is not finite, not in
            float32, not on the CPU, or was made in inference mode; or the model has no such layer. Nothing is changed.
    """
    if isinstance(keep, str):
        raise ValueError(f"keep must be a sequence of names, got the string {keep!r}")
    find_head: Any = getattr(model, "get_output_embeddings", lambda: None)
    head = find_head()
    if unknown := set(keep) - {name for name, _ in model.named_modules()}:
        raise ValueError(f"keep must have names of model.named_modules(), got {', '.join(sorted(unknown))}")
    found = {}
    for name, module in model.named_modules():
        is_kept = any(f"{name}.".startswith(f"{kept}.") for kept in keep)
        if is_kept and isinstance(module, Int8Linear):
            raise ValueError(f"keep must have names of modules in float32, got {name} in int8; disable it first")
        is_large = type(module) in (nn.Linear, Int8Linear) and min(module.in_features, module.out_features) >= LEAST
        if is_large and not is_kept and module is not head:
            found[name] = module
    if not found:
        raise ValueError(f"int8 requires a linear layer of at least {LEAST} by {LEAST}, got {type(model).__name__}")
    for name, module in found.items():
        weight = module.weight
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            dtype = str(weight.dtype).removeprefix("torch.")
            raise ValueError(f"int8 requires weights in float32 on the CPU, got {dtype} on {weight.device} for {name}")
        if module.in_features > MOST_INPUTS:
            raise ValueError(f"int8 requires at most {MOST_INPUTS:,} inputs, got {module.in_features:,} for {name}")
        if weight.is_inference():  # which hides its changes
            raise ValueError(f"int8 requires weights that were not made in inference mode, got {name}")
        if not bool(weight.isfinite().all()):
            raise ValueError(f"int8 requires finite weights, got {name} with other values")
    if product() == GENERIC:
        _log.warning("linear layers keep float32: int8 is not faster on this processor, or there are no kernels for it")
        return []
    for module in found.values():
        module.__dict__.pop("_integers", None)  # a weight may have changed in a way that PyTorch does not count
    changed = [module for module in found.values() if not (isinstance(module, Int8Linear) and module.lasts)]
    for module in changed:
        if not isinstance(module, Int8Linear):
            module.__class__ = Int8Linear
            _integers_of((module,))
        module.scopes = (*module.scopes, scope or Scope())
    return changed


def withdraw(layer: Int8Linear, scope: Scope) -> None:
    """Undo one call of `quantize` for a layer. Does nothing if that was done."""
    if scope in layer.__dict__.get("scopes", ()):
        layer.scopes = tuple(each for each in layer.scopes if each is not scope)
        if not layer.scopes:
            restore(layer)


def restore(module: nn.Module) -> None:
    """Let a layer compute in float32 again."""
    if isinstance(module, Int8Linear):
        if type(module) is Int8Linear:
            module.__class__ = nn.Linear  # type: ignore[assignment]
        else:  # the class that a parametrization has made for this layer
            type(module).__bases__ = (nn.Linear,)
        for name in ("_integers", "scopes"):
            module.__dict__.pop(name, None)


def product() -> int | None:
    """Return the fastest product of this processor: a kernel of `backends.native`, or None for oneDNN's with AMX.

    GENERIC stands for products that are slower than those in float32.
    """
    kernels = library.KERNELS.get(torch.float32)
    pairs = library.KERNELS.get(torch.bfloat16)
    has_amx = pairs is not None and pairs.level == "amx"  # such processors multiply 8-bit integers in tiles too
    if has_amx and onednn_is_exact():
        return None
    return GENERIC if kernels is None else kernels.int8_kernels[-1]  # the best one


@functools.cache
def onednn_is_exact() -> bool:
    """Return whether oneDNN's sums of integers are exact. If its instructions are limited to AVX2, they saturate."""
    largest = torch.full((64, 64), 127, dtype=torch.int8, device="cpu")
    return bool((torch._int_mm(largest, largest) == 64 * 127 * 127).all())


def smoothed(weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a weight with columns of about equal size, and what its inputs have to be multiplied with; None: 1."""
    largest = weight.abs().amax(0)
    powers = (largest.median() / largest.clamp_min(_TINY)).log2().round().clamp(-MOST_SMOOTHED, MOST_SMOOTHED)
    return (weight * powers.exp2(), powers.neg().exp2()) if bool(powers.any()) else (weight, None)


def _integers_of(layers: tuple[Int8Linear, ...]) -> Integers:
    """Return the weights of layers in int8; made again if one has changed."""
    identities = tuple(map(_identity, layers))
    kept = layers[0]._integers
    outputs = layers[0].out_features
    if kept is not None and kept.identities == identities:
        return kept
    if kept is not None and len(layers) == 1 and identities[0] in kept.identities:
        start = kept.identities.index(identities[0]) * outputs
        if isinstance(kept.weight, native_int8.Weight):
            return kept._replace(weight=kept.weight.part(start, outputs))
        return kept._replace(weight=tuple(x[start : start + outputs] for x in kept.weight))
    weight, factors = smoothed(torch.cat([layer.weight.detach() for layer in layers]))
    kernel = product()
    if kernel is None:
        quantized: Any = native_int8.round_rows(weight, LARGEST_WIDE)
    else:
        quantized = native_int8.quantize(weight, kernel)
    for layer in layers:
        layer._integers = Integers(identities, quantized, factors)
    return Integers(identities, quantized, factors)


def _identity(layer: Int8Linear) -> tuple[Any, ...]:
    """Return what shows that a weight has changed."""
    weight = layer.weight
    # PyTorch does not count changes through `.data`, such as those of a merged LoRA: some numbers are compared too.
    row_step, column_step = (size // SAMPLED for size in weight.shape)
    sample = weight[::row_step, ::column_step].tolist()
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version, sample


def _multiply(layers: tuple[Int8Linear, ...], input: Tensor) -> tuple[Tensor, ...]:
    """Return the outputs of layers for one input, which is quantized once."""
    _, weight, factors = _integers_of(layers)
    rows = input.reshape(-1, input.shape[-1])
    outputs = len(layers) * layers[0].out_features
    bias: Tensor | None = layers[0].bias
    if len(layers) > 1 and bias is not None:
        bias = torch.cat([layer.bias for layer in layers])
    output = rows.new_empty(len(rows), outputs)
    if isinstance(weight, native_int8.Weight):
        native_int8.linear(rows, weight, bias, factors, output)
    else:
        for part, out in zip(rows.split(_BLOCK), output.split(_BLOCK), strict=True):
            scaled = part if factors is None else part * factors
            _multiply_with_onednn(scaled, weight[0], weight[1], bias, out)
    return output.view(*input.shape[:-1], outputs).chunk(len(layers), -1)


def _multiply_with_onednn(rows: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, out: Tensor) -> None:
    row_scale = rows.abs().amax(1, keepdim=True).clamp_min(_TINY) / 127
    integers = torch.div(rows, row_scale).round_().to(torch.int8)
    torch.mul(torch._int_mm(integers, weight.t()), scale, out=out).mul_(row_scale)
    if bias is not None:
        out.add_(bias)


@contextmanager
def shared_input(*layers: nn.Module) -> Iterator[None]:
    """Let layers that are called with the same tensor inside the block quantize it once, and multiply at once.

    Layers whose outputs cannot share panels of weights are computed one at a time, as elsewhere.
    """
    forms = set()
    for layer in layers:
        is_whole = type(layer) is Int8Linear and layer.out_features % MOST_IN_PANEL == 0
        forms.add((layer.out_features, layer.bias is None) if is_whole else None)
    if len(forms) == 1 and None not in forms:
        _shared.layers = layers
    try:
        yield
    finally:
        _shared.__dict__.clear()


@functools.cache
def _warn_of_gradients() -> None:
    """Warn once that layers compute in float32."""
    _log.warning("linear layers compute in float32, because gradients are enabled; use torch.inference_mode()")
