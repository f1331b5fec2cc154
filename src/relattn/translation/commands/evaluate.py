"""`relattn evaluate`"""

import sys
from contextlib import nullcontext
from pathlib import Path

from relattn.translation.commands.options import DeviceOptions, SearchOptions, TestText, require_new_output


def evaluate(
    bundles: list[str], *, text: TestText, out: str = "", search: SearchOptions, device: DeviceOptions
) -> None:
    """Translate text and score the translations against references: BLEU and chrF with sacreBLEU's signatures.

    Lines of the built-in corpus are lists of items: for these, also print the percentage of items and of lines that are
    correct.

    Args:
        bundles: Directory of a bundle or export, or name of a bundle on the hub. Several bundles form an ensemble.
        out: File to write the translations to, one per line.
    """
    require_new_output(out, [text.src, text.ref], bundles)

    from relattn.translation.evaluation import item_accuracy, score
    from relattn.translation.files import output

    translator = device.load(*bundles)
    options = search.options(translator)
    pairs = text.pairs(translator)
    references = [reference for _, reference in pairs]
    with output(Path(out)) if out else nullcontext() as write:  # an unwritable file is refused before translating
        translations = translator.translate([src for src, _ in pairs], options, progress=sys.stderr.isatty())
        print(score(translations, references))
        if write:
            write("".join(f"{line}\n" for line in translations).encode())
    if text.builtin:
        accuracy = item_accuracy(translations, references)
        print(f"items {100 * accuracy.items:.1f} %  lines {100 * accuracy.lines:.1f} %")
