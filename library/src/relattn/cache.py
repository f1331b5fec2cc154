"""Cache of keys and values for decoding, in preallocated tensors, whose capacity is not their length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn.checks import as_int64, as_integer, bounds, can_read, show


@dataclass(eq=False)
class AttentionCache:
    """Keys and values of the positions that a causal layer has seen, with free capacity for more.

    A cache is a value: `append`, `drop` and `select` return new caches, and what a cache holds never changes.
    The first append to a cache writes into its free capacity and copies nothing. What the cache holds is copied first
    if the free capacity may be in use (a second append to the same cache), if it is too small (the capacity is then
    doubled), and while autograd records, which needs the earlier steps unchanged. So decode under
    `torch.inference_mode()`.

    Sequences are aligned left. Sequences of different lengths each continue at their own end.

    Args:
        buffers: Buffers of the keys and the values, (batch, heads, capacity, head_dim) each.
        length: Number of positions filled: the length of the longest sequence, or more. At most the capacity, which is
            not checked.
        lengths: (batch,) numbers of positions per sequence. Default: `length` for all.
        appended: Whether the buffers may be in use after `length`, by another cache. Default: yes.
        dropped: Number of positions that came before those held, and were dropped.

    Raises:
        TypeError: `lengths` is not a tensor.
        ValueError: `lengths` are not integers.
    """

    buffers: tuple[Tensor, Tensor]
    length: int = 0
    lengths: Tensor | None = None
    appended: bool = True
    dropped: int = 0

    def __post_init__(self) -> None:
        if self.lengths is not None:
            self.lengths = as_int64("lengths", self.lengths)

    @property
    def key(self) -> Tensor:
        """Keys, (batch, heads, length, head_dim), a view."""
        return self.buffers[0][:, :, : self.length]

    @property
    def value(self) -> Tensor:
        """Values, (batch, heads, length, head_dim), a view."""
        return self.buffers[1][:, :, : self.length]

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.buffers[0].shape[0]

    @property
    def capacity(self) -> int:
        """Number of positions that fit without a new allocation."""
        return self.buffers[0].shape[2]

    @property
    def next_position(self) -> int | Tensor:
        """Position of the next query among those held, for `query_offset`: an integer, or (batch,)."""
        return self.length if self.lengths is None else self.lengths

    @property
    def shortest(self) -> int:
        """Number of positions of the shortest sequence."""
        return self.length if self.lengths is None or self.batch == 0 else int(self.lengths.min())

    @property
    def longest(self) -> int:
        """Number of positions of the longest sequence."""
        return self.length if self.lengths is None or self.batch == 0 else int(self.lengths.max())

    def append(self, key: Tensor, value: Tensor, lengths: Tensor | None = None) -> AttentionCache:
        """Return the cache with n more positions.

        Args:
            key: (batch, heads, n, head_dim).
            value: (batch, heads, n, head_dim).
            lengths: (batch,) numbers of positions held afterwards per sequence, if some of the n are padding on the
                right.
                The next position of a sequence then replaces its padding.

        Raises:
            ValueError: `key` or `value` differs from the cache in batch, heads or head_dim, or `lengths` add fewer than
                0 or more than n positions.
        """
        self._check(key, value, lengths)
        n = key.shape[2]
        end = self.length + n
        if lengths is None and self.lengths is not None:
            lengths = self.lengths + n
        if any(x.requires_grad for x in (*self.buffers, key, value)):
            buffers = self._copy(end, key.dtype)
        elif end > self.capacity:
            buffers = self._copy(max(end, 2 * self.capacity), key.dtype)
        elif self.appended or self.buffers[0].dtype != key.dtype:  # the dtype differs under autocast
            buffers = self._copy(self.capacity, key.dtype)
        else:
            buffers = self.buffers
            self.appended = True
        for buffer, new in zip(buffers, (key, value), strict=True):
            if self.lengths is None:
                buffer[:, :, self.length : end] = new
            else:
                position = self.lengths[:, None] + torch.arange(n, device=new.device)
                buffer[:, :, self.length : end] = 0.0  # padding must be finite for callers that mask it themselves
                buffer.scatter_(2, position[:, None, :, None].expand_as(new), new)
        return AttentionCache(buffers, end, lengths, appended=False, dropped=self.dropped)

    def drop(self, count: int) -> AttentionCache:
        """Return the cache without its first `count` positions, which a sliding window has left behind.

        The positions that remain are counted from 0 again: attention needs distances only. The next append to the
        returned cache writes into the memory that both share, and copies what is held only if that is full, without
        the positions dropped. So a stream that drops what its window has left needs constant memory.

        Padding after the longest sequence is dropped too, and becomes free capacity.

        Raises:
            ValueError: `count` is negative, or more than the shortest sequence holds.
        """
        if as_integer(count) is None or not 0 <= count <= self.shortest:
            rule = f"count must be in [0, {self.shortest}], the positions of the shortest sequence"
            raise ValueError(f"{rule}, got {count!r}")
        buffers = (self.buffers[0][:, :, count:], self.buffers[1][:, :, count:])
        appended = self.appended
        self.appended = True
        lengths = None if self.lengths is None else self.lengths - count
        return AttentionCache(buffers, self.longest - count, lengths, appended, self.dropped + count)

    def select(self, rows: Tensor) -> AttentionCache:
        """Return the cache of the sequences `rows`, (new batch,) indices, repeats allowed, in new memory."""
        rows = as_int64("rows", rows)
        is_valid = rows.dim() == 1
        got: Any = show(rows)
        if can_read(rows):
            least, most = bounds(rows)
            is_valid = is_valid and least >= 0 and most < max(1, self.batch)
            got = rows.tolist()
        if not is_valid:
            raise ValueError(f"rows must have one dimension and indices in [0, {self.batch}), got {got}")
        lengths = None if self.lengths is None else self.lengths[rows]
        if any(buffer.requires_grad for buffer in self.buffers):
            return AttentionCache((self.key[rows], self.value[rows]), self.length, lengths, dropped=self.dropped)
        key, value = (buffer.new_empty(len(rows), *buffer.shape[1:]) for buffer in self.buffers)
        torch.index_select(self.key, 0, rows, out=key[:, :, : self.length])
        torch.index_select(self.value, 0, rows, out=value[:, :, : self.length])
        return AttentionCache((key, value), self.length, lengths, appended=False, dropped=self.dropped)

    def _copy(self, capacity: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return what is held, in new tensors of the given capacity."""
        padding = (0, 0, 0, capacity - self.length)
        return F.pad(self.key.to(dtype), padding), F.pad(self.value.to(dtype), padding)

    def _check(self, key: Tensor, value: Tensor, lengths: Tensor | None) -> None:
        n = key.shape[2] if key.dim() == 4 else 0
        for name, appended, buffer in (("key", key, self.buffers[0]), ("value", value, self.buffers[1])):
            expected = (*buffer.shape[:2], n, buffer.shape[3])
            if appended.shape != expected:
                raise ValueError(
                    f"{name} must have the cache's shape except in length, {expected}, got {show(appended)}"
                )
        if lengths is None:
            return
        lengths = as_int64("lengths", lengths)
        if lengths.shape != (self.batch,):
            raise ValueError(f"lengths must have shape ({self.batch},), one per sequence, got {show(lengths)}")
        if can_read(lengths) and self.batch > 0:
            min_added, max_added = (int(x) for x in (lengths - self.next_position).aminmax())
            if min_added < 0 or max_added > n:
                raise ValueError(
                    f"lengths must add from 0 to {n} positions to those held, got from {min_added} to {max_added}"
                )
