"""`relattn evaluate`"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from relattn.translation.commands.options import DeviceOptions, ReferenceText, SearchOptions, require_new_output
from relattn.translation.config import Perturbation
from relattn.translation.console import shows_progress
from relattn.translation.errors import require

if TYPE_CHECKING:
    from relattn.translation.translate.options import TranslateOptions
    from relattn.translation.translate.pipeline import Translator

Pairs = list[tuple[str, str]]


def evaluate(
    bundles: list[str],
    *,
    text: ReferenceText,
    src_lang: str = "",
    tgt_lang: str = "",
    out: str = "",
    perturb: list[Perturbation | Literal["all"]] = [],  # noqa: B006
    search: SearchOptions,
    device: DeviceOptions,
) -> None:
    """Translate text and score the translations against references: BLEU and chrF with sacreBLEU's signatures.

    Lines of the built-in corpus are lists of items: for these, also print the percentage of items and of lines that are
    correct.

    Args:
        bundles: Directory of a bundle or export, or name of a model: everyday-en-de, or org/name on the hub. Several
            are scored by themselves, and each is compared with the first by a paired bootstrap with 1,000 samples.
        src_lang: Source language, for a model of several languages. By default, the one of the bundle, or the only
            other one if tgt_lang is that language.
        tgt_lang: Target language. The default is chosen as for src_lang.
        out: File to write the translations to, one per line.
        perturb: Also score the text with capital letters, typing errors and more: join_lines, drop_punctuation, typos,
            title_case, upper_case, copy, or all of these. References are changed too, except by typos.
    """
    require(not (out and perturb), "--out does not work with --perturb")
    require(len(bundles) == 1 or not (out or perturb), "several bundles do not work with --out and --perturb")
    require_new_output(out, [text.src, text.ref], bundles)

    from relattn.translation.evaluation import item_accuracy, score
    from relattn.translation.files import output

    if len(bundles) > 1:
        print(_comparison(bundles, text, search, partial(device.load, src_lang=src_lang, tgt_lang=tgt_lang)))
        return
    translator = device.load(bundles[0], src_lang=src_lang, tgt_lang=tgt_lang)
    options = search.options(translator)
    pairs = text.pairs(translator)
    if perturb:
        names = [name for name in get_args(Perturbation) if name in perturb or "all" in perturb]
        print(_perturbed_scores(translator, options, pairs, names, text.builtin))
        return
    references = [reference for _, reference in pairs]
    with output(Path(out)) if out else nullcontext() as write:  # an unwritable file is refused before translating
        translations = translator.translate([src for src, _ in pairs], options, progress=shows_progress())
        print(score(translations, references))
        if write:
            write("".join(f"{line}\n" for line in translations).encode())
    if text.builtin:
        accuracy = item_accuracy(translations, references)
        print(f"items {100 * accuracy.items:.1f} %  lines {100 * accuracy.lines:.1f} %")


def _comparison(
    bundles: list[str], text: ReferenceText, search: SearchOptions, load: "Callable[[str], Translator]"
) -> str:
    """Return a table with the scores of each bundle and the p-value of its difference to the first, and signatures."""
    from relattn.translation.analysis.positions import aligned
    from relattn.translation.evaluation import paired_bootstrap, score

    rows: list[tuple[str, ...]] = [("bundle", "BLEU", "chrF", "p")]
    baseline: list[str] = []
    for name in bundles:
        translator = load(name)
        sources, references = zip(*text.pairs(translator), strict=True)
        translations = translator.translate(sources, search.options(translator), progress=shows_progress())
        scores = score(translations, references)
        p = f"{paired_bootstrap(baseline, translations, references):.3f}" if baseline else ""
        baseline = baseline or translations
        rows.append((name, f"{scores.bleu:.2f}", f"{scores.chrf:.2f}", p))
    return f"{aligned(rows)}\nBLEU {scores.bleu_signature}\nchrF {scores.chrf_signature}"


def _perturbed_scores(
    translator: "Translator", options: "TranslateOptions", pairs: Pairs, names: list[str], builtin: str
) -> str:
    """Return a table with the scores of the text as it is and under each perturbation, and the signatures."""
    from relattn.translation.analysis.positions import aligned
    from relattn.translation.data.augmentation import perturb_set
    from relattn.translation.data.builtin import ITEM_SEPARATOR
    from relattn.translation.evaluation import item_accuracy, score

    rows: list[tuple[str, ...]] = [
        ("perturbation", "lines changed", "BLEU", "chrF", *(["items right"] * bool(builtin)))
    ]
    sets = {"none": pairs} | {name: perturb_set(name, pairs, ITEM_SEPARATOR if builtin else " ") for name in names}
    for name, text in sets.items():
        sources, references = zip(*text, strict=True) if text else ((), ())
        translations = translator.translate(sources, options, progress=shows_progress())
        scores = score(translations, references)
        changed = sum(one != other for one, other in zip(text, pairs, strict=True))
        accuracy = [f"{100 * item_accuracy(translations, references).items:.1f} %"] if builtin else []
        rows.append((name, f"{changed:,}", f"{scores.bleu:.2f}", f"{scores.chrf:.2f}", *accuracy))
    return f"{aligned(rows)}\nBLEU {scores.bleu_signature}\nchrF {scores.chrf_signature}"
