"""The Triton kernels against the equations: every option of a call, at the sizes where kernels go wrong.

The name of a case lists how it differs from a plain one. The tolerance is measured (`tests/support/numerics.py`): a
small multiple of the error of the reference in the same dtype against float64.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor

from relattn import relation_attention, relative_attention
from tests.support.numerics import (
    Shape,
    assert_within_budget,
    equations_keeping,
    error,
    kept_pairs,
    make_inputs,
    outputs_and_gradients,
)

TYPES = ("bfloat16", "float32", "float16")


@dataclass(frozen=True)
class Check:
    n: int  # keys, and queries where `queries` is not given
    dtype: str = "bfloat16"
    queries: int | None = None
    dim: int = 64
    value_dim: int | None = None
    rel_dim: int | None = None  # of a rel_query
    batch: int = 2
    heads: int = 2
    key_heads: int | None = None
    k: int | tuple[int, int] = 16
    tables: Literal["both", "keys", "values", "neither"] = "both"
    per_head: bool = False
    beyond: Literal["clip", "zero"] = "clip"
    causal: bool = False
    lengths: bool = False  # of keys
    query_lengths: bool = False
    offset: int | Literal["each"] | None = None
    mask: bool = False
    relations: bool = False
    as_projected: bool = False  # (batch, n, heads, dim) in memory

    def __str__(self) -> str:
        told = [f"{f.name} {getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return ", ".join(told).replace(" True", "")

    @property
    def shape(self) -> Shape:
        left, right = self.k if isinstance(self.k, tuple) else (self.k, self.k)
        return Shape(
            batch=self.batch,
            heads=self.heads,
            key_heads=self.heads if self.key_heads is None else self.key_heads,
            queries=self.n if self.queries is None else self.queries,
            keys=self.n,
            dim=self.dim,
            value_dim=self.dim if self.value_dim is None else self.value_dim,
            left=left,
            right=right,
        )

    def inputs(self, device: str) -> dict[str, Tensor | None]:
        made = make_inputs(
            self.shape,
            tables=self.tables,
            per_head=self.per_head,
            rel_dim=self.rel_dim,
            dtype=getattr(torch, self.dtype),
            device=device,
        )
        if self.as_projected:
            for name in ("query", "key", "value"):
                x = made[name]
                assert x is not None
                made[name] = x.transpose(1, 2).contiguous().transpose(1, 2)
        return made

    def options(self, device: str) -> dict[str, Any]:
        shape, generator = self.shape, torch.Generator().manual_seed(2)
        pairs = (shape.batch, shape.heads, shape.queries, shape.keys)

        def integers(low: int, high: int, *sizes: int) -> Tensor:
            return torch.randint(low, high, sizes, generator=generator).to(device)

        options: dict[str, Any] = {"is_causal": self.causal}
        if self.relations:
            options["relations"] = integers(-1, shape.labels, *pairs)
        else:
            options |= {"clip": (shape.left, shape.right), "beyond": self.beyond}
        if self.lengths:
            lengths = integers(0, self.n + 1, shape.batch)
            lengths[0] = self.n
            options["key_lengths"] = lengths
        if self.query_lengths:
            options["query_lengths"] = integers(0, shape.queries + 1, shape.batch)
        if self.offset == "each":
            options["query_offset"] = integers(-5, self.n, shape.batch)
        elif self.offset is not None:
            options["query_offset"] = self.offset
        if self.mask:
            options["mask"] = (torch.rand(pairs, generator=generator) < 0.7).to(device)
        return options


CHECKS = (
    *(Check(n, dtype) for n in (64, 300, 17, 100, 128, 129) for dtype in TYPES),
    *(Check(n, causal=True, as_projected=True) for n in (17, 64, 128, 129, 300)),
    *(Check(1000, dtype, batch=1, causal=causal) for dtype in ("bfloat16", "float32") for causal in (False, True)),
    *(Check(n, dim=dim) for dim in (16, 80, 128, 256) for n in (100, 300)),
    *(Check(n, "float32", dim=dim) for dim in (16, 128, 256) for n in (100, 300)),
    *(Check(n, "float16", dim=128, causal=True) for n in (100, 300)),
    Check(129, "float32", dim=80, value_dim=16),
    Check(129, dim=64, value_dim=128),
    *(Check(n, k=k) for k in ((3, 20), (20, 3), (0, 5), (0, 0), 1) for n in (100, 300)),
    *(Check(n, beyond="zero", causal=causal) for n in (100, 300) for causal in (False, True)),
    *(Check(n, tables=tables) for tables in ("keys", "values", "neither") for n in (100, 300)),
    *(Check(n, per_head=True) for n in (100, 300)),
    *(Check(n, heads=4, key_heads=key_heads, causal=True) for key_heads in (1, 2) for n in (100, 300)),
    *(Check(n, lengths=True, causal=causal, batch=4) for n in (64, 300) for causal in (False, True)),
    Check(300, "float32", lengths=True, batch=4, per_head=True),
    *(Check(n, queries=40, offset=7, causal=causal) for n in (100, 300) for causal in (False, True)),
    *(Check(n, queries=70, offset="each", causal=causal) for n in (100, 300) for causal in (False, True)),
    Check(300, queries=130, offset="each", lengths=True, batch=4),
    Check(300, queries=130, offset="each", lengths=True, query_lengths=True, batch=4),
    Check(1000, queries=10, offset="each", lengths=True, query_lengths=True, batch=4),
    *(Check(n, "float32", query_lengths=True, causal=causal, batch=4) for n in (64, 300) for causal in (False, True)),
    Check(40, queries=300, offset=-200),
    Check(1000, queries=1, causal=True, batch=4),
    *(Check(n, mask=True, causal=causal) for n in (100, 300) for causal in (False, True)),
    *(Check(n, dtype, k=64) for n in (100, 300) for dtype in ("bfloat16", "float32")),
    *(Check(n, k=200, batch=1, causal=causal) for n in (300, 1000) for causal in (False, True)),
    Check(300, "float32", k=200, beyond="zero"),
    *(Check(n, dtype, relations=True) for n in (100, 300) for dtype in ("bfloat16", "float32")),
    Check(300, relations=True, k=100, per_head=True, causal=True, lengths=True),
    Check(300, relations=True, tables="values", mask=True),
    *(Check(n, dtype, rel_dim=64, tables="keys", k=n - 1) for n in (100, 300) for dtype in ("bfloat16", "float32")),
    *(Check(n, rel_dim=rel_dim, causal=causal) for n in (100, 300) for rel_dim in (1, 80) for causal in (False, True)),
    Check(300, rel_dim=24, relations=True, per_head=True, lengths=True),
)

FIRST = 23  # checks of every type and of causality at the plainest sizes
SIZES = tuple(product((100, 200), (False, True)))  # n, and whether causal, of the other checks
TINY = (
    Check(17, "float32", dim=8, k=3, batch=1),
    Check(20, "float16", dim=8, k=(2, 1), batch=1, causal=True, lengths=True, per_head=True, as_projected=True),
    Check(20, "float32", dim=8, k=2, heads=4, key_heads=2, queries=9, offset="each", beyond="zero", mask=True),
    Check(20, "float32", dim=8, k=2, queries=9, offset="each", lengths=True, query_lengths=True),
    Check(16, "float32", dim=8, k=2, batch=1, relations=True),
    Check(16, dim=8, k=2, batch=1),
    Check(17, "float32", dim=8, k=2, batch=1, rel_dim=3),
)


def within_budget(case: Check, device: str) -> None:
    operator = relation_attention if case.relations else relative_attention
    assert_within_budget(operator, case.inputs(device), "triton", **case.options(device))


def deterministic(case: Check, device: str) -> None:
    """Twice the same call gives the same bits."""
    inputs, options = case.inputs(device), case.options(device)
    once, again = (outputs_and_gradients(relative_attention, inputs, backend="triton", **options) for _ in "12")
    different = [name for name, x in once.items() if not torch.equal(x, again[name])]
    assert not different, f"differ from one call to the next: {', '.join(different)}"


def compiled(case: Check, device: str) -> None:
    """torch.compile takes the call whole, and changes nothing."""
    inputs, options = case.inputs(device), case.options(device)
    compiler = "inductor" if device == "cuda" else "aot_eager"

    def operator(**given: Any) -> Any:
        return relative_attention(**given, **options, backend="triton")

    eager = outputs_and_gradients(operator, inputs)
    got = outputs_and_gradients(torch.compile(operator, fullgraph=True, backend=compiler), inputs)
    different = {name: error(got[name], x) for name, x in eager.items() if not torch.equal(x, got[name])}
    assert not different, f"differ from eager: {different}"


def dropout(case: Check, device: str) -> None:
    """One seed drops the same pairs forward and backward, and as many as it should."""
    inputs = case.inputs(device)
    options: dict[str, Any] = {"clip": case.k, "is_causal": case.causal, "dropout_p": 0.3}

    def kernels(seed: int = 5, **given: Any) -> Any:
        torch.manual_seed(seed)
        return relative_attention(**given, **options, backend="triton")

    kept = kept_pairs(kernels, inputs)
    assert torch.equal(kept, kept_pairs(kernels, inputs)), "one seed keeps other pairs the next time"
    assert not torch.equal(kept, kept_pairs(partial(kernels, seed=6), inputs)), "another seed keeps the same pairs"
    visible = torch.ones_like(kept).tril() if case.causal else torch.ones_like(kept)
    pairs = int(visible.sum())
    share, deviation = int(kept.sum()) / pairs, (0.3 * 0.7 / pairs) ** 0.5
    assert abs(share - 0.7) < 5 * deviation, f"{share:.4f} of the pairs are kept, not 0.7"

    def operator(backend: str, **given: Any) -> Any:
        if backend == "triton":
            return kernels(**given)
        return equations_keeping(kept, **given, **options)

    assert_within_budget(operator, inputs, "triton")


def tasks(device: str) -> dict[str, tuple[Callable[..., None], tuple[Check, str]]]:
    """All checks by name, the most important first, since time may not suffice: on a CPU few and tiny."""
    tiny = device == "cpu"
    cases, sizes, dim, k, batch = (TINY, ((20, True),), 8, 3, 1) if tiny else (CHECKS, SIZES, 64, 16, 2)
    found: dict[str, tuple[Callable[..., None], tuple[Check, str]]] = {}
    for (n, causal), check in product(sizes, (dropout, deterministic, compiled)):
        case = Check(n, "float32", dim=dim, k=k, batch=batch, causal=causal)
        found[f"{check.__name__}: {case}"] = check, (case, device)
    plain = {str(case): (within_budget, (case, device)) for case in cases}
    first = dict(list(plain.items())[:FIRST])
    return {**first, **found, **plain}
