"""The kernels as functions of PyTorch tensors, and as operators: `relattn::native` and `relattn::native_backward`.

The batch is split, and each split sums its gradients of the tables separately. The number of splits depends only on the
sizes of a call, so that results do not depend on the number of threads.
"""

import ctypes
import functools
import operator
import struct
from typing import Any

import torch
from torch import Tensor

from relattn.backends.custom_ops import (
    Attended,
    count_sequences,
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
MAX_BIAS_GRADIENTS = 16  # of a bias that sequences share, over heads and splits, if there is more than one split
ROW_STATS = 2  # statistics of each query that the backward pass reads, as in `strips.h`
TYPES = {torch.float32: 0, torch.float64: 0, torch.bfloat16: 1, torch.float16: 2}  # of arrays, as in `relattn.h`
PADDING = 16  # the last dimension of gradients of a bias is a multiple of this, as in `rows.h`

# codes of fields of arguments in Python's `struct`, by C's type; a structure is an array
CODES = {ctypes.c_ssize_t: "q", ctypes.c_uint64: "Q", ctypes.c_double: "d", ctypes.c_void_p: "P"}
ARRAY = "Pqqq"


def forward(call: Call) -> Attended:
    """Return the output, the log-sum-exp (batch, heads, queries), and the statistics that the backward pass reads."""
    output, lse = new_results(call)
    row_stats = new_row_stats(call, ROW_STATS)
    task = Task(call)
    task.set_rows("output", output)
    task.set_array("lse", lse, *lse.stride())
    task.set_array("row_stats", row_stats)
    task.run("forward")
    return output, lse, row_stats


def backward(call: Call, grad: Tensor, output: Tensor, lse: Tensor, row_stats: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of the arguments from query to bias; empty for absent ones."""
    task = backward_task(call, grad, output, row_stats)
    bias = call.bias if call.has_bias_gradient else None
    d_bias = grad.new_zeros(0 if bias is None else bias.shape)
    # the gradient of a number per query is zero: the softmax does not change if all scores of a query do
    if bias is None or bias.shape[3] == 1:
        task.run("backward")
    else:
        d_biases = task.new_bias_gradient(bias)
        task.run("backward")
        if bias.shape[0] == 1:
            d_biases = d_biases.sum(0, keepdim=True)
        d_bias = d_biases[..., : bias.shape[3]].to(bias.dtype).contiguous()
    names = "d_query", "d_key", "d_value", "d_rel_key", "d_rel_value", "d_rel_query", "d_pos_query"
    return *(task.tensors[name] if name in task.tensors else grad.new_empty(0) for name in names), d_bias


def backward_task(call: Call, grad: Tensor, output: Tensor, row_stats: Tensor) -> "Task":
    """Return the task of the backward pass of a call, with memory for all gradients but that of a bias."""
    task = Task(call, count_splits(call))
    for name in ("query", "key", "value", "rel_query"):
        if name in task.tensors:
            task.set_rows(f"d_{name}", new_gradient(task.tensors[name], grad))
    for name, table in call.tables().items():
        task.set_table(f"d_{name}", new_gradient(table, grad))
    task.set_rows("grad", grad)
    task.set_rows("output", output)
    task.set_array("row_stats", row_stats.contiguous())  # a hook of saved tensors may change strides
    return task


class Layout:
    """Order and types of the values in a structure of arguments. ctypes takes ten times as long to write them.

    Attributes:
        positions: Position of the first value of each field. The fields that are single numbers come last.
    """

    def __init__(self, structure: type[ctypes.Structure]) -> None:
        fields: list[tuple[str, Any]] = [(field[0], field[1]) for field in structure._fields_]
        numbers = [name for name, field_type in fields if CODES.get(field_type, ARRAY)[0] != "P"]
        codes = ""
        self.positions: dict[str, int] = {}
        for name, field_type in fields:
            self.positions[name] = len(codes)
            codes += CODES.get(field_type, ARRAY)
        self._in_order = operator.itemgetter(*numbers)
        self._addresses = [0] * (len(codes) - len(numbers))
        self._packer = struct.Struct(codes)
        if self._packer.size != ctypes.sizeof(structure) or self.positions[numbers[0]] != len(self._addresses):
            raise ValueError("arguments must be arrays and pointers of 64 bits, then numbers")

    def new_values(self, **numbers: float) -> list[float]:
        """Return the values of a structure: zeros for arrays and pointers, and the numbers of all other fields."""
        return [*self._addresses, *self._in_order(numbers)]

    def pack(self, values: list[float]) -> bytes:
        """Return the bytes of a structure."""
        return self._packer.pack(*values)


layout_of = functools.cache(Layout)


class Task:
    """Arguments of a call as the kernels read them, with references to the tensors that they point to."""

    def __init__(self, call: Call, splits: int = 1) -> None:
        query = call.query
        batch, heads, queries, dim = query.shape
        _, key_heads, keys, value_dim = call.value.shape
        if call.cu_seqlens is not None:
            batch = count_sequences(call)
            queries = keys = call.longest
        tables = call.tables()
        self.splits = splits
        self.kernels = library.kernels_of(query.dtype)
        self.tensors: dict[str, Tensor] = {}
        self.layout = layout_of(self.kernels.types["attention"])
        self.values = self.layout.new_values(
            batch=batch,
            heads=heads,
            key_heads=key_heads,
            queries=queries,
            keys=keys,
            dim=dim,
            value_dim=value_dim,
            rel_dim=dim if call.rel_query is None else call.rel_query.shape[3],
            labels=next(iter(tables.values())).shape[-2] if tables else 1,
            relations_size=0 if call.relations is None else call.relations.element_size(),
            type=TYPES[query.dtype],
            threads=torch.get_num_threads(),
            splits=splits,
            d_bias_split_stride=0,
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
            seed=0 if call.seed is None else int(call.seed) % 2**64,
        )
        for name, x in call.given("query", "key", "value", "rel_query").items():
            self.set_rows(name, x)
        for name, table in tables.items():
            self.set_table(name, table)
        for name, x in call.given("relations", "mask", "bias").items():  # numbers of pairs
            pairs = with_contiguous_rows(x.expand(*x.shape[:3], call.key.shape[2]))
            self.set_array(name, pairs, *strides_of_pairs(pairs))
        numbers = call.given("query_offsets", "key_lengths", "query_lengths", "cu_seqlens")  # one per sequence
        for name, x in numbers.items():
            self.set_array(name, x.long().contiguous())

    def set_rows(self, name: str, x: Tensor) -> None:
        """Set an argument to a tensor of four dimensions, copied if rows have gaps."""
        strides = x.stride()
        if strides[3] != 1:
            x = x.contiguous()
            strides = x.stride()
        self.set_array(name, x, strides[0], strides[1], strides[2])

    def set_table(self, name: str, table: Tensor) -> None:
        """Set an argument to a table, whose head stride is 0 if heads share it."""
        x = with_contiguous_rows(table)
        *heads, row, _ = x.stride()
        self.set_array(name, x, 0, heads[0] if heads else 0, row)

    def set_array(self, name: str, x: Tensor, *strides: int) -> None:
        """Set an argument to the address of a tensor and, if it is an array, its strides of batch, heads and rows."""
        address = x.data_ptr()
        if address == 0 and x.numel() > 0:
            raise RuntimeError(f"{name} must have memory, got a tensor whose storage was freed")
        self.tensors[name] = x
        position = self.layout.positions[name]
        self.values[position : position + 1 + len(strides)] = address, *strides

    def new_bias_gradient(self, bias: Tensor) -> Tensor:
        """Set d_bias to zeros (splits or batch, heads or 1, queries or 1, padded keys), and return them."""
        sequences, heads, queries, _ = bias.shape
        keys = self.tensors["key"].shape[2]
        parts = self.splits if sequences == 1 else sequences
        sizes = parts, heads, queries, keys + -keys % PADDING
        d_bias = bias.new_zeros(sizes, dtype=accumulation_dtype(bias.dtype))
        batch_stride, *strides = strides_of_pairs(d_bias)
        self.set_array("d_bias", d_bias, batch_stride if sequences > 1 else 0, *strides)
        if sequences == 1:
            self.values[self.layout.positions["d_bias_split_stride"]] = d_bias.stride(0)
        return d_bias

    def run(self, kernel: str) -> None:
        """Run a kernel; MemoryError if it cannot allocate its workspace."""
        if self.kernels.functions[kernel](self.layout.pack(self.values)) != 0:
            _, _, keys, dim = self.tensors["key"].shape
            raise MemoryError(f"the workspace of the native kernel must fit in memory, got {keys} keys of dim {dim}")


def count_splits(call: Call) -> int:
    """Return the number of splits of the batch. It depends on sizes only."""
    batch = count_sequences(call)
    heads = call.query.shape[1]
    split_bytes = sum(heads * x.shape[-2] * x.shape[-1] * 4 for x in call.tables().values())
    limit = min(MAX_TABLE_GRADIENTS // max(1, heads), MAX_TABLE_GRADIENT_BYTES // max(1, split_bytes))
    if call.has_bias_gradient and call.bias is not None and call.bias.shape[0] == 1:
        limit = min(limit, MAX_BIAS_GRADIENTS // call.bias.shape[1])
    return max(1, min(batch, limit))


def strides_of_pairs(x: Tensor) -> list[int]:
    """Return the strides of batch, heads and queries, 0 in dimensions of size 1."""
    return [0 if size == 1 else stride for size, stride in zip(x.shape[:3], x.stride()[:3], strict=True)]


attention = register("native", forward, backward, ROW_STATS)
