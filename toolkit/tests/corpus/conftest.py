"""A corpus with pairs to drop for every reason."""

import random

Pairs = list[tuple[str, str]]
HELD_OUT = ["a line that nobody has seen yet", "eine Zeile, die noch keiner sah"]


def random_pairs(count: int, seed: int = 1) -> Pairs:
    """Return short pairs, among them duplicates and pairs that the rules drop."""
    source = random.Random(seed)
    pairs = []
    for _ in range(count):
        line = [f"w{source.randrange(60)}" for _ in range(source.randrange(1, 5))]
        pairs.append((" ".join(line), " ".join(f"v{word[1:]}" for word in reversed(line))))
    dropped = [("", "x"), ("a\0b", "x"), ("x", "y" * 1_000_000), ("x", "w " * 30), ("x", "кот"), ("x", "w " * 9)]
    dropped += [("a copy, of a line", "A copy of a line"), ("x", "\u200b\u00ad")]
    for pair in [*dropped, tuple(HELD_OUT)]:
        pairs.insert(source.randrange(count), pair)
    return pairs
