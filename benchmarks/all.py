"""Run the benchmarks whose rows the documentation cites, the most important first, and write its tables and pictures.

Run this on a quiet machine with two cores. Sizes are chosen so that all take about two hours; the commands below, with
their own options, measure more. A benchmark that fails is reported at the end, and the others still run. Text is a
folder with the files of Multi30k (train.en.gz, train.de.gz, valid.en, valid.de).

    python -m benchmarks.all TEXT
    python -m benchmarks.all TEXT --only attention small_calls --commit TEXT
"""

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

SPEED = "{text}/valid.en --sizes d256 base --pieces 20 --repeats 3 --out benchmarks/results/decoding-int8-cpu.csv"
INT8 = "--methods 'relattn int8' 'ctranslate2 int8' 'ctranslate2 int8 inter'"
FORMS = "--methods Transformer-XL T5 DeBERTa 'DeBERTa by mask' plain --tokens 4096"
DROPOUT = "--methods 'no tables' --dropout 0.1 --seconds 0.6 --out benchmarks/results/plain-attention-cpu.csv"
SERVED = "toolkit/src/relattn_mt/models/everyday-en-de"
OTHERS = ("training",)  # benchmarks with other programs in environments of their own
BENCHMARKS = [  # {text} is the folder
    ("attention", "--methods auto --lengths 32 64 128 256 512 1024 4096 --seconds 0.6"),
    ("decoding", f"{SPEED} {INT8} --threads 1"),
    ("decoding", f"{SPEED} {INT8} --threads 2"),
    ("small_calls", ""),
    ("int8_encoders", "--models deberta-v3-base --sizes 128 512"),
    ("int8_encoders", "--models t5-base --sizes 256"),
    ("unpadded", ""),
    ("training", "{text}"),
    ("attention", f"{FORMS} --lengths 256 1024 4096 --seconds 0.6 --out benchmarks/results/family-cpu.csv"),
    ("windows", "--lengths 4096 16384"),
    ("models", "--threads 2 --only deberta-v3-base mpnet-base --sizes 128 512"),
    ("models", "--threads 2 --only t5-base --sizes 1024"),
    ("models", "--threads 2 --only wav2vec2-bert wavlm-base --sizes 30"),
    ("train_step", "--lengths 32 256 --repeats 5"),
    ("serving", f"{SERVED} --text {{text}}/valid.en"),
    ("serving_attacks", SERVED),
    ("serving_models", "{text}/valid.en"),
    ("errors", ""),
    ("attention", f"{DROPOUT} --lengths 32 128 512 2048"),
]


def main() -> None:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.all", description=__doc__, formatter_class=style)
    parser.add_argument("text", type=Path, help="folder of Multi30k's files")
    parser.add_argument("--environments", help="folder of environments of other programs (default: ours alone)")
    parser.add_argument("--only", nargs="+", choices=sorted({name for name, _ in BENCHMARKS}), help="benchmarks (all)")
    parser.add_argument("--minutes", type=float, default=120, help="start no benchmark after this time (%(default)s)")
    parser.add_argument("--commit", help="text for the column `commit` (default: the commit of this checkout)")
    given = parser.parse_args()
    start, left_out = time.monotonic(), []
    for name, options in BENCHMARKS:
        if given.only and name not in given.only:
            continue
        filled = options.format(text=given.text)
        line = [sys.executable, "-m", f"benchmarks.{name}", *shlex.split(filled)]
        line += ["--environments", given.environments] if name in OTHERS and given.environments else []
        line += ["--commit", given.commit] if given.commit else []
        minutes = (time.monotonic() - start) / 60
        print(f"== after {minutes:.0f} minutes: {name} {filled}", flush=True)
        if minutes > given.minutes or subprocess.run(line).returncode:
            left_out.append(f"{name} {filled}")
    for tool in ("tables", "pictures"):
        subprocess.run([sys.executable, "-m", f"tools.{tool}"], check=True)
    raise SystemExit("\n".join(["no rows of:", *left_out]) if left_out else 0)


if __name__ == "__main__":
    main()
