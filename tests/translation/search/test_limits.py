"""The score of a translation does not depend on the limits of the other sentences of its batch, not by one bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relattn.translation.search import beam, constrained
from relattn.translation.search.length_penalty import length_penalty
from relattn.translation.search.sampling import sample
from relattn.translation.search.types import Hypothesis, Request, SamplingOptions, SearchRules
from tests.support.covering import pairwise

VOCAB, BOS, EOS = 11, 0, 1
LIMITS = range(1, 51)
TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1))  # logits by the last token
TABLE[:, EOS] -= 4  # translations of many lengths, most of them at their limits


@dataclass
class NoCache:
    """The model needs no state."""

    def select(self, rows: Tensor) -> NoCache:
        return self

    def move(self, rows: Tensor, to: Tensor, keep: int) -> NoCache:
        return self


def step(tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
    return TABLE[tokens], cache


def search(name: str, limits: list[int], rules: SearchRules) -> list[list[Hypothesis]]:
    prefixes = torch.zeros(len(limits), 0, dtype=torch.long)
    if name == "constrained":
        requests = [Request(1, [], limit, phrases=((4,),) if limit > 1 else ()) for limit in limits]
        return constrained.search(step, NoCache(), requests, rules, prefixes, np.zeros(VOCAB, dtype=bool))
    if name == "sampling":
        numbers = torch.rand(len(LIMITS), len(LIMITS), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        own = numbers[torch.tensor(limits) - 1]
        drawn = sample(step, NoCache(), torch.tensor(limits), rules, prefixes, SamplingOptions(), own)
        return [[each] for each in drawn]
    return beam.search(step, NoCache(), torch.tensor(limits), rules, prefixes)


@pairwise(
    how=[("beam", 1), ("beam", 3), ("constrained", 3), ("sampling", 1)],
    penalty=[("gnmt", 0.6), ("average", 0.7)],
    early_stopping=[False, True, "heuristic"],
)
def test_scores_do_not_depend_on_the_limits_of_a_batch(how, penalty, early_stopping):
    name, beam_size = how
    rules = SearchRules(
        beam_size=beam_size,
        bos=BOS,
        eos=EOS,
        banned=(BOS,),
        penalty=length_penalty(*penalty),
        n_best=beam_size,
        early_stopping=early_stopping,
        no_repeat_ngram=0 if name == "constrained" else 4,
    )
    alone = {limit: search(name, [limit], rules)[0] for limit in LIMITS}
    assert len({len(each[0].tokens) for each in alone.values()}) > 25
    order = torch.randperm(len(LIMITS), generator=torch.Generator().manual_seed(3)).tolist()
    for size in (2, 3, 7, 16, 20, 33, 50):
        limits = [LIMITS[i] for i in order[:size]]
        assert search(name, limits, rules) == [alone[limit] for limit in limits]
