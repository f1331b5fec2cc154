"""`relattn distill`"""

from relattn.translation.commands.options import (
    DeviceOptions,
    SamplingFlags,
    SearchOptions,
    synthetic_text,
    write_synthetic_corpus,
)
from relattn.translation.config import SyntheticCleaningConfig


def distill(
    teachers: list[str],
    *,
    data: list[str],
    out: str,
    student: str = "",
    exclude: list[str] = [],  # noqa: B006
    n_best: int = 1,
    sampling: bool = False,
    draws: SamplingFlags,
    cleaning: SyntheticCleaningConfig,
    search: SearchOptions,
    device: DeviceOptions,
) -> None:
    """Translate text with a teacher, write the pairs as a corpus, and train a student on it.

    The corpus has a data card, which counts the pairs that were dropped. After an interruption, the same command
    continues.

    Args:
        teachers: Directory of a bundle or export, or name of a bundle on the hub. Several bundles form an ensemble.
        data: Files of source lines, plain or compressed.
        out: Output directory of the corpus.
        student: Recipe of the student, which trains on the corpus. By default, only the corpus is written.
        exclude: Files of held-out lines, such as test sets. Pairs that overlap with them are dropped.
        n_best: Number of translations per line. At most the beam size.
        sampling: Draw translations at random instead of searching for the best.
    """
    text = synthetic_text(teachers, data, exclude, n_best, draws.options(sampling, search), cleaning, search, device)
    write_synthetic_corpus(text, out, student)
