"""`relattn-mt translate`"""

import logging
import os
import sys
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from relattn_mt.commands.options import DeviceOptions, SearchOptions, require_new_output
from relattn_mt.documents.read import FORMATS, file_suffix, uncompressed
from relattn_mt.support.console import shows_progress
from relattn_mt.support.errors import InputError, naming, require, require_installed, same_language
from relattn_mt.support.files import putting, read_bytes, require_regular, write_atomically
from relattn_mt.tokens.text_files import read_lines, stream_lines
from relattn_mt.translate import Format, LongLines

if TYPE_CHECKING:
    from relattn_mt.translate.options import TranslateOptions
    from relattn_mt.translate.output_formats import LineFormat
    from relattn_mt.translate.translator import Translator

CHUNK = 4096  # lines of a file that are translated at once
_log = logging.getLogger(__name__)


def translate(
    bundle: str,
    *,
    input: str = "",
    output: str = "",
    src_lang: str = "",
    tgt_lang: str = "",
    n_best: int | None = None,
    format: Format = "text",
    align: bool = False,
    keep_tags: bool = False,
    no_keep_literals: bool = False,
    no_copy: bool = False,
    prefix: str = "",
    glossary: str = "",
    document: bool = False,
    split: bool = False,
    long_lines: LongLines = "error",
    report: str = "",
    no_fuzzy: bool = False,
    verbose: bool = False,
    search: SearchOptions,
    device: DeviceOptions,
) -> None:
    """Translate standard input to standard output, a sentence per line: relattn-mt translate BUNDLE < in.txt > out.txt

    With --input, translate a file: text, or a document such as .docx or .html. The output is complete or absent.

    Args:
        bundle: Directory of a bundle, or name of a model: everyday-en-de, firefox:en-de, or org/name on the hub.
        input: File to translate: a document as the server translates it, or text, one sentence per line, named .txt or
            as the source language: text.en. Text may be compressed.
        output: File to write, in the format of the input. By default, letter.docx is translated to letter.de.docx.
        src_lang: Source language, for a model of several languages. By default, the one of the bundle, or the only
            other one if tgt_lang is that language.
        tgt_lang: Target language. The default is chosen as for src_lang.
        n_best: Number of translations to print per line, best first, as "line number ||| translation ||| score". At
            most the beam size. By default, only the best translation is printed.
        format: Output format. tsv and jsonl have the line number, score, confidence, translation and warnings, and with
            align also the alignment.
        align: Also print word alignments in Pharaoh format, pairs of source and target word counted from 0. They are
            those of the layer and heads in the bundle's bundle.json. If `alignment_layer` is "assumed" there, nothing
            is known about the model, and all heads of the last layer are used.
        keep_tags: Copy tags of markup, numbers with a unit, and literals unchanged into the translation.
        no_keep_literals: Leave literals to the model: emoji and other symbols, placeholders, web and e-mail addresses,
            @names, hashtags, numbers of 8 digits or more, and identifiers such as AB-12345. By default, they are copied
            into the translation unless the model has done so. With align or a prefix they never are.
        no_copy: Also translate lines such as "-" or "1.", without a letter of any script and without a number such as
            1,204.5. By default they are copied.
        prefix: File with the text that each translation must begin with, one line per input line.
        glossary: File of terms and their required translations, one tab-separated pair per line.
        document: Translate a .txt file as a document, with any number of sentences per line.
        split: Divide each line of standard input into sentences, as the server does. By default a line is one sentence.
        long_lines: What to do with lines that are longer than the model can read. error reports all of them before
            anything is translated, or those of a pipe before the lines around them are. copy leaves them untranslated,
            with the warning "long". split translates them part by part.
        report: File to write for a document, with a row per sentence, separated by tabs: the source, score, confidence,
            translation and warnings. The number of those with warnings is printed to standard error, unless --quiet.
        no_fuzzy: Do not mark the translations of a .po file as fuzzy. By default they are, and programs do not use them
            before somebody has removed the mark.
        verbose: Print to standard error which implementation of the search runs, and why a faster one does not.
    """
    from relattn_mt.translate.glossary import Glossary
    from relattn_mt.translate.options import TranslateOptions
    from relattn_mt.translate.output_formats import LineFormat

    require(not output or input, "--output requires --input")
    require(not (input and Path(input).is_dir()), f"--input must be a file, got a directory: {input}")
    require(not (input and prefix), "--prefix does not work with --input")
    is_document = _is_document(input, document)
    require(not no_fuzzy or file_suffix(input) in (".po", ".pot"), "--no_fuzzy requires --input with a .po file")
    require(not report or is_document, "--report requires --input with a document; text has --format tsv")
    require(not (split and input), "--split does not work with --input: a document is always divided into sentences")
    if is_document or split:
        require_installed("documents")
        for_lines = {
            "--n_best": n_best is not None,
            "--format": format != "text",
            "--align": align,
            "--keep_tags": keep_tags,
            "--prefix": prefix,
        }
        given = ", ".join(option for option, value in for_lines.items() if value)
        require(not given, f"{'a document' if input else '--split'} does not work with {given}")
    if long_lines == "split":
        require_installed("documents", "sentencex")
    _check_output(input, output, [input, glossary, report], bundle, is_document)
    require_new_output(report, [input, glossary], bundle, "--report")
    for path in (output, report):
        require(not is_document or Path(path).parent.is_dir(), f"{path}: its directory must exist")
    if sys.stdin is None and not input:
        raise InputError("standard input is closed")
    terms = Glossary.read(glossary) if glossary else None
    translator = device.load(bundle, src_lang=src_lang, tgt_lang=tgt_lang)
    if verbose:
        print(f"search: {translator.engine.name}", file=sys.stderr)
    if input and not output:
        output = _default_output(Path(input), translator.tgt_lang or "translated")
        _check_output(input, output, [input, glossary, report], bundle, is_document)
    options = TranslateOptions(
        n_best=1 if n_best is None else n_best,
        search=search.override(translator),
        glossary=terms,
        keep_tags=keep_tags,
        keep_literals=not no_keep_literals,
        copy=not no_copy,
        align=align,
        long_lines=long_lines,
    )
    line_format = LineFormat(format, n_best is not None, align)
    if is_document:
        _translate_document(translator, input, output, options, report, not no_fuzzy)
    elif split:
        _translate_split_lines(translator, options)
    elif input:
        _translate_text(translator, input, output, options, line_format)
    else:
        _translate_lines(translator, prefix, options, line_format)


def _translate_lines(
    translator: "Translator", prefix: str, options: "TranslateOptions", line_format: "LineFormat"
) -> None:
    """Translate standard input, a sentence per line."""
    stdin = sys.stdin.fileno()
    if sys.stdin.seekable():  # a file, which is read again
        begin = os.lseek(stdin, 0, os.SEEK_CUR)
        translator.require_short(chain.from_iterable(stream_lines(stdin)), options, "standard input")
        os.lseek(stdin, begin, os.SEEK_SET)
    prefixes = read_lines(prefix) if prefix else None
    results = translator.stream(stream_lines(stdin), options, prefixes=prefixes, progress=shows_progress())
    for line in line_format.output(results):
        print(line, flush=True)


def _translate_text(
    translator: "Translator", input: str, output: str, options: "TranslateOptions", line_format: "LineFormat"
) -> None:
    """Translate a file of text, a sentence per line.

    Its suffix is .txt, .src, a number, or its language, as that of a side of a parallel text. It may have none.
    """
    kind = file_suffix(uncompressed(input))
    suffix = kind[1:]
    is_text = suffix in ("", "txt", "src") or suffix.isdecimal() or same_language(suffix, translator.src_lang)
    kinds = ", ".join(FORMATS)
    require(is_text, f"{input}: {kind} is not supported, but {kinds}: convert it, or name a file of lines .txt")
    require_regular(input)
    translator.require_short(read_lines(input), options, input)
    lines = read_lines(input)
    chunks = iter(lambda: list(islice(lines, CHUNK)), [])
    with putting(Path(output)) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
        results = translator.stream(chunks, options, progress=shows_progress())
        file.writelines(f"{line}\n" for line in line_format.output(results))
    print(output)


def _is_document(input: str, document: bool) -> bool:
    """Return whether a file is translated as a document, and refuse a compressed one."""
    kind = file_suffix(input)
    unpacked = file_suffix(uncompressed(input))
    is_packed = unpacked != kind and unpacked in FORMATS and unpacked != ".txt"
    require(not is_packed, f"{input}: a document must not be compressed; unpack it first")
    require(not document or kind in FORMATS, f"--document requires --input in {', '.join(FORMATS)}")
    return document or (kind in FORMATS and kind != ".txt")


def _default_output(input: Path, language: str) -> str:
    """Return the name of the output: letter.de.docx for letter.docx, and lines.de.txt for lines.txt.gz."""
    unpacked = input.with_name(uncompressed(input.name) or input.name)
    return str(unpacked.with_suffix(f".{language}{unpacked.suffix}"))


def _check_output(input: str, output: str, inputs: list[str], bundle: str, is_document: bool) -> None:
    """Refuse to write over a file or into the bundle, and an output of another kind than the input."""
    require_new_output(output, inputs, bundle, "--output")
    if not output:
        return
    kind = file_suffix(input)
    if is_document:
        require(file_suffix(output) == kind, f"{output}: the output must be {kind}, as the input")
    else:
        is_text = uncompressed(output) == output and file_suffix(output) not in {*FORMATS} - {".txt"}
        require(is_text, f"{output}: the output must be text, as the input, and neither a document nor compressed")


def _translate_document(
    translator: "Translator", input: str, output: str, options: "TranslateOptions", report: str, is_fuzzy: bool
) -> None:
    """Translate a document, write the report, and log how many sentences have warnings."""
    from relattn_mt.translate import output_formats
    from relattn_mt.translate.documents import translate_document

    require_regular(input)
    content = read_bytes(input)
    with naming(input):
        shown = shows_progress()
        translated = translate_document(translator, input, content, options, progress=shown, is_fuzzy=is_fuzzy)
    if report:
        rows = [output_formats.report_row(*segment) for segment in translated.segments]
        write_atomically(Path(report), output_formats.report(rows))
    write_atomically(Path(output), translated.content)
    count = sum(bool(segment.translation.warnings) for segment in translated.segments)
    place = f"see {report}" if report else "--report FILE.tsv lists them"
    needed = f"{count:,} of {len(translated.segments):,} sentences have warnings"
    _log.info("%s: %s", output, f"{needed}; {place}" if count else needed)


def _translate_split_lines(translator: "Translator", options: "TranslateOptions") -> None:
    """Print the translation of each line of standard input, sentence by sentence."""
    from relattn_mt.text.marked import Marked
    from relattn_mt.translate.documents import translate_texts

    count = 0
    for lines in stream_lines(sys.stdin.fileno()):
        translated = translate_texts(translator, [*map(Marked, lines)], options, first=count + 1)
        count += len(translated.segments)
        for text in translated.texts:
            print(text.text, flush=True)
