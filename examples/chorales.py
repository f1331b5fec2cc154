"""Music: long sequences with relative positions, with sinusoids, and with none.

A decoder reads chorales of four voices note by note, soprano, alto, tenor and bass of a sixteenth in turn, and gives
each note's probability from all before it. Its layers attend as in Shaw et al. 2018, causally,

    e_ij = scale · q_i · (k_j + aK_ij)        α_i = softmax_{j ≤ i} e_ij        z_i = Σ_j α_ij (v_j + aV_ij)

where aK_ij and aV_ij depend on max(j − i, −CLIP) alone. Three schemes, otherwise with the same numbers to start from, the
same crops of music and the same dropout:

    relative       tables of clipped distances, shared by the heads of a layer; CLIP is two bars of 4/4
    sinusoidal     sines and cosines of the position, added to the embeddings; no tables
    none           neither

No scheme is told which voice is next, nor the beat: both are positions (modulo 4 and 16), so with them "none" would not
be none, and to know them is what the other two are for. Crops begin on a beat and count their positions from 0, as
whole pieces do, so position modulo 16 says voice and place in the beat to sinusoids in training and afterwards.

Training sees CROP notes at a time. Afterwards all of validation is scored: each piece whole; whole in windows of CROP
notes; and pieces joined one after another to four times the longest piece of training. Then the model writes a
piece of that length, with an `AttentionCache` a layer. Tables of counts stand beside the models.

Data: `chorales.json.gz` in the form of github.com/czhuang/JSB-Chorales-dataset: {"train": [piece, …], "valid": […]}, a
piece being a list of sixteenths [soprano, alto, tenor, bass] of MIDI pitches, −1 for silence. Then:

    OMP_NUM_THREADS=1 python examples/chorales.py --data data/jsb_chorales --out runs/chorales --seed 0
"""

import argparse
import gzip
import itertools
import json
import math
import os
import random
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import mido
import torch
import torch.nn.functional as F
from safetensors.torch import save_model
from torch import Tensor, nn

from relattn import AttentionCache, RelativeAttention

SCHEMES = ("relative", "sinusoidal", "none")
VOICES = ("soprano", "alto", "tenor", "bass")
BEAT, BAR = 4, 16  # in steps, which are sixteenths
LOWEST, HIGHEST = 21, 108  # a piano's pitches
SILENCE, START, TOKENS = 128, 129, 130  # a note's token is its pitch; START stands before a piece
UNSEEN = -100  # a target that `cross_entropy` passes over


def read(folder: Path) -> dict[str, list[Tensor]]:
    """The pieces of each split, (steps, 4) each; ValueError says in one line what is wrong and where."""
    path = folder / "chorales.json.gz"
    try:
        splits = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(splits, dict):
        raise ValueError(f"{path}: it holds a {type(splits).__name__}, where it is an object of splits")
    return {split: read_pieces(f"{path}, {split}", splits.get(split)) for split in ("train", "valid")}


def read_pieces(where: str, pieces: Any) -> list[Tensor]:
    if not isinstance(pieces, list) or not pieces:
        raise ValueError(f"{where}: no list of pieces")
    for number, piece in enumerate(pieces):
        if not isinstance(piece, list) or not piece:
            raise ValueError(f"{where}, piece {number}: no list of steps")
        for step, notes in enumerate(piece):
            if not isinstance(notes, list) or len(notes) != 4 or not all(map(is_note, notes)):
                problem = f"{notes!r:.60} is not four notes, each −1 or a pitch from {LOWEST} to {HIGHEST}"
                raise ValueError(f"{where}, piece {number}, step {step}: {problem}")
    return [torch.tensor(piece) for piece in pieces]


def is_note(note: Any) -> bool:
    return type(note) is int and (note == -1 or LOWEST <= note <= HIGHEST)


def to_tokens(piece: Tensor) -> Tensor:
    """(steps, 4) pitches to (4 · steps,) tokens: the voices of a step in turn."""
    return torch.where(piece < 0, SILENCE, piece).flatten()


def to_steps(tokens: Tensor) -> Tensor:
    """The inverse of `to_tokens`."""
    return torch.where(tokens == SILENCE, -1, tokens).unflatten(0, (-1, 4))


def transposed(piece: Tensor, shift: int) -> Tensor:
    return torch.where(piece < 0, -1, piece + shift)


DIM, HEADS, LAYERS, FEED_FORWARD, DROPOUT = 128, 4, 4, 512, 0.1
CLIP = 2 * BAR * 4
CROP, BATCH = 512, 8  # notes of a crop, crops of a step
SHIFT = 3  # semitones, by as many as that up or down a crop is transposed
RATE = 2e-3
Caches = list[AttentionCache]


class Layer(nn.Module):
    """Self-attention and a feed-forward network, normalised before each: (batch, n, DIM) -> (batch, n, DIM)."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.feed_forward = nn.Sequential(nn.Linear(DIM, FEED_FORWARD), nn.ReLU(), nn.Linear(FEED_FORWARD, DIM))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(
        self, x: Tensor, attention: RelativeAttention, cache: AttentionCache | None
    ) -> tuple[Tensor, AttentionCache | None]:
        query, key, value = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            cache = cache.append(key, value)
            key, value = cache.key, cache.value
        attended = attention(query, key, value, is_causal=True)  # the queries are the last of the keys
        x = x + self.dropout(self.out(attended.transpose(1, 2).flatten(-2)))
        return x + self.dropout(self.feed_forward(self.norms[1](x))), cache


class Decoder(nn.Module):
    """Tokens (batch, n) to the logits of each one's successor, (batch, n, TOKENS)."""

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.sinusoidal = scheme == "sinusoidal"
        self.embedding, self.dropout = nn.Embedding(TOKENS, DIM), nn.Dropout(DROPOUT)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.logits = nn.LayerNorm(DIM), nn.Linear(DIM, TOKENS)
        tables: Any = "both" if scheme == "relative" else "neither"  # the last, so that all else starts alike
        self.attention = nn.ModuleList(
            RelativeAttention(DIM // HEADS, (CLIP, 0), tables=tables) for _ in range(LAYERS)
        )

    def empty_caches(self, capacity: int) -> Caches:
        """A cache a layer, of one sequence, with room for `capacity` tokens."""
        room = 1, HEADS, capacity, DIM // HEADS
        return [AttentionCache((torch.empty(room), torch.empty(room))) for _ in self.layers]

    def forward(self, tokens: Tensor, caches: Caches | None = None) -> tuple[Tensor, Caches]:
        """The logits, and the caches with these tokens in them; the tokens follow those that `caches` hold."""
        x = self.embedding(tokens)
        if self.sinusoidal:
            x = x + sinusoids(tokens.shape[1], caches[0].length if caches else 0)
        x = self.dropout(x)
        kept = []
        for layer, attention, cache in zip(self.layers, self.attention, caches or [None] * LAYERS, strict=True):
            x, cache = layer(x, attention, cache)
            kept.append(cache)
        return self.logits(self.norm(x)), kept


def sinusoids(n: int, first: int) -> Tensor:
    """Sines, then cosines, of positions first … first + n − 1, with wavelengths from 2π to 10,000 · 2π: (n, DIM)."""
    rates = torch.exp(torch.arange(0, DIM, 2) * (-math.log(10_000.0) / DIM))
    angles = torch.arange(first, first + n)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def crop(piece: Tensor, generator: random.Random) -> tuple[Tensor, Tensor]:
    """CROP tokens from a beat on, transposed, and the successor of each, (CROP,) both; one in four begins the piece."""
    beats = max(0, len(piece) - CROP // 4) // BEAT
    start = 4 * BEAT * (0 if generator.random() < 0.25 else generator.randint(0, beats))
    piece = transposed(piece, generator.randint(-SHIFT, SHIFT))
    tokens = F.pad(to_tokens(piece), (1, 0), value=START)[start : start + CROP + 1]
    source, target = tokens[:-1], tokens[1:]
    room = (0, CROP - len(source))
    return F.pad(source, room, value=START), F.pad(target, room, value=UNSEEN)


def fit(model: Decoder, pieces: list[Tensor], steps: int, seed: int) -> None:
    """Each step takes BATCH crops, of pieces drawn by their length."""
    torch.manual_seed(seed)
    generator = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps)
    model.train()
    for _ in range(steps):
        drawn = generator.choices(pieces, [len(piece) for piece in pieces], k=BATCH)
        source, target = map(torch.stack, zip(*(crop(piece, generator) for piece in drawn), strict=True))
        loss = F.cross_entropy(model(source)[0].flatten(0, 1), target.flatten(), ignore_index=UNSEEN)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


@torch.inference_mode()
def score(model: Decoder, tokens: Tensor) -> Tensor:
    """−log p of each token given all before it, in nats: (n,) of (n,)."""
    return score_after(model, torch.tensor(START), tokens)


@torch.inference_mode()
def score_after(model: Decoder, before: Tensor, tokens: Tensor) -> Tensor:
    source = torch.cat((before[None], tokens[:-1]))
    return F.cross_entropy(model(source[None])[0][0], tokens, reduction="none")


def score_in_windows(model: Decoder, tokens: Tensor) -> Tensor:
    """As `score`, but given no more than a crop holds: each window of CROP begins half a window after the last."""
    half = CROP // 2
    scores = [score(model, tokens[:CROP])]
    for start in range(half, len(tokens) - half, half):
        scores.append(score_after(model, tokens[start - 1], tokens[start : start + CROP])[half:])
    return torch.cat(scores)
