"""Translation of texts of several sentences, and of documents."""

from __future__ import annotations

from collections.abc import Sequence

from relattn_mt.documents.read import read_document, with_translations
from relattn_mt.support.console import progress_bar
from relattn_mt.text.marked import Marked
from relattn_mt.text.sentences import separator_in, split
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.prepare import Sentence
from relattn_mt.translate.translator import Translator

UNPACKED = 1 << 30  # bytes that a document may unpack to


def translate_document(
    translator: Translator, name: str, content: bytes, options: TranslateOptions, *, progress: bool = False
) -> bytes:
    """Return the translation of a document, the same bytes as the server returns. `options.n_best` must be 1.

    Raises:
        InputError: As `documents.read.read_document`, or a sentence is longer than the model can read.
    """
    document = read_document(name, content, UNPACKED)
    translations = translate_texts(translator, document.texts, options, progress=progress)
    return with_translations(document, name, content, translations, translator.tgt_lang)


def translate_texts(
    translator: Translator, texts: Sequence[Marked], options: TranslateOptions, *, progress: bool = False
) -> list[Marked]:
    """Return the translation of each text, sentence by sentence. Arguments are those of `translate_document`."""
    splitting = translator.src_lang, separator_in(translator.tgt_lang), translator.characters, options.keep_literals
    split_texts = [split(text, *splitting) for text in texts]
    sentences = [Sentence(sentence, options) for text in split_texts for sentence in text.sentences]
    with progress_bar(len(sentences), "sentence", shown=progress) as advance:
        remaining = iter(translator.translate_sentences(sentences, options, report_done=advance))
    return [text.join([next(remaining)[0].marked for _ in text.sentences]) for text in split_texts]
