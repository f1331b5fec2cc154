"""Warnings about translations that are probably wrong, found by comparing the text with its source."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from relattn_mt.text.marked import Marked
from relattn_mt.text.names import lacks_names
from relattn_mt.text.patterns import has_text, may_have_tags, tag_pattern

EMPTY = "empty"
REPETITION = "repetition"
NUMBERS = "numbers"
TAGS = "tags"
LENGTH = "length"
NAMES = "names"
LANGUAGE = "language"  # of a text that is not in the language that was asked for
KEPT = "kept"  # of a text of a document that stays, because a formula, a list or a filter refers to it
TERMS = "terms"  # of a sentence that a term of a glossary does not fit into
LONG = "long"  # of a text that was copied, because it is longer than the model can read
# of a repetition: parts in a row, and characters
_TIMES = 4
_LONGEST_PART = 60
_SHORTEST_REPETITION = 11
_NUMBER = re.compile(
    r"([$€£¥]\s?)?(\d{1,3}(?:[ '’\u00a0\u202f]\d{3}(?!\d))+(?:[.,]\d+(?!\d))?|\d+(?:[.,]\d+)*)(\s?[$€£¥%‰])?"
)
_TIME = re.compile(
    r"\b(?<![:.,])(2[0-4]|[01]?\d)(?::(\d\d)(?!\d)|[ \u00a0\u202f]?[hH][ \u00a0\u202f]?([0-5]\d)\b"
    r"|(?:[.:](\d\d))?(?= ?(?:Uhr|h|[ap]\.? ?m)\b))"
)
_HALF_DAY = 720  # minutes
_DAY = re.compile(r"\b(\d{1,2})\.(\d{1,2})\.(?= )")  # and month
_SIGN = re.compile("[$€£¥₹₽₩₺]")  # of a currency, which a translation may spell
_CURRENCY = re.compile(  # names of currencies in languages with Latin letters; in others, a letter after a number
    r"d[oóô]l+[aáe]r|đô la|\b(?:eur[oó]\w?|euros|eura?|e[iv]ro\w?|avro|pfund|po?unds?|libra[ns]?|livres?|lib(?:er|ry)"
    r"|punta\w?|sterl\w+|fun(?:t\w*|d)|[yj]en|[yj]uan|r[uo]u?pi[aen]\w*|rupees?|ro?ubl?[ele]\w*|lir[aey]s?|cents?)\b"
    r"|\d[ \u00a0]?(?:[^\W\d_a-zà-ɏ]|won\b)|\b(?-i:USD|EUR|GBP|JPY|CHF|INR|RUB|KRW|CNY|TRY|AUD|CAD|NZD)\b",
    re.IGNORECASE,
)
_DATE = re.compile(r"\b(\d{1,2})([./])(\d{1,2})\2(\d{4})\b")  # day and month, or with a slash also month and day
_NAMED_DATE = re.compile(  # a word, perhaps a month, before the day or between the day and the year
    r"(?:\b([^\W\d_]+)\.? )?\b(\d{1,2})(?:st|nd|rd|th|er|º)?[.,]? (?:(?:de|of) )?"
    r"(?:([^\W\d_]+)[.,]? (?:(?:de|of) )?)?(\d{4})\b"
)
_NAMED_DAY = re.compile(  # without a year
    r"\b([A-Z][^\W\d_]{2,})\.? (\d{1,2})\b|\b(\d{1,2})(?:st|nd|rd|th|\.)? ([^\W\d_]{3,})"
)
_MONTHS = [  # their names and abbreviations in English, German and some other languages with Latin letters
    re.compile(names, re.IGNORECASE)
    for names in (
        "jan(?:uary|uar|uari|vier)?|jän(?:ner)?|gen(?:naio)?|ene(?:ro)?",
        "feb(?:ruary|ruar|ruari|rero|braio)?|fév(?:rier)?|fev(?:ereiro)?",
        "mar(?:ch|s|zo|ço)?|märz?|maart|mrt",
        "apr(?:il|ile)?|avr(?:il)?|abr(?:il)?",
        "ma[iyj]o?|mag(?:gio)?|mei",
        "june?|juni|juin|junio|junho|giu(?:gno)?",
        "july?|juli|juil(?:let)?|julio|julho|lug(?:lio)?",
        "aug(?:ust|ustus)?|ago(?:sto)?|août",
        "sept?(?:ember|embre|tembre|tiembre)?|set(?:embro|tembre)?",
        "o[ck]t(?:ober|obre|ubre)?|ott(?:obre)?|out(?:ubro)?",
        "nov(?:ember|embre|iembre|embro)?",
        "de[cz](?:ember|embre|embro)?|déc(?:embre)?|dic(?:iembre|embre)?",
    )
]
_ALL_MONTHS = {*range(1, 13)}  # of a word that may be a month
_NEGATIVE = re.compile(r"(?<![\w).])(?<!\d )[-−](?=[$€£¥]?\d)")
_MINUS = re.compile(  # or a dash before a number
    r"minus|\bmin\b|miinus|mínusz|negat|moins|menos|\bmeno\b|below|unter|onder|sous\b|dessous|bajo|abaixo|sotto"
    r"|минус|мінус|ниже|负|零下|マイナス|氷点下|영하|[-−–－] ?[$€£¥]?\d",
    re.IGNORECASE,
)
_DECADE = re.compile(r"(?<![\d.,])[3-9]0(?=er|s\b)")  # perhaps, without its century
_SMALL = 12  # up to which a number may be a word
# How words for numbers begin in English and German
_NUMBER_WORDS = (
    "2=two|twi[cn]|second|both|zwei|beid 3=three|third|drei(?!ß|ss|z)|dritt 4=four(?!te)|vier(?!z)"
    " 5=five|fifth|fünf(?!z) 6=six(?!t[eiy])|sechs 7=seven(?!t[eiy])|sieb(?!z) 8=eight(?![eiy])|acht(?!z|ung|sam|los)"
    r" 9=nine(?!t)|ninth|neun(?!z) 10=tenth|ten\b|zehn 11=eleven|elf 12=twel|dozen|zwölf|dutzend 20=twent|zwanzig"
    " 30=thirt[iy]|drei(?:ß|ss)ig 40=fort(?:y|ie)|vierzig 50=fift[iy]|fünfzig 60=sixt[iy]|sechzig 70=sevent[iy]|siebzig"
    " 80=eight[iy]|achtzig 90=ninet[iy]|neunzig 100=hundr"
)
_WORDS_OF = dict(each.split("=") for each in _NUMBER_WORDS.split())
_MOST_TIMES = 3  # as many pieces as the source, from which on a length is unlikely
_FEWEST_PIECES = 12
# of a sentence that has lost words: words, and shares of the words and of the characters that are left
_FEWEST_WORDS = 6
_LEAST_WORDS = 0.5
_LEAST_CHARACTERS = 0.6
_FEWEST_SENTENCES = 5  # of a text that has lost some, or has others
_END = re.compile(r"[.!?](?=\s|$)|[。！？]")
_FEWEST_TO_IDENTIFY = 4  # words of a text whose language is identified
_FAR_LIKELIER = 100
_WITHOUT_SPACES = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"  # slow to compile


def implausibilities(
    source: str,
    translation: str,
    src_pieces: int,
    tgt_pieces: int,
    capitals: Sequence[bool] = (False, False),
    pieces: Callable[[str], int] = len,
) -> tuple[str, ...]:
    """Return what is implausible in a translation, as names in a fixed order.

    | name | meaning |
    |---|---|
    | `empty` | the translation has no text |
    | `repetition` | a part occurs four times in a row, and not in the source |
    | `numbers` | a number of the source is missing, unless it may be a word, as those up to 12; or its currency, its
      minus sign, or the month between a day and a year; or there is another number of three digits, month or time |
    | `tags` | the tags, placeholders and addresses are not those of the source |
    | `length` | it has over three times as many pieces as the source, less than a third, or less than half the words,
      or a fifth of five sentences or more is missing or added |
    | `names` | a name is missing, or spelled in another way |

    Args:
        source: The source.
        translation: Its translation.
        src_pieces: Number of pieces of the source.
        tgt_pieces: Number of pieces of the translation.
        capitals: Whether a capitalized word within a sentence is a name, in the source and in the translation.
        pieces: Function that returns the number of pieces of a word.
    """
    if not has_text(source):
        return ()
    if not has_text(translation):
        return (EMPTY,)
    shorter, longer = sorted((src_pieces, tgt_pieces))
    is_unlikely = longer >= _FEWEST_PIECES and longer > _MOST_TIMES * shorter
    is_incomplete = _lost_words(source, translation) or _lost_sentences(source, translation)
    lacks_own = capitals[0] and lacks_names(source, translation, pieces)
    has_other = capitals[1] and lacks_names(translation, source, pieces)
    found = {
        REPETITION: _repeats(translation) and not _repeats(source),
        NUMBERS: _changes_numbers(source, translation),
        TAGS: _tags(source) != _tags(translation),
        LENGTH: is_unlikely or is_incomplete,
        NAMES: lacks_own or has_other,
    }
    return tuple(name for name, is_found in found.items() if is_found)


def _repeats(text: str) -> bool:
    """Return whether a part of a text with a letter or a digit occurs four times in a row."""
    least = _SHORTEST_REPETITION - (_TIMES - 1)  # characters in a row that any repetition has again later
    if len({text[i : i + least] for i in range(len(text))}) == len(text):
        return False
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    for size in range(1, min(_LONGEST_PART, len(text) // 2) + 1):
        run = max(_TIMES * size - 1, _SHORTEST_REPETITION) - size  # of characters that equal those `size` before
        differs = np.flatnonzero(np.concatenate([[True], codes[size:] != codes[:-size], [True]]))
        starts = differs[:-1][np.diff(differs) > run]
        if any(any(map(str.isalnum, text[start : start + size])) for start in starts.tolist()):
            return True
    return False


@cache
def language_identifier() -> Any:
    """Return py3langid's identifier of languages. Loading it takes half a second."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def is_in_other_language(text: str, language: str) -> bool:
    """Return whether a text of four words or more is far likelier in another language; False for an unknown one."""
    identifier = language_identifier()
    label = re.split("[-_]", language)[0].lower().replace("nb", "no")
    if label not in identifier.labels or _count_words(text) < _FEWEST_TO_IDENTIFY:
        return False
    ranking = dict(identifier.rank(text))
    return bool(max(ranking.values()) > _FAR_LIKELIER * ranking[label])


def _lost_words(source: str, translation: str) -> bool:
    """Return whether a translation has less than half of the words of a sentence, and far fewer characters."""
    count = _count_words(source)
    if count < _FEWEST_WORDS or re.search(_WITHOUT_SPACES, source + translation):
        return False
    is_short = len(translation) < _LEAST_CHARACTERS * len(source)
    return is_short and _count_words(translation) < _LEAST_WORDS * count


def _lost_sentences(source: str, translation: str) -> bool:
    """Return whether a translation of several sentences has far fewer, or far more."""
    counts = len(_END.findall(source)), len(_END.findall(translation))
    return max(counts) >= _FEWEST_SENTENCES and 5 * abs(counts[0] - counts[1]) >= max(counts)


def _count_words(text: str) -> int:
    return len(re.findall(r"\w+", text))


def _changes_numbers(source: str, translation: str) -> bool:
    """Return whether a translation has lost or changed a number, its currency, or the month between two."""
    if not re.search(r"\d", source + translation):
        return False
    missing, rest = _unmatched(source, translation)
    missing = [number for number in missing if not _has_other_form(number.values, translation)]
    added = [number for number in rest if not _has_other_form(number.values, source)]
    if any(number.matters for number in missing + added):
        return True
    if missing and (added or _count_words(translation) < _count_words(source)):
        return True
    signs = Counter(_SIGN.findall(source)) - Counter(_SIGN.findall(translation))
    if signs.total() > max(0, len(_CURRENCY.findall(translation)) - len(_CURRENCY.findall(source))):
        return True
    return (
        _changes_months(source, translation)
        or _changes_times(source, translation)
        or _lacks_minus(source, translation)
        or _lacks_minus(translation, source)
    )


def _lacks_minus(text: str, other: str) -> bool:
    """Return whether a text has more negative numbers than another one has dashes before numbers and words for them."""
    return len(_NEGATIVE.findall(text)) > len(_MINUS.findall(other))


def _changes_months(source: str, translation: str) -> bool:
    """Return whether the month of a date is missing or another one."""
    months = _months(source)
    for date, named in _months(translation).items():
        expected = months.get(date, _ALL_MONTHS)
        if expected and expected != _ALL_MONTHS and not expected & named:
            return True
    return False


def _months(text: str) -> dict[tuple[int, str], set[int]]:
    """Return the months that each date of a text may have, by day and year.

    A date may have any month if the word for its month is unknown. It has none if there is no such word. A date without
    a year has an empty year in its key.
    """
    months: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
    for before, day, after, year in _NAMED_DATE.findall(text):
        word = after or (before if before[:1].isupper() else "")
        months[int(day), year].update(_named_months(word) or (_ALL_MONTHS if word else ()))
    for first, sign, second, year in _DATE.findall(text):
        months[int(first), year].add(int(second))
        if sign == "/":
            months[int(second), year].add(int(first))
    for day, month in _DAY.findall(text):
        months[int(day), ""].add(int(month))
    for before, day, other_day, after in _NAMED_DAY.findall(text):
        if named := _named_months(before or after):
            months[int(day or other_day), ""].update(named)
    return months


def _named_months(word: str) -> set[int]:
    return {number for number, names in enumerate(_MONTHS, start=1) if names.fullmatch(word)}


def _changes_times(source: str, translation: str) -> bool:
    """Return whether a time of day is another one, or missing among others. A time may be spelled in words."""
    times, translated = _times(source), _times(translation)
    missing = times.keys() - translated.keys()
    added = translated.keys() - times.keys()
    if any(translated[time] or not any(times[each] for each in missing) for time in added if missing):
        return True
    if not translated or len(translated) >= len(times):
        return False
    numbers = {value for number in _numbers(translation) for value in number.values}
    return any(times[time] and (time % 60 or not _hours(time) & numbers) for time in missing)


def _hours(time: int) -> set[str]:
    """Return the numbers that the hour of a time may have."""
    return {str(time // 60 or 24), str(time // 60 + 12)}


def _times(text: str) -> dict[int, bool]:
    """Return the times of day in minutes, modulo twelve hours, and whether their minutes are written."""
    times = {}
    for hour, *minutes in _TIME.findall(text):
        minute = "".join(minutes)
        if int(minute or 0) < 60:
            times[(60 * int(hour) + int(minute or 0)) % _HALF_DAY] = bool(minute)
    return times


class _Number(NamedTuple):
    """Values of a number, several if a mark may be one of decimals, and whether it matters."""

    values: set[str]
    matters: bool


def _numbers(text: str) -> list[_Number]:
    """Return the numbers of a text."""
    text = re.sub(r"\d", lambda digit: str(int(digit[0])), text)  # of any script
    text = _DATE.sub(lambda date: date[0] if date[2] == "/" else f"{date[1]} {date[4]}", text)  # months are apart
    text = _DAY.sub(r"\1 \2 ", _TIME.sub(" ", text))
    decades = {found.start() for found in _DECADE.finditer(text)}
    numbers = []
    for found in _NUMBER.finditer(text):
        for values in _values(re.sub(r"[^\d.,]", "", found[2])):
            matters = bool(found[1] or found[3]) or max(map(float, values)) > _SMALL or "." in max(values)
            if found.start(2) in decades:
                values.add(f"19{found[2]}")
            numbers.append(_Number(values, matters))
    return numbers


def _values(number: str) -> list[set[str]]:
    """Return the values of a number, by the marks between its digits; those of each part of a date or version."""
    whole, *groups = re.split("[.,]", number)
    marks = re.sub(r"\d", "", number)
    is_decimal = marks[-1:] not in marks[:-1] and len({*marks}) <= 2
    thousands = groups[:-1] if is_decimal else groups
    has_thousands = len(whole) <= 3 and all(len(group) == 3 for group in thousands)
    if not groups or (thousands and not has_thousands):
        return [{part.lstrip("0") or "0"} for part in (whole, *groups)]
    integer = whole + "".join(thousands)
    values = {f"{integer}.{groups[-1].rstrip('0')}".rstrip(".")} if is_decimal else {integer}
    if len(marks) == 1 and len(groups[-1]) == 3 and len(whole) <= 3:
        values.add(whole + groups[-1])
    return [values]


def _unmatched(text: str, other: str) -> tuple[list[_Number], list[_Number]]:
    """Return the numbers of a text that another text does not have, and those of the other one that are left over."""
    rest = _numbers(other)
    missing = []
    for number in sorted(_numbers(text), key=lambda each: len(each.values)):
        equal = next((each for each in rest if each.values & number.values), None)
        if equal is None:
            missing.append(number)
        else:
            rest.remove(equal)
    return missing, rest


def _has_other_form(values: set[str], text: str) -> bool:
    """Return whether a text has a word for a number, or a time of this hour or minute."""
    known = values & _WORDS_OF.keys()
    if any(re.search(rf"\b(?:{_WORDS_OF[value]})", text, re.IGNORECASE) for value in known):
        return True
    return any(values & {*_hours(time), str(time % 60)} for time in _times(text))


def _tags(text: str) -> Counter[str]:
    """Return the tags of a text. Numbers with a unit may be written in another way."""
    if not may_have_tags(text):
        return Counter()
    from relattn_mt.text.strip import strip

    tags = (tag.content.text for tag in strip(Marked(text), tag_pattern()).tags)
    return Counter(tag for tag in tags if not re.search(r"\d", tag) or tag[0] in "<{%")
