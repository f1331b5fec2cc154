"""`relattn-mt evaluate`"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from relattn_mt.commands.options import DeviceOptions, ReferenceText, SearchOptions, require_new_output
from relattn_mt.support.console import aligned, shows_progress
from relattn_mt.support.errors import require

if TYPE_CHECKING:
    from relattn_mt.translate.translator import Translator


def evaluate(
    bundles: list[str],
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
        bundles: Directory of a bundle, or name of a model: everyday-en-de, or org/name on the hub. Several
            are scored by themselves, and each is compared with the first by a paired bootstrap with 1,000 samples.
        src_lang: Source language, for a model of several languages. By default, the one of the bundle, or the only
            other one if tgt_lang is that language.
        tgt_lang: Target language. The default is chosen as for src_lang.
        out: File to write the translations to, one per line.
    """
    require(len(bundles) == 1 or not out, "several bundles do not work with --out")
    require_new_output(out, [text.src, text.ref], bundles)

    from relattn_mt.evaluation import score
    from relattn_mt.support.files import output

    if len(bundles) > 1:
        print(_comparison(bundles, text, search, partial(device.load, src_lang=src_lang, tgt_lang=tgt_lang)))
        return
    translator = device.load(bundles[0], src_lang=src_lang, tgt_lang=tgt_lang)
    options = search.options(translator)
    pairs = text.pairs()
    references = [reference for _, reference in pairs]
    with output(Path(out)) if out else nullcontext() as write:  # an unwritable file is refused before translating
        translations = translator.translate([src for src, _ in pairs], options, progress=shows_progress())
        print(score(translations, references))
        if write:
            write("".join(f"{line}\n" for line in translations).encode())


def _comparison(
    bundles: list[str], text: ReferenceText, search: SearchOptions, load: "Callable[[str], Translator]"
) -> str:
    """Return a table with the scores of each bundle and the p-value of its difference to the first, and signatures."""
    from relattn_mt.evaluation import paired_bootstrap, score

    rows: list[tuple[str, ...]] = [("bundle", "BLEU", "chrF", "p")]
    baseline: list[str] = []
    for name in bundles:
        translator = load(name)
        sources, references = zip(*text.pairs(), strict=True)
        translations = translator.translate(sources, search.options(translator), progress=shows_progress())
        scores = score(translations, references)
        p = f"{paired_bootstrap(baseline, translations, references):.3f}" if baseline else ""
        baseline = baseline or translations
        rows.append((name, f"{scores.bleu:.2f}", f"{scores.chrf:.2f}", p))
    return f"{aligned(rows)}\nBLEU {scores.bleu_signature}\nchrF {scores.chrf_signature}"
