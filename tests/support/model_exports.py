"""Exports of small models from transformers, and what their graphs do at other lengths."""

import io
import warnings
from collections.abc import Callable
from typing import Any

import onnxruntime
import torch
from relattn.integrations import transformers as faster
from torch import Tensor, nn

from benchmarks.encoders import padding
from library.tests.integrations.test_transformers import FAMILIES, UNMASKED, Family, build, image, output, smaller_image

Graph = Callable[..., Tensor]


class Encoder(nn.Module):
    """A model that returns a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        options = {} if mask is None else {"attention_mask": mask}
        return self.model(inputs, **options).last_hidden_state


def trace(encoder: nn.Module, inputs: tuple[Tensor, ...], axis: int) -> Graph:
    return torch.jit.trace(encoder, inputs)


def export(encoder: nn.Module, inputs: tuple[Tensor, ...], axis: int) -> Graph:
    shapes = tuple({axis: torch.export.Dim.AUTO} for _ in inputs)
    return torch.export.export(encoder, inputs, dynamic_shapes=shapes).module()


def onnx(encoder: nn.Module, inputs: tuple[Tensor, ...], axis: int, **options: Any) -> Graph:
    file, names = io.BytesIO(), ["inputs", "mask"][: len(inputs)]
    torch.onnx.export(encoder, inputs, file, input_names=names, verbose=False, **options)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    present = [each.name for each in session.get_inputs()]

    def run(*inputs: Tensor) -> Tensor:
        feeds = {name: x.numpy() for name, x in zip(names, inputs, strict=True) if name in present}
        return torch.from_numpy(session.run(None, feeds)[0])

    return run


def onnx_dynamo(encoder: nn.Module, inputs: tuple[Tensor, ...], axis: int) -> Graph:
    shapes = tuple({axis: torch.export.Dim.AUTO} for _ in inputs)
    return onnx(encoder, inputs, axis, dynamo=True, dynamic_shapes=shapes)


def onnx_torchscript(encoder: nn.Module, inputs: tuple[Tensor, ...], axis: int) -> Graph:
    axes = {name: {axis: "n"} for name in ["inputs", "mask"][: len(inputs)]}
    return onnx(encoder, inputs, axis, dynamo=False, dynamic_axes=axes, opset_version=17)


EXPORTERS = {
    "torch.jit.trace": trace, "torch.export": export, "ONNX": onnx_dynamo, "ONNX, dynamo=False": onnx_torchscript,
}  # fmt: skip


def arguments(name: str, family: Family, length: int) -> tuple[Tensor, ...]:
    """Return the inputs of a length, which is the number of images for models of images."""
    if family.inputs in (image, smaller_image):
        return (family.inputs(0)[:1].repeat(length, 1, 1, 1),)
    inputs = family.inputs(length)
    return (inputs,) if name in UNMASKED else (inputs, padding(inputs))


def outcome(name: str, exporter: str, enabled: bool) -> str:
    """Export a model, and return "right" if its graph gives the outputs of the model's own code at four lengths.

    Images have a fixed size, so their number takes the place of the length. Otherwise return "not exported", "refused"
    if the graph raises an error at another length, or "wrong".
    """
    family = FAMILIES[name]
    model = build(family)
    is_image = family.inputs in (image, smaller_image)
    lengths = (2, 3, 1, 5) if is_image else [family.length * quarters // 4 for quarters in (2, 1, 3, 4)]
    encoder = Encoder(model).eval()
    torch.manual_seed(5)
    calls = [arguments(name, family, length) for length in lengths]
    own = [output(encoder, *call) for call in calls]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if enabled:
            faster.enable(model)
        try:
            graph = EXPORTERS[exporter](encoder, calls[0], 0 if is_image else 1)
        except Exception:
            return "not exported"
        finally:
            faster.disable(model)
        for call, right in zip(calls, own, strict=True):
            try:
                got = graph(*call)
            except Exception:
                return "refused"
            valid = slice(None) if len(call) == 1 else padding(right).bool()
            if got.shape != right.shape or not float((got - right)[valid].abs().max()) < 1e-4:
                return "wrong"
    return "right"
