"""Text that a translation copies: emoji, symbols, addresses, placeholders, long numbers, words of other scripts.

A model learns to copy from sentence pairs that have the same such text on both sides. No list of such texts could be
complete, so most of them are made of random characters.
"""

from __future__ import annotations

from random import Random
from string import ascii_lowercase, ascii_uppercase, digits

from relattn_mt.support.types import SentencePair

_EMOJI = [(0x1F600, 0x1F64F), (0x1F300, 0x1F5FF), (0x1F680, 0x1F6C5), (0x1F90D, 0x1F9FF), (0x2700, 0x27BF)]
_SYMBOLS = "→←↔•·★☆✓✗©®™§¶†°€£¥₹#|~^\\_=+*/<>[]{}@&∞≈≤≥×÷±♥■▲…²³½"
# first and last letter of each
_SCRIPTS = ["AZ", "az", "àö", "αω", "ая", "աֆ", "את", "اي", "अह", "กฮ", "აჰ", "あん", "アン", "一龥", "가힣"]
_PLACEHOLDERS = [
    "{%s}",
    "{{%s}}",
    "%%(%s)s",
    "%%(%s)d",
    "${%s}",
    "$%s",
    "%%%s%%",
    "<%s>",
    "</%s>",
    '<x id="%s"/>',
    "[%s]",
    ":%s:",
]
_PRINTF = [r"%s", r"%d", r"%1$s", r"%2$d", r"%.2f", r"%%", r"{}", r"{0}", r"&amp;", r"\n"]
_DOMAINS = ["com", "org", "net", "de", "fr", "io", "co.uk", "info"]
_WORDS_PER_TEXT = 12


def insert(pair: SentencePair, random: Random) -> SentencePair:
    """Return a sentence pair with the same texts on both sides, at the start, at the end or as far into each."""
    for _ in range(1 + int(random.random() * len(pair[0].split()) / _WORDS_PER_TEXT)):
        text = draw(random)
        place = random.choice((0.0, 1.0, random.random()))
        glue = "" if place and random.random() < 0.2 else " "  # as in "great😀"
        src, tgt = (_insert(side, text, place, glue) for side in pair)
        pair = src, tgt
    return pair


def _insert(side: str, text: str, place: float, glue: str) -> str:
    """Insert a text after this share of a side's words, or of its characters if it is written without spaces."""
    words = side.split(" ")
    if len(words) == 1 and 0.0 < place < 1.0:
        at = round(place * len(side))
        return f"{side[:at]}{text}{side[at:]}"
    at = round(place * len(words))
    before = " ".join(words[:at])
    after = " ".join(words[at:])
    return f"{before}{glue if before else ''}{text}{' ' if after else ''}{after}"


def draw(random: Random) -> str:
    """Draw a text."""
    return random.choice((_emoji, _symbols, _address, _placeholder, _number, _foreign_word, _identifier))(random)


def _emoji(random: Random) -> str:
    kinds = [chr(random.randint(*random.choice(_EMOJI))) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    if random.random() < 0.1:  # a flag
        kinds = [chr(0x1F1E6 + random.randrange(26)) for _ in range(2)]
    elif random.random() < 0.1:  # one emoji of two, or in another presentation
        kinds = ["\u200d".join(kinds[:2])] if len(kinds) > 1 else [f"{kinds[0]}\ufe0f"]
    return "".join(kinds)


def _symbols(random: Random) -> str:
    symbol = random.choice(_SYMBOLS)
    return symbol * random.randint(1, 5) if random.random() < 0.3 else symbol + random.choice(("", "", *_SYMBOLS))


def _address(random: Random) -> str:
    name = _name(random)
    site = _name(random)
    domain = random.choice(_DOMAINS)
    path = f"/{_name(random)}" * random.randint(0, 2)
    path += random.choice(("", "", f"?{_name(random)}={random.randint(0, 999)}"))
    host = f"{site}.{domain}"
    return random.choice((f"https://{host}{path}", f"www.{host}{path}", f"{name}@{host}", f"@{name}", f"#{name}"))


def _placeholder(random: Random) -> str:
    return random.choice(_PRINTF) if random.random() < 0.3 else random.choice(_PLACEHOLDERS) % _name(random)


def _number(random: Random) -> str:
    return random.choice(digits[1:]) + _drawn(random, digits, 5, 70)


def _foreign_word(random: Random) -> str:
    first, last = map(ord, random.choice(_SCRIPTS))
    return "".join(chr(random.randint(first, last)) for _ in range(random.randint(2, 9)))


def _identifier(random: Random) -> str:
    count = random.randint(1, 4)
    separator = random.choice("-_./")
    return separator.join(_drawn(random, ascii_uppercase + digits, 2, 6) for _ in range(count))


def _name(random: Random) -> str:
    characters = ascii_lowercase
    if random.random() >= 0.5:
        characters += ascii_uppercase + digits + "_"
    return random.choice(ascii_lowercase) + _drawn(random, characters, 1, 9)


def _drawn(random: Random, characters: str, least: int, most: int) -> str:
    """Return `least` to `most` characters."""
    return "".join(random.choice(characters) for _ in range(random.randint(least, most)))
