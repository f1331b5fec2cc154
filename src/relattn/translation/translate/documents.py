"""Translation of texts of several sentences, and of documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relattn.translation.documents.read import document_texts, fill_document
from relattn.translation.text.marked import Marked
from relattn.translation.text.sentences import separator_in, split_all
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import PAIRS, Sentence, Translator

UNPACKED = 1 << 30  # bytes that a document may unpack to


def translate_document(
    translator: Translator,
    name: str,
    content: bytes,
    options: TranslateOptions,
    report: Callable[[float], object] = lambda share: None,
) -> bytes:
    """Return the translation of a document, the same bytes as the server returns.

    Args:
        translator: Translator of its language.
        name: Name of the file, whose suffix is one of `documents.read.FORMATS`.
        content: The file.
        options: Options of all sentences, with an `n_best` of 1.
        report: Function that is called with the share of the sentences that is done.

    Raises:
        InputError: As `documents.read.read_document`, or a sentence is longer than the model can read.
    """
    texts = document_texts(name, content, UNPACKED, UNPACKED)
    return fill_document(name, content, UNPACKED, translate_texts(translator, texts, options, report))


def translate_texts(
    translator: Translator,
    texts: Sequence[Marked],
    options: TranslateOptions,
    report: Callable[[float], object] = lambda share: None,
) -> list[Marked]:
    """Return the translation of each text, sentence by sentence. Arguments are those of `translate_document`."""
    separator = separator_in(translator.tgt_lang)
    split_texts = split_all(texts, translator.src_lang, separator, translator.characters)
    sentences = [Sentence(sentence, options) for text in split_texts for sentence in text.sentences]
    translated: list[Marked] = []
    for begin in range(0, len(sentences), PAIRS):
        ranked = translator.translate_sentences(sentences[begin : begin + PAIRS], begin + 1)
        translated += [best.marked for best, *_ in ranked]
        report(len(translated) / len(sentences))
    remaining = iter(translated)
    return [text.join([next(remaining) for _ in text.sentences]) for text in split_texts]
