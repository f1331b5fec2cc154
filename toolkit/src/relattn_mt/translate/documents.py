"""Translation of texts of several sentences, and of documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from relattn_mt.documents.read import kept_texts, read_document, with_translations
from relattn_mt.support.console import progress_bar
from relattn_mt.text.marked import Marked
from relattn_mt.text.sentences import separator_in, split
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.prepare import Sentence
from relattn_mt.translate.translation import Translation, check_language, kept_translation
from relattn_mt.translate.translator import Translator

UNPACKED = 1 << 30  # bytes that a document may unpack to


class Segment(NamedTuple):
    """A sentence and its translation."""

    source: str
    translation: Translation


class TranslatedTexts(NamedTuple):
    """Texts with their marks, and the sentences that they were divided into."""

    texts: list[Marked]
    segments: list[Segment]


class TranslatedDocument(NamedTuple):
    """The content of a file, and the sentences of its texts."""

    content: bytes
    segments: list[Segment]


def translate_document(
    translator: Translator,
    name: str,
    content: bytes,
    options: TranslateOptions,
    *,
    progress: bool = False,
    is_fuzzy: bool = True,
) -> TranslatedDocument:
    """Return the translation of a document, with the same bytes as the server's. `options.n_best` must be 1.

    Translations of a PO file are marked as fuzzy, unless `is_fuzzy` is False.

    Raises:
        InputError: As `documents.read.read_document`, or a sentence is longer than the model can read.
    """
    document = read_document(name, content, UNPACKED, is_fuzzy=is_fuzzy)
    translations = translate_texts(translator, document.texts, options, progress=progress)
    filled = with_translations(document, name, content, translations.texts, translator.tgt_lang)
    kept = [Segment(text, kept_translation(text)) for text in kept_texts(document)]
    return TranslatedDocument(filled, [*translations.segments, *kept])


def translate_texts(
    translator: Translator,
    texts: Sequence[Marked],
    options: TranslateOptions,
    *,
    progress: bool = False,
    first: int = 1,
) -> TranslatedTexts:
    """Return the translation of each text, sentence by sentence.

    Arguments are those of `translate_document`, and the number of the first sentence in messages.
    """
    splitting = translator.src_lang, separator_in(translator.tgt_lang), translator.characters, options.keep_literals
    split_texts = [split(text, *splitting) for text in texts]
    options = replace(options, unit="sentence")
    sentences = [Sentence(sentence, options) for text in split_texts for sentence in text.sentences]
    with progress_bar(len(sentences), "sentence", shown=progress) as advance:
        ranked = translator.translate_sentences(sentences, options, first, advance)
    languages = translator.src_lang, translator.tgt_lang
    sources = [sentence.text.text for sentence in sentences]
    translations = [check_language(*pair, languages)[0] for pair in zip(sources, ranked, strict=True)]
    remaining = iter(translations)
    texts = [text.join([next(remaining).marked for _ in text.sentences]) for text in split_texts]
    return TranslatedTexts(texts, list(map(Segment, sources, translations)))
