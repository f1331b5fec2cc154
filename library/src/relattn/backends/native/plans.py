"""Plans: the checked arguments of a call of the kernels, kept for later calls of the same form.

Checking and packing arguments takes most of the time of a short call. Both follow from shapes, strides, dtypes and
options, apart from the values of lengths and relations. So a later call reads these, and changes addresses only.
"""

import marshal
import struct
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relattn import checks
from relattn.backends import pairs
from relattn.backends.autograd import is_transformed
from relattn.backends.custom_ops import PLAIN, new_lse, new_output, skips_dispatch
from relattn.backends.native.operators import Task
from relattn.call import Call

OTHERS = (
    "rel_query",
    "pos_query",
    "bias",
    "relations",
    "mask",
    "lengths",
    "key_lengths",
    "query_lengths",
    "cu_seqlens",
    "rel_bias",
)
SOURCES = "query", "key", "value", "rel_key", "rel_value", *OTHERS
TABLES = 3, 4, 6
OPTIONS = "clip", "beyond", "query_offset", "is_causal", "window", "chunk", "dropout_p", "scale", "longest", "check"
MOST_PLANS = 1024  # about 2 kB each
ADDRESS = struct.Struct("P")
Sources = tuple[Any, ...]  # tensors of an operator in the order of SOURCES
Form = tuple[Any, ...]
PLANS: dict[Form, "NativePlan"] = {}


class NativePlan(NamedTuple):
    """A call without addresses."""

    run_kernel: Any
    packed: bytes
    addresses: tuple[tuple[int, int, int], ...]  # offset in `packed`, number of the source, offset from its address
    lengths: tuple[tuple[Any, ...], ...]  # arguments of `check_lengths`, with the number of the source
    labels: int  # number of labels that relations may have; 0: not checked
    may_skip_rows: bool
    output: tuple[Any, ...]  # size, strides, offset in `packed`
    lse: tuple[Any, ...] | None  # the same and the dtype, if it is returned

    def run(self, sources: Sources) -> Tensor | tuple[Tensor, Tensor] | None:
        """Return the result of the call for other tensors, or None if the operator has to check them."""
        for name, number, *limits in self.lengths:
            checks.check_lengths(name, sources[number], *limits)
        query = sources[0]
        if self.labels:
            checks.check_labels(sources[8], self.labels, None)
        if self.may_skip_rows and not all(x is None or pairs.is_finite(x) for x in map(sources.__getitem__, TABLES)):
            return None
        packed = bytearray(self.packed)
        lse = None
        for at, number, offset in self.addresses:
            address = sources[number].data_ptr()
            if address == 0:  # its memory was freed
                return None
            ADDRESS.pack_into(packed, at, address + offset)
        size, strides, at = self.output
        output = query.new_empty_strided(size, strides)
        ADDRESS.pack_into(packed, at, output.data_ptr())
        if self.lse is not None:
            size, dtype, at = self.lse
            lse = query.new_empty(size, dtype=dtype)
            ADDRESS.pack_into(packed, at, lse.data_ptr())
        if self.run_kernel(bytes(packed)) != 0:
            return None
        return output if lse is None else (output, lse)


def form_of(sources: Sources, options: tuple[Any, ...]) -> Form | None:
    """Return what a plan depends on, or None for a call that cannot have one, as with a `rel_bias`."""
    if not skips_dispatch(()) or torch.is_autocast_enabled("cpu"):
        return None
    if sources[-1] is not None or is_transformed(sources):
        return None
    form: list[Any] = [torch.get_num_threads()]
    records = torch.is_grad_enabled()
    try:
        form.append(marshal.dumps(options, 2))  # tells 1 from True and 1.0, and refuses tensors
        for x in sources:
            if x is None:
                form.append(None)
            elif type(x) not in PLAIN or not x.is_cpu or (records and x.requires_grad):
                return None
            else:
                form += x.shape, x.stride(), x.dtype
    except (ValueError, RuntimeError):  # an option of another type; a nested or sparse tensor
        return None
    return tuple(form)


def add(form: Form, sources: Sources, call: Call, check: bool | None, return_lse: bool) -> NativePlan | None:
    """Keep and return the plan of a call, unless it has dropout or reads copies of its arguments."""
    options = marshal.loads(form[1])
    values = chain.from_iterable(x if isinstance(x, tuple) else (x,) for x in options)
    has_bytes = any(isinstance(x, bytes) for x in values)  # of a number of NumPy, which are written without its type
    if call.dropout_p > 0.0 or has_bytes:
        return None
    task = Task(call)
    addresses = []
    lengths = []
    batch, _, queries, _ = call.query.shape
    keys = call.key.shape[2]
    for name, x in task.tensors.items():
        own = "lengths" if name.endswith("_lengths") and sources[10] is not None else name
        source = sources[SOURCES.index(own)] if own in SOURCES else None
        if source is None or source.numel() == 0 or not is_view(x, source):
            return None
        at = 8 * task.layout.positions[name]
        number = SOURCES.index(own)
        addresses.append((at, number, x.data_ptr() - source.data_ptr()))
        if name.endswith("_lengths"):
            positions = {"lengths": (keys, "positions"), "key_lengths": (keys, "keys")}
            lengths.append((own, number, batch, *positions.get(own, (queries, "queries"))))
    output = new_output(call)
    lse = new_lse(call)
    task.set_array("output", output, *output.stride()[:3])
    if return_lse:
        task.set_array("lse", lse, *lse.stride())
    if len(PLANS) >= MOST_PLANS:
        PLANS.clear()
    table = next((x for x in (call.rel_key, call.rel_value, call.pos_query) if x is not None), None)
    PLANS[form] = plan = NativePlan(
        task.kernels.functions["forward"],
        task.layout.pack(task.values),
        tuple(addresses),
        tuple(lengths),
        0 if call.relations is None or table is None or check is False else table.shape[-2],
        pairs.may_skip_rows(call),
        (output.shape, output.stride(), 8 * task.layout.positions["output"]),
        (lse.shape, lse.dtype, 8 * task.layout.positions["lse"]) if return_lse else None,
    )
    return plan


def is_view(x: Tensor, source: Tensor) -> bool:
    return x.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
