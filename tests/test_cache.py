"""The cache: a value, although appending to it writes in place."""

import pytest
import torch

from relattn.cache import AttentionCache

BATCH, HEADS, DIM = 3, 2, 5


def empty(capacity=0):
    """A cache whose unwritten room holds nothing that may be read."""
    room = torch.full((BATCH, HEADS, capacity, DIM), torch.nan)
    return AttentionCache((room, room.clone()), appended=False)


def positions(n, seed, batch=BATCH):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, HEADS, n, DIM, generator=generator) for _ in range(2))


def holds(cache, *chunks):
    """Whether the cache holds these chunks of keys and values, one after another, and nothing else."""
    keys, values = (torch.cat(parts, dim=2) for parts in zip(*chunks, strict=True))
    return torch.equal(cache.key, keys) and torch.equal(cache.value, values)


def addresses(cache):
    return [room.data_ptr() for room in cache.rooms]


def test_appending_where_there_is_room_copies_nothing():
    cache, chunks = empty(capacity=11), []
    room = addresses(cache)
    for n in (4, 1, 0, 1, 5):
        chunks.append(positions(n, seed=len(chunks)))
        cache = cache.append(*chunks[-1])
        assert holds(cache, *chunks)
        assert cache.length == sum(key.shape[2] for key, _ in chunks)
        assert addresses(cache) == room
        assert cache.key.data_ptr() == room[0]


def test_a_cache_without_room_doubles():
    cache, chunks, capacities = empty(), [], []
    for n in (3, 1, 1, 1, 1, 1, 20):
        chunks.append(positions(n, seed=len(chunks)))
        cache = cache.append(*chunks[-1])
        assert holds(cache, *chunks)
        capacities.append(cache.capacity)
    assert capacities == [3, 6, 6, 6, 12, 12, 28]


@pytest.mark.parametrize("capacity", [0, 4, 7, 20])
def test_a_cache_appended_to_twice_is_a_branch(capacity):
    first, left, right, after, more = (positions(n, seed=n) for n in (4, 1, 2, 3, 5))
    trunk = empty(capacity).append(*first)
    one = trunk.append(*left)
    other = trunk.append(*right)
    third = trunk.append(*positions(0, 0))
    one, other, third = one.append(*after), other.append(*more), third.append(*after)
    assert holds(trunk, first)
    assert holds(one, first, left, after)
    assert holds(other, first, right, more)
    assert holds(third, first, after)


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 0, 2, 1], [2], []], ids=str)
@pytest.mark.parametrize("filled", [0, 3, 6])
def test_selecting_gathers_sequences_and_keeps_the_capacity(filled, rows):
    first, second, after = positions(filled, 1), positions(1, 2), positions(2, 3, batch=len(rows))
    cache = empty(capacity=8).append(*first)
    chosen = cache.select(torch.tensor(rows, dtype=torch.long))
    assert chosen.capacity == 8
    assert holds(cache.append(*second), first, second)
    at_rows = tuple(part[rows] for part in first)
    assert holds(chosen, at_rows)
    assert addresses(chosen.append(*after)) == addresses(chosen)
    assert holds(chosen.append(*after), at_rows, after)
    assert holds(cache, first)


@pytest.mark.parametrize(
    ("rows", "to", "keep"),
    [([], [], 5), ([], [], 3), ([4, 0], [1, 2], 5), ([3, 4, 3], [0, 1, 3], 4), ([1, 2], [2, 1], 5), ([4], [0], 1)],
)
@pytest.mark.parametrize("lengths", [None, [5, 3, 4, 0, 1]])
def test_what_is_moved_is_what_would_be_selected(rows, to, keep, lengths):
    """In the same memory, and the next position goes behind each."""
    lengths = None if lengths is None else torch.tensor(lengths)
    rooms = torch.full((5, HEADS, 12, DIM), torch.nan)
    cache = AttentionCache((rooms, rooms.clone()), appended=False).append(*positions(5, 1, batch=5), lengths)
    order = torch.arange(5)
    order[to] = torch.tensor(rows, dtype=torch.long)
    expected = cache.select(order[:keep])
    moved = cache.move(torch.tensor(rows, dtype=torch.long), torch.tensor(to, dtype=torch.long), keep)
    assert addresses(moved) == addresses(cache)
    new = positions(1, 2, batch=keep)
    for ours, theirs in ((moved, expected), (moved.append(*new), expected.append(*new))):
        assert (ours.length, ours.batch, ours.capacity) == (theirs.length, keep, 12)
        assert torch.equal(ours.key, theirs.key)
        assert torch.equal(ours.value, theirs.value)
        assert (ours.lengths is None and theirs.lengths is None) or torch.equal(ours.lengths, theirs.lengths)


def test_sequences_of_different_lengths_go_on_each_at_its_own():
    first, second, third = positions(4, 1), positions(2, 2), positions(1, 3)
    cache = empty(capacity=12).append(*first, torch.tensor([4, 0, 1]))
    cache = cache.append(*second, torch.tensor([5, 2, 1]))
    cache = cache.select(torch.tensor([1, 2, 0])).append(*third)
    assert (cache.length, cache.next_position.tolist()) == (7, [3, 2, 6])
    for held, *(a, b, c) in zip((cache.key, cache.value), first, second, third, strict=True):
        assert not held.isnan().any()
        assert torch.equal(held[0, :, :3], torch.cat([b[1], c[0]], dim=1))
        assert torch.equal(held[1, :, :2], torch.cat([a[2, :, :1], c[1]], dim=1))
        assert torch.equal(held[2, :, :6], torch.cat([a[0], b[0, :, :1], c[2]], dim=1))


def test_a_branch_of_different_lengths_leaves_the_other_as_it_was():
    cache = empty(capacity=9).append(*positions(3, 1), torch.tensor([3, 1, 2]))
    one = cache.append(*positions(1, 2))
    before = one.key.clone()
    cache.append(*positions(2, 3)).append(*positions(1, 4))
    assert torch.equal(one.key, before)


def test_a_cache_takes_the_type_of_what_is_appended():
    """Under autocast the weights, and the empty cache with them, have another type than keys and values."""
    first, second = ([part.bfloat16() for part in positions(2, seed)] for seed in (1, 2))
    started = empty(capacity=9).append(*first, torch.tensor([2, 2, 2]))
    cache = started.append(*second)
    assert holds(cache, first, second)
    assert addresses(cache) == addresses(started)


def test_while_autograd_records_each_step_keeps_what_it_read():
    """Its products with what was held at each step, as if the parts had been joined by `torch.cat`."""
    chunks = [tuple(part.requires_grad_() for part in positions(n, seed=n)) for n in (3, 1, 2)]
    rows, weight = torch.tensor([2, 2, 0]), torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(9))
    cache, joined, got, want = empty(capacity=9), positions(0, seed=0), [], []
    for chunk in chunks:
        cache = cache.append(*chunk).select(rows)
        joined = [torch.cat(parts, dim=2)[rows] for parts in zip(joined, chunk, strict=True)]
        got.append(((cache.key @ weight) * cache.value).square().sum())
        want.append(((joined[0] @ weight) * joined[1]).square().sum())
    with torch.no_grad():
        cache.append(*positions(1, 7)).append(*positions(1, 8))
    leaves = [part for chunk in chunks for part in chunk]
    for a, b in zip(torch.autograd.grad(sum(got), leaves), torch.autograd.grad(sum(want), leaves), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("length", [0, 2, 5])
@pytest.mark.parametrize("capacity", [5, 20])
def test_a_cropped_cache_holds_the_first_positions_and_overwrites_none(length, capacity):
    first, after, more = positions(5, 1), positions(2, 2), positions(1, 3)
    cache = empty(capacity).append(*first)
    cropped = cache.crop(length)
    kept = tuple(part[:, :, :length] for part in first)
    assert cropped.length == cropped.next_position == length
    assert holds(cropped, kept)
    assert holds(cropped.append(*after), kept, after)
    assert holds(cache.append(*more), first, more)
    assert holds(cropped.append(*more).append(*after), kept, more, after)
    assert holds(cache, first)


def test_a_cache_is_cropped_to_a_length_for_each_sequence():
    first, after = positions(4, 1), positions(1, 2)
    lengths = torch.tensor([4, 1, 0])
    for cache in (empty(9).append(*first), empty(9).append(*first, torch.tensor([4, 3, 0]))):
        cropped = cache.crop(lengths)
        assert cropped.next_position.tolist() == [4, 1, 0]
        grown = cropped.append(*after)
        for row, length in enumerate(lengths.tolist()):
            assert torch.equal(grown.key[row, :, :length], first[0][row, :, :length])
            assert torch.equal(grown.value[row, :, length], after[1][row, :, 0])
        assert cache.length == 4
    shorter = empty(9).append(*first, torch.tensor([4, 3, 0])).crop(2)
    assert shorter.next_position.tolist() == [2, 2, 0]


def test_a_cache_made_of_the_buffers_of_another_leaves_them_alone():
    first, after = positions(5, 1), positions(1, 2)
    cache = empty(capacity=9).append(*first)
    shorter = AttentionCache(cache.rooms, 3)
    shorter.append(*after)
    assert holds(cache, first)


def test_messages():
    cache = empty(capacity=9).append(*positions(3, 1))
    with pytest.raises(ValueError, match=r"key must have the cache's shape .*\(3, 2, 1, 5\), got \(2, 2, 1, 5\)"):
        cache.append(*positions(1, 1, batch=2))
    with pytest.raises(ValueError, match=r"value must have the cache's shape .*, got \(3, 2, 2, 5\)"):
        cache.append(positions(1, 1)[0], positions(2, 1)[1])
    with pytest.raises(ValueError, match=r"lengths must have shape \(3,\).*, got \(2,\)"):
        cache.append(*positions(1, 1), torch.tensor([3, 4]))
    for lengths, got in (([3, 5, 4], "from 0 to 2"), ([2, 4, 4], "from -1 to 1")):
        with pytest.raises(ValueError, match=f"lengths must add from 0 to 1 positions .*, got {got}"):
            cache.append(*positions(1, 1), torch.tensor(lengths))
    for length in (-1, 4, 1.5, torch.tensor([3, 4, 0]), torch.tensor([1, 2])):
        with pytest.raises(ValueError, match="length must be"):
            cache.crop(length)
