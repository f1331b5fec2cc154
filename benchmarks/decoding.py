"""Translation as fast as the machine: target tokens a second and peak memory, ours and others', on the same lines.

    relattn               a bundle by the compiled decoder, float32, searched until nothing better can come
    relattn early         with early stopping, which is how CTranslate2 searches
    relattn early pytorch the same on PyTorch
    relattn early bf16    the same on PyTorch in bfloat16
    ctranslate2, … int8   its exports in CTranslate2
    transformers          generate() of a Marian model of the same sizes, sinusoidal, with random weights
    opennmt-py            OpenNMT-py's translator with the bundle's weights, in the environment that
                          `benchmarks/peers.py` tells how to make; it has one table for keys and values and does not
                          scale embeddings, so what it writes is something else, as long where the model never ends

Each has a process of its own, which translates some lines first and then all; tokens are those that come out, ends
counted. All sort lines by length and take batches of the same many padded tokens.

Without a bundle the model is of the paper's base size with random weights, made from the text; it never ends by itself,
and the lines are such as have exactly `--pieces` pieces, so that every translation has as many.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from benchmarks.measure import apart, conditions, keep, peak_here, preload
from relattn.translation import bundle, load
from relattn.translation.config import DataConfig, Recipe, SearchConfig
from relattn.translation.config.presets import PRESETS
from relattn.translation.data.planning import batch_by_size
from relattn.translation.data.text_files import read_lines
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.formats.ctranslate2.directory import Quantization
from relattn.translation.formats.ctranslate2.write import export
from relattn.translation.formats.names import OPENNMT_PY
from relattn.translation.model.transformer import Transformer
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import MAX_SENTENCES, MAX_TOKENS
from relattn.translation.translate.torch_translator import TorchTranslator

RESULTS = Path(__file__).parent / "results" / "decoding-cpu.csv"
OURS = ("relattn", "relattn early", "relattn early pytorch", "relattn early bf16")
METHODS = (*OURS, "ctranslate2", "ctranslate2 int8", "transformers")
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
    model.output_bias.data[tokenizer.special.eos] = NEVER
    search = SearchConfig(max_length_ratio=1.0, max_length_extra=1)
    recipe = Recipe(model=model_config, search=search, data=DataConfig(src_lang="en", tgt_lang="de"))
    bundle.save(path, model=model, recipe=recipe, tokenizer=tokenizer, card="")


def exported(path: Path, method: str) -> Path:
    """Where the export for a method is, beside the bundle."""
    return path.with_name(f"{path.name}-{EXPORTS[method]}")


def figures(path: Path, method: str, beam_size: int, threads: int, lines: list[str]) -> dict[str, float]:
    """Seconds, tokens and bytes of one translation of all lines, in this process."""
    run = OTHERS[method](path, beam_size, lines) if method in OTHERS else ours(path, method, beam_size, threads, lines)
    run(WARM_UP)
    found: dict[str, float] = {}

    def all_lines() -> None:
        start = time.perf_counter()
        found["tokens"] = run(len(lines))
        found["seconds"] = time.perf_counter() - start

    peak = peak_here(all_lines)
    return {**found, "bytes": peak}


def ours(path: Path, method: str, beam_size: int, threads: int, lines: list[str]) -> Callable[[int], int]:
    """Return a function that translates a number of the lines and returns the number of generated tokens."""
    if method in EXPORTS:
        translator = load(exported(path, method), threads=threads)
        search = translator.search
    else:
        translator = load(path, precision="bf16" if "bf16" in method else "fp32", threads=threads)
        if "pytorch" in method:
            assert isinstance(translator, TorchTranslator)
            translator.pytorch_reason = "this is a benchmark"
            translator.model.prepack()
        search = replace(translator.search, early_stopping="early" in method)
    options = TranslateOptions(search=replace(search, beam_size=beam_size))
    return lambda count: sum(len(best.tokens) + 1 for (best,) in translator.n_best(lines[:count], options))


def batches(sources: list[list[int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces and ends, (rows, longest) padded with 0, and (rows,) lengths, in batches as ours are."""
    lengths = np.array([len(source) + 1 for source in sources])
    for indices in batch_by_size(np.argsort(-lengths, kind="stable"), lengths, MAX_TOKENS, MAX_SENTENCES):
        rows = [torch.tensor([*sources[i], 2]) for i in indices]
        yield pad_sequence(rows, batch_first=True), torch.from_numpy(lengths[indices])


def transformers(path: Path, beam_size: int, lines: list[str]) -> Callable[[int], int]:
    """By transformers: translations as long as the longest source of their batch."""
    from transformers import MarianConfig, MarianMTModel

    parts = bundle.read_bundle(path)
    size = parts.model
    torch.manual_seed(1)
    model = MarianMTModel(
        MarianConfig(
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

    @torch.inference_mode()
    def run(count: int) -> int:
        tokens = 0
        for ids, _ in batches(sources[:count]):
            longest = ids.shape[1]
            found = model.generate(
                ids,
                attention_mask=(ids != 0).long(),
                num_beams=beam_size,
                min_new_tokens=longest,
                max_new_tokens=longest,
                do_sample=False,
            )
            tokens += found.shape[0] * (found.shape[1] - 1)
        return tokens

    return run


def opennmt_py(path: Path, beam_size: int, lines: list[str]) -> Callable[[int], int]:
    """By OpenNMT-py, whose translations are at most as long as the longest source of their batch, ends counted."""
    from onmt.inputters.inputter import dict_to_vocabs
    from onmt.model_builder import build_base_model
    from onmt.opts import train_opts
    from onmt.translate import GNMTGlobalScorer, Translator
    from onmt.utils.parse import ArgumentParser

    parts = bundle.read_bundle(path)
    size, count = parts.model, parts.tokenizer.vocab_sizes[0]
    options = f"""
        -data {{}} -src_vocab x -encoder_type transformer -decoder_type transformer -enc_layers {size.encoder_layers}
        -dec_layers {size.decoder_layers} -heads {size.heads} -hidden_size {size.dim} -word_vec_size {size.dim}
        -transformer_ff {size.feed_forward_dim} -max_relative_positions {size.clip} -share_vocab -share_embeddings
        -share_decoder_embeddings -add_ffnbias -add_qkvbias
    """
    parser = ArgumentParser()
    train_opts(parser)
    opt = ArgumentParser.ckpt_model_opts(parser.parse_known_args(options.split())[0])
    ArgumentParser.update_model_opts(opt)
    ArgumentParser.validate_model_opts(opt)
    pieces = ["<blank>", "<s>", "</s>", "<unk>", *(f"piece {i}" for i in range(4, count))]
    vocabs = dict_to_vocabs({"src": pieces, "tgt": pieces, "data_task": "seq2seq", "decoder_start_token": "<s>"})
    model = build_base_model(opt, vocabs).eval()
    fault = nn.Module.load_state_dict(model, OPENNMT_PY.scatter(parts.state, size), strict=False)
    assert not fault.unexpected_keys, fault
    sources = [parts.tokenizer.encode(line) for line in lines]
    scorer = GNMTGlobalScorer(alpha=0.6, beta=0.0, length_penalty="wu", coverage_penalty="none")

    def run(count: int) -> int:
        tokens = 0
        for ids, lengths in batches(sources[:count]):
            translator = Translator(
                model, vocabs, beam_size=beam_size, max_length=ids.shape[1], max_length_ratio=0, global_scorer=scorer
            )
            found = translator.translate_batch({"src": ids[:, :, None], "srclen": lengths}, attn_debug=False)
            tokens += sum(len(best) for best, *_ in found["predictions"])
        return tokens

    return run


OTHERS = {"transformers": transformers, "opennmt-py": opennmt_py}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoding", description=__doc__)
    parser.add_argument("text", type=Path, help="source lines, plain or .gz")
    parser.add_argument("--bundle", type=Path, help="the model; without, one of base size is made in --work")
    parser.add_argument("--name", default="base, random", help="of the rows: what the model is, and what the lines")
    parser.add_argument("--work", type=Path, default=Path("runs/decoding"), help="where models and exports are made")
    parser.add_argument("--lines", type=int, default=1000, help="the text is repeated where it has fewer")
    parser.add_argument("--pieces", type=int, help="only lines of so many")
    parser.add_argument("--beams", type=int, nargs="+", default=[4, 1])
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, "opennmt-py"], default=list(METHODS))
    parser.add_argument("--repeats", type=int, default=1, help="the methods take turns; a row has the median time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    preload([__name__])
    path = arguments.bundle or arguments.work / "base"
    if not path.exists():
        make_base(path, arguments.text)
    parts = bundle.read_bundle(path)
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
        runs: dict[str, list[dict[str, float]]] = {method: [] for method in arguments.methods}
        for _ in range(arguments.repeats):
            for method, those in runs.items():
                those.append(apart(figures, path, method, beam_size, arguments.threads, lines))
        for method, those in runs.items():
            found = sorted(those, key=lambda run: run["seconds"])[len(those) // 2]
            row: dict[str, object] = {"name": arguments.name, "lines": len(lines), "beam": beam_size, "method": method}
            row |= {"tokens_per_second": f"{found['tokens'] / found['seconds']:.0f}"}
            row |= {"seconds": f"{found['seconds']:.1f}", "tokens": int(found["tokens"])}
            row |= {"peak_mib": int(found["bytes"]) >> 20}
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            keep(arguments.out, [row | conditions()], ("name", "lines", "beam", "method", "threads", "device"))


if __name__ == "__main__":
    main()
