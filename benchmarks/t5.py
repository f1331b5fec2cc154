"""Models of T5's kinds: a trained one beside transformers, and the speed and memory of published sizes.

equal: A T5 (version 1.1: gated, untied output) learns short lines of the built-in corpus, English to German; it is
imported. Its BLEU on those of `valid` is that of transformers, of ours in float32 and in int8, and of ours in int8 with
the second matrix of the feed-forward layers (`wo`) in float32. Rows also have how many texts equal those of
transformers, and how many lines have beams that are equal, but for hypotheses whose scores differ by less than `NEAR`.

speed: Random models of T5 base's size, and of MADLAD-400's shape with 0.5 billion weights. Their translations never
end, so all have as many tokens as the source. A row has target tokens per second of lines translated one by one and
together, and the peak memory beyond that of an empty process with the same imports. Threads have batches of their own.

import: A model of MADLAD-400 3B's shape, in bfloat16 and in shards of one or two layers, all of which are equal, is
imported, quantized and translates a line. Rows have the seconds and the peak memory of each process.

    python -m benchmarks.t5 equal
    python -m benchmarks.t5 speed --text multi30k/valid.en --of_threads 1 2
    python -m benchmarks.t5 import
"""

import argparse
import json
import math
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from relattn_mt import bundle
from relattn_mt.config import SearchConfig
from relattn_mt.engine.decoder import NativeDecoder
from relattn_mt.engine.engine import NativeEngine
from relattn_mt.engine.quantization import quantize
from relattn_mt.formats.ctranslate2.write import export
from relattn_mt.formats.import_model import import_model
from relattn_mt.tokens.text_files import read_lines
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.translator import Translator
from relattn_mt.weights import SCALE, LazyWeights
from safetensors.torch import load_file, save_file

from benchmarks.decoding import EXPORTS, exported, prepare, transformers_model, write
from benchmarks.measure import Row, apart, command, highest, measured, parse, preload, record, resident
from research.corpus import builtin
from tests.support import transformers_models

GATED = {"feed_forward_proj": "gated-gelu", "tied": False}
TRAINED: dict[str, Any] = {
    **GATED,
    **{"d_model": 128, "d_kv": 32, "d_ff": 384, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4},
}
SIZES: dict[str, dict[str, Any]] = {
    "t5-base": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "vocab_size": 32_128},
    "madlad-0.5b": {
        **GATED,
        **{"d_model": 1024, "d_kv": 128, "d_ff": 8192, "num_layers": 5, "num_heads": 16, "vocab_size": 64_000},
        "languages": ("de", "en"),
    },
}
LARGE: dict[str, Any] = {
    **GATED,
    **{"d_model": 1024, "d_kv": 128, "d_ff": 8192, "num_layers": 1, "num_heads": 16, "vocab_size": 256_000},
    "languages": ("de", "en"),
}
LARGE_LAYERS = 32  # of each stack
METHODS = "relattn early", "relattn int8", "ctranslate2", "ctranslate2 int8", "transformers"
PIECES, BATCH_TOKENS, WARM_UP, LEARNING_RATE = 1000, 1500, 100, 2e-3
BEAM = 4
TOGETHER = 50  # lines per call of transformers
NEAR = 1e-4  # nats per token
SEED = 1


def batches(pairs: Sequence[tuple[list[int], list[int]]], draw: random.Random) -> Iterator[list[Any]]:
    """Yield batches of pairs of similar lengths, in random order, without end."""
    while True:
        order = sorted(pairs, key=lambda pair: (len(pair[0]) + len(pair[1]), draw.random()))
        epoch: list[list[Any]] = [[]]
        for pair in order:
            if len(epoch[-1]) * len(pair[1]) > BATCH_TOKENS:
                epoch.append([])
            epoch[-1].append(pair)
        draw.shuffle(epoch)
        yield from epoch


def padded(rows: Sequence[list[int]]) -> torch.Tensor:
    """Return rows of ids as a tensor, with zeros after shorter ones."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def short_pairs(split: str, lines: int) -> list[tuple[str, str]]:
    """Return those lines of the built-in corpus with at most two items, which so small a model learns in minutes."""
    return [pair for pair in builtin(split, lines=lines) if pair[0].count("; ") < 2]


def train(path: Path, steps: int) -> None:
    """Write a T5 that has learned the built-in corpus, in the files of transformers."""
    torch.set_num_threads(1)
    pairs = short_pairs("train", 40_000)
    model, tokenizer = transformers_models.t5(
        path,
        vocab=PIECES,
        lines=[line for pair in pairs[:4000] for line in pair],
        draw=0.0,
        end=1.0,
        generation={"max_length": 128},
        **TRAINED,
    )
    sides = [tokenizer([pair[side] for pair in pairs])["input_ids"] for side in (0, 1)]
    with torch.no_grad():  # Adam's steps have one size, and are too small for the initial embeddings
        model.shared.weight *= 0.1
        model.lm_head.weight *= 0.2
    start = time.process_time()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    torch.manual_seed(SEED)
    model.train()
    found = batches([*zip(*sides, strict=True)], random.Random(SEED))
    for step, batch in zip(range(1, steps + 1), found, strict=False):
        rate = min(step / WARM_UP, (1 + math.cos(math.pi * step / steps)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rate
        src, tgt = (padded([pair[side] for pair in batch]) for side in (0, 1))
        loss = model(input_ids=src, attention_mask=src != 0, labels=tgt.masked_fill(tgt == 0, -100)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {time.process_time() - start:.0f} s", flush=True)
    model.eval().save_pretrained(path)


def imported(path: Path, out: Path) -> bundle.Bundle:
    """Write and return the bundle of a model of transformers."""
    import_model(path, out, tokenizer=None, tgt_tokenizer=None, src_lang="en", tgt_lang="de", sample=1, overwrite=True)
    return bundle.read_bundle(out)


Beams = list[list[tuple[list[int], float]]]  # tokens and score of each hypothesis of each line


def their_beams(parts: bundle.Bundle, path: Path, lines: Sequence[str]) -> Beams:
    """Return the hypotheses of transformers."""
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(path).eval()
    special = parts.tokenizer.special
    how: dict[str, Any] = {"num_return_sequences": BEAM, "return_dict_in_generate": True, "output_scores": True}
    found = []
    for start in range(0, len(lines), TOGETHER):
        encoded = [[*parts.tokenizer.encode(line), *special.src_end] for line in lines[start : start + TOGETHER]]
        sources = padded(encoded)
        how |= {"attention_mask": sources != 0, "suppress_tokens": list(special.banned)}
        with torch.inference_mode():
            out = model.generate(sources, num_beams=BEAM, **how)
        rows = [row[: row.index(special.eos)] if special.eos in row else row for row in out.sequences[:, 1:].tolist()]
        hypotheses = list(zip(rows, out.sequences_scores.tolist(), strict=True))
        found += [hypotheses[i : i + BEAM] for i in range(0, len(hypotheses), BEAM)]
    return found


def our_beams(translator: Translator, lines: Sequence[str]) -> Beams:
    """Return our hypotheses."""
    options = TranslateOptions(n_best=BEAM, copy=False, keep_literals=False)
    return [[(each.tokens, each.score) for each in ranked] for ranked in translator.n_best(lines, options)]


def without_int8(parts: bundle.Bundle, suffix: str) -> Translator:
    """Return a translator in int8, with the weights whose names end in `suffix` in float32."""
    integers = quantize(parts.state)
    names = [name for name in integers if not name.endswith(f"{suffix}{SCALE}")]

    def make(name: str) -> Any:
        return (parts.state if name.endswith(suffix) else integers)[name]

    decoder = NativeDecoder(parts.model, parts.tokenizer.vocab_sizes, LazyWeights(names, make), int8=True)
    return Translator(NativeEngine(decoder), parts.tokenizer, parts.search, languages=("en", "de"))


def equal(given: argparse.Namespace) -> None:
    path = given.work / "trained-transformers"
    if not path.exists():
        train(path, given.steps)
    parts = imported(path, given.work / "trained")
    lines, references = zip(*short_pairs("valid", 1_600), strict=True)
    beams = {
        "transformers": their_beams(parts, path, lines),
        "relattn": our_beams(parts.translator(precision="fp32"), lines),
        "relattn int8": our_beams(parts.translator(precision="int8"), lines),
        "relattn int8, wo in float32": our_beams(without_int8(parts, "feed_forward.3.weight"), lines),
    }
    theirs = beams["transformers"]
    for method, ours in beams.items():
        texts = [parts.tokenizer.decode(ranked[0][0]) for ranked in ours]
        row: Row = {"method": method, "lines": len(lines)}
        row["bleu"] = f"{sacrebleu.corpus_bleu(texts, [list(references)]).score:.2f}"
        row["equal_texts"] = sum(a[0][0] == b[0][0] for a, b in zip(ours, theirs, strict=True))
        row["equal_beams"] = sum(map(near, ours, theirs))
        row["largest_nats"] = f"{max(gap(a, b) for a, b in zip(ours, theirs, strict=True)):.1e}"
        record(given, [row], ("method",))


def gap(ours: list[tuple[list[int], float]], theirs: list[tuple[list[int], float]]) -> float:
    """Return the largest difference of the scores of hypotheses of the same rank."""
    return max(abs(a[1] - b[1]) for a, b in zip(ours, theirs, strict=True))


def near(ours: list[tuple[list[int], float]], theirs: list[tuple[list[int], float]]) -> bool:
    """Return whether hypotheses are equal, or others of the same rank have nearly the same score."""
    return gap(ours, theirs) < NEAR


def make(path: Path, size: str, lines: Sequence[str]) -> None:
    """Write a random model in the files of transformers, next to the bundle and its exports."""
    source = transformers_model(path)
    transformers_models.t5(source, vocab=4000, lines=list(lines), draw=0.0, end=0.0, **SIZES[size])
    parts = imported(source, path)
    write(path, parts.model, parts.state, SearchConfig(max_length_ratio=1.0, max_length_extra=1), parts.tokenizer)
    parts = bundle.read_bundle(path)
    for method in EXPORTS:
        if not exported(path, method).exists():
            export(parts, exported(path, method), quantization=EXPORTS[method], sample=lines[:2])


def figures(path: Path, method: str, threads: int, lines: list[str], alone: int) -> tuple[float, float, int]:
    """Return tokens per second of `alone` lines one by one and of all together, and the peak memory, of a process."""
    before = resident()
    run = prepare(path, method, BEAM, threads, lines)
    run(1)
    tokens = 0

    def translate(calls: int, count: int) -> None:
        nonlocal tokens
        tokens = sum(run(count) for _ in range(calls))

    seconds = measured(lambda: translate(alone, 1))
    speed_alone = tokens / seconds
    seconds = measured(lambda: translate(1, len(lines)))
    return speed_alone, tokens / seconds, highest() - before


def speed(given: argparse.Namespace) -> None:
    text = [line for line in read_lines(given.text) if line.strip()]
    for size in given.sizes:
        path = given.work / size
        if not path.exists():
            make(path, size, text)
        tokenizer = bundle.read_bundle(path).tokenizer
        lines = [line for line in text if len(tokenizer.encode(line)) == given.pieces][: given.lines]
        for method, threads in product(given.methods, given.of_threads):
            alone, together, peak = apart(figures, path, method, threads, lines, given.alone)
            row: Row = {"model": size, "method": method, "beam": BEAM, "lines": len(lines)}
            row |= {"tokens_per_second_alone": f"{alone:.1f}", "tokens_per_second_together": f"{together:.1f}"}
            row["peak_mib"] = peak >> 20
            given.conditions["threads"] = str(threads)
            record(given, [row], ("model", "method"))


def write_large(path: Path) -> None:
    """Write a model whose layers are equal, in shards of bfloat16."""
    single = path.with_name("single")
    shutil.rmtree(single, ignore_errors=True)
    transformers_models.t5(
        single, vocab=4000, draw=0.0, end=0.0, lines=[line for line, _ in builtin("train", lines=4000)], **LARGE
    )
    path.mkdir(parents=True)
    for file in single.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, path / file.name)
    settings = json.loads((path / "config.json").read_text())
    settings |= {"num_layers": LARGE_LAYERS, "num_decoder_layers": LARGE_LAYERS}
    (path / "config.json").write_text(json.dumps(settings))
    state = {name: weight.to(torch.bfloat16) for name, weight in load_file(single / "model.safetensors").items()}
    shared = {name: weight for name, weight in state.items() if ".block." not in name}
    blocks = {name: weight for name, weight in state.items() if ".block." in name}
    shards = [{name: weight} for name, weight in shared.items()]
    for layer in range(LARGE_LAYERS):
        kept = {name: weight for name, weight in blocks.items() if layer == 0 or "relative_attention_bias" not in name}
        shards.append({name.replace(".block.0.", f".block.{layer}."): weight for name, weight in kept.items()})
    files: dict[str, str] = {}
    for number, shard in enumerate(shards):
        name = f"model-{number:05}.safetensors"
        save_file(shard, path / name, metadata={"format": "pt"})
        files |= dict.fromkeys(shard, name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def step_of(step: str, path: Path, out: Path, line: str) -> tuple[float, int]:
    """Return the seconds and the peak memory of a process that imports, quantizes or translates."""
    before = resident()
    start = time.perf_counter()
    if step == "import":
        imported(path, out)
    elif step == "quantize":
        bundle.quantize_bundle(bundle.read_bundle(path), out)
    else:
        bundle.read_bundle(path).translator().translate([line])
    return time.perf_counter() - start, highest() - before


def large(given: argparse.Namespace) -> None:
    source = given.work / "large"
    if not source.exists():
        write_large(source)
    shard = max(file.stat().st_size for file in source.glob("*.safetensors"))
    whole = given.work / "large-float32"
    integers = given.work / "large-int8"
    for step, path, out in (
        ("import", source, whole),
        ("quantize", whole, integers),
        ("translate", integers, integers),
    ):
        seconds, peak = apart(step_of, step, path, out, "one apple and two pears")
        row: Row = {"model": "madlad-3b", "step": step, "largest_shard_mib": shard >> 20}
        record(given, [row | {"seconds": f"{seconds:.0f}", "peak_mib": peak >> 20}], ("model", "step"))


def main() -> None:
    parser = command("t5", __doc__)
    parser.add_argument("kind", choices=("equal", "speed", "import"), help="measurement")
    parser.add_argument("--work", type=Path, default=Path("runs/t5"), help="folder of models (%(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="training steps of `equal` (%(default)s)")
    parser.add_argument("--text", type=Path, help="source lines of `speed`")
    parser.add_argument("--sizes", nargs="+", choices=[*SIZES], default=[*SIZES], help="models of `speed`")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="programs of `speed`")
    parser.add_argument("--of_threads", type=int, nargs="+", default=[1, 2], help="numbers of threads (%(default)s)")
    parser.add_argument("--pieces", type=int, default=12, help="pieces of each line (%(default)s)")
    parser.add_argument("--lines", type=int, default=32, help="lines that are translated together (%(default)s)")
    parser.add_argument("--alone", type=int, default=4, help="lines that are translated one by one (%(default)s)")
    given = parse(parser, "t5-cpu.csv", threads=1)
    preload([__name__, "ctranslate2", "transformers"])
    if given.kind == "speed":
        speed(given)
    elif given.kind == "import":
        given.out = given.out.with_name("t5-import-cpu.csv")
        large(given)
    else:
        given.out = given.out.with_name("t5-equal-cpu.csv")
        equal(given)


if __name__ == "__main__":
    main()
