"""Tests of examples/chorales.py: reading, models, scores, sampling, MIDI files, output and error messages."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import mido
import pytest
import torch
from safetensors.torch import load_model

from examples import chorales as example
from examples.chorales import SCHEMES, SILENCE, START

ROOT = Path(__file__).parents[1]
SETTINGS = {"steps": 10, "temperature": 0.9, "bfloat16": False}
FILES = (".json", ".mid", ".png", ".safetensors")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink the model and the crops. Sizes are distinct, and prime where possible."""
    small = {"DIM": 22, "HEADS": 1, "LAYERS": 3, "FEED_FORWARD": 13, "CLIP": 7, "CROP": 32, "BATCH": 3, "PRIMER": 3}
    for name, value in small.items():
        monkeypatch.setattr(example, name, value)


def music(steps: int, seed: int) -> torch.Tensor:
    """Generate a random piece with held notes and silences: (steps, 4)."""
    generator = random.Random(seed)
    piece = []
    notes = [60, 57, 52, 45]
    for _ in range(steps):
        notes = [note if generator.random() < 0.7 else generator.choice([-1, *range(40, 64)]) for note in notes]
        piece.append(notes)
    return torch.tensor(piece)


def decoder(scheme: str, seed: int = 0) -> example.Decoder:
    """Build a decoder with random numbers in all weights, biases included."""
    torch.manual_seed(seed)
    model = example.Decoder(scheme).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def fill(folder: Path, content: object | None = None) -> Path:
    """Write the data file into `folder` and return the folder."""
    if content is None:
        content = {
            "train": [music(n, n).tolist() for n in (8, 9, 12)],
            "valid": [music(n, n).tolist() for n in (9, 16)],
        }
    data = content if isinstance(content, bytes) else gzip.compress(json.dumps(content).encode())
    (folder / "chorales.json.gz").write_bytes(data)
    return folder


def test_tokens_round_trip():
    piece = torch.tensor([[72, 67, 60, -1], [72, -1, 59, 43]])
    tokens = example.to_tokens(piece)
    assert tokens.tolist() == [72, 67, 60, SILENCE, 72, SILENCE, 59, 43]
    assert torch.equal(example.to_steps(tokens), piece)
    assert torch.equal(example.to_steps(example.to_tokens(music(11, 1))), music(11, 1))


def test_transposing_keeps_silence():
    assert example.transpose(torch.tensor([[72, 67, 60, -1]]), -3).tolist() == [[69, 64, 57, -1]]


@pytest.mark.whole
def test_crops_are_parts_of_the_piece(monkeypatch):
    """Each crop is a part of the transposed piece that starts on a beat. The source is the target delayed by one."""
    generator = random.Random(2)
    piece = music(45, 3)
    starts = Counter()
    for _ in range(300):
        source, target = example.crop(piece, generator)
        assert source.shape == target.shape == (32,)
        assert torch.equal(source[1:], target[:-1])
        matches = []
        for shift, beat in itertools.product(range(-example.SHIFT, example.SHIFT + 1), range(10)):
            tokens = example.to_tokens(example.transpose(piece, shift))
            before = START if beat == 0 else tokens[16 * beat - 1]
            if torch.equal(target, tokens[16 * beat :][:32]) and source[0] == before:
                matches.append((shift, beat))
        assert len(matches) == 1
        starts.update(matches)
    shifts, beats = ({start[index] for start in starts} for index in (0, 1))
    assert shifts == set(range(-example.SHIFT, example.SHIFT + 1))
    assert beats == set(range(10))
    first = sum(count for (_, beat), count in starts.items() if beat == 0)
    assert 0.25 < first / 300 < 0.45  # a quarter, plus a tenth of the rest


def test_a_short_piece_is_padded():
    piece = music(5, 4)
    source, target = example.crop(piece, random.Random(5))
    assert (target[20:] == example.NO_TARGET).all()
    assert (target[:20] != example.NO_TARGET).all()
    assert source[0] == START
    assert source.max() < example.TOKENS


@pytest.mark.parametrize("scheme", SCHEMES)
def test_decoding_with_a_cache_equals_one_pass(scheme):
    """Decode one token at a time after a primer of five tokens, beyond CROP and beyond the capacity of the cache."""
    model, tokens = decoder(scheme), example.to_tokens(music(12, 6))
    with torch.inference_mode():
        whole, _ = model(tokens[None])
        logits, caches = model(tokens[None, :5], model.empty_caches(40))
        parts = [logits]
        for token in tokens[5:]:
            logits, caches = model(token[None, None], caches)
            parts.append(logits)
    assert caches[0].length == 48
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_samples_come_from_the_model(scheme):
    """At a temperature near 0 each token is the most probable next one. START is never sampled."""
    model, primer = decoder(scheme), example.to_tokens(music(3, 7))
    with torch.no_grad():
        model.logits.bias[START] = 100.0
    sampled = example.sample(model, primer, 40, 1e-6, seed=0)
    assert torch.equal(sampled[:12], primer)
    with torch.inference_mode():
        for n in range(12, 40):
            logits, _ = model(torch.cat((torch.tensor([START]), sampled[:n]))[None])
            assert sampled[n] == logits[0, -1, :START].argmax()
    assert torch.equal(example.sample(model, primer, 40, 1.0, seed=1), example.sample(model, primer, 40, 1.0, seed=1))
    assert not torch.equal(
        example.sample(model, primer, 40, 1.0, seed=1), example.sample(model, primer, 40, 1.0, seed=2)
    )


@pytest.mark.whole
def test_samples_follow_the_temperature():
    """The frequencies of many first notes match softmax(logits / T)."""
    model, primer = decoder("none"), torch.empty(0, dtype=torch.long)
    with torch.inference_mode():
        logits, _ = model(torch.tensor([[START]]))
    expected = (logits[0, 0, :START].double() / 2.0).softmax(-1)
    samples = torch.cat([example.sample(model, primer, 1, 2.0, seed) for seed in range(600)])
    frequency = samples.bincount(minlength=START) / 600
    assert (frequency - expected).abs().max() < 4 * (0.25 / 600) ** 0.5


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scores_match_one_pass_per_token(scheme):
    """Compare −log p with a separate pass per note. The last ten notes are the most probable ones."""
    model, tokens = decoder(scheme), example.to_tokens(music(5, 8))
    tokens = example.sample(model, tokens, 30, 1e-6, seed=0)
    scores = example.score(model, tokens)
    for n, token in enumerate(tokens):
        with torch.inference_mode():
            logits, _ = model(torch.cat((torch.tensor([START]), tokens[:n]))[None])
        p = logits[0, -1].double().softmax(-1)
        assert math.isclose(scores[n, 0], -math.log(p[token]), rel_tol=1e-4, abs_tol=1e-4)
        assert bool(scores[n, 1]) == (p.argmax() == token)
    assert scores[20:, 1].all()


@pytest.mark.parametrize("length", [7, 32, 47, 48, 49, 100])
def test_scores_in_windows_match_one_pass_per_token(length):
    """A window starts at the last multiple of 16 that leaves at least 16 tokens before the scored token."""
    model, tokens = decoder("sinusoidal"), example.to_tokens(music(25, 9))[:length]
    scores = example.score_in_windows(model, tokens)
    assert scores.shape == (length, 2)
    for n in range(length):
        start = max(0, n // 16 - 1) * 16
        context = torch.tensor([START if start == 0 else tokens[start - 1], *tokens[start:n]])
        with torch.inference_mode():
            logits, _ = model(context[None])
        assert len(context) <= example.CROP
        assert math.isclose(scores[n, 0], -logits[0, -1].log_softmax(-1)[tokens[n]], rel_tol=1e-4, abs_tol=1e-4)


def test_bins_sum_all_scores():
    scores = [torch.rand(n, 2, generator=torch.Generator().manual_seed(n)) for n in (7, 32, 33, 100)]
    binned = example.bins(scores)
    assert [count for _, _, count in binned] == [7 + 3 * 32, 1 + 32, 32, 4]
    for column in range(2):
        total = torch.cat(scores)[:, column].double().sum()
        assert math.isclose(sum(row[column] for row in binned), total, rel_tol=1e-9)
    assert math.isclose(example.mean_nats(binned), torch.cat(scores)[:, 0].double().mean(), rel_tol=1e-9)
    assert math.isclose(
        example.mean_nats(binned, 1, 3), (scores[2][32:, 0].sum() + scores[3][32:96, 0].sum()) / 65, rel_tol=1e-6
    )


def test_pieces_are_joined():
    """Rows are concatenated pieces, of which only the last may be cut. Each order contains all pieces."""
    pieces = [torch.full((n, 4), 50 + n) for n in (5, 7, 9, 11, 6)]
    rows = example.join_pieces(pieces, 50)
    pieces_by_tokens = {tuple(example.to_tokens(piece).tolist()): len(piece) for piece in pieces}
    lengths = []
    for row in rows:
        left = tuple(row.tolist())
        assert len(left) <= 50
        while left:
            (piece,) = [tokens for tokens in pieces_by_tokens if tokens[: len(left)] == left[: len(tokens)]]
            lengths.append(pieces_by_tokens[piece])
            left = left[len(piece) :]
    orders = [lengths[start : start + 5] for start in range(0, len(lengths), 5)]
    assert len(orders) == example.ORDERS
    assert all(sorted(order) == [5, 6, 7, 9, 11] for order in orders)
    assert orders[0] != orders[1]


def swapped(tokens: torch.Tensor, i: int, j: int) -> torch.Tensor:
    order = torch.arange(len(tokens))
    order[i], order[j] = j, i
    return tokens[order]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_layer_without_positions_ignores_order(scheme, monkeypatch):
    monkeypatch.setattr(example, "LAYERS", 1)
    model, tokens = decoder(scheme), torch.tensor([60, 61, 62, 63, 64, 65])
    with torch.inference_mode():
        plain, other = (model(x[None])[0][0, -1] for x in (tokens, swapped(tokens, 1, 3)))
    assert torch.allclose(plain, other, rtol=1e-4, atol=1e-4) == (scheme == "none")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_without_positions_a_repeated_note_gives_constant_logits(scheme):
    """Attention averages equal values, so the output is the same at each position, for any number of layers."""
    model = decoder(scheme)
    with torch.inference_mode():
        logits, _ = model(torch.full((1, 30), 60))
    assert torch.allclose(logits[0], logits[0, :1], rtol=1e-4, atol=1e-4) == (scheme == "none")


def test_distances_beyond_the_clipping_range_are_equal():
    """One layer does not distinguish the order of notes that are at least CLIP positions back."""
    example.LAYERS = 1
    model, tokens = decoder("relative"), torch.arange(60, 80)
    with torch.inference_mode():
        plain, far, near = (model(x[None])[0][0, -1] for x in (tokens, swapped(tokens, 1, 12), swapped(tokens, 12, 13)))
    torch.testing.assert_close(plain, far, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(plain, near, rtol=1e-4, atol=1e-4)


def test_all_schemes_start_from_the_same_weights():
    states = []
    for scheme in SCHEMES:
        torch.manual_seed(3)
        states.append(example.Decoder(scheme).state_dict())
    relative, *others = states
    assert {name for name in relative if name.startswith("attention")} == set(relative) - set(others[0])
    for other in others:
        assert all(torch.equal(relative[name], weight) for name, weight in other.items())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_training_fits_a_small_data_set(scheme, monkeypatch):
    """The model memorizes two pieces, and all weights change, the tables included."""
    for name, value in (("SHIFT", 0), ("RATE", 1e-2)):
        monkeypatch.setattr(example, name, value)
    pieces = [torch.tensor([[60, 57, 52, 45]] * 3 + [[59, 57, 50, bass]] * 5) for bass in (43, -1)]
    torch.manual_seed(0)
    model = example.Decoder(scheme)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    example.fit(model, pieces, steps=120, seed=0, bfloat16=False)
    assert not model.training
    assert all(example.score(model, example.to_tokens(piece))[:, 0].mean() < 0.1 for piece in pieces)
    assert all((weight - before[name]).abs().max() > 0.01 for name, weight in model.state_dict().items())


def test_count_model_follows_its_definition(monkeypatch):
    """Without transposition, each longer context is smoothed with the next shorter one."""
    monkeypatch.setattr(example, "SHIFT", 0)
    train, piece = [music(9, 11), music(13, 12)], music(6, 13)

    def context(tokens, index):
        past = [START] * 4 + list(tokens)
        return index % 4, past[index], (index // 4) % 4, past[index + 3]

    occurrences = [
        (context(tokens, index), token)
        for tokens in (example.to_tokens(piece).tolist() for piece in train)
        for index, token in enumerate(tokens)
    ]
    tokens = example.to_tokens(piece).tolist()
    scores = example.CountModel(train).score(torch.tensor(tokens))
    for index, token in enumerate(tokens):
        p = 1 / 129
        for n in range(1, 5):
            same = [other for other_context, other in occurrences if other_context[:n] == context(tokens, index)[:n]]
            p = (same.count(token) + example.PRIOR * p) / (len(same) + example.PRIOR)
        assert math.isclose(scores[index], -math.log(p), rel_tol=1e-5)


def test_count_model_counts_all_transpositions():
    train = [music(9, 14)]
    shifted = [example.transpose(train[0], shift) for shift in range(-example.SHIFT, example.SHIFT + 1)]
    model = example.CountModel(train)
    example.SHIFT = 0
    tokens = example.to_tokens(music(5, 15))
    torch.testing.assert_close(model.score(tokens), example.CountModel(shifted).score(tokens))


def read_midi(path: Path) -> list[set[tuple[int, int, int]]]:
    """Return the notes of each track except the first as (pitch, first step, steps)."""
    file = mido.MidiFile(path)
    step = file.ticks_per_beat // 4
    tracks = []
    for track in file.tracks[1:]:
        now, sounding, notes = 0, {}, set()
        for message in track:
            now += message.time
            if message.type == "note_on" and message.velocity > 0:
                assert message.note not in sounding
                sounding[message.note] = now
            elif message.type == "note_off":
                start = sounding.pop(message.note)
                assert start % step == now % step == 0
                notes.add((message.note, start // step, (now - start) // step))
        assert not sounding
        tracks.append(notes)
    return tracks


def test_midi_file_contains_the_notes(tmp_path):
    """A held note is one note and silence is no note. The piece can be restored from the file."""
    piece = torch.cat((torch.tensor([[-1, 60, 55, 48], [72, 60, 55, -1], [72, 60, 57, 48]]), music(40, 16)))
    example.to_midi(piece).save(tmp_path / "piece.mid")
    tracks = read_midi(tmp_path / "piece.mid")
    assert (72, 1, 2) in tracks[0] or piece[3, 0] == 72
    restored = torch.full_like(piece, -1)
    for voice, notes in enumerate(tracks):
        for pitch, start, steps in notes:
            assert (restored[start : start + steps, voice] == -1).all()
            restored[start : start + steps, voice] = pitch
            for edge in (start - 1, start + steps):  # the note is not split
                assert not 0 <= edge < len(piece) or piece[edge, voice] != pitch
    assert torch.equal(restored, piece)
    tempo = mido.MidiFile(tmp_path / "piece.mid").tracks[0][0].tempo
    assert math.isclose(60e6 / tempo, example.TEMPO, rel_tol=1e-5)


def run_main(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["chorales.py", *arguments])
    example.main()


def fails(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command with wrong arguments and return its error message, which must be one line."""
    with pytest.raises(SystemExit) as stopped:
        run_main(arguments, monkeypatch)
    _, error = capsys.readouterr()
    assert (stopped.value.code, error.count("\n")) == (2, 1)
    return error


GOOD = [[60, 57, 52, 45]] * 4
RULE = "a step must be four notes, each −1 or a pitch from 21 to 108"
BROKEN = {
    "cut": (gzip.compress(b"{}")[:-3], ": Compressed file ended"),
    "no gzip": (b"{}", ": Not a gzipped file"),
    "damaged": (gzip.compress(b"{}")[:10] + b"\xff" * 20, ": Error -3"),
    "no json": (gzip.compress(b"{"), ": Expecting property name"),
    "no text": (gzip.compress(b"\xff\xfe{"), ": 'utf-"),
    "nested too deep": (gzip.compress(b"[" * 100_000), ": maximum recursion depth"),
    "list": ([GOOD], " must contain an object with splits, got list"),
    "no split": ({"train": [GOOD]}, ", valid: the split must be a non-empty list of pieces"),
    "no pieces": ({"train": [], "valid": [GOOD]}, ", train: the split must be a non-empty list of pieces"),
    "no steps": ({"train": [GOOD, []], "valid": [GOOD]}, ", train, piece 1: a piece must be a non-empty list of steps"),
    "three voices": (
        {"train": [GOOD], "valid": [[*GOOD, [60, 57, 52]]]},
        f", valid, piece 0, step 4: {RULE}, got [60, 57, 52]",
    ),
    "too high": (
        {"train": [[[109, 57, 52, 45]]], "valid": [GOOD]},
        f", train, piece 0, step 0: {RULE}, got [109, 57, 52, 45]",
    ),
    "too low": (
        {"train": [[[60, 57, 52, 20]]], "valid": [GOOD]},
        f", train, piece 0, step 0: {RULE}, got [60, 57, 52, 20]",
    ),
    "not whole": (
        {"train": [[[60.0, 57, 52, 45]]], "valid": [GOOD]},
        f", train, piece 0, step 0: {RULE}, got [60.0, 57",
    ),
    "true": (
        {"train": [[[True, 57, 52, 45]]], "valid": [GOOD]},
        f", train, piece 0, step 0: {RULE}, got [True, 57",
    ),
    "text": ({"train": ["C major"], "valid": [GOOD]}, ", train, piece 0: a piece must be a non-empty list of steps"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_malformed_file_is_reported_in_one_line(broken, tmp_path, monkeypatch, capsys):
    content, message = BROKEN[broken]
    command = ["--data", str(fill(tmp_path, content)), "--out", str(tmp_path / "out"), "--steps", "10"]
    error = fails(command, monkeypatch, capsys)
    assert error.startswith(f"{tmp_path / 'chorales.json.gz'}{message}")


def test_other_user_errors_are_reported_in_one_line(tmp_path, monkeypatch, capsys):
    arguments = ["--data", str(fill(tmp_path)), "--out", str(tmp_path / "out"), "--steps", "10"]
    nowhere = fails(["--data", str(tmp_path / "nowhere")], monkeypatch, capsys)
    assert "No such file" in nowhere
    assert str(tmp_path / "nowhere" / "chorales.json.gz") in nowhere
    assert "--steps must be at least 10, got 9" in fails([*arguments, "--steps", "9"], monkeypatch, capsys)
    for temperature in ("0", "-1", "nan", "inf"):
        assert "--temperature must be from 0.01 to 100" in fails(
            [*arguments, "--temperature", temperature], monkeypatch, capsys
        )
    for seed in ("-1", str(2**63)):
        assert f"--seed must be from 0 to 2^63 − 1, got [0, {seed}]" in fails(
            [*arguments, "--seed", "0", seed], monkeypatch, capsys
        )
    (tmp_path / "out").write_text("a file")
    assert str(tmp_path / "out") in fails(arguments, monkeypatch, capsys)


def untimed_results(path: Path) -> dict[str, object]:
    """Read the results of a run without the training time."""
    return {name: value for name, value in json.loads(path.read_text()).items() if name != "train_seconds"}


@pytest.mark.whole
def test_same_seed_gives_same_results(tmp_path, monkeypatch):
    monkeypatch.setattr(example, "draw_roll", lambda *_: None)  # drawing takes half of the time of a run
    data, scheme = example.read(fill(tmp_path)), "relative"
    for name, seed in (("once", 1), ("again", 1), ("other", 2)):
        (tmp_path / name).mkdir()
        example.run(scheme, {**SETTINGS, "seed": seed}, data, tmp_path / name)
    once, again, other = (
        tmp_path / name / f"{scheme}-{seed}" for name, seed in (("once", 1), ("again", 1), ("other", 2))
    )
    assert untimed_results(once.with_suffix(".json")) == untimed_results(again.with_suffix(".json"))
    assert untimed_results(once.with_suffix(".json"))["whole"] != untimed_results(other.with_suffix(".json"))["whole"]
    for suffix in (".mid", ".safetensors"):
        assert once.with_suffix(suffix).read_bytes() == again.with_suffix(suffix).read_bytes()
        assert once.with_suffix(suffix).read_bytes() != other.with_suffix(suffix).read_bytes()


@pytest.mark.whole
def test_a_run_saves_its_results(tmp_path):
    """The results cover all validation notes. The sampled piece is four times as long as the longest training piece."""
    data = example.read(fill(tmp_path))
    results = example.run("relative", {**SETTINGS, "seed": 0}, data, tmp_path)
    for key in ("whole", "windows"):
        assert sum(count for _, _, count in results[key]) == 4 * (9 + 16)
    for key in ("joined", "joined, windows"):
        assert sum(count for _, _, count in results[key]) == example.ORDERS * 4 * (9 + 16)
    model = example.Decoder("relative").eval()
    load_model(model, tmp_path / "relative-0.safetensors")
    scores = torch.cat([example.score(model, example.to_tokens(piece)) for piece in data["valid"]])
    assert math.isclose(example.mean_nats(results["whole"]), scores[:, 0].double().mean(), rel_tol=1e-5)
    primer = example.to_tokens(data["valid"][0][:3])
    piece = example.to_steps(example.sample(model, primer, 192, 0.9, seed=0))
    example.to_midi(piece).save(tmp_path / "again.mid")
    assert (tmp_path / "again.mid").read_bytes() == (tmp_path / "relative-0.mid").read_bytes()
    quarters = [piece[n : n + 12].tolist() for n in (0, 12, 24, 36)]
    for quarter, held, in_order in zip(quarters, results["held"], results["in order"], strict=True):
        repeated = [
            a == b for step, following in itertools.pairwise(quarter) for a, b in zip(step, following, strict=True)
        ]
        descending = [sorted(notes, reverse=True) == notes for notes in quarter]
        assert math.isclose(held, sum(repeated) / 44, rel_tol=1e-6, abs_tol=1e-9)
        assert math.isclose(in_order, sum(descending) / 12, rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.whole
def test_finished_runs_are_read_and_checked(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    arguments = ["--data", str(fill(tmp_path)), "--out", str(out), "--scheme", "none", "relative", "--steps", "10"]
    run_main(arguments, monkeypatch)
    first = capsys.readouterr().out
    with monkeypatch.context() as within:
        within.setattr(example, "fit", None)  # must not be called again
        run_main(arguments, monkeypatch)
        assert capsys.readouterr().out == first
        path = out / "none-0.json"
        error = fails([*arguments, "--steps", "11"], monkeypatch, capsys)
        assert error == f"{path}: --steps must be 10 as in the finished run, got 11; choose another --out\n"
        for damaged in ("{", "{}", "[]", "null", path.read_text().replace("held", "hold")):
            path.write_text(damaged)
            error = fails(arguments, monkeypatch, capsys)
            assert error == f"{path} must contain the results of a finished run; delete it to run again\n"


@pytest.mark.whole
def test_output_table(tmp_path):
    """The script prints one row per run and the mean of each scheme. It saves one plot and the files of each run."""
    out = tmp_path / "out"
    command = [sys.executable, ROOT / "examples" / "chorales.py", "--data", fill(tmp_path), "--out", out]
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [*command, "--steps", "10", "--seed", "3", "4"], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    table, statistics = done.stdout.split("\n\n")
    head, *rows = table.splitlines()
    assert head.split()[:3] == ["whole", "correct", "windows"]
    each = [f"{scheme}, seed {seed}" for seed in (3, 4) for scheme in SCHEMES]
    names = ["repeat last note", "count model", *each, *(f"{scheme}, mean" for scheme in SCHEMES)]
    assert [re.split("  +", row)[0] for row in rows] == names
    assert [re.split("  +", row)[0] for row in statistics.splitlines()[1:]] == ["validation, whole", *each]
    whole = [float(re.split("  +", row)[1]) for row in rows[2:]]
    for number in range(3):
        assert math.isclose(whole[6 + number], (whole[number] + whole[3 + number]) / 2, abs_tol=1e-4)
    expected = {f"{scheme}-{seed}{suffix}" for scheme in SCHEMES for seed in (3, 4) for suffix in FILES}
    assert {path.name for path in out.iterdir()} == {"positions.png", *expected}
