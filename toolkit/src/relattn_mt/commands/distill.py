"""`relattn-mt distill`"""

from relattn_mt.commands.options import SynthesisOptions


def distill(teacher: str, *, data: list[str], synthesis: SynthesisOptions) -> None:
    """Translate text with a teacher, and write the pairs as a corpus to train a student on.

    Pairs are dropped by rules, and counted. After an interruption, the same command continues.

    Args:
        teacher: Directory of a bundle, or name of a model: everyday-en-de, firefox:en-de, or org/name on the hub.
        data: Files of source lines, plain or compressed.
    """
    synthesis.write(teacher, data)
