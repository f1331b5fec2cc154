"""Plans of the compiled kernels: their arguments in the bytes of a structure, without addresses."""

import struct

from torch import Tensor

from relattn.backends.custom_ops import new_lse, new_output, new_row_stats
from relattn.backends.native import operators
from relattn.backends.native.operators import ROW_STATS, Task
from relattn.backends.plans import Input, KernelPlan, Passes, Result, input_of
from relattn.call import Call

ADDRESS = struct.Struct("P")


def plan_kernels(call: Call, given: dict[str, Tensor], records: bool, return_lse: bool) -> Passes | None:
    """Return the plans of both passes; None if the call has dropout or reads copies of its arguments.

    Args:
        call: The call.
        given: Arguments of the operator that are tensors, by name.
        records: Whether the call has gradients.
        return_lse: Whether the log-sum-exp is a result.
    """
    if call.dropout_p > 0.0:
        return None
    task = Task(call)
    output = new_output(call)
    row_stats = new_row_stats(call, ROW_STATS)
    task.set_rows("output", output)
    if records:
        task.set_array("row_stats", row_stats)
    if return_lse:
        lse = new_lse(call)
        task.set_array("lse", lse, *lse.stride())
    forward = kernel_plan("forward", task, given, ["output", "lse", "row_stats"])
    if forward is None or not records:
        return None if forward is None else (forward, None)
    task = operators.backward_task(call, output, output, row_stats)
    saved = given | {"output": output, "row_stats": row_stats, "grad": output}
    backward = kernel_plan("backward", task, saved, [f"d_{name}" for name in given])
    return forward, lambda: backward


def kernel_plan(kernel: str, task: Task, given: dict[str, Tensor], names: list[str]) -> KernelPlan | None:
    """Return the plan of a kernel, whose results have these names; None if it reads a copy."""
    inputs: list[Input] = []
    results: list[Result | None] = []
    positions = []
    for name, x in task.tensors.items():
        if name not in names:
            source = input_of(name, x, given)
            if source is None:
                return None
            inputs.append(source)
            positions.append(8 * task.layout.positions[name])
    for name in names:
        if name not in task.tensors:
            results.append(None)
            continue
        x = task.tensors[name]
        fill = None
        offset = 0
        own = name.removeprefix("d_")
        table = given.get(own, x)
        if x.shape != table.shape:  # rows that no pair takes were cut off
            before = task.tensors[own].data_ptr() - table.data_ptr()
            offset = before // table.stride(-2) * table.shape[-1]
            x = table.new_empty(table.shape)
            task.set_table(name, x)
            fill = 0.0
        results.append(Result(x.shape, x.stride(), x.dtype, fill, offset))
        positions.append(8 * task.layout.positions[name])
    run_kernel = task.kernels.functions[kernel]
    packed = task.layout.pack(task.values)

    def launch(addresses: list[int]) -> bool:
        arguments = bytearray(packed)
        for at, address in zip(positions, addresses, strict=True):
            ADDRESS.pack_into(arguments, at, address)
        return run_kernel(bytes(arguments)) == 0

    return KernelPlan(launch, tuple(inputs), tuple(results))
