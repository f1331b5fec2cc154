"""Built-in corpus: real strings in any pair of locales, without a download.

A line is a list of items that Babel (with CLDR's data) and num2words can write in both locales. An item has a kind, a
value (a day, an amount, a number), a carrier (a unit, a currency) and a style (long, short, spelled out). Values are
what a model must generalize to, and carriers and styles are a few that all splits share.

The split of a value is a hash of (kind, value). So no value is in two splits, whatever the locales, sizes and seed. The
corpus is a pure function of its arguments and the same on every platform. `write_files` writes it as text.

The items of a translation are matched by the longest common subsequence of the two lists, so that one missing item does
not make all items after it wrong.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Sequence
from decimal import Decimal
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import num2words
from babel import Locale, UnknownLocaleError, dates, numbers, units
from relattn_mt.evaluation import require_pairs
from relattn_mt.support.errors import InputError, require, unknown
from relattn_mt.support.files import write_atomically

ITEM_SEPARATOR = "; "
LINES = {"train": 20_000, "valid": 500, "test": 400, "long": 400}  # per split, by default
TRAIN_PIECES = 32  # maximum `estimate_pieces` of a line, except in "long", where the minimum is twice as many
_COUNTS = (1, 2, 3, 4, 4, 4, 4)  # items per line, one is drawn: enough to train the far rows of a clip of 8
_LONG_COUNTS = range(6, 13)
_PIECE = re.compile(r"[^\W\d_]{1,6}|\S")
_PER_CENT = {"train": 76, "valid": 8, "test": 8, "long": 8}  # of the values
_SPLITS = [split for split, share in _PER_CENT.items() for _ in range(share)]

FIRST_DAY = datetime.date(1899, 12, 31)  # day 0
_DAYS = (datetime.date(2099, 12, 31) - FIRST_DAY).days
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400, "month": 30 * 86400}
# The largest count that Babel leaves in its unit: 60 seconds would become a minute.
LARGEST_COUNT = {"second": 59, "minute": 59, "hour": 23, "day": 6, "week": 4, "month": 11}
_UNITS = (
    "length-kilometer",
    "length-meter",
    "length-centimeter",
    "mass-kilogram",
    "mass-gram",
    "volume-liter",
    "temperature-celsius",
    "speed-kilometer-per-hour",
    "digital-megabyte",
    "duration-day",
    "duration-hour",
    "duration-minute",
)
_LARGEST_SPELLED = 999  # except for years
_YEARS = range(1101, 2100)
_PROBES = (*range(1, 31), 45, 110, 999, 1234, 9999)  # tenths that need every plural form of CLDR's languages

# Languages that num2words has under another code, and forms that are wrong in its version 0.5.14.
_CODES = {"nb": "no", "kk": "kz"}
_BROKEN = {("ca", "ordinal"), ("ko", "ordinal"), ("vi", "ordinal_num"), ("vi", "year")}
_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2007\u2009\u202f", " "))  # CLDR's no-break and thin spaces


class ItemAccuracy(NamedTuple):
    """Fractions from 0 to 1."""

    items: float  # items of the references that the translations have, in order
    lines: float  # lines that equal their reference


class Kind(NamedTuple):
    """A kind of item.

    Attributes:
        name: Name of the kind; it decides the split, together with the value.
        size: Values are 1 … size, or fewer for a carrier in LARGEST_COUNT.
        styles: Ways to write it; if two give the same source, the first one is used.
        carriers: Units or currencies.
    """

    name: str
    size: int
    styles: tuple[str, ...]
    carriers: tuple[str, ...] = ("",)


KINDS = (
    Kind("date", _DAYS, ("long", "full", "medium")),
    Kind("month", 2400, ("yMMMM",)),
    Kind("day", 366, ("MMMMd",)),
    Kind("time", 1440, ("short",)),
    Kind("clock", 86400, ("medium",)),
    Kind("span", 59, ("ahead", "ago"), tuple(LARGEST_COUNT)),
    Kind("measure", 9999, ("long", "short"), _UNITS),
    Kind("money", 999_999, ("standard", "name"), ("USD", "EUR", "GBP", "CHF")),
    Kind("percent", 999, ("",)),
    Kind("decimal", 999_999, ("",)),
    Kind("number", _LARGEST_SPELLED, ("cardinal", "ordinal", "ordinal_num")),
    Kind("year", len(_YEARS), ("year",)),
)


class Item(NamedTuple):
    """An item of a line, in both languages."""

    kind: str
    value: int
    src: str
    tgt: str


def builtin(
    split: str, *, src_lang: str = "en", tgt_lang: str = "de", lines: int, seed: int = 0
) -> list[tuple[str, str]]:
    """Return sentence pairs of the corpus, whose items are joined by ITEM_SEPARATOR.

    Args:
        split: "train", "valid", "test" (1 to 4 items per line) or "long" (6 to 12 items, and lines that are at least
            twice as long).
        src_lang: Source locale, such as ``en`` or ``pt_BR``.
        tgt_lang: Target locale.
        lines: Number of pairs. A larger number starts with the same pairs.
        seed: Random seed. Other seeds give other pairs of the same values.

    Raises:
        InputError: The split does not exist, the locales are the same, or Babel or num2words does not support one.
    """
    return [
        (ITEM_SEPARATOR.join(item.src for item in line), ITEM_SEPARATOR.join(item.tgt for item in line))
        for line in draw_items(split, src_lang=src_lang, tgt_lang=tgt_lang, lines=lines, seed=seed)
    ]


def write_files(
    directory: Path,
    *,
    src_lang: str = "en",
    tgt_lang: str = "de",
    lines: dict[str, int] = LINES,
    seed: int = 0,
) -> None:
    """Write each split as two files, SPLIT.LANGUAGE, unless both exist. Other arguments are those of `builtin`.

    Args:
        directory: Directory of the files, which is made if there is none.
        lines: Number of pairs of each split.
    """
    for split, count in lines.items():
        require(count > 0, f"the number of lines of {split} must be positive, got {count}")
        paths = [directory / f"{split}.{language}" for language in (src_lang, tgt_lang)]
        if not all(path.exists() for path in paths):
            pairs = builtin(split, src_lang=src_lang, tgt_lang=tgt_lang, lines=count, seed=seed)
            directory.mkdir(parents=True, exist_ok=True)
            for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
                write_atomically(path, "".join(f"{line}\n" for line in side).encode())


def draw_items(split: str, *, src_lang: str, tgt_lang: str, lines: int, seed: int) -> list[list[Item]]:
    """Return the items of each line of `builtin`."""
    if split not in _PER_CENT:
        raise unknown("split of the built-in corpus", split, _PER_CENT)
    src, tgt = find_locale(src_lang), find_locale(tgt_lang)
    require(src != tgt, f"the built-in corpus requires two locales, got {src_lang} and {tgt_lang}")
    sampler = _Sampler(split, src, tgt)
    random = Random(f"{split} {src} {tgt} {seed}")
    return [sampler.line(random) for _ in range(lines)]


def estimate_pieces(text: str) -> int:
    """Return the number of digits, signs and runs of up to six letters, roughly that of word pieces."""
    return len(_PIECE.findall(text))


@lru_cache(maxsize=1 << 17)
def split_of(kind: str, value: int) -> str:
    """Return the split that has a value."""
    digest = hashlib.sha256(f"{kind} {value}".encode()).digest()
    return _SPLITS[int.from_bytes(digest[:8], "big") % 100]


class _Sampler:
    """Draws items of a split that can be written in both locales."""

    def __init__(self, split: str, src: Locale, tgt: Locale) -> None:
        self.split, self.src, self.tgt = split, src, tgt
        self.styles = {
            (kind.name, carrier): [
                style for style in kind.styles if all(_has_form(kind.name, carrier, style, side) for side in (src, tgt))
            ]
            for kind in KINDS
            for carrier in kind.carriers
        }
        self.kinds = [kind for kind in KINDS if any(self.styles[kind.name, carrier] for carrier in kind.carriers)]

    def line(self, random: Random) -> list[Item]:
        """Return the items of a line, which are all different. The line has a length of the split."""
        while True:
            items: list[Item] = []
            count = random.choice(_LONG_COUNTS if self.split == "long" else _COUNTS)
            while len(items) < count:
                item = self.item(random)
                if all(item.src != other.src for other in items):
                    items.append(item)
            sides = [item.src for item in items], [item.tgt for item in items]
            lengths = [estimate_pieces(ITEM_SEPARATOR.join(side)) for side in sides]
            if min(lengths) >= 2 * TRAIN_PIECES if self.split == "long" else max(lengths) <= TRAIN_PIECES:
                return items

    def item(self, random: Random) -> Item:
        """Return a random item. Its target depends only on the source text, not on the style that gave it."""
        kind = random.choice(self.kinds)
        value, carriers = 0, list[str]()
        while not carriers:
            value = random.randint(1, kind.size)
            if split_of(kind.name, value) == self.split:
                possible = [c for c in kind.carriers if value <= LARGEST_COUNT.get(c, kind.size)]
                carriers = [carrier for carrier in possible if self.styles[kind.name, carrier]]
        carrier = random.choice(carriers)
        styles = self.styles[kind.name, carrier]
        src = write(kind.name, value, carrier, random.choice(styles), self.src)
        style = next(style for style in styles if write(kind.name, value, carrier, style, self.src) == src)
        return Item(kind.name, value, src, write(kind.name, value, carrier, style, self.tgt))


def find_locale(code: str) -> Locale:
    """Return the locale of a code such as ``de``, ``pt_BR`` or ``en-GB``.

    Raises:
        InputError: Babel or num2words does not support it.
    """
    try:
        locale = Locale.parse(code.replace("-", "_"))
    except (UnknownLocaleError, ValueError) as error:
        raise InputError(f"the built-in corpus does not support '{code}': Babel has no such locale") from error
    if _number_language(locale) is None:
        reason = f"num2words has no language '{locale.language}'"
        raise InputError(f"the built-in corpus does not support '{code}': {reason}")
    return locale


@cache
def _number_language(locale: Locale) -> str | None:
    """Return num2words' code of a locale's language, None if it has none."""
    codes = f"{locale.language}_{locale.territory}", _CODES.get(locale.language, locale.language)
    return next((code for code in codes if code in num2words.CONVERTER_CLASSES), None)


@cache
def _spelled(locale: Locale, form: str) -> tuple[str, ...] | None:
    """Return all numbers in words, in a form (cardinal, ordinal, ordinal_num, year). None if a language has no such."""
    language = _number_language(locale)
    if (language, form) in _BROKEN:
        return None
    values = _YEARS if form == "year" else range(1, _LARGEST_SPELLED + 1)
    try:
        texts = tuple(num2words.num2words(value, lang=language, to=form) for value in values)
    except NotImplementedError:
        return None
    return texts if all(isinstance(text, str) for text in texts) else None


def _has_form(kind: str, carrier: str, style: str, locale: Locale) -> bool:
    """Return whether a kind can be written with a carrier and a style in a locale."""
    match kind:
        case "month" | "day":
            return style in locale.datetime_skeletons
        case "measure":  # without a pattern, Babel writes the identifier of the unit
            return not any(carrier in write(kind, value, carrier, style, locale) for value in _PROBES)
        case "number" | "year":
            return _spelled(locale, style) is not None
    return True


def write(kind: str, value: int, carrier: str, style: Any, locale: Locale) -> str:
    """Return the text of an item, with plain spaces."""
    return _write(kind, value, carrier, style, locale).translate(_SPACES)


def _write(kind: str, value: int, carrier: str, style: Any, locale: Locale) -> str:
    match kind:
        case "date":
            return dates.format_date(FIRST_DAY + datetime.timedelta(days=value), style, locale=locale)
        case "month":
            years, month = divmod(value - 1, 12)
            return dates.format_skeleton(style, datetime.date(1900 + years, month + 1, 1), locale=locale)
        case "day":  # of a leap year
            day = datetime.date(1999, 12, 31) + datetime.timedelta(days=value)
            return dates.format_skeleton(style, day, locale=locale)
        case "time":
            return dates.format_time(datetime.time(*divmod(value - 1, 60)), style, locale=locale)
        case "clock":
            minutes, second = divmod(value - 1, 60)
            return dates.format_time(datetime.time(*divmod(minutes, 60), second), style, locale=locale)
        case "span":
            seconds = value * _SECONDS[carrier] * (1 if style == "ahead" else -1)
            span = datetime.timedelta(seconds=seconds)
            return dates.format_timedelta(span, threshold=1, add_direction=True, locale=locale)
        case "measure":
            return units.format_unit(Decimal(value) / 10, carrier, style, locale=locale)
        case "money":
            return numbers.format_currency(Decimal(value) / 100, carrier, locale=locale, format_type=style)
        case "percent":
            return numbers.format_percent(Decimal(value) / 1000, locale=locale, decimal_quantization=False)
        case "decimal":
            return numbers.format_decimal(Decimal(value) / 10, locale=locale)
    spelled = _spelled(locale, style)
    assert spelled is not None, "_has_form"
    return spelled[value - 1]


def item_accuracy(hypotheses: Sequence[str], references: Sequence[str]) -> ItemAccuracy:
    """Compute the fractions of correct items and lines. Lines are lists of items, as in the built-in corpus.

    Raises:
        InputError: The numbers of translations and references differ, or are 0.
    """
    require_pairs(hypotheses, references)
    correct = total = exact = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        items = reference.split(ITEM_SEPARATOR)
        correct += common_subsequence(hypothesis.split(ITEM_SEPARATOR), items)
        total += len(items)
        exact += hypothesis == reference
    return ItemAccuracy(correct / total, exact / len(references))


def common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the length of the longest common subsequence of two lists."""
    row = [0] * (len(b) + 1)  # row[j]: result for the items of a so far and the first j items of b
    for x in a:
        diagonal = 0
        for j, y in enumerate(b, start=1):
            row[j], diagonal = diagonal + 1 if x == y else max(row[j], row[j - 1]), row[j]
    return row[-1]
