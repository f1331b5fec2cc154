"""Test inputs, and the tolerance for results in each precision.

Dimensions of a shape are distinct primes where possible, so that a transposed axis cannot hide. The tolerance is
measured, not chosen: a small multiple of the error of the reference in the same precision, compared with float64.
"""

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from relattn import backends, relative_attention
from torch import Tensor

Results = dict[str, Tensor]


def widest(backend: str) -> torch.dtype:
    """Return the most precise dtype that a backend supports."""
    dtypes = backends.BACKENDS[backend].CAPABILITIES.dtypes
    return torch.float64 if torch.float64 in dtypes else torch.float32


@dataclass(frozen=True)
class Shape:
    """Sizes of the inputs of a call, with the clipping range (left, right)."""

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
    "clip past the ends": Shape(batch=2, heads=3, key_heads=3, queries=5, keys=5, dim=7, value_dim=11, left=6, right=8),
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
    """Return standard normal query, key, value and tables, made in float64 on the CPU and rounded to `dtype`.

    With `rel_dim`, there is also a `rel_query` (batch, heads, queries, rel_dim), unless keys have no table.
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
    """Return the output, the log-sum-exp and the gradient of every input, for a random output gradient from `seed`."""
    leaves = {name: None if x is None else x.detach().requires_grad_() for name, x in inputs.items()}
    output, lse = operator(**leaves, **options, return_lse=True)
    cotangent = cotangent_of(output, seed)
    given = {name: x for name, x in leaves.items() if x is not None}
    gradients = torch.autograd.grad(output, list(given.values()), cotangent.to(output))
    named = {f"d {name}": gradient for name, gradient in zip(given, gradients, strict=True)}
    return {"output": output.detach(), "lse": lse, **named}


def cotangent_of(output: Tensor, seed: int = 1) -> Tensor:
    """Return the random output gradient, float64 on the CPU."""
    return torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def kept_pairs(attend: Callable[..., Tensor], inputs: dict[str, Tensor | None]) -> Tensor:
    """Return the pairs that dropout keeps, (batch, heads, n, n) of bool.

    All scores are equal, and the values are columns of the identity matrix, so that an output is nonzero where its pair
    is kept. `attend` is called with the names of the inputs, and must drop the same pairs each time.
    """
    zeros = {name: None if x is None else torch.zeros_like(x) for name, x in inputs.items()}
    value = zeros["value"]
    assert value is not None
    n, width = value.shape[2:]
    identity = torch.eye(n, dtype=value.dtype, device=value.device)
    kept = []
    for columns in identity.split(width, dim=1):
        padded = F.pad(columns, (0, width - columns.shape[1])).expand(value.shape)
        kept.append(attend(**{**zeros, "value": padded})[..., : columns.shape[1]] > 0)
    return torch.cat(kept, dim=-1)


def equations_keeping(
    kept: Tensor, query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor, rel_value: Tensor, *,
    clip: int, dropout_p: float, rel_query: Tensor | None = None, is_causal: bool = False, **_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the output and the log-sum-exp by the paper's equations, if dropout keeps `kept`, (batch, heads, n, n)."""
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
    """Return the largest difference; infinity if only one of two values is infinite, or if there is a NaN."""
    if got.shape != want.shape or got.isnan().any() or want.isnan().any() or not torch.equal(got.isinf(), want.isinf()):
        return float("inf")
    finite = ~want.isinf()
    difference = (got.double() - want.double())[finite].abs()
    return float(difference.max()) if difference.numel() > 0 else 0.0


def budgets(
    operator: Callable[..., Any], inputs: dict[str, Tensor | None], *, multiple: float = 4.0, **options: Any
) -> tuple[Results, dict[str, float]]:
    """Return the results of the reference in float64, and the error allowed for each result in the inputs' dtype.

    The allowed error is `multiple` times the error of the reference in that dtype. It is at least `multiple` units in
    the last place of the largest value among the results and the products g · z of output gradient and output: a small
    case may be exact by luck, and small results are differences of larger terms, since every backward pass that
    recomputes the probabilities subtracts g · z. Nothing is more exact than float64 itself. There the error of the
    reference is the largest of three cases of that size in float32, scaled by the ratio of the two precisions. It is
    allowed once more, because the exact results have the same error.
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
    operator: Callable[..., Any],
    inputs: dict[str, Tensor | None],
    backend: str,
    budget: tuple[Results, dict[str, float]] | None = None,
    **options: Any,
) -> dict[str, tuple[float, float]]:
    """Return the error and the allowed error of a backend's output, log-sum-exp and gradients.

    `budget` is the result of `budgets` for this call, if it is at hand.
    """
    exact, allowed = budget or budgets(operator, inputs, **options)
    got = outputs_and_gradients(operator, inputs, backend=backend, **options)
    return {name: (off, allowed[name]) for name, off in differences(got, exact).items()}


def assert_within_budget(
    operator: Callable[..., Any], inputs: dict[str, Tensor | None], backend: str, **options: Any
) -> None:
    """Assert that a backend's output, log-sum-exp and gradients are within the tolerance of their dtype."""
    errors = measured(operator, inputs, backend, **options)
    wrong = {name: (off, allowed) for name, (off, allowed) in errors.items() if off > allowed}
    listed = "; ".join(f"{name} off by {off:.1e}, allowed {allowed:.1e}" for name, (off, allowed) in wrong.items())
    assert not wrong, f"{backend} against the reference: {listed}"


def assert_close(got: Any, want: Any, ulps: float = 450.0) -> None:
    """Assert that two ways to the same numbers of order one differ by rounding only; tensors, or dicts of them."""
    if isinstance(want, Tensor):
        got, want = {"result": got}, {"result": want}
    for name, x in want.items():
        off, allowed = error(got[name], x), ulps * torch.finfo(x.dtype).eps
        assert off < allowed, f"{name} off by {off:.1e}, allowed {allowed:.1e}"


def assert_padding_has_no_effect(
    inputs: dict[str, Tensor | None], junk: float, *, query_lengths: Tensor, key_lengths: Tensor, **options: Any
) -> None:
    """Assert that NaN or infinity in padding, and in its output gradient, gives the bits that zeros give.

    This holds for outputs and all gradients. Those of padding are zero.
    """
    attend: Callable[..., Any] = functools.partial(relative_attention, **options, return_lse=True)
    leaves = {name: x for name, x in inputs.items() if x is not None}
    lengths = {"query": query_lengths, "key": key_lengths}
    padding = {
        name: (torch.arange(leaves[name].shape[2]) >= lengths[name][:, None])[:, None, :, None] for name in lengths
    }
    padding |= {"value": padding["key"], "rel_query": padding["query"], "bias": padding["query"] | padding["key"].mT}

    def results(content: float) -> Results:
        filled = {name: x.masked_fill(padding[name], content) if name in padding else x for name, x in leaves.items()}
        filled = {name: x.requires_grad_() for name, x in filled.items()}
        output, lse = attend(**filled, query_lengths=query_lengths, key_lengths=key_lengths)
        cotangent = cotangent_of(output).to(output).masked_fill(padding["query"], content)
        gradients = torch.autograd.grad(output, list(filled.values()), cotangent)
        return {"output": output, "lse": lse, **dict(zip(filled, gradients, strict=True))}

    got, want = results(junk), results(0.0)
    assert [name for name, x in want.items() if not torch.equal(x, got[name])] == []
    assert not any(got[name].masked_select(where).any() for name, where in padding.items() if name in leaves)


@contextmanager
def nan_in_new_memory() -> Iterator[None]:
    """Let `torch.empty` return NaN, and glibc's malloc, which the compiled kernels use, 3e38."""
    perturb = getattr(ctypes.CDLL(None), "mallopt", lambda option, value: None)
    torch.use_deterministic_algorithms(True)
    perturb(-6, 0x80)  # M_PERTURB: bytes of 0x7f
    try:
        yield
    finally:
        perturb(-6, 0)
        torch.use_deterministic_algorithms(False)
