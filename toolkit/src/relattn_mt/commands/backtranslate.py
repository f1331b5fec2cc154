"""`relattn-mt backtranslate`"""

from relattn_mt.commands.options import SynthesisOptions
from relattn_mt.support.errors import require


def backtranslate(
    teacher: str,
    *,
    data: list[str],
    tag: str = "⇄",
    synthesis: SynthesisOptions,
) -> None:
    """Translate text of the target language back with a model of the opposite direction, as sources for training.

    The corpus has the given lines as targets and their translations, with a tag before each, as sources. After an
    interruption, the same command continues.

    Args:
        teacher: Directory of a bundle, or name of a model: everyday-en-de, firefox:en-de, or org/name on the hub.
        data: Files of lines in the target language of the model to be trained, plain or compressed.
        tag: Word to put before each synthetic source. A single character becomes a single token. '' adds no
            tag.
    """
    require(len(tag.split()) <= 1, f"tag must be one word, got '{tag}'")
    synthesis.write(teacher, data, tag=tag)
