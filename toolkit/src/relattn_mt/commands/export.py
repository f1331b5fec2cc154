"""`relattn-mt export`"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from relattn_mt.commands.options import check_sample
from relattn_mt.formats.ctranslate2.directory import Quantization
from relattn_mt.support.errors import require


def export(
    program: Literal["ctranslate2", "argos", "marian", "web"],
    bundle: str,
    *,
    out: str,
    quantization: Quantization = "float32",
    check_lines: str = "",
    check_count: int = 100,
    shortlist: list[str] = [],  # noqa: B006
    src_lang: str = "",
    tgt_lang: str = "",
) -> None:
    """Convert a bundle for another program. The result is written only if it scores text as the bundle does.

    Both programs score the bundle's translations of some lines. In float32, each token's log-probability must be the
    same to 1e-4. In other types, log-probabilities must differ by at most 0.2 per token on average. Translations may
    differ.

    Args:
        program: Format to write: ctranslate2, argos (a package for Argos Translate and LibreTranslate),
            marian (Firefox, translateLocally) or web (an ES module for Node.js and browsers, in WebAssembly; it
            computes in the precision of the bundle, and its scores are those of the level default, so nothing is
            checked).
        bundle: Directory of a bundle, or its name on the hub.
        out: Output directory; for argos, output file.
        quantization: Type of the weights. marian supports float32 and int8.
        check_lines: File of source lines for the check. By default, random text from the vocabulary.
        check_count: Number of lines for the check.
        shortlist: For marian, two files of sentences and their translations, such as the training text, to make a
            lexical shortlist from, which makes translating faster.
        src_lang: Source language, for a model of several languages. By default, the one of the bundle, or the only
            other one if tgt_lang is that language.
        tgt_lang: Target language. The default is chosen as for src_lang.
    """
    require(out, "out must name a directory")
    known = program != "marian" or quantization in ("float32", "int8")
    require(known, f"marian supports float32 and int8, got {quantization}")
    require(program != "web" or quantization == "float32", "web keeps the weights of the bundle: `relattn-mt quantize`")
    require(program == "marian" or not shortlist, f"--shortlist requires marian, got {program}")
    require(len(shortlist) in (0, 2), f"--shortlist must have two files, got {len(shortlist)}")
    sample = check_sample(check_lines, check_count)

    from relattn_mt.bundle import read_bundle
    from relattn_mt.formats import argos
    from relattn_mt.formats.ctranslate2 import write as ctranslate2
    from relattn_mt.hub import resolve

    source = read_bundle(resolve(bundle))
    if src_lang or tgt_lang:
        chosen = source.translator().with_languages(src_lang, tgt_lang)
        source = replace(source, src_lang=chosen.src_lang, tgt_lang=chosen.tgt_lang, tokenizer=chosen.tokenizer)
    if program == "web":
        from relattn_mt.web.export import export as export_web

        print(export_web(source, Path(out)))
    elif program == "marian":
        from relattn_mt.formats import marian_export

        text = (Path(shortlist[0]), Path(shortlist[1])) if shortlist else None
        print(marian_export.export(source, Path(out), int8=quantization == "int8", sample=sample, text=text))
    else:
        write = ctranslate2.export if program == "ctranslate2" else argos.export
        print(write(source, Path(out), quantization=quantization, sample=sample))
