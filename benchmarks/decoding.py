"""Translation as fast as the machine: target tokens a second and peak memory, ours and others', on the same lines.

    relattn               a bundle in PyTorch, float32
    relattn bf16          the same in bfloat16
    ctranslate2, … int8   its exports in CTranslate2
    transformers          generate() of a Marian model of the same sizes, sinusoidal, with random weights

Each has a process of its own, which translates some lines first and then all; tokens are those that come out, ends
counted. All sort lines by length and take batches of the same many padded tokens.

Without a bundle the model is of the paper's base size with random weights, made from the text; it never ends by itself,
and the lines are such as have exactly `--pieces` pieces, so that every translation has as many.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import apart, conditions, keep, peak_here, preload
from relattn.translation import bundle
from relattn.translation.config import DataConfig, Quantization, Recipe, SearchConfig
from relattn.translation.data.corpora import read_lines
from relattn.translation.data.plan import runs
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.export.ctranslate2 import export
from relattn.translation.model.transformer import Transformer
from relattn.translation.presets import PRESETS
from relattn.translation.search.ctranslate2 import load
from relattn.translation.search.lines import MAX_SENTENCES, MAX_TOKENS, LineTranslator

RESULTS = Path(__file__).parent / "results" / "decoding-cpu.csv"
METHODS = ("relattn", "relattn bf16", "ctranslate2", "ctranslate2 int8", "transformers")
EXPORTS: dict[str, Quantization] = {"ctranslate2": "float32", "ctranslate2 int8": "int8"}
WARM_UP = 32  # lines
NEVER = -50.0  # the bias of an end that never comes


def make_base(path: Path, text: Path) -> None:
    """A bundle of the paper's base size with random weights and 32,768 pieces of a text."""
    tokenizer = Tokenizer.train(islice(read_lines(text), 200_000), 32_768, seed=1)
    preset = PRESETS["wmt14-en-de-base"]
    model_config = replace(preset.model, output_bias=True, tables_per_head=False)  # which CTranslate2 has not
    torch.manual_seed(1)
    model = Transformer(model_config, tokenizer.vocab_size)
    assert model.output_bias is not None
    model.output_bias.data[tokenizer.eos_id] = NEVER
    search = SearchConfig(max_length_ratio=1.0, max_length_extra=1)
    recipe = Recipe(model=model_config, search=search, data=DataConfig(src_lang="en", tgt_lang="de"))
    bundle.save(path, model=model, recipe=recipe, tokenizer=tokenizer, card="")


def translator(path: Path, method: str, beam_size: int, threads: int) -> LineTranslator:
    """What translates by a method."""
    made: LineTranslator
    if method in EXPORTS:
        made = load(exported(path, method), threads=threads)[1]
    else:
        ours = made = bundle.load(path)
        if method == "relattn bf16":
            ours.model.to(torch.bfloat16)
    made.search = replace(made.search, beam_size=beam_size)
    return made


def exported(path: Path, method: str) -> Path:
    """Where the export for a method is, beside the bundle."""
    return path.with_name(f"{path.name}-{EXPORTS[method]}")


def figures(path: Path, method: str, beam_size: int, threads: int, lines: list[str]) -> dict[str, float]:
    """Seconds, tokens and bytes of one translation of all lines, in this process."""
    run = (
        generate(path, beam_size, lines) if method == "transformers" else ours(path, method, beam_size, threads, lines)
    )
    run(WARM_UP)
    found: dict[str, float] = {}

    def all_lines() -> None:
        start = time.perf_counter()
        found["tokens"] = run(len(lines))
        found["seconds"] = time.perf_counter() - start

    peak = peak_here(all_lines)
    return {**found, "bytes": peak}


def ours(path: Path, method: str, beam_size: int, threads: int, lines: list[str]) -> Callable[[int], int]:
    """What translates so many of the lines and says how many tokens came out."""
    translate = translator(path, method, beam_size, threads)
    return lambda count: sum(len(best.tokens) + 1 for (best,) in translate.n_best(lines[:count], 1))


def generate(path: Path, beam_size: int, lines: list[str]) -> Callable[[int], int]:
    """The same by transformers: translations as long as their sources."""
    import transformers

    parts = bundle.load_parts(path)
    size = parts.model
    torch.manual_seed(1)
    model = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=parts.tokenizer.vocab_sizes[0],
            d_model=size.dim,
            encoder_layers=size.encoder_layers,
            decoder_layers=size.decoder_layers,
            encoder_attention_heads=size.heads,
            decoder_attention_heads=size.heads,
            encoder_ffn_dim=size.feed_forward_dim,
            decoder_ffn_dim=size.feed_forward_dim,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            forced_eos_token_id=None,
        )
    ).eval()
    sources = [parts.tokenizer.encode(line) for line in lines]
    lengths = np.array([len(source) + 1 for source in sources])

    def run(count: int) -> int:
        tokens = 0
        for indices in runs(np.argsort(-lengths[:count], kind="stable"), lengths, MAX_TOKENS, MAX_SENTENCES):
            batch = [sources[i] for i in indices]
            longest = len(batch[0])
            ids = torch.tensor([[*row, 2, *[0] * (longest - len(row))] for row in batch])
            with torch.inference_mode():
                found = model.generate(
                    ids,
                    attention_mask=(ids != 0).long(),
                    num_beams=beam_size,
                    min_new_tokens=longest + 1,
                    max_new_tokens=longest + 1,
                    do_sample=False,
                )
            tokens += found.shape[0] * (found.shape[1] - 1)
        return tokens

    return run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoding", description=__doc__)
    parser.add_argument("text", type=Path, help="source lines, plain or .gz")
    parser.add_argument("--bundle", type=Path, help="the model; without, one of base size is made in --work")
    parser.add_argument("--name", default="base, random", help="of the rows: what the model is, and what the lines")
    parser.add_argument("--work", type=Path, default=Path("runs/decoding"), help="where models and exports are made")
    parser.add_argument("--lines", type=int, default=1000, help="the text is repeated where it has fewer")
    parser.add_argument("--pieces", type=int, help="only lines of so many")
    parser.add_argument("--beams", type=int, nargs="+", default=[4, 1])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    preload([__name__])
    path = arguments.bundle or arguments.work / "base"
    if not path.exists():
        make_base(path, arguments.text)
    parts = bundle.load_parts(path)
    fitting = [
        line
        for line in read_lines(arguments.text)
        if line.strip() and (arguments.pieces is None or len(parts.tokenizer.encode(line)) == arguments.pieces)
    ]
    lines = (fitting * (arguments.lines // len(fitting) + 1))[: arguments.lines]
    for method in set(EXPORTS) & set(arguments.methods):
        if not exported(path, method).exists():
            export(parts, exported(path, method), quantization=EXPORTS[method], sample=lines[:20])
    for beam_size in arguments.beams:
        for method in arguments.methods:
            found = apart(figures, path, method, beam_size, arguments.threads, lines)
            row: dict[str, object] = {"name": arguments.name, "lines": len(lines), "beam": beam_size, "method": method}
            row |= {"tokens_per_second": f"{found['tokens'] / found['seconds']:.0f}"}
            row |= {"seconds": f"{found['seconds']:.1f}", "tokens": int(found["tokens"])}
            row |= {"peak_mib": int(found["bytes"]) >> 20}
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            keep(arguments.out, [row | conditions()], ("name", "lines", "beam", "method", "threads"))


if __name__ == "__main__":
    main()
