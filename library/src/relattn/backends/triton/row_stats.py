"""Statistics of each query that one kernel stores for the next: (stats, batch, heads, padded queries), float32.

`forward` stores FORWARD_STATS for the backward pass: the log-sum-exp to base two, which is +∞ for a query that attends
to nothing, and the sums of the kept probabilities of the pairs before and after the clipping range.

`backward_query` stores BACKWARD_STATS for `backward_key`: the log-sum-exp and delta; both again for pairs before and
for pairs after the clipping range, minus what the relative terms add to all scores and dp there; the relative terms of
pairs before the clipping range; and the bits of the row seed for dropout.
"""

import triton
import triton.language as tl

LOG_SUM, WEIGHT_SUM_BEFORE, WEIGHT_SUM_AFTER = (tl.constexpr(index) for index in range(3))
FORWARD_STATS = tl.constexpr(3)
LOG, LOG_BEFORE, LOG_AFTER, DELTA, DELTA_BEFORE, DELTA_AFTER = (tl.constexpr(index) for index in range(6))
KEY_BEFORE, VALUE_BEFORE, ROW_SEED = (tl.constexpr(index) for index in range(6, 9))
BACKWARD_STATS = 9


@triton.jit
def padded_queries(pairs):
    """Return the number of queries rounded up to a multiple of 16, so that several can be loaded at once."""
    return tl.cdiv(pairs.queries, 16) * 16


@triton.jit
def stat_offset(b, h, row, pairs, index=0):
    """Return the offset of a statistic of a query."""
    return ((pairs.batch * index + b).to(tl.int64) * pairs.heads + h) * padded_queries(pairs) + row


@triton.jit
def store_stat(stats, index, b, h, row, pairs, values):
    tl.store(stats + stat_offset(b, h, row, pairs, index), values, mask=row < padded_queries(pairs))


@triton.jit
def load_forward_stat(stats, index, b, h, row, pairs, other=0.0):
    """Load a statistic that `forward` stored, and `other` for rows after the last query."""
    return tl.load(stats + stat_offset(b, h, row, pairs, index), mask=row < pairs.queries, other=other)


@triton.jit
def load_backward_stat(stats, index, b, h, row, pairs):
    """Load a statistic that `backward_query` stored. Rows after the last query have a log-sum-exp of +∞ and zeros."""
    return tl.load(stats + stat_offset(b, h, row, pairs, index), mask=row < padded_queries(pairs), other=0.0)


@triton.jit
def load_row_seed(stats, b, h, row, pairs):
    seed = row
    if pairs.seed is not None:
        seed = load_backward_stat(stats, ROW_SEED, b, h, row, pairs).to(tl.uint32, bitcast=True)
    return seed
