"""What calling the Triton kernels costs besides running them: variants that are compiled, and time on the host.

A variant is what Triton compiles a kernel for: types, tiles, options, and what it takes for granted of numbers. They
are counted by Triton's own keys, and nothing is compiled or run. The time is that of the operators' Python, with the
launches left out: `python -m benchmarks.launches`, on any machine, with TRITON_INTERPRET unset.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import triton
from triton.runtime import driver

from benchmarks.compiled import Absent, Case
from relattn.backends.triton import operators

REPEATS, CALLS = 15, 100
TOKENS = 1024  # of a batch


def keys_of(kernel: Any, arguments: dict[str, Any]) -> str:
    """What Triton tells variants of a kernel apart by."""
    binder = kernel.device_caches[driver.active.get_current_device()][-1]
    _, specialization, options = binder(**arguments, debug=False)
    return f"{kernel.__name__} {specialization} {options}"


def variants(cases: Iterable[Case]) -> tuple[int, int]:
    """Variants that calls with gradients come to, forward and backward."""
    found: tuple[set[str], set[str]] = (set(), set())

    def note(into: set[str]) -> Callable[..., None]:
        def launch(kernel: Any, programs: int, tiles: Any, *rest: Any, **arguments: Any) -> None:
            into.add(keys_of(kernel, operators.launched(tiles, arguments)))

        return launch

    held = operators.launch
    try:
        for case in cases:
            arguments = case.arguments()
            operators.launch = note(found[0])
            results = operators.run_forward(*arguments)
            operators.launch = note(found[1])
            operators.run_backward(torch.empty_like(results[0]), *results, *arguments)
    finally:
        operators.launch = held
    return len(found[0]), len(found[1])


def microseconds(case: Case) -> tuple[float, float]:
    """Of the operators without their launches, forward and backward, the median of some rounds."""

    def nothing(*_: Any, **__: Any) -> None:
        pass

    arguments = case.arguments()
    held, operators.launch = operators.launch, nothing
    try:
        results = operators.run_forward(*arguments)
        grad = torch.empty_like(results[0])
        return (
            clocked(lambda: operators.run_forward(*arguments)),
            clocked(lambda: operators.run_backward(grad, *results, *arguments)),
        )
    finally:
        operators.launch = held


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
