"""Whether encoders of transformers, at their published sizes, say with the operator what their own code says.

A row is one encoder against one of its own ways to compute attention, on two lines of input, as they are or with the
second padded, in float32 or bfloat16:

largest     the largest difference of two numbers of the output
of          the largest number of its own output
own, ours   in bfloat16, how far each is from its own float32: the root mean square of differences over that of numbers

The rows of training have the loss by either, and how far the gradients of all weights are apart: the length of their
difference over their own. Without dropout, whose draws differ.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.encoders import ENCODERS, inputs, made, padding, without_chance
from benchmarks.measure import apart, conditions, keep, preload
from relattn.integrations import transformers as faster

RESULTS = Path(__file__).parent / "results" / "models-agreement.csv"
CHECKED = [name for name, encoder in ENCODERS.items() if not encoder.drawn]
TRAINED = ("parakeet-0.6b", "wav2vec2-bert")
COLUMNS = ("model", "own_code", "dtype", "padded", "largest", "of", "own", "ours", "loss", "our_loss", "gradient")


def said(model: nn.Module, given: Tensor, mask: Tensor | None) -> Tensor:
    """The output, in float32; of a model that says which of it is padding, the rest alone."""
    with torch.inference_mode():
        out: Any = model(given) if mask is None else model(given, attention_mask=mask)
    states: Tensor = out.last_hidden_state.float()
    valid = None if mask is None else getattr(out, "attention_mask", None)
    return states if valid is None else states[valid.bool()]


def apart_by(first: Tensor, second: Tensor) -> float:
    return float((first - second).square().mean().sqrt() / second.square().mean().sqrt())


def agreement(name: str, own_code: str, size: int) -> list[dict[str, object]]:
    """The rows of one encoder against one code of its own."""
    model, given = made(name, own_code), inputs(name, 2, size)
    masks = [None, padding(given)] if ENCODERS[name].masked else [None]
    rows: list[dict[str, object]] = []
    exact = []
    for dtype in (torch.float32, torch.bfloat16):
        model = model.to(dtype)
        read = given.to(dtype) if given.is_floating_point() else given
        for case, mask in enumerate(masks):
            own = said(model, read, mask)
            with faster.enable():
                ours = said(model, read, mask)
            row: dict[str, object] = {"model": name, "own_code": own_code}
            row |= {"dtype": str(dtype).removeprefix("torch."), "padded": mask is not None}
            row |= {"largest": f"{float((ours - own).abs().max()):.2g}", "of": f"{float(own.abs().max()):.3g}"}
            if dtype == torch.float32:
                exact.append(own)
            else:
                row |= {"own": f"{apart_by(own, exact[case]):.4f}", "ours": f"{apart_by(ours, exact[case]):.4f}"}
            rows.append(row)
    return rows


def training(name: str, own_code: str, size: int) -> list[dict[str, object]]:
    """The row of a step of training."""
    model, given = made(name, own_code).train(), inputs(name, 2, size)
    without_chance(model)
    torch.manual_seed(3)
    with torch.no_grad():
        target = torch.randn_like(model(given).last_hidden_state)

    def step() -> tuple[float, dict[str, Tensor]]:
        model.zero_grad()
        loss = (model(given).last_hidden_state - target).square().mean()
        loss.backward()
        return float(loss.detach()), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    loss, own = step()
    with faster.enable():
        our_loss, ours = step()
    assert own.keys() == ours.keys()
    squares = [(float((ours[at] - own[at]).square().sum()), float(own[at].square().sum())) for at in own]
    gap = math.sqrt(sum(difference for difference, _ in squares) / sum(length for _, length in squares))
    row: dict[str, object] = {"model": name, "own_code": own_code, "dtype": "float32", "padded": "training"}
    return [row | {"loss": f"{loss:.6f}", "our_loss": f"{our_loss:.6f}", "gradient": f"{gap:.2g}"}]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models_check", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=CHECKED, default=CHECKED, help="these encoders")
    parser.add_argument("--size", type=int, help="seconds of sound, or tokens, in place of each encoder's shortest")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    preload([__name__])
    for name in arguments.only:
        encoder = ENCODERS[name]
        size = arguments.size or min(encoder.sizes)
        for own_code in encoder.own:
            rows = apart(agreement, name, own_code, size)
            rows += apart(training, name, own_code, size) if name in TRAINED else []
            for row in rows:
                print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            whole = [dict.fromkeys(COLUMNS, "") | row | {"size": size} | conditions() for row in rows]
            keep(arguments.out, whole, ("model", "own_code", "dtype", "padded"))


if __name__ == "__main__":
    main()
