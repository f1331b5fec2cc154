"""Encoders of transformers on a CPU: our operator with linear layers in int8, and ONNX Runtime's dynamic int8.

    python -m benchmarks.int8_encoders --threads 1
    python -m benchmarks.int8_encoders --models deberta-v3-base --sizes 512

Models have their published sizes and random weights. ONNX Runtime runs the model's own code, exported for exactly this
length and quantized by `quantize_dynamic`. Its integers are int8 or uint8, with one scale per output or per weight; the
fastest of the four on this input counts. Methods run alternately in one process. Times of one thread are the processor
time of the process, which other load on the machine affects less than wall-clock time. The cosine is the smallest of an
output position with that of the own code in float32.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from relattn.integrations import transformers as faster
from torch import Tensor, nn

from benchmarks import measure
from benchmarks.encoders import ENCODERS, inputs, make
from benchmarks.measure import Row, alternate, measured, record
from benchmarks.small_calls import processor_time

SIZES = {
    "deberta-v3-base": (128, 256, 512, 1024, 2048),
    "t5-base": (256, 1024, 2048),
    "wav2vec2-bert": (10, 30, 60),
    "parakeet-0.6b": (10, 60, 400),
}
KEY = ("model", "size", "method")
THEIRS = "ONNX Runtime int8"


class Output(nn.Module):
    """An encoder that returns its last hidden states only."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, read: Tensor) -> Tensor:
        states: Tensor = self.encoder(read).last_hidden_state
        return states


def onnx_runtime(model: nn.Module, read: Tensor, directory: Path, threads: int) -> tuple[str, Callable[[], Tensor]]:
    """Return the fastest setting of ONNX Runtime's int8, and a function that runs the model with it."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    exported = str(directory / "float32.onnx")
    with torch.no_grad():
        torch.onnx.export(model, (read,), exported, dynamo=True, verbose=False, input_names=["read"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    feed = {"read": read.numpy()}
    best: tuple[float, str, Callable[[], Tensor]] | None = None
    for kind, per_channel in product((QuantType.QInt8, QuantType.QUInt8), (False, True)):
        path = directory / f"{kind}-{per_channel}.onnx"
        quantize_dynamic(exported, path, weight_type=kind, per_channel=per_channel, use_external_data_format=True)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

        def run(session: Any = session) -> Tensor:
            return torch.from_numpy(session.run(None, feed)[0])

        run()
        seconds = clock_of(threads)(run)
        if best is None or seconds < best[0]:
            best = seconds, f"{kind}, {'per channel' if per_channel else 'per tensor'}", run
    assert best is not None
    return best[1:]


def clock_of(threads: int) -> Callable[[Callable[[], object]], float]:
    return processor_time if threads == 1 else measured


def rows_of(name: str, size: int, threads: int) -> list[Row]:
    """Return the rows of one encoder on one input."""
    own, ours, in_int8 = (make(name, ENCODERS[name].own[-1]) for _ in range(3))
    for other in (ours, in_int8):
        other.load_state_dict(own.state_dict(), assign=True)  # one copy of the weights in memory
    faster.enable(ours)
    faster.enable(in_int8, linear="int8")
    models = {"own code": own, "relattn": ours, "relattn int8": in_int8}
    read = inputs(name, 1, size)
    with tempfile.TemporaryDirectory() as directory:
        setting, theirs = onnx_runtime(Output(own), read, Path(directory), threads)
        with torch.inference_mode():
            works = {method: partial(Output(model), read) for method, model in models.items()} | {THEIRS: theirs}
            expected = works["own code"]()
            cosines = {
                method: nn.functional.cosine_similarity(work(), expected, dim=-1).min()
                for method, work in works.items()
            }
            taken = alternate(works, 3, 10.0, clock_of(threads))
    about = {"model": name, "size": size, "unit": ENCODERS[name].unit}
    return [
        about
        | {"method": method, "setting": setting if method == THEIRS else ""}
        | {"seconds": f"{timing.median:.4g}", "cosine": f"{cosines[method]:.5f}"}
        for method, timing in taken.items()
    ]


def main() -> None:
    parser = measure.command("int8_encoders", __doc__)
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES), help="models (all)")
    parser.add_argument("--sizes", nargs="+", type=int, help="lengths, in tokens or seconds")
    arguments = measure.parse(parser, "int8-encoders-cpu.csv", threads=1)
    for name in arguments.models:
        for size in arguments.sizes or SIZES[name]:
            record(arguments, rows_of(name, size, arguments.threads), KEY)


if __name__ == "__main__":
    main()
