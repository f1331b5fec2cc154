"""Attention in O(n²) work space, never O(n² · d), with every option of the operators, on any device.

A score is q_i · k_j + r_i · aK_ij. Its second term depends on the label of the pair only. One product of the r_i and
the table gives this term for every label; it is then *added* to the pairs. The probabilities take the opposite way:
they are *collected* by label, for one product with the other table, Σ_j α_ij aV_ij. Gradients use the same two
operations. On CPU a few heads are computed at a time, so that arrays of pairs stay in the cache.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relattn.backends.autograd import differentiable
from relattn.backends.dense.diagonals import Diagonals
from relattn.backends.dense.labels import Labels, cut
from relattn.call import accumulation_dtype
from relattn.checks import is_tracing

PAIRS_PER_TASK = 2**19  # per thread: two megabytes of float32
ALL = slice(None)


class Inputs(NamedTuple):
    """Operands of an attention, tensors first. Masks and labels are (batch or 1, heads or 1, …)."""

    query: Tensor  # (batch, heads, queries, dim)
    key: Tensor  # (batch, key_heads, keys, dim)
    value: Tensor  # (batch, key_heads, keys, value_dim)
    key_table: Tensor | None  # (heads or 1, labels, rel_dim)
    value_table: Tensor | None  # (heads or 1, labels, value_dim)
    rel_query: Tensor | None  # (batch, heads, queries, rel_dim); None: the query
    query_table: Tensor | None  # (heads or 1, labels, dim), multiplied with the keys; with diagonals, in reverse order
    bias: Tensor | None  # (batch or 1, heads or 1, queries or 1, keys or 1), added to the scores
    label: Tensor | None  # (…, queries, keys), if there are no diagonals
    hidden: Tensor | None  # (…, queries, keys): True for pairs that may not attend
    attends: Tensor | None  # (…, queries, 1): False for queries whose output is zeros
    dropout_mask: Tensor | None  # (…, queries, keys): False for probabilities that dropout drops
    diagonals: Diagonals | None  # if labels are clipped distances
    keep_scale: float  # factor on kept probabilities
    scale: float
    return_lse: bool
    has_gradients: bool

    def select(self, sentences: slice, heads: slice, key_heads: slice) -> "Inputs":
        """Return the inputs of some sentences and heads."""
        parts = {name: cut(getattr(self, name), heads) for name in ("key_table", "value_table", "query_table")}
        for name in ("query", "rel_query", "bias", "label", "hidden", "attends", "dropout_mask"):
            parts[name] = cut(getattr(self, name), sentences, heads)
        key = self.key[sentences, key_heads]
        value = self.value[sentences, key_heads]
        return self._replace(key=key, value=value, **parts)

    def relative_query(self) -> Tensor:
        """Return the query of the relative term."""
        return self.query if self.rel_query is None else self.rel_query

    def key_per_head(self) -> Tensor:
        """Return the keys that each head of the queries has, (batch, heads, keys, dim)."""
        return self.key.repeat_interleave(self.query.shape[1] // self.key.shape[1], dim=1)

    def labelling(self) -> Diagonals | Labels:
        """Return the object that adds terms by label to pairs, and collects pairs by label."""
        if self.diagonals is not None:
            return self.diagonals
        assert self.label is not None
        return Labels(self.label)


INPUTS = 8  # leading fields of Inputs that have gradients
TENSORS = 12  # leading fields of Inputs that are tensors or None


def forward(*arguments: Any) -> tuple[Tensor, ...]:
    """Return the output, the log-sum-exp if requested, and what the backward pass needs of each part.

    These are the probabilities and, if there is a table for values, the probabilities by label.
    """
    inputs = Inputs(*arguments)
    query = inputs.query
    value = inputs.value
    output = query.new_empty(*query.shape[:3], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=accumulation_dtype(query.dtype)) if inputs.return_lse else None
    saved: list[Tensor] = []
    for sentences, heads, key_heads in tasks(query, inputs.key):
        task = inputs.select(sentences, heads, key_heads)
        pairs = scores(task)
        if lse is not None:
            task_lse = pairs.to(lse.dtype).logsumexp(-1, keepdim=True)
            task_lse = task_lse if task.attends is None else task_lse.masked_fill(~task.attends, -torch.inf)
            lse[sentences, heads] = task_lse.squeeze(-1)
        probabilities = torch.softmax(pairs, -1, out=pairs)
        dropped = probabilities if task.dropout_mask is None else probabilities * task.dropout_mask
        by_label = None
        if task.value_table is not None:
            by_label = task.labelling().collect(dropped, task.value_table.shape[1])
        # an exported program may run where autograd records, which refuses the second change in place of a whole slice
        out = output if heads is ALL else output[sentences, heads]
        if by_label is not None and task.value_table is not None:
            write_table_product(out, by_label, task.value_table)
        factors = stack_heads(dropped, task.value), stack_heads(task.value, task.value)
        is_sum = by_label is not None
        write_product(stack_heads(out, task.value), *factors, factor=task.keep_scale, is_sum=is_sum)
        if inputs.has_gradients:
            saved += [probabilities] if by_label is None else [probabilities, by_label]
    if inputs.attends is not None:  # not in place, which made gradients wrong under torch.compile in torch 2.11
        output = output.masked_fill(~inputs.attends, 0.0)
    return (output, *saved) if lse is None else (output, lse, *saved)


def backward(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Return the gradients of the arguments from query to bias; empty tensors for absent ones.

    Args:
        grad: Gradient of the output.
        arguments: Results of `forward` after the output, and then its arguments.
    """
    fields = arguments[-len(Inputs._fields) :]
    inputs = Inputs(*fields)
    saved = list(arguments[1 if inputs.return_lse else 0 : -len(fields)])
    results: list[Any] = [None if x is None else x.new_zeros(x.shape) for x in fields[:INPUTS]]
    gradients = Inputs(*results, *fields[INPUTS:])
    for part in tasks(inputs.query, inputs.key):
        task = inputs.select(*part)
        probabilities = saved.pop(0)
        by_label = None if task.value_table is None else saved.pop(0)
        sentences, heads, _ = part
        add_gradients(gradients.select(*part), grad[sentences, heads], probabilities, by_label, task)
    return tuple(grad.new_empty(0) if x is None else x for x in results)


differentiable_attention = differentiable("dense", forward, backward, tensors=TENSORS, inputs=INPUTS, unread=1)


def scores(task: Inputs) -> Tensor:
    """Return the scores of a part, (batch, heads, queries, keys)."""
    query = task.query
    key = task.key
    table = task.key_table
    pairs = query.new_empty(*query.shape[:3], key.shape[2])
    write_product(stack_heads(pairs, key), stack_heads(query, key), stack_heads(key, key).mT, factor=task.scale)
    if table is not None:
        task.labelling().add(pairs, multiply_table(task.relative_query(), table.mT * task.scale))
    if task.query_table is not None:
        terms = query.new_zeros(*query.shape[:2], key.shape[2], query.shape[2])  # (batch, heads, keys, queries)
        by_label = multiply_table(task.key_per_head(), task.query_table.mT * task.scale)
        task.labelling().transposed(query).add(terms, by_label)
        pairs += terms.mT
    if task.bias is not None:
        pairs += task.bias
        if task.attends is not None:  # the bias may be −inf or NaN on all pairs of a query
            pairs.masked_fill_(~task.attends, 0.0)
    return pairs if task.hidden is None else pairs.masked_fill_(task.hidden, -torch.inf)


def add_gradients(gradients: Any, grad: Tensor, probabilities: Tensor, by_label: Any, task: Inputs) -> None:
    """Write the gradients of query, key, value and rel_query of a part, and add those of its tables and bias.

    They have the names of the inputs.
    """
    query = task.query
    key = task.key
    labelling = task.labelling()
    d_query, d_key, d_value = (stack_heads(x, key) for x in (gradients.query, gradients.key, gradients.value))
    if task.attends is not None:
        grad = grad.masked_fill(~task.attends, 0.0)
    if task.dropout_mask is not None:
        grad = grad * task.keep_scale
    queries = stack_heads(query, key)
    keys = stack_heads(key, key)
    grads = stack_heads(grad, key)
    ds = query.new_empty(*query.shape[:3], key.shape[2])  # first the gradient of the probabilities
    flat = stack_heads(ds, key)
    write_product(flat, grads, stack_heads(task.value, key).mT)
    if task.value_table is not None:
        labelling.add(ds, multiply_table(grad, task.value_table.mT))
    dropped = probabilities
    if task.dropout_mask is not None:
        dropped = probabilities * task.dropout_mask
        ds *= task.dropout_mask
    write_product(d_value, stack_heads(dropped, key).mT, grads)
    torch._softmax_backward_data(ds, probabilities, -1, ds.dtype, grad_input=ds)
    if gradients.bias is not None:
        gradients.bias.add_(ds.sum_to_size(gradients.bias.shape))

    write_product(d_key, flat.mT, queries, factor=task.scale)
    if task.query_table is not None:
        transposed = ds.mT.contiguous()  # (batch, heads, keys, queries)
        ds_of_keys = labelling.transposed(query).collect(transposed, task.query_table.shape[1])
        d_query_table = table_gradient(ds_of_keys, task.key_per_head(), task.query_table)
        gradients.query_table.add_(d_query_table * task.scale)
        d_keys = multiply_table(ds_of_keys, task.query_table * task.scale)
        gradients.key.add_(d_keys.unflatten(1, (key.shape[1], -1)).sum(2))
    is_sum = task.key_table is not None and task.rel_query is None
    if task.key_table is not None:
        ds_by_label = labelling.collect(ds, task.key_table.shape[1])
        d_key_table = table_gradient(ds_by_label, task.relative_query(), task.key_table)
        gradients.key_table.add_(d_key_table * task.scale)
        if task.rel_query is None:
            write_table_product(gradients.query, ds_by_label, task.key_table)
        else:
            write_table_product(gradients.rel_query, ds_by_label, task.key_table * task.scale)
    write_product(d_query, flat, keys, factor=task.scale, is_sum=is_sum)
    if task.value_table is not None:
        gradients.value_table.add_(table_gradient(by_label, grad, task.value_table))


def tasks(query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """Yield slices of the batch, the heads and the key heads whose pairs fit in the cache; on other devices, all."""
    if query.device.type != "cpu" or is_tracing():
        yield ALL, ALL, ALL
        return
    batch, heads, queries, _ = query.shape
    _, key_heads, keys, _ = key.shape
    group = heads // key_heads
    max_key_heads = max(1, PAIRS_PER_TASK * torch.get_num_threads() // max(1, group * queries * keys))
    sentences = max(1, max_key_heads // key_heads)
    heads_per_task = min(max_key_heads, key_heads)
    for row in range(0, batch, sentences):
        for head in range(0, key_heads, heads_per_task):
            stop = min(head + heads_per_task, key_heads)
            yield slice(row, row + sentences), slice(group * head, group * stop), slice(head, stop)


def stack_heads(x: Tensor, key: Tensor) -> Tensor:
    """Reshape (batch, heads, n, a) to (batch · key_heads, group · n, a): heads that share keys share a product."""
    batch, heads, n, width = x.shape
    return x.reshape(batch * key.shape[1], heads // key.shape[1] * n, width)


def multiply_table(rows: Tensor, table: Tensor) -> Tensor:
    """Return (batch, heads, n, a) @ (heads or 1, a, b), (batch, heads, n, b): one matrix product for a shared table."""
    if table.shape[0] != 1:
        return rows @ table
    batch, heads, n, inner = rows.shape
    return (rows.reshape(batch * heads * n, inner) @ table[0]).view(batch, heads, n, table.shape[2])


def write_product(out: Tensor, a: Tensor, b: Tensor, *, factor: float = 1.0, is_sum: bool = False) -> None:
    """Write factor · a b to `out`, or factor · (out + a b) if `is_sum`. All are (batch, rows, columns)."""
    if factor == 0.0:  # in half types, PyTorch does not write to `out` if alpha is 0
        out.baddbmm_(a, b, beta=float(is_sum)).mul_(factor)
    else:
        out.baddbmm_(a, b, beta=factor * is_sum, alpha=factor)


def write_table_product(out: Tensor, rows: Tensor, table: Tensor) -> None:
    """Write the product of `multiply_table` to `out`."""
    if table.shape[0] != 1:
        out.copy_(rows @ table)
    else:
        out.view(-1, table.shape[2]).addmm_(rows.flatten(0, 2), table[0], beta=0)


def table_gradient(by_label: Tensor, rows: Tensor, table: Tensor) -> Tensor:
    """Return Σ by_labelᵀ @ rows over sentences and heads that share a table: (heads or 1, labels, dim)."""
    if table.shape[0] != 1:
        return (by_label.mT @ rows).sum(0)
    return (by_label.flatten(0, 2).mT @ rows.flatten(0, 2))[None]
