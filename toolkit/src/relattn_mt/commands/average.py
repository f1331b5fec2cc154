"""`relattn-mt average`"""

from relattn_mt.support.errors import require


def average(run: str, *, last: int = 5, out: str, overwrite: bool = False) -> None:
    """Average the weights of the last checkpoints of a run into a bundle.

    Args:
        run: Directory of the run.
        last: Number of checkpoints to average.
        out: Directory of the new bundle.
        overwrite: Replace a bundle that exists at the output path.
    """
    require(out, "out must name a directory")

    from relattn_mt.training.run import average_run

    average_run(run, last, out, overwrite=overwrite)
