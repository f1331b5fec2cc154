"""Linear layers in int8: exact sums, the same rows in any batch, gradients, changed weights, and what is refused."""

import copy
import pickle
import random
import re
import warnings

import pytest
import torch
from relattn.backends import native
from relattn.backends.native import int8 as native_int8
from relattn.backends.native import library
from relattn.backends.native.int8 import GENERIC
from relattn.integrations import transformers as faster
from relattn.integrations.transformers import int8
from torch import nn
from transformers import DebertaV2Config, DebertaV2Model, T5Config, T5ForConditionalGeneration

from tests.support.integer_sums import assert_sums_are_exact


def test_sums_are_exact():
    assert_sums_are_exact()


@pytest.fixture
def amx(monkeypatch):
    """The choice of products as on processors with AMX."""
    monkeypatch.setitem(library.KERNELS, torch.bfloat16, library.KERNELS[torch.float32]._replace(level="amx"))


def test_sums_are_exact_with_amx(amx):
    """Also if a variable limits oneDNN to AVX2, where its own sums saturate."""
    assert_sums_are_exact()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_and_strides_do_not_change_results(threads):
    layer = nn.Linear(130, 700)
    int8.quantize(layer)
    x, before = torch.randn(300, 260), torch.get_num_threads()
    with torch.inference_mode():
        expected = torch.cat([layer(row[None]) for row in x[:, ::2].contiguous()])
        try:
            torch.set_num_threads(threads)
            assert torch.equal(layer(x[:, ::2]), expected)
            assert torch.equal(layer(x.T[::2].T), expected)
        finally:
            torch.set_num_threads(before)


@pytest.fixture(params=["this processor", "kernels", "AMX"])
def products(request, monkeypatch):
    """The products of this processor, those of the compiled kernels, and those of oneDNN."""
    if request.param == "kernels":
        kernel = library.KERNELS[torch.float32].int8_kernels[-1]
        monkeypatch.setattr(int8, "product", lambda: kernel)
    elif request.param == "AMX":
        request.getfixturevalue("amx")


@pytest.mark.parametrize("size", [(), (0,), (96,), (3, 1), (3, 95), (3, 97), (2, 3, 192), (3, 0)])
@torch.no_grad()
def test_inputs_of_another_width_get_the_error_of_linear(products, size):
    layers = nn.Sequential(nn.Linear(96, 128), nn.Linear(96, 128)).eval()
    int8.quantize(layers)
    x = torch.randn(size)
    if size == (96,):
        assert layers[0](x).shape == (128,)
        return
    with pytest.raises(RuntimeError) as own:
        nn.functional.linear(x, layers[0].weight, layers[0].bias)
    with pytest.raises(RuntimeError, match=re.escape(str(own.value))):
        layers[0](x)
    with int8.shared_input(*layers), pytest.raises(RuntimeError, match=re.escape(str(own.value))):
        layers[1](x)


@pytest.mark.parametrize("size", [(64, 96), (192, 96), (128, 80), (128, 112), (3, 5)])
@torch.no_grad()
def test_a_weight_of_another_shape_is_multiplied_as_by_linear(products, size):
    """The sizes that the layer keeps are those of its first weight."""
    layer = nn.Linear(96, 128, bias=False)
    int8.quantize(layer)
    layer.weight.data = torch.randn(size).sign()
    x = torch.randn(3, size[1]).sign()  # such numbers have no rounding errors
    torch.testing.assert_close(layer(x), x @ layer.weight.T)


@pytest.mark.parametrize(
    ("x", "out"), [((3, 95), (3, 128)), ((3, 96), (3, 64)), ((3, 96), (2, 128)), ((3, 97), (3, 128))]
)
def test_kernels_refuse_other_shapes(x, out):
    kernel = library.KERNELS[torch.float32].int8_kernels[-1]
    weight = native_int8.quantize(torch.randn(128, 96), kernel)
    with pytest.raises(ValueError, match=re.escape(str(x)) + ".*" + re.escape(str(out))):
        native_int8.linear(torch.randn(x), weight, None, None, torch.empty(out))


@pytest.mark.parametrize("inputs", [64, 65, 79, 130])
def test_nothing_is_written_behind_packed_weights(inputs, monkeypatch):
    """The inputs do not fill whole groups, and the outputs do not fill whole panels."""
    behind = []
    empty = torch.empty

    def guarded(size, **options):
        memory = empty(size + 4096, **options).fill_(77)
        behind.append(memory[size:])
        return memory[:size]

    monkeypatch.setattr(torch, "empty", guarded)
    native.int8.quantize(torch.ones(69, inputs), GENERIC)
    assert len(behind) == 2
    assert all((each == 77).all() for each in behind)


def test_layers_keep_float32_where_nothing_is_faster(deberta, monkeypatch, caplog):
    monkeypatch.setattr(int8, "product", lambda: GENERIC)
    ids = torch.randint(0, 100, (2, 17))
    with torch.inference_mode(), faster.enable(deberta):
        expected = deberta(ids).last_hidden_state
    with torch.inference_mode(), faster.enable(deberta, linear="int8"):
        assert torch.equal(deberta(ids).last_hidden_state, expected)
    assert [record.getMessage() for record in caplog.records if "int8 is not faster" in record.getMessage()] != []
    assert not any(isinstance(module, int8.Int8Linear) for module in deberta.modules())


def small_deberta():
    config = DebertaV2Config(
        vocab_size=100, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256,
        relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=16, norm_rel_ebd="layer_norm",
        share_att_key=True,
    )  # fmt: skip
    torch.manual_seed(0)
    return DebertaV2Model(config).eval()


@pytest.fixture
def deberta():
    model = small_deberta()
    yield model
    faster.disable(model)


@torch.inference_mode()
def test_a_model_is_close_in_any_batch_and_restored(deberta):
    ids = torch.randint(0, 100, (9, 37))
    own = deberta(ids).last_hidden_state
    names = list(deberta.state_dict())
    with faster.enable(deberta, linear="int8"):
        assert "12 linear layers in int8" in faster.report(deberta)
        whole = deberta(ids).last_hidden_state
        assert torch.equal(whole[4:5], deberta(ids[4:5]).last_hidden_state)
        assert list(deberta.state_dict()) == names
        for copied in (copy.deepcopy(deberta), pickle.loads(pickle.dumps(deberta))):
            assert torch.equal(copied(ids).last_hidden_state, whole)
    assert 1e-4 < (whole - own).norm() / own.norm() < 0.03
    assert "int8" not in faster.report(deberta)
    assert torch.equal(deberta(ids).last_hidden_state, own)
    faster.enable(deberta, linear="int8")
    faster.enable(deberta, linear="int8")
    assert torch.equal(deberta(ids).last_hidden_state, whole)
    faster.disable(deberta)
    assert torch.equal(deberta(ids).last_hidden_state, own)


def test_gradients_are_those_of_float32(deberta, caplog):
    ids = torch.randint(0, 100, (2, 9))
    faster.enable(deberta)

    def gradients():
        deberta.zero_grad()
        deberta(ids).last_hidden_state.square().sum().backward()
        return [parameter.grad for parameter in deberta.parameters() if parameter.grad is not None]

    before = gradients()
    faster.enable(deberta, linear="int8")
    assert all(torch.equal(one, two) for one, two in zip(before, gradients(), strict=True))
    assert "gradients are enabled" in caplog.text


@torch.no_grad()
def test_weights_that_change_are_quantized_again():
    layers = [nn.Sequential(nn.Linear(64, 64)) for _ in range(2)]
    input = torch.randn(3, 64)
    for layer in layers:
        faster.enable(layer, linear="int8")
    assert not torch.equal(layers[0](input), layers[1](input))
    layers[0].load_state_dict(layers[1].state_dict())
    assert torch.equal(layers[0](input), layers[1](input))
    for layer in layers:  # as LoRA is merged
        layer[0].weight.data += torch.ones(64, 64)
        assert torch.equal(layer(input), copy.deepcopy(layer)(input))
    torch.testing.assert_close(torch.vmap(layers[0])(input), nn.functional.linear(input, *layers[0][0].parameters()))
    layers[0].double()
    assert layers[0](input.double()).dtype == torch.float64


@pytest.mark.parametrize("has_amx", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_layers_that_share_an_input_give_what_each_gives(bias, has_amx, request):
    if has_amx:
        request.getfixturevalue("amx")
    model = nn.Sequential(*(nn.Linear(96, 128, bias=bias) for _ in range(3)))
    for layer in model:
        layer.weight.data[:, 7] /= 30.0
    float32, input = copy.deepcopy(model), torch.randn(5, 7, 96)
    faster.enable(model, linear="int8")
    reads = []
    for layer in model:
        layer.register_forward_hook(lambda layer, given, output: reads.append(layer))
    for _ in range(2):
        with int8.shared_input(*model):
            together = [layer(input) for layer in model]
            other = model[1](input + 1.0)
        assert reads == [*model, model[1]]  # hooks see each layer
        assert all(torch.equal(x, layer(input)) for x, layer in zip(together, model, strict=True))
        for x, layer in zip([*together, other], [*float32, float32[1]], strict=True):
            exact = layer(input + 1.0 if x is other else input)
            assert (x - exact).norm() < 0.03 * exact.norm()
        for own, layer in zip(float32, model, strict=True):  # a change must reach the shared weight
            own.weight.data += 0.1
            layer.weight.data += 0.1
        reads.clear()


@torch.inference_mode()
def test_outlier_channels_change_no_more_than_others():
    """A channel times 30, and the column that reads it divided by 30, must not take the other channels' integers."""
    layer, x, scale = nn.Linear(96, 80), torch.randn(50, 96), torch.ones(96)
    layer.requires_grad_(False)
    scale[7], scale[50] = 1000.0, 30.0
    errors = []
    for factor in (torch.ones(96), scale):
        with torch.inference_mode(False):
            model = nn.Sequential(copy.deepcopy(layer))
            model[0].weight /= factor
            faster.enable(model, linear="int8")
        errors.append((model(x * factor) - layer(x)).norm() / layer(x).norm())
    assert errors[1] < 1.5 * errors[0]


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
def test_weight_that_is_computed_from_parameters_is_exact(norm):
    """The layer keeps float32, and `disable` leaves the class that belongs to the parametrization."""
    model = nn.Sequential(nn.Linear(96, 80), nn.Linear(80, 64)).requires_grad_(False)
    x = torch.randn(5, 96)
    faster.enable(model, linear="int8")
    with warnings.catch_warnings(action="ignore"):
        norm(model[0])
    model.requires_grad_(False)
    with torch.inference_mode():
        for _ in range(2):
            got = model[0](x)
            assert torch.equal(got, nn.functional.linear(x, model[0].weight, model[0].bias))
            for parameter in model[0].parameters():
                parameter.data[3] += 1.0
        faster.disable(model)
        assert torch.equal(model[0](x), nn.functional.linear(x, model[0].weight, model[0].bias))
    assert not any(isinstance(module, int8.Int8Linear) for module in model.modules())


@torch.inference_mode()
def test_enable_converts_weights_again():
    """A row that is changed through `.data` is not counted by PyTorch, and may be none of those that are compared."""
    with torch.inference_mode(False):
        model = nn.Sequential(nn.Linear(96, 80)).requires_grad_(False)
    x = torch.randn(5, 96)
    faster.enable(model, linear="int8")
    model(x)
    model[0].weight.data[1:9] *= -1.0
    faster.enable(model, linear="int8")
    exact = nn.functional.linear(x, model[0].weight, model[0].bias)
    assert float((model(x) - exact).norm() / exact.norm()) < 0.03


def test_kept_layers_stay_in_float32(deberta):
    kept = "encoder.layer.1.attention"
    inputs = {"input_ids": torch.randint(0, 100, (2, 21)), "attention_mask": torch.ones(2, 21, dtype=torch.long)}
    inputs["attention_mask"][1, 13:] = 0
    with pytest.raises(ValueError, match=r"keep must have names of .*, got encoder\.layer\.9$"):
        faster.enable(deberta, linear="int8", keep=[kept, "encoder.layer.9"])
    with pytest.raises(ValueError, match="keep must be given with linear='int8'"):
        faster.enable(deberta, keep=[kept])
    with pytest.raises(ValueError, match=f"keep must be a sequence of names, got the string '{kept}'"):
        faster.enable(deberta, linear="int8", keep=kept)
    faster.enable(deberta, linear="int8", keep=[kept])
    with pytest.raises(
        ValueError, match=r"keep must have names of modules in float32, got encoder\.layer\.0.* in int8"
    ):
        faster.enable(deberta, linear="int8", keep=["encoder.layer.0"])
    layers = {name: module for name, module in deberta.named_modules() if isinstance(module, nn.Linear)}
    assert {name for name, layer in layers.items() if type(layer) is nn.Linear} == {
        f"{kept}.{part}" for part in ("self.query_proj", "self.key_proj", "self.value_proj", "output.dense")
    }
    with torch.inference_mode():
        found = deberta(**inputs).last_hidden_state
        faster.disable(deberta)
        own = deberta(**inputs).last_hidden_state
    valid = inputs["attention_mask"] != 0
    difference = float((found - own)[valid].norm() / own[valid].norm())
    assert 1e-4 < difference < 0.1


@torch.no_grad()
def test_values_that_are_not_finite_stay_so():
    layer = nn.Sequential(nn.Linear(64, 64))
    faster.enable(layer, linear="int8")
    input = torch.randn(3, 64)
    input[0, 0], input[1, 0] = torch.nan, torch.inf
    output = layer(input)
    assert not output[:2].isfinite().any()
    assert output[2].isfinite().all()
    assert layer(torch.zeros(0, 64)).shape == (0, 64)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@torch.no_grad()
def test_exported_and_compiled_models_compute_in_float32():
    layer, input = nn.Sequential(nn.Linear(64, 96)), torch.randn(5, 64)
    own = layer(input)
    faster.enable(layer, linear="int8")
    for exported in (torch.export.export(layer, (input,)).module(), torch.jit.trace(layer, input, check_trace=False)):
        torch.testing.assert_close(exported(input), own)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(input), own)


def test_output_embeddings_and_small_layers_keep_float32():
    model = T5ForConditionalGeneration(
        T5Config(vocab_size=99, d_model=64, d_kv=32, d_ff=128, num_layers=1, num_heads=2)
    )
    faster.enable(model, linear="int8")
    assert type(model.lm_head) is nn.Linear
    assert all(
        type(module) is nn.Linear if min(module.weight.shape) < 64 or module is model.lm_head else True
        for module in model.modules()
        if isinstance(module, nn.Linear)
    )
    faster.disable(model)


def damaged(value):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    with torch.no_grad():
        model[1].weight[3, 3] = value
    return model


@torch.inference_mode()
def inference_layer():
    return nn.Sequential(nn.Linear(64, 64))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: None, "must be given with a model"),
        (lambda: nn.Linear(63, 64), "a linear layer of at least 64 by 64, got Linear"),
        (lambda: damaged(torch.nan), "finite weights, got 1 with"),
        (lambda: damaged(torch.inf), "finite weights, got 1 with"),
        (lambda: damaged(0).to(torch.bfloat16), "float32 on the CPU, got bfloat16 on cpu for 0"),
        (inference_layer, "not made in inference mode, got 0"),
        (lambda: damaged(0).to("meta"), "float32 on the CPU, got float32 on meta for 0"),
        (lambda: nn.Sequential(nn.Linear(133_153, 64)), "at most 133,144 inputs, got 133,153 for 0"),
    ],
)
def test_what_is_refused(model, message):
    made = model()
    with pytest.raises(ValueError, match=message):
        faster.enable(made, linear="int8")
    if made is not None:
        assert all(type(module) is nn.Linear for module in made.modules() if isinstance(module, nn.Linear))
    with pytest.raises(ValueError, match="linear must be 'float32' or 'int8', got 'int4'"):
        faster.enable(made, linear="int4")


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_any_order_of_calls_gives_what_one_call_gives_a_new_model(deberta, seed):
    """`enable` in parts, twice and after `disable`, with weights that change in between."""
    draw = random.Random(seed)
    ids = torch.randint(0, 100, (3, 21))
    valid = (torch.arange(21) < torch.tensor([[21], [7], [13]])).long()
    fresh = small_deberta()
    settings: dict = {}
    for _ in range(10):
        match draw.choice(["plain", "unpad", "int8", "int8", "disable", "weights", "weights", "load"]):
            case "plain":
                faster.enable(deberta)
                settings |= {"unpad": settings.get("unpad", False)}
            case "unpad":
                faster.enable(deberta, unpad=True)
                settings |= {"unpad": True}
            case "int8":
                faster.enable(deberta, linear="int8")
                settings |= {"linear": "int8"}
            case "disable":
                faster.disable(deberta)
                settings = {}
            case "weights":
                for parameter in deberta.parameters():
                    parameter.add_(0.01 * torch.randn(parameter.shape))
            case "load":
                deberta.load_state_dict({name: 0.9 * x for name, x in fresh.state_dict().items()})
        faster.disable(fresh)
        fresh.load_state_dict(deberta.state_dict())
        if settings:
            faster.enable(fresh, **settings)
        got, want = (model(ids, attention_mask=valid).last_hidden_state for model in (deberta, fresh))
        assert torch.equal(got, want), settings
    faster.disable(fresh)


@pytest.mark.parametrize(("outputs", "products"), [(64, 1), (128, 1), (65, 3), (96, 3)])
def test_layers_of_whole_panels_quantize_a_shared_input_once(monkeypatch, outputs, products):
    model = nn.Sequential(*(nn.Linear(64, outputs) for _ in range(3))).eval()
    faster.enable(model, linear="int8")
    x, calls, multiply = torch.randn(5, 64), [], int8._multiply
    monkeypatch.setattr(int8, "_multiply", lambda *given: (calls.append(given), multiply(*given))[1])
    with torch.inference_mode():
        alone = [layer(x) for layer in model]
        calls.clear()
        with int8.shared_input(*model):
            together = [layer(x) for layer in model]
    assert len(calls) == products
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
