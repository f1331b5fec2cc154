"""The kernels as functions of PyTorch tensors, and as operators: `relattn::native` and `relattn::native_backward`.

Gradients of the tables are summed over a fixed number of shares of the batch, so that they depend on the numbers given
and not on the number of threads.
"""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relattn.backends.fused import Attended, new_numbers, new_results, register, with_contiguous_rows
from relattn.backends.native import library
from relattn.call import Call, exact, keep_scale, keep_threshold

SHARES = 64  # of the batch's heads, each with gradients of the tables of its own


def forward(call: Call) -> Attended:
    """The output, the log-sum-exp (batch, heads, queries), and nothing else of a query."""
    task = Task(call)
    output, lse = new_results(call)
    task.run("forward", output=output, lse=lse)
    return output, lse, new_numbers(lse, 0)


def backward(call: Call, grad: Tensor, output: Tensor, lse: Tensor, numbers: Tensor) -> tuple[Tensor, ...]:
    """Gradients of query, key, value, rel_key and rel_value; an empty one for a table that is not there."""
    task = Task(call)
    d_query, d_key, d_value = (torch.empty_like(task.tensors[name]) for name in ("query", "key", "value"))
    d_rel_key, d_rel_value = (task.new_shares(name) for name in ("rel_key", "rel_value"))
    task.run(
        "backward",
        grad=with_contiguous_rows(grad),
        output=with_contiguous_rows(output),
        lse=lse,
        d_query=d_query,
        d_key=d_key,
        d_value=d_value,
        d_rel_key=d_rel_key,
        d_rel_value=d_rel_value,
    )
    tables = ((d_rel_key, call.rel_key), (d_rel_value, call.rel_value))
    d_tables = (grad.new_empty(0) if table is None else summed(shares, table) for shares, table in tables)
    return d_query, d_key, d_value, *d_tables, grad.new_empty(0)


class Task:
    """A call's arguments as the kernels read them, and the tensors that they point to, held while they do."""

    def __init__(self, call: Call) -> None:
        batch, heads, queries, dim = call.query.shape
        _, key_heads, keys, value_dim = call.value.shape
        tables = [x for x in (call.rel_key, call.rel_value) if x is not None]
        self.real = exact(call.query.dtype)
        self.kernels = library.KERNELS[self.real]
        self.arguments: Any = self.kernels.arguments(
            batch=batch,
            heads=heads,
            key_heads=key_heads,
            queries=queries,
            keys=keys,
            dim=dim,
            value_dim=value_dim,
            labels=tables[0].shape[-2] if tables else 1,
            rel_key_heads=heads_of(call.rel_key),
            rel_value_heads=heads_of(call.rel_value),
            relations_size=0 if call.relations is None else call.relations.element_size(),
            type=library.TYPES[call.query.dtype],
            threads=torch.get_num_threads(),
            shares=min(SHARES, batch * key_heads),
            query_offset=call.query_offset,
            left=call.left,
            clips=call.clips and call.relations is None,
            is_causal=call.is_causal,
            keep_threshold=keep_threshold(call.dropout_p),
            scale=call.scale,
            keep_scale=keep_scale(call.dropout_p),
            seed=0 if call.seed is None else int(call.seed),
        )
        self.tensors: dict[str, Tensor] = {}
        self.point(**tensors_of(call, self.real))

    def point(self, **tensors: Tensor | None) -> None:
        """Makes arguments point to the tensors that are there."""
        for name, x in tensors.items():
            if x is not None:
                self.tensors[name] = x
                where = x.data_ptr()
                setattr(self.arguments, name, (where, *x.stride()[:3]) if name in self.kernels.arrays else where)

    def new_shares(self, name: str) -> Tensor:
        """Zeros to which each share of the batch adds its gradient of a table; empty where there is none."""
        sizes = self.tensors[name].shape if name in self.tensors else (0,)
        return torch.zeros(self.arguments.shares, *sizes, dtype=self.real)

    def run(self, kernel: str, **tensors: Tensor) -> None:
        """Runs a kernel; MemoryError where it cannot get its work space."""
        self.point(**tensors)
        if getattr(self.kernels.library, f"relattn_{kernel}")(ctypes.byref(self.arguments)) != 0:
            sizes = f"{self.arguments.keys} keys of {self.arguments.dim} dimensions"
            raise MemoryError(f"no memory for the work space of {sizes}")


def tensors_of(call: Call, real: torch.dtype) -> dict[str, Tensor | None]:
    """The tensors of a call as the kernels read them, by the names of their arguments."""
    pairs = (*call.query.shape[:3], call.key.shape[2])
    rel_key, rel_key_t = both_ways(call.rel_key, call.scale, real)
    rel_value, rel_value_t = both_ways(call.rel_value, 1.0, real)
    return {
        "query": with_contiguous_rows(call.query),
        "key": with_contiguous_rows(call.key),
        "value": with_contiguous_rows(call.value),
        "rel_key": rel_key,
        "rel_key_t": rel_key_t,
        "rel_value": rel_value,
        "rel_value_t": rel_value_t,
        "relations": on_pairs(call.relations, pairs),
        "mask": on_pairs(call.mask, pairs),
        "query_offsets": int64(call.query_offsets),
        "key_lengths": int64(call.key_lengths),
        "query_lengths": int64(call.query_lengths),
    }


def heads_of(table: Tensor | None) -> int:
    return table.shape[0] if table is not None and table.dim() == 3 else 1


def both_ways(table: Tensor | None, scale: float, real: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """A table as (heads or 1, labels, dim), and `scale` times it as (heads or 1, dim, labels), both padded."""
    if table is None:
        return None, None
    table = table.to(real) if table.dim() == 3 else table.to(real)[None]
    return padded(table), padded(scale * table.mT)


def padded(x: Tensor) -> Tensor:
    short = -x.shape[-1] % library.PADDING
    return F.pad(x, (0, short)) if short > 0 else x.contiguous()


def on_pairs(x: Tensor | None, pairs: tuple[int, ...]) -> Tensor | None:
    """A mask or labels as (batch, heads, queries, keys): a view of stride 0 where it is broadcast, but for keys."""
    return None if x is None else with_contiguous_rows(x.expand(*x.shape[:-1], pairs[-1])).expand(pairs)


def int64(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.long().contiguous()


def summed(shares: Tensor, table: Tensor) -> Tensor:
    """The sum of the shares, in a table's own shape and type."""
    return shares.sum(0)[..., : table.shape[-1]].reshape(table.shape).to(table.dtype).contiguous()


attention, run, run_backward = register("native", forward, backward, numbers=0)
