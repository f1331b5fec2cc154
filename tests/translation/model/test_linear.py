"""Linear layers on oneDNN: results and gradients equal those of F.linear, and unsupported calls use F.linear."""

from __future__ import annotations

import copy
import gc
import io
import itertools
from collections import Counter
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from relattn.translation import processor
from relattn.translation.config import ModelConfig
from relattn.translation.model import linear as module
from relattn.translation.model.linear import Linear, linear, prepack
from relattn.translation.model.transformer import Transformer

ROWS, INPUTS, OUTPUTS = 307, 257, 263
FEW = 256**3 // (INPUTS * OUTPUTS)  # largest number of rows for which F.linear is used
needs_onednn = pytest.mark.skipif(not module.has_onednn(), reason="this PyTorch has no oneDNN")
needs_bf16 = pytest.mark.skipif(not module.has_bf16(), reason="this processor has no bfloat16 instructions")


class Operators(TorchDispatchMode):
    """Count the matrix products of oneDNN and of PyTorch, and check the layout of oneDNN's operands."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.packed = 0  # products of oneDNN with a prepacked weight

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        self.calls[operator.name()] += 1
        if operator.name() == "mkldnn::_linear_pointwise":
            x, weight = arguments[:2]
            assert x.is_contiguous()
            self.packed += weight.is_mkldnn
            assert weight.is_mkldnn or weight.is_contiguous() or weight.t().is_contiguous()
        return operator(*arguments, **(options or {}))

    @property
    def onednn(self) -> int:
        return self.calls["mkldnn::_linear_pointwise"]

    @property
    def pytorch(self) -> int:
        names = ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::matmul")
        return sum(self.calls[name] for name in names)


@pytest.fixture(autouse=True)
def _onednn(monkeypatch):
    monkeypatch.setattr(module, "use_onednn", True)


def onednn_set_to(enabled: bool):
    return mock.patch.object(module, "use_onednn", enabled)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def sample(*lead: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, W and b of a layer for which oneDNN is used."""
    return normal(*(lead or (ROWS,)), INPUTS), normal(OUTPUTS, INPUTS, seed=1), normal(OUTPUTS, seed=2)


def derivatives(layer, tensors: list[Tensor]) -> list[Tensor]:
    """Return the output, and the gradients of a weighted sum of its squares for all inputs that require them."""
    output = layer(*tensors)
    inputs = [x for x in tensors if x.requires_grad]
    weights = normal(*output.shape, seed=3).to(output.dtype)
    return [output, *(torch.autograd.grad((output.square() * weights).sum(), inputs) if inputs else ())]


def assert_accurate(actual: list[Tensor], reference: list[Tensor], exact: list[Tensor]) -> None:
    """Check that the errors against float64 are at most three times those of PyTorch's float32."""
    for got, own, want in zip(actual, reference, exact, strict=True):
        assert (got.dtype, got.shape) == (torch.float32, want.shape)
        rounding = want.detach().abs().max() * torch.finfo(torch.float32).eps
        assert (got - want).detach().abs().max() <= 3 * max((own - want).detach().abs().max(), rounding)


def check(tensors: list[Tensor]) -> None:
    """Compare `linear` and its gradients with F.linear."""
    wide = [x.detach().double().requires_grad_(x.requires_grad) for x in tensors]
    assert_accurate(derivatives(linear, tensors), derivatives(F.linear, tensors), derivatives(F.linear, wide))


LAYOUTS = {
    "2-D": lambda: sample(),
    "3-D": lambda: sample(5, 61),
    "4-D": lambda: sample(2, 3, 53),
    "no b": lambda: sample()[:2],
    "long sums": lambda: (normal(ROWS, 2053), normal(OUTPUTS, 2053, seed=1), normal(OUTPUTS, seed=2)),
}


@needs_onednn
@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_outputs_and_gradients(make):
    tensors = [x.requires_grad_() for x in make()]
    with Operators() as operators:
        derivatives(linear, tensors)
    assert (operators.onednn, operators.pytorch) == (3, 0)
    check(tensors)


@needs_onednn
@pytest.mark.parametrize("needed", list(itertools.product([False, True], repeat=3)), ids=str)
def test_gradients_of_some_inputs(needed):
    tensors = [x.requires_grad_(each) for x, each in zip(sample(), needed, strict=True)]
    output = linear(*tensors)
    assert output.requires_grad == any(needed)
    if any(needed):
        output.sum().backward()  # its gradient is an expanded scalar
    assert [x.grad is not None for x in tensors] == list(needed)
    check(tensors)


@needs_onednn
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    tensors = [x.requires_grad_() for x in sample(FEW + 1)]
    with mode(), Operators() as operators:
        output = linear(*tensors)
    assert (operators.onednn, operators.pytorch, output.requires_grad) == (1, 0, False)
    check([x.detach() for x in tensors])


@needs_onednn
def test_first_and_second_derivatives_match_finite_differences(monkeypatch):
    """In float64, with F.linear instead of the operator, which supports only float32 and lower."""
    monkeypatch.setattr(module, "_onednn", F.linear)
    shapes = ((2, 3, 5), (7, 5), (7,))
    tensors = tuple(normal(*shape, dtype=torch.float64).requires_grad_() for shape in shapes)
    assert torch.autograd.gradcheck(module._Product.apply, tensors)
    assert torch.autograd.gradgradcheck(module._Product.apply, tensors)


def tangent(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(linear(forward_ad.make_dual(x, x), weight, bias)).primal


UNSUPPORTED = {
    "float64": lambda x, w, b: linear(x.double(), w.double(), b.double()),
    "bfloat16": lambda x, w, b: linear(x.bfloat16(), w.bfloat16(), b.bfloat16()),
    "few rows": lambda x, w, b: linear(x[:FEW], w, b),
    "no rows": lambda x, w, b: linear(x[:0], w, b),
    "no sequences": lambda x, w, b: linear(x.new_empty(0, 7, INPUTS), w, b),
    "few inputs": lambda x, w, b: linear(x[:, :255], w[:, :255].contiguous(), b),
    "few outputs": lambda x, w, b: linear(x, w[:255], b[:255]),
    "x transposed": lambda x, w, b: linear(x.t().contiguous().t(), w, b),
    "x with gaps": lambda x, w, b: linear(x.repeat_interleave(2, -1)[:, ::2], w, b),
    "x expanded": lambda x, w, b: linear(x[:1].expand(ROWS, INPUTS), w, b),
    "W transposed": lambda x, w, b: linear(x, w.t().contiguous().t(), b),
    "b with gaps": lambda x, w, b: linear(x, w, b.repeat_interleave(2)[::2]),
    "another device": lambda x, w, b: torch.zeros(linear(x.to("meta"), w.to("meta"), b.to("meta")).shape),
    "vmap": lambda x, w, b: torch.vmap(linear, (0, None, None))(x.expand(2, ROWS, INPUTS), w, b),
    "torch.func.grad": lambda x, w, b: torch.func.grad(lambda w: linear(x, w, b).sum())(w),
    "forward mode": tangent,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's forward mode warns
@pytest.mark.parametrize("call", UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_unsupported_calls_are_those_of_pytorch(call):
    with Operators() as operators:
        got = call(*sample())
    assert operators.onednn == 0
    with onednn_set_to(False):
        assert torch.equal(got, call(*sample()))


def test_autocast_and_the_switch_of_pytorch(monkeypatch):
    x, weight, bias = sample()
    with Operators() as operators, torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight, bias).dtype == torch.bfloat16
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with operators:
        linear(x, weight, bias)
    assert operators.onednn == 0


def test_subclasses_of_tensor_override_linear_layers():
    class Quantized(Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), options=None):
            if function is F.linear:
                return "its own"
            return super().__torch_function__(function, types, arguments, options)

    x, weight, bias = sample()
    assert linear(x, nn.Parameter(weight.as_subclass(Quantized)), bias) == "its own"


def test_compiled_layers_are_those_of_pytorch():
    targets = []

    def backend(graph, examples):
        targets.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    layer = torch.compile(Linear(INPUTS, OUTPUTS), fullgraph=True, backend=backend)
    layer(sample()[0].requires_grad_()).sum().backward()
    assert targets == [F.linear]


def test_exported_layers_are_those_of_pytorch():
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Linear(INPUTS, OUTPUTS), (sample()[0],), dynamic_shapes=({0: rows},))
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.aten.linear.default]


def test_a_layer_starts_as_in_the_library():
    """The same seed gives the same weights."""
    from relattn.nn import linear as library_linear

    for bias in (True, False):
        states = []
        for make in (Linear, library_linear):
            torch.manual_seed(0)
            states.append(make(5, 7, bias=bias).state_dict())
        assert list(states[0]) == list(states[1])
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def transformer() -> Transformer:
    torch.manual_seed(0)
    size = {"dim": 256, "heads": 4, "feed_forward_dim": 512, "encoder_layers": 1, "decoder_layers": 1}
    return Transformer(ModelConfig(**size, dropout=0.0, clip=2), 521)


def gradients(model: Transformer) -> tuple[Operators, list[Tensor]]:
    """Return the operators of a training step with 8 sentences of 37 pieces, the logits and the gradients."""
    tokens = torch.randint(4, 263, (2, 8, 37), generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    with Operators() as operators:
        logits = model(tokens[0], torch.full((8,), 37), tokens[1])
        logits.square().mean().backward()
    return operators, [logits, *(x.grad for x in model.parameters())]


LAYERS = 16 + 1  # with the output layer


@needs_onednn
def test_all_layers_of_a_model_use_it():
    model = transformer()
    operators, onednn = gradients(model)
    assert (operators.onednn, operators.pytorch) == (3 * LAYERS, 0)
    with onednn_set_to(False):
        operators, pytorch = gradients(model)
    assert (operators.onednn, operators.pytorch) == (0, 3 * LAYERS)
    assert_accurate(onednn, pytorch, gradients(model.double())[1])


def test_state_dicts_do_not_depend_on_it():
    states = []
    for enabled in (True, False):
        with onednn_set_to(enabled):
            model, file = transformer(), io.BytesIO()
            model.prepack()
            torch.save(model.state_dict(), file)
            states.append(file.getvalue())
    assert states[0] == states[1]


# Prepacked weights


def decode(model: Transformer, rows: int = 8) -> tuple[Operators, list[Tensor]]:
    """Return the operators of one step for some rows, and the logits."""
    tokens, lengths = torch.full((rows, 1), 5), torch.full((rows,), 1)
    with torch.inference_mode(), Operators() as operators:
        cache = model.start(model.encode(tokens, lengths), lengths)
        return operators, [model.step(tokens, cache)[0]]


PACKED_LAYERS = 2 + 2 + 1  # feed-forward layers, and the output layer


@needs_onednn
def test_prepacked_weights():
    model = transformer().eval()
    operators, pytorch = decode(model)
    assert operators.onednn == 0
    model.prepack()
    operators, packed = decode(model)
    assert (operators.onednn, operators.packed) == (PACKED_LAYERS, PACKED_LAYERS)
    assert decode(model, 3)[0].packed < PACKED_LAYERS
    assert_accurate(packed, pytorch, decode(model.double())[1])


@needs_bf16
def test_prepacked_weights_in_bfloat16():
    model = transformer().eval().bfloat16()
    _, [pytorch] = decode(model)
    with onednn_set_to(False):  # it is for float32
        model.prepack()
    operators, [packed] = decode(model)
    assert operators.packed == PACKED_LAYERS
    assert (packed - pytorch).abs().max() <= 2 * torch.finfo(torch.bfloat16).eps * pytorch.abs().max()


@needs_onednn
def test_prepacked_weights_are_not_used_in_training():
    model = transformer()
    model.prepack()
    operators, packed = gradients(model)
    assert operators.packed == 0
    with onednn_set_to(False):
        _, pytorch = gradients(model)
    assert_accurate(packed, pytorch, gradients(model.double())[1])


@torch.no_grad()
def add_one(weight: nn.Parameter) -> None:
    weight.add_(1)


def replace_data(weight: nn.Parameter) -> None:
    weight.data = weight.data + 1


def convert(weight: nn.Parameter) -> None:
    weight.data = weight.data.double()


@needs_onednn
@pytest.mark.parametrize("change", [add_one, replace_data, convert])
def test_a_prepacked_weight_that_changes_is_not_used(change):
    layer = Linear(512, 263, bias=False)
    prepack(layer.weight)
    for packed in (1, 0):
        x = normal(16, 512, dtype=layer.weight.dtype)
        with torch.no_grad(), Operators() as operators:
            torch.testing.assert_close(layer(x), x @ layer.weight.t(), rtol=1e-4, atol=1e-3)
        assert operators.packed == packed
        change(layer.weight)


@needs_onednn
def test_copies_are_not_prepacked():
    model, file = transformer(), io.BytesIO()
    model.prepack()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert decode(other)[0].packed == 0
        assert torch.equal(other.embedding, model.embedding)
    assert decode(model)[0].packed == PACKED_LAYERS


@needs_onednn
def test_prepacked_weights_are_freed_with_their_model():
    before = len(module._packed)
    model = transformer()
    model.prepack()
    assert len(module._packed) == before + PACKED_LAYERS
    del model
    gc.collect()
    assert len(module._packed) == before


# The choice


@pytest.mark.parametrize(
    ("vendor", "vectors", "has_mkl", "expected"),
    [
        ("AuthenticAMD", "AVX512", True, True),
        ("AuthenticAMD", "AVX2", True, False),
        ("AuthenticAMD", "AVX512", False, False),
        ("GenuineIntel", "AVX512", True, False),
        (None, "AVX512", True, False),
    ],
)
def test_choice_by_processor(tmp_path, monkeypatch, vendor, vectors, has_mkl, expected):
    cpuinfo = tmp_path / "cpuinfo"
    if vendor is not None:
        cpuinfo.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n", encoding="utf-8")
    monkeypatch.setattr(processor, "CPUINFO", cpuinfo)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    module.is_onednn_faster.cache_clear()
    try:
        assert module.is_onednn_faster() == expected
    finally:
        module.is_onednn_faster.cache_clear()


@pytest.mark.parametrize("faster", [False, True])
def test_layers_follow_the_choice(monkeypatch, faster):
    monkeypatch.setattr(module, "use_onednn", None)
    monkeypatch.setattr(module, "is_onednn_faster", lambda: faster)
    operators, _ = gradients(transformer())
    assert (operators.onednn > 0) == (faster and module.has_onednn())


def test_pytorch_without_onednn(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = transformer()
    model.prepack()
    operators, _ = gradients(model)
    assert (operators.onednn, operators.pytorch) == (0, 3 * LAYERS)
