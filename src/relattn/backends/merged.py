"""Exact clipped attention in linear memory: far keys by the platform's flash kernel, near ones in tiles.

Clipping gives all keys far to one side of a query i the same row of each table, so there the relative terms are
constants of the row, which pass through a softmax:

    far left   j − i < a        ℓ_i = ℓ(q, k) + scale · q_i · wK[first]        z_i = z(q, k, v) + wV[first]
    near       a <= j − i <= b  a diagonal of the pairs has a row of its own
    far right  j − i > b        as far left, with the last row

For each block of C queries, one call of the kernel takes the keys to the left of the block's window, which are far from
all its queries, one those to the right, and a tile (C, C + b − a) takes the window, near pairs and two corners of far
ones. The three are joined by their log-sum-exps. Relative terms go through the row's *masses*, the probabilities summed
by label: Σ_j α_ij aV_ij = mass_i @ wV. The sums of near labels are diagonals, a view of the tile; those
of far ones its corners, and the weights of the other two parts.

Backward, a part of weight w = exp(ℓ_part − ℓ) in the row is given w · gradient, its own ℓ_part, and the whole's output,
on a far side − wV[far]. That makes the kernel's gradients exactly its share of the whole: the identity that ring
attention rests on, without its rounding of a difference of log-sum-exps. The tile and the sums by label take
dS_ij = p_ij (dP_ij − mean_i) with mean_i = Σ_j p_ij dP_ij summed from the parts, not grad_i · output_i: a rounded
output's error would shift every dS_ij of a row alike, which many keys average out but an edge's label collects.
"""

import torch
from torch import Tensor

from relattn.backends import flash, operators
from relattn.backends.tiles import HIDDEN, LOG_2, Block, Problem, Tile, prepare, widened
from relattn.call import Attended, Call, RelationCall, RelativeCall

SPAN = 4096  # keys a backward call is given, each of which costs it two rows of memory


def unsupported(call: Call) -> str | None:
    if not isinstance(call, RelativeCall):
        return "relations are arbitrary labels, which are for dense"
    if call.mask is not None:
        return "a mask tensor is for dense"
    if call.dropout_p > 0.0:
        return "dropout_p > 0 is for dense"
    if isinstance(call.query_offset, Tensor):
        return "a query_offset for each sequence is for dense"
    if call.query.device.type == "cuda" and call.query.dtype == torch.float64:
        return "float64 on CUDA is for dense"
    if call.query.device.type not in ("cpu", "cuda"):
        return f"device {call.query.device.type} has no flash kernel known here; it is for dense"
    if torch.compiler.is_exporting():
        return "torch.export is for dense, which is plain ATen"
    return None


def relation_attention(call: RelationCall) -> Attended:
    raise ValueError(f"merged: {unsupported(call)}")


def times_table(rows: Tensor, table: Tensor) -> Tensor:
    """(batch, heads, n, a) @ ((heads,) a, b) -> (batch, heads, n, b), in one matrix product."""
    if table.dim() == 3:
        return rows @ table
    return (rows.reshape(-1, rows.shape[-1]) @ table).view(*rows.shape[:-1], table.shape[-1])


def table_gradient(masses: Tensor, rows: Tensor, table: Tensor) -> Tensor:
    """(batch, heads, n, labels), (batch, heads, n, dim) -> the gradient of a table, summed over rows."""
    if table.dim() == 3:
        return (masses.mT @ rows).sum(0)
    return masses.reshape(-1, masses.shape[-1]).mT @ rows.reshape(-1, rows.shape[-1])


def far_part(problem: Problem, rows: slice, keys: slice) -> tuple[Tensor, Tensor]:
    """Attention of a block to keys on one side, with no relative terms: output and log-sum-exp."""
    bias = None if problem.bias is None else problem.bias[..., keys]
    key, value = problem.key[:, :, keys], problem.value[:, :, keys]
    return flash.attend(problem.query[:, :, rows], key, value, bias, problem.scale)


def near_part(problem: Problem, tile: Tile, rows: slice, by_label: Tensor | None, labels: int) -> tuple[Tensor, ...]:
    """Of a block's window, with 2^(score − top) for weights: Σ_j weight_j v_j; sums of weights, all and by label;
    and `top`, from which `base` is missing."""
    query, by_label = tile.rows(problem.query[:, :, rows]), None if by_label is None else tile.rows(by_label)
    key, value = tile.keys(problem.key), tile.keys(problem.value)
    output, masses = torch.empty_like(query), query.new_empty(*query.shape[:3], labels)
    mass, top = query.new_empty(*query.shape[:3], 1), query.new_empty(*query.shape[:3], 1)
    for chunk in tile.chunks():
        pairs = tile.scores(query, key, by_label, chunk)
        torch.amax(pairs, -1, keepdim=True, out=top[chunk])
        weights = pairs.sub_(top[chunk]).exp2_()
        torch.sum(weights, -1, keepdim=True, out=mass[chunk])
        torch.bmm(weights.flatten(1, 2), value[chunk], out=output[chunk].flatten(1, 2))
        if labels > 0:
            tile.masses(weights, masses[chunk])
    whole = (*problem.query.shape[:2], tile.C)
    return tuple(x.view(*whole, x.shape[-1]) for x in (output, mass, masses, top))


def forward(call: RelativeCall) -> tuple[Tensor, Tensor, Tensor]:
    """The third is what `Kept` says."""
    query, key, value, width = call.query, call.key, call.value, kept_width(call)
    exact = operators.exact(query.dtype)
    if query.numel() == 0 or key.numel() == 0:
        output = query.new_zeros(*query.shape[:3], value.shape[3])
        lse = query.new_full(query.shape[:3], -torch.inf, dtype=exact)
        return output, lse, query.new_zeros(*query.shape[:3], width, dtype=exact)
    output = query.new_empty(*query.shape[:3], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=exact)
    kept = query.new_empty(*query.shape[:3], width, dtype=exact)
    problem = prepare(call)
    for block in problem.blocks:
        attend_block(problem, block, output[:, :, block.rows], lse[:, :, block.rows], kept[:, :, block.rows])
    return output, lse, kept


def attend_block(problem: Problem, block: Block, output: Tensor, lse: Tensor, kept_rows: Tensor) -> None:
    """Fills in the block's rows of the three."""
    kept, near, rel_value = Kept(kept_rows, problem), problem.near, problem.rel_value
    query, value_dim = problem.query[:, :, block.rows], output.shape[-1]
    by_label = None if problem.rel_key is None else times_table(query.to(problem.exact), problem.rel_key.mT)

    tile = Tile(problem, block)
    joined, mass, masses, top = near_part(problem, tile, block.rows, by_label, kept.masses.shape[-1])
    left_output, left_lse = far_part(problem, block.rows, block.left)
    right_output, right_lse = far_part(problem, block.rows, block.right)

    own = torch.stack([top[..., 0] * LOG_2, left_lse, right_lse], -1)  # (batch, heads, C, 3)
    whole = own.clone()
    if by_label is not None:
        whole[..., :1] += tile.base(by_label) * LOG_2
        if near.far:
            whole[..., 1] += by_label[..., 0] * LOG_2
            whole[..., 2] += by_label[..., -1] * LOG_2
    total = torch.cat([whole[..., :1] + mass.log(), whole[..., 1:]], -1).logsumexp(-1)
    empty = total < HIDDEN / 2
    if problem.padding is not None:
        empty = empty | problem.padding[..., block.rows]
    lse.copy_(total.masked_fill(empty, -torch.inf))
    raw = torch.exp(whole - total.masked_fill_(empty, flash.NEVER)[..., None])
    all_mass = raw[..., :1] * mass + raw[..., 1:].sum(-1, keepdim=True)  # 1, but for the rounding of `total`
    weights = torch.div(raw, all_mass.masked_fill(empty[..., None], 1.0), out=kept.weights)
    kept.lses.copy_(own)
    kept.lses[..., :1] = top.masked_fill(top < HIDDEN / 2, 0.0)  # weights of a row all hidden: 0

    joined *= weights[..., :1]
    for part, keys, weight in (
        (left_output, block.left, weights[..., 1:2]),
        (right_output, block.right, weights[..., 2:]),
    ):
        if keys.start < keys.stop:
            joined.addcmul_(part, weight)
    if rel_value is not None:
        torch.mul(masses, weights[..., :1], out=kept.masses)
        if near.far:
            kept.masses[..., 0] += weights[..., 1]
            kept.masses[..., -1] += weights[..., 2]
        joined += times_table(kept.masses, rel_value)
    output.copy_(joined[..., :value_dim])
    for side, part in enumerate((left_output, right_output)[: kept.far.shape[-2]]):
        torch.mul(part[..., :value_dim], weights[..., 1 + side, None], out=kept.far[..., side, :])


class Kept:
    """What the forward keeps of every row for the backward, side by side in one tensor (batch, heads, queries, width).

    `masses` by label, for the gradient of wV; `far`, the output of the keys far to a side times their weight, whose
    product with the gradient is their part in the row's mean and, with wK, in the sums by label.
    """

    def __init__(self, rows: Tensor, problem: Problem):
        labels = 0 if problem.rel_value is None else problem.rel_value.shape[-2]
        self.masses = rows[..., :labels]
        self.weights = rows[..., labels : labels + 3]  # of tile, far left, far right in the whole: exp(lses − ℓ)
        self.lses = rows[..., labels + 3 : labels + 6]  # own ones, with no relative term; of the tile the `top`
        sides = 1 if problem.near.causal else 2
        self.far = rows[..., labels + 6 :].unflatten(-1, (sides, problem.value_dim))  # left, then right if not causal


def kept_width(call: RelativeCall) -> int:
    labels = 0 if call.rel_value is None else call.left + call.right + 1
    return labels + 6 + (1 if call.is_causal else 2) * call.value.shape[3]


def backward(grad: Tensor, output: Tensor, lse: Tensor, kept: Tensor, call: RelativeCall) -> tuple[Tensor, ...]:
    """Gradients of query, key, value, rel_key and rel_value; of a table not given, an empty tensor."""
    problem = prepare(call)
    sums = Gradients(problem)
    if call.query.numel() > 0 and call.key.numel() > 0:
        for block in problem.blocks:
            sums.add(block, *(x[:, :, block.rows] for x in (grad, output, lse, kept)))
    given = (call.query, call.key, call.value, call.rel_key, call.rel_value)
    found = (sums.query, sums.key, sums.value, sums.rel_key, sums.rel_value)
    return tuple(
        call.query.new_empty(0) if x is None else total[..., : x.shape[-1]].to(x.dtype).contiguous()
        for x, total in zip(given, found, strict=True)
    )


class Gradients:
    """Sums of the gradients over blocks, in the exact type and the one width."""

    def __init__(self, problem: Problem):
        self.problem = problem
        kind = problem.exact
        self.query, self.key, self.value, self.rel_key, self.rel_value = (
            problem.query.new_zeros(0 if x is None else x.shape, dtype=kind)
            for x in (problem.query, problem.key, problem.value, problem.rel_key, problem.rel_value)
        )

    def add(self, block: Block, grad: Tensor, output: Tensor, lse: Tensor, kept_rows: Tensor) -> None:
        problem = self.problem
        exact, width = problem.exact, problem.query.shape[3]
        kept = Kept(kept_rows, problem)
        grad = widened(grad, width).to(exact).masked_fill(lse.isneginf()[..., None], 0.0)
        wide_output = widened(output, width).to(exact)
        query = problem.query[:, :, block.rows].to(exact)
        values = None if problem.rel_value is None else times_table(grad, problem.rel_value.mT)
        tile = Tile(problem, block)
        far = self.far_products(tile, grad, values, kept)

        self.add_far(block.rows, block.left, grad * kept.weights[..., 1:2], wide_output, kept.lses[..., 1], 0)
        self.add_far(block.rows, block.right, grad * kept.weights[..., 2:], wide_output, kept.lses[..., 2], -1)
        sums, mean = self.add_near(tile, block.rows, grad, query, values, kept, far.sum(-1, keepdim=True))
        if problem.rel_key is not None:
            if problem.near.far:
                for side in range(far.shape[-1]):
                    sums[..., -side] += far[..., side] - mean[..., 0] * kept.weights[..., 1 + side]
            self.query[:, :, block.rows] += times_table(sums, problem.rel_key).mul_(LOG_2)
            self.rel_key += table_gradient(sums, query, problem.rel_key) * problem.scale
        if problem.rel_value is not None:
            self.rel_value += table_gradient(kept.masses, grad, problem.rel_value)

    def add_far(self, rows: slice, keys: slice, grad: Tensor, output: Tensor, lse: Tensor, label: int) -> None:
        problem = self.problem
        query = problem.query[:, :, rows]
        if problem.rel_value is not None and problem.near.far:
            output = output - problem.rel_value[..., label, :].unsqueeze(-2)
        grad, output, lse = grad.to(query.dtype), output.to(query.dtype), lse.contiguous()
        for start in range(keys.start, keys.stop, SPAN):
            span = slice(start, min(start + SPAN, keys.stop))
            key, value = problem.key[:, :, span], problem.value[:, :, span]
            bias = None if problem.bias is None else problem.bias[..., span]
            parts = flash.attend_backward(grad, query, key, value, output, lse, bias, problem.scale)
            for total, part in zip(
                (self.query[:, :, rows], self.key[:, :, span], self.value[:, :, span]), parts, strict=True
            ):
                total += part

    def far_products(self, tile: Tile, grad: Tensor, values: Tensor | None, kept: Kept) -> Tensor:
        """Σ_j p_ij (grad_i · (v_j + aV_ij) − base_i) over the keys far to a side: (batch, heads, C, sides)."""
        products = (grad[..., None, : self.problem.value_dim] * kept.far).sum(-1)
        if tile.near.far and values is not None:
            for side in range(products.shape[-1]):
                constant = values[..., -side] - tile.base(values)[..., 0]
                products[..., side].addcmul_(constant, kept.weights[..., 1 + side])
        return products

    def add_near(
        self, tile: Tile, rows: slice, grad: Tensor, query: Tensor, values: Tensor | None, kept: Kept, far: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Adds the tile's share, and `far` products to the rows' means.

        Returns the sums of the scores' gradients by label, and the mean that they are taken from, less `base`.
        """
        problem, labels, by_label = self.problem, 0, None
        if problem.rel_key is not None:
            labels, by_label = problem.rel_key.shape[-2], tile.rows(times_table(query, problem.rel_key.mT))
        weight, top, query = tile.rows(kept.weights[..., :1]), tile.rows(kept.lses[..., :1]), tile.rows(query)
        grad, mean = tile.rows(grad) * weight, tile.rows(far).clone()
        key, value = tile.keys(problem.key), tile.keys(problem.value)
        if values is not None:
            values = tile.rows(values) * weight

        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        sums = query.new_empty(*query.shape[:3], labels)
        for chunk in tile.chunks():
            weights = tile.scores(query, key, by_label, chunk).sub_(top[chunk]).exp2_()
            d_scores = tile.relative(None if values is None else values[chunk], weights.shape[0])
            flat = d_scores.flatten(1, 2)
            flat.baddbmm_(grad[chunk].flatten(1, 2), value[chunk].mT)
            mean[chunk] += d_scores.mul_(weights).sum(-1, keepdim=True)
            d_scores.addcmul_(weights, mean[chunk] * weight[chunk], value=-1.0)
            if by_label is not None:
                tile.masses(d_scores, sums[chunk])
            torch.bmm(flat, key[chunk], out=d_query[chunk].flatten(1, 2))
            torch.bmm(flat.mT, query[chunk].flatten(1, 2), out=d_key[chunk])
            torch.bmm(weights.flatten(1, 2).mT, grad[chunk].flatten(1, 2), out=d_value[chunk])

        whole, lead = (*problem.query.shape[:2], tile.C), problem.key.shape[:2]
        self.query[:, :, rows].add_(d_query.view(*whole, -1), alpha=problem.scale)
        self.key[:, :, tile.inside].add_(d_key.unflatten(0, lead)[:, :, tile.into], alpha=problem.scale)
        self.value[:, :, tile.inside] += d_value.unflatten(0, lead)[:, :, tile.into]
        return sums.view(*whole, labels), mean.view(*whole, 1)


relative_attention = operators.register("merged", forward, backward, kept_width)
