"""What a causal layer has seen: keys and values in preallocated tensors, whose capacity is not their length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn.checks import may_look, show


@dataclass(eq=False)
class AttentionCache:
    """Keys and values of the positions a causal layer has seen, with room for more.

    A value: `append` and `select` return new caches, and what a cache holds never changes, but for one that is given up
    to `move`. The first to append to a cache writes behind what it holds, into memory the two then share, and copies
    nothing. Otherwise what it holds is copied first: when another has appended to it before (a branch), when there is
    no room (the capacity doubles), and while autograd records, which needs earlier steps unharmed; so decode under
    `torch.inference_mode()`.

    Sequences stand flush left. Where their lengths differ, each goes on at its own.

    Args:
        rooms: keys and values, (batch, heads, capacity, head_dim) each.
        length: positions filled, as many as the longest sequence holds or more.
        lengths: (batch,) positions that each sequence holds; None: all of those filled.
        appended: whether the room past `length` has been taken.
    """

    rooms: tuple[Tensor, Tensor]
    length: int = 0
    lengths: Tensor | None = None
    appended: bool = False

    @property
    def key(self) -> Tensor:
        """(batch, heads, length, head_dim), a view."""
        return self.rooms[0][:, :, : self.length]

    @property
    def value(self) -> Tensor:
        """(batch, heads, length, head_dim), a view."""
        return self.rooms[1][:, :, : self.length]

    @property
    def batch(self) -> int:
        """Rows."""
        return self.rooms[0].shape[0]

    @property
    def capacity(self) -> int:
        """Positions that there is room for."""
        return self.rooms[0].shape[2]

    @property
    def next_position(self) -> int | Tensor:
        """Where the next query stands: a `query_offset`."""
        return self.length if self.lengths is None else self.lengths

    def append(self, key: Tensor, value: Tensor, lengths: Tensor | None = None) -> AttentionCache:
        """The cache with n more positions, whose `key` and `value` are (batch, heads, n, head_dim) each.

        `lengths` (batch,) is how many positions each sequence then holds, where some of the n are padding on its
        right; its next position takes the place of padding.

        Raises:
            ValueError: `key` is of another batch, number of heads or head_dim than the cache; `lengths` add fewer than
                0 or more than n positions.
        """
        self._check(key, lengths)
        n = key.shape[2]
        end = self.length + n
        if lengths is None and self.lengths is not None:
            lengths = self.lengths + n
        if any(x.requires_grad for x in (*self.rooms, key, value)):
            rooms = self._copy(end, key.dtype)
        elif end > self.capacity:
            rooms = self._copy(max(end, 2 * self.capacity), key.dtype)
        elif self.appended or self.rooms[0].dtype != key.dtype:  # as under autocast
            rooms = self._copy(self.capacity, key.dtype)
        else:
            rooms, self.appended = self.rooms, True
        for room, new in zip(rooms, (key, value), strict=True):
            if self.lengths is None:
                room[:, :, self.length : end] = new
            else:
                position = self.lengths[:, None] + torch.arange(n, device=new.device)
                room[:, :, self.length : end] = 0.0  # padding takes part in products: it must be numbers
                room.scatter_(2, position[:, None, :, None].expand_as(new), new)
        return AttentionCache(rooms, end, lengths)

    def select(self, rows: Tensor) -> AttentionCache:
        """The cache of the sequences `rows`, (new batch,) indices, repeats allowed, in new memory."""
        lengths = None if self.lengths is None else self.lengths[rows]
        if any(room.requires_grad for room in self.rooms):
            return AttentionCache((self.key[rows], self.value[rows]), self.length, lengths)
        rooms = [room.new_empty(len(rows), *room.shape[1:]) for room in self.rooms]
        for room, held in zip(rooms, (self.key, self.value), strict=True):
            torch.index_select(held, 0, rows, out=room[:, :, : self.length])
        return AttentionCache((rooms[0], rooms[1]), self.length, lengths)

    def move(self, rows: Tensor, to: Tensor, keep: int) -> AttentionCache:
        """The cache of its first `keep` sequences, once some have been put in the place of others: a beam's reordering.

        It is done in place, so this cache, and any that shares its memory, is given up. Most of a beam stays where it
        is, and to copy the others is all it costs. Not while autograd records.

        Args:
            rows: (moved,) indices of what is moved, as it was before anything was.
            to: (moved,) indices of the places it is moved to, each at most once.
            keep: sequences that are left, from the first one on.
        """
        for held in (self.key, self.value):
            held.index_copy_(0, to, held.index_select(0, rows))
        lengths = None if self.lengths is None else self.lengths.index_copy(0, to, self.lengths[rows])[:keep]
        return AttentionCache((self.rooms[0][:keep], self.rooms[1][:keep]), self.length, lengths)

    def _copy(self, capacity: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What is held, in new tensors with room for `capacity` positions."""
        room = (0, 0, 0, capacity - self.length)
        return F.pad(self.key.to(dtype), room), F.pad(self.value.to(dtype), room)

    def _check(self, key: Tensor, lengths: Tensor | None) -> None:
        batch, heads, n, head_dim = key.shape
        if self.rooms[0].shape != (batch, heads, self.capacity, head_dim):
            raise ValueError(f"key {show(key)}, cache {show(self.key)}: they differ in length alone, dimension 2")
        if lengths is None:
            return
        if lengths.shape != (batch,):
            raise ValueError(f"lengths {show(lengths)}: it is ({batch},), one a sequence")
        if may_look(lengths) and batch > 0:
            least, most = (int(x) for x in (lengths - self.next_position).aminmax())
            if least < 0 or most > n:
                raise ValueError(f"lengths add from {least} to {most} positions to those held; {n} were given")
