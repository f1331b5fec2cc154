"""A text or a document from one language into another, over as many models as lie between."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relattn.translation.data.tokenizer import words_of
from relattn.translation.errors import InputError, one_line
from relattn.translation.serve.limits import Limits
from relattn.translation.serve.models import Asked, Model, Models
from relattn.translation.serve.text.documents import read
from relattn.translation.serve.text.html import Markup
from relattn.translation.serve.text.sentences import split

if TYPE_CHECKING:
    from relattn.translation.analysis.attention import Inspection

_SPACES = re.compile("( +)")
_WITHOUT_SPACES = {"ja", "km", "lo", "my", "th", "zh"}  # languages whose words stand next to each other


@dataclass(frozen=True)
class Translated:
    """A text's translations, best first."""

    best: str
    alternatives: list[str]


@dataclass(frozen=True)
class Word:
    """A word of a translation, or what stands between two.

    Attributes:
        text: as it is.
        confidence: the geometric mean of its pieces' probabilities; None of what is no word.
    """

    text: str
    confidence: float | None


class Translating:
    """What translates texts and documents.

    Args:
        models: by their languages.
        limits: of what is taken.
    """

    def __init__(self, models: Models, limits: Limits) -> None:
        self.models, self._limits = models, limits

    async def texts(
        self, texts: Sequence[tuple[str, str]], target: str, *, html: bool, alternatives: int = 0
    ) -> list[Translated]:
        """The translations of some texts; one in the target language already is its own.

        Args:
            texts: each with its language.
            target: the language to translate into.
            html: whether they are HTML, and not plain.
            alternatives: of each, at most; at most as many as the search has beside the best.

        Raises:
            InputError: there is no way between the languages, a text cannot be read, or there are too many sentences.
            Busy: too much is waiting.
        """
        results: dict[int, Translated] = {}
        for source in dict.fromkeys(source for _, source in texts):
            numbers = [number for number, (_, language) in enumerate(texts) if language == source]
            some = [texts[number][0] for number in numbers]
            if source == target and source in self.models.codes:
                found = [Translated(text, []) for text in some]
            else:
                found = await self._texts(some, source, target, html=html, count=alternatives + 1)
            results.update(zip(numbers, found, strict=True))
        return [results[number] for number in range(len(texts))]

    async def _texts(
        self, texts: Sequence[str], source: str, target: str, *, html: bool, count: int
    ) -> list[Translated]:
        """The translations of texts in one language."""
        marked = html and self._keep_marks(source, target)
        count = min(count, self._route(source, target)[-1].search.beam_size)  # a page is read for each
        pages: list[list[Markup]] = [[] for _ in texts]
        if html:  # which may take a second to read, and another to write
            pages = await asyncio.to_thread(_pages, texts, marks=marked, count=count)
        parts = [page[0].texts if page else [text] for text, page in zip(texts, pages, strict=True)]
        flat = [part for of_text in parts for part in of_text]
        found = iter(await self._parts(flat, source, target, marked=marked, count=count))
        translations = [[next(found) for _ in of_text] for of_text in parts]
        return await asyncio.to_thread(_filled, pages, translations) if html else _filled(pages, translations)

    async def words(self, text: str, source: str, target: str, *, count: int) -> tuple[list[Word], list[str]]:
        """The best translation of a plain text, word by word, and up to count − 1 others.

        Errors as of `texts`.
        """
        *way, last = self._route(source, target)
        language = source
        for model in way:
            ((text, *_),) = await self._through(model, [text], language, marked=False, count=1)
            language = model.target
        of, count = split(text, language), min(count, last.search.beam_size)
        self._require_few(of.sentences)
        found = await last.plain.ask([Asked(sentence, count) for sentence in of.sentences])
        bests = [hypotheses[0] for hypotheses in found]
        pairs = zip(of.sentences, bests, strict=True)
        scores = await last.scored.ask([(sentence, best.tokens) for sentence, best in pairs])
        words = [Word(of.between[0], None)]
        for best, log_probs, space in zip(bests, scores, of.between[1:], strict=True):
            pieces = [last.translator.tokenizer.vocabularies[1][i] for i in best.tokens]
            words += [*_by_words(best.text, pieces, log_probs), Word(space, None)]
        most = max(map(len, found), default=1)
        others = [of.joined([each[min(k, len(each) - 1)].text for each in found]) for k in range(most)]
        return [word for word in words if word.text], [other for other in dict.fromkeys(others) if other != others[0]]

    async def inspection(self, text: str, source: str, target: str) -> Inspection:
        """The attention over the first sentence of a plain text, of the model that reads it."""
        model = self._route(source, target)[0]
        first = split(text, source).sentences[:1]
        if not first:
            raise InputError("there is nothing in the text to look at")
        (found,) = await model.inspected.ask(first)
        return found

    async def document(self, name: str, content: bytes, source: str, target: str) -> bytes:
        """A file's translation. Arguments and errors as of `documents.read` and `texts`."""
        marked = self._keep_marks(source, target)
        document = await asyncio.to_thread(read, name, content, marks=marked, unpacked=self._limits.unpacked)
        self.require_few_characters(document.texts)
        found = await self._parts(document.texts, source, target, marked=marked, count=1)
        return await asyncio.to_thread(document.filled, [best for best, *_ in found])

    def require_few_characters(self, texts: Sequence[str]) -> None:
        """Refuse texts that are too long together, by an InputError."""
        characters, most = sum(map(len, texts)), self._limits.characters
        if characters > most:
            raise InputError(f"a text of {characters:,} characters; at most {most:,} are translated at once")

    def _require_few(self, sentences: Sequence[object]) -> None:
        if len(sentences) > self._limits.sentences:
            raise InputError(f"a text of {len(sentences):,} sentences; at most {self._limits.sentences:,} at once")

    def _route(self, source: str, target: str) -> list[Model]:
        route = self.models.route(source, target)
        if not route:
            names = " into ".join(f"'{one_line(code, 40) if code else code}'" for code in (source, target))
            raise InputError(f"nothing here translates from {names}")
        return [self.models.by_pair[pair] for pair in route]

    def _keep_marks(self, source: str, target: str) -> bool:
        return all(model.translator.supports_alignment for model in self._route(source, target))

    async def _parts(
        self, texts: Sequence[str], source: str, target: str, *, marked: bool, count: int
    ) -> list[list[str]]:
        """The translations of texts, best first, through each model of the way; alternatives are the last one's."""
        route = self._route(source, target)
        languages = [source, *(model.target for model in route)]
        for model, language in zip(route[:-1], languages, strict=False):
            found = await self._through(model, texts, language, marked=marked, count=1)
            texts = [best for best, *_ in found]
        return await self._through(route[-1], texts, languages[len(route) - 1], marked=marked, count=count)

    async def _through(
        self, model: Model, texts: Sequence[str], language: str, *, marked: bool, count: int
    ) -> list[list[str]]:
        split_texts = [split(text, language, marked=marked) for text in texts]
        asked = [Asked(sentence, count) for text in split_texts for sentence in text.sentences]
        self._require_few(asked)
        found = iter(await (model.tagged if marked else model.plain).ask(asked))
        apart = "" if model.target.partition("-")[0] in _WITHOUT_SPACES else " "
        results = []
        for text in split_texts:
            of_sentences = [[one.text for one in next(found)] for _ in text.sentences]
            most = max(map(len, of_sentences), default=1)
            chosen = ([each[min(k, len(each) - 1)] for each in of_sentences] for k in range(most))
            results.append([text.joined(one, apart) for one in chosen])
        return results


def _pages(texts: Sequence[str], *, marks: bool, count: int) -> list[list[Markup]]:
    """Each text as a page, once for each of its translations."""
    return [[Markup(text, marks=marks) for _ in range(count)] for text in texts]


def _filled(pages: Sequence[Sequence[Markup]], translations: Sequence[Sequence[Sequence[str]]]) -> list[Translated]:
    """Texts again of translations of their parts, each of which has several, best first; plain ones have no pages."""
    results = []
    for page, parts in zip(pages, translations, strict=True):
        most = max(map(len, parts), default=1)
        chosen = ([each[min(k, len(each) - 1)] for each in parts] for k in range(most))
        best, *others = (page[k].filled(one) if page else one[0] for k, one in enumerate(chosen))
        results.append(Translated(best, [other for other in dict.fromkeys(others) if other != best]))
    return results


def _by_words(text: str, pieces: Sequence[str], log_probs: Sequence[float]) -> list[Word]:
    """A sentence's words by their pieces; without confidence where they are not those of its text."""
    of_words: dict[int, list[float]] = {}
    for word, log_prob in zip(words_of(pieces), log_probs, strict=False):
        if word is not None:
            of_words.setdefault(word, []).append(log_prob)
    parts = _SPACES.split(text)  # words, and spaces between them at odd places
    if sum(bool(part) for part in parts[::2]) != len(of_words):
        return [Word(text, None)]
    means = (math.exp(min(0.0, sum(each) / len(each))) for each in of_words.values())
    return [Word(part, None if i % 2 or not part else round(next(means), 4)) for i, part in enumerate(parts)]
