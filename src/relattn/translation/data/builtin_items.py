"""What the built-in corpus talks about: kinds of item that the libraries Babel (CLDR) and num2words say in any locale.

An item is a value (a day, an amount, a number: one of many, and what must be generalised to) said with a carrier (a
unit, a currency: one of a closed few) in a style (long, short, spelled out). A kind says which values, carriers and
styles it has, whether a locale has a form for them, and what that form is.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Literal

import num2words
from babel import Locale, UnknownLocaleError, dates, numbers, units

from relattn.translation.errors import InputError

_FIRST_DAY = datetime.date(1899, 12, 31)
_DAYS = (datetime.date(2099, 12, 31) - _FIRST_DAY).days
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400, "month": 30 * 86400}
# The largest count that Babel leaves in its unit: 60 seconds would become a minute.
_LARGEST_COUNT = {"second": 59, "minute": 59, "hour": 23, "day": 6, "week": 4, "month": 11}
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
_CURRENCIES = ("USD", "EUR", "GBP", "CHF")
_SPELLED = 999  # the largest number spelled out, years apart
_YEARS = range(1101, 2100)
_PROBES = (*range(1, 31), 45, 110, 999, 1234, 9999)  # tenths; they meet every plural form of CLDR's languages

# num2words' own codes, where they are not the language's; and where version 0.5.14 fails by its own mistakes.
_CODES = {"nb": "no", "kk": "kz"}
_BROKEN = {("ca", "ordinal"), ("ko", "ordinal"), ("vi", "ordinal_num"), ("vi", "year")}
_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2007\u2009\u202f", " "))


@dataclass(frozen=True)
class Voice:
    """A locale as both libraries know it."""

    locale: Locale
    words: str  # num2words' code


@dataclass(frozen=True)
class ItemKind:
    """A kind of item.

    Attributes:
        name: the kind; with a value, it decides the split.
        size: values are 1 … size.
        carriers: the closed set, each with the largest value it takes.
        styles: ways to say it; where two sound the same, the earlier one is meant.
        has: whether a voice has a form for (carrier, style).
        say: the text of (value, carrier, style) in a voice that has it.
    """

    name: str
    size: int
    carriers: Mapping[str, int]
    styles: tuple[str, ...]
    has: Callable[[str, str, Voice], bool]
    say: Callable[[int, str, str, Voice], str]


def voice(code: str) -> Voice:
    """The voice of a locale such as ``de``, ``pt_BR`` or ``en-GB``.

    Raises:
        InputError: Babel or num2words does not speak it; the message says which.
    """
    try:
        locale = Locale.parse(code.replace("-", "_"))
    except (UnknownLocaleError, ValueError) as error:
        raise InputError(f"the built-in corpus cannot speak '{code}': Babel has no such locale") from error
    for words in (f"{locale.language}_{locale.territory}", _CODES.get(locale.language, locale.language)):
        if words in num2words.CONVERTER_CLASSES:
            return Voice(locale, words)
    raise InputError(f"the built-in corpus cannot speak '{code}': num2words has no language '{locale.language}'")


def plain_spaces(text: str) -> str:
    """text with CLDR's no-break and thin spaces as plain ones."""
    return text.translate(_SPACES)


def _always(carrier: str, style: str, voice: Voice) -> bool:
    return True


def _say_date(value: int, carrier: str, style: str, voice: Voice) -> str:
    return dates.format_date(_FIRST_DAY + datetime.timedelta(days=value), style, locale=voice.locale)


def _has_skeleton(carrier: str, style: str, voice: Voice) -> bool:
    return style in voice.locale.datetime_skeletons


def _say_month(value: int, carrier: str, style: str, voice: Voice) -> str:
    years, month = divmod(value - 1, 12)
    return dates.format_skeleton(style, datetime.date(1900 + years, month + 1, 1), locale=voice.locale)


def _say_day(value: int, carrier: str, style: str, voice: Voice) -> str:
    leap_year = datetime.date(1999, 12, 31) + datetime.timedelta(days=value)
    return dates.format_skeleton(style, leap_year, locale=voice.locale)


def _say_minute(value: int, carrier: str, style: str, voice: Voice) -> str:
    hour, minute = divmod(value - 1, 60)
    return dates.format_time(datetime.time(hour, minute), style, locale=voice.locale)


def _say_second(value: int, carrier: str, style: str, voice: Voice) -> str:
    minutes, second = divmod(value - 1, 60)
    return dates.format_time(datetime.time(*divmod(minutes, 60), second), style, locale=voice.locale)


def _say_span(value: int, carrier: str, style: str, voice: Voice) -> str:
    seconds = value * _SECONDS[carrier] * (1 if style == "ahead" else -1)
    span = datetime.timedelta(seconds=seconds)
    return dates.format_timedelta(span, threshold=1, add_direction=True, locale=voice.locale)


def _has_unit(carrier: str, style: str, voice: Voice) -> bool:
    """Babel writes the unit's own identifier where CLDR has no pattern for it."""
    return not any(carrier in _say_measure(value, carrier, style, voice) for value in _PROBES)


def _say_measure(value: int, carrier: str, style: str, voice: Voice) -> str:
    length: Literal["long", "short"] = "long" if style == "long" else "short"
    return units.format_unit(Decimal(value) / 10, carrier, length, locale=voice.locale)


def _say_money(value: int, carrier: str, style: str, voice: Voice) -> str:
    form: Literal["name", "standard"] = "name" if style == "name" else "standard"
    return numbers.format_currency(Decimal(value) / 100, carrier, locale=voice.locale, format_type=form)


def _say_percent(value: int, carrier: str, style: str, voice: Voice) -> str:
    return numbers.format_percent(Decimal(value) / 1000, locale=voice.locale, decimal_quantization=False)


def _say_decimal(value: int, carrier: str, style: str, voice: Voice) -> str:
    return numbers.format_decimal(Decimal(value) / 10, locale=voice.locale)


@cache
def _spelled(words: str, form: str) -> tuple[str, ...] | None:
    """Every number of a form (cardinal, ordinal, ordinal_num, year) in words, or None where the language has it not."""
    if (words, form) in _BROKEN:
        return None
    values = _YEARS if form == "year" else range(1, _SPELLED + 1)
    try:
        texts = tuple(num2words.num2words(value, lang=words, to=form) for value in values)
    except NotImplementedError:
        return None
    return texts if all(isinstance(text, str) for text in texts) else None


def _has_words(carrier: str, style: str, voice: Voice) -> bool:
    return _spelled(voice.words, style) is not None


def _say_words(value: int, carrier: str, style: str, voice: Voice) -> str:
    texts = _spelled(voice.words, style)
    if texts is None:
        raise LookupError(f"num2words has no {style} in '{voice.words}'")
    return texts[value - 1]


def _one(size: int) -> dict[str, int]:
    """The carriers of a kind that needs none."""
    return {"": size}


KINDS = (
    ItemKind("date", _DAYS, _one(_DAYS), ("long", "full", "medium"), _always, _say_date),
    ItemKind("month", 2400, _one(2400), ("yMMMM",), _has_skeleton, _say_month),
    ItemKind("day", 366, _one(366), ("MMMMd",), _has_skeleton, _say_day),
    ItemKind("time", 1440, _one(1440), ("short",), _always, _say_minute),
    ItemKind("clock", 86400, _one(86400), ("medium",), _always, _say_second),
    ItemKind("span", 59, _LARGEST_COUNT, ("ahead", "ago"), _always, _say_span),
    ItemKind("measure", 9999, dict.fromkeys(_UNITS, 9999), ("long", "short"), _has_unit, _say_measure),
    ItemKind("money", 999_999, dict.fromkeys(_CURRENCIES, 999_999), ("standard", "name"), _always, _say_money),
    ItemKind("percent", 999, _one(999), ("",), _always, _say_percent),
    ItemKind("decimal", 999_999, _one(999_999), ("",), _always, _say_decimal),
    ItemKind("number", _SPELLED, _one(_SPELLED), ("cardinal", "ordinal", "ordinal_num"), _has_words, _say_words),
    ItemKind("year", len(_YEARS), _one(len(_YEARS)), ("year",), _has_words, _say_words),
)
