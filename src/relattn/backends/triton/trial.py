"""A trial of the Triton kernels: a few small cases of a kind, forward and backward, against the paper's equations.

The error allowed is that of `relattn.testing`. Numbers come from the trial's own generators, and types and devices are
given wherever PyTorch has a default for them. `trust.py` says when there is a trial.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relattn import backends, positions
from relattn.backends import triton
from relattn.backends.triton import verdicts
from relattn.backends.triton.failures import NotCompiledError, first_line
from relattn.backends.triton.kinds import Kind
from relattn.backends.triton.verdicts import Verdict
from relattn.call import Call
from relattn.testing import (
    Results,
    Shape,
    budgets,
    equations_keeping,
    error,
    kept_pairs,
    make_inputs,
    outputs_and_gradients,
)

DROPOUT_P = 0.3


class Case(NamedTuple):
    """A causal one has lengths, unless it drops pairs, and head dims that are not what they are padded to."""

    keys: int
    clip: int
    is_causal: bool
    queries: int | None = None  # the last ones, if not as many as keys


# far, near and partial tiles; a length for one program; a few queries of a decoder; in the interpreter, fewer tiles
ON_GPU = (Case(277, 16, is_causal=False), Case(61, 5, is_causal=True), Case(700, 16, is_causal=True, queries=3))
INTERPRETED = (Case(37, 2, is_causal=False), Case(17, 3, is_causal=True))


def trial(device: torch.device, kind: Kind) -> Verdict:
    """The verdict on a kind. What is not the kernels' fault, such as full memory, is not recorded on disk."""
    try:
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            cases = [case for case in cases_for(device) if case.queries is None or not kind.dropout]
            shares = [worst_share(case, kind, device) for case in cases]
        verdict = Verdict(True, f"agreed, off by {max(shares):.2f} of what is allowed at most")
    except Disagreement as found:
        verdict = Verdict(False, f"disagreed with the equations: {found}")
    except NotCompiledError as failure:
        return Verdict(False, str(failure).removeprefix("triton: "))  # recorded by who raised it
    except Exception as trouble:  # whatever it is, the caller is warned of it, and served by dense
        verdict = Verdict(False, f"could not be tried: {first_line(trouble)}")
        verdicts.remember(device, kind, verdict)
        return verdict
    verdicts.record(device, kind, verdict)
    return verdict


class Disagreement(Exception):
    """Of the kernels and the equations, by more than rounding."""


def cases_for(device: torch.device) -> tuple[Case, ...]:
    return ON_GPU if device.type == "cuda" else INTERPRETED


def worst_share(case: Case, kind: Kind, device: torch.device) -> float:
    """How far the kernels are from the equations on a case, as a share of what is allowed; `Disagreement` above it."""
    sizes = Shape(
        batch=1 + case.is_causal,
        heads=2 - case.is_causal,
        key_heads=1,
        queries=case.keys if case.queries is None else case.queries,
        keys=case.keys,
        dim=kind.dim - 3 * case.is_causal,
        value_dim=kind.value_dim - 3 * case.is_causal,
        left=case.clip,
        right=case.clip,
    )
    rel_dim = None if kind.rel_dim is None else kind.rel_dim - 3 * case.is_causal
    inputs = make_inputs(sizes, rel_dim=rel_dim, dtype=kind.dtype, device=device)
    results, exact, allowed = (with_dropout if kind.dropout else without_dropout)(sizes, case.is_causal, kind, inputs)
    off = {name: error(results[name], want) for name, want in exact.items()}
    wrong = [f"{name} off by {off[name]:.1e}, allowed {most:.1e}" for name, most in allowed.items() if off[name] > most]
    if wrong:
        raise Disagreement(f"{case}: {'; '.join(wrong)}")
    return max(off[name] / most for name, most in allowed.items())


Inputs = dict[str, Tensor | None]
Compared = tuple[Results, Results, dict[str, float]]  # of the kernels, of the equations, and the error allowed


def without_dropout(sizes: Shape, is_causal: bool, kind: Kind, inputs: Inputs) -> Compared:
    """Against the reference, with random labels and a random mask where the kind has them."""
    device, generator = device_of(inputs), torch.Generator().manual_seed(2)
    pairs = (1, 1, sizes.queries, sizes.keys)
    options: dict[str, Any] = {"clip": sizes.left, "is_causal": is_causal, "query_offset": sizes.keys - sizes.queries}
    if is_causal:
        options["key_lengths"] = torch.tensor([sizes.keys, sizes.keys - 9], device=device)
        options["query_lengths"] = torch.tensor([sizes.queries, sizes.queries * 2 // 3], device=device)
    if kind.relations:
        options["relations"] = torch.randint(-1, sizes.labels, pairs, generator=generator).to(device)
    if kind.mask:
        options["mask"] = (torch.rand(pairs, generator=generator, dtype=torch.float32) < 0.7).to(device)
    got = outputs_and_gradients(operator_of(triton), inputs, **options)
    return got, *budgets(operator_of(backends.BACKENDS["reference"]), inputs, **options)


def with_dropout(sizes: Shape, is_causal: bool, kind: Kind, inputs: Inputs) -> Compared:
    """Against the equations with the pairs that the kernels keep, which are as many as they should.

    The equations know positions and causality alone: labels given are those of positions, and a mask is causal.
    """
    device = device_of(inputs)
    clip, distance = sizes.left, positions.distances(sizes.keys, sizes.keys, 0, device)
    options: dict[str, Any] = {"clip": clip, "is_causal": is_causal, "query_offset": 0}
    if kind.relations:
        options["relations"] = positions.labels(distance, clip, clip, clips=True)[None, None]
    if kind.mask:
        options["mask"] = (distance <= 0)[None, None]
    kernels = operator_of(triton, dropout_p=DROPOUT_P, seed=torch.tensor(5, device=device))
    hides = is_causal or kind.mask
    kept = kept_pairs(lambda **given: kernels(**given, **options, return_lse=False)[0], inputs)
    check_share(kept, (distance <= 0) if hides else torch.ones_like(distance, dtype=torch.bool))
    equations = partial(equations_keeping, kept)
    exact, allowed = budgets(equations, inputs, clip=clip, dropout_p=DROPOUT_P, is_causal=hides)
    del exact["lse"], allowed["lse"]  # it knows nothing of dropout
    return outputs_and_gradients(kernels, inputs, **options), exact, allowed


def check_share(kept: Tensor, seen: Tensor) -> None:
    """`Disagreement` where the share kept is off by more than chance explains: six standard deviations."""
    count = int(seen.sum()) * kept.shape[0] * kept.shape[1]
    share, wanted = int((kept & seen).sum()) / count, 1.0 - DROPOUT_P
    if abs(share - wanted) > 6 * (wanted * DROPOUT_P / count) ** 0.5:
        raise Disagreement(f"dropout keeps {share:.3f} of the pairs, and should keep {wanted:.3f}")


def operator_of(module: ModuleType, **changes: Any) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """A backend as `relattn.testing` calls operators, with changes to every call."""

    def operator(
        *, query: Tensor, clip: int, return_lse: bool, backend: str = "", **given: Any
    ) -> tuple[Tensor, Tensor | None]:
        window = {"left": clip, "right": clip, "clips": "relations" not in given}
        call = Call(query, **{**given, **window, "scale": query.shape[3] ** -0.5, **changes})
        return module.attend(call, return_lse)

    return operator


def device_of(inputs: Inputs) -> torch.device:
    query = inputs["query"]
    assert query is not None
    return query.device
