"""A batch with one long text, as GLiNER gets them: padded, and with `enable(model, unpad=True)`.

Layers of DeBERTa v3 base with random weights. Each method runs in its own process, and seconds are its processor time,
which other load on the machine affects less than wall-clock time. Memory is the peak beyond the weights.
The own code stores all pairs of tokens, and is not tried if that takes more than 4 GiB.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch
from relattn.integrations import transformers as faster
from transformers import DebertaV2Config, DebertaV2Model

from benchmarks import measure
from benchmarks.measure import Row, record
from benchmarks.small_calls import processor_time

KEY = ("layers", "texts", "longest", "method", "device", "threads")
BYTES_PER_PAIR = 320  # of a query and a key, measured at 512 tokens
MOST_BYTES = 2**32
METHODS = ("own code", "padded", "unpadded", "unpadded, int8")


def prepare(method: str, layers: int, texts: int, longest: int) -> Callable[[], torch.Tensor]:
    """Return a function that runs the model on texts of 20 to 200 tokens and a long one."""
    torch.manual_seed(1)
    config = DebertaV2Config(
        hidden_size=768, num_hidden_layers=layers, num_attention_heads=12, intermediate_size=3072, vocab_size=1000,
        relative_attention=True, position_buckets=256, share_att_key=True, norm_rel_ebd="layer_norm",
        pos_att_type="p2c|c2p", position_biased_input=False, type_vocab_size=0,
    )  # fmt: skip
    model = DebertaV2Model(config).eval()
    if method != "own code":
        linear: Literal["int8", "float32"] = "int8" if "int8" in method else "float32"
        faster.enable(model, unpad="unpadded" in method, linear=linear)
    lengths = torch.randint(20, 200, (texts,)).clamp(max=longest)
    lengths[0] = longest
    ids, mask = torch.randint(1, 1000, (texts, longest)), torch.arange(longest) < lengths[:, None]
    ids[0] = torch.randint(1, 1000, (longest,), generator=torch.Generator().manual_seed(1))

    @torch.inference_mode()
    def run() -> torch.Tensor:
        return model(ids, attention_mask=mask.long()).last_hidden_state[mask]

    return run


def seconds(method: str, layers: int, texts: int, longest: int) -> tuple[float, np.ndarray]:
    """Return the processor time of the second call, after one on short texts, and the outputs."""
    prepare(method, 1, 2, 32)()
    run, outputs = prepare(method, layers, texts, longest), []
    return processor_time(lambda: outputs.append(run())), outputs[0][:longest].numpy()


def main() -> None:
    parser = measure.command("unpadded", __doc__)
    parser.add_argument("--layers", type=int, default=2, help="layers of the model (%(default)s)")
    parser.add_argument("--texts", type=int, default=16, help="texts of the batch (%(default)s)")
    parser.add_argument("--longest", type=int, default=2048, help="tokens of the longest text (%(default)s)")
    parser.add_argument("--methods", nargs="+", default=METHODS, help="methods (all)")
    arguments = measure.parse(parser, "unpadded-cpu.csv", threads=1)
    row: Row
    sizes = arguments.layers, arguments.texts, arguments.longest
    _, alone = measure.apart(seconds, "padded", arguments.layers, 1, arguments.longest)
    for method in arguments.methods:
        if method == "own code" and (needed := BYTES_PER_PAIR * arguments.texts * arguments.longest**2) > MOST_BYTES:
            row = dict(zip(KEY, sizes, strict=False)) | {"method": method}
            row |= {"seconds": f"not tried: about {needed >> 30} GiB", "MiB": "", "from alone": ""}
            record(arguments, [row], KEY)
            continue
        taken, output = measure.apart(seconds, method, *sizes)
        peak = measure.peak_memory(partial(prepare, method), (1, 2, 32), sizes)
        row = dict(zip(("layers", "texts", "longest"), sizes, strict=True)) | {"method": method}
        row |= {
            "seconds": f"{taken:.3g}",
            "MiB": peak >> 20,
            "from alone": f"{float(abs(output - alone).max()):.1e}",
        }
        record(arguments, [row], KEY)


if __name__ == "__main__":
    main()
