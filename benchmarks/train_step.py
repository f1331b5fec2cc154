"""Time of a training step with each position scheme, as a ratio to a model without positions.

A step is a forward pass with teacher forcing, the backward pass and Adam, for the paper's base model (6 + 6 layers,
d = 512, feed-forward 1024, 8 heads, k = 16) on sentences of n pieces per side. Steps of the schemes alternate.
"""

import argparse
import csv
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch

from benchmarks.measure import alternate, conditions
from relattn import RelativeAttention
from relattn.translation.config import ModelConfig
from relattn.translation.data.batching import collate
from relattn.translation.experiments.tables import TABLES
from relattn.translation.model import linear
from relattn.translation.model.linear import is_onednn_faster
from relattn.translation.model.transformer import Transformer
from relattn.translation.training.objective import summed_loss

SCHEMES = {entry.name: entry for entry in sorted(TABLES["positions"].entries, key=lambda e: e.name != "none")}
LENGTHS = (32, 256, 1024)
VOCABULARY, TOKENS = 8000, 2048


@dataclass(frozen=True)
class Size:
    dim: int
    heads: int
    feed_forward_dim: int
    layers: int
    clip: int

    def config(self, scheme: str) -> ModelConfig:
        """Return the configuration of a model of this size with a position scheme, a key of `SCHEMES`."""
        config = ModelConfig(
            dim=self.dim,
            heads=self.heads,
            feed_forward_dim=self.feed_forward_dim,
            encoder_layers=self.layers,
            decoder_layers=self.layers,
            norm="post",
            clip=self.clip,
        )
        return SCHEMES[scheme].model(config)


SIZES = {  # the paper's two, and one for trying the program
    "base": Size(dim=512, heads=8, feed_forward_dim=1024, layers=6, clip=16),
    "big": Size(dim=1024, heads=16, feed_forward_dim=4096, layers=6, clip=8),
    "tiny": Size(dim=32, heads=2, feed_forward_dim=64, layers=1, clip=4),
}


def prepare(
    config: ModelConfig,
    n: int,
    tokens: int,
    device: str = "cpu",
    autocast: torch.dtype | None = None,
    compiles: bool = False,
    backend: str = "auto",
    onednn: bool | None = None,
) -> Callable[[], object]:
    """Return a function that runs one training step.

    Args:
        config: Configuration of the model.
        n: Pieces per sentence.
        tokens: Pieces per side in a step.
        device: Device of the model.
        autocast: Dtype of autocast. None: float32 without autocast.
        compiles: Whether the model is compiled.
        backend: Backend of relative attention.
        onednn: Value of `linear.use_onednn` during the step.
    """
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a model that cannot tell word order warns; here it is the baseline
        model = Transformer(config, VOCABULARY).to(device)
    for module in model.modules():
        if isinstance(module, RelativeAttention):
            module.backend = backend
    run = cast("Transformer", torch.compile(model)) if compiles else model
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    draw = random.Random(0)
    sides = [[[draw.randrange(4, VOCABULARY) for _ in range(n - 1)] for _ in range(tokens // n)] for _ in range(2)]
    batch = collate(sides[0], sides[1]).to(device)
    pieces = batch.target_tokens

    def step() -> None:
        linear.use_onednn = onednn
        optimizer.zero_grad()
        with torch.autocast(device, autocast, enabled=autocast is not None):
            loss = summed_loss(run, batch, 0.1) / pieces
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_step", description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="pieces per sentence, n")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="pieces per side in a step")
    parser.add_argument("--layers", type=int, default=6, help="layers of the encoder, and of the decoder")
    parser.add_argument("--repeats", type=int, default=7, help="number of timed steps per scheme")
    parser.add_argument(
        "--schemes",
        nargs="+",
        choices=SCHEMES,
        default=list(SCHEMES),
        help="position schemes to time; ratios are to the first",
    )
    parser.add_argument(
        "--products",
        nargs="+",
        choices=("torch", "onednn"),
        default=["onednn" if is_onednn_faster() else "torch"],
        help="implementations of large linear layers to compare (default: the one for this processor)",
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "train-step-cpu.csv")
    arguments = parser.parse_args()

    held = conditions()
    print("; ".join(f"{name} {value}" for name, value in held.items()))
    layers, tokens = arguments.layers, arguments.tokens
    size = replace(SIZES["base"], layers=layers)
    print(
        f"{layers} + {layers} layers, d = 512, {tokens} pieces per side, vocabulary {VOCABULARY}, float32, dropout 0.1"
    )
    print(f"{'n':>5}  {'positions':<31}  {'products':<8}  {'ms':>9}  {'middle half':>19}  ratio")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="", encoding="utf-8") as file:
        names = ["n", "positions", "products", "ms", "ms low", "ms high", "ratio", "layers", "tokens", "repeats", *held]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for n in arguments.lengths:
            ways = {f"{scheme}, {way}": (scheme, way) for way in arguments.products for scheme in arguments.schemes}
            steps = {
                name: prepare(size.config(scheme), n, tokens, onednn=way == "onednn")
                for name, (scheme, way) in ways.items()
            }
            times = alternate(steps, arguments.repeats)
            for name, time in times.items():
                scheme, way = ways[name]
                ms, low, high = (1e3 * value for value in (time.median, time.low, time.high))
                ratio = time.median / times[f"{arguments.schemes[0]}, {way}"].median
                print(
                    f"{n:>5}  {scheme:<31}  {way:<8}  {ms:>9.1f}  {low:>8.1f} – {high:<8.1f}  {ratio:.3f}", flush=True
                )
                row = [n, scheme, way, round(ms, 2), round(low, 2), round(high, 2), round(ratio, 4)]
                writer.writerow(
                    dict(zip(names, [*row, layers, tokens, arguments.repeats, *held.values()], strict=True))
                )
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
