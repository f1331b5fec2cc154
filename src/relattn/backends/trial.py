"""A trial of the Triton kernels: a few small cases of a kind, forward and backward, against the paper's equations.

The error allowed is that of `relattn.testing`. Numbers come from generators of the trial's own, and types and devices
are given wherever PyTorch has a default for them. When there is a trial is for `trust.py` to say.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relattn import positions
from relattn.backends import fused, reference, triton
from relattn.backends.triton import verdicts
from relattn.backends.triton.failures import NotCompiledError, first_line
from relattn.backends.triton.kinds import Kind
from relattn.backends.triton.verdicts import Verdict
from relattn.call import RelationCall, RelativeCall
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
    """One that is causal has lengths where it may, and head dims that do not fill their width."""

    keys: int
    clip: int
    is_causal: bool
    queries: int | None = None  # the last ones, where they are not as many as keys


# far, near and cut tiles; a length that one program may do alone; a decoder's step; in the interpreter, fewer tiles
ON_GPU = (Case(277, 16, is_causal=False), Case(61, 5, is_causal=True), Case(700, 16, is_causal=True, queries=3))
INTERPRETED = (Case(37, 2, is_causal=False), Case(17, 3, is_causal=True))


def trial(device: torch.device, kind: Kind) -> Verdict:
    """What comes of the cases. Other troubles than a kernel's own, such as full memory, are not kept on disk."""
    try:
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            cases = [case for case in cases_for(device) if case.queries is None or not kind.dropout]
            shares = [worst_share(case, kind, device) for case in cases]
        verdict = Verdict(True, f"agreed, off by {max(shares):.2f} of what is allowed at most")
    except Disagreement as found:
        verdict = Verdict(False, f"disagreed with the equations: {found}")
    except NotCompiledError as failure:
        return Verdict(False, str(failure).removeprefix("triton: "))  # kept by those who raised it
    except Exception as trouble:  # whatever it is, the caller is warned of it, and served by dense
        verdict = Verdict(False, f"could not be tried: {first_line(trouble)}")
        verdicts.keep_for_this_process(device, kind, verdict)
        return verdict
    verdicts.keep(device, kind, verdict)
    return verdict


class Disagreement(Exception):
    """Of the kernels and the equations, past what arithmetic explains."""


def cases_for(device: torch.device) -> tuple[Case, ...]:
    return ON_GPU if device.type == "cuda" else INTERPRETED


def worst_share(case: Case, kind: Kind, device: torch.device) -> float:
    """How far the kernels are from the equations on a case, of what is allowed; `Disagreement` where that is more."""
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
    inputs = make_inputs(sizes, dtype=kind.dtype, device=device)
    results, exact, allowed = (with_dropout if kind.dropout else without_dropout)(sizes, case.is_causal, kind, inputs)
    off = {name: error(results[name], want) for name, want in exact.items()}
    wrong = [f"{name} off by {off[name]:.1e}, allowed {most:.1e}" for name, most in allowed.items() if off[name] > most]
    if wrong:
        raise Disagreement(f"{case}: {'; '.join(wrong)}")
    return max(off[name] / most for name, most in allowed.items())


Inputs = dict[str, Tensor | None]
Compared = tuple[Results, Results, dict[str, float]]  # what the kernels give, what is right, and the error allowed


def without_dropout(sizes: Shape, is_causal: bool, kind: Kind, inputs: Inputs) -> Compared:
    """Against the reference, with any labels and any mask where the kind has them."""
    device, generator = device_of(inputs), torch.Generator().manual_seed(2)
    pairs = (1, 1, sizes.queries, sizes.keys)
    options: dict[str, Any] = {"clip": sizes.left, "is_causal": is_causal, "query_offset": sizes.keys - sizes.queries}
    if is_causal:
        options["key_lengths"] = torch.tensor([sizes.keys, sizes.keys - 9], device=device)
    if kind.relations:
        options["relations"] = torch.randint(-1, sizes.labels, pairs, generator=generator).to(device)
    if kind.mask:
        options["mask"] = (torch.rand(pairs, generator=generator, dtype=torch.float32) < 0.7).to(device)
    got = outputs_and_gradients(operator_of(triton), inputs, **options)
    return got, *budgets(operator_of(reference), inputs, **options)


def with_dropout(sizes: Shape, is_causal: bool, kind: Kind, inputs: Inputs) -> Compared:
    """Against the equations where the pairs are dropped that the kernels drop, and as many as they are asked to.

    These know positions and causality alone; so positions are given as relations, or causality as a mask.
    """
    device = device_of(inputs)
    clip, distance = sizes.left, positions.distances(sizes.keys, sizes.keys, 0, device)
    options: dict[str, Any] = {"clip": clip, "is_causal": is_causal, "query_offset": 0}
    if kind.relations:
        options["relations"] = positions.labels(distance, clip, clip, "clip")[None, None]
    if kind.mask:
        options["mask"] = (distance <= 0)[None, None]
    kernels = operator_of(dropping(torch.tensor(5, device=device)))
    hides = is_causal or kind.mask
    kept = kept_pairs(lambda **given: kernels(**given, **options, return_lse=False)[0], inputs)
    check_share(kept, (distance <= 0) if hides else torch.ones_like(distance, dtype=torch.bool))
    equations = partial(equations_keeping, kept)
    exact, allowed = budgets(equations, inputs, clip=clip, dropout_p=DROPOUT_P, is_causal=hides)
    del exact["lse"], allowed["lse"]  # of what was before dropout
    return outputs_and_gradients(kernels, inputs, **options), exact, allowed


def check_share(kept: Tensor, seen: Tensor) -> None:
    """`Disagreement` where the share kept is further from what it should be than chance takes it: six deviations."""
    count = int(seen.sum()) * kept.shape[0] * kept.shape[1]
    share, wanted = int((kept & seen).sum()) / count, 1.0 - DROPOUT_P
    if abs(share - wanted) > 6 * (wanted * DROPOUT_P / count) ** 0.5:
        raise Disagreement(f"dropout keeps {share:.3f} of the pairs, and should keep {wanted:.3f}")


def operator_of(module: ModuleType | SimpleNamespace) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """A backend as `relattn.testing` calls operators."""

    def operator(
        *, query: Tensor, clip: int, relations: Tensor | None = None, backend: str = "", **given: Any
    ) -> tuple[Tensor, Tensor | None]:
        unset = {"key_lengths": None, "mask": None, "dropout_p": 0.0, "scale": query.shape[3] ** -0.5}
        shared = {**unset, **given, "query": query}
        if relations is None:
            call = RelativeCall(**shared, left=clip, right=clip, beyond="clip")
            attended = module.relative_attention(call)
        else:
            attended = module.relation_attention(RelationCall(**shared, relations=relations))
        return attended.output, attended.lse

    return operator


def dropping(seed: Tensor) -> SimpleNamespace:
    """The kernels with dropout by a given seed, where a call has none of its own: no generator is drawn from."""
    from relattn.backends.triton import operators

    def kernels(*arguments: Any) -> Any:
        return operators.attention(*fused.Arguments(*arguments)._replace(seed=seed, dropout_p=DROPOUT_P))

    return SimpleNamespace(
        relative_attention=partial(fused.relative_attention, operator=kernels),
        relation_attention=partial(fused.relation_attention, operator=kernels),
    )


def device_of(inputs: Inputs) -> torch.device:
    query = inputs["query"]
    assert query is not None
    return query.device
