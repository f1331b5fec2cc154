"""Forward time of other attention implementations on a CPU, next to PyTorch's ("plain") and ours.

All methods compute attention without positions on the same inputs, except `auto`, which is ours with tables for keys
and values. Before it is timed, each method is compared with PyTorch's; the tables are zero for that. FlexAttention is
compiled. zentorch and OpenVINO are included if they are installed.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module, util
from typing import Any

import torch
import torch.nn.functional as F
from relattn import relative_attention
from torch import Tensor

from benchmarks.attention import CLIP, DIM, HEADS, TOKENS, run_of
from benchmarks.measure import alternate, command, parse, record

PACKAGES = {"plain": "torch", "auto": "relattn", "no tables": "relattn", "flex": "torch"}
PACKAGES |= {name: name for name in ("zentorch", "openvino") if util.find_spec(name)}
LENGTHS, KEY = (64, 128, 256, 512, 1024, 2048, 4096), ("n", "method", "package", "torch")
Attend = Callable[..., Any]  # (query, key, value) -> output, each (batch, heads, n, dim)


def openvino(*inputs: Tensor) -> Attend:
    """Return OpenVINO's attention of `inputs`, which its model reads without copies."""
    import openvino as ov
    from openvino import opset13

    arrays = [x.contiguous().numpy() for x in inputs]
    parameters = [opset13.parameter(list(x.shape), ov.Type.f32) for x in arrays]
    model = ov.Model([opset13.scaled_dot_product_attention(*parameters)], parameters)
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    options["INFERENCE_NUM_THREADS"] = str(torch.get_num_threads())
    request = ov.Core().compile_model(model, "CPU", options).create_infer_request()
    for index, x in enumerate(arrays):
        request.set_input_tensor(index, ov.Tensor(x, shared_memory=True))

    def attend(*_: Tensor, arrays: object = arrays) -> Tensor:  # holds references to the arrays
        request.infer()
        return torch.from_numpy(request.get_output_tensor(0).data)

    return attend


def attention(method: str, inputs: list[Tensor]) -> Attend:
    """Return a method as a function of query, key and value, after a check of its output."""
    from torch.nn.attention.flex_attention import flex_attention

    plain: Attend = F.scaled_dot_product_attention
    tables = {name: torch.randn(2 * CLIP + 1, DIM) for name in ("rel_key", "rel_value")}
    zeros = {name: torch.zeros_like(table) for name, table in tables.items()} if method == "auto" else {}
    import_module(PACKAGES[method])  # zentorch registers its operator
    methods: dict[str, Attend] = {"plain": plain, "auto": partial(relative_attention, **tables)}
    methods |= {"no tables": relative_attention, "flex": torch.compile(flex_attention, dynamic=False)}
    if method == "zentorch":
        methods[method] = torch.ops.zentorch.zentorch_sdpa
    attend = openvino(*inputs) if method == "openvino" else methods[method]
    with torch.no_grad():
        output = attend(*inputs, **zeros)
        torch.testing.assert_close(output[0] if method == "zentorch" else output, plain(*inputs), rtol=0, atol=1e-4)
    return attend


def main() -> None:
    parser = command("anchors", __doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="sequence lengths n (%(default)s)")
    arguments = parse(parser, "anchors-cpu.csv", threads=2)
    for n in arguments.lengths:
        torch._dynamo.reset()  # each length is compiled, and the number of compiled variants is limited
        inputs = [torch.randn(max(1, TOKENS // n), n, HEADS, DIM).transpose(1, 2) for _ in "qkv"]
        works = {name: run_of(attention(name, inputs), inputs, inputs[0], False) for name in PACKAGES}
        times = alternate(works, 9, seconds=2.0)
        for name, time in times.items():
            version = f"{PACKAGES[name]} {import_module(PACKAGES[name]).__version__}"
            row = {"n": n, "method": name, "package": version, **time.columns()}
            record(arguments, [row | {"time ratio": round(time.median / times["plain"].median, 3)}], KEY)


if __name__ == "__main__":
    main()
