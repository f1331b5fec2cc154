"""The table of a model's weights, files of them, and their quantization."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from relattn_mt import bundle
from relattn_mt.config import ModelConfig
from relattn_mt.engine.quantization import quantize
from relattn_mt.hub import resolve
from relattn_mt.model.transformer import Transformer
from relattn_mt.model.weights import arrays_of, make_model
from relattn_mt.support.errors import InputError
from relattn_mt.weights import read_weights, require_fit, weight_table

from tests.support.covering import pairwise
from tests.support.schemes import VARIANTS, config_of


def make(config: ModelConfig) -> Transformer:
    torch.manual_seed(1)
    shared = config.shared_embeddings in ("all", "inputs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about models that cannot tell word order
        return Transformer(config, 31, 31 if shared else 29)


@pairwise(
    variant=VARIANTS,
    norm=["pre", "post"],
    shared_embeddings=["all", "target", "inputs", "none"],
    output_bias=[False, True],
    layers=[(1, 1), (2, 3)],
)
def test_the_table_is_that_of_the_model(variant, norm, shared_embeddings, output_bias, layers):
    config = config_of(
        variant,
        norm=norm,
        shared_embeddings=shared_embeddings,
        output_bias=output_bias,
        encoder_layers=layers[0],
        decoder_layers=layers[1],
    )
    model = make(config)
    weights = arrays_of(model)
    shapes = {name: weight.shape for name, weight in weight_table(config, model.vocab_sizes).items()}
    assert shapes == {name: weight.shape for name, weight in weights.items()}
    quantized = quantize(weights)
    table = weight_table(config, model.vocab_sizes, quantized=True)
    assert {name: weight.shape for name, weight in table.items()} == {n: x.shape for n, x in quantized.items()}
    linear = {f"{name}.weight" for name, each in model.named_modules() if isinstance(each, torch.nn.Linear)}
    linear = {name for name in linear if not name.endswith(".distance.weight")}
    embeddings = {"embedding", "src_embedding", "output_weight"} & weights.keys()
    assert {name for name, weight in table.items() if weight.kind == "int8"} == linear | embeddings
    require_fit(config, model.vocab_sizes, quantized, "it")


def test_vocabularies_of_different_sizes():
    with pytest.raises(InputError, match="must have the same size with shared_embeddings all, got 31 and 29"):
        weight_table(ModelConfig(), (31, 29))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_file_may_have_other_floats(tmp_path, dtype):
    model = make(config_of("relative"))
    state = {name: torch.from_numpy(weight).to(dtype) for name, weight in arrays_of(model).items()}
    safetensors.torch.save_file(state, tmp_path / "weights", metadata={"a": "b"})
    found, metadata = read_weights(tmp_path / "weights")
    assert metadata == {"a": "b"}
    read = make_model(model.config, model.vocab_sizes, found, source="it").state_dict()
    assert all(torch.equal(read[name], tensor.float()) for name, tensor in state.items())


def test_dtypes_that_numpy_lacks_are_refused(tmp_path):
    safetensors.torch.save_file({"x": torch.zeros(3).to(torch.float8_e4m3fn)}, tmp_path / "weights")
    with pytest.raises(InputError, match="x must have a dtype of NumPy, got F8_E4M3"):
        read_weights(tmp_path / "weights")


def quantized_by_torch(weight: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    exact = torch.tensor(weight)
    scale = exact.abs().amax(1) / 63
    return (exact / torch.where(scale > 0, scale, 1.0)[:, None]).round_().clamp_(-63, 63).to(torch.int8), scale


@pytest.mark.parametrize("source", ["shipped", "random"])
def test_quantization_has_the_bits_of_pytorch(source):
    if source == "shipped":
        weights = bundle.read_bundle(resolve("everyday-en-de")).in_float32().state
    else:
        draw = np.random.default_rng(1)
        weight = (draw.standard_normal((997, 331)) * 10.0 ** draw.integers(-38, 38, (997, 1))).astype(np.float32)
        weight[0], weight[1], weight[2] = 0.0, 1e-45, 3.4e38
        weights = {"embedding": weight, "encoder_norm.bias": weight[3]}
    quantized = quantize(weights)
    for name, found in quantized.items():
        if found.dtype == np.int8:
            integers, scale = quantized_by_torch(weights[name])
            assert np.array_equal(found, integers)
            assert np.array_equal(quantized[f"{name}_scale"], scale)
        elif not name.endswith("_scale"):
            assert np.array_equal(found, weights[name])


def test_the_shipped_weights_are_those_that_quantize_writes(tmp_path):
    source = bundle.read_bundle(resolve("everyday-en-de")).in_float32()
    replace(source, path=tmp_path / "float", pairs=()).save()
    bundle.quantize_bundle(bundle.read_bundle(tmp_path / "float"), tmp_path / "int8")
    shipped = Path(resolve("everyday-en-de")) / bundle.WEIGHTS
    assert (tmp_path / "int8" / bundle.WEIGHTS).read_bytes() == shipped.read_bytes()
