"""Both operators on all backends against loops over pairs of positions, from the arguments that a caller gives."""

from functools import cache
from typing import Any

import pytest
import torch
from relattn import relation_attention, relative_attention

from tests.support import brute_force
from tests.support.covering import combinations
from tests.support.numerics import assert_close

FAST = ("native", "dense", "reference")
POSITIONS = {  # what decides which pairs attend, and their labels
    "sizes": [(13, 13), (5, 13), (11, 6), (1, 9)],  # queries and keys
    "clip": [None, 1, 5, (4, 4), (0, 3), (6, 2), (30, 30)],
    "beyond": ["clip", "zero"],
    "span": [
        "all", "window 0 0", "window 3 1", "window None 2", "window 5 None",
        "chunk 4 1", "chunk 3 0 1", "chunk 2 None", "chunk 5 2 None", "chunk 1 3",
    ],
    "is_causal": [False, True],
    "offset": ["default", "negative", "later", "per sequence"],
    "lengths": ["all", "lengths", "keys", "queries", "both"],
    "packed": [False, True],
}  # fmt: skip
TERMS = {  # what is added to scores and values
    "tables": ["both", "keys", "values", "neither"],
    "has_rel_query": [False, True],
    "pos_query": ["no", "shared", "per head"],
    "rel_bias": ["no", "shared", "per head"],
    "bias": ["no", "whole", "of keys", "of queries"],
    "mask": ["no", "whole", "of keys"],
    "per_head": [False, True],
    "key_heads": [4, 2, 1],
    "scale": [None, 0.7, -0.3],
}


def is_valid(**case: Any) -> bool:
    """Return whether a call is allowed, as far as its options tell."""
    queries, keys = case.get("sizes", (1, 1))
    lengths, is_packed = case.get("lengths"), case.get("packed")
    if is_packed and (queries != keys or lengths != "all" or case.get("offset") != "default"):
        return False
    if is_packed and (case.get("mask", "no") != "no" or case.get("bias", "no") != "no"):
        return False
    if lengths == "lengths" and queries != keys:
        return False
    if lengths in ("keys", "both") and queries != keys and case.get("offset") == "default":
        return False
    has_label = case["tables"] != "neither" or case["pos_query"] != "no" or case["rel_bias"] != "no"
    return has_label and not (case["has_rel_query"] and case["tables"] in ("values", "neither"))


def values_of(case: dict[str, Any], seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors with gradients of a call, and its other arguments."""
    generator = torch.Generator().manual_seed(seed)
    batch, heads, dim, value_dim = 2, 4, 3, 5
    queries, keys = case["sizes"]
    batch = 1 if case["packed"] else batch
    clip = case["clip"]
    left, right = (2, 2) if clip is None else (clip, clip) if isinstance(clip, int) else clip
    labels = left + right + 1

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, dtype=torch.float64)

    def integers(low: int, high: int, *sizes: int) -> torch.Tensor:
        return torch.randint(low, high, sizes, generator=generator)

    lead = (heads,) if case["per_head"] else ()
    rel_dim = 7 if case["has_rel_query"] else dim
    inputs = {
        "query": normal(batch, heads, queries, dim),
        "key": normal(batch, case["key_heads"], keys, dim),
        "value": normal(batch, case["key_heads"], keys, value_dim),
    }
    if case["tables"] in ("both", "keys"):
        inputs["rel_key"] = normal(*lead, labels, rel_dim)
    if case["tables"] in ("both", "values"):
        inputs["rel_value"] = normal(*lead, labels, value_dim)
    if case["has_rel_query"]:
        inputs["rel_query"] = normal(batch, heads, queries, rel_dim)
    if case["pos_query"] != "no":
        inputs["pos_query"] = normal(*((heads,) if case["pos_query"] == "per head" else ()), labels, dim)
    if case["rel_bias"] != "no":
        inputs["rel_bias"] = normal(*((heads,) if case["rel_bias"] == "per head" else ()), labels)
    sizes = {
        "whole": (batch, heads, queries, keys),
        "of keys": (batch, 1, 1, keys),
        "of queries": (1, heads, queries, 1),
    }
    if case["bias"] != "no":
        bias = normal(*sizes[case["bias"]])
        inputs["bias"] = bias.masked_fill(bias > 1.2, -torch.inf) if case["bias"] == "whole" else bias
    options: dict[str, Any] = {"is_causal": case["is_causal"], "scale": case["scale"]}
    if case["mask"] != "no":
        options["mask"] = torch.rand(sizes[case["mask"]], generator=generator) < 0.7
    kind, *numbers = case["span"].split()
    if numbers:
        options[kind] = tuple(None if number == "None" else int(number) for number in numbers)
    match case["offset"]:
        case "negative":
            options["query_offset"] = -3
        case "later":
            options["query_offset"] = 7
        case "per sequence":
            options["query_offset"] = integers(-4, keys + 2, batch)
    if case["lengths"] == "lengths":
        options["lengths"] = integers(0, keys + 1, batch)
    if case["lengths"] in ("keys", "both"):
        options["key_lengths"] = integers(0, keys + 1, batch)
    if case["lengths"] in ("queries", "both"):
        options["query_lengths"] = integers(0, queries + 1, batch)
    if case["packed"]:
        options["cu_seqlens"] = torch.tensor([0, 4, 4, 5, 9, keys])
    if case["beyond"] == "relations":
        options["relations"] = integers(-1, labels, batch, [1, heads][seed % 2], queries, keys)
    else:
        options |= {"clip": clip, "beyond": case["beyond"]}
    return inputs, options


def assert_equal_to_loops(case: dict[str, Any], seed: int, backends: tuple[str, ...]) -> None:
    inputs, options = values_of(case, seed)
    leaves = {name: x.requires_grad_() for name, x in inputs.items()}
    z, lse = brute_force.attention(**leaves, **options)
    cotangent = torch.randn(z.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(seed))
    gradients = torch.autograd.grad(z, list(leaves.values()), cotangent, allow_unused=True) if z.requires_grad else ()
    zero = [torch.zeros_like(x) for x in leaves.values()]
    found = [x if grad is None else grad for grad, x in zip(gradients or zero, zero, strict=True)]
    want = {"output": z.detach(), "lse": lse, **dict(zip(leaves, found, strict=True))}
    operator = relation_attention if "relations" in options else relative_attention
    for backend in backends:
        output, sums = operator(**leaves, **options, backend=backend, return_lse=True)
        computed = torch.autograd.grad(output, list(leaves.values()), cotangent)
        got = {"output": output.detach(), "lse": sums, **dict(zip(leaves, computed, strict=True))}
        scale = max(float(x[~x.isinf()].abs().max()) for x in want.values() if (~x.isinf()).any())
        assert_close({name: x / max(scale, 1.0) for name, x in got.items()},
                     {name: x / max(scale, 1.0) for name, x in want.items()})  # fmt: skip


POSITION_CASES = combinations(2, is_valid, **POSITIONS, **TERMS)
LABEL_CASES = combinations(
    2, is_valid, **{**POSITIONS, **TERMS, "clip": [None, 1], "beyond": ["relations"], "packed": [False]}
)


@pytest.mark.parametrize("number", range(len(POSITION_CASES)))
def test_relative_attention_equals_loops(number: int) -> None:
    """In output, log-sum-exp and all gradients."""
    assert_equal_to_loops(POSITION_CASES[number], number, FAST)


@pytest.mark.parametrize("number", range(len(LABEL_CASES)))
def test_relation_attention_equals_loops(number: int) -> None:
    assert_equal_to_loops(LABEL_CASES[number], number, FAST)


WITHOUT_TERMS = {
    **dict.fromkeys(("pos_query", "rel_bias", "bias", "mask"), "no"),
    **{"tables": "both", "has_rel_query": False, "per_head": False, "key_heads": 4, "scale": None},
}


@cache
def spans() -> list[dict[str, Any]]:
    """Return every clip with every window or chunk and every third option."""
    return combinations(3, lambda **case: is_valid(**WITHOUT_TERMS, **case), **{**POSITIONS, "packed": [False]})


@pytest.mark.parametrize("part", range(8))
def test_positions_of_three_options_together(part: int) -> None:
    for number, case in enumerate(spans()[part::8]):
        assert_equal_to_loops({**WITHOUT_TERMS, **case}, number, ("native", "dense"))


VARIED = {
    **POSITIONS,
    **TERMS,
    "tables": ["both", "keys"],
    "sizes": [(13, 13), (5, 13)],
    "packed": [False],
    "rel_bias": ["no"],
}
BASES = [
    {"clip": 1, "span": "window 3 1", "offset": "later", "lengths": "both"},
    {"clip": (4, 4), "span": "chunk 4 1", "offset": "default", "lengths": "all", "is_causal": True},
]


@pytest.mark.parametrize("base", range(len(BASES)))
@pytest.mark.parametrize("operator", ["relative", "relation"])
@torch.no_grad()
def test_a_call_that_differs_in_one_option_from_an_earlier_call_equals_loops(operator: str, base: int) -> None:
    """Plans of calls are kept by what they depend on. Each form is called twice, the second time with other numbers."""
    first = {**WITHOUT_TERMS, "sizes": (13, 13), "beyond": "zero", "is_causal": False, "packed": False, **BASES[base]}
    forms = [first, *({**first, name: value} for name, values in VARIED.items() for value in values)]
    for case in forms:
        if operator == "relation":
            case = {**case, "beyond": "relations"}
        for seed in (2, 3) if is_valid(**case) else ():
            inputs, options = values_of(case, seed)
            attend = relation_attention if operator == "relation" else relative_attention
            output, sums = attend(**inputs, **options, backend="native", return_lse=True)
            want, lse = brute_force.attention(**inputs, **options)
            assert_close({"output": output, "lse": sums}, {"output": want, "lse": lse})
            assert torch.equal(attend(**inputs, **options, backend="native"), output)
            apart = {name: x.mT.contiguous().mT for name, x in inputs.items()}  # other strides
            assert_close(attend(**apart, **options, backend="native"), output)
