"""`relattn-mt translate`"""

import sys
from pathlib import Path

from relattn_mt.commands.options import DeviceOptions, SamplingFlags, SearchOptions, require_new_output
from relattn_mt.config import as_dict
from relattn_mt.documents.read import FORMATS, file_suffix
from relattn_mt.support.console import shows_progress
from relattn_mt.support.errors import InputError, reading, require, require_installed
from relattn_mt.support.files import require_regular, write_atomically
from relattn_mt.translate import Format

_UNSUPPORTED = "csv tsv parquet pdf doc rtf tex yaml yml xml tmx properties strings resx"


def translate(
    bundle: str,
    *,
    input: str = "",
    output: str = "",
    column: str = "",
    shard: str = "",
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
    sampling: bool = False,
    draws: SamplingFlags,
    document: bool = False,
    split: bool = False,
    verbose: bool = False,
    search: SearchOptions,
    device: DeviceOptions,
) -> None:
    """Translate standard input to standard output, a sentence per line: relattn-mt translate BUNDLE < in.txt > out.txt

    With --input and --output, translate a file: text, a column of a table, or a document such as .docx or .html. The
    output is complete or absent. After an interruption, the same command continues text and tables.

    Args:
        bundle: Directory of a bundle, or name of a model: everyday-en-de, or org/name on the hub.
        input: File to translate: a table, .jsonl, a document as the server translates it, or else text, one
            sentence per line. Text and .jsonl may be compressed. The columns score, confidence, translation and
            warnings are added to a table.
        output: File to write, in the format of the input.
        column: Column of a table to translate. By default text.
        shard: Translate only the i-th of n shards of the input: i/n, with i from 1 on. --output out.jsonl --shard 3/8
            writes out-00003-of-00008.jsonl. All shards in order are the output of one run.
        src_lang: Source language, for a model of several languages. By default, the one of the bundle, or the only
            other one if tgt_lang is that language.
        tgt_lang: Target language. The default is chosen as for src_lang.
        n_best: Number of translations to print per line, best first, as "line number ||| translation ||| score". At
            most the beam size. By default, only the best translation is printed.
        format: Output format. tsv and jsonl have the line number, score, confidence and translation, and warnings about
            what is implausible in it: empty, repetition, numbers, tags, length.
        align: Also print word alignments in Pharaoh format, pairs of source and target word counted from 0. They are
            those of the layer and heads in the bundle's config.yaml. If `alignment_layer` is "assumed" there, nothing
            is known about the model, and all heads of the last layer are used.
        keep_tags: Copy tags of markup, numbers with a unit, and literals unchanged into the translation.
        no_keep_literals: Leave literals to the model: emoji and other symbols, placeholders, web and e-mail addresses,
            @names, hashtags, numbers of 8 digits or more, and identifiers such as AB-12345. By default, they are copied
            into the translation unless the model has done so. With align or a prefix they never are.
        no_copy: Also translate lines such as "-" or "1.", without a letter of any script and without a number such as
            1,204.5. By default they are copied.
        prefix: File with the text that each translation must begin with, one line per input line.
        glossary: File of terms and their required translations, one tab-separated pair per line.
        sampling: Draw translations at random instead of searching for the best.
        document: Translate a .txt file as a document, with any number of sentences per line.
        split: Divide each line of standard input into sentences, as the server does. By default a line is one sentence.
        verbose: Print to standard error which implementation of the search runs, and why a faster one does not.
    """
    from relattn_mt.data.text_files import read_lines, stream_lines
    from relattn_mt.translate.glossary import Glossary
    from relattn_mt.translate.options import TranslateOptions
    from relattn_mt.translate.output_formats import format_lines, header_lines

    require(bool(input) == bool(output), "--input and --output must be given together")
    for flag, value in (("column", column), ("shard", shard)):
        require(not value or bool(input), f"--{flag} requires --input and --output")
    require(not (input and prefix), "--prefix does not work with --input")
    kind = file_suffix(input)
    is_document = document or (kind in FORMATS and kind not in (".txt", ".jsonl"))
    others = "convert a table to .jsonl and name its --column, and anything else to a kind of document"
    require(kind.lstrip(".") not in _UNSUPPORTED.split(), f"{input}: {kind} is not supported; {others}")
    require(not document or kind in FORMATS, f"--document requires --input in {', '.join(FORMATS)}")
    require(not (split and input), "--split does not work with --input: a document is always divided into sentences")
    if is_document:
        require(file_suffix(output) == kind, f"{output}: the output must be {kind}, as the input")
        require(not Path(output).exists(), f"{output}: exists; choose another name")
    if is_document or split:
        require_installed("documents")
        is_plain = n_best is None and format == "text" and not (align or prefix or column or shard or keep_tags)
        others = "--n_best, --format, --align, --keep_tags, --prefix, --column and --shard"
        require(is_plain, f"{others} do not work with {'a document' if input else '--split'}")
    require_new_output(output, [input, glossary], [bundle])
    shards = None
    if input:
        from relattn_mt.bulk import parse_shard, source_of, translate_file  # needs more packages
        from relattn_mt.loading import weights_digest

        shards = parse_shard(shard) if shard else None
    if sys.stdin is None and not input:
        raise InputError("standard input is closed")
    drawn = draws.options(sampling, search)
    terms = Glossary.read(glossary) if glossary else None
    translator = device.load(bundle, src_lang=src_lang, tgt_lang=tgt_lang)
    if verbose:
        print(f"search: {translator.engine.name}", file=sys.stderr)
    options = TranslateOptions(
        n_best=1 if n_best is None else n_best,
        search=search.override(translator.search),
        sampling=drawn,
        glossary=terms,
        keep_tags=keep_tags,
        keep_literals=not no_keep_literals,
        copy=not no_copy,
        align=align,
    )
    if is_document:
        from relattn_mt.translate.documents import translate_document

        require_regular(input)
        with reading(input, "cannot be read"):
            content = Path(input).read_bytes()
        translated = translate_document(translator, input, content, options, progress=shows_progress())
        write_atomically(Path(output), translated)
        return
    if split:
        from relattn_mt.text.marked import Marked
        from relattn_mt.translate.documents import translate_texts

        for chunk in stream_lines(sys.stdin.fileno()):
            for text in translate_texts(translator, [Marked(line) for line in chunk], options):
                print(text.text, flush=True)
        return
    if input:
        source = source_of(Path(input), Path(output), options, column=column, style=format, n_best=n_best is not None)
        settings = {
            "model": weights_digest(bundle),
            "languages": [translator.src_lang, translator.tgt_lang],
            "precision": f"{device.precision or translator.engine.precision} on {device.device}",
            "output": [column, format, n_best is not None],
            "options": {
                **vars(options),
                "search": as_dict(search.override(translator.search)),
                "sampling": None if drawn is None else as_dict(drawn),
                "glossary": None if terms is None else terms.translations,
            },
        }
        print(translate_file(translator, source, Path(output), settings, shards))
        return
    results = translator.stream(
        stream_lines(sys.stdin.fileno()),
        options,
        prefixes=read_lines(prefix) if prefix else None,
        progress=shows_progress(),
    )
    for line in header_lines(format, align=align):
        print(line)
    for number, translations in enumerate(results, start=1):
        lines = format_lines(format, number, translations, n_best=n_best is not None, align=align)
        print("\n".join(lines), flush=True)
