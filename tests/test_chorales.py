"""Tests of examples/chorales.py."""

import copy
import gzip
import json
import random
import re
import sys
from functools import partial

import pytest
import torch

from examples import chorales as example

SCHEMES = ("relative", "sinusoidal", "none")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small = {"DIM": 22, "HEADS": 1, "LAYERS": 3, "FEED_FORWARD": 13, "CLIP": 7, "CROP": 32, "EDGES": [0, 32, 80]}
    for name, value in small.items():
        monkeypatch.setattr(example, name, value)


def music(steps: int, seed: int) -> list[list[int]]:
    """Generate a random piece with silences."""
    generator = random.Random(seed)
    return [[generator.choice([-1, *range(40, 64)]) for _ in range(4)] for _ in range(steps)]


def write(folder, train, valid):
    (folder / "chorales.json.gz").write_bytes(gzip.compress(json.dumps({"train": train, "valid": valid}).encode()))
    return folder / "chorales.json.gz"


def brute_force(attention, query, key, value, is_causal):
    """Compute the equations of the example for one head, query by query. Row 7 + d of a table is for distance d ≤ 0."""
    attended = torch.empty_like(value)
    for i, q in enumerate(query[0, 0]):
        rows = (torch.arange(i + 1) - i).clamp(min=-7) + 7
        ak, av = (0 if table is None else table.weight[rows] for table in (attention.rel_key, attention.rel_value))
        weights = ((key[0, 0, : i + 1] + ak) @ q / len(q) ** 0.5).softmax(0)
        attended[0, 0, i] = weights @ (value[0, 0, : i + 1] + av)
    return attended


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scores_match_brute_force(scheme):
    """A window starts at the last multiple of 16 that leaves at least 16 tokens before the scored token."""
    model, tokens = example.Decoder(scheme), example.to_tokens(music(13, 6))
    for seed, parameter in enumerate(model.parameters()):
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(seed))
    oracle = copy.deepcopy(model)
    for attention in oracle.attention:
        assert {attention.rel_key is None, attention.rel_value is None} == {scheme != "relative"}
        attention.forward = partial(brute_force, attention)
    scores = torch.cat([example.score(model, tokens), example.score_in_windows(model, tokens)[:, :1]], dim=1)
    with torch.inference_mode():
        for n, token in enumerate(tokens):
            start = max(0, n // 16 - 1) * 16
            context = torch.tensor([[example.START, *tokens[:n]]])  # without later tokens
            whole, window = (oracle(x)[0, -1].log_softmax(-1) for x in (context, context[:, start:]))
            want = torch.stack([-whole[token], (whole.argmax() == token).float(), -window[token]])
            torch.testing.assert_close(scores[n], want, rtol=1e-4, atol=1e-4)


def test_table_has_all_schemes(tmp_path, monkeypatch, capsys):
    write(tmp_path, [music(8, 1), music(12, 2)], [music(23, 3), music(9, 4)])
    monkeypatch.setattr(sys, "argv", ["chorales.py", "--data", str(tmp_path), "--steps", "10"])
    example.main()
    rows = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()[2:]]
    table = {name: [float(cell.rstrip("%")) for cell in cells] for name, *cells in rows}
    for scheme in SCHEMES:
        (_, _, *whole, _), (_, _, *windows, _) = table[scheme], table[f"{scheme}, in windows"]
        assert (whole[0] == windows[0], whole[1] == windows[1]) == (True, False)  # equal in the first window only
