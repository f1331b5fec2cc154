"""Languages: what they are called, and which one a text is in."""

from __future__ import annotations

from collections.abc import Iterable

from babel import Locale, UnknownLocaleError
from py3langid.langid import MODEL_FILE, LanguageIdentifier

PERCENT = 100.0


def language_name(code: str) -> str:
    """A language's name in English: "German" for "de"; the code itself where it is not known."""
    try:
        return Locale.parse(code.replace("-", "_")).get_display_name("en") or code
    except (UnknownLocaleError, ValueError, TypeError):
        return code


class Detector:
    """Which of some languages a text is in, by py3langid.

    Args:
        codes: of the languages; those that py3langid does not know are never found.
    """

    def __init__(self, codes: Iterable[str]) -> None:
        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        by_label = {code.partition("-")[0]: code for code in sorted(codes, reverse=True)}
        self._codes = {label: code for label, code in by_label.items() if label in self._identifier.labels}
        if self._codes:
            self._identifier.set_languages(list(self._codes))

    def ranked(self, text: str) -> list[tuple[str, float]]:
        """The languages and how sure each is, in percent, likeliest first; none where none can be told."""
        if not self._codes or not any(character.isalpha() for character in text):
            return []
        return [(self._codes[label], round(PERCENT * sure, 1)) for label, sure in self._identifier.rank(text)]
