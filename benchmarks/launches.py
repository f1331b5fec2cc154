"""What calling the Triton kernels costs besides running them: variants to compile, and time on the host.

Triton compiles a variant of a kernel for each combination of types, tiles, options and properties of integers, such as
being one. Variants are counted by Triton's own keys; nothing is compiled or run. The time is that of the operators'
Python without the launches: `python -m benchmarks.launches`, on any machine, with TRITON_INTERPRET unset.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import triton
from triton.runtime import driver

from benchmarks.compiled import Absent, Case
from relattn.backends.triton import operators

REPEATS, CALLS = 15, 100
TOKENS = 1024  # per batch


def keys_of(kernel: Any, arguments: dict[str, Any]) -> str:
    """What Triton tells variants of a kernel apart by."""
    binder = kernel.device_caches[driver.active.get_current_device()][-1]
    _, specialization, options = binder(**arguments, debug=False)
    return f"{kernel.__name__} {specialization} {options}"


def variants(cases: Iterable[Case]) -> tuple[int, int]:
    """Variants that calls with gradients come to, forward and backward."""
    found: tuple[set[str], set[str]] = (set(), set())

    def launch(into: set[str], kernel: Any, programs: int, tiles: Any, *rest: Any, **arguments: Any) -> None:
        into.add(keys_of(kernel, operators.launch_arguments(tiles, arguments)))

    for case in cases:
        call = case.call()
        results = operators.run_forward(call, partial(launch, found[0]))
        operators.run_backward(call, torch.empty_like(results[0]), *results, partial(launch, found[1]))
    return len(found[0]), len(found[1])


def microseconds(case: Case) -> tuple[float, float]:
    """Time of the operators without their launches, forward and backward: medians of several rounds."""

    def launch(*_: Any, **__: Any) -> None:
        pass

    call = case.call()
    results = operators.run_forward(call, launch)
    grad = torch.empty_like(results[0])
    return (
        clocked(lambda: operators.run_forward(call, launch)),
        clocked(lambda: operators.run_backward(call, grad, *results, launch)),
    )


def clocked(work: Callable[[], Any]) -> float:
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(CALLS):
            work()
        taken.append((time.perf_counter() - start) / CALLS)
    return 1e6 * statistics.median(taken)


def main() -> None:
    if triton.knobs.runtime.interpret:
        sys.exit("Triton is in its interpreter, which compiles nothing: unset TRITON_INTERPRET")
    driver.set_active(Absent(90))
    torch.set_num_threads(1)
    print(f"Triton {triton.__version__}, torch {torch.__version__}")
    print("variants, forward and backward, bfloat16, d = 64, k = 16:")
    for causal in (False, True):
        cases = (Case("bfloat16", 64, 16, n, causal, batch=TOKENS // n) for n in range(5, 121))
        print(f"  batches of {TOKENS} tokens, 5 to 120 long{', causal' * causal}:", *variants(cases))
    cases = (Case("bfloat16", 64, 16, n, True, queries=1) for n in range(1, 300))
    print("  one query on 1 to 299 keys:", *variants(cases))
    print("microseconds on the host without launches, forward and backward:")
    for n in (64, 2048):
        print(f"  n = {n}:", *(f"{x:.0f}" for x in microseconds(Case("bfloat16", 64, 16, n))))


if __name__ == "__main__":
    main()
