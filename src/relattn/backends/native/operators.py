"""The kernels as functions of PyTorch tensors, and as operators: `relattn::native` and `relattn::native_backward`.

The batch is split, and each split sums its gradients of the tables separately. The number of splits depends only on the
sizes of a call, so that results do not depend on the number of threads.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from relattn.backends.custom_ops import (
    Attended,
    new_gradient,
    new_results,
    new_row_stats,
    register,
    with_contiguous_rows,
)
from relattn.backends.native import library
from relattn.call import Call, accumulation_dtype, keep_scale, keep_threshold

MAX_TABLE_GRADIENTS = 64  # per table, over heads and splits, if there is more than one split
MAX_TABLE_GRADIENT_BYTES = 2**21  # memory of all of them, if there is more than one split


def forward(call: Call) -> Attended:
    """Return the output, the log-sum-exp (batch, heads, queries), and no other statistics."""
    task = Task(call)
    output, lse = new_results(call)
    task.run("forward", output=output, lse=lse)
    return output, lse, new_row_stats(lse, 0)


def backward(call: Call, grad: Tensor, output: Tensor, lse: Tensor, row_stats: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of the arguments from query to pos_query; empty for absent ones."""
    task = Task(call)
    d_query, d_key, d_value, d_rel_query = (
        new_gradient(task.tensors.get(name), grad) for name in ("query", "key", "value", "rel_query")
    )
    tables = (call.rel_key, call.rel_value, call.pos_query)
    d_rel_key, d_rel_value, d_pos_query = (task.new_table_gradient(table) for table in tables)
    task.run(
        "backward",
        grad=with_contiguous_rows(grad),
        output=with_contiguous_rows(output),
        lse=lse,
        d_query=d_query,
        d_key=d_key,
        d_value=d_value,
        d_rel_query=d_rel_query,
        d_rel_key=d_rel_key,
        d_rel_value=d_rel_value,
        d_pos_query=d_pos_query,
    )
    d_rel_key, d_rel_value, d_pos_query = (
        new_gradient(table, grad) if table is None else sum_splits(gradients, table)
        for gradients, table in zip((d_rel_key, d_rel_value, d_pos_query), tables, strict=True)
    )
    return d_query, d_key, d_value, d_rel_key, d_rel_value, d_rel_query, d_pos_query


class Task:
    """Arguments of a call as the kernels read them, with references to the tensors that they point to."""

    def __init__(self, call: Call) -> None:
        batch, heads, queries, dim = call.query.shape
        _, key_heads, keys, value_dim = call.value.shape
        tables = [x for x in (call.rel_key, call.rel_value, call.pos_query) if x is not None]
        self.real = accumulation_dtype(call.query.dtype)
        self.kernels = library.kernels_of(call.query.dtype)
        self.arguments: Any = self.kernels.arguments(
            batch=batch,
            heads=heads,
            key_heads=key_heads,
            queries=queries,
            keys=keys,
            dim=dim,
            value_dim=value_dim,
            rel_dim=dim if call.rel_query is None else call.rel_query.shape[3],
            labels=tables[0].shape[-2] if tables else 1,
            relations_size=0 if call.relations is None else call.relations.element_size(),
            type=library.TYPES[call.query.dtype],
            threads=torch.get_num_threads(),
            splits=count_splits(batch, heads, tables),
            query_offset=call.query_offset,
            left=call.left,
            clips=call.clips and call.relations is None,
            is_causal=call.is_causal,
            window_left=-1 if call.window_left is None else call.window_left,
            window_right=-1 if call.window_right is None else call.window_right,
            chunk=call.chunk,
            keep_threshold=keep_threshold(call.dropout_p),
            scale=call.scale,
            keep_scale=keep_scale(call.dropout_p),
            seed=0 if call.seed is None else int(call.seed),
        )
        self.tensors: dict[str, Tensor] = {}
        self.set_pointers(**tensors_of(call))

    def set_pointers(self, **tensors: Tensor | None) -> None:
        """Set the arguments of these names to the addresses and strides of tensors; None is skipped."""
        for name, x in tensors.items():
            if x is not None:
                self.tensors[name] = x
                address = x.data_ptr()
                if address == 0 and x.numel() > 0:
                    raise RuntimeError(f"{name} must have memory, got a tensor whose storage was freed")
                setattr(self.arguments, name, (address, *x.stride()[:3]) if name in self.kernels.arrays else address)

    def new_table_gradient(self, table: Tensor | None) -> Tensor:
        """Return zeros (splits, heads, labels, padded dim) for the gradient of a table; empty without a table."""
        if table is None:
            return torch.empty(0)
        labels, dim = table.shape[-2:]
        sizes = (self.arguments.splits, self.arguments.heads, labels, dim + -dim % library.PADDING)
        return torch.zeros(sizes, dtype=self.real)

    def run(self, kernel: str, **tensors: Tensor) -> None:
        """Run a kernel; MemoryError if it cannot allocate its workspace."""
        self.set_pointers(**tensors)
        if getattr(self.kernels.library, f"relattn_{kernel}")(ctypes.byref(self.arguments)) != 0:
            sizes = f"{self.arguments.keys} keys of dim {self.arguments.dim}"
            raise MemoryError(f"the workspace of the native kernel must fit in memory, got {sizes}")


def count_splits(batch: int, heads: int, tables: list[Tensor]) -> int:
    """Return the number of splits of the batch. It depends on sizes only."""
    split_bytes = sum(heads * table.shape[-2] * table.shape[-1] * 4 for table in tables)
    limit = min(MAX_TABLE_GRADIENTS // max(1, heads), MAX_TABLE_GRADIENT_BYTES // max(1, split_bytes))
    return max(1, min(batch, limit))


def tensors_of(call: Call) -> dict[str, Tensor | None]:
    """Return the tensors of a call as the kernels read them, by argument name."""
    heads, pairs = call.query.shape[1], (*call.query.shape[:3], call.key.shape[2])
    return {
        "query": with_contiguous_rows(call.query),
        "key": with_contiguous_rows(call.key),
        "value": with_contiguous_rows(call.value),
        "rel_query": None if call.rel_query is None else with_contiguous_rows(call.rel_query),
        "rel_key": table_per_head(call.rel_key, heads),
        "rel_value": table_per_head(call.rel_value, heads),
        "pos_query": table_per_head(call.pos_query, heads),
        "relations": expand_to_pairs(call.relations, pairs),
        "mask": expand_to_pairs(call.mask, pairs),
        "query_offsets": to_int64(call.query_offsets),
        "key_lengths": to_int64(call.key_lengths),
        "query_lengths": to_int64(call.query_lengths),
    }


def table_per_head(table: Tensor | None, heads: int) -> Tensor | None:
    """Return a table as (1, heads, labels, dim), with stride 0 if heads share it."""
    return None if table is None else with_contiguous_rows(table).expand(1, heads, *table.shape[-2:])


def expand_to_pairs(x: Tensor | None, pairs: tuple[int, ...]) -> Tensor | None:
    """Return a mask or labels as (batch, heads, queries, keys), with stride 0 in broadcast dimensions except keys."""
    return None if x is None else with_contiguous_rows(x.expand(*x.shape[:-1], pairs[-1])).expand(pairs)


def to_int64(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.long().contiguous()


def sum_splits(gradients: Tensor, table: Tensor) -> Tensor:
    """Return the sum of the gradients of all splits, in the shape and dtype of a table."""
    total = gradients.sum((0, 1)) if table.dim() == 2 else gradients[0] if len(gradients) == 1 else gradients.sum(0)
    return total[..., : table.shape[-1]].to(table.dtype).contiguous()


attention, run, run_backward = register("native", forward, backward, row_stats=0)
