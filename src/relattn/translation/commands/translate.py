"""`relattn translate`"""

import sys

from relattn.translation.commands.options import DeviceOptions, SamplingFlags, SearchOptions
from relattn.translation.errors import InputError
from relattn.translation.translate import Format


def translate(
    bundles: list[str],
    *,
    src_lang: str = "",
    tgt_lang: str = "",
    n_best: int | None = None,
    format: Format = "text",
    align: bool = False,
    keep_tags: bool = False,
    keep_literals: bool = False,
    no_copy: bool = False,
    prefix: str = "",
    glossary: str = "",
    sampling: bool = False,
    draws: SamplingFlags,
    verbose: bool = False,
    search: SearchOptions,
    device: DeviceOptions,
) -> None:
    """Translate standard input to standard output, one sentence per line: relattn translate BUNDLE < in.txt > out.txt

    Args:
        bundles: Directory of a bundle or export, or name of a bundle on the hub. Several bundles form an ensemble.
        src_lang: Source language, for a model of several languages. By default, the one of the bundle.
        tgt_lang: Target language. By default, the one of the bundle.
        n_best: Number of translations to print per line, best first, as "line number ||| translation ||| score". At
            most the beam size. By default, only the best translation is printed.
        format: Output format. tsv and jsonl have the line number, score, confidence and translation, and warnings about
            what is implausible in it: empty, repetition, numbers, tags, length.
        align: Also print word alignments in Pharaoh format, pairs of source and target word counted from 0.
        keep_tags: Copy tags of markup, numbers with a unit, and all that keep_literals copies unchanged into the
            translation.
        keep_literals: Copy placeholders, web and e-mail addresses, @names, hashtags, emoji and other symbols, numbers
            of 8 digits or more, and identifiers such as AB-12345 unchanged into the translation.
        no_copy: Also translate lines such as "-" or "1.", without a letter of any script and without a number such as
            1,204.5. By default they are copied.
        prefix: File with the text that each translation must begin with, one line per input line.
        glossary: File of terms and their required translations, one tab-separated pair per line.
        sampling: Draw translations at random instead of searching for the best.
        verbose: Print to standard error which implementation of the search runs, and why a faster one does not.
    """
    from relattn.translation.data.text_files import read_lines, stream_lines
    from relattn.translation.translate.glossary import Glossary
    from relattn.translation.translate.options import TranslateOptions
    from relattn.translation.translate.output_formats import format_lines, header_lines

    if sys.stdin is None:
        raise InputError("standard input is closed")
    drawn = draws.options(sampling, search)
    terms = Glossary.read(glossary) if glossary else None
    translator = device.load(*bundles, src_lang=src_lang, tgt_lang=tgt_lang)
    if verbose:
        print(f"search: {translator.engine}", file=sys.stderr)
    options = TranslateOptions(
        n_best=1 if n_best is None else n_best,
        search=search.override(translator.search),
        sampling=drawn,
        glossary=terms,
        keep_tags=keep_tags,
        keep_literals=keep_literals,
        copy=not no_copy,
        align=align,
    )
    results = translator.stream(
        stream_lines(sys.stdin.fileno()),
        options,
        prefixes=read_lines(prefix) if prefix else None,
        progress=sys.stderr.isatty(),
    )
    for line in header_lines(format, align=align):
        print(line)
    for number, translations in enumerate(results, start=1):
        lines = format_lines(format, number, translations, n_best=n_best is not None, align=align)
        print("\n".join(lines), flush=True)
