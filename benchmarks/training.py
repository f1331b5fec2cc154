"""Speed of training, ours and other toolkits': target tokens per second of the same small model on the same text.

The model has 3 + 3 layers, d = 256, 4 heads, a feed-forward dimension of 1,024 and one vocabulary of 8,000 pieces, made
by us for all. A batch has at most 4,096 tokens as each toolkit counts them, in float32. Methods train in turn, each in
its own process. The speed is the median of the second half of the steps, and padding does not count. The loss is the
mean of the same steps in nats, as each prints it: JoeyNMT's and ours with label smoothing, the others' without.

DATA is a folder with train.en.gz, train.de.gz, valid.en and valid.de. ENVIRONMENTS is a folder of virtual environments
with the same torch, one per toolkit: joeynmt (joeynmt==2.3.0 sentencepiece==0.2.0 importlib_metadata), fairseq
(fairseq==0.12.2, with Python 3.10) and eole (eole==0.6.4 aiohttp). Missing ones are left out.

    python -m benchmarks.training DATA --environments DIR
"""

import csv
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from itertools import product
from pathlib import Path

from relattn_mt.tokens.text_files import read_lines
from sentencepiece import SentencePieceProcessor

from benchmarks.measure import Row, command, parse, record

OURS = {"relattn, sinusoids": "sinusoidal", "relattn, relative positions": "relative"}
OTHERS = {  # environment -> name, the lines that it logs, and the unit of the loss in nats
    "joeynmt": ("JoeyNMT 2.3", re.compile(r"Batch Loss:\s*([\d.]+).*Tokens per Sec:\s*(\d+)"), 1.0),
    "fairseq": ("fairseq 0.12.2", re.compile(r"train_inner.* nll_loss=([\d.]+).* wps=([\d.]+)"), math.log(2)),
    "eole": ("eole 0.6.4", re.compile(r"xent: ([\d.]+);.* \d+/(\d+) tok/s"), 1.0),
}
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
JOEYNMT = """
name: speed
joeynmt_version: 2.3.0
model_dir: joeynmt
use_cuda: false
data:
  train: train
  dev: valid
  dataset_type: plain
  src: &side
    {{lang: en, level: bpe, lowercase: false, tokenizer_type: sentencepiece, tokenizer_cfg: {{model_file: {tokenizer}}},
     voc_file: joeynmt.txt}}
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

FAIRSEQ = """
{python}/fairseq-preprocess --source-lang en --target-lang de --trainpref train.pieces --validpref valid.pieces
 --destdir bin --joined-dictionary --workers 1 &&
{python}/fairseq-train bin --cpu --arch transformer --encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 256
 --decoder-embed-dim 256 --encoder-ffn-embed-dim 1024 --decoder-ffn-embed-dim 1024 --encoder-attention-heads 4
 --decoder-attention-heads 4 --share-all-embeddings --encoder-normalize-before --decoder-normalize-before
 --dropout 0.1 --attention-dropout 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' --lr 0.002
 --lr-scheduler inverse_sqrt --warmup-updates 1000 --criterion label_smoothed_cross_entropy --label-smoothing 0.1
 --max-tokens 4096 --max-update {steps} --log-interval {every} --log-format simple --disable-validation --no-save
 --num-workers 0
"""
EOLE = """
save_data: saved
src_vocab: eole.txt
tgt_vocab: eole.txt
share_vocab: true
src_vocab_size: 8000
tgt_vocab_size: 8000
overwrite: true
report_every: {every}
data: {{text: {{path_src: train.pieces.en, path_tgt: train.pieces.de, weight: 1}}}}
training:
  {{model_path: model, world_size: 0, gpu_ranks: [], batch_type: tokens, batch_size: 4096, batch_size_multiple: 1,
   bucket_size: 30000, num_workers: 0, train_steps: {steps}, valid_steps: 100000, save_checkpoint_steps: 100000,
   compute_dtype: fp32, optim: adam, learning_rate: 2, warmup_steps: 1000, decay_method: noam, adam_beta2: 0.98,
   label_smoothing: 0.1, dropout: [0.1], attention_dropout: [0.1], normalization: tokens}}
model:
  {{architecture: transformer, layers: 3, hidden_size: 256, transformer_ff: 1024, heads: 4, share_embeddings: true,
   share_decoder_embeddings: true, embeddings: {{word_vec_size: 256, position_encoding_type: SinusoidalInterleaved}}}}
"""
COMMANDS = {
    "joeynmt": "{python}/python -m joeynmt train joeynmt.yaml --skip-test",
    "fairseq": FAIRSEQ.replace("\n ", " "),
    "eole": "{python}/eole train -config eole.yaml",
}


def ours(given: Namespace, positions: str, out: Path) -> Logged:
    """Train, and return the logged rows."""
    path = out.with_suffix(".yaml")
    path.write_text(RECIPE.format(**vars(given) | {"out": out, "positions": positions, "every": EVERY}))
    command = [sys.executable, "-m", "relattn_mt", "train", str(path), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with (out / "log.csv").open(newline="") as file:
        return [(float(row["loss"]), float(row["tokens_per_second"])) for row in csv.DictReader(file)]


def write_text(given: Namespace, tokenizer: Path, out: Path) -> None:
    """Write text, pieces, vocabularies and configurations of the other toolkits."""
    model = SentencePieceProcessor(model_file=str(tokenizer))
    for part, language in product(("train", "valid"), ("en", "de")):
        lines = list(read_lines(next(given.data.glob(f"{part}.{language}*"))))
        (out / f"{part}.{language}").write_text("".join(f"{line}\n" for line in lines))
        text = "".join(" ".join(model.encode(line, out_type=str)) + "\n" for line in lines)
        (out / f"{part}.pieces.{language}").write_text(text)
    special = "<unk>", "<pad>", "<s>", "</s>"
    pieces = [piece for piece in map(model.id_to_piece, range(len(model))) if piece not in special]
    (out / "joeynmt.txt").write_text("".join(f"{piece}\n" for piece in (*special, *pieces)))
    (out / "eole.txt").write_text("".join(f"{piece}\t1\n" for piece in pieces))
    for name, config in (("joeynmt", JOEYNMT), ("eole", EOLE)):
        filled = config.format(steps=given.steps, every=EVERY, tokenizer=tokenizer)
        (out / f"{name}.yaml").write_text(filled)


def other(given: Namespace, name: str, out: Path) -> Logged:
    """Train with another toolkit in the folder of `write_text`, and return the logged rows."""
    threads = {variable: str(given.threads) for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    python = given.environments.resolve() / name / "bin"
    line = COMMANDS[name].format(python=python, steps=given.steps, every=EVERY)
    environment = {**os.environ, **threads}
    done = subprocess.run(line, shell=True, text=True, capture_output=True, env=environment, cwd=out)
    _, logged, unit = OTHERS[name]
    rows = [(float(loss) * unit, float(speed)) for loss, speed in logged.findall(done.stdout + done.stderr)]
    if done.returncode or not rows:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return rows


def main() -> None:
    parser = command("training", __doc__)
    parser.add_argument("data", type=Path, help="folder of the text")
    parser.add_argument("--environments", type=Path, help="folder of virtual environments (default: ours alone)")
    parser.add_argument("--steps", type=int, default=40, help="steps per run (%(default)s)")
    parser.add_argument("--repeats", type=int, default=2, help="runs per method (%(default)s)")
    given = parse(parser, "training-cpu.csv")
    given.data = given.data.resolve()
    others = [name for name in OTHERS if given.environments and (given.environments / name).exists()]
    rows: dict[str, Logged] = {}
    with tempfile.TemporaryDirectory() as work:
        for turn in range(given.repeats):
            for name, positions in OURS.items():
                out = Path(work, f"{positions}{turn}")
                rows.setdefault(name, []).extend(second_half(ours(given, positions, out)))
            if turn == 0:
                write_text(given, out / "tokenizer.model", Path(work))
            for name in others:
                rows.setdefault(OTHERS[name][0], []).extend(second_half(other(given, name, Path(work))))
    for name, logged in rows.items():
        speed = statistics.median(speed for _, speed in logged)
        loss = statistics.mean(loss for loss, _ in logged)
        row: Row = {"method": name, "tokens_per_second": f"{speed:.0f}", "steps": given.steps, "loss": f"{loss:.2f}"}
        record(given, [row], ("method",))


def second_half(rows: Logged) -> Logged:
    return rows[len(rows) // 2 :]


if __name__ == "__main__":
    main()
