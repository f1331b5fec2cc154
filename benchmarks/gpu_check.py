"""Checks of the Triton kernels on a GPU: the calls of the tests, at the sizes of compiled kernels.

Results are compared with the reference backend. The tolerance is a small multiple of the error of the reference in the
same dtype against float64 (`tests/support/numerics.py`).
"""

from functools import partial
from itertools import product
from typing import Any

import torch
from relattn import relative_attention

from benchmarks.measure import Row
from benchmarks.workers import Task
from tests.support.calls import Case, call_of, cases, name_of
from tests.support.numerics import (
    Shape,
    equations_keeping,
    error,
    kept_pairs,
    make_inputs,
    measured,
    outputs_and_gradients,
)

DTYPES = ("bfloat16", "float32", "float16")


def shape_of(
    queries: int, keys: int, dim: int = 64, value_dim: int = 64, left: int = 16, right: int = 16, *, batch: int = 2,
    heads: int = 2, key_heads: int = 2,
) -> Shape:  # fmt: skip
    return Shape(batch, heads, key_heads, queries, keys, dim, value_dim, left, right)


SHAPES = {
    f"{shape.queries} × {shape.keys}, dim {shape.dim} {shape.value_dim}, clip {shape.left} {shape.right}": shape
    for shape in (
        shape_of(64, 64),
        shape_of(300, 300),  # far tiles on both sides
        shape_of(128, 128),  # the longest sequence of a single program, and one more
        shape_of(129, 129, left=3, right=20),
        shape_of(17, 17, 16, 16, 20, 3),
        shape_of(100, 100, 80, 24, 5, 1),
        shape_of(300, 300, 128, 128),
        shape_of(300, 300, 256, 64, 0, 0),
        shape_of(100, 300, 128, 256, 0, 5),
        shape_of(300, 40, heads=4, key_heads=1),
        shape_of(300, 300, left=64, right=64, heads=4),  # several chunks of table rows
        shape_of(300, 300, 32, 32, 299, 299, batch=1),  # a row of the tables per distance
        shape_of(10, 1000),  # keys are split among programs
        shape_of(1, 1000, batch=4),
        shape_of(1000, 1000, batch=1),
    )
}
TINY = {"tiny": shape_of(17, 20, 8, 8, 3, 2, batch=1)}


def within_budget(case: Case, shape: Shape, device: str) -> Row:
    """Check that the outputs and gradients of a call are within the tolerance, and return the largest share of it."""
    operator, inputs, options = call_of(case, shape, getattr(torch, case["dtype"]), device)
    return share_of_budget(operator, inputs, **options)


def share_of_budget(operator: Any, inputs: dict[str, Any], **options: Any) -> Row:
    """Return the largest error as a share of what is allowed, and the output or gradient that has it."""
    errors = measured(operator, inputs, "triton", **options)
    shares = {name: off / allowed if allowed > 0.0 else off for name, (off, allowed) in errors.items()}  # 0: all hidden
    worst = max(shares, key=lambda name: shares[name])
    listed = ", ".join(f"{name} {share:.2f}" for name, share in shares.items() if not share <= 1.0)
    assert not listed, f"errors must be at most 1 × what is allowed, got {listed}"
    return {"share of the allowed error": round(shares[worst], 3), "largest in": worst}


def inputs_of(n: int, device: str) -> dict[str, Any]:
    """Return the arguments of the calls below."""
    dim, clip = (64, 16) if device == "cuda" else (8, 3)
    return make_inputs(shape_of(n, n, dim, dim, clip, clip, batch=1), dtype=torch.float32, device=device)


def repeatable(n: int, is_causal: bool, compiles: bool, device: str) -> Row:
    """Check that a second call, by torch.compile in one graph or not, gives bitwise equal results."""
    operator = partial(relative_attention, is_causal=is_causal, backend="triton")
    compiler = "inductor" if device == "cuda" else "aot_eager"
    second = torch.compile(operator, fullgraph=True, backend=compiler) if compiles else operator
    want, got = (outputs_and_gradients(call, inputs_of(n, device)) for call in (operator, second))
    different = {name: error(got[name], x) for name, x in want.items() if not torch.equal(x, got[name])}
    assert not different, f"the second call differs: {different}"
    return {}


def dropout(n: int, is_causal: bool, device: str) -> Row:
    """Check that a seed drops the same pairs in both passes, and the right share of them."""
    inputs = inputs_of(n, device)
    options: dict[str, Any] = {"clip": inputs["rel_key"].shape[0] // 2, "is_causal": is_causal, "dropout_p": 0.3}

    def kernels(seed: int = 5, **given: Any) -> Any:
        torch.manual_seed(seed)
        return relative_attention(**given, **options, backend="triton")

    kept = kept_pairs(kernels, inputs)
    assert torch.equal(kept, kept_pairs(kernels, inputs)), "a seed keeps other pairs the second time"
    assert not torch.equal(kept, kept_pairs(partial(kernels, seed=6), inputs)), "another seed keeps the same pairs"
    pairs = int((torch.ones_like(kept).tril() if is_causal else torch.ones_like(kept)).sum())
    share, deviation = int(kept.sum()) / pairs, (0.3 * 0.7 / pairs) ** 0.5
    assert abs(share - 0.7) < 5 * deviation, f"{share:.4f} of the pairs are kept, expected 0.7"

    def operator(backend: str, **given: Any) -> Any:
        return kernels(**given) if backend == "triton" else equations_keeping(kept, **given, **options)

    return share_of_budget(operator, inputs)


def tasks(device: str) -> dict[str, Task]:
    """Return the checks by name. On a CPU they are few and small."""
    on_gpu = device == "cuda"
    shapes, plain = (SHAPES, product((100, 200), (False, True))) if on_gpu else (TINY, [(17, True)])
    calls, checks = cases(2, shapes=shapes, shape=list(shapes), dtype=list(DTYPES)), dict[str, Task]()
    for n, is_causal in plain:
        name = f"n {n}{', causal' * is_causal}"
        checks[f"dropout: {name}"] = dropout, (n, is_causal, device)
        checks[f"repeated: {name}"] = repeatable, (n, is_causal, False, device)
        if on_gpu:  # compiling takes seconds
            checks[f"compiled: {name}"] = repeatable, (n, is_causal, True, device)
    checks |= {name_of(case): (within_budget, (case, shapes[case["shape"]], device)) for case in calls}
    return checks if on_gpu else dict(list(checks.items())[:5])
