"""Plans of epochs, batches as tensors, and the stream of steps."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from relattn_mt.data.batching import Stage, TrainingText, collate, eval_batches
from relattn_mt.data.mixture import Mixture
from relattn_mt.data.storage import EncodedPairs, IdColumn
from relattn_mt.tokens.planning import batch_by_size, micro_batches, plan_epoch
from relattn_mt.tokens.tokenizer import Tokenizer

PAD = 0
BOS, EOS = Tokenizer.special[:2]


def random_lengths(sentences):
    random = np.random.default_rng(0)
    src = random.integers(1, 60, sentences)
    return src, np.clip(src + random.integers(-5, 6, sentences), 1, None)


def step_sets(src, tgt, *, parts=1, seed=3, epoch=0, max_tokens):
    """Return the set of sentences of each step of an epoch."""
    steps = plan_epoch(src, tgt, max_tokens=max_tokens, parts=parts, seed=seed, epoch=epoch)
    return [frozenset(step.tolist()) for step in steps]


@given(st.integers(1, 130), st.sampled_from([1, 64, 512, 10**6]), st.sampled_from([1, 3, 4, 10]))
def test_every_sentence_once_within_the_budget(sentences, max_tokens, parts):
    src, tgt = random_lengths(sentences)
    longest, size = np.maximum(src, tgt), {"max_tokens": max_tokens, "parts": parts}
    steps = plan_epoch(src, tgt, **size, seed=3, epoch=0)
    assert sorted(np.concatenate(steps).tolist()) == list(range(sentences))
    for step in steps:
        assert len(step) == 1 or len(step) * longest[step].max() <= max_tokens * parts
        batches = micro_batches(step, src, tgt, **size)
        assert sorted(np.concatenate(batches).tolist()) == sorted(step.tolist())
        assert len(batches) % parts == 0
        assert all(len(batch) <= 1 or len(batch) * longest[batch].max() <= max_tokens for batch in batches)
        assert max(map(len, batches)) - min(map(len, batches)) <= 1
    assert set(step_sets(src, tgt, max_tokens=max_tokens, parts=parts)) == set(
        step_sets(src, tgt, max_tokens=max_tokens * parts)  # the same steps, however the budget is divided
    )


def test_plans():
    """A pure function of seed and epoch, in no order of length, with similar lengths in a step."""
    src, tgt = random_lengths(2000)
    longest, first = np.maximum(src, tgt), step_sets(src, tgt, max_tokens=800)
    np.random.seed(12)
    assert step_sets(src, tgt, max_tokens=800) == first
    for other in (step_sets(src, tgt, max_tokens=800, epoch=1), step_sets(src, tgt, max_tokens=800, seed=8)):
        assert set(other) != set(first)
    assert len(step_sets(src, tgt, max_tokens=8000)) < len(first) / 5
    means = [longest[list(step)].mean() for step in first]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3
    assert longest.sum() / sum(len(step) * longest[list(step)].max() for step in first) > 0.9
    assert np.mean([len(step) % 8 == 0 for step in first]) > 0.9


@given(
    st.lists(st.sampled_from([1, 5, 30, 5000]), min_size=1, max_size=400),
    st.sampled_from([None, 1, 7, 128]),
    st.booleans(),
)
def test_batches_hold_every_sentence_once_within_their_bounds(lengths, most, falling):
    longest = np.array(lengths)
    order = np.argsort(-longest if falling else longest, kind="stable")
    cut = batch_by_size(order, longest, 4096, most)
    assert np.concatenate(cut).tolist() == order.tolist()
    start = 0
    for batch in cut:
        assert len(batch) == 1 or len(batch) * longest[batch].max() <= 4096
        assert len(batch) <= (most or 4096)
        assert len(batch) < 8 or len(batch) % 8 == 0
        more = order[start : start + len(batch) + 8]  # there is no room for 8 more
        if len(batch) + 8 <= min(most or 4096, len(order) - start):
            assert len(more) * longest[more].max() > 4096
        start += len(batch)


def test_collate():
    batch = collate([np.array([7, 8, 9], dtype=np.int32), [5]], [[6], [4, 11]])
    assert batch.src.tolist() == [[7, 8, 9, EOS], [5, EOS, PAD, PAD]]
    assert batch.tgt_in.tolist() == [[BOS, 6, PAD], [BOS, 4, 11]]
    assert batch.tgt_out.tolist() == [[6, EOS, PAD], [4, 11, EOS]]
    assert (batch.src_lengths.tolist(), batch.tgt_lengths.tolist(), batch.target_tokens) == ([4, 2], [2, 3], 5)
    assert {tensor.dtype for tensor in vars(batch).values()} == {torch.int64}
    empty = collate([], [])
    assert empty.src.shape == empty.tgt_in.shape == empty.tgt_out.shape == (0, 1)
    assert empty.target_tokens == 0


def columns(*sides):
    """Return encoded pairs with these rows on each side."""
    lengths = [np.array([len(row) for row in rows]) for rows in sides]
    return EncodedPairs(
        *(
            IdColumn(np.concatenate(rows), counts.cumsum() - counts, counts.cumsum())
            for rows, counts in zip(sides, lengths, strict=True)
        )
    )


def stream(src, tgt, *, max_tokens=128, accumulate=2, position=(0, 0), **ranks):
    """Return the steps of a text with sentences of these lengths. Sentence i is 10 + i, repeated."""
    rows = [[[10 + i] * int(length) for i, length in enumerate(lengths)] for lengths in (src, tgt)]
    mixture = Mixture((len(src),), (len(src),))
    text = TrainingText(columns(*rows), ("text",), (Stage(mixture),), Tokenizer.special, max_tokens, 5)
    return text.steps(position, accumulate=accumulate, **ranks)


def content(step):
    return step.epoch, step.index, step.target_tokens, [batch.src.tolist() for batch in step.micro_batches]


def test_a_stream_resumes_anywhere():
    src, tgt = random_lengths(97)
    steps = len(step_sets(src + 1, tgt + 1, max_tokens=128, parts=2, seed=5))
    whole = [content(step) for step in itertools.islice(stream(src, tgt), 3 * steps)]
    assert [(epoch, index) for epoch, index, *_ in whole[: steps + 1]] == [*((0, i) for i in range(steps)), (1, 0)]
    for start in (1, steps - 1, steps, steps + 2):
        tail = itertools.islice(stream(src, tgt, position=whole[start][:2]), 2 * steps - 2)
        assert [content(step) for step in tail] == whole[start : start + 2 * steps - 2]
    assert content(next(stream(src, tgt, position=(0, steps)))) == whole[steps]
    moved = next(stream(src, tgt)).to("meta")
    assert all(tensor.is_meta for batch in moved.micro_batches for tensor in vars(batch).values())


def test_links_are_at_the_pieces_of_their_sentences():
    """With tokens before the source, as in imported models. Piece 100 · i + 2 · k of a source has a link."""
    source_lengths, target_lengths = random_lengths(40)
    sources = [[100 * i + k for k in range(length)] for i, length in enumerate(source_lengths)]
    targets = [[10_000 + 100 * i + k for k in range(length)] for i, length in enumerate(target_lengths)]
    linked = [range(min(a, b) // 2) for a, b in zip(source_lengths, target_lengths, strict=True)]
    links = [[step * np.arange(len(own)) for own in linked] for step in (2, 1)]
    special = Tokenizer.special._replace(src_begin=(4, 5))
    stage = Stage(Mixture((40,), (40,)))
    text = TrainingText(columns(sources, targets), ("text",), (stage,), special, 256, 5, columns(*links))
    found = []
    steps = len(text.epoch(0, parts=2).steps)
    for step in itertools.islice(text.steps(accumulate=2), steps):
        for batch in step.micro_batches:
            for sentence, target, source in batch.links.tolist():
                found.append((int(batch.src[sentence, source]), int(batch.tgt_out[sentence, target])))
    assert sorted(found) == [(100 * i + 2 * k, 10_000 + 100 * i + k) for i, own in enumerate(linked) for k in own]


def test_several_ranks_compute_the_same_as_one():
    """Micro-batches and their places in the step do not depend on the number of ranks. A text may be one sentence."""
    for src, tgt in (random_lengths(53), ([3], [4])):
        alone = stream(src, tgt, max_tokens=32, accumulate=6)
        ranks = [stream(src, tgt, max_tokens=32, accumulate=2, ranks=3, rank=rank) for rank in range(3)]
        for _ in range(20):
            whole, shares = next(alone), [next(rank) for rank in ranks]
            assert len({len(share.micro_batches) for share in shares}) == 1  # a batch may be empty
            dealt = [
                (place, batch.src.tolist())
                for share in shares
                for place, batch in zip(share.places, share.micro_batches, strict=True)
                if len(batch.src)
            ]
            assert sorted(dealt) == [
                (p, b.src.tolist()) for p, b in zip(whole.places, whole.micro_batches, strict=True)
            ]
            tokens = sum(int((batch.tgt_out != PAD).sum()) for batch in whole.micro_batches)
            assert [share.target_tokens for share in (whole, *shares)] == [tokens] * 4


@pytest.mark.parametrize("max_tokens", [1, 150, 10_000])
def test_evaluation_batches_hold_every_sentence_once_within_the_budget(max_tokens):
    rows = [[[i] * int(length) for i, length in enumerate(lengths)] for lengths in random_lengths(101)]
    batches = list(eval_batches(*rows, max_tokens))
    assert sorted(row for batch in batches for row in batch.src[:, 0].tolist()) == list(range(101))
    assert all(len(b.src) == 1 or max(b.src.numel(), b.tgt_in.numel()) <= max_tokens for b in batches)
