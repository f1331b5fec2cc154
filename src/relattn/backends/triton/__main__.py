"""`python -m relattn.backends.triton`: run the self-test of the kernels on this machine, for a bug report."""

import argparse
import platform
import sys
from itertools import product

import torch

import relattn
from relattn.backends import triton
from relattn.backends.triton import availability
from relattn.backends.triton.availability import Kind
from relattn.backends.triton.configs import padded

DTYPES, DIMS = ("bfloat16", "float32", "float16"), (64, 128)  # the most common ones


def kinds(dtypes: list[str], dims: list[int]) -> list[Kind]:
    """Return the kinds of calls with these dtypes and head dimensions."""
    combinations, options = [], ("positions", "mask", "relations", "rel_query", "pos_query", "window", "chunks")
    for width, dtype, option, dropout in product(sorted({padded(dim) for dim in dims}), dtypes, options, (False, True)):
        tf32 = dtype == "float32" and availability.tensor_floats()
        rel_dim = width if option == "rel_query" else None
        limits = option in ("window", "chunks"), option == "chunks"
        traits = option == "relations", option == "mask", dropout, tf32, rel_dim, *limits, option == "pos_query"
        combinations.append(Kind(getattr(torch, dtype), width, width, *traits))
    return combinations


def main(arguments: list[str] | None = None) -> int:
    """Print the versions and the result of the self-test for each kind of call.

    Returns:
        0 if every kind passed, 1 if one failed, 2 if the kernels cannot run on this machine.
    """
    parser = argparse.ArgumentParser(prog="python -m relattn.backends.triton", description=__doc__)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES, metavar="DTYPE", help="input dtypes")
    parser.add_argument("--dims", nargs="+", type=int, default=DIMS, metavar="DIM", help="head dimensions")
    parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    reason = availability.unsupported_device(options.device)
    if options.device.type not in triton.CAPABILITIES.devices:
        reason = "no GPU that PyTorch can use, and TRITON_INTERPRET=1 is not set"
    if reason is not None:
        print(f"the kernels cannot run: {reason}", file=sys.stderr)
        return 2
    from relattn.backends.triton import selftest  # imports Triton

    print(f"chip: {availability.chip(options.device)}")
    print(f"Triton: {triton.installation()}")
    print(f"torch: {torch.__version__}")
    print(f"relattn: {relattn.__version__}")
    print(f"Python: {platform.python_version()}")
    failures = 0
    for kind in kinds(options.dtypes, options.dims):
        failure = selftest.run(options.device, kind)
        failures += failure is not None
        print(f"{kind}: {failure or 'passed'}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
