"""Time of a training step with each position scheme, as a ratio to a model without positions.

A step is a forward pass with teacher forcing, the backward pass and Adam, for the paper's base model (6 + 6 layers,
d = 512, feed-forward 1024, 8 heads, k = 16) on sentences of n pieces per side. Steps of the schemes alternate.
"""

import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from relattn import RelativeAttention
from relattn_mt.config import ModelConfig
from relattn_mt.data.batching import collate
from relattn_mt.model.transformer import Transformer
from relattn_mt.training.objective import summed_loss

from benchmarks.measure import alternate, command, parse, record
from research import baselines
from research.tables import TABLES

ENTRIES = sorted(TABLES["positions"].entries, key=lambda entry: entry.name != "none")
SCHEMES = {entry.name: entry for entry in ENTRIES if entry.positions not in baselines.SCHEMES}
LENGTHS = (32, 256, 1024)
VOCABULARY, TOKENS = 8000, 2048
KEY = ("n", "positions", "products", "layers", "tokens")
BASE = ModelConfig(dim=512, heads=8, feed_forward_dim=1024, encoder_layers=6, decoder_layers=6, norm="post", clip=16)
BIG = replace(BASE, dim=1024, heads=16, feed_forward_dim=4096, clip=8)
TINY = replace(BASE, dim=32, heads=2, feed_forward_dim=64, encoder_layers=1, decoder_layers=1, clip=4)  # for tests
SIZES = {"base": BASE, "big": BIG, "tiny": TINY}


def config(size: str, scheme: str, layers: int = 0) -> ModelConfig:
    """Return the configuration of a size with a position scheme, and with other numbers of layers if not 0."""
    base = SIZES[size]
    return SCHEMES[scheme].model(
        replace(base, encoder_layers=layers or base.encoder_layers, decoder_layers=layers or base.decoder_layers)
    )


def prepare(
    model_config: ModelConfig,
    n: int,
    tokens: int,
    device: str = "cpu",
    autocast: torch.dtype | None = None,
    compiles: bool = False,
    backend: str = "auto",
) -> Callable[[], object]:
    """Return a function that runs one training step.

    Args:
        n: Pieces per sentence, of `tokens` pieces per side.
        autocast: Dtype of autocast. None: float32 without autocast.
        backend: Backend of relative attention.
    """
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a model without positions warns
        model = Transformer(model_config, VOCABULARY).to(device)
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
        optimizer.zero_grad()
        with torch.autocast(device, autocast, enabled=autocast is not None):
            loss = summed_loss(run, batch, 0.1) / pieces
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = command("train_step", __doc__)
    names = list(SCHEMES)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="pieces per sentence (%(default)s)")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="pieces per side in a step (%(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="layers per encoder and per decoder (%(default)s)")
    parser.add_argument("--repeats", type=int, default=7, help="timed steps per scheme (%(default)s)")
    parser.add_argument(
        "--schemes", nargs="+", choices=names, default=names, help="ratios are to the first (%(default)s)"
    )
    arguments = parse(parser, "train-step-cpu.csv")
    for n in arguments.lengths:
        steps = {
            name: prepare(config("base", name, arguments.layers), n, arguments.tokens) for name in arguments.schemes
        }
        times = alternate(steps, arguments.repeats)
        rows = [
            {
                "n": n,
                "positions": scheme,
                "products": "torch",  # rows of earlier commits have oneDNN too
                **time.columns(),
                "ratio": round(time.median / times[arguments.schemes[0]].median, 4),
                "layers": arguments.layers,
                "tokens": arguments.tokens,
            }
            for scheme, time in times.items()
        ]
        record(arguments, rows, KEY)


if __name__ == "__main__":
    main()
