"""When `auto` trusts the Triton kernels: once a trial has seen them agree with the equations, on this chip.

Kernels may be wrong on a chip or with a compiler that nobody has tested, so each new kind of call is tried first
(`trial.py`), and the verdict is recorded (`verdicts.py`). A trial runs in a thread of its own, which begins with
PyTorch's defaults for whatever the caller has set: gradients, autocast, inference, hooks, streams.
"""

import logging
import platform
import threading
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import product
from typing import Any

import torch

from relattn.backends.triton import verdicts
from relattn.backends.triton.kinds import Kind, kind_of_call, padded, tensor_floats
from relattn.backends.triton.trial import trial
from relattn.backends.triton.verdicts import Verdict
from relattn.call import Call

LOG = logging.getLogger("relattn")
SLOW = 5.0  # seconds after which a trial is announced
COMMAND = "python -m relattn.backends.triton"
DTYPES, DIMS = ("bfloat16", "float32", "float16"), (64, 128)  # that most calls have
ONE_AT_A_TIME = threading.Lock()
WARNED: set[Kind] = set()


def trusted(call: Call) -> bool:
    """Whether the kernels agree with the equations on calls like this, which they serve; tried if that is not known."""
    device, kind = call.query.device, kind_of_call(call)
    if torch.compiler.is_compiling():
        return known_to_agree(device, *kind)
    verdict = verdicts.found(device, kind)
    if verdict is None:
        if not may_try():
            return False
        with ONE_AT_A_TIME:
            verdict = verdicts.found(device, kind) or tried(device, kind)
    return heeded(device, kind, verdict)


@torch.compiler.assume_constant_result
def known_to_agree(device: torch.device, *traits: Any) -> bool:
    kind = Kind(*traits)
    verdict = verdicts.found(device, kind)
    return verdict is not None and heeded(device, kind, verdict)


def heeded(device: torch.device, kind: Kind, verdict: Verdict) -> bool:
    """Whether the kernels are taken. Where they are not, the first call of a kind warns."""
    if not verdict.agreed and kind not in WARNED:
        WARNED.add(kind)
        warnings.warn(
            f"{kind} on {verdicts.chip(device)}: the Triton kernels {verdict.words}. `auto` takes dense, whose memory "
            f"grows with queries × keys. Please report this on relattn's issue page, with the output of `{COMMAND}`",
            RuntimeWarning,
            stacklevel=2,
        )
    return verdict.agreed


def may_try() -> bool:
    """Not while a CUDA graph is captured, which would capture the trial too, nor inside a backward pass, whose thread
    the trial's own backward pass would wait for."""
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return not capturing and torch._C._current_graph_task_id() == -1


def tried(device: torch.device, kind: Kind) -> Verdict:
    """A new verdict, which is recorded."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        running = thread.submit(trial, device, kind)
        if wait([running], timeout=SLOW).not_done:
            LOG.warning(
                "relattn compiles the Triton kernels for %s and checks them against the equations, on %s and this once",
                kind,
                verdicts.chip(device),
            )
        return running.result()


def kinds(dtypes: Iterable[str] = DTYPES, dims: Iterable[int] = DIMS) -> list[Kind]:
    """The kinds of calls with these types and head dims."""
    found = []
    for width, dtype, given, dropout in product(
        sorted({padded(dim) for dim in dims}), dtypes, ("positions", "mask", "relations", "rel_query"), (False, True)
    ):
        tf32, rel_dim = dtype == "float32" and tensor_floats(), width if given == "rel_query" else None
        traits = given == "relations", given == "mask", dropout, tf32, rel_dim
        found.append(Kind(getattr(torch, dtype), width, width, *traits))
    return found


def report(device: torch.device, which: Iterable[Kind] | None = None, say: Callable[[str], Any] = print) -> bool:
    """Tries the kernels for each kind, even one known already, and says what a bug report should have.

    Returns whether all agreed with the equations. The verdicts are recorded.
    """
    for name, what in {**verdicts.versions(device), "Python": platform.python_version()}.items():
        say(f"{name}: {what}")
    agreed = True
    for kind in kinds() if which is None else which:
        verdict = tried(device, kind)
        agreed &= verdict.agreed
        say(f"{kind}: {verdict.words}")
    return agreed
