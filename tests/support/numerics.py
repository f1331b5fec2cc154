"""Inputs whose mistakes show, and the error that arithmetic of a precision is allowed.

Dimensions of a shape are distinct primes where the contract lets them be, so that a transposed axis cannot hide. How
far a backend may be from the equations is measured, not chosen: a small multiple of what the reference itself loses
in that precision against float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn import backends

Results = dict[str, Tensor]


def widest(backend: str) -> torch.dtype:
    """The most precise type that a backend computes in."""
    dtypes = backends.BACKENDS[backend].CAPABILITIES.dtypes
    return torch.float64 if torch.float64 in dtypes else torch.float32


@dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    left: int
    right: int

    @property
    def labels(self) -> int:
        return self.left + self.right + 1


SHAPES = {
    "self": Shape(batch=2, heads=3, key_heads=3, queries=13, keys=13, dim=5, value_dim=7, left=4, right=4),
    "lopsided": Shape(batch=2, heads=3, key_heads=3, queries=11, keys=11, dim=5, value_dim=7, left=1, right=3),
    "grouped": Shape(batch=5, heads=6, key_heads=2, queries=7, keys=7, dim=3, value_dim=11, left=2, right=2),
    "one key head": Shape(batch=2, heads=3, key_heads=1, queries=7, keys=7, dim=5, value_dim=11, left=2, right=0),
    "last queries": Shape(batch=2, heads=3, key_heads=3, queries=5, keys=13, dim=7, value_dim=11, left=3, right=2),
    "more queries": Shape(batch=2, heads=3, key_heads=3, queries=13, keys=5, dim=7, value_dim=11, left=3, right=2),
    "one query": Shape(batch=5, heads=3, key_heads=3, queries=1, keys=11, dim=7, value_dim=2, left=3, right=3),
    "one head": Shape(batch=3, heads=1, key_heads=1, queries=7, keys=7, dim=5, value_dim=2, left=2, right=3),
    "one label": Shape(batch=3, heads=2, key_heads=2, queries=7, keys=7, dim=5, value_dim=11, left=0, right=0),
    "window past the ends": Shape(
        batch=2, heads=3, key_heads=3, queries=5, keys=5, dim=7, value_dim=11, left=6, right=8
    ),
    "one position": Shape(batch=2, heads=3, key_heads=3, queries=1, keys=1, dim=5, value_dim=7, left=2, right=2),
}


def make_inputs(
    shape: Shape,
    *,
    tables: Literal["both", "keys", "values", "neither"] = "both",
    per_head: bool = False,
    rel_dim: int | None = None,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> dict[str, Tensor | None]:
    """Standard normal query, key, value and tables of a shape, made in float64 on CPU and rounded to `dtype`.

    With a `rel_dim` there is a `rel_query` of so many dimensions too, where keys have a table.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, dtype=torch.float64, generator=generator).to(device, dtype)

    lead = (shape.heads,) if per_head else ()
    inputs = {
        "query": normal(shape.batch, shape.heads, shape.queries, shape.dim),
        "key": normal(shape.batch, shape.key_heads, shape.keys, shape.dim),
        "value": normal(shape.batch, shape.key_heads, shape.keys, shape.value_dim),
        "rel_key": normal(*lead, shape.labels, rel_dim or shape.dim) if tables in ("both", "keys") else None,
        "rel_value": normal(*lead, shape.labels, shape.value_dim) if tables in ("both", "values") else None,
    }
    if rel_dim is not None and inputs["rel_key"] is not None:
        inputs["rel_query"] = normal(shape.batch, shape.heads, shape.queries, rel_dim)
    return inputs


def outputs_and_gradients(
    operator: Callable[..., Any], inputs: dict[str, Tensor | None], *, seed: int = 1, **options: Any
) -> Results:
    """The output, the log-sum-exp and the gradients of every input given, under a random cotangent from `seed`."""
    leaves = {name: None if x is None else x.detach().requires_grad_() for name, x in inputs.items()}
    output, lse = operator(**leaves, **options, return_lse=True)
    cotangent = cotangent_of(output, seed)
    given = {name: x for name, x in leaves.items() if x is not None}
    gradients = torch.autograd.grad(output, list(given.values()), cotangent.to(output))
    named = {f"d {name}": gradient for name, gradient in zip(given, gradients, strict=True)}
    return {"output": output.detach(), "lse": lse, **named}


def cotangent_of(output: Tensor, seed: int = 1) -> Tensor:
    """What gradients are taken under, float64 on CPU."""
    return torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def kept_pairs(attend: Callable[..., Tensor], inputs: dict[str, Tensor | None]) -> Tensor:
    """The pairs (batch, heads, n, n) that dropout keeps, read off outputs: equal scores, values that spell the keys.

    `attend` is called with the inputs' names, and drops the same pairs each time.
    """
    equal = {name: None if x is None else torch.zeros_like(x) for name, x in inputs.items()}
    value = equal["value"]
    assert value is not None
    n, width = value.shape[2:]
    letters = torch.eye(n, dtype=value.dtype, device=value.device)
    spelled = []
    for start in range(0, n, width):
        some = letters[:, start : start + width]
        equal["value"] = F.pad(some, (0, width - some.shape[1])).expand(value.shape)
        spelled.append(attend(**equal)[..., : some.shape[1]] > 0)
    return torch.cat(spelled, dim=-1)


def equations_keeping(
    kept: Tensor, query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor, rel_value: Tensor, *,
    clip: int, dropout_p: float, rel_query: Tensor | None = None, is_causal: bool = False, **_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The paper's equations where dropout keeps the pairs `kept`, (batch, heads, n, n) of bool: its oracle."""
    distance = torch.arange(query.shape[2], device=query.device)
    distance = distance - distance[:, None]
    label = distance.clamp(-clip, clip) + clip
    r = query if rel_query is None else rel_query
    scores = (query @ key.mT + torch.einsum("bhid,ijd->bhij", r, rel_key[label])) * query.shape[3] ** -0.5
    if is_causal:
        scores = scores.masked_fill(distance > 0, -torch.inf)
    weights = scores.softmax(-1) * kept / (1.0 - dropout_p)
    output = weights @ value + torch.einsum("bhij,ijd->bhid", weights, rel_value[label])
    return output, scores.detach().logsumexp(-1)


def error(got: Tensor, want: Tensor) -> float:
    """The largest difference; infinite where one is −inf and the other not, or where either is not a number."""
    if got.shape != want.shape or got.isnan().any() or not torch.equal(got.isinf(), want.isinf()):
        return float("inf")
    finite = ~want.isinf()
    difference = (got.double() - want.double())[finite].abs()
    return float(difference.max()) if difference.numel() > 0 else 0.0


def budgets(
    operator: Callable[..., Any], inputs: dict[str, Tensor | None], *, multiple: float = 4.0, **options: Any
) -> tuple[Results, dict[str, float]]:
    """What the reference gives for `inputs` in float64, and how far from it arithmetic in their type may be.

    The error allowed for each result is `multiple` times the reference's own in that type, and at least `multiple`
    units in the last place of the largest number among them and the products g · z of cotangent and output, since a
    small case may be exact by luck and a small result is made of larger terms: any backward pass that makes the
    probabilities again subtracts g · z. For float64 itself there is nothing more exact to hold the reference to: its
    loss is the largest of three cases of that size in float32, scaled by the ratio of the two precisions, and it is
    allowed once more, since the numbers compared with have lost as much.
    """
    query = inputs["query"]
    assert query is not None
    options = {**options, "backend": "reference"}
    exact = outputs_and_gradients(operator, convert(inputs, torch.float64), **options)
    output = exact["output"]
    subtracted = (cotangent_of(output).to(output) * output).sum(-1)
    numbers = torch.cat([want[~want.isinf()].flatten() for want in (*exact.values(), subtracted)])
    floor = float(numbers.abs().max()) * torch.finfo(query.dtype).eps if numbers.numel() > 0 else 0.0
    if query.dtype != torch.float64:
        own = differences(outputs_and_gradients(operator, inputs, **options), exact)
        return exact, {name: multiple * max(own[name], floor) for name in exact}
    losses = []
    for size in (1.0, 0.9, 1.1):
        sized = {name: None if x is None else (x * size).float() for name, x in inputs.items()}
        lost = outputs_and_gradients(operator, sized, **options)
        losses.append(differences(lost, outputs_and_gradients(operator, convert(sized, torch.float64), **options)))
    ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    own = {name: ratio * max(loss[name] for loss in losses) for name in exact}
    return exact, {name: (multiple + 1.0) * max(own[name], floor) for name in exact}


def differences(got: Results, want: Results) -> dict[str, float]:
    return {name: error(got[name], want[name]) for name in want}


def convert(inputs: dict[str, Tensor | None], dtype: torch.dtype) -> dict[str, Tensor | None]:
    return {name: None if x is None else x.to(dtype) for name, x in inputs.items()}


def measured(
    operator: Callable[..., Any], inputs: dict[str, Tensor | None], backend: str, **options: Any
) -> dict[str, tuple[float, float]]:
    """How far a backend's output, log-sum-exp and gradients are from the equations, and how far they may be."""
    exact, allowed = budgets(operator, inputs, **options)
    got = outputs_and_gradients(operator, inputs, backend=backend, **options)
    return {name: (off, allowed[name]) for name, off in differences(got, exact).items()}


def assert_within_budget(
    operator: Callable[..., Any], inputs: dict[str, Tensor | None], backend: str, **options: Any
) -> None:
    """A backend's output, log-sum-exp and gradients are within the error that their type allows of the equations."""
    found = measured(operator, inputs, backend, **options)
    wrong = {name: (off, allowed) for name, (off, allowed) in found.items() if off > allowed}
    listed = "; ".join(f"{name} off by {off:.1e}, allowed {allowed:.1e}" for name, (off, allowed) in wrong.items())
    assert not wrong, f"{backend} against the reference: {listed}"
