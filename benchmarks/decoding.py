"""Speed and memory of translation, ours and others', on the same lines: target tokens per second, and peak memory.

    relattn               a bundle with the compiled engine, float32; the search ends when nothing better can follow
    relattn early         the same with early stopping, as in CTranslate2
    relattn early pytorch the same on PyTorch
    relattn int8          the compiled engine in int8, with early stopping
    ctranslate2, … int8   exports of the bundle in CTranslate2, whose threads share each product (`intra_threads`)
    ctranslate2 … inter   the same, but each thread translates its own batches (`inter_threads`)
    transformers          `generate()`, float32, only of the size opus-mt

Each method runs in a new process, which translates some lines first. Generated tokens count, with the end. All methods
sort lines by length and take batches of the same size. Without a bundle, models have random weights, and a vocabulary
from the text; opus has the sizes of OPUS-MT's models. They never end by themselves: with `--pieces`, all translations
have one length. opus-mt is written by transformers with 58,101 pieces, and imported. The last lines are ratios: ours in
int8, over the better of CTranslate2's.

    python -m benchmarks.decoding LINES --sizes d256 base opus --pieces 20 --repeats 5 --threads 1 \
        --methods "relattn int8" "ctranslate2 int8" "ctranslate2 int8 inter"
    python -m benchmarks.decoding LINES --sizes opus-mt --lines 256 --pieces 20 --beams 1 4 6 --repeats 3 --threads 1 \
        --out benchmarks/results/opus-mt-cpu.csv --methods "relattn early" "relattn int8" ctranslate2 \
        "ctranslate2 inter" "ctranslate2 int8" "ctranslate2 int8 inter" transformers
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from relattn_mt import bundle, load
from relattn_mt.config import ModelConfig, SearchConfig
from relattn_mt.formats.ctranslate2.directory import Quantization, read_settings
from relattn_mt.formats.ctranslate2.write import export
from relattn_mt.formats.transformers.read import read
from relattn_mt.model.transformer import Transformer
from relattn_mt.model.weights import arrays_of
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer, tokenizer_in
from relattn_mt.tokens.text_files import read_lines
from relattn_mt.tokens.tokenizer import Tokenizer
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.runner import MAX_SENTENCES
from relattn_mt.translate.translator import Translator

from benchmarks.measure import Row, apart, command, measured, parse, peak_here, preload, record

KEY = ("name", "lines", "beam", "method")
OPUS_MT = "opus-mt"
EXPORTS: dict[str, Quantization] = {
    **{"ctranslate2": "float32", "ctranslate2 inter": "float32"},
    **{"ctranslate2 int8": "int8", "ctranslate2 int8 inter": "int8"},
}
METHODS = ("relattn", "relattn early", "relattn early pytorch", "relattn int8", *EXPORTS, "transformers")
WARM_UP = 32  # lines
NEVER = -50.0  # bias of the end of sentence


def sizes() -> dict[str, tuple[ModelConfig, int]]:
    """Return the configuration and the number of pieces of the random models, as CTranslate2 supports them."""
    base = ModelConfig(feed_forward_dim=1024, norm="post", output_bias=True)  # else the paper's base model
    small = replace(base, dim=256, heads=4, feed_forward_dim=1024, encoder_layers=3, decoder_layers=3)
    opus = ModelConfig(
        positions="sinusoidal",
        dim=512,
        heads=8,
        feed_forward_dim=2048,
        activation="swish",
        norm="post",
        output_bias=True,
    )
    return {"d256": (small, 10_000), "base": (base, 32_000), "opus": (opus, 58_000)}


def make_random(path: Path, text: Path, size: str) -> None:
    """Write a bundle with random weights and the pieces of a text, or as many as it has."""
    model_config, pieces = sizes()[size]
    tokenizer = Tokenizer.train(islice(read_lines(text), 200_000), pieces, seed=1)
    torch.manual_seed(1)
    model = Transformer(model_config, tokenizer.vocab_size)
    assert model.output_bias is not None
    model.output_bias.data[tokenizer.special.eos] = NEVER
    search = SearchConfig(max_length_ratio=1.0, max_length_extra=1)
    write(path, model.config, arrays_of(model), search, tokenizer)


def make_opus_mt(path: Path, text: Path) -> None:
    """Write a model of OPUS-MT's size and shape by transformers, next to the bundle, and the bundle."""
    from benchmarks.serving_models import SIZES
    from tests.support import transformers_models

    lines, source = list(islice(read_lines(text), 20_000)), transformers_model(path)
    options: dict[str, Any] = {**SIZES, "lines": lines, "vocab": 4000, "fill": 58_101, "draw": (0.0, 0.0)}
    model, _ = transformers_models.marian(source, **options)
    model.final_logits_bias[0, 0] = NEVER  # of the end of sentence
    model.save_pretrained(source)
    foreign = read(source, None, None)
    search = SearchConfig(max_length_ratio=1.0, max_length_extra=1)
    write(path, foreign.config, foreign.weights(), search, foreign.tokenizer)


def write(
    path: Path,
    config: ModelConfig,
    weights: Mapping[str, np.ndarray],
    search: SearchConfig,
    tokenizer: AnyTokenizer,
) -> None:
    """Write the bundle of a model."""
    bundle.Bundle(path, config, search, "en", "de", weights, tokenizer).save()


def transformers_model(path: Path) -> Path:
    """Return the path of the model of transformers for a bundle."""
    return path.with_name(f"{path.name}-transformers")


def generate(path: Path, beam_size: int, threads: int, lines: list[str]) -> Callable[[int], int]:
    """Return a function that translates a number of the lines by transformers, and returns the number of tokens."""
    from transformers import AutoModelForSeq2SeqLM

    torch.set_num_threads(threads)
    model = AutoModelForSeq2SeqLM.from_pretrained(transformers_model(path)).eval()
    tokenizer = bundle.read_bundle(path).tokenizer
    special = tokenizer.special
    sources = [[*special.src_begin, *tokenizer.encode(line), *special.src_end] for line in lines]
    assert len({len(source) for source in sources}) == 1, "transformers requires --pieces"
    length = len(sources[0])  # the end included, as in the other methods

    def run(count: int) -> int:
        rows = torch.tensor(sources[:count]).split(MAX_SENTENCES)
        with torch.inference_mode():
            outputs = [
                model.generate(input_ids=x, num_beams=beam_size, max_length=length + 1, early_stopping=beam_size > 1)
                for x in rows
            ]
        return sum(int((x[:, 1:] != model.config.pad_token_id).sum()) for x in outputs)

    return run


def exported_translator(path: Path, threads: int, *, inter: bool) -> Translator:
    """Return a translator of an export; with `inter`, its threads have batches of their own."""
    import ctranslate2

    from tests.support.ctranslate2_engine import CTranslate2Engine

    settings = read_settings(path)
    assert settings is not None
    tokenizer = tokenizer_in(path).with_languages(settings.src_lang, settings.tgt_lang)
    engine = CTranslate2Engine(path, tokenizer, settings.max_length, threads=threads)
    if inter:
        engine.scorer.model = ctranslate2.Translator(str(path), inter_threads=threads, intra_threads=1)
    return Translator(engine, tokenizer, settings.search, workers=threads if inter else 1)


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
    if method == "transformers":
        return generate(path, beam_size, threads, lines)
    if method in EXPORTS:
        translator = exported_translator(exported(path, method), threads, inter=method.endswith("inter"))
        search = translator.search
    else:
        if "pytorch" in method:
            translator = bundle.read_bundle(path).torch_translator()
        else:
            translator = load(path, threads=threads, precision="int8" if "int8" in method else "fp32")
        search = replace(translator.search, early_stopping=method != "relattn")
    options = TranslateOptions(search=replace(search, beam_size=beam_size), keep_literals=False)
    return lambda count: sum(len(best.tokens) + 1 for (best,) in translator.n_best(lines[:count], options))


def main() -> None:
    parser = command("decoding", __doc__)
    parser.add_argument("text", type=Path, help="source lines, plain or .gz")
    parser.add_argument("--bundle", type=Path, help="bundle (default: random models, made in --work)")
    parser.add_argument("--name", default="", help="name of the rows (default: the size, random)")
    parser.add_argument(
        "--sizes",
        nargs="+",
        choices=[*sizes(), OPUS_MT],
        default=["base"],
        help="sizes of the random models (%(default)s)",
    )
    parser.add_argument("--work", type=Path, default=Path("runs/decoding"), help="directory for models and exports")
    parser.add_argument("--lines", type=int, default=1000, help="number of lines; a shorter text is repeated")
    parser.add_argument("--pieces", type=int, help="use only lines with this number of pieces")
    parser.add_argument("--beams", type=int, nargs="+", default=[4, 1], help="beam sizes (%(default)s)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS[:-1]))
    parser.add_argument("--repeats", type=int, default=1, help="alternating runs; a row has the median (%(default)s)")
    arguments = parse(parser, "decoding-cpu.csv", threads=1)
    preload([__name__])
    paths = [arguments.bundle] if arguments.bundle else [arguments.work / size for size in arguments.sizes]
    ratios = [line for path in paths for line in measure_model(arguments, path)]
    print("\n".join(ratios))


def measure_model(arguments: argparse.Namespace, path: Path) -> list[str]:
    """Record the rows of a model, and return its ratios."""
    if not path.exists():
        make_opus_mt(path, arguments.text) if path.name == OPUS_MT else make_random(path, arguments.text, path.name)
    parts = bundle.read_bundle(path)
    lines = [line for line in read_lines(arguments.text) if line.strip()]
    if arguments.pieces is not None:
        lines = [line for line in lines if len(parts.tokenizer.encode(line)) == arguments.pieces]
    lines = (lines * (arguments.lines // len(lines) + 1))[: arguments.lines]
    for method in [method for method in arguments.methods if method in EXPORTS]:
        if not exported(path, method).exists():
            export(parts, exported(path, method), quantization=EXPORTS[method], sample=lines[:20])
    name, ratios = arguments.name or f"{path.name}, random", []
    for beam_size in arguments.beams:
        runs: dict[str, list[Figures]] = {method: [] for method in arguments.methods}
        for _, (method, done) in product(range(arguments.repeats), runs.items()):
            done.append(apart(figures, path, method, beam_size, arguments.threads, lines))
        speed = {}
        for method, done in runs.items():
            median = sorted(done, key=lambda run: run.seconds)[len(done) // 2]
            speed[method] = median.tokens / median.seconds
            row: Row = {"name": name, "lines": len(lines), "beam": beam_size, "method": method}
            row |= {"tokens_per_second": f"{speed[method]:.0f}", "seconds": f"{median.seconds:.1f}"}
            record(arguments, [row | {"tokens": median.tokens, "peak_mib": median.peak >> 20}], KEY)
        theirs = [speed[method] for method in speed if method.startswith("ctranslate2 int8")]
        if "relattn int8" in speed and theirs:
            ratio = speed["relattn int8"] / max(theirs)
            ratios.append(f"{name}, beam {beam_size}, {arguments.threads} threads: int8 ÷ CTranslate2's {ratio:.2f}")
    return ratios


if __name__ == "__main__":
    main()
