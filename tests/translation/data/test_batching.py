import itertools
import tracemalloc

import numpy as np
import pytest
import torch

from relattn.translation.data.batching import Batch, TrainingText, collate, eval_batches
from relattn.translation.data.mixture import Mixture
from relattn.translation.data.planning import batch_by_size, micro_batches, plan_epoch
from relattn.translation.data.storage import Pairs
from relattn.translation.data.tokenizer import Tokenizer

PAD, BOS, EOS = Tokenizer.special[:3]


def lengths(sentences, longest=60, seed=0):
    random = np.random.default_rng(seed)
    src = random.integers(1, longest, sentences)
    return src, np.clip(src + random.integers(-5, 6, sentences), 1, None)


def plan(src, tgt, *, max_tokens=512, accumulate=1, ranks=1, seed=3, epoch=0):
    """Return steps as lists of ranks, which are lists of micro-batches."""
    size = {"max_tokens": max_tokens, "parts": accumulate * ranks}
    whole = [micro_batches(step, src, tgt, **size) for step in plan_epoch(src, tgt, **size, seed=seed, epoch=epoch)]
    return [
        [[part for i, part in enumerate(step[rank::ranks]) if len(step[i * ranks])] for rank in range(ranks)]
        for step in whole
    ]


def step_sets(steps):
    """Return the set of sentences of each step."""
    return [frozenset(i for rank in step for part in rank for i in part.tolist()) for step in steps]


@pytest.mark.parametrize("sentences", [1, 2, 7, 8, 13, 301])
@pytest.mark.parametrize(
    ("max_tokens", "accumulate", "ranks"), [(1, 1, 1), (64, 1, 3), (64, 3, 2), (512, 4, 1), (10**6, 2, 5)]
)
def test_every_sentence_once_within_the_budget(sentences, max_tokens, accumulate, ranks):
    src, tgt = lengths(sentences)
    longest = np.maximum(src, tgt)
    steps = plan(src, tgt, max_tokens=max_tokens, accumulate=accumulate, ranks=ranks)
    seen = [i for step in steps for rank in step for part in rank for i in part.tolist()]
    assert sorted(seen) == list(range(sentences))
    for step in steps:
        assert len(step) == ranks
        together = [i for rank in step for part in rank for i in part.tolist()]
        assert len(together) == 1 or len(together) * longest[together].max() <= max_tokens * accumulate * ranks
        for rank in step:
            assert len(rank) == len(step[0]) >= 1
            assert all(len(part) for part in rank[:-1])
            assert all(len(part) <= 1 or len(part) * longest[part].max() <= max_tokens for part in rank)
        shares = [sum(len(part) for part in rank) for rank in step]
        assert max(shares) - min(shares) <= 1


def test_steps_do_not_depend_on_how_the_budget_splits():
    src, tgt = lengths(997)
    whole = plan(src, tgt, max_tokens=1024)
    for max_tokens, accumulate, ranks in [(256, 4, 1), (256, 1, 4), (256, 2, 2), (128, 8, 1), (512, 1, 2)]:
        steps = plan(src, tgt, max_tokens=max_tokens, accumulate=accumulate, ranks=ranks)
        assert step_sets(steps) == step_sets(whole)
        full = [step for step in steps if sum(len(part) for rank in step for part in rank) % 8 == 0]
        assert len(full) > 0.9 * len(steps)
        assert all(len(rank) <= accumulate for step in full for rank in step)


def test_a_larger_budget_makes_fewer_steps_of_the_same_sentences():
    src, tgt = lengths(997)
    small, large = plan(src, tgt, max_tokens=300), plan(src, tgt, max_tokens=3000)
    assert len(large) < len(small)
    assert frozenset().union(*step_sets(small)) == frozenset().union(*step_sets(large))


def test_a_plan_is_a_pure_function_of_seed_and_epoch():
    src, tgt = lengths(301)
    np.random.seed(11)
    first = step_sets(plan(src, tgt, ranks=3, epoch=4))
    np.random.seed(12)
    plan(src, tgt, ranks=3, epoch=5)
    assert step_sets(plan(src, tgt, ranks=3, epoch=4)) == first
    for other in (step_sets(plan(src, tgt, ranks=3, epoch=5)), step_sets(plan(src, tgt, ranks=3, epoch=4, seed=8))):
        assert other != first  # different order
        assert set(other) != set(first)  # different steps


def test_steps_are_not_in_order_of_length():
    src, tgt = lengths(2000)
    longest = np.maximum(src, tgt)
    means = [longest[list(step)].mean() for step in step_sets(plan(src, tgt, max_tokens=600))]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3


def test_sentences_of_a_step_have_similar_lengths():
    src, tgt = lengths(5000)
    longest = np.maximum(src, tgt)
    steps = step_sets(plan(src, tgt, max_tokens=800))
    padded = sum(len(step) * longest[list(step)].max() for step in steps)
    assert longest.sum() / padded > 0.9


def ids_of(lengths_, base=10):
    """Return sentences of given lengths. Sentence i is base + i, repeated."""
    return [[base + i] * int(length) for i, length in enumerate(lengths_)]


def test_collate_by_hand():
    batch = collate([[7, 8, 9], [5]], [[6], [4, 11]])
    assert batch.src.tolist() == [[7, 8, 9, EOS], [5, EOS, PAD, PAD]]
    assert batch.tgt_in.tolist() == [[BOS, 6, PAD], [BOS, 4, 11]]
    assert batch.tgt_out.tolist() == [[6, EOS, PAD], [4, 11, EOS]]
    assert batch.src_lengths.tolist() == [4, 2]
    assert batch.tgt_lengths.tolist() == [2, 3]
    assert batch.target_tokens == 5
    assert {tensor.dtype for tensor in vars(batch).values()} == {torch.int64}


def test_collate_takes_arrays_and_nothing_at_all():
    rows = [np.array([7, 8], dtype=np.int32), np.array([9], dtype=np.int32)]
    assert torch.equal(collate(rows, rows).src, collate([[7, 8], [9]], [[7, 8], [9]]).src)
    empty = collate([], [])
    assert empty.src.shape == empty.tgt_in.shape == empty.tgt_out.shape == (0, 1)
    assert empty.target_tokens == 0


def test_batch_and_step_move_as_a_whole():
    step = next(steps_of([[4]], [[5, 6]], max_tokens=8, accumulate=1, seed=1)).to("meta")
    assert all(tensor.device.type == "meta" for batch in step.micro_batches for tensor in vars(batch).values())
    assert (step.epoch, step.index, step.target_tokens) == (0, 0, 3)


def steps_of(src, tgt, *, max_tokens, seed, epoch=0, index=0, **ranks):
    """Return the steps of a training text with these sentences."""
    mixture = Mixture((len(src),), (len(src),))
    text = TrainingText(Pairs(src, tgt, None), ("text",), mixture, Tokenizer.special, max_tokens, seed)
    return text.steps((epoch, index), **ranks)


def stream(src, tgt, **arguments):
    defaults = {"max_tokens": 128, "accumulate": 2, "ranks": 1, "rank": 0, "seed": 5}
    return steps_of(ids_of(src), ids_of(tgt), **{**defaults, **arguments})


def content(step):
    return step.epoch, step.index, step.target_tokens, [batch.src.tolist() for batch in step.micro_batches]


def test_a_stream_resumes_anywhere():
    src, tgt = lengths(97)
    steps = len(plan(src + 1, tgt + 1, max_tokens=128, accumulate=2, seed=5))
    whole = [content(step) for step in itertools.islice(stream(src, tgt), 3 * steps)]
    assert [(epoch, index) for epoch, index, *_ in whole[: steps + 1]] == [*((0, i) for i in range(steps)), (1, 0)]
    for start in (1, steps - 1, steps, steps + 2):
        epoch, index, *_ = whole[start]
        tail = itertools.islice(stream(src, tgt, epoch=epoch, index=index), 2 * steps - 2)
        assert [content(step) for step in tail] == whole[start : start + 2 * steps - 2]
    past_the_end = next(stream(src, tgt, epoch=0, index=steps))
    assert content(past_the_end) == whole[steps]


def test_ranks_are_disjoint_complete_and_agree_on_the_tokens():
    src, tgt = lengths(53)
    alone = stream(src, tgt, max_tokens=192, accumulate=1)
    ranks = [stream(src, tgt, max_tokens=32, accumulate=2, ranks=3, rank=rank) for rank in range(3)]
    for _ in range(20):
        whole, shares = next(alone), [next(rank) for rank in ranks]
        rows = [row for share in shares for batch in share.micro_batches for row in batch.src[:, 0].tolist()]
        assert sorted(rows) == sorted(row for batch in whole.micro_batches for row in batch.src[:, 0].tolist())
        tokens = sum(batch.target_tokens for share in shares for batch in share.micro_batches)
        assert [share.target_tokens for share in shares] == [tokens] * 3 == [whole.target_tokens] * 3
        assert tokens == sum(int((batch.tgt_out != PAD).sum()) for batch in whole.micro_batches)


def test_several_ranks_compute_the_same_as_one():
    """Micro-batches and their places in the step do not depend on the number of ranks."""
    src, tgt = lengths(53)
    alone = stream(src, tgt, max_tokens=32, accumulate=6)
    ranks = [stream(src, tgt, max_tokens=32, accumulate=2, ranks=3, rank=rank) for rank in range(3)]
    for _ in range(20):
        whole, shares = next(alone), [next(rank) for rank in ranks]
        dealt = {
            p: b.src.tolist() for s in shares for p, b in zip(s.places, s.micro_batches, strict=True) if len(b.src)
        }
        assert dealt == {p: b.src.tolist() for p, b in zip(whole.places, whole.micro_batches, strict=True)}


def test_a_rank_without_sentences_still_has_a_batch():
    ranks = [stream([3], [4], ranks=4, rank=rank) for rank in range(4)]
    steps = [next(rank) for rank in ranks]
    assert [len(step.micro_batches) for step in steps] == [1] * 4
    assert [len(step.micro_batches[0].src) for step in steps] == [1, 0, 0, 0]
    assert [step.target_tokens for step in steps] == [5] * 4


def test_evaluation_batches_hold_every_sentence_once_within_the_budget():
    src, tgt = lengths(101)
    batches: list[Batch] = list(eval_batches(ids_of(src), ids_of(tgt), 150))
    rows = [row for batch in batches for row in batch.src[:, 0].tolist()]
    assert sorted(rows) == list(range(10, 111))
    assert all(len(batch.src) == 1 or max(batch.src.numel(), batch.tgt_in.numel()) <= 150 for batch in batches)
    assert [batch.src.tolist() for batch in eval_batches(ids_of(src), ids_of(tgt), 150)] == [
        batch.src.tolist() for batch in batches
    ]


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("most", [None, 1, 7, 128])
def test_runs_hold_every_sentence_once_within_their_bounds(falling, most):
    longest = np.random.default_rng(1).choice([1, 5, 30, 5000], 1000)
    order = np.argsort(-longest if falling else longest, kind="stable")
    cut = batch_by_size(order, longest, 4096, most)
    assert np.concatenate(cut).tolist() == order.tolist()
    for i, run in enumerate(cut):
        assert len(run) == 1 or len(run) * longest[run].max() <= 4096
        assert len(run) <= (most or 4096)
        assert len(run) < 8 or len(run) % 8 == 0
        if i + 1 < len(cut) and len(run) + 8 <= (most or 4096):  # a batch must not have room for 8 more
            more = order[sum(map(len, cut[:i])) :][: len(run) + 8]
            assert len(more) * longest[more].max() > 4096 or len(more) < len(run) + 8


def test_memory_of_a_plan_per_sentence():
    """4 bytes afterwards and at most 24 during planning, in addition to 8 for the lengths."""
    sentences = 200_000
    src, tgt = (x.astype(np.int32) for x in lengths(sentences))
    plan_epoch(src[:100], tgt[:100], max_tokens=4000, parts=2, seed=1, epoch=0)
    tracemalloc.start()
    try:
        steps = plan_epoch(src, tgt, max_tokens=25_000, parts=2, seed=1, epoch=0)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(map(len, steps)) == sentences
    assert held < 4.5 * sentences
    assert peak < 24.5 * sentences
