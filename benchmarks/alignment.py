"""Measure how many words of translations are aligned with the right source word.

A lexicon of the training text has words that are each other's best translation by co-occurrence. The model translates
the first lines of `valid`, and each word of a translation whose source word the lexicon knows, and which occurs once on
each side, is linked to that word ("right"), to another one ("wrong") or to none ("unlinked").

    python -m benchmarks.alignment toolkit/src/relattn_mt/models/everyday-en-de TEXT

TEXT is a folder with train.LANGUAGE.gz, and valid.LANGUAGE with or without .gz. The first table is about pairs of the
training text, by which a layer and a head, or the average of all, can be chosen ("all heads" or one). The second is
about translations of `valid`, by the layer and the heads that the configuration of the model names.
"""

from itertools import islice
from pathlib import Path

from relattn_mt.alignment_head import MEASURED_PAIRS, AttentionHead, measure
from relattn_mt.bundle import Bundle, read_bundle
from relattn_mt.hub import resolve
from relattn_mt.text.lexicon import Agreement, lexicon
from relattn_mt.tokens.text_files import read_lines
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.translator import Translator

from benchmarks.measure import Row, command, parse, record

KEY = ("model", "source", "target", "text", "place")


def lines_of(folder: Path, name: str, language: str) -> list[str]:
    """Return the lines of a text, which may be compressed."""
    files = [file for file in (folder / f"{name}.{language}", folder / f"{name}.{language}.gz") if file.exists()]
    if not files:
        raise SystemExit(f"{folder} must have {name}.{language} or {name}.{language}.gz")
    return list(read_lines(files[0]))


def row(key: tuple[str, ...], agreement: Agreement) -> Row:
    words = sum(agreement)
    shares = {name: f"{count / max(1, words):.1%}" for name, count in agreement._asdict().items()}
    return {**dict(zip(KEY, key, strict=True)), "words": words, **shares}


def rows_of(name: str, bundle: Bundle, translator: Translator, folder: Path, count: int) -> list[Row]:
    """Return the rows of one direction."""
    languages = translator.src_lang, translator.tgt_lang
    pairs = list(zip(*(lines_of(folder, "train", each) for each in languages), strict=True))
    sources = lexicon(pairs)
    chosen = pairs[:: max(1, len(pairs) // MEASURED_PAIRS)][:MEASURED_PAIRS]
    of_training = measure(translator, bundle.model, chosen, sources)
    rows = [row((name, *languages, "train", str(place)), found) for place, found in of_training.items()]
    lines = list(islice(filter(str.strip, lines_of(folder, "valid", languages[0])), count))
    options = TranslateOptions(copy=False, keep_literals=False)
    translated = list(zip(lines, translator.translate(lines, options), strict=True))
    layer, heads = bundle.model.alignment
    place = AttentionHead(layer, 0 if heads == 1 else None)
    of_valid = measure(translator, bundle.model, translated, sources)
    return [*rows, row((name, *languages, "valid", str(place)), of_valid[place])]


def main() -> None:
    parser = command("alignment", __doc__)
    parser.add_argument("model", help="bundle")
    parser.add_argument("text", type=Path, help="folder of texts")
    parser.add_argument("--lines", type=int, default=500, help="lines of valid (%(default)s)")
    given = parse(parser, "alignment-cpu.csv", threads=1)
    bundle = read_bundle(resolve(given.model))
    translator = bundle.translator()
    for languages in translator.pairs:
        direction = translator.with_languages(*languages)
        name = Path(given.model).name
        record(given, rows_of(name, bundle, direction, given.text, given.lines), KEY)


if __name__ == "__main__":
    main()
