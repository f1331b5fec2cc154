"""The built-in corpus: real strings in any pair of locales, with nothing to download.

A line joins items (`items.py`), each said in both locales. Which split an item belongs to is decided by a hash of
(kind, value) before any line is made, so no split shares a value with another, whatever the locales, the sizes and
the seed; units, currencies and names of months are carriers and appear in all. A corpus is a pure function of its
arguments, the same on every platform.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from relattn.translation.data.builtin_items import KINDS, ItemKind, Voice, plain_spaces, voice
from relattn.translation.errors import InputError

ITEM_SEPARATOR = "; "
TRAIN_MARKS = 32  # the longest line of train, valid and test, in `marks`; a line of long has at least twice as many
_COUNTS = (1, 2, 3, 4, 4, 4, 4)  # items of a line, one drawn: long enough for the far rows of a clip of 8 to be trained
_LONG_COUNTS = range(6, 13)
_MARK = re.compile(r"[^\W\d_]{1,6}|\S")
_PER_CENT = {"train": 76, "valid": 8, "test": 8, "long": 8}  # of the values


@dataclass(frozen=True)
class Item:
    """One item of a line: what it is, and how each side says it."""

    kind: str
    value: int
    src: str
    tgt: str


def builtin(
    split: str, *, src_lang: str = "en", tgt_lang: str = "de", lines: int, seed: int = 0
) -> list[tuple[str, str]]:
    """Lines of the corpus, each a source and a target joined by ITEM_SEPARATOR.

    Args:
        split: "train", "valid", "test" (1 to 4 items a line, at most TRAIN_MARKS marks a side) or "long" (6 to 12
            items, at least twice as many marks on either side).
        src_lang: source locale, such as ``en`` or ``pt_BR``.
        tgt_lang: target locale.
        lines: how many; more lines begin with the same ones.
        seed: another seed, other lines of the same values.

    Raises:
        InputError: no such split, or a locale that Babel or num2words does not speak.
    """
    return [
        (ITEM_SEPARATOR.join(item.src for item in line), ITEM_SEPARATOR.join(item.tgt for item in line))
        for line in draw_items(split, src_lang=src_lang, tgt_lang=tgt_lang, lines=lines, seed=seed)
    ]


def draw_items(split: str, *, src_lang: str, tgt_lang: str, lines: int, seed: int) -> list[list[Item]]:
    """The lines of `builtin` before they are joined."""
    if split not in _PER_CENT:
        raise InputError(f"the built-in corpus has the splits {', '.join(_PER_CENT)}, not '{split}'")
    src, tgt = voice(src_lang), voice(tgt_lang)
    source = _Source(split, src, tgt)
    random = Random(f"{split} {src.locale} {tgt.locale} {seed}")
    return [source.line(random) for _ in range(lines)]


def marks(text: str) -> int:
    """Digits, signs and runs of up to six letters: about as many as word pieces, whatever the vocabulary."""
    return len(_MARK.findall(text))


@lru_cache(maxsize=1 << 17)
def split_of(kind: str, value: int) -> str:
    """The split that a value of a kind belongs to."""
    digest = hashlib.sha256(f"{kind} {value}".encode()).digest()
    rest = int.from_bytes(digest[:8], "big") % 100
    for split, share in _PER_CENT.items():
        if rest < share:
            return split
        rest -= share
    raise AssertionError("the shares add up to 100")


class _Source:
    """Draws items of one split that both voices can say."""

    def __init__(self, split: str, src: Voice, tgt: Voice) -> None:
        self.split, self.src, self.tgt = split, src, tgt
        self.styles = {(kind.name, carrier): self._common(kind, carrier) for kind in KINDS for carrier in kind.carriers}
        self.kinds = [kind for kind in KINDS if any(self.styles[kind.name, carrier] for carrier in kind.carriers)]

    def _common(self, kind: ItemKind, carrier: str) -> list[str]:
        """The styles that both sides have for a carrier."""
        return [s for s in kind.styles if kind.has(carrier, s, self.src) and kind.has(carrier, s, self.tgt)]

    def line(self, random: Random) -> list[Item]:
        """A line's items, all different, of the length that the split asks for."""
        while True:
            items = self._items(random)
            lengths = [marks(ITEM_SEPARATOR.join(side)) for side in ([i.src for i in items], [i.tgt for i in items])]
            if self.split == "long" and min(lengths) >= 2 * TRAIN_MARKS:
                return items
            if self.split != "long" and max(lengths) <= TRAIN_MARKS:
                return items

    def _items(self, random: Random) -> list[Item]:
        count = random.choice(_LONG_COUNTS if self.split == "long" else _COUNTS)
        items: list[Item] = []
        while len(items) < count:
            item = self.item(random)
            if all(item.src != other.src for other in items):
                items.append(item)
        return items

    def item(self, random: Random) -> Item:
        """A random item of this split; its source alone decides its style, the earliest that says the same."""
        kind = random.choice(self.kinds)
        value, carriers = 0, list[str]()
        while not carriers:
            value = random.randint(1, kind.size)
            if split_of(kind.name, value) == self.split:
                carriers = [c for c, most in kind.carriers.items() if value <= most and self.styles[kind.name, c]]
        carrier = random.choice(carriers)
        styles = self.styles[kind.name, carrier]
        text = kind.say(value, carrier, random.choice(styles), self.src)
        style = next(s for s in styles if kind.say(value, carrier, s, self.src) == text)
        said = kind.say(value, carrier, style, self.tgt)
        return Item(kind.name, value, plain_spaces(text), plain_spaces(said))
