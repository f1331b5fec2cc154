"""Terms by label onto the pairs of queries and keys, and back, by views where labels are clipped distances.

The pairs (r, j) with the same j − r form a diagonal. In a row-major array, one step along a diagonal is keys + 1
elements. So neighbouring diagonals are a view with strides (keys + 1, 1), which has one row per query. One strided
addition puts the scores of a clipping range on their pairs, and one strided copy takes its probabilities off them.
For queries near either end, a row of this view would leave the query's row of pairs; they are skewed in a padded copy.
Pairs left and right of the clipping range, which share its edge labels, form two corners.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from relattn.call import Call


class Corner(NamedTuple):
    """A corner of the array of pairs, where pairs on one side of the clipping range have its edge label."""

    rows: slice
    columns: slice
    label: slice
    ones: Tensor  # (rows, columns), 1 on these pairs and 0 elsewhere


@dataclass(frozen=True)
class Diagonals:
    """Labels 0 … width − 1 for the pairs with j − r = start … start + width − 1, where r is a row and j a column.

    In the corners, pairs have the first or the last label. Other pairs have none.
    """

    queries: int
    keys: int
    start: int
    width: int
    complete: range  # queries that have keys for all labels
    has_left: bool  # whether there is a lower left corner, with pairs left of the clipping range
    has_right: bool  # whether there is an upper right corner, with pairs right of it
    corners: list[Corner]

    def add(self, pairs: Tensor, by_label: Tensor) -> None:
        """Add terms by label, (…, queries, width), to the pairs (…, queries, keys) in place."""
        if self.width == 0:
            return
        for rows, columns, label, ones in self.corners:
            pairs[..., rows, columns].addcmul_(ones, by_label[..., rows, label])
        self.complete_diagonals(pairs).add_(by_label[..., self.complete.start : self.complete.stop, :])
        for first, end in self.ends():
            near = self.columns(first, end)
            label_offset = first + self.start - near.start  # of label 0 of the first query, in these columns
            before = max(0, end - 1 - first + label_offset)
            after = max(0, near.stop - first - self.start - self.width)
            padded = F.pad(by_label[..., first:end, :], (before, after))
            pairs[..., first:end, near] += skewed_view(padded, near.stop - near.start, before - label_offset, -1)

    def collect(self, pairs: Tensor, labels: int) -> Tensor:
        """Return the sums of the pairs over the keys of each label: (…, queries, width)."""
        if len(self.complete) == self.queries and not self.corners:
            return self.complete_diagonals(pairs)
        by_label = pairs.new_empty(*pairs.shape[:-1], self.width)
        by_label[..., self.complete.start : self.complete.stop, :] = self.complete_diagonals(pairs)
        for first, end in self.ends():
            near = self.columns(first, end)
            label_offset = first + self.start - near.start
            before = max(0, -label_offset)
            after = max(0, end - 1 + self.start + self.width - near.stop)
            padded = F.pad(pairs[..., first:end, near], (before, after))
            by_label[..., first:end, :] = skewed_view(padded, self.width, before + label_offset, 1)
        for rows, columns, label, ones in self.corners:
            by_label[..., rows, label] += (pairs[..., rows, columns] * ones).sum(-1, keepdim=True)
        return by_label

    def transposed(self, like: Tensor) -> "Diagonals":
        """Return the diagonals of the pairs (key, query), whose labels are in reverse order."""
        start = 1 - self.start - self.width
        return diagonals(self.keys, self.queries, start, self.width, like, self.has_right, self.has_left)

    def complete_diagonals(self, pairs: Tensor) -> Tensor:
        """Return the pairs of the complete queries by label, (…, complete, width): a view of a contiguous array."""
        sizes = (*pairs.shape[:-2], len(self.complete), self.width)
        strides = (*pairs.stride()[:-2], self.keys + 1, 1)
        offset = pairs.storage_offset() + self.complete.start * (self.keys + 1) + self.start
        return pairs.as_strided(sizes, strides, max(0, offset))

    def ends(self) -> list[tuple[int, int]]:
        """Return the ranges (first, end) of the queries that lack keys for some labels."""
        ends = [(0, self.complete.start), (self.complete.stop, self.queries)]
        return [(first, end) for first, end in ends if first < end]

    def columns(self, first: int, end: int) -> slice:
        """Return the keys that the queries in [first, last) have in the clipping range."""
        start = min(self.keys, max(0, first + self.start))
        return slice(start, max(start, min(self.keys, end - 1 + self.start + self.width)))


def skewed_view(padded: Tensor, columns: int, offset: int, slope: int) -> Tensor:
    """Return a view of `columns` columns: they begin at `offset` in row 0, and `slope` later in each following row."""
    *lead, rows, _ = padded.shape
    strides = (*padded.stride()[:-2], padded.shape[-1] + slope, 1)
    return padded.as_strided((*lead, rows, columns), strides, offset)


def diagonals_of(call: Call) -> tuple[Diagonals, slice]:
    """Return the diagonals of a call whose sequences have one offset, and the rows of its tables for their labels.

    Distances are left out that no pair has, or no pair that may attend.
    """
    queries = call.query.shape[2]
    keys = call.key.shape[2]
    offset = call.query_offset
    if call.clips:  # beyond the clipping range, all offsets give the same labels
        offset = min(max(offset, 1 - queries - call.right), keys - 1 + call.left)
    # least and largest distance of any pair
    min_distance = 1 - queries - offset
    max_distance = keys - 1 - offset
    if call.is_causal:
        max_distance = min(max_distance, 0)
    begin = max(-call.left, min_distance)
    end = min(call.right, max_distance) + 1
    width = max(0, end - begin)
    start = begin + offset if width > 0 else 0

    has_left = call.clips and width > 0 and min_distance < begin
    has_right = call.clips and width > 0 and max_distance >= end
    rows = slice(begin + call.left, begin + call.left + width)
    return diagonals(queries, keys, start, width, call.query, has_left, has_right), rows


def diagonals(
    queries: int, keys: int, start: int, width: int, like: Tensor, has_left: bool, has_right: bool
) -> Diagonals:
    """Return the diagonals from `start` on, with the corners that there are in the dtype of a tensor."""
    first = min(queries, max(0, -start))
    complete = range(first, max(first, min(queries, keys - start - width + 1)))
    corners = []
    if has_left:
        rows = min(queries, queries - 1 + start)
        columns = min(keys, queries - 1 + start)
        ones = like.new_ones(rows, columns).tril(start - 1 + queries - rows)
        corners.append(Corner(slice(-rows, None), slice(columns), slice(1), ones))
    if has_right:
        rows = min(queries, keys - start - width)
        columns = min(keys, keys - start - width)
        ones = like.new_ones(rows, columns).triu(start + width - keys + columns)
        corners.append(Corner(slice(rows), slice(-columns, None), slice(-1, None), ones))
    return Diagonals(queries, keys, start, width, complete, has_left, has_right, corners)
