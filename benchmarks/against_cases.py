"""The cases that `against` times, and the process that times them in one version of the package.

A case makes its inputs and returns a run of them. It has nothing but public names, imported when it is made, so that
a version without one of them lacks the cases that need it and no other; but for the training step, which needs what
`train_step` does. So torch alone is imported here.

A process is started with the folder that holds the package and a number of threads. It reads a question a line, as
JSON, and answers with a line: seconds, or in a string why there are none.

    ["make", case]    seconds that the case takes, once it has run once
    ["run", times]    seconds that so many runs take
"""

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

HEADS, DIM, CLIP, TOKENS = 8, 64, 16, 4096
Work = Callable[[], object]


def normal(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(0))


def sequences(n: int, tokens: int = TOKENS) -> list[Tensor]:
    """Return queries, keys and values as projections make them: (batch, heads, n, dim), heads inside positions."""
    return [normal(tokens // n, n, HEADS, DIM).transpose(1, 2) for _ in "qkv"]


def run_of(attend: Callable[..., Tensor], inputs: list[Tensor], backward: bool) -> Work:
    def forward() -> object:
        with torch.no_grad():
            return attend(*inputs)

    def forward_and_backward() -> object:
        return torch.autograd.grad(attend(*inputs).sum(), inputs)

    for x in inputs:
        x.requires_grad_(backward)
    return forward_and_backward if backward else forward


def relative(n: int, backward: bool, *, tokens: int = TOKENS, **options: Any) -> Work:
    """Attention as in the paper, with tables for keys and values, on sequences of `tokens` positions in all."""
    from relattn import relative_attention

    tables = [normal(2 * CLIP + 1, DIM) for _ in "kv"]
    return run_of(partial(relative_attention, clip=CLIP, **options), [*sequences(n, tokens), *tables], backward)


def xl(n: int) -> Work:
    """Transformer-XL's: a row for every distance and head, and a query of its own for it."""
    from relattn import relative_attention

    def attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor, rel_query: Tensor) -> Tensor:
        return relative_attention(query, key, value, table, rel_query=rel_query, clip=n - 1)

    query, key, value = sequences(n)
    return run_of(attend, [query, key, value, normal(HEADS, 2 * n - 1, DIM), query.clone()], True)


def labelled(n: int) -> Work:
    """A label for every pair, the same for all sentences."""
    from relattn import relation_attention

    labels = 2 * CLIP + 1
    relations = torch.randint(-1, labels, (1, 1, n, n), generator=torch.Generator().manual_seed(0))

    def attend(query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor, rel_value: Tensor) -> Tensor:
        return relation_attention(query, key, value, relations, rel_key, rel_value)

    return run_of(attend, [*sequences(n), *(normal(labels, DIM) for _ in "kv")], True)


def decoding(steps: int) -> Work:
    """A causal layer that goes on from its cache, a token of each of 8 sentences at a time."""
    from relattn import RelativeSelfAttention

    layer = RelativeSelfAttention(HEADS * DIM, HEADS, CLIP, is_causal=True).eval()
    token = normal(8, 1, HEADS * DIM)

    @torch.inference_mode()
    def decode() -> None:
        cache = layer.empty_cache(8, steps)
        for _ in range(steps):
            _, cache = layer(token, cache=cache)

    return decode


def training(n: int) -> Work:
    from benchmarks.train_step import SIZES, prepare

    return prepare(replace(SIZES["base"], layers=1).config("relative"), n, 1024)


CASES: dict[str, Callable[[], Work]] = {
    "one sequence, forward, n = 1": partial(relative, 1, False, tokens=1),
    "one sequence, forward, n = 8": partial(relative, 8, False, tokens=8),
    "one sequence, forward + backward, n = 1": partial(relative, 1, True, tokens=1),
    "one sequence, forward + backward, n = 8": partial(relative, 8, True, tokens=8),
    "forward, n = 16": partial(relative, 16, False),
    "forward, n = 128": partial(relative, 128, False),
    "forward, n = 1024": partial(relative, 1024, False),
    "forward, n = 4096": partial(relative, 4096, False),
    "forward + backward, n = 16": partial(relative, 16, True),
    "forward + backward, n = 128": partial(relative, 128, True),
    "forward + backward, n = 1024": partial(relative, 1024, True),
    "forward + backward, n = 4096": partial(relative, 4096, True),
    "causal, forward + backward, n = 1024": partial(relative, 1024, True, is_causal=True),
    "Transformer-XL's form, forward + backward, n = 512": partial(xl, 512),
    "labelled pairs, forward + backward, n = 256": partial(labelled, 256),
    "decoding 128 tokens with a cache": partial(decoding, 128),
    "training step of 1 + 1 layers, n = 64": partial(training, 64),
}


def clocked(work: Work, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - start


def answers(questions: Iterable[str]) -> Iterable[float | str]:
    work: Work = object
    for line in questions:
        what, argument = json.loads(line)
        try:
            if what == "make":
                work = CASES[argument]()
                work()
            yield clocked(work, argument if what == "run" else 1)
        except Exception as error:
            yield " ".join(f"{type(error).__name__}: {error}".split())


def main() -> None:
    folder, threads = sys.argv[1:]
    sys.path.insert(0, folder)
    torch.set_num_threads(int(threads))
    out, sys.stdout = sys.stdout, sys.stderr  # what a version prints is no answer
    for answer in answers(sys.stdin):
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
