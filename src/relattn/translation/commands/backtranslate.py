"""`relattn backtranslate`"""

from relattn.translation.commands.options import (
    DeviceOptions,
    SamplingFlags,
    SearchOptions,
    synthetic_text,
    write_synthetic_corpus,
)
from relattn.translation.config import SyntheticCleaningConfig
from relattn.translation.errors import require


def backtranslate(
    teachers: list[str],
    *,
    data: list[str],
    out: str,
    tag: str = "⇄",
    parallel: list[str] = [],  # noqa: B006
    weight: float = 1.0,
    student: str = "",
    exclude: list[str] = [],  # noqa: B006
    n_best: int = 1,
    sampling: bool = False,
    draws: SamplingFlags,
    cleaning: SyntheticCleaningConfig,
    search: SearchOptions,
    device: DeviceOptions,
) -> None:
    """Translate text of the target language back with a model of the opposite direction, as sources for training.

    The corpus has the given lines as targets and their translations, with a tag before each, as sources. After an
    interruption, the same command continues.

    Args:
        teachers: Directory of a bundle or export, or name of a bundle on the hub. Several bundles form an ensemble.
        data: Files of lines in the target language of the model to be trained, plain or compressed.
        out: Output directory of the corpus.
        tag: Word to put before each synthetic source. A single character becomes a single token. '' adds no
            tag.
        parallel: Source file and target file of real pairs. Both corpora are then listed in corpora.tsv in the output
            directory, for data.train_list of a recipe.
        weight: Weight of the real pairs in this list, the number of passes over them per epoch.
        student: Recipe of the model to be trained. By default, only the corpus is written.
        exclude: Files of held-out lines, such as test sets. Pairs that overlap with them are dropped.
        n_best: Number of translations per line. At most the beam size.
        sampling: Draw translations at random instead of searching for the best.
    """
    require(len(parallel) in (0, 2), f"--parallel must be a source file and a target file, got {len(parallel)} files")
    require(0 < weight <= 1000, f"weight must be above 0 and at most 1,000, got {weight}")
    require(len(tag.split()) <= 1, f"tag must be one word, got '{tag}'")
    sampled = draws.options(sampling, search)
    text = synthetic_text(teachers, data, exclude, n_best, sampled, cleaning, search, device, tag=tag)
    write_synthetic_corpus(text, out, student, parallel=parallel, weight=weight)
