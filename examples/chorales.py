"""Music modelling: long sequences with relative positions, with sinusoidal positions, and without positions.

A decoder reads four-voice chorales note by note: the soprano, alto, tenor and bass of one sixteenth, then of the next.
It predicts each note from all earlier ones. Its layers use the attention of Shaw et al. 2018 with a causal mask:

    e_ij = scale · q_i · (k_j + aK_ij)        α_i = softmax_{j ≤ i} e_ij        z_i = Σ_j α_ij (v_j + aV_ij)

aK_ij and aV_ij depend on max(j − i, −CLIP) only. They are the tables of `RelativeAttention`, with clip (CLIP, 0). Three
schemes are compared. All start from the same weights and train on the same crops of music in the same keys:

    relative       tables of clipped distances, shared by the heads of a layer; CLIP is two bars of 4/4
    sinusoidal     sinusoidal positions, added to the embeddings; no tables
    none           no positions

No scheme gets the voice of a note, or its place in the beat, as input. Both follow from the position (modulo 4 and 16),
so with them the scheme "none" would have positions, and the other two schemes must provide them. Crops begin on a beat
and count their positions from 0, as whole pieces do. Position modulo 16 therefore gives the sinusoidal scheme the voice
and the place in the beat, in training and in evaluation.

Training uses crops of CROP notes. Evaluation scores the whole validation split in three ways: each piece in one pass,
each piece in windows of CROP notes, and pieces joined to rows four times as long as the longest training piece. The
joined rows are scored in one pass and in windows. The model then continues a piece to that length, with one
`AttentionCache` per layer. A model by counting is the baseline.

Data: `chorales.json.gz` in the format of github.com/czhuang/JSB-Chorales-dataset: {"train": [piece, …], "valid": […]}.
A piece is a list of sixteenths [soprano, alto, tenor, bass] as MIDI pitches, with −1 for silence. Then run:

    OMP_NUM_THREADS=1 python examples/chorales.py --data data/jsb_chorales --out runs/chorales --seed 0
"""

import argparse
import gzip
import itertools
import json
import math
import random
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mido
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from safetensors.torch import save_model
from torch import Tensor, nn

from relattn import AttentionCache, RelativeAttention

SCHEMES = ("relative", "sinusoidal", "none")
VOICES = ("soprano", "alto", "tenor", "bass")
BEAT, BAR = 4, 16  # in steps of one sixteenth
LOWEST, HIGHEST = 21, 108  # MIDI pitches of a piano
SILENCE, START, TOKENS = 128, 129, 130  # the token of a note is its pitch; START precedes each piece
NO_TARGET = -100  # target of padding, which `cross_entropy` ignores


def read(folder: Path) -> dict[str, list[Tensor]]:
    """Read the pieces of each split: (steps, 4) each.

    Raises:
        ValueError: the file is missing or malformed. The message is one line with the place.
    """
    path = folder / "chorales.json.gz"
    try:
        splits = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(splits, dict):
        raise ValueError(f"{path} must contain an object with splits, got {type(splits).__name__}")
    return {split: read_pieces(f"{path}, {split}", splits.get(split)) for split in ("train", "valid")}


def read_pieces(place: str, pieces: Any) -> list[Tensor]:
    """Check the pieces of one split and convert them to tensors. `place` is the file and split for error messages."""
    if not isinstance(pieces, list) or not pieces:
        raise ValueError(f"{place}: the split must be a non-empty list of pieces")
    for number, piece in enumerate(pieces):
        if not isinstance(piece, list) or not piece:
            raise ValueError(f"{place}, piece {number}: a piece must be a non-empty list of steps")
        for step, notes in enumerate(piece):
            if not isinstance(notes, list) or len(notes) != 4 or not all(map(is_note, notes)):
                rule = f"a step must be four notes, each −1 or a pitch from {LOWEST} to {HIGHEST}"
                raise ValueError(f"{place}, piece {number}, step {step}: {rule}, got {notes!r:.60}")
    return [torch.tensor(piece) for piece in pieces]


def is_note(note: Any) -> bool:
    """Return True for −1 and for the pitches of a piano."""
    return type(note) is int and (note == -1 or LOWEST <= note <= HIGHEST)


def to_tokens(piece: Tensor) -> Tensor:
    """Convert pitches, (steps, 4), to tokens, (4 · steps,): the voices of the first step, then of the second, …"""
    return torch.where(piece < 0, SILENCE, piece).flatten()


def to_steps(tokens: Tensor) -> Tensor:
    """Convert tokens, (4 · steps,), to pitches, (steps, 4): the inverse of `to_tokens`."""
    return torch.where(tokens == SILENCE, -1, tokens).unflatten(0, (-1, 4))


def transpose(piece: Tensor, shift: int) -> Tensor:
    """Shift all pitches by `shift` semitones. Silence stays silence."""
    return torch.where(piece < 0, -1, piece + shift)


DIM, HEADS, LAYERS, FEED_FORWARD = 128, 4, 4, 512
CLIP = 2 * BAR * 4
CROP, BATCH = 512, 4  # notes per crop, crops per training step
SHIFT = 3  # semitones by which a crop is transposed at most, up or down
RATE = 3e-3  # maximum learning rate
ORDERS = 2  # random orders in which the validation pieces are joined
PRIOR = 10  # weight of the shorter context in `CountModel`, in notes
PRIMER = 2 * BAR  # steps of a validation piece that the model continues
TEMPO = 80  # beats per minute
Caches = list[AttentionCache]


class Layer(nn.Module):
    """Pre-norm decoder layer of self-attention and a feed-forward network: (batch, n, DIM) to the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.feed_forward = nn.Sequential(nn.Linear(DIM, FEED_FORWARD), nn.ReLU(), nn.Linear(FEED_FORWARD, DIM))

    def forward(
        self, x: Tensor, attention: RelativeAttention, cache: AttentionCache | None
    ) -> tuple[Tensor, AttentionCache | None]:
        query, key, value = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            cache = cache.append(key, value)
            key, value = cache.key, cache.value
        attended = attention(query, key, value, is_causal=True)  # the queries are the last positions of the keys
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.feed_forward(self.norms[1](x)), cache


class Decoder(nn.Module):
    """Decoder from tokens, (batch, n), to the logits of the next token, (batch, n, TOKENS)."""

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.sinusoidal = scheme == "sinusoidal"
        self.embedding = nn.Embedding(TOKENS, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.logits = nn.LayerNorm(DIM), nn.Linear(DIM, TOKENS)
        tables: Any = "both" if scheme == "relative" else "neither"
        # Created last, so that all other weights start the same in each scheme.
        self.attention = nn.ModuleList(RelativeAttention(DIM // HEADS, (CLIP, 0), tables=tables) for _ in range(LAYERS))

    def empty_caches(self, capacity: int) -> Caches:
        """Return one cache per layer for one sequence, with memory for `capacity` tokens."""
        shape = 1, HEADS, capacity, DIM // HEADS
        return [AttentionCache((torch.empty(shape), torch.empty(shape)), appended=False) for _ in self.layers]

    def forward(self, tokens: Tensor, caches: Caches | None = None) -> tuple[Tensor, Caches]:
        """Return the logits, and the caches with these tokens appended. The tokens follow those in `caches`."""
        x = self.embedding(tokens)
        if self.sinusoidal:
            x = x + sinusoids(tokens.shape[1], caches[0].length if caches else 0)
        new_caches = []
        for index, (layer, attention) in enumerate(zip(self.layers, self.attention, strict=True)):
            x, cache = layer(x, attention, caches[index] if caches else None)
            new_caches.append(cache)
        return self.logits(self.norm(x)), new_caches


def sinusoids(n: int, first: int) -> Tensor:
    """Return the sinusoidal encodings of the positions first … first + n − 1: (n, DIM).

    The first half holds sines, the second half cosines. Wavelengths go from 2π to 10,000 · 2π.
    """
    rates = torch.exp(torch.arange(0, DIM, 2) * (-math.log(10_000.0) / DIM))
    angles = torch.arange(first, first + n)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def crop(piece: Tensor, generator: random.Random) -> tuple[Tensor, Tensor]:
    """Return CROP tokens of a transposed piece, and the next token of each, both (CROP,).

    A crop begins on a random beat. One in four begins at the start of the piece.
    """
    beats = max(0, len(piece) - CROP // 4) // BEAT
    start = 4 * BEAT * (0 if generator.random() < 0.25 else generator.randint(0, beats))
    piece = transpose(piece, generator.randint(-SHIFT, SHIFT))
    tokens = F.pad(to_tokens(piece), (1, 0), value=START)[start : start + CROP + 1]
    source, target = tokens[:-1], tokens[1:]
    padding = (0, CROP - len(source))
    return F.pad(source, padding, value=START), F.pad(target, padding, value=NO_TARGET)


def fit(model: Decoder, pieces: list[Tensor], steps: int, seed: int, bfloat16: bool) -> None:
    """Train on BATCH crops per step. The probability of a piece is proportional to its length.

    Matrix products are in bfloat16 if `bfloat16` is True, in float32 otherwise.
    """
    generator = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps, pct_start=0.2)
    model.train()
    for _ in range(steps):
        batch = generator.choices(pieces, [len(piece) for piece in pieces], k=BATCH)
        source, target = map(torch.stack, zip(*(crop(piece, generator) for piece in batch), strict=True))
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits, _ = model(source)
        loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), ignore_index=NO_TARGET)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


@torch.inference_mode()
def score(model: Decoder, tokens: Tensor, previous: int = START) -> Tensor:
    """Score tokens, (n,), in one pass that begins with the token `previous`.

    Returns:
        (n, 2): −log p of each token in nats, and 1 where the token is the most probable one.
    """
    logits = model(F.pad(tokens[:-1], (1, 0), value=previous)[None])[0][0]
    return torch.stack((F.cross_entropy(logits, tokens, reduction="none"), logits.argmax(-1) == tokens), dim=-1)


def score_in_windows(model: Decoder, tokens: Tensor) -> Tensor:
    """Score tokens like `score`, but in overlapping windows of CROP tokens.

    No position is larger than in training. Each token sees at least CROP / 2 earlier tokens, except at the start of the
    piece.
    """
    half = CROP // 2
    scores = [score(model, tokens[:CROP])]
    for start in range(half, len(tokens) - half, half):
        scores.append(score(model, tokens[start : start + CROP], previous=int(tokens[start - 1]))[half:])
    return torch.cat(scores)


def join_pieces(pieces: list[Tensor], length: int) -> list[Tensor]:
    """Concatenate the tokens of all pieces in ORDERS random orders, and cut them into rows of `length` tokens.

    Each row starts with a new piece. The last row of an order may be shorter.
    """
    rows = []
    for order in range(ORDERS):
        row = torch.empty(0, dtype=torch.long)
        for piece in random.Random(order).sample(pieces, len(pieces)):
            row = torch.cat((row, to_tokens(piece)))
            if len(row) >= length:
                rows.append(row[:length])
                row = row[:0]
        rows.append(row)
    return [row for row in rows if len(row) > 0]


Bins = list[list[float]]  # per CROP positions: sum of nats, number of correct tokens, number of tokens


def bins(scores: list[Tensor]) -> Bins:
    """Sum scores, (n, 2) each, by position into bins of CROP positions."""
    parts = [
        torch.cat([row[start : start + CROP] for row in scores]) for start in range(0, max(map(len, scores)), CROP)
    ]
    return [[*part.double().sum(0).tolist(), len(part)] for part in parts]


def mean_nats(binned: Bins, low: int = 0, high: int | None = None) -> float:
    """Return the mean nats per token of the bins low … high − 1. NaN if these have no tokens."""
    count = sum(count for _, _, count in binned[low:high])
    return sum(total for total, _, _ in binned[low:high]) / count if count else math.nan


class CountModel:
    """Note probabilities by counting in the training pieces.

    The context of a note is its voice, the last note of the voice, the position in the beat and the previous note. The
    estimate for each longer context is smoothed with that of the next shorter one, which counts as PRIOR notes.
    """

    def __init__(self, pieces: list[Tensor]) -> None:
        self.token_counts: Counter[tuple[int, ...]] = Counter()  # by context and token
        self.context_counts: Counter[tuple[int, ...]] = Counter()  # by context
        for piece, shift in itertools.product(pieces, range(-SHIFT, SHIFT + 1)):
            for contexts, token in self.contexts(to_tokens(transpose(piece, shift))):
                self.context_counts.update(contexts)
                self.token_counts.update((*context, token) for context in contexts)

    @staticmethod
    def contexts(tokens: Tensor) -> Iterator[tuple[list[tuple[int, ...]], int]]:
        """Yield each token with its contexts, from the shortest to the longest."""
        past = [START] * 4 + tokens.tolist()
        for index, token in enumerate(past[4:]):
            context = index % 4, past[index], index // 4 % BEAT, past[index + 3]
            yield [context[:n] for n in range(1, 5)], token

    def score(self, tokens: Tensor) -> Tensor:
        """Return −log p of each token, (n,), in nats."""
        nats = []
        for contexts, token in self.contexts(tokens):
            p = 1 / START  # uniform over all pitches and silence
            for context in contexts:
                p = (self.token_counts[*context, token] + PRIOR * p) / (self.context_counts[context] + PRIOR)
            nats.append(-math.log(p))
        return torch.tensor(nats)


def is_held(piece: Tensor) -> Tensor:
    """Return whether each note repeats the previous note of its voice: (steps − 1, 4)."""
    return piece[1:] == piece[:-1]


def voices_in_order(piece: Tensor) -> Tensor:
    """Return whether no voice is above the next higher voice, per step: (steps,)."""
    return (piece[:, 1:] <= piece[:, :-1]).all(dim=1)


def fraction(flags: Tensor) -> float:
    """Return the fraction of flags that are True."""
    return flags.float().mean().item()


@torch.inference_mode()
def sample(model: Decoder, primer: Tensor, length: int, temperature: float, seed: int) -> Tensor:
    """Continue the tokens of `primer` to `length` tokens, sampled one at a time: (length,)."""
    generator = torch.Generator().manual_seed(seed)
    caches = model.empty_caches(length)
    sampled, tokens = [primer], F.pad(primer, (1, 0), value=START)
    for _ in range(length - len(primer)):
        logits, caches = model(tokens[None], caches)
        tokens = (logits[0, -1, :START] / temperature).softmax(-1).multinomial(1, generator=generator)
        sampled.append(tokens)
    return torch.cat(sampled)


def notes(voice: Tensor) -> Iterator[tuple[int, int, int]]:
    """Yield the pitch, first step and number of steps of each note of a voice, (steps,).

    A repeated pitch is one long note.
    """
    start = 0
    for pitch, group in itertools.groupby(voice.tolist()):
        length = len(list(group))
        if pitch >= 0:
            yield pitch, start, length
        start += length


def to_midi(piece: Tensor) -> mido.MidiFile:
    """Convert a piece, (steps, 4), to a MIDI file with one track per voice and a choir as instrument."""
    file = mido.MidiFile()
    ticks = file.ticks_per_beat // BEAT
    file.add_track().append(mido.MetaMessage("set_tempo", tempo=mido.bpm2tempo(TEMPO)))
    for channel, name in enumerate(VOICES):
        track = file.add_track(name)
        track.append(mido.Message("program_change", channel=channel, program=52))
        end = 0
        for pitch, start, length in notes(piece[:, channel]):
            track.append(mido.Message("note_on", channel=channel, note=pitch, time=ticks * (start - end)))
            track.append(mido.Message("note_off", channel=channel, note=pitch, time=ticks * length))
            end = start + length
    return file


def draw_roll(piece: Tensor, primer: int, path: Path) -> None:
    """Save a piano roll of the first and last 16 bars of a piece, (steps, 4). The first `primer` steps are shaded."""
    figure = Figure((10, 5), layout="constrained")
    width = min(16 * BAR, len(piece))
    for axes, first in zip(figure.subplots(2, sharey=True), (0, len(piece) - width), strict=True):
        for number, name in enumerate(VOICES):
            for pitch, start, length in notes(piece[first : first + width, number]):
                edges = (first + start) / BAR, (first + start + length) / BAR
                axes.plot(edges, (pitch, pitch), f"C{number}", linewidth=3, solid_capstyle="butt")
            axes.plot([], [], f"C{number}", linewidth=3, label=name)
        axes.axvspan(0, primer / BAR, color="0.9")
        axes.set(xlim=(first / BAR, (first + width) / BAR), ylabel="MIDI pitch")
        axes.set_xticks(range(math.ceil(first / BAR), (first + width) // BAR + 1))
        axes.grid(axis="x", linewidth=0.5)
    axes.set_xlabel("bars; shaded: the primer, from validation")
    axes.legend(ncols=4, loc="upper right", fontsize="small")
    figure.savefig(path, dpi=90)


def draw_positions(figures: list[dict[str, Any]], path: Path) -> None:
    """Save a plot of nats per note by position in the joined pieces.

    Each scheme has a line for its mean, fainter lines for its seeds, and a dotted line for windows.
    """
    figure = Figure((8, 4), layout="constrained")
    axes = figure.subplots()
    for number, (scheme, runs) in enumerate(by_scheme(figures)):
        lines = {key: [[mean_nats([one]) for one in run[key]] for run in runs] for key in ("joined", "joined, windows")}
        mean = {key: [sum(column) / len(column) for column in zip(*rows, strict=True)] for key, rows in lines.items()}
        centers = [CROP * (index + 0.5) for index in range(len(mean["joined"]))]
        for line in lines["joined"]:
            axes.plot(centers, line, color=f"C{number}", alpha=0.25)
        axes.plot(centers, mean["joined"], f"C{number}o-", label=scheme)
        axes.plot(centers, mean["joined, windows"], f"C{number}:", label=f"{scheme}, in windows")
    axes.axvline(CROP, color="0.5", linewidth=0.8)
    axes.set(xlabel=f"position in the joined pieces; training ends at {CROP}", ylabel="nats per note")
    axes.set_yscale("log")
    axes.set_yticks(ticks := (0.4, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6), [f"{tick:g}" for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.legend(loc=(0.2, 0.31), ncols=3, fontsize="small")
    figure.savefig(path, dpi=90)


def by_scheme(figures: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Group runs by scheme, in the order of SCHEMES."""
    groups = ((scheme, [run for run in figures if run["scheme"] == scheme]) for scheme in SCHEMES)
    return [(scheme, runs) for scheme, runs in groups if runs]


def evaluate(model: Decoder, pieces: list[Tensor], length: int) -> dict[str, Bins]:
    """Score `pieces` whole and in windows, and joined to rows of `length` tokens, again whole and in windows."""
    whole, rows = [to_tokens(piece) for piece in pieces], join_pieces(pieces, length)
    return {
        "whole": bins([score(model, tokens) for tokens in whole]),
        "windows": bins([score_in_windows(model, tokens) for tokens in whole]),
        "joined": bins([score(model, tokens) for tokens in rows]),
        "joined, windows": bins([score_in_windows(model, tokens) for tokens in rows]),
    }


def run(scheme: str, settings: dict[str, Any], data: dict[str, list[Tensor]], out: Path) -> dict[str, Any]:
    """Train and evaluate one model, let it continue a piece, and save everything in `out`.

    If `out` already has the results of this run, they are read instead.

    Returns:
        The settings and results of the run, which are also in its JSON file.
    """
    name = f"{scheme}-{settings['seed']}"
    path = out / f"{name}.json"
    if path.exists():
        return read_run(path, settings)
    torch.manual_seed(settings["seed"])
    model = Decoder(scheme)
    started = time.process_time()
    fit(model, data["train"], settings["steps"], settings["seed"], settings["bfloat16"])
    figures = {"scheme": scheme, **settings, "train_seconds": round(time.process_time() - started)}
    figures["weights"] = sum(weight.numel() for weight in model.parameters())
    length = 4 * max(to_tokens(piece).numel() for piece in data["train"])
    figures |= evaluate(model, data["valid"], math.ceil(length / CROP) * CROP)
    primer = to_tokens(data["valid"][0][:PRIMER])
    piece = to_steps(sample(model, primer, length, settings["temperature"], settings["seed"]))
    figures |= {"held": [fraction(is_held(part)) for part in piece.chunk(4)]}
    figures |= {"in order": [fraction(voices_in_order(part)) for part in piece.chunk(4)]}
    save_model(model, str(out / f"{name}.safetensors"))
    to_midi(piece).save(out / f"{name}.mid")
    draw_roll(piece, PRIMER, out / f"{name}.png")
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(figures))
    unfinished.replace(path)
    return figures


def read_run(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Read the results of a finished run.

    Raises:
        ValueError: the file is malformed, or the run had other settings.
    """
    try:
        figures = json.loads(path.read_text())
        row(figures)  # `row` and the next line read all results that are printed or plotted
        values = {name: figures[name] for name in (*settings, "joined, windows", "held", "in order")}
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} must contain the results of a finished run; delete it to run again") from error
    for name, value in settings.items():
        if values[name] != value:
            raise ValueError(
                f"{path}: --{name} must be {values[name]} as in the finished run, got {value}; choose another --out"
            )
    return figures


EDGES = ((0, 1), (1, 2), (2, 4), (4, 8), (8, None))  # ranges of bins per column of the table


def row(run: dict[str, Any]) -> list[float]:
    """Return the columns of the table for one run.

    These are nats and accuracy of whole pieces, nats in windows, nats by position in the joined pieces, and the
    seconds of training.
    """
    accuracy = sum(correct for _, correct, _ in run["whole"]) / sum(count for _, _, count in run["whole"])
    by_position = [mean_nats(run["joined"], *edge) for edge in EDGES]
    return [mean_nats(run["whole"]), accuracy, mean_nats(run["windows"]), *by_position, run["train_seconds"]]


def print_row(name: str, columns: list[float]) -> None:
    """Print one row of the table."""
    whole, accuracy, *middle, seconds = columns
    nats = "".join(f"{x:8.4f}" for x in middle)
    print(f"{name:24}{whole:8.4f}{accuracy:8.2%}{nats}{seconds:8.0f}", flush=True)


def print_baselines(data: dict[str, list[Tensor]]) -> None:
    """Print the fraction of notes that repeat the previous one of their voice, and the nats of the count model."""
    repeated = sum(int(is_held(piece).sum()) for piece in data["valid"]) / sum(piece.numel() for piece in data["valid"])
    print(f"{'repeat last note':24}{'':8}{repeated:8.2%}")
    count_model = CountModel(data["train"])
    scores = torch.cat([count_model.score(to_tokens(piece)) for piece in data["valid"]])
    print(f"{'count model':24}{scores.mean():8.4f}", flush=True)


def print_sample_statistics(figures: list[dict[str, Any]], pieces: list[Tensor]) -> None:
    """Print the fractions of steps with voices in order and of held notes, by quarter of each sampled piece.

    The first row has the same fractions of the validation pieces.
    """
    print(f"\n{'by quarter':24}{'voices in order':36}notes held")
    measured = {f"{run['scheme']}, seed {run['seed']}": (run["in order"], run["held"]) for run in figures}
    whole = [[fraction(torch.cat([measure(piece) for piece in pieces]))] * 4 for measure in (voices_in_order, is_held)]
    for name, (ordered, repeated) in {"validation, whole": whole, **measured}.items():
        print(f"{name:24}" + "".join(f"{x:8.1%}" for x in ordered) + "    " + "".join(f"{x:8.1%}" for x in repeated))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train models of four-voice chorales with relative, sinusoidal and no positions, and compare them."
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data/jsb_chorales"),
        help="directory with chorales.json.gz (default: %(default)s)",
    )
    parser.add_argument(
        "--scheme", nargs="+", choices=SCHEMES, default=SCHEMES, help="position schemes to train (default: all)"
    )
    parser.add_argument(
        "--seed", nargs="+", type=int, default=[0], help="random seeds; each scheme trains once per seed (default: 0)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=2000,
        help=f"number of training steps, on {BATCH} crops of {CROP} notes each (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature", type=float, default=0.9, help="sampling temperature, from 0.01 to 100 (default: %(default)s)"
    )
    parser.add_argument(
        "--bfloat16",
        action="store_true",
        help="train with bfloat16 matrix products, which is faster on processors that support them",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/chorales"),
        help="output directory; finished runs in it are read, not repeated (default: %(default)s)",
    )
    arguments = parser.parse_args()
    try:
        if arguments.steps < 10:
            raise ValueError(f"--steps must be at least 10, got {arguments.steps}")
        if not 0.01 <= arguments.temperature <= 100:
            raise ValueError(f"--temperature must be from 0.01 to 100, got {arguments.temperature}")
        if not all(0 <= seed < 2**63 for seed in arguments.seed):
            raise ValueError(f"--seed must be from 0 to 2^63 − 1, got {arguments.seed}")
        data = read(arguments.data)
        arguments.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{error}\n")

    edges = [f"{CROP * low}–" for low, _ in EDGES]
    print(f"{'':24}" + "".join(f"{name:>8}" for name in ("whole", "correct", "windows", *edges, "seconds")))
    print_baselines(data)
    figures = []
    for seed, scheme in itertools.product(arguments.seed, arguments.scheme):
        settings = {name: getattr(arguments, name) for name in ("steps", "temperature", "bfloat16")} | {"seed": seed}
        try:
            figures.append(run(scheme, settings, data, arguments.out))
        except ValueError as error:
            parser.exit(2, f"{error}\n")
        print_row(f"{scheme}, seed {seed}", row(figures[-1]))
    for scheme, runs in by_scheme(figures):
        print_row(f"{scheme}, mean", [sum(column) / len(column) for column in zip(*map(row, runs), strict=True)])
    print_sample_statistics(figures, data["valid"])
    draw_positions(figures, arguments.out / "positions.png")


if __name__ == "__main__":
    main()
