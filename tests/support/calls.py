"""Calls of both operators that cover combinations of their options, on any shapes: the cases of the backends' tests."""

from typing import Any

import torch
from relattn import relation_attention, relative_attention

from tests.support.covering import combinations
from tests.support.numerics import SHAPES, Shape, make_inputs

# Options of a call that the backends treat together: the label of a pair follows from `labels`, `offset` and, where a
# backend skips hidden keys, from `is_causal`, `window` and `lengths`; each table takes it along another way.
OPTIONS: dict[str, list[Any]] = {
    "labels": ["clip", "zero", "relations"],
    "tables": ["both", "keys", "values", "neither"],
    "is_causal": [False, True],
    "window": ["none", "window", "chunk"],
    "lengths": ["none", "keys", "keys and queries"],
    "offset": ["default", "integer", "per sequence"],
    "mask": [False, True],
    "per_head": [False, True],
    "has_rel_query": [False, True],
}
Case = dict[str, Any]


def cases(n: int = 3, seed: int = 0, shapes: dict[str, Shape] = SHAPES, **more: list[Any]) -> list[Case]:
    """Return calls of both operators that contain every combination of values of any `n` options.

    Args:
        n: Number of options that are combined.
        seed: Seed of what each call is filled with. It also decides which shape a call has.
        shapes: Shapes by name. The calls use them in turn, unless `shape` is one of the options.
        **more: Values of further options, such as `shape`, or `rel_bias` and `bias`, which are False or True.
    """
    options: dict[str, Any] = {**OPTIONS, **more}
    found = combinations(n, **options)
    names = list(shapes)
    return [{"shape": names[(seed + i) % len(names)], **case, "seed": seed + i} for i, case in enumerate(found)]


def name_of(case: Case) -> str:
    """Return the name of a case for pytest."""
    return "-".join(str(value) if not isinstance(value, bool) else name * value for name, value in case.items())


def call_of(case: Case, shape: Shape, dtype: torch.dtype, device: str = "cpu") -> tuple[Any, dict[str, Any], Case]:
    """Return the operator of a case, its inputs and its options; some queries have nothing to attend to."""
    generator = torch.Generator().manual_seed(case["seed"])

    def integers(low: int, high: int, *sizes: int) -> torch.Tensor:
        return torch.randint(low, high, sizes, generator=generator)

    def lead() -> tuple[int, int]:
        return shape.batch if integers(0, 2) else 1, shape.heads if integers(0, 2) else 1

    rel_dim = (1, 3, 19)[case["seed"] % 3] if case["has_rel_query"] else None
    inputs = make_inputs(
        shape, tables=case["tables"], per_head=case["per_head"], rel_dim=rel_dim, dtype=dtype, device=device,
        seed=case["seed"],
    )  # fmt: skip
    if case.get("has_pos_query"):  # not an option of every backend
        table = (shape.heads, shape.labels, shape.dim) if case["per_head"] else (shape.labels, shape.dim)
        inputs["pos_query"] = torch.randn(table, generator=generator, dtype=torch.float64).to(dtype).to(device)
    if case.get("rel_bias"):
        rows = (shape.heads, shape.labels) if integers(0, 2) else (shape.labels,)
        inputs["rel_bias"] = torch.randn(rows, dtype=torch.float64, generator=generator).to(device, dtype)
    if case.get("bias"):
        bias = torch.randn(*lead(), shape.queries, shape.keys, dtype=torch.float64, generator=generator)
        if integers(0, 4) == 0:
            bias = bias[:, :, :1] if integers(0, 2) else bias[..., :1]
        hidden = torch.rand(bias.shape, generator=generator) < 0.1
        inputs["bias"] = bias.masked_fill(hidden, -torch.inf).to(device, dtype)
    options: Case = {"is_causal": case["is_causal"], "scale": (None, 0.3, -0.3)[case["seed"] // 3 % 3]}
    if case["labels"] == "relations":
        operator: Any = relation_attention
        labels = integers(-1, shape.labels, *lead(), shape.queries, shape.keys)
        options["relations"] = labels.to(
            (torch.int64, torch.int8, torch.int16, torch.int32)[case["seed"] % 4 if shape.labels < 128 else 0]
        )
    else:
        operator = relative_attention
        options |= {"clip": (shape.left, shape.right), "beyond": case["labels"]}
    if case["offset"] == "integer":
        options["query_offset"] = int(integers(-2, shape.keys))
    elif case["offset"] == "per sequence":
        options["query_offset"] = integers(-2, shape.keys, shape.batch)
    elif case["lengths"] != "none" and shape.queries != shape.keys:
        options["query_offset"] = shape.keys - shape.queries
    if case["window"] == "window":
        sides = (int(integers(0, shape.keys)) if integers(0, 4) else None for _ in range(2))
        options["window"] = tuple(sides)
    elif case["window"] == "chunk":
        before = int(integers(0, 3)) if integers(0, 4) else None
        options["chunk"] = (
            int(integers(1, max(2, shape.keys // 3))),
            before,
            *([], [0], [1], [2], [None])[integers(0, 5)],
        )
    if case["lengths"] != "none":
        options["key_lengths"] = integers(0, shape.keys + 1, shape.batch)
        options["key_lengths"][0] = shape.keys
    if case["lengths"] == "keys and queries":
        options["query_lengths"] = integers(0, shape.queries + 1, shape.batch)
    if case["mask"]:
        sizes = (n if integers(0, 4) else 1 for n in (shape.queries, shape.keys))
        options["mask"] = torch.rand(*lead(), *sizes, generator=generator) < 0.6
    moved = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    return operator, inputs, moved
