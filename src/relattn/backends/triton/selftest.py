"""Self-test of the kernels: compare them with the reference before `auto` uses them.

Kernels may be wrong on a GPU or with a compiler version that nobody has tested. The first call of each `Kind` in a
process therefore runs a few small cases, forward and backward. The result is kept in memory. The tolerance is a small
multiple of the error that the reference itself has in the same dtype, measured against float64.
"""

import contextlib
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn.backends import custom_ops, pairs, reference
from relattn.backends.reference import vectors_of_pairs
from relattn.backends.triton import operators
from relattn.backends.triton.availability import Kind, NotCompiledError, chip, first_line, kind_of
from relattn.call import Call, keep_scale

COMMAND = "python -m relattn.backends.triton"
DROPOUT_P = 0.3
TOLERANCE_FACTOR = 4.0  # of the reference's own error
# Keys, queries, clip and is_causal: together they have far tiles, near tiles and partial tiles, a sequence for a single
# program, and keys that are split among programs. A window hides tiles and parts of tiles of the longer ones.
GPU_CASES = ((277, 277, 16, False), (61, 61, 5, True), (700, 3, 16, True))
INTERPRETER_CASES = ((37, 37, 2, False), (17, 17, 3, True))
RESULTS: dict[tuple[str, Kind], str | None] = {}  # by chip and kind: the failure, or None for a pass
RUN_LOCK = threading.Lock()

Attend = Callable[[Call], tuple[Tensor, Tensor | None]]


def passed(call: Call) -> bool:
    """Return whether the kernels passed the self-test for calls like this one.

    The first call of a kind runs the self-test, and a failure warns. While `torch.compile` traces, inside a backward
    pass and during CUDA graph capture, only a result that is already known counts.
    """
    device, kind = call.query.device, kind_of(call)
    if torch.compiler.is_compiling():
        return cached_pass(device, *kind)
    key = chip(device), kind
    if key not in RESULTS:
        if not may_run():
            return False
        with RUN_LOCK:
            if key not in RESULTS:
                RESULTS[key] = run(device, kind)
                if RESULTS[key] is not None:
                    warnings.warn(
                        f"{kind} on {chip(device)}: the Triton kernels {RESULTS[key]}. `auto` uses dense, whose memory "
                        f"grows with queries × keys. Please report this with the output of `{COMMAND}`",
                        RuntimeWarning,
                        stacklevel=2,
                    )
    return RESULTS[key] is None


@torch.compiler.assume_constant_result
def cached_pass(device: torch.device, *kind: Any) -> bool:
    return RESULTS.get((chip(device), Kind(*kind)), "not tested") is None


def may_run() -> bool:
    """Return whether the self-test may run now. A CUDA graph would capture it, and inside a backward pass its own
    backward pass would wait for the thread that waits for it."""
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return not capturing and torch._C._current_graph_task_id() == -1


def run(device: torch.device, kind: Kind) -> str | None:
    """Run the self-test of a kind and return the first failure, or None.

    It runs in a new thread, where autocast, inference mode, grad mode, hooks and streams have PyTorch's defaults.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(first_failure, device, kind).result()


def first_failure(device: torch.device, kind: Kind) -> str | None:
    cases = GPU_CASES if device.type == "cuda" else INTERPRETER_CASES
    try:
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            for case in cases:
                if failure := failure_of(make_call(device, kind, *case)):
                    return f"{failure} ({case[0]} keys, {case[1]} queries, is_causal={case[3]})"
    except NotCompiledError as error:
        return str(error).removeprefix("triton: ")
    except Exception as error:  # whatever it is, `auto` warns and uses dense
        return f"could not be tested: {first_line(error)}"
    return None


def make_call(device: torch.device, kind: Kind, keys: int, queries: int, clip: int, is_causal: bool) -> Call:
    """Return a call of a kind with random inputs. Causal ones have padded head dimensions, and lengths."""
    generator = torch.Generator().manual_seed(0)
    batch, heads, padding, labels = 1 + is_causal, 2 - is_causal, 3 * is_causal, 2 * clip + 1
    dim, value_dim = kind.dim - padding, kind.value_dim - padding
    rel_dim = None if kind.rel_dim is None else kind.rel_dim - padding

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, dtype=torch.float64, device="cpu", generator=generator).to(device, kind.dtype)

    relations = torch.randint(-1, labels, (1, 1, queries, keys), device="cpu", generator=generator)
    mask = torch.rand((1, 1, queries, keys), dtype=torch.float64, device="cpu", generator=generator) < 0.7
    mask[..., 0] = True
    before, after = (keys * 3 // 4, keys // 4) if kind.window else (None, None)
    if kind.chunks:
        after = keys // 4 - 1
    lengths = [[keys, keys - 9], [queries, queries * 2 // 3]] if is_causal and not kind.dropout else [None, None]
    key_lengths, query_lengths = (None if x is None else torch.tensor(x, device=device) for x in lengths)
    return Call(
        query=normal(batch, heads, queries, dim),
        key=normal(batch, 1, keys, dim),
        value=normal(batch, 1, keys, value_dim),
        rel_key=normal(labels, rel_dim or dim),
        rel_value=normal(labels, value_dim),
        rel_query=None if rel_dim is None else normal(batch, heads, queries, rel_dim),
        pos_query=normal(heads, labels, dim) if kind.pos_query else None,
        relations=relations.to(device) if kind.relations else None,
        key_lengths=key_lengths,
        query_lengths=query_lengths,
        mask=mask.to(device) if kind.mask else None,
        seed=torch.tensor(5, device=device) if kind.dropout else None,
        query_offset=keys - queries,
        left=clip,
        right=clip,
        clips=not kind.relations,
        is_causal=is_causal,
        window_left=before,
        window_right=after,
        chunk=keys // 4 if kind.chunks else 1,
        dropout_p=DROPOUT_P if kind.dropout else 0.0,
        scale=dim**-0.5,
    )


def failure_of(call: Call) -> str | None:
    """Compare the kernels with the reference on a call, and return how they differ, or None."""
    oracle: Attend = partial(reference.attend, return_lse=True)
    if call.dropout_p > 0.0:
        kept_mask = kept_pairs(call)
        visible = pairs.visible(call)
        visible = torch.ones_like(kept_mask) if visible is None else visible.expand_as(kept_mask)
        kept_fraction, keep_probability = float(kept_mask[visible].double().mean()), 1.0 - call.dropout_p
        deviation = (keep_probability * call.dropout_p / int(visible.sum())) ** 0.5
        if abs(kept_fraction - keep_probability) > 6 * deviation:
            return f"keep {kept_fraction:.3f} of the pairs under dropout, expected {keep_probability:.3f}"
        oracle = partial(reference_with_dropout, kept_mask)
    exact, reference_results = results(oracle, call, torch.float64), results(oracle, call)
    kernel_results = results(kernels, call)
    # A small case may be exact by luck, and small results are differences of larger terms, such as dp − g · z.
    terms = *exact.values(), (upstream(exact["output"]) * exact["output"]).sum(-1)
    floor = torch.finfo(call.query.dtype).eps * max(float(x[x.isfinite()].abs().max()) for x in terms)
    for name, expected in exact.items():
        error = distance(kernel_results[name], expected)
        allowed = TOLERANCE_FACTOR * max(distance(reference_results[name], expected), floor)
        if not error <= allowed:
            return f"disagreed with the reference: {name} is off by {error:.1e}, allowed {allowed:.1e}"
    return None


def kernels(call: Call) -> tuple[Tensor, Tensor | None]:
    return custom_ops.attend(call, operators.attention, return_lse=True)


def results(attend: Attend, call: Call, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Return the output, the log-sum-exp and the gradient of every floating-point input, computed in `dtype`."""
    leaves = {name: x.to(dtype or x.dtype, copy=True).requires_grad_() for name, x in float_inputs(call).items()}
    output, lse = attend(call._replace(**leaves))
    assert lse is not None
    gradients = torch.autograd.grad(output, list(leaves.values()), upstream(output))
    named_gradients = {f"gradient of {name}": x for name, x in zip(leaves, gradients, strict=True)}
    return {"output": output.detach(), "log-sum-exp": lse, **named_gradients}


def float_inputs(call: Call) -> dict[str, Any]:
    return {name: x for name, x in call._asdict().items() if isinstance(x, Tensor) and x.is_floating_point()}


def upstream(output: Tensor) -> Tensor:
    """Return the gradient of the output: the same random values in every dtype."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(output.shape, dtype=torch.float64, device="cpu", generator=generator).to(output)


def distance(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference. Equal infinities count as 0, other infinities and NaN as infinity or NaN."""
    return float(torch.where(actual == expected, 0.0, actual.double() - expected.double()).abs().max())


def kept_pairs(call: Call) -> Tensor:
    """Return the pairs that dropout keeps, (batch, heads, queries, keys) of bool.

    All scores are zero, and the values are rows of the identity matrix, so that an output is nonzero where its pair is
    kept.
    """
    keys, width = call.value.shape[2:]
    zeros: dict[str, Any] = {name: torch.zeros_like(x) for name, x in float_inputs(call).items()}
    identity = torch.eye(keys, dtype=call.value.dtype, device=call.value.device)
    kept = []
    for columns in identity.split(width, dim=1):
        zeros["value"] = F.pad(columns, (0, width - columns.shape[1])).expand_as(call.value)
        kept.append(kernels(call._replace(**zeros))[0][..., : columns.shape[1]] > 0)
    return torch.cat(kept, dim=-1)


def reference_with_dropout(kept: Tensor, call: Call) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp where dropout keeps the pairs `kept`, by the equations of `reference`."""
    label, visible, group = pairs.labels_of_pairs(call), pairs.visible(call), call.query.shape[1]
    a_key, a_value = (vectors_of_pairs(x, label) for x in (call.rel_key, call.rel_value) if x is not None)
    key, value = (x.repeat_interleave(group, dim=1) for x in (call.key, call.value))
    r = call.query if call.rel_query is None else call.rel_query
    e = call.query @ key.mT + (r[:, :, :, None] * a_key).sum(-1)  # (batch, heads, queries, keys)
    if call.pos_query is not None:
        e = e + (key[:, :, None] * vectors_of_pairs(call.pos_query, label)).sum(-1)
    e = call.scale * e
    if visible is not None:
        e = e.masked_fill(~visible, float("-inf"))
    alpha = e.softmax(-1) * kept * keep_scale(call.dropout_p)
    return alpha @ value + (alpha[..., None] * a_value).sum(-2), e.detach().logsumexp(-1)
