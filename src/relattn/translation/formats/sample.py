"""Lines to check an export with where there is no text at hand."""

from __future__ import annotations

import random

from relattn.translation.data.imported import AnyTokenizer
from relattn.translation.data.tokenizer import SPACE_MARK

LONGEST = 64  # pieces of a line


def likely_lines(tokenizer: AnyTokenizer, count: int, *, longest: int | None = None, seed: int = 1) -> list[str]:
    """Pieces drawn as often as SentencePiece expects them: no sentences, on which searches part more often.

    Args:
        tokenizer: of the model.
        count: of lines.
        longest: sequence, in pieces, that the model can hold; None where there is no limit.
        seed: of the draws.
    """
    draw, shares = random.Random(seed), tokenizer.frequencies()
    pieces, weights = list(shares), list(shares.values())
    most = LONGEST if longest is None else max(1, min(LONGEST, longest // 2))  # read again, a text may have more
    drawn = ("".join(draw.choices(pieces, weights, k=draw.randint(1, most))) for _ in range(count))
    return [text.replace(SPACE_MARK, " ").strip() for text in drawn]
