"""Time of a training step with each position scheme, as a ratio to a model without positions.

A step is a forward pass with teacher forcing, the backward pass and Adam, for the paper's base model (6 + 6 layers,
d = 512, feed-forward 1024, 8 heads, k = 16) on sentences of n pieces per side. Steps of the schemes alternate.
"""

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch

from benchmarks.measure import alternate, command, parse, record
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
KEY = ("n", "positions", "products", "layers", "tokens")


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


SIZES = {  # the two of the paper, and one for tests
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
        warnings.simplefilter("ignore")  # a model without positions warns
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
    parser = command("train_step", __doc__)
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=list(LENGTHS), help="pieces per sentence (%(default)s)"
    )
    parser.add_argument("--tokens", type=int, default=TOKENS, help="pieces per side in a step (%(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="layers per encoder and per decoder (%(default)s)")
    parser.add_argument("--repeats", type=int, default=7, help="timed steps per scheme (%(default)s)")
    parser.add_argument(
        "--schemes",
        nargs="+",
        choices=SCHEMES,
        default=list(SCHEMES),
        help="position schemes to time; ratios are to the first (default: all)",
    )
    parser.add_argument(
        "--products",
        nargs="+",
        choices=("torch", "onednn"),
        default=["onednn" if is_onednn_faster() else "torch"],
        help="implementations of large linear layers to compare (default: the one for this processor)",
    )
    arguments = parse(parser, "train-step-cpu.csv")
    size = replace(SIZES["base"], layers=arguments.layers)
    for n in arguments.lengths:
        steps = {
            (scheme, way): prepare(size.config(scheme), n, arguments.tokens, onednn=way == "onednn")
            for way in arguments.products
            for scheme in arguments.schemes
        }
        times = alternate(steps, arguments.repeats)
        rows = [
            {
                "n": n,
                "positions": scheme,
                "products": way,
                **time.columns(),
                "ratio": round(time.median / times[arguments.schemes[0], way].median, 4),
                "layers": arguments.layers,
                "tokens": arguments.tokens,
            }
            for (scheme, way), time in times.items()
        ]
        record(arguments, rows, KEY)


if __name__ == "__main__":
    main()
