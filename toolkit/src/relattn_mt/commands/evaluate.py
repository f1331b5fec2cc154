"""`relattn-mt evaluate`"""

from contextlib import nullcontext
from pathlib import Path

from relattn_mt.commands.options import DeviceOptions, ReferenceText, SearchOptions, require_new_output
from relattn_mt.support.console import shows_progress


def evaluate(
    bundle: str,
    *,
    text: ReferenceText,
    src_lang: str = "",
    tgt_lang: str = "",
    out: str = "",
    search: SearchOptions,
    device: DeviceOptions,
) -> None:
    """Translate text and score the translations against references: BLEU and chrF with sacreBLEU's signatures.

    Args:
        bundle: Directory of a bundle, or name of a model: everyday-en-de, or org/name on the hub.
        src_lang: Source language, for a model of several languages. By default, the one of the bundle, or the only
            other one if tgt_lang is that language.
        tgt_lang: Target language. The default is chosen as for src_lang.
        out: File to write the translations to, one per line.
    """
    require_new_output(out, [text.src, text.ref], [bundle])

    from relattn_mt.evaluation import score
    from relattn_mt.support.files import output

    translator = device.load(bundle, src_lang=src_lang, tgt_lang=tgt_lang)
    options = search.options(translator)
    pairs = text.pairs()
    references = [reference for _, reference in pairs]
    with output(Path(out)) if out else nullcontext() as write:  # an unwritable file is refused before translating
        translations = translator.translate([src for src, _ in pairs], options, progress=shows_progress())
        print(score(translations, references))
        if write:
            write("".join(f"{line}\n" for line in translations).encode())
