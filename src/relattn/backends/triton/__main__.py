"""`python -m relattn.backends.triton`: tries the kernels on this machine, for a bug report."""

import argparse
import sys
from functools import partial

import torch

from relattn.backends import triton
from relattn.backends.triton import failures, trust


def main(arguments: list[str] | None = None) -> int:
    """0 where all kinds of calls agreed, 1 where one did not, 2 where there is nothing to try the kernels on."""
    parser = argparse.ArgumentParser(prog=trust.COMMAND, description=trust.report.__doc__)
    parser.add_argument("--dtypes", nargs="+", default=trust.DTYPES, choices=trust.DTYPES, metavar="DTYPE")
    parser.add_argument("--dims", nargs="+", type=int, default=trust.DIMS, metavar="DIM")
    parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    reason = failures.lacking_for(options.device)
    if options.device.type not in triton.CAPABILITIES.devices:
        reason = "no GPU that PyTorch can use, nor Triton's interpreter, which TRITON_INTERPRET=1 starts"
    if reason is not None:
        print(f"nothing to try the kernels on: {reason}", file=sys.stderr)
        return 2
    agreed = trust.report(options.device, trust.kinds(options.dtypes, options.dims), partial(print, flush=True))
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
