"""Names of languages, and detection of the language of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from babel import Locale, UnknownLocaleError
from py3langid.langid import MODEL_FILE, LanguageIdentifier


def language_name(code: str) -> str:
    """Return the English name of a language, such as "German" for "de"; the code itself if it is unknown."""
    try:
        return Locale.parse(code.replace("-", "_")).get_display_name("en") or code
    except (UnknownLocaleError, ValueError, TypeError):
        return code


class Detector:
    """Detects the language of a text with py3langid.

    Args:
        codes: languages to choose from; those that py3langid does not know are never detected.
    """

    def __init__(self, codes: Sequence[str]) -> None:
        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        by_label = {code.partition("-")[0]: code for code in sorted(codes, reverse=True)}
        self._codes = {label: code for label, code in by_label.items() if label in self._identifier.labels}
        self._unknown = {"confidence": 0.0, "language": min(codes, default="")}
        if self._codes:
            self._identifier.set_languages(list(self._codes))

    def rank(self, text: str) -> list[dict[str, Any]]:
        """Return languages with confidences in percent, likeliest first.

        For a text without letters, it is the first language of the server, with confidence 0.
        """
        if not self._codes or not any(map(str.isalpha, text)):
            return [self._unknown]
        ranking = self._identifier.rank(text)
        return [{"confidence": round(100.0 * p, 1), "language": self._codes[label]} for label, p in ranking]
