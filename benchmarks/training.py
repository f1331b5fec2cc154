"""Speed of training, ours and JoeyNMT's: target tokens per second of the same small model on the same text.

The model has 3 + 3 layers, d = 256, 4 heads, a feed-forward dimension of 1,024 and one vocabulary of 8,000 pieces, made
by us for both. A batch has about 4,096 target tokens, in float32. Methods train in turn, each in its own process. The
speed is the median of the second half of the steps, and padding does not count. The loss, with label smoothing, is the
mean of the same steps.

DATA is a folder with train.en.gz, train.de.gz, valid.en and valid.de. JoeyNMT 2.3 needs an environment of its own, with
the same torch: `pip install joeynmt==2.3.0 sentencepiece==0.2.0`.

    python -m benchmarks.training DATA --joeynmt ENV/bin/python
"""

import csv
import os
import re
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from itertools import product
from pathlib import Path

from relattn_mt.data.text_files import read_lines
from sentencepiece import SentencePieceProcessor

from benchmarks.measure import command, parse, record

OURS = {"relattn, sinusoids": "sinusoidal", "relattn, relative positions": "relative"}
JOEYNMT = "JoeyNMT 2.3"
LOGGED = re.compile(r"Batch Loss:\s*([\d.]+).*Tokens per Sec:\s*(\d+)")
EVERY = 5  # steps per logged row
Logged = list[tuple[float, float]]  # loss and target tokens per second
RECIPE = """
out: {out}
model: {{dim: 256, heads: 4, feed_forward_dim: 1024, encoder_layers: 3, decoder_layers: 3, positions: {positions}}}
data:
  {{src_lang: en, tgt_lang: de, vocab_size: 8000, max_tokens: 4096, train_src: {data}/train.en.gz,
   train_tgt: {data}/train.de.gz, valid_src: {data}/valid.en, valid_tgt: {data}/valid.de}}
train: {{steps: {steps}, threads: {threads}, log_every: {every}, warmup_steps: 1000, valid_every: 100000}}
"""
CONFIG = """
name: speed
joeynmt_version: 2.3.0
model_dir: {out}/model
use_cuda: false
data:
  train: {out}/train
  dev: {out}/valid
  dataset_type: plain
  src: &side
    {{lang: en, level: bpe, lowercase: false, tokenizer_type: sentencepiece, tokenizer_cfg: {{model_file: {tokenizer}}},
     voc_file: {out}/vocab.txt}}
  trg: {{<<: *side, lang: de}}
  special_symbols:
    {{unk_token: <unk>, unk_id: 0, pad_token: <pad>, pad_id: 1, bos_token: <s>, bos_id: 2, eos_token: </s>, eos_id: 3}}
training:
  {{optimizer: adam, adam_betas: [0.9, 0.98], learning_rate: 0.002, scheduling: warmupinversesquareroot,
   learning_rate_warmup: 1000, loss: crossentropy, label_smoothing: 0.1, normalization: tokens, batch_type: token,
   batch_size: 4096, updates: {steps}, logging_freq: {every}, validation_freq: 100000, epochs: 100, overwrite: true}}
testing: {{beam_size: 1, batch_size: 64, batch_type: sentence}}
model:
  initializer: xavier_uniform
  tied_embeddings: true
  tied_softmax: true
  encoder: &stack
    {{type: transformer, num_layers: 3, num_heads: 4, hidden_size: 256, ff_size: 1024, dropout: 0.1, layer_norm: pre,
     embeddings: {{embedding_dim: 256, scale: true, dropout: 0.1}}}}
  decoder: *stack
"""


def ours(given: Namespace, positions: str, out: Path) -> Logged:
    """Train, and return the logged rows."""
    path = out.with_suffix(".yaml")
    path.write_text(RECIPE.format(**vars(given) | {"out": out, "positions": positions, "every": EVERY}))
    command = [sys.executable, "-m", "relattn_mt", "train", str(path), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with (out / "log.csv").open(newline="") as file:
        return [(float(row["loss"]), float(row["tokens_per_second"])) for row in csv.DictReader(file)]


def joeynmt(given: Namespace, tokenizer: Path, out: Path) -> Logged:
    """Train with JoeyNMT, and return the logged rows."""
    out.mkdir()
    for part, language in product(("train", "valid"), ("en", "de")):
        lines = read_lines(next(given.data.glob(f"{part}.{language}*")))
        (out / f"{part}.{language}").write_text("".join(f"{line}\n" for line in lines))
    special = "<unk>", "<pad>", "<s>", "</s>"
    model = SentencePieceProcessor(model_file=str(tokenizer))
    pieces = map(model.id_to_piece, range(len(model)))
    (out / "vocab.txt").write_text("\n".join([*special, *(piece for piece in pieces if piece not in special)]) + "\n")
    (out / "config.yaml").write_text(
        CONFIG.format(**vars(given) | {"out": out, "tokenizer": tokenizer, "every": EVERY})
    )
    threads = {name: str(given.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [given.joeynmt, "-m", "joeynmt", "train", out / "config.yaml", "--skip-test"]
    done = subprocess.run(command, text=True, capture_output=True, env={**os.environ, **threads})
    rows = [(float(loss), float(speed)) for loss, speed in LOGGED.findall(done.stdout + done.stderr)]
    if done.returncode or not rows:
        raise SystemExit(f"JoeyNMT failed:\n{done.stderr[-2000:]}")
    return rows


def main() -> None:
    parser = command("training", __doc__)
    parser.add_argument("data", type=Path, help="folder of the text")
    parser.add_argument("--joeynmt", type=Path, help="Python of an environment with JoeyNMT (default: without it)")
    parser.add_argument("--steps", type=int, default=60, help="steps per run (%(default)s)")
    parser.add_argument("--repeats", type=int, default=2, help="runs per method (%(default)s)")
    given = parse(parser, "training-cpu.csv")
    given.data = given.data.resolve()
    rows: dict[str, Logged] = {}
    with tempfile.TemporaryDirectory() as work:
        for turn in range(given.repeats):
            for name, positions in OURS.items():
                out = Path(work, f"{positions}{turn}")
                taken = ours(given, positions, out)
                rows.setdefault(name, []).extend(taken[len(taken) // 2 :])
            if given.joeynmt:
                taken = joeynmt(given, out / "tokenizer.model", Path(work, f"joeynmt{turn}"))
                rows.setdefault(JOEYNMT, []).extend(taken[len(taken) // 2 :])
    for name, logged in rows.items():
        speed = statistics.median(speed for _, speed in logged)
        loss = statistics.mean(loss for loss, _ in logged)
        row = {"method": name, "tokens_per_second": f"{speed:.0f}", "steps": given.steps, "loss": f"{loss:.3f}"}
        record(given, [row], ("method",))


if __name__ == "__main__":
    main()
