"""Tests of examples/chorales.py."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from functools import partial

import mido
import pytest
import torch

from examples import chorales as example

GOOD = [[60, 57, 52, 45]]
pack = partial(gzip.compress, mtime=0)
BROKEN = [
    (pack(b"{}")[:-3], "gz: "), (pack(b"{"), "gz: "), ([GOOD], "got list"), ({"train": [GOOD]}, "valid: "),
    ({"train": [GOOD, []], "valid": [GOOD]}, "train, piece 1: "),
    ({"train": [GOOD], "valid": [[*GOOD, [60, 57, 52]]]}, "valid, piece 0, step 1: "),
    *(({"train": [[[pitch, 57, 52, 45]]], "valid": [GOOD]}, f"got [{pitch}") for pitch in (109, 20, 60.0, True)),
]  # fmt: skip
BAD_FLAGS = f"data nowhere,steps 9,temperature 0,temperature nan,seed -1,seed {2**63},out /dev/null/x".split(",")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Shrink the model and the crops. Sizes are distinct, and prime where possible."""
    small = {"DIM": 22, "HEADS": 1, "LAYERS": 3, "FEED_FORWARD": 13, "CLIP": 7, "CROP": 32, "BATCH": 3, "PRIMER": 3}
    for name, value in small.items():
        monkeypatch.setattr(example, name, value)


def music(steps: int, seed: int) -> torch.Tensor:
    """Generate a random piece with silences: (steps, 4)."""
    generator = random.Random(seed)
    return torch.tensor([[generator.choice([-1, *range(40, 64)]) for _ in range(4)] for _ in range(steps)])


@pytest.mark.parametrize("scheme", example.SCHEMES)
def test_scores_and_samples_match_one_pass_per_token(scheme):
    """A window starts at the last multiple of 16 that leaves at least 16 tokens before the scored token."""
    model, tokens = example.Decoder(scheme).eval(), example.to_tokens(music(12, 6))
    for seed, parameter in enumerate(model.parameters()):
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(seed))
    scores, in_windows = example.score(model, tokens), example.score_in_windows(model, tokens)
    with torch.inference_mode():
        parts, caches = [], model.empty_caches(40)  # less than the tokens
        for part in tokens.split([5, *[1] * 43]):
            logits, caches = model(part[None], caches)
            parts.append(logits)
        torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens[None])[0], rtol=1e-4, atol=1e-4)
        for n, token in enumerate(tokens):
            start = max(0, n // 16 - 1) * 16
            context = torch.tensor([[example.START, *tokens[:n]]])
            whole, window = (model(x)[0][0, -1].log_softmax(-1) for x in (context, context[:, start:]))
            want = torch.stack([-whole[token], (whole.argmax() == token).float(), -window[token]])
            torch.testing.assert_close(torch.cat([scores[n], in_windows[n, :1]]), want, rtol=1e-4, atol=1e-4)
    sampled = example.sample(model, tokens[:12], 40, 1e-6, seed=0)  # near 0, the most probable token is drawn
    assert torch.equal(sampled[:12], tokens[:12])
    assert example.score(model, sampled)[12:, 1].all()


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function that runs the command on a data file, and returns its output, or its error in one line."""

    def run(*flags, content=None):
        splits = content or {"train": [music(n, n).tolist() for n in (8, 12)], "valid": [music(9, 9).tolist()]}
        data = splits if isinstance(splits, bytes) else gzip.compress(json.dumps(splits).encode())
        (tmp_path / "chorales.json.gz").write_bytes(data)
        flags = ("--data", tmp_path, "--out", tmp_path / "out", "--steps", 10, "--scheme", "none", "relative", *flags)
        monkeypatch.setattr(sys, "argv", ["chorales.py", *map(str, flags)])
        try:
            code = example.main()
        except SystemExit as stopped:
            code = stopped.code
        output, error = capsys.readouterr()
        assert (code, error.count("\n")) in ((None, 0), (2, 1))
        return error or output

    return run


def test_runs_write_files_and_are_not_repeated(run, tmp_path, monkeypatch):
    out, printed = tmp_path / "out", run("--seed", 3)
    rows = [re.split("  +", row)[0] for row in printed.splitlines()[3:7]]
    assert rows == ["none, seed 3", "relative, seed 3", "relative, mean", "none, mean"]
    files = {f"{name}-3.{suffix}" for name in ("none", "relative") for suffix in ("json", "mid", "png", "safetensors")}
    assert {path.name for path in out.iterdir()} == {"positions.png", *files}
    assert len(mido.MidiFile(out / "none-3.mid").tracks) == 1 + 4
    results = json.loads((out / "none-3.json").read_text())  # with counts of notes
    assert [sum(count for *_, count in results[name]) for name in ("whole", "windows", "joined")] == [36, 36, 72]
    monkeypatch.setattr(example, "fit", None)  # must not be called again
    assert run("--seed", 3) == printed
    assert "--steps must be 10" in run("--seed", 3, "--steps", 11)
    (out / "none-3.json").write_text("{}")
    assert str(out / "none-3.json") in run("--seed", 3)


def test_bad_input_is_reported_in_one_line(run, tmp_path):
    for content, fact in BROKEN:
        error = run(content=content)
        assert error.startswith(str(tmp_path / "chorales.json.gz"))
        assert fact in error
    for flags in BAD_FLAGS:
        error = run(*f"--{flags}".split())
        assert flags.split()[1] in error
        assert error.count("\n") == 1
