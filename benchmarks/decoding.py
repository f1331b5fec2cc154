"""Speed and memory of translation, ours and others', on the same lines: target tokens per second, and peak memory.

    relattn               a bundle with the compiled decoder, float32; the search ends when nothing better can follow
    relattn early         the same with early stopping, as in CTranslate2
    relattn early pytorch the same on PyTorch
    ctranslate2, … int8   exports of the bundle in CTranslate2

Each method runs in a new process, which translates some lines first. Generated tokens count, with the end. All methods
sort lines by length and take batches of the same size. Without a bundle, the model has the paper's base size, random
weights, and a vocabulary from the text. It never ends by itself: with `--pieces`, all translations have one length.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.measure import Row, apart, command, measured, parse, peak_here, preload, record
from relattn.translation import bundle, load
from relattn.translation.config import DataConfig, Recipe, SearchConfig
from relattn.translation.config.presets import PRESETS
from relattn.translation.data.text_files import read_lines
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.formats.ctranslate2.directory import Quantization
from relattn.translation.formats.ctranslate2.write import export
from relattn.translation.model.transformer import Transformer
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.torch_translator import TorchTranslator

KEY = ("name", "lines", "beam", "method", "threads", "device")
EXPORTS: dict[str, Quantization] = {"ctranslate2": "float32", "ctranslate2 int8": "int8"}
METHODS = ("relattn", "relattn early", "relattn early pytorch", *EXPORTS)
WARM_UP = 32  # lines
NEVER = -50.0  # bias of the end of sentence


def make_base(path: Path, text: Path) -> None:
    """Write a bundle of the paper's base size with random weights and at most 32,768 pieces of a text."""
    tokenizer = Tokenizer.train(islice(read_lines(text), 200_000), 32_768, seed=1)
    preset = PRESETS["wmt14-en-de-base"]
    model_config = replace(preset.model, output_bias=True, tables_per_head=False)  # as CTranslate2 requires
    torch.manual_seed(1)
    model = Transformer(model_config, tokenizer.vocab_size)
    assert model.output_bias is not None
    model.output_bias.data[tokenizer.special.eos] = NEVER
    search = SearchConfig(max_length_ratio=1.0, max_length_extra=1)
    recipe = Recipe(model=model_config, search=search, data=DataConfig(src_lang="en", tgt_lang="de"))
    bundle.save(path, model=model, recipe=recipe, tokenizer=tokenizer, card="")


def exported(path: Path, method: str) -> Path:
    """Return the path of the export for a method, next to the bundle."""
    return path.with_name(f"{path.name}-{EXPORTS[method]}")


class Figures(NamedTuple):
    seconds: float
    tokens: int
    peak: int  # bytes


def figures(path: Path, method: str, beam_size: int, threads: int, lines: list[str]) -> Figures:
    """Translate some lines, and measure a translation of all, in this process."""
    run = prepare(path, method, beam_size, threads, lines)
    run(WARM_UP)
    tokens, seconds = list[int](), list[float]()
    peak = peak_here(lambda: seconds.append(measured(lambda: tokens.append(run(len(lines))))))
    return Figures(seconds[0], tokens[0], peak)


def prepare(path: Path, method: str, beam_size: int, threads: int, lines: list[str]) -> Callable[[int], int]:
    """Return a function that translates a number of the lines and returns the number of generated tokens."""
    if method in EXPORTS:
        translator = load(exported(path, method), threads=threads)
        search = translator.search
    else:
        translator = load(path, threads=threads)
        if "pytorch" in method:
            assert isinstance(translator, TorchTranslator)
            translator.pytorch_reason = "this is a benchmark"
            translator.model.prepack()
        search = replace(translator.search, early_stopping="early" in method)
    options = TranslateOptions(search=replace(search, beam_size=beam_size))
    return lambda count: sum(len(best.tokens) + 1 for (best,) in translator.n_best(lines[:count], options))


def main() -> None:
    parser = command("decoding", __doc__)
    parser.add_argument("text", type=Path, help="source lines, plain or .gz")
    parser.add_argument("--bundle", type=Path, help="bundle (default: a random model of base size, made in --work)")
    parser.add_argument("--name", default="base, random", help="name of the rows: model and text (%(default)s)")
    parser.add_argument("--work", type=Path, default=Path("runs/decoding"), help="directory for models and exports")
    parser.add_argument("--lines", type=int, default=1000, help="number of lines; a shorter text is repeated")
    parser.add_argument("--pieces", type=int, help="use only lines with this number of pieces")
    parser.add_argument("--beams", type=int, nargs="+", default=[4, 1], help="beam sizes (%(default)s)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--repeats", type=int, default=1, help="alternating runs; a row has the median (%(default)s)")
    arguments = parse(parser, "decoding-cpu.csv", threads=1)
    preload([__name__])
    path = arguments.bundle or arguments.work / "base"
    if not path.exists():
        make_base(path, arguments.text)
    parts = bundle.read_bundle(path)
    lines = [line for line in read_lines(arguments.text) if line.strip()]
    if arguments.pieces is not None:
        lines = [line for line in lines if len(parts.tokenizer.encode(line)) == arguments.pieces]
    lines = (lines * (arguments.lines // len(lines) + 1))[: arguments.lines]
    for method in set(EXPORTS) & set(arguments.methods):
        if not exported(path, method).exists():
            export(parts, exported(path, method), quantization=EXPORTS[method], sample=lines[:20])
    for beam_size in arguments.beams:
        runs: dict[str, list[Figures]] = {method: [] for method in arguments.methods}
        for _, (method, done) in product(range(arguments.repeats), runs.items()):
            done.append(apart(figures, path, method, beam_size, arguments.threads, lines))
        for method, done in runs.items():
            median = sorted(done, key=lambda run: run.seconds)[len(done) // 2]
            row: Row = {"name": arguments.name, "lines": len(lines), "beam": beam_size, "method": method}
            row |= {"tokens_per_second": f"{median.tokens / median.seconds:.0f}", "seconds": f"{median.seconds:.1f}"}
            record(arguments, [row | {"tokens": median.tokens, "peak_mib": median.peak >> 20}], KEY)


if __name__ == "__main__":
    main()
