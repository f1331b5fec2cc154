"""Linear layers in int8: exact sums on every kernel, and a decoder that agrees with quantized layers in PyTorch."""

import ctypes
import functools
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from relattn_mt.config import ModelConfig
from relattn_mt.engine import decoder, library
from relattn_mt.engine.engine import NativeEngine
from relattn_mt.engine.library import GENERIC, LARGEST, LARGEST_IMPORTED, PAIRS
from relattn_mt.engine.packing import Packing
from relattn_mt.engine.quantization import MAX_INPUTS
from relattn_mt.model import transformer
from relattn_mt.model.linear import Linear
from relattn_mt.model.torch_engine import TorchEngine
from relattn_mt.search import beam
from relattn_mt.search.types import Request
from relattn_mt.support.errors import InputError
from torch import Tensor

from tests.support.covering import combinations, pairwise
from toolkit.tests.engine.test_decoder import (
    ACTIVATIONS,
    LENGTHS,
    SCHEMES,
    SIZES,
    VOCAB,
    assert_same,
    inference_in_filled_memory,
    levels,
    make_model,
    native,
    random_ids,
    rules_of,
)
from toolkit.tests.translate.test_translator import translator

pytestmark = pytest.mark.skipif(decoder.KERNELS is None, reason=f"no compiled engine: {decoder.MISSING}")
__all__ = ["inference_in_filled_memory"]  # a fixture of all tests here

CODE = 127  # largest code of activations
CONFIG = ModelConfig()


kernels_of = functools.cache(library.load)


def runnable() -> list[tuple[str, int]]:
    """Return the processor levels and kernels that this processor runs."""
    return [(level, kernel) for level in levels() for kernel in kernels_of(level).int8_kernels]


def run(level: str, kernel: int, weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """Return x Wᵀ + b for integers W, as a kernel computes it: the keys and values of a head."""
    kernels = kernels_of(level)
    pack = Packing(kernels, CONFIG, {}, kernel)
    packed = pack.map(weight.to(torch.int8).numpy(), bias.numpy(), np.ones(len(weight), np.float32))
    is_beyond_pairs = kernel == PAIRS and weight.abs().max() > LARGEST
    assert packed.kernel == (GENERIC if is_beyond_pairs else kernel)
    keys, values = torch.empty(2, packed.outputs // 2 * len(x))
    arguments = kernels.types["memory"](
        keys_values=packed, x=x.data_ptr(), to=keys.data_ptr(), rows=len(x), x_row=x.stride(0), src_len=len(x),
        row_len=len(x), layer_count=1, heads=1, head_dim=packed.outputs // 2,
    )  # fmt: skip
    pointer = ctypes.addressof(arguments)
    space = torch.empty(kernels.functions["memory_space"](pointer))
    arguments.space = space.data_ptr()
    kernels.functions["memory"](pointer)
    return torch.cat([keys.view(-1, len(x)).T, values.view(len(x), -1)], 1)[:, : len(weight)]


SIZES_OF_TILES = [
    tuple(sizes.values())
    for sizes in combinations(
        rows=[1, 2, 3, 4, 5, 6, 7, 11, 12, 48, 49, 130],
        outputs=[1, 16, 17, 63, 64, 65, 130],
        inputs=[1, 7, 16, 17, 64, 130, 192],
    )
]


def integers(low: int, *shape: int) -> Tensor:
    return torch.randint(low, 1 - low, shape).float()


@pytest.mark.parametrize(("level", "kernel"), runnable() if decoder.KERNELS else [])
def test_sums_are_exact(level, kernel):
    """Scales are 1 here, so results are the sums. Every sum is rounded to float32 once."""
    torch.manual_seed(1)
    largest = LARGEST if kernel == PAIRS else LARGEST_IMPORTED
    for rows, outputs, inputs in [
        *SIZES_OF_TILES,
        *((rows, 67, 70) for rows in range(1, 131)),
        *((rows, 67, 128) for rows in range(1, 50)),
        *((7, outputs, 33) for outputs in range(1, 131)),
        *((5, 3, inputs) for inputs in range(1, 131)),
        (3, 5, 9000),
        (1, 2, MAX_INPUTS),
    ]:
        x, weight = integers(-CODE, rows, inputs), integers(-largest, outputs, inputs)
        x[:, 0], weight[:, 0] = CODE, largest
        extreme = x.sign().mul(CODE), weight.sign().mul(largest)
        extreme[0][0], extreme[0][-1], extreme[1][0], extreme[1][-1] = CODE, -CODE, largest, -largest
        for one, two in ((x, weight), extreme):
            exact = one.double() @ two.double().T
            assert exact.abs().max() < 2**31
            assert torch.equal(run(level, kernel, two, torch.zeros(outputs), one), exact.float())
        bias = integers(-1000, outputs)
        assert torch.allclose(run(level, kernel, two, bias, one), (exact + bias).float(), rtol=1e-6)


@pytest.mark.parametrize(
    ("level", "kernel"), [each for each in (runnable() if decoder.KERNELS else []) if each[1] == PAIRS]
)
@pytest.mark.parametrize("inputs", [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15], list(range(8))])
def test_sums_of_eight_products_are_exact_at_the_limit_of_16_bits(level, kernel, inputs):
    """PAIRS adds eight products in 16 bits if they cannot be larger than 32,767 = 8 · 4,095.9."""
    pairs = [(code, value) for code in range(1, CODE) for value in range(1, LARGEST + 1)]
    near = [pair for pair in pairs if abs(pair[0] * pair[1] - 32767 / 8) < 70]
    for sign, rows in product([1, -1], [1, 3, 4, 7]):
        for code, value in near:
            x, weight = torch.zeros(rows, 48), torch.zeros(17, 48)
            x[:, 40], weight[:, 40] = CODE, 1  # so that scales are 1
            x[rows // 2, inputs], weight[3 if code % 2 else 16, inputs] = code, sign * value
            assert torch.equal(run(level, kernel, weight, torch.zeros(17), x), x @ weight.T)


@pytest.mark.parametrize(("level", "kernel"), runnable() if decoder.KERNELS else [])
def test_sums_of_the_integers_of_other_toolkits_are_exact(level, kernel):
    for rows, outputs, inputs in [(5, 130, 130), (130, 67, 70), (1, 17, 33)]:
        x, weight = torch.full((rows, inputs), float(CODE)), torch.full((outputs, inputs), float(LARGEST_IMPORTED))
        x[::2], weight[1::2], weight[::3, ::2] = -CODE, -LARGEST_IMPORTED, LARGEST_IMPORTED
        assert torch.equal(run(level, kernel, weight, torch.zeros(outputs), x), x @ weight.T)


@pytest.mark.parametrize(("level", "kernel"), runnable() if decoder.KERNELS else [])
def test_rows_are_quantized_to_the_same_bits_everywhere(level, kernel):
    torch.manual_seed(1)
    identity = torch.eye(131) * LARGEST
    x = torch.randn(40, 131) * 10.0 ** torch.arange(-20, 20)[:, None]
    x[0], x[1] = 0.0, torch.arange(131) - 65.5  # ties
    x[1, 0] = 2 * CODE
    largest = x.abs().amax(1, keepdim=True)
    codes = (x * torch.where(largest > 0, CODE / largest, 0.0)).round()
    assert torch.equal(run(level, kernel, identity, torch.zeros(131), x), codes * LARGEST * (largest / CODE))
    for broken in (torch.nan, torch.inf):
        x[3, 130] = x[4, 0] = broken
        found = run(level, kernel, identity, torch.zeros(131), x)
        assert not found[3:5].isfinite().any()
        assert torch.cat([found[:3], found[5:]]).isfinite().all()


def quantized(x: Tensor, largest: int) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / largest
    return torch.where(scale > 0, (x / scale).round() * scale, 0.0)


def logits_of(engine: Any, sources: list[list[int]], tokens: Tensor) -> Tensor:
    state, rows = engine.start(sources, tokens.shape[1]), range(len(sources))
    steps = (engine.step(state, column.tolist(), rows, rules_of(1), 1) for column in tokens.T)
    return torch.stack([torch.from_numpy(each.logits()) for each in steps])


SHARED = ["all", "inputs", "target", "none"]


@pairwise(
    1,
    scheme=SCHEMES,
    in_turn={
        "size": SIZES,
        "norm": ["pre", "post", "rms"],
        "feed_forward": ["gated", "plain"],
        "activation": ACTIVATIONS,
        "shared": SHARED,
    },
)
def test_the_decoder_agrees_with_quantized_layers(scheme, size, norm, feed_forward, activation, shared, monkeypatch):
    """Sums of attention in another order change codes by one step, which is less than what quantization changes."""
    settings = {"norm": norm, "feed_forward": feed_forward, "activation": activation, "shared_embeddings": shared}
    model = make_model(scheme, size, **settings)
    sources, tokens = random_ids(LENGTHS), torch.randint(VOCAB, (len(LENGTHS), 10))
    exact = logits_of(TorchEngine(model), sources, tokens)
    found = []
    kernels = decoder.KERNELS
    for kernel in kernels.int8_kernels:
        monkeypatch.setattr(decoder, "KERNELS", kernels._replace(int8_kernels=[kernel]))
        found.append(logits_of(NativeEngine(native(model, int8=True)), sources, tokens))
    assert all(torch.equal(each, found[0]) for each in found)

    def linear_of_quantized(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(quantized(x, CODE), quantized(weight, LARGEST), bias)

    monkeypatch.setattr(transformer, "linear", linear_of_quantized)  # for logits
    for name, module in model.named_modules():
        if isinstance(module, Linear) and ".self_attention.attention." not in name:  # those make terms of distances
            monkeypatch.setattr(module, "forward", lambda x, own=module: linear_of_quantized(x, own.weight, own.bias))
    for table in (model.embedding, model.src_embedding, model.output_weight):
        if table is not None:
            table.copy_(quantized(table, LARGEST))
    expected = logits_of(TorchEngine(model), sources, tokens)
    assert (found[0] - expected).norm() < 0.3 * (exact - expected).norm()


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_search_in_one_call_finds_what_steps_find(beam_size):
    model = make_model(output_bias=True)
    model.output_bias[2] = 3.0
    own, rules = NativeEngine(native(model, int8=True)), rules_of(beam_size)
    requests = [Request(1, ids, limit) for ids, limit in zip(random_ids(LENGTHS), [9, 4, 30, 1, 20], strict=True)]
    assert_same(own.search(requests, rules), beam.search(own, requests, rules), rel=1e-7)


@pytest.mark.parametrize(
    ("scheme", "beam_size", "options", "int8"),
    [
        *((scheme, 4, {"n_best": 4}, number % 2 == 0) for number, scheme in enumerate(SCHEMES)),
        *((scheme, 1, {}, int8) for scheme, int8 in (("xl", True), ("relative", False))),
        ("relative", 3, {"no_repeat_ngram": 4}, True),
    ],
)
def test_a_score_does_not_depend_on_the_limits_of_a_batch(scheme, beam_size, options, int8):
    """Rules against repetition are searched in Python."""
    model = make_model(scheme, output_bias=True)
    sources = random_ids(torch.randint(1, 13, (70,)).tolist())
    requests, order = [Request(1, ids, limit) for limit, ids in enumerate(sources, 1)], torch.randperm(70).tolist()
    rules, own = rules_of(beam_size, **options), NativeEngine(native(model, int8=int8))

    def scores_of(rows: list[int]) -> list[list[float]]:
        return [[one.score for one in each] for each in own.search([requests[row] for row in rows], rules)]

    batches = [scores_of(order[:size]) for size in (1, 3, 20, 70)]
    for row in (0, 2, *range(14, 18), 31, 32, 50, 69):
        alone, at = scores_of([row]), order.index(row)
        assert all(batch[at] == alone[0] for batch in batches if at < len(batch))


def test_models_that_int8_does_not_support():
    model = make_model()
    model.decoder[0].feed_forward[0].weight[2, 3] = torch.inf
    with pytest.raises(InputError, match=r"must be finite, .* decoder\.0\.feed_forward\.0\.weight"):
        translator(model, int8=True)
