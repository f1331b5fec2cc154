"""Music: long sequences with relative positions, with sinusoids, and with none.

A decoder reads chorales of four voices note by note, soprano, alto, tenor and bass of a sixteenth in turn, and gives
each note's probability from all before it. Its layers attend as in Shaw et al. 2018, causally,

    e_ij = scale · q_i · (k_j + aK_ij)        α_i = softmax_{j ≤ i} e_ij        z_i = Σ_j α_ij (v_j + aV_ij)

where aK_ij and aV_ij depend on max(j − i, −CLIP) alone. Three schemes, which otherwise start from the same numbers and
see the same crops of music, transposed alike:

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
BEAT, BAR = 4, 16  # in steps, which are sixteenths
LOWEST, HIGHEST = 21, 108  # a piano's pitches
SILENCE, START, TOKENS = 128, 129, 130  # a note's token is its pitch; START stands before a piece
UNSEEN = -100  # a target that `cross_entropy` passes over


def read(folder: Path) -> dict[str, list[Tensor]]:
    """The pieces of each split, (steps, 4) each; ValueError says in one line what is wrong and where."""
    path = folder / "chorales.json.gz"
    try:
        splits = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
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


DIM, HEADS, LAYERS, FEED_FORWARD = 128, 4, 4, 512
CLIP = 2 * BAR * 4
CROP, BATCH = 512, 4  # notes of a crop, crops of a step
SHIFT = 3  # semitones, by as many as that up or down a crop is transposed
RATE = 3e-3  # of learning, the highest
ORDERS = 2  # in which validation's pieces are joined
PRIOR = 10  # notes, of `Counts`
PRIMER = 2 * BAR  # steps
TEMPO = 80
Caches = list[AttentionCache]


class Layer(nn.Module):
    """Self-attention and a feed-forward network, normalised before each: (batch, n, DIM) -> (batch, n, DIM)."""

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
        attended = attention(query, key, value, is_causal=True)  # the queries are the last of the keys
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.feed_forward(self.norms[1](x)), cache


class Decoder(nn.Module):
    """Tokens (batch, n) to the logits of each one's successor, (batch, n, TOKENS)."""

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.sinusoidal = scheme == "sinusoidal"
        self.embedding = nn.Embedding(TOKENS, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.logits = nn.LayerNorm(DIM), nn.Linear(DIM, TOKENS)
        tables: Any = "both" if scheme == "relative" else "neither"  # the last, so that all else starts alike
        self.attention = nn.ModuleList(RelativeAttention(DIM // HEADS, (CLIP, 0), tables=tables) for _ in range(LAYERS))

    def empty_caches(self, capacity: int) -> Caches:
        """A cache a layer, of one sequence, with room for `capacity` tokens."""
        room = 1, HEADS, capacity, DIM // HEADS
        return [AttentionCache((torch.empty(room), torch.empty(room)), appended=False) for _ in self.layers]

    def forward(self, tokens: Tensor, caches: Caches | None = None) -> tuple[Tensor, Caches]:
        """The logits, and the caches with these tokens in them; the tokens follow those that `caches` hold."""
        x = self.embedding(tokens)
        if self.sinusoidal:
            x = x + sinusoids(tokens.shape[1], caches[0].length if caches else 0)
        kept = []
        for index, (layer, attention) in enumerate(zip(self.layers, self.attention, strict=True)):
            x, cache = layer(x, attention, caches[index] if caches else None)
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


def fit(model: Decoder, pieces: list[Tensor], steps: int, seed: int, bfloat16: bool) -> None:
    """Each step takes BATCH crops, of pieces drawn by their length; products are in float32 or in bfloat16."""
    generator = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps, pct_start=0.2)
    model.train()
    for _ in range(steps):
        drawn = generator.choices(pieces, [len(piece) for piece in pieces], k=BATCH)
        source, target = map(torch.stack, zip(*(crop(piece, generator) for piece in drawn), strict=True))
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits, _ = model(source)
        loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), ignore_index=UNSEEN)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


@torch.inference_mode()
def score(model: Decoder, tokens: Tensor, before: int = START) -> Tensor:
    """−log p of each token, given `before` and the tokens before it, and whether no other had more: (n, 2) of (n,)."""
    logits = model(F.pad(tokens[:-1], (1, 0), value=before)[None])[0][0]
    return torch.stack((F.cross_entropy(logits, tokens, reduction="none"), logits.argmax(-1) == tokens), dim=-1)


def score_in_windows(model: Decoder, tokens: Tensor) -> Tensor:
    """As `score`, but each token is given CROP at most, and half of that or more: no position is past training's."""
    half = CROP // 2
    scores = [score(model, tokens[:CROP])]
    for start in range(half, len(tokens) - half, half):
        scores.append(score(model, tokens[start : start + CROP], before=int(tokens[start - 1]))[half:])
    return torch.cat(scores)


def joined(pieces: list[Tensor], length: int) -> list[Tensor]:
    """The tokens of pieces one after another, each row from the start of a piece to `length`, where it is cut; the last
    may be shorter. All pieces in ORDERS random orders."""
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


Bins = list[list[float]]


def bins(scores: list[Tensor]) -> Bins:
    """By position, CROP to a bin: the sums of nats and of right guesses, and the number of tokens."""
    parts = [
        torch.cat([row[start : start + CROP] for row in scores]) for start in range(0, max(map(len, scores)), CROP)
    ]
    return [[*part.double().sum(0).tolist(), len(part)] for part in parts]


def nats(binned: Bins, low: int = 0, high: int | None = None) -> float:
    """The mean over the bins low … high − 1, NaN where there are none."""
    count = sum(count for _, _, count in binned[low:high])
    return sum(total for total, _, _ in binned[low:high]) / count if count else math.nan


class Counts:
    """Probabilities by counting, in contexts from none to all of: voice, its last note, the place in the beat, the note
    just before. Each context's counts are joined by PRIOR notes shared out as the context before it has them."""

    def __init__(self, pieces: list[Tensor]) -> None:
        self.seen: Counter[tuple[int, ...]] = Counter()  # by context and token
        self.total: Counter[tuple[int, ...]] = Counter()  # by context
        for piece, shift in itertools.product(pieces, range(-SHIFT, SHIFT + 1)):
            for contexts, token in self.contexts(to_tokens(transposed(piece, shift))):
                self.total.update(contexts)
                self.seen.update((*context, token) for context in contexts)

    @staticmethod
    def contexts(tokens: Tensor) -> Iterator[tuple[list[tuple[int, ...]], int]]:
        """Each token with its contexts, the widest first."""
        past = [START] * 4 + tokens.tolist()
        for index, token in enumerate(past[4:]):
            whole = index % 4, past[index], index // 4 % BEAT, past[index + 3]
            yield [whole[:n] for n in range(1, 5)], token

    def score(self, tokens: Tensor) -> Tensor:
        """−log p of each token, (n,)."""
        nats = []
        for contexts, token in self.contexts(tokens):
            p = 1 / START  # of all pitches and silence
            for context in contexts:
                p = (self.seen[*context, token] + PRIOR * p) / (self.total[context] + PRIOR)
            nats.append(-math.log(p))
        return torch.tensor(nats)


def held(piece: Tensor) -> Tensor:
    """Whether each note after the first of its voice is the one before: (steps − 1, 4)."""
    return piece[1:] == piece[:-1]


def in_order(piece: Tensor) -> Tensor:
    """Whether no voice of a step is above the one before it: (steps,) of (steps, 4)."""
    return (piece[:, 1:] <= piece[:, :-1]).all(dim=1)


def share(flags: Tensor) -> float:
    return flags.float().mean().item()


@torch.inference_mode()
def write(model: Decoder, primer: Tensor, length: int, temperature: float, seed: int) -> Tensor:
    """The tokens of the primer and those drawn to follow it, one at a time: (length,)."""
    generator = torch.Generator().manual_seed(seed)
    caches = model.empty_caches(length)
    written, tokens = [primer], F.pad(primer, (1, 0), value=START)
    for _ in range(length - len(primer)):
        logits, caches = model(tokens[None], caches)
        tokens = (logits[0, -1, :START] / temperature).softmax(-1).multinomial(1, generator=generator)
        written.append(tokens)
    return torch.cat(written)


def notes(voice: Tensor) -> Iterator[tuple[int, int, int]]:
    """The pitch, first step and steps of each note of a voice, (steps,); a pitch that stays is one note, held."""
    start = 0
    for pitch, group in itertools.groupby(voice.tolist()):
        length = len(list(group))
        if pitch >= 0:
            yield pitch, start, length
        start += length


def to_midi(piece: Tensor) -> mido.MidiFile:
    """(steps, 4) as a track a voice, sung by a choir at TEMPO beats a minute."""
    file = mido.MidiFile()
    ticks = file.ticks_per_beat // BEAT
    file.add_track().append(mido.MetaMessage("set_tempo", tempo=mido.bpm2tempo(TEMPO)))
    for channel, name in enumerate(VOICES):
        track = file.add_track(name)
        track.append(mido.Message("program_change", channel=channel, program=52))
        ended = 0
        for pitch, start, length in notes(piece[:, channel]):
            track.append(mido.Message("note_on", channel=channel, note=pitch, time=ticks * (start - ended)))
            track.append(mido.Message("note_off", channel=channel, note=pitch, time=ticks * length))
            ended = start + length
    return file


def draw_roll(piece: Tensor, primer: int, path: Path) -> None:
    """The first and the last 16 bars of a piece, (steps, 4), as a piano roll; the first `primer` steps are shaded."""
    figure = Figure((10, 5), layout="constrained")
    shown = min(16 * BAR, len(piece))
    for axes, first in zip(figure.subplots(2, sharey=True), (0, len(piece) - shown), strict=True):
        for number, name in enumerate(VOICES):
            for pitch, start, length in notes(piece[first : first + shown, number]):
                edges = (first + start) / BAR, (first + start + length) / BAR
                axes.plot(edges, (pitch, pitch), f"C{number}", linewidth=3, solid_capstyle="butt")
            axes.plot([], [], f"C{number}", linewidth=3, label=name)
        axes.axvspan(0, primer / BAR, color="0.9")
        axes.set(xlim=(first / BAR, (first + shown) / BAR), ylabel="MIDI pitch")
        axes.set_xticks(range(math.ceil(first / BAR), (first + shown) // BAR + 1))
        axes.grid(axis="x", linewidth=0.5)
    axes.set_xlabel("bars; shaded: the primer, from validation")
    axes.legend(ncols=4, loc="upper right", fontsize="small")
    figure.savefig(path, dpi=90)


def draw_positions(figures: list[dict[str, Any]], path: Path) -> None:
    """Nats a note by position in the joined pieces: each scheme's mean, its seeds fainter, windows dotted."""
    figure = Figure((8, 4), layout="constrained")
    axes = figure.subplots()
    for number, (scheme, runs) in enumerate(by_scheme(figures)):
        lines = {way: [[nats([one]) for one in run[way]] for run in runs] for way in ("joined", "joined, windows")}
        mean = {way: [sum(many) / len(many) for many in zip(*every, strict=True)] for way, every in lines.items()}
        middles = [CROP * (index + 0.5) for index in range(len(mean["joined"]))]
        for line in lines["joined"]:
            axes.plot(middles, line, color=f"C{number}", alpha=0.25)
        axes.plot(middles, mean["joined"], f"C{number}o-", label=scheme)
        axes.plot(middles, mean["joined, windows"], f"C{number}:", label=f"{scheme}, in windows")
    axes.axvline(CROP, color="0.5", linewidth=0.8)
    axes.set(xlabel=f"position in the joined pieces; training ends at {CROP}", ylabel="nats a note")
    axes.set_yscale("log")
    axes.set_yticks(ticks := (0.4, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6), [f"{tick:g}" for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.legend(loc=(0.2, 0.31), ncols=3, fontsize="small")
    figure.savefig(path, dpi=90)


def by_scheme(figures: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    groups = ((scheme, [run for run in figures if run["scheme"] == scheme]) for scheme in SCHEMES)
    return [(scheme, runs) for scheme, runs in groups if runs]


def evaluate(model: Decoder, pieces: list[Tensor], length: int) -> dict[str, Bins]:
    """The bins of all that a model is scored on: `pieces` whole, in windows, and joined to `length`, in both ways."""
    whole, rows = [to_tokens(piece) for piece in pieces], joined(pieces, length)
    return {
        "whole": bins([score(model, tokens) for tokens in whole]),
        "windows": bins([score_in_windows(model, tokens) for tokens in whole]),
        "joined": bins([score(model, tokens) for tokens in rows]),
        "joined, windows": bins([score_in_windows(model, tokens) for tokens in rows]),
    }


def run(scheme: str, settings: dict[str, Any], data: dict[str, list[Tensor]], out: Path) -> dict[str, Any]:
    """Trains, scores and writes; the figures, which are read where this run is in `out` already."""
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
    piece = to_steps(write(model, primer, length, settings["temperature"], settings["seed"]))
    figures |= {"held": [share(held(part)) for part in piece.chunk(4)]}
    figures |= {"in order": [share(in_order(part)) for part in piece.chunk(4)]}
    save_model(model, str(out / f"{name}.safetensors"))
    to_midi(piece).save(out / f"{name}.mid")
    draw_roll(piece, PRIMER, out / f"{name}.png")
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(figures))
    unfinished.replace(path)
    return figures


def read_run(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The figures of a finished run, whose settings must be these."""
    try:
        figures = json.loads(path.read_text())
        row(figures)  # this and what is looked up next are all that is shown of them
        found = {name: figures[name] for name in (*settings, "joined, windows", "held", "in order")}
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: no figures of a finished run; delete it to run again") from error
    for name, value in settings.items():
        if found[name] != value:
            raise ValueError(f"{path}: it was run with --{name} {found[name]}, not {value}; name another --out")
    return figures


EDGES = ((0, 1), (1, 2), (2, 4), (4, 8), (8, None))  # of the bins that a column of the table joins


def row(run: dict[str, Any]) -> list[float]:
    """Nats whole, share right whole, nats in windows; nats in the joined pieces by position; seconds of training."""
    right = sum(right for _, right, _ in run["whole"]) / sum(count for _, _, count in run["whole"])
    by_position = [nats(run["joined"], *edge) for edge in EDGES]
    return [nats(run["whole"]), right, nats(run["windows"]), *by_position, run["train_seconds"]]


def show(name: str, columns: list[float]) -> None:
    whole, right, *middle, seconds = columns
    print(f"{name:24}{whole:8.4f}{right:8.2%}" + "".join(f"{x:8.4f}" for x in middle) + f"{seconds:8.0f}", flush=True)


def baselines(data: dict[str, list[Tensor]]) -> None:
    """The share of notes that are the one before, and nats by counting."""
    same = sum(int(held(piece).sum()) for piece in data["valid"]) / sum(piece.numel() for piece in data["valid"])
    print(f"{'the last note again':24}{'':8}{same:8.2%}")
    counts = Counts(data["train"])
    scores = torch.cat([counts.score(to_tokens(piece)) for piece in data["valid"]])
    print(f"{'counts':24}{scores.mean():8.4f}", flush=True)


def report_written(figures: list[dict[str, Any]], pieces: list[Tensor]) -> None:
    """What the models wrote beside validation's pieces, by quarter: steps with the voices in order, notes held."""
    print(f"\n{'by quarter':24}{'voices in order':36}notes held")
    measured = {f"{run['scheme']}, seed {run['seed']}": (run["in order"], run["held"]) for run in figures}
    whole = [[share(torch.cat([measure(piece) for piece in pieces]))] * 4 for measure in (in_order, held)]
    for name, (ordered, stayed) in {"validation, whole": whole, **measured}.items():
        print(f"{name:24}" + "".join(f"{x:8.1%}" for x in ordered) + "    " + "".join(f"{x:8.1%}" for x in stayed))


def main() -> None:
    parser = argparse.ArgumentParser(description="Model four-voice chorales with relative positions and with others.")
    parser.add_argument("--data", type=Path, default=Path("data/jsb_chorales"), help="folder with chorales.json.gz")
    parser.add_argument("--scheme", nargs="+", choices=SCHEMES, default=SCHEMES)
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=2000, help=f"of training, each on {BATCH} crops of {CROP} notes")
    parser.add_argument("--temperature", type=float, default=0.9, help="of what is drawn where the model writes")
    parser.add_argument("--bfloat16", action="store_true", help="train in it, faster where the processor multiplies it")
    parser.add_argument("--out", type=Path, default=Path("runs/chorales"), help="finished runs in it are not run again")
    arguments = parser.parse_args()
    try:
        if arguments.steps < 10:
            raise ValueError(f"--steps {arguments.steps}: it is at least 10")
        if not 0.01 <= arguments.temperature <= 100:
            raise ValueError(f"--temperature {arguments.temperature}: it is from 0.01 to 100")
        if not all(0 <= seed < 2**63 for seed in arguments.seed):
            raise ValueError(f"--seed {arguments.seed}: each is from 0 to 2^63 − 1")
        data = read(arguments.data)
        arguments.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{error}\n")

    edges = [f"{CROP * low}–" for low, _ in EDGES]
    print(f"{'':24}" + "".join(f"{name:>8}" for name in ("whole", "right", "windows", *edges, "seconds")))
    baselines(data)
    figures = []
    for seed, scheme in itertools.product(arguments.seed, arguments.scheme):
        settings = {name: getattr(arguments, name) for name in ("steps", "temperature", "bfloat16")} | {"seed": seed}
        try:
            figures.append(run(scheme, settings, data, arguments.out))
        except ValueError as error:
            parser.exit(2, f"{error}\n")
        show(f"{scheme}, seed {seed}", row(figures[-1]))
    for scheme, runs in by_scheme(figures):
        show(f"{scheme}, mean", [sum(many) / len(many) for many in zip(*map(row, runs), strict=True)])
    report_written(figures, data["valid"])
    draw_positions(figures, arguments.out / "positions.png")


if __name__ == "__main__":
    main()
