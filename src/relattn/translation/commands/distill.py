"""`relattn distill`"""

from relattn.translation.commands.options import SynthesisOptions


def distill(
    teacher: str,
    *,
    data: list[str],
    student: str = "",
    synthesis: SynthesisOptions,
) -> None:
    """Translate text with a teacher, write the pairs as a corpus, and train a student on it.

    The corpus has a data card, which counts the pairs that were dropped. After an interruption, the same command
    continues.

    Args:
        teacher: Directory of a bundle or export, or name of a model: everyday-en-de, or org/name on the hub.
        data: Files of source lines, plain or compressed.
        student: Recipe of the student, which trains on the corpus. By default, only the corpus is written.
    """
    synthesis.write(synthesis.text(teacher, data), student)
