"""Sequences of different lengths, packed and padded: processor time without padding over the time with it.

`attention` is the operator with both tables (k = 16, 8 heads of 64, float32): `cu_seqlens` over `lengths`. `model` is a
layer of DeBERTa with 12 heads of 64: `enable(model, unpad=True)` over `unpad=False`. Both ways run alternately, and
ratios are those of the medians of nine runs each. The last row of a kind is the worst of `--random` random mixes.
"""

import functools
from collections.abc import Callable

import torch
from relattn import relative_attention
from relattn.integrations import transformers as faster
from torch import Tensor
from transformers import DebertaV2Config, DebertaV2Model

from benchmarks import measure
from benchmarks.measure import Row, record
from benchmarks.small_calls import processor_time, several

KEY = ("kind", "mix", "pass", "device", "threads")
MIXES = {"10 and 11 in turn, 64 texts": [10, 11] * 32, "one of 512, 15 of 10 to 59": [512, *range(10, 60, 3)][:16]}
HEADS, DIM, CLIP, RUNS = 8, 64, 16, 9
Work = Callable[[], object]


def attention(lengths: list[int], backward: bool) -> tuple[Work, Work]:
    """Return attention of packed sequences, and of the same lengths in a padded batch."""
    longest = max(lengths)
    tables = [torch.randn(2 * CLIP + 1, DIM, requires_grad=backward) for _ in "kv"]

    def work(batch: int, length: int, **options: Tensor) -> Work:
        rows = [torch.randn(batch, length, HEADS, DIM).transpose(1, 2).requires_grad_(backward) for _ in "qkv"]
        attend = functools.partial(relative_attention, *rows, *tables, clip=CLIP, **options)
        cotangent = torch.randn(batch, length, HEADS, DIM).transpose(1, 2)
        return lambda: torch.autograd.grad(attend(), [*rows, *tables], cotangent) if backward else attend()

    packed = work(1, sum(lengths), cu_seqlens=torch.tensor([0, *lengths]).cumsum(0))
    return packed, work(len(lengths), longest, lengths=torch.tensor(lengths))


@functools.cache
def layer(unpad: bool) -> DebertaV2Model:
    torch.manual_seed(1)
    config = DebertaV2Config(
        hidden_size=768, num_hidden_layers=1, num_attention_heads=12, intermediate_size=3072, vocab_size=1000,
        relative_attention=True, position_buckets=256, share_att_key=True, norm_rel_ebd="layer_norm",
        pos_att_type="p2c|c2p", position_biased_input=False, type_vocab_size=0, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = DebertaV2Model(config)
    faster.enable(model, unpad=unpad)
    return model


def model(lengths: list[int], backward: bool) -> tuple[Work, Work]:
    """Return a layer without padding, and with it."""
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(1, 1000, mask.shape)

    def work(unpad: bool) -> Work:
        def run() -> object:
            states = layer(unpad)(ids, attention_mask=mask).last_hidden_state
            if backward:
                states.sum().backward()
                layer(unpad).zero_grad()
            return states

        return run

    return work(True), work(False)


KINDS = {"attention": attention, "model": model}


def ratio(kind: str, lengths: list[int], backward: bool) -> tuple[float, float]:
    """Return the milliseconds without padding, and their ratio to those with padding."""
    torch.manual_seed(0)
    with torch.set_grad_enabled(backward):
        works = dict(zip(("packed", "padded"), map(several, KINDS[kind](lengths, backward)), strict=True))
        runs = {name: work for name, (work, _) in works.items()}
        times = measure.alternate(runs, RUNS, clock=processor_time)
    packed, padded = (times[name].median / times_each for name, (_, times_each) in works.items())
    return 1e3 * packed, packed / padded


def random_mix(seed: int) -> list[int]:
    """Return up to 32 lengths from 1 to 128, in a range that is wide or narrow."""
    generator = torch.Generator().manual_seed(seed)
    count, low, width = (int(torch.randint(1, most, (), generator=generator)) for most in (32, 96, 32))
    return torch.randint(low, low + width, (count,), generator=generator).tolist()


def main() -> None:
    parser = measure.command("mixes", __doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds (all)")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="number of random mixes (%(default)s)")
    arguments = measure.parse(parser, "mixes-cpu.csv", threads=1)
    for kind in arguments.kinds:
        for name, backward in (("forward", False), ("forward + backward", True)):
            rows: list[Row] = []
            for mix, lengths in MIXES.items():
                ms, over = ratio(kind, lengths, backward)
                rows.append({"kind": kind, "mix": mix, "pass": name, "ms": f"{ms:.3g}", "ratio": f"{over:.2f}"})
            found = [(ratio(kind, random_mix(seed), backward)[1], seed) for seed in range(arguments.random)]
            if found:
                over, seed = max(found)
                row = {"kind": kind, "mix": f"worst of {arguments.random} random ones", "pass": name}
                rows.append(row | {"ms": "", "ratio": f"{over:.2f}"})
                print(f"the worst has lengths {random_mix(seed)}")
            record(arguments, rows, KEY)


if __name__ == "__main__":
    main()
