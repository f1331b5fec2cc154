"""Which phrases a translation still needs."""

from __future__ import annotations

from dataclasses import dataclass

Phrase = tuple[int, ...]


@dataclass(frozen=True)
class PhraseState:
    """Phrases that a hypothesis needs, and how much of one of them its last tokens are.

    Attributes:
        needed: Phrases that it does not contain yet.
        begun: The longest beginning of a needed phrase that its last tokens are.
        completed: The phrase that its last token completed, if any.
    """

    needed: tuple[Phrase, ...]
    begun: Phrase = ()
    completed: Phrase = ()

    @property
    def missing(self) -> int:
        """Number of tokens of needed phrases that are still to come."""
        return sum(map(len, self.needed)) - len(self.begun)

    def tokens(self) -> set[int]:
        """Return the tokens that begin or continue a needed phrase."""
        return {phrase[len(begun)] for begun in ((), self.begun) for phrase in self.needed if _begins(phrase, begun)}

    def append(self, token: int, *, continues: bool) -> PhraseState:
        """Return the state after one more token.

        If the token continues the last word, as a prefix may require, a phrase that this word completed does not count.
        """
        if not (self.needed or self.completed):
            return self
        starts = range(len(self.begun) + 1 if any(token in phrase for phrase in self.needed) else 0)
        ends = ((*self.begun[start:], token) for start in starts)
        begun = next((end for end in ends if any(_begins(phrase, end) for phrase in self.needed)), ())
        needed = list(self.needed)
        complete = begun in self.needed
        if continues and self.completed:
            needed.append(self.completed)
        if complete:
            needed.remove(begun)
        return PhraseState(tuple(needed), () if complete else begun, begun if complete else ())


def _begins(phrase: Phrase, beginning: Phrase) -> bool:
    return phrase[: len(beginning)] == beginning
