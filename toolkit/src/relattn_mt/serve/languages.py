"""Names of languages, and detection of the language of a text."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from babel import Locale, UnknownLocaleError
from babel.core import get_global

from relattn_mt.support.errors import one_line, require, same_language
from relattn_mt.support.lazy import LazyMapping
from relattn_mt.support.types import Fields, LanguagePair
from relattn_mt.text.plausibility import language_identifier
from relattn_mt.translate.translator import Translator

Translators = Mapping[LanguagePair, Translator]  # by pair of languages
_FAR_LIKELIER = 20
_WORD = re.compile(r"[^\W\d_]+")
_MOST_WORDS = 3  # of a text whose language its words decide
# frequencies of a word that is not in a list, and of one in other languages
_UNLISTED = 1e-8
_ELSEWHERE = 1e-5


def language_name(code: str) -> str:
    """Return the English name of a language, such as "German" for "de"; the code itself if it is unknown."""
    try:
        return Locale.parse(code.replace("-", "_")).get_display_name("en") or code
    except (UnknownLocaleError, ValueError, TypeError):
        return code


_ALIASES = {"zt": "zh_Hant", "pb": "pt_BR", "no": "nb"}  # two codes of Argos Translate, and one that Babel keeps


@functools.lru_cache(1000)
def _parts(code: str) -> tuple[str, str, str | None]:
    """Return the language, the script and the territory that a code names."""
    first, *rest = re.split("[-_]", code)
    try:
        locale = Locale.parse("_".join([_ALIASES.get(first.lower(), first), *rest]))
    except (UnknownLocaleError, ValueError):
        return first, "", None
    _, script, *_ = get_global("likely_subtags").get(locale.language, "__").split("_")
    return locale.language, locale.script or script, locale.territory


def served_code(code: str, codes: Sequence[str]) -> str:
    """Return the served code that a client means: `zh-Hans` for `zh-CN`, `en` for `en-US`. If there is none, `code`.

    A code of the same language and script will do, if possible of the same territory, or else without one.
    """
    language, script, territory = _parts(code[:40])  # the cache keeps the codes of clients
    same = [served for served in codes if same_language(served, code)]
    others = [served for served in codes if _parts(served)[:2] == (language, script)]
    others.sort(key=lambda served: (_parts(served)[2] != territory, _parts(served)[2] is not None))
    return [*same, *others, code][0]


def load_pairs(models: Sequence[str], languages: Sequence[str], load: Callable[[str], Translator]) -> Translators:
    """Load models, and return a translator for each pair of languages. Arguments are those of `served_pairs`.

    Raises:
        InputError: As `load` and `served_pairs`, or two models translate the same pair.
    """
    by_pair = {}
    for model in models:
        translators = served_pairs(load(model), languages, model)
        for pair in translators:
            name = " to ".join(pair)
            require(pair not in by_pair, f"{model}: there must be one model per language pair, got two from {name}")
            by_pair[pair] = translators
    return LazyMapping(by_pair, lambda pair: by_pair[pair][pair])


def served_pairs(translator: Translator, languages: Sequence[str], name: str) -> Translators:
    """Return a translator for each pair of languages of a model; `languages` is empty for all of its languages.

    Codes are those of BCP 47. In a model of several languages, codes such as `deu_Latn` become `de`, and `zho_Hant`
    becomes `zh-Hant` if there is Chinese in another script too.

    Raises:
        InputError: The model has none of the languages.
    """
    pairs = translator.pairs
    if len(pairs) == 1:
        return {(translator.src_lang.replace("_", "-"), translator.tgt_lang.replace("_", "-")): translator}
    codes = _short_codes(sorted({code for pair in pairs for code in pair}))
    wanted = set(codes)
    if languages:
        wanted = {code for code in codes if _is_among(code, languages) or _is_among(codes[code], languages)}
    served = {(codes[pair[0]], codes[pair[1]]): pair for pair in pairs if wanted.issuperset(pair)}
    known = one_line(", ".join(codes.values()), 200)
    named = one_line(", ".join(languages), 200)
    require(served, f"{name}: --languages must name at least two of {known}, got {named}")
    return LazyMapping(served, lambda pair: translator.for_pair(*served[pair]))


def _is_among(code: str, languages: Sequence[str]) -> bool:
    return any(same_language(code, language) for language in languages)


def _short_codes(codes: Sequence[str]) -> dict[str, str]:
    """Return codes of ISO 639-1 where there are, with the script only if it is needed to tell two apart."""
    short = {code: _parts(code)[0] for code in codes}
    counts = Counter(short.values())
    for code, name in short.items():
        if counts[name] > 1:
            short[code] = "-".join([name, *re.split("[-_]", code)[1:]])
    return short


class Detector:
    """Detects the language of a text: of up to three words by their frequencies, of a longer one with py3langid.

    The frequencies matter for single words: of two or three languages, they find that of 93 to 95 %, and py3langid that
    of 66 to 77 %. Loading takes half a second.

    Args:
        codes: Languages to choose from; those that py3langid does not know are never detected in longer texts.
    """

    def __init__(self, codes: Sequence[str]) -> None:
        from wordfreq import available_languages, get_frequency_dict

        self._identifier = language_identifier()
        served = {_parts(code)[0]: code for code in sorted(codes, reverse=True)}
        for language, other in (("nb", "nn"), ("nn", "nb")):  # forms of Norwegian
            if other in served:
                served.setdefault(language, served[other])

        def by_label(labels: Iterable[str]) -> dict[str, str]:
            return {label: served[_parts(label)[0]] for label in labels if _parts(label)[0] in served}

        self._codes = by_label(self._identifier.labels)
        self._unknown = {"confidence": 0.0, "language": served.get("en", min(codes))}
        self._frequencies = {  # of the 29,000 to 50,000 commonest words
            code: get_frequency_dict(label, "small") for label, code in by_label(available_languages("small")).items()
        }

    def rank(self, text: str) -> list[Fields]:
        """Return languages with confidences in percent, likeliest first.

        All languages of the detector are considered: a confidence is the probability of a language among those that can
        be chosen and the likeliest other one. For a text without letters, and for one that is far likelier in another
        language, the result is English, or the first language of the server, with confidence 0.
        """
        if not self._codes or not any(map(str.isalpha, text)):
            return [self._unknown]
        words = _WORD.findall(text.lower())
        lists = self._frequencies.values()
        if len(words) <= _MOST_WORDS and any(word in listed for listed in lists for word in words):
            probabilities = {
                code: math.prod(listed.get(word, _UNLISTED) for word in words)
                for code, listed in self._frequencies.items()
            }
            total = sum(probabilities.values()) + _ELSEWHERE ** len(words)
            return _percentages(probabilities, total)
        chosen = dict.fromkeys(self._codes.values(), 0.0)
        other = 0.0  # probability of the likeliest other language
        for label, p in self._identifier.rank(text):
            if label in self._codes:
                chosen[self._codes[label]] += float(p)
            else:
                other = max(other, float(p))
        if max(chosen.values()) <= other / _FAR_LIKELIER:
            return [self._unknown]
        return _percentages(chosen, sum(chosen.values()) + other)


def _percentages(probabilities: Mapping[str, float], total: float) -> list[Fields]:
    ranked = sorted(probabilities, key=probabilities.__getitem__, reverse=True)
    return [{"confidence": round(100.0 * probabilities[code] / total, 1), "language": code} for code in ranked]
