"""The score of a translation does not depend on the limits of the other sentences of its batch, not by one bit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from relattn_mt.config import SearchConfig
from relattn_mt.search import beam
from relattn_mt.search.beam import likeliest
from relattn_mt.search.engine import NextTokens
from relattn_mt.search.types import Hypothesis, Request, SearchRules

from tests.support.covering import pairwise

VOCAB, BOS, EOS = 11, 0, 1
LIMITS = [*range(1, 18), 25, 33, 50]
TABLE = np.random.default_rng(1).normal(size=(VOCAB, VOCAB)).astype(np.float32)  # logits by the last token
TABLE[:, EOS] -= 4  # translations of many lengths, most of them at their limits


class NoState:
    """Engine of a model that reads only the last token."""

    def start(self, sources: Any, capacity: int) -> None: ...

    def step(self, state: None, tokens: Sequence[int], rows: Any, rules: SearchRules, k: int) -> NextTokens:
        return likeliest(TABLE[tokens], k, rules.banned)


def search(name: str, limits: list[int], rules: SearchRules) -> list[list[Hypothesis]]:
    phrases = ((4,),) if name == "phrases" else ()
    requests = [Request(limit, [], limit, phrases=phrases if limit > 1 else ()) for limit in limits]
    return beam.search(NoState(), requests, rules)  # type: ignore[arg-type]


@pairwise(
    how=[("beam", 1), ("beam", 3), ("phrases", 3)],
    penalty=[("gnmt", 0.6), ("average", 0.7)],
    in_turn={"early_stopping": [False, True, "heuristic"]},
)
def test_scores_do_not_depend_on_the_limits_of_a_batch(how, penalty, early_stopping):
    name, beam_size = how
    config = SearchConfig(
        beam_size=beam_size,
        length_penalty=penalty[0],
        alpha=penalty[1],
        early_stopping=early_stopping,
        no_repeat_ngram=0 if name == "phrases" else 4,
    )
    rules = SearchRules(config=config, bos=BOS, eos=EOS, banned=(BOS,), n_best=beam_size)
    alone = {limit: search(name, [limit], rules)[0] for limit in LIMITS}
    assert len({len(each[0].tokens) for each in alone.values()}) > 12
    order = np.random.default_rng(3).permutation(len(LIMITS)).tolist()
    for size in (2, 3, 7, 16, 20):
        limits = [LIMITS[i] for i in order[:size]]
        assert search(name, limits, rules) == [alone[limit] for limit in limits]
