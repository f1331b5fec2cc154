"""Music modelling beyond the trained length: relative positions, sinusoidal positions and no positions.

A decoder reads four-voice chorales note by note: the soprano, alto, tenor and bass of one sixteenth, then of the next.
It predicts each note from all earlier ones. Its layers use the attention of Shaw et al. 2018 with a causal mask:

    e_ij = scale · q_i · (k_j + aK_ij)        α_i = softmax_{j ≤ i} e_ij        z_i = Σ_j α_ij (v_j + aV_ij)

aK_ij and aV_ij depend on max(j − i, −CLIP) only. They are the tables of `RelativeAttention`, with clip (CLIP, 0). Three
schemes are compared. All start from the same weights and train on the same crops of music in the same keys:

    relative       tables of clipped distances, shared by the heads of a layer; CLIP is two bars of 4/4
    sinusoidal     sinusoidal positions, added to the embeddings; no tables
    none           no positions

No scheme gets the voice of a note, or its place in the beat, as input, because both tell the position modulo 16. Crops
begin on a beat and count their positions from 0, as whole pieces do.

Training uses crops of CROP notes. Evaluation scores each validation piece, and the pieces joined to rows that are 17
times as long as a crop. Each is scored in one pass, and in windows of CROP notes, which have no untrained positions.

Data: `chorales.json.gz` in the format of github.com/czhuang/JSB-Chorales-dataset: {"train": [piece, …], "valid": […]}.
A piece is a list of sixteenths [soprano, alto, tenor, bass] as MIDI pitches, with −1 for silence. Then run:

    OMP_NUM_THREADS=1 python examples/chorales.py --data data/jsb_chorales --seed 0
"""

import argparse
import gzip
import itertools
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from relattn import RelativeAttention
from torch import Tensor, nn

BEAT = 16  # in notes: four voices per sixteenth
SILENCE, START, TOKENS = 128, 129, 130  # the token of a note is its pitch; START precedes each piece
NO_TARGET = -100  # target of padding, which `cross_entropy` ignores
DIM, HEADS, LAYERS, FEED_FORWARD = 128, 4, 4, 512
CLIP = 128  # in notes
CROP, BATCH = 512, 4  # notes per crop, crops per training step
SHIFT = 3  # semitones by which a crop is transposed at most, up or down
EDGES = [CROP * crops for crops in (0, 1, 2, 4, 8, 17)]  # ranges of positions in the table; joined rows end at the last


def read(path: Path) -> dict[str, list[Tensor]]:
    """Read the pieces of each split as tokens, (notes,) each: the voices of the first step, then of the second, …"""
    splits = json.loads(gzip.decompress(path.read_bytes()))
    return {split: [to_tokens(piece) for piece in splits[split]] for split in ("train", "valid")}


def to_tokens(piece: list[list[int]]) -> Tensor:
    """Convert the pitches of a piece, four per step, to tokens: (notes,)."""
    pitches = torch.tensor(piece)
    if pitches.dtype != torch.int64 or pitches.dim() != 2 or pitches.shape[1] != 4:
        raise ValueError(f"a piece must be a list of steps with four integers each, got {piece!r:.60}")
    if (wrong := pitches[(pitches != -1) & ((pitches < 21) | (pitches > 108))]).numel():
        raise ValueError(f"a note must be −1 or a pitch of a piano, from 21 to 108, got {wrong[0]}")
    return pitches.where(pitches >= 0, SILENCE).flatten()


class Layer(nn.Module):
    """Pre-norm decoder layer of self-attention and a feed-forward network: (batch, n, DIM) to the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.feed_forward = nn.Sequential(nn.Linear(DIM, FEED_FORWARD), nn.ReLU(), nn.Linear(FEED_FORWARD, DIM))

    def forward(self, x: Tensor, attention: RelativeAttention) -> Tensor:
        query, key, value = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = attention(query, key, value, is_causal=True)  # (batch, heads, n, DIM / heads)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.feed_forward(self.norms[1](x))


class Decoder(nn.Module):
    """Decoder from tokens, (batch, n), to the logits of the next token, (batch, n, TOKENS)."""

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.sinusoidal = scheme == "sinusoidal"
        self.embedding = nn.Embedding(TOKENS, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.logits = nn.LayerNorm(DIM), nn.Linear(DIM, TOKENS)
        # Created last, so that all other weights start the same in each scheme.
        self.attention = nn.ModuleList(
            RelativeAttention(DIM // HEADS, (CLIP, 0), tables="both" if scheme == "relative" else "neither")
            for _ in range(LAYERS)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.sinusoidal:
            x = x + sinusoids(tokens.shape[1])
        for layer, attention in zip(self.layers, self.attention, strict=True):
            x = layer(x, attention)
        return self.logits(self.norm(x))


def sinusoids(n: int) -> Tensor:
    """Return the sines, then the cosines, of n positions: (n, DIM). Wavelengths go from 2π to 10,000 · 2π."""
    rates = torch.exp(torch.arange(0, DIM, 2) * (-math.log(10_000.0) / DIM))
    angles = torch.arange(n)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def crop(piece: Tensor, generator: random.Random) -> tuple[Tensor, Tensor]:
    """Return CROP tokens of a transposed piece, and the next token of each, both (CROP,).

    A crop begins on a random beat. One in four begins at the start of the piece.
    """
    beats = max(0, len(piece) - CROP) // BEAT
    start = BEAT * (0 if generator.random() < 0.25 else generator.randint(0, beats))
    piece = torch.where(piece == SILENCE, SILENCE, piece + generator.randint(-SHIFT, SHIFT))
    tokens = F.pad(piece, (1, 0), value=START)[start : start + CROP + 1]
    padding = (0, CROP + 1 - len(tokens))
    return F.pad(tokens[:-1], padding, value=START), F.pad(tokens[1:], padding, value=NO_TARGET)


def fit(model: Decoder, pieces: list[Tensor], steps: int, seed: int, bfloat16: bool = False) -> None:
    """Train on BATCH crops per step. The probability of a piece is proportional to its length."""
    generator = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps, pct_start=0.2)
    for _ in range(steps):
        batch = generator.choices(pieces, [len(piece) for piece in pieces], k=BATCH)
        source, target = map(torch.stack, zip(*(crop(piece, generator) for piece in batch), strict=True))
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits = model(source)
        loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), ignore_index=NO_TARGET)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.inference_mode()
def score(model: Decoder, tokens: Tensor, previous: int = START) -> Tensor:
    """Score tokens, (n,), in one pass that begins with the token `previous`.

    Returns (n, 2): −log p of each token in nats, and 1 if the token is the most probable one, else 0.
    """
    logits = model(F.pad(tokens[:-1], (1, 0), value=previous)[None])[0]
    return torch.stack((F.cross_entropy(logits, tokens, reduction="none"), logits.argmax(-1) == tokens), dim=-1)


def score_in_windows(model: Decoder, tokens: Tensor) -> Tensor:
    """Score tokens like `score`, but in overlapping windows of CROP tokens.

    Each token sees at least CROP / 2 earlier tokens, except at the start of the piece.
    """
    half = CROP // 2
    scores = [score(model, tokens[:CROP])]
    for start in range(half, len(tokens) - half, half):
        scores.append(score(model, tokens[start : start + CROP], previous=int(tokens[start - 1]))[half:])
    return torch.cat(scores)


def join_pieces(pieces: list[Tensor], length: int) -> list[Tensor]:
    """Join the pieces in two random orders to rows of `length` tokens. Each row starts with a new piece.

    The end of the last piece of a row is cut off. The last row of an order may be shorter.
    """
    rows = []
    for order in range(2):
        row = torch.empty(0, dtype=torch.long)
        for piece in random.Random(order).sample(pieces, len(pieces)):
            row = torch.cat((row, piece))
            if len(row) >= length:
                rows.append(row[:length])
                row = row[:0]
        rows.append(row)
    return [row for row in rows if len(row) > 0]


def evaluate(model: Decoder, scorer: Callable[..., Tensor], pieces: list[Tensor]) -> list[float]:
    """Return nats per note and the fraction of correct notes in `pieces`, and nats by position in the joined pieces."""
    nats, correct = torch.cat([scorer(model, piece) for piece in pieces]).double().mean(0).tolist()
    rows = [scorer(model, row) for row in join_pieces(pieces, EDGES[-1])]
    ranges = itertools.pairwise(EDGES)
    return [nats, correct, *(torch.cat([row[low:high, 0] for row in rows]).mean().item() for low, high in ranges)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare position schemes of a music model beyond its trained length.")
    folder = "directory with chorales.json.gz (default: %(default)s)"
    parser.add_argument("--data", type=Path, default="data/jsb_chorales", help=folder)
    steps = "number of training steps, at least 10 (default: %(default)s)"
    parser.add_argument("--steps", type=int, default=2000, help=steps)
    parser.add_argument("--seed", type=int, default=0, help="random seed of weights and crops (default: %(default)s)")
    parser.add_argument("--bfloat16", action="store_true", help="train with matrix products in bfloat16")
    arguments = parser.parse_args()
    try:
        if arguments.steps < 10:
            raise ValueError(f"--steps must be at least 10, got {arguments.steps}")
        data = read(arguments.data / "chorales.json.gz")
    except (OSError, ValueError) as error:
        parser.exit(2, f"{error}\n")

    columns = ("nats", "correct", *(f"{low}–" for low in EDGES[:-1]), "seconds")
    print(" " * 24 + "".join(f"{column:>8}" for column in columns))
    repeated = torch.cat([piece[4:] == piece[:-4] for piece in data["valid"]]).sum() / sum(map(len, data["valid"]))
    print(f"{'repeat last note':32}{repeated:8.2%}", flush=True)
    for scheme in ("relative", "sinusoidal", "none"):
        torch.manual_seed(arguments.seed)
        model = Decoder(scheme)
        started = time.process_time()
        fit(model, data["train"], arguments.steps, arguments.seed, arguments.bfloat16)
        seconds = time.process_time() - started
        for name, scorer in ((scheme, score), (f"{scheme}, in windows", score_in_windows)):
            nats, correct, *by_position = evaluate(model, scorer, data["valid"])
            cells = "".join(f"{x:8.4f}" for x in by_position)
            print(f"{name:24}{nats:8.4f}{correct:8.2%}{cells}{seconds:8.0f}", flush=True)


if __name__ == "__main__":
    main()
