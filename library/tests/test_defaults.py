"""Results do not depend on PyTorch's default dtype and device, which a thread that loads a model changes for all."""

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from relattn import RelativeAttention, RelativeMultiheadAttention, RelativeSelfAttention, relative_attention
from relattn.integrations import transformers as faster
from relattn.integrations.transformers.families import load_families
from relattn.integrations.transformers.family import tensors_of
from torch import Tensor, nn

from tests.support.calls import call_of, cases
from tests.support.numerics import SHAPES


@contextmanager
def default(name: str) -> Iterator[None]:
    if name == "meta":
        with torch.device("meta"):
            yield
        return
    try:
        torch.set_default_dtype(getattr(torch, name))
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def changing_dtype() -> Iterator[None]:
    """Let another thread change the default dtype all the time, as `from_pretrained(dtype=torch.bfloat16)` does."""
    is_over = threading.Event()

    def change() -> None:
        while not is_over.is_set():
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                torch.set_default_dtype(dtype)
                is_over.wait(1e-5)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        torch.set_default_dtype(torch.float32)


def flat(results: Any) -> list[Tensor]:
    return list(results.values()) if isinstance(results, dict) else list(results)


def assert_same(got: Any, want: Any) -> None:
    for x, y in zip(flat(got), flat(want), strict=True):
        assert (x.dtype, x.device) == (y.dtype, y.device)
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


OPERATOR_CASES = [
    (backend, case)
    for backend in ("native", "dense", "reference")
    for case in cases(1, bias=[False, True], rel_bias=[False, True], dropout_p=[0.0, 0.3])
]


def operator_results(dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    """Return a function that computes outputs and gradients on all backends."""

    calls = []
    for backend, case in OPERATOR_CASES:
        operator, inputs, options = call_of(case, SHAPES[case["shape"]], dtype)
        calls.append((operator, inputs, options | {"backend": backend, "dropout_p": case["dropout_p"]}))

    def results() -> list[Tensor]:
        found: list[Tensor] = []
        for operator, inputs, options in calls:
            torch.manual_seed(0)
            leaves = {name: None if x is None else x.detach().requires_grad_() for name, x in inputs.items()}
            output, lse = operator(**leaves, **options, return_lse=True)
            given = [x for x in leaves.values() if x is not None]
            found += [output, lse, *torch.autograd.grad(output.square().sum(), given)]
        return found

    return results


def unread_row() -> Tensor:
    """Call with a row of a table that no pair takes, and that is not finite."""
    query = torch.ones(1, 1, 3, 4, dtype=torch.float32, device="cpu")
    table = torch.ones(5, 4, dtype=torch.float32, device="cpu")
    table[0] = torch.nan
    lengths = torch.tensor([2], device="cpu")
    return relative_attention(query, query, query, table, clip=2, lengths=lengths)


def module_results() -> Callable[[], list[Tensor]]:
    attention, layer = RelativeAttention(5, 3), RelativeSelfAttention(16, 2, 3, is_causal=True, window=(5, 0))
    multihead = RelativeMultiheadAttention(16, 2, clip=3, batch_first=True)
    multihead_of_torch = nn.MultiheadAttention(16, 2, batch_first=True)
    with warnings.catch_warnings(action="ignore"):  # deprecated
        quantized = torch.ao.quantization.quantize_dynamic(copy.deepcopy(layer).eval(), {nn.Linear})
    x, heads, lengths = torch.randn(2, 7, 16), torch.randn(2, 3, 7, 5), torch.tensor([7, 4])
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True

    def results() -> list[Tensor]:
        found = [attention(heads, heads, heads, lengths=lengths), unread_row()]
        found += [multihead(x, x, x, key_padding_mask=padding)[0], layer(x, lengths)]
        found.append(RelativeMultiheadAttention.from_module(multihead_of_torch, clip=2)(x, x, x)[0])
        for cached in (layer, quantized):
            cache = cached.empty_cache(2, 3)
            for part, ends in zip(x.split(3, dim=1), ((3, 2), (6, 5), (7, 6)), strict=True):
                output, cache = cached(part, torch.tensor(ends, device="cpu"), cache)
                found.append(output)
            cache = cache.select(torch.tensor([1, 0], device="cpu")).drop(1)
            found += [cache.key, cache.value]
        return found

    return torch.no_grad()(results)


def int8_results() -> Callable[[], list[Tensor]]:
    """Products of many sizes, and a weight that changes and is quantized again."""
    layers = [nn.Sequential(nn.Linear(inputs, outputs)) for inputs, outputs in ((64, 64), (96, 130), (70, 257))]
    for layer in layers:
        faster.enable(layer, linear="int8")
    inputs = [torch.randn(rows, layer[0].in_features) for layer in layers for rows in (1, 37)]
    own = [layer[0].weight.detach().clone() for layer in layers]

    def results() -> list[Tensor]:
        found = []
        for layer, weight in zip(layers, own, strict=True):
            layer[0].weight.copy_(weight.flip(0))
            found += [layer(x) for x in inputs if x.shape[1] == weight.shape[1]]
            layer[0].weight.copy_(weight)
            found += [layer(x) for x in inputs if x.shape[1] == weight.shape[1]]
        return found

    return torch.no_grad()(results)


RESULTS: dict[str, Callable[[], Callable[[], list[Tensor]]]] = {
    "operators": lambda: operator_results(torch.float32),
    "operators in bfloat16": lambda: operator_results(torch.bfloat16),
    "modules": module_results,
    "int8": int8_results,
}


@pytest.mark.parametrize("name", RESULTS)
def test_calls(name):
    results = RESULTS[name]()
    want = results()
    for other in ("bfloat16", "meta"):
        with default(other):
            got = results()
        assert_same(got, want)
    with changing_dtype():
        for _ in range(3 if name.startswith("operators") else 30):
            assert_same(results(), want)


@pytest.mark.parametrize("part", range(4))
def test_models(part):
    """Models of every family; the own code of those that keep it for a part of a call is compared too."""
    for family in load_families()[part::4]:
        torch.manual_seed(1)
        model, inputs = family.make(), family.inputs()
        with faster.enable(model), torch.no_grad():
            assert ": relattn" in faster.report(model)
            want = tensors_of(family, model, inputs)
            for other in ("bfloat16", "meta"):
                with default(other):
                    got = tensors_of(family, model, inputs)
                assert_same(got, want)
            with changing_dtype():
                assert_same(tensors_of(family, model, inputs), want)


def test_a_model_is_enabled_beside_a_thread_that_loads_another(monkeypatch):
    """The check of a family neither reads nor changes what belongs to the other thread."""
    from relattn.integrations.transformers import patching

    monkeypatch.setattr(patching, "_mismatch_reason", patching._mismatch_reason.__wrapped__)
    changes = []
    own = torch.set_default_dtype
    for dtype in (torch.bfloat16, torch.float16):
        with default(str(dtype).removeprefix("torch.")):
            monkeypatch.setattr(torch, "set_default_dtype", lambda dtype: changes.append(dtype))
            for family in load_families()[:3]:
                assert patching._mismatch_reason(family) is None
            monkeypatch.setattr(torch, "set_default_dtype", own)
    assert changes == []
