"""The cache: a value, although appending to it writes in place."""

import random

import pytest
import torch
from relattn.cache import AttentionCache

BATCH, HEADS, DIM = 3, 2, 5


def empty(capacity=0, batch=BATCH):
    """Return a cache whose free capacity is NaN."""
    buffer = torch.full((batch, HEADS, capacity, DIM), torch.nan)
    return AttentionCache((buffer, buffer.clone()), appended=False)


def positions(n, seed, batch=BATCH):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, HEADS, n, DIM, generator=generator) for _ in range(2))


def addresses(cache):
    return [buffer.data_ptr() for buffer in cache.buffers]


def assert_holds(cache, sequences):
    """Assert that a cache holds a list of (keys, values), each (heads, n, dim), and nothing that is not finite."""
    assert cache.batch == len(sequences)
    lengths = [key.shape[1] for key, _ in sequences]
    following = cache.next_position
    assert (following.tolist() if isinstance(following, torch.Tensor) else [following] * len(lengths)) == lengths
    for row, sequence in enumerate(sequences):
        for held, want in zip((cache.key, cache.value), sequence, strict=True):
            assert torch.equal(held[row, :, : lengths[row]], want)
    assert cache.key.isfinite().all()


@pytest.mark.parametrize("part", range(4))
def test_every_cache_keeps_what_it_holds(part):
    """Append, drop and select in any order, from any cache made so far, against lists of sequences."""
    for seed in range(part, 400, 4):
        draw = random.Random(seed)
        capacity, is_ragged = draw.choice([0, 3, 12]), draw.random() < 0.4
        caches = [(empty(capacity), [(torch.empty(HEADS, 0, DIM),) * 2] * BATCH, 0)]
        for step in range(8):
            cache, sequences, dropped = caches[-1] if draw.random() < 0.5 else draw.choice(caches)
            batch, held = len(sequences), [key.shape[1] for key, _ in sequences]
            lengths = is_ragged and draw.random() < 0.5
            match draw.choice(["append", "append", "append", "drop", "select"]):
                case "append":
                    new = positions(draw.randint(0, 4), step, batch)
                    n = new[0].shape[2]
                    counts = [draw.randint(0, n) if lengths else n for _ in held]
                    ends = torch.tensor([a + b for a, b in zip(held, counts, strict=True)], dtype=torch.long)
                    cache = cache.append(*new, ends if lengths else None)
                    sequences = [
                        tuple(torch.cat([old, x[row, :, : counts[row]]], 1) for old, x in zip(pair, new, strict=True))
                        for row, pair in enumerate(sequences)
                    ]
                case "drop":
                    count = draw.randint(0, min(held, default=cache.length))
                    cache, dropped = cache.drop(count), dropped + count
                    sequences = [tuple(x[:, count:] for x in pair) for pair in sequences]
                case "select":
                    rows = [draw.randrange(batch) for _ in range(draw.randint(0, 4))] if batch else []
                    before, cache = cache.capacity, cache.select(torch.tensor(rows, dtype=torch.long))
                    assert cache.capacity == before
                    sequences = [sequences[row] for row in rows]
            caches.append((cache, sequences, dropped))
            for made, content, count in caches:
                assert_holds(made, content)
                assert made.dropped == count


def test_appending_copies_only_without_capacity_or_into_another_dtype():
    cache, capacities = empty(capacity=11), []
    buffer = addresses(cache)
    for n in (4, 1, 0, 1, 5):
        cache = cache.append(*positions(n, seed=n))
        assert addresses(cache) == buffer
        assert cache.key.data_ptr() == buffer[0]
    grown = empty()
    for n in (3, 1, 1, 1, 1, 1, 20):
        grown = grown.append(*positions(n, seed=n))
        capacities.append(grown.capacity)
    assert capacities == [3, 6, 6, 6, 12, 12, 28]
    low = [part.bfloat16() for part in positions(2, 1)]  # under autocast, weights and empty caches are float32
    started = empty(capacity=9).append(*low, torch.tensor([2, 2, 2]))
    assert started.key.dtype == torch.bfloat16
    assert addresses(started.append(*low)) == addresses(started)


def test_a_cache_of_another_caches_buffers_leaves_them_alone():
    first = positions(5, 1)
    cache = empty(capacity=9).append(*first)
    AttentionCache(cache.buffers, 3).append(*positions(1, 2))
    assert torch.equal(cache.key, first[0])


def test_gradients_equal_those_of_concatenation():
    """While autograd records, each step keeps what it read."""
    chunks = [tuple(part.requires_grad_() for part in positions(n, seed=n)) for n in (3, 1, 2)]
    rows, weight = torch.tensor([2, 2, 0]), torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(9))
    cache, joined, got, want = empty(capacity=9), positions(0, seed=0), 0.0, 0.0
    for chunk in chunks:
        cache = cache.append(*chunk).select(rows)
        joined = [torch.cat(parts, dim=2)[rows] for parts in zip(joined, chunk, strict=True)]
        got = got + ((cache.key @ weight) * cache.value).square().sum()
        want = want + ((joined[0] @ weight) * joined[1]).square().sum()
    with torch.no_grad():
        cache.append(*positions(1, 7)).append(*positions(1, 8))
    leaves = [part for chunk in chunks for part in chunk]
    torch.testing.assert_close(torch.autograd.grad(got, leaves), torch.autograd.grad(want, leaves))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32])
def test_lengths_of_any_integer_dtype_count_further_than_it_does(dtype):
    ends = torch.tensor([100, 120, 7])
    caches = [
        empty().append(*positions(120, 1), ends.to(dtype)),
        AttentionCache(positions(120, 1), 120, ends.to(dtype)),
    ]
    for cache in caches:
        for step in range(4):
            cache = cache.append(*positions(50, step), cache.next_position + 50 if step == 2 else None)
        assert cache.next_position.tolist() == [300, 320, 207]


@pytest.mark.parametrize("gradients", [False, True])
def test_rows_are_indices_and_no_mask(gradients):
    key, value = positions(2, 1)
    cache = AttentionCache((key.requires_grad_(gradients), value), 2)
    for dtype in (torch.uint8, torch.int8, torch.uint16, torch.int32):
        assert torch.equal(cache.select(torch.tensor([1, 0, 1], dtype=dtype)).key, key[[1, 0, 1]])
    for rows in (torch.tensor([True, False, True]), torch.tensor([1.0])):
        with pytest.raises(ValueError, match="rows must have an integer dtype"):
            cache.select(rows)
    for rows in ([1, 0, 1], None):
        with pytest.raises(TypeError, match="rows must be a tensor"):
            cache.select(rows)


def test_bad_arguments_are_refused():
    cache, one = empty(capacity=9).append(*positions(3, 1)), positions(1, 1)
    refused = [
        (lambda: cache.append(*positions(1, 1, batch=2)), r"key.*\(3, 2, 1, 5\).*\(2, 2, 1, 5\)"),
        (lambda: cache.append(one[0], positions(2, 1)[1]), r"value.*\(3, 2, 2, 5\)"),
        (lambda: cache.append(*one, torch.tensor([3, 4])), r"lengths.*\(3,\).*\(2,\)"),
        (lambda: cache.append(*one, torch.tensor([3, 5, 4])), "lengths.*0 to 1.*from 0 to 2"),
        (lambda: cache.append(*one, torch.tensor([2, 4, 4])), "lengths.*0 to 1.*from -1 to 1"),
        *((lambda x=x: cache.select(torch.tensor(x)), "rows must .* in .0, 3., got") for x in ([3], [-1, 0], 1)),
    ]
    for call, facts in refused:
        with pytest.raises(ValueError, match=facts):
            call()
