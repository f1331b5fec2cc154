"""Linear layers on oneDNN: results and gradients equal those of F.linear, and unsupported calls use F.linear."""

import copy
from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from relattn_mt.config import ModelConfig
from relattn_mt.model import linear as module
from relattn_mt.model.linear import Linear, linear
from relattn_mt.model.transformer import Transformer
from torch.utils._python_dispatch import TorchDispatchMode

from testing.covering import pairwise
from testing.numerics import error

ROWS, INPUTS, OUTPUTS = 307, 257, 263
FEW = 256**3 // (INPUTS * OUTPUTS)  # largest number of rows for which F.linear is used
LAYERS, HAS_ONEDNN = 17, module.has_onednn()  # layers of `transformer`
using_onednn = partial(patch.object, module, "use_onednn")
needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")


class Products(TorchDispatchMode):
    """Count the matrix products of oneDNN and of PyTorch, and check the layout of oneDNN's operands."""

    onednn = pytorch = 0

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        self.pytorch += operator.name() in ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::matmul")
        if operator.name() == "mkldnn::_linear_pointwise":
            x, weight = arguments[:2]
            assert x.is_contiguous()
            assert weight.is_contiguous() or weight.t().is_contiguous()
            self.onednn += 1
        return operator(*arguments, **(options or {}))


def operands(*lead, inputs=INPUTS):
    """Return x, W and b of a layer for which oneDNN is used."""
    shapes = (*(lead or (ROWS,)), inputs), (OUTPUTS, inputs), (OUTPUTS,)
    return [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(shapes)]


def assert_accurate(results, pytorchs, exact):
    """Check that errors against float64 are at most three times those of PyTorch in the same precision."""
    for got, own, want in zip(results, pytorchs, exact, strict=True):
        assert error(got, want) <= 3 * max(error(own, want), torch.finfo(own.dtype).eps * float(want.abs().max()))
        assert got.dtype == own.dtype


@using_onednn(True)
@needs_onednn
@pairwise(lead=[(ROWS,), (2, 3, 53)], inputs=[INPUTS, 2053], has_bias=[False, True],
          needed=[(0,), (1,), (2,), (0, 1, 2)], mode=[torch.enable_grad, torch.inference_mode],
          loss=[torch.sum, lambda y: y.square().sum()])  # fmt: skip
def test_outputs_and_gradients(lead, inputs, has_bias, needed, mode, loss):
    """`needed` has the indices of the operands x, W and b that require gradients. The gradient of a sum is expanded."""

    def results(layer, dtype=torch.float32):
        tensors = [tensor.to(dtype) for tensor in operands(*lead, inputs=inputs)[: 2 + has_bias]]
        leaves = [tensor.requires_grad_() for i, tensor in enumerate(tensors) if i in needed]
        with mode():
            output = layer(*tensors)
        assert output.requires_grad == bool(leaves and mode is torch.enable_grad)
        return [output.detach(), *(torch.autograd.grad(loss(output), leaves) if output.requires_grad else ())]

    with Products() as products:
        got = results(linear)
    assert (products.onednn, products.pytorch) == (1 if len(got) == 1 else 3, 0)
    assert_accurate(got, results(F.linear), results(F.linear, torch.float64))


UNSUPPORTED = {
    "float64": lambda x, w, b: linear(x.double(), w.double(), b.double()),
    "autocast": lambda x, w, b: torch.autocast("cpu", torch.bfloat16)(linear)(x, w, b),
    "few rows": lambda x, w, b: linear(x[:FEW], w, b),
    "no sequences": lambda x, w, b: linear(x.new_empty(0, 7, INPUTS), w, b),
    "few inputs": lambda x, w, b: linear(x[:, :255].contiguous(), w[:, :255].contiguous(), b),
    "few outputs": lambda x, w, b: linear(x, w[:255], b[:255]),
    "x with gaps": lambda x, w, b: linear(x.repeat_interleave(2, -1)[:, ::2], w, b),
    "W transposed": lambda x, w, b: linear(x, w.t().contiguous().t(), b),
    "b with gaps": lambda x, w, b: linear(x, w, b.repeat_interleave(2)[::2]),
    "another device": lambda x, w, b: torch.zeros(linear(x.to("meta"), w.to("meta"), b.to("meta")).shape),
    "vmap": lambda x, w, b: torch.vmap(linear, (0, None, None))(x.expand(2, ROWS, INPUTS), w, b),
}


@pytest.mark.parametrize("call", UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_unsupported_calls_are_those_of_pytorch(call):
    with Products() as products, using_onednn(True):
        got = call(*operands())
    with using_onednn(False):
        assert (products.onednn, torch.equal(got, call(*operands()))) == (0, True)


@using_onednn(True)
def test_compiled_and_exported_layers_are_those_of_pytorch():
    graphs, layer, (x, *_) = [], Linear(INPUTS, OUTPUTS), operands()
    torch.compile(layer, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph.forward)(x)
    graphs.append(torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},)))
    called = [[node.target for node in graph.graph.nodes if node.op == "call_function"] for graph in graphs]
    assert called == [[F.linear], [torch.ops.aten.linear.default]]


def transformer():
    torch.manual_seed(0)
    size = {"dim": 256, "heads": 4, "feed_forward_dim": 512, "encoder_layers": 1, "decoder_layers": 1}
    return Transformer(ModelConfig(**size, dropout=0.0, clip=2), 521)


def run(model, rows=8, *, training=False):
    """Return the products and results of a step of decoding, or of a training step with 37 pieces per row."""
    tokens, lengths = torch.arange(rows * 37).view(rows, 37), torch.full((rows,), 37)
    model.zero_grad()
    with torch.inference_mode(not training), Products() as products:
        if not training:
            cache = model.start(model.encode(tokens[:, :1], lengths // 37), lengths // 37)
            return products, [model.step(tokens[:, 1:2], cache)[0]]
        logits = model(tokens, lengths, tokens)
        logits.square().mean().backward()
    return products, [logits.detach(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("reason", [None, "not AMD", "no AVX-512", "no MKL", "switched off", "no oneDNN"])
@patch.object(module, "is_onednn_faster", module.is_onednn_faster.__wrapped__)
def test_all_layers_of_a_model_follow_the_choice(monkeypatch, reason):
    monkeypatch.setattr(module, "is_amd", lambda: reason != "not AMD")
    cpu = "AVX2" if reason == "no AVX-512" else "AVX512"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: cpu)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: reason != "no MKL")
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", reason != "switched off")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: reason != "no oneDNN" and HAS_ONEDNN)
    model, used = transformer(), reason is None and HAS_ONEDNN
    products, got = run(model, training=True)
    assert (products.onednn, products.pytorch) == ((3 * LAYERS, 0) if used else (0, 3 * LAYERS))
    assert model.state_dict().keys() == {name for name, _ in model.named_parameters()}
    if used:
        with using_onednn(False):
            assert_accurate(got, run(model, training=True)[1], run(copy.deepcopy(model).double(), training=True)[1])
