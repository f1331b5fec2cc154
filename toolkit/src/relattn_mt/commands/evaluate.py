"""`relattn-mt evaluate`"""

from contextlib import nullcontext
from pathlib import Path

from relattn_mt.commands.options import DeviceOptions, SearchOptions, require_new_output
from relattn_mt.support.console import shows_progress
from relattn_mt.support.errors import require_installed
from relattn_mt.translate import LongLines


def evaluate(
    bundle: str,
    *,
    src: str,
    ref: str,
    src_lang: str = "",
    tgt_lang: str = "",
    out: str = "",
    long_lines: LongLines = "error",
    search: SearchOptions,
    device: DeviceOptions,
) -> None:
    """Translate text and score the translations against references: BLEU and chrF with sacreBLEU's signatures.

    Args:
        bundle: Directory of a bundle, or name of a model: everyday-en-de, firefox:en-de, or org/name on the hub.
        src: File of source lines, plain or compressed.
        ref: File of reference translations, one per source line.
        src_lang: Source language, for a model of several languages. By default, the one of the bundle, or the only
            other one if tgt_lang is that language.
        tgt_lang: Target language. The default is chosen as for src_lang.
        out: File to write the translations to, one per line.
        long_lines: What to do with lines that are longer than the model can read, as in relattn-mt translate.
    """
    require_new_output(out, [src, ref], bundle, "--out")

    from relattn_mt.evaluation import score
    from relattn_mt.support.files import output
    from relattn_mt.tokens.text_files import ParallelFiles
    from relattn_mt.translate.options import TranslateOptions

    if long_lines == "split":
        require_installed("documents", "sentencex")
    translator = device.load(bundle, src_lang=src_lang, tgt_lang=tgt_lang)
    options = TranslateOptions(search=search.override(translator), long_lines=long_lines)
    sources, references = zip(*ParallelFiles(src, ref), strict=True)
    translator.require_short(sources, options, src)
    with output(Path(out)) if out else nullcontext() as write:  # an unwritable file is refused before translating
        translations = translator.translate(sources, options, progress=shows_progress())
        print(score(translations, references))
        if write:
            write("".join(f"{line}\n" for line in translations).encode())
