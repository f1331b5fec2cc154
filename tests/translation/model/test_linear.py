"""Linear maps by oneDNN: F.linear's results and gradients, where the rule says so and nowhere else."""

from __future__ import annotations

import copy
import gc
import io
import itertools
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from relattn.translation import processor
from relattn.translation.config import ModelConfig
from relattn.translation.model import linear
from relattn.translation.model.linear import OneDNNLinear, linear_maps, onednn, use_products
from relattn.translation.model.transformer import Transformer

ROWS, INPUTS, OUTPUTS = 307, 257, 263
FEW = 256**3 // (INPUTS * OUTPUTS)  # the most rows that do not make a map large
needs_onednn = pytest.mark.skipif(not linear.has_onednn(), reason="this PyTorch has no oneDNN")


class Operators(TorchDispatchMode):
    """Counts what runs, by operator; oneDNN's product, slow on operands with gaps, gets none."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: Counter[str] = Counter()
        self.packed = 0  # of oneDNN's products, those by a packed weight

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        self.ran[operator.name()] += 1
        if operator.name() == "mkldnn::_linear_pointwise":
            x, weight = arguments[:2]
            assert x.is_contiguous()
            self.packed += weight.is_mkldnn
            assert weight.is_mkldnn or weight.is_contiguous() or weight.t().is_contiguous()
        return operator(*arguments, **(options or {}))

    @property
    def products(self) -> tuple[int, int]:
        """By oneDNN, and PyTorch's own."""
        own = ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::matmul")
        return self.ran["mkldnn::_linear_pointwise"], sum(self.ran[name] for name in own)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def sample(*lead: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, W and b."""
    return numbers(*(lead or (ROWS,)), INPUTS), numbers(OUTPUTS, INPUTS, seed=1), numbers(OUTPUTS, seed=2)


def derivatives(product, tensors: list[Tensor]) -> list[Tensor]:
    """The output and, of a sum of its squares by weights, the gradients of what requires them."""
    output = product(*tensors)
    wanted = [x for x in tensors if x.requires_grad]
    weights = numbers(*output.shape, seed=3).to(output.dtype)
    return [output, *(torch.autograd.grad((output.square() * weights).sum(), wanted) if wanted else ())]


def assert_accurate(ours: list[Tensor], own: list[Tensor], exact: list[Tensor]) -> None:
    """What is ours is off by at most three times what PyTorch's own float32 is, against float64."""
    for got, theirs, want in zip(ours, own, exact, strict=True):
        assert (got.dtype, got.shape) == (torch.float32, want.shape)
        floor = want.detach().abs().max() * torch.finfo(torch.float32).eps
        assert (got - want).detach().abs().max() <= 3 * max((theirs - want).detach().abs().max(), floor)


def check(tensors: list[Tensor]) -> None:
    """`onednn` of x, W and b, and its gradients, against F.linear's."""
    wide = [x.detach().double().requires_grad_(x.requires_grad) for x in tensors]
    assert_accurate(*(derivatives(*case) for case in ((onednn, tensors), (F.linear, tensors), (F.linear, wide))))


LAYOUTS = {
    "2-D": lambda: sample(),
    "3-D": lambda: sample(5, 61),
    "4-D": lambda: sample(2, 3, 53),
    "x transposed": lambda: (numbers(INPUTS, ROWS).t(), *sample()[1:]),
    "x of a sequence first": lambda: (numbers(61, 5, INPUTS).transpose(0, 1), *sample()[1:]),
    "x with gaps": lambda: (numbers(ROWS, 2 * INPUTS)[:, ::2], *sample()[1:]),
    "x one row, expanded": lambda: (numbers(1, INPUTS).expand(ROWS, INPUTS), *sample()[1:]),
    "b with gaps": lambda: (*sample()[:2], numbers(2 * OUTPUTS)[::2]),
    "b one number, expanded": lambda: (*sample()[:2], numbers(1).expand(OUTPUTS)),
    "no b": lambda: sample()[:2],
    "long sums": lambda: (numbers(ROWS, 2053), numbers(OUTPUTS, 2053, seed=1), numbers(OUTPUTS, seed=2)),
}


@needs_onednn
@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_outputs_and_gradients(make):
    tensors = [x.requires_grad_() for x in make()]
    with Operators() as operators:
        derivatives(onednn, tensors)
    assert operators.products == (3, 0)
    check(tensors)


@needs_onednn
@pytest.mark.parametrize("needed", list(itertools.product([False, True], repeat=3)), ids=str)
def test_only_the_gradients_that_are_wanted_are_made(needed):
    tensors = [x.requires_grad_(wanted) for x, wanted in zip(sample(), needed, strict=True)]
    with Operators() as operators:
        output = onednn(*tensors)
        assert output.requires_grad == any(needed)
        if any(needed):
            output.sum().backward()  # whose gradient is one number, expanded
    assert operators.products == (1 + needed[0] + needed[1], 0)
    check(tensors)


@needs_onednn
def test_one_row_more_makes_a_map_large():
    x, weight, bias = sample(FEW + 1)
    with Operators() as operators:
        onednn(x, weight, bias)
    assert operators.products == (1, 0)


@needs_onednn
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    tensors = sample()
    with mode(), Operators() as operators:
        output = onednn(*(x.requires_grad_() for x in tensors))
    assert (operators.products, output.requires_grad) == ((1, 0), False)
    check([x.detach() for x in tensors])


@needs_onednn
def test_derivatives_are_those_of_differences(monkeypatch):
    """The formula in float64, with F.linear in the operator's place: first and second derivatives."""

    def operator(x: Tensor, weight: Tensor, bias: Tensor | None, *_: object) -> Tensor:
        return F.linear(x, weight, bias)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", operator)
    shapes = ((2, 3, 5), (7, 5), (7,))
    tensors = tuple(numbers(*shape, dtype=torch.float64).requires_grad_() for shape in shapes)
    assert torch.autograd.gradcheck(linear._Product.apply, tensors)
    assert torch.autograd.gradgradcheck(linear._Product.apply, tensors)


def tangent(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(onednn(forward_ad.make_dual(x, x), weight, bias)).primal


ORDINARY = {
    "float64": lambda x, w, b: onednn(x.double(), w.double(), b.double()),
    "bfloat16": lambda x, w, b: onednn(x.bfloat16(), w.bfloat16(), b.bfloat16()),
    "few rows": lambda x, w, b: onednn(x[:FEW], w, b),
    "no rows": lambda x, w, b: onednn(x[:0], w, b),
    "no sequences": lambda x, w, b: onednn(x.new_empty(0, 7, INPUTS), w, b),
    "a vector": lambda x, w, b: onednn(x[0], w, b),
    "few inputs": lambda x, w, b: onednn(x[:, :255], w[:, :255], b),
    "few outputs": lambda x, w, b: onednn(x, w[:255], b[:255]),
    "one bias for all": lambda x, w, b: onednn(x, w, b[:1]),
    "W transposed": lambda x, w, b: onednn(x, w.t().contiguous().t(), b),
    "a layout of oneDNN's own": lambda x, w, b: onednn(x.to_mkldnn(), w, b).to_dense(),
    "another device": lambda x, w, b: torch.zeros(onednn(x.to("meta"), w.to("meta"), b.to("meta")).shape),
    "vmap": lambda x, w, b: torch.vmap(onednn, (0, None, None))(x.expand(2, ROWS, INPUTS), w, b),
    "torch.func.grad": lambda x, w, b: torch.func.grad(lambda w: onednn(x, w, b).sum())(w),
    "forward mode": tangent,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own forward mode
@pytest.mark.parametrize("call", ORDINARY.values(), ids=ORDINARY.keys())
def test_all_else_is_an_ordinary_linear_map(call, monkeypatch):
    with Operators() as operators:
        got = call(*sample())
    assert operators.products[0] == 0
    monkeypatch.setattr(linear, "suits", lambda *_: False)
    assert torch.equal(got, call(*sample()))


def test_autocast_and_the_switch_of_pytorch_are_obeyed(monkeypatch):
    x, weight, bias = sample()
    with Operators() as operators, torch.autocast("cpu", torch.bfloat16):
        assert onednn(x, weight, bias).dtype == torch.bfloat16
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with operators:
        onednn(x, weight, bias)
    assert operators.products[0] == 0


def test_a_subclass_of_tensor_has_the_last_word():
    class Heavy(Tensor):
        """As a library that quantises weights would have it."""

        @classmethod
        def __torch_function__(cls, function, types, arguments=(), options=None):
            if function is F.linear:
                return "its own"
            return super().__torch_function__(function, types, arguments, options)

    x, weight, bias = sample()
    assert onednn(x, nn.Parameter(weight.as_subclass(Heavy)), bias) == "its own"


def test_what_does_not_fit_is_told_in_pytorchs_words():
    x, weight, bias = sample()
    for wrong in ((x[:, 1:], weight, bias), (x, weight, bias[1:]), (x, weight[None], bias)):
        with pytest.raises(RuntimeError) as ours:
            onednn(*wrong)
        with pytest.raises(RuntimeError) as theirs:
            F.linear(*wrong)
        assert str(ours.value) == str(theirs.value)


def maps(model: nn.Module) -> list[type]:
    return [type(module) for module in model.modules() if isinstance(module, nn.Linear)]


def layer() -> nn.Module:
    """One linear map that takes oneDNN's products."""
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS))
    use_products(model, "onednn")  # type: ignore[arg-type]
    return model


@needs_onednn
def test_compiled_it_is_an_ordinary_linear_map(monkeypatch):
    model, seen = layer(), []
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", None)

    def backend(graph, examples):
        seen.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.compile(model, fullgraph=True, backend=backend)(sample()[0].requires_grad_()).sum().backward()
    assert seen == [F.linear]


@needs_onednn
def test_exported_it_is_an_ordinary_linear_map():
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(layer(), (sample()[0],), dynamic_shapes=({0: rows},))
    assert [node.target for node in program.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.linear.default
    ]


def transformer(**changes) -> Transformer:
    torch.manual_seed(0)
    config = {"dim": 256, "heads": 4, "feed_forward_dim": 257, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    return Transformer(ModelConfig(**{**config, "clip": 2, **changes}), 263)


def gradients(model: Transformer) -> tuple[Operators, list[Tensor]]:
    """What ran, and logits and gradients of 8 sentences of 37 pieces."""
    tokens = torch.randint(4, 263, (2, 8, 37), generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    with Operators() as operators:
        logits = model(tokens[0], torch.full((8,), 37), tokens[1])
        logits.square().mean().backward()
    return operators, [logits, *(x.grad for x in model.parameters())]


@needs_onednn
def test_a_model_takes_the_products_that_it_is_told():
    model = transformer()
    names, modules = list(model.state_dict()), len(maps(model))
    found = {}
    for name in ("torch", "onednn", "torch"):
        use_products(model, name)
        assert model.products == name
        operators, found[name] = gradients(model)
        count = 3 * (modules + 1)  # and the output layer
        assert operators.products[name == "torch"] == count
        assert operators.products[name == "onednn"] == 0
        assert (list(model.state_dict()), len(maps(model))) == (names, modules)
    assert set(maps(model)) == {nn.Linear}
    assert_accurate(found["onednn"], found["torch"], gradients(model.double())[1])


@needs_onednn
def test_a_step_of_many_rows_takes_them_too():
    model, pieces, lengths = transformer().eval(), torch.full((8, 37), 5), torch.full((8,), 37)

    @torch.inference_mode()
    def step() -> tuple[Operators, list[Tensor]]:
        cache = model.start(model.encode(pieces, lengths), lengths)
        with Operators() as operators:
            logits, _ = model.step(pieces, cache)
        return operators, [logits]

    found = {}
    for name in ("torch", "onednn"):
        use_products(model, name)
        operators, found[name] = step()
    assert operators.products == (8 + 1, 0)
    model.double()
    assert_accurate(found["onednn"], found["torch"], step()[1])


@needs_onednn
def test_copies_keep_their_products():
    model = transformer()
    use_products(model, "onednn")
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert other.products == "onednn"
        assert maps(other) == maps(model) == [OneDNNLinear] * 16


@needs_onednn
def test_what_is_more_than_an_nn_linear_is_left_alone():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(3, 5), Own(5, 7), nn.utils.parametrizations.weight_norm(nn.Linear(7, 11)))
    before = maps(model)
    use_products(model, "onednn")  # type: ignore[arg-type]
    assert maps(model) == [OneDNNLinear, *before[1:]]
    use_products(model, "torch")  # type: ignore[arg-type]
    assert maps(model) == before


# Weights that are packed


def packing(dtype: torch.dtype = torch.float32, products: str = "onednn") -> Transformer:
    """A model of which some maps are large, packed."""
    model = transformer(feed_forward_dim=512).to(dtype).eval()
    use_products(model, products)
    linear.pack(model)
    return model


def product_of(model: Transformer, rows: int = 37) -> tuple[Operators, list[Tensor]]:
    """What ran for a map of 256 inputs and 512 outputs, and the output."""
    up = next(module for module in linear_maps(model) if module.out_features == 512)
    x = numbers(rows, 256, dtype=up.weight.dtype)
    with torch.inference_mode(), Operators() as operators:
        got = up(x)
    with torch.no_grad():
        torch.testing.assert_close(
            got, F.linear(x, up.weight, up.bias), rtol=2e-2 if got.dtype == torch.bfloat16 else 1e-4, atol=1e-3
        )
    return operators, [got]


@needs_onednn
def test_a_packed_model_says_what_it_said():
    model, pieces, lengths = transformer(feed_forward_dim=512).eval(), torch.full((8, 37), 5), torch.full((8,), 37)

    def step() -> tuple[Operators, list[Tensor]]:
        with torch.inference_mode(), Operators() as operators:
            cache = model.start(model.encode(pieces, lengths), lengths)
            return operators, [model.step(pieces, cache)[0]]

    use_products(model, "torch")
    _, own = step()
    use_products(model, "onednn")
    linear.pack(model)
    operators, ours = step()
    assert model.products == "packed"
    assert set(maps(model)) == {linear.PackedLinear}
    assert operators.products == (len(maps(model)) + 1, 0)
    assert operators.packed == len(maps(model)) + 1
    model.double()
    assert_accurate(ours, own, step()[1])


@needs_onednn
@pytest.mark.parametrize(("rows", "used"), [(1, False), (3, False), (4, True), (37, True)])
def test_a_packed_weight_is_used_from_a_few_rows_on(rows, used):
    operators, _ = product_of(packing(), rows)
    assert (operators.packed, operators.products) == ((1, (1, 0)) if used else (0, (0, 1)))


def change_in_place(model: Transformer) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)


def change_data(model: Transformer) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.5


CHANGES = {
    "in place": change_in_place,
    "its data": change_data,
    "its state": lambda model: model.load_state_dict({name: 1.5 * x for name, x in model.state_dict().items()}),
    "its type": lambda model: model.to(torch.bfloat16),
}


@needs_onednn
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_weight_that_changed_is_used_as_it_is(change):
    model = packing()
    assert product_of(model)[0].packed == 1
    change(model)
    assert product_of(model)[0].packed == 0


@needs_onednn
def test_a_packed_model_can_be_trained():
    model = packing()
    operators, found = gradients(model)
    assert operators.packed == 0
    use_products(model, "torch")
    _, own = gradients(model)
    assert_accurate(found, own, gradients(model.double())[1])


@needs_onednn
def test_copies_of_a_packed_model_are_right_and_not_packed():
    model, file = packing(), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert (other.products, product_of(other)[0].packed) == ("packed", 0)
    assert product_of(model)[0].packed == 1


@needs_onednn
def test_packed_weights_go_with_their_model():
    before = len(linear._PACKED)
    model = packing()
    assert len(linear._PACKED) > before
    del model
    gc.collect()
    assert len(linear._PACKED) == before


@needs_onednn
def test_what_is_packed(monkeypatch):
    """By oneDNN's products in float32, and in bfloat16 by any, where the processor has arithmetic for it."""
    assert packing(products="torch").products == "torch"
    assert packing(torch.float64).products == "onednn"
    monkeypatch.setattr(linear, "lay_out", lambda weight: None)  # which a processor without bfloat16 cannot
    for has in (False, True):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda has=has: has)
        assert packing(torch.bfloat16, "torch").products == ("packed" if has else "torch")
    monkeypatch.setattr(linear, "has_onednn", lambda: False)
    assert transformer().products == "torch"


PROCESSORS = [  # vendor, vectors, whether PyTorch has MKL, and the products
    ("AuthenticAMD", "AVX512", True, "onednn"),
    ("AuthenticAMD", "AVX2", True, "torch"),
    ("AuthenticAMD", "AVX512", False, "torch"),
    ("GenuineIntel", "AVX512", True, "torch"),
    (None, "AVX512", True, "torch"),
]


@pytest.fixture
def on(tmp_path, monkeypatch):
    """A function that makes the rule see a processor."""

    def see(vendor: str | None, vectors: str, mkl: bool) -> None:
        if vendor is not None:
            (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n", encoding="utf-8")
        monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
        monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)

    return see


@needs_onednn
@pytest.mark.parametrize(("vendor", "vectors", "mkl", "products"), PROCESSORS)
def test_the_rule(on, vendor, vectors, mkl, products):
    on(vendor, vectors, mkl)
    model = transformer()
    assert (linear.fastest(), model.products) == (products, products)
    operators, _ = gradients(model)
    assert (operators.products[0] > 0, operators.products[1] > 0) == (products == "onednn", products == "torch")


def test_where_pytorch_has_no_onednn(on, monkeypatch):
    on("AuthenticAMD", "AVX512", True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = transformer()  # with no word of warning: nobody asked for oneDNN
    assert model.products == "torch"
    with pytest.warns(UserWarning, match="this PyTorch has none"):
        use_products(model, "onednn")
    assert model.products == "torch"
    assert set(maps(model)) == {nn.Linear}


def test_products_of_no_such_name():
    model = transformer()
    with pytest.raises(ValueError, match="products are 'torch' or 'onednn' or 'packed', not 'mkl'"):
        use_products(model, "mkl")
    assert model.products in linear.PRODUCTS
