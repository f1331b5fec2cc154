"""Whole encoders of transformers at their published sizes, random weights, own code and ours: time, memory, agreement.

A row is one encoder on one input by one method: "eager" and "sdpa", the model's own code with that attention, or
"relattn", the operator inside. Each is run once after a short input; memory is that of a process of its own. Nothing is
downloaded.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.granite_speech.modeling_granite_speech import GraniteSpeechCTCEncoder
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import SeamlessM4Tv2SpeechEncoder
from transformers.models.speecht5.modeling_speecht5 import SpeechT5EncoderWithoutPrenet

from benchmarks.measure import available_memory, conditions, keep, measured, peak_memory, preload
from relattn.integrations import transformers as faster

RESULTS = Path(__file__).parent / "results" / "models-cpu.csv"
METHODS = ("eager", "sdpa", "relattn")
MOST_SECONDS = 600.0  # that a run may be expected to take
SAMPLES = 16_000  # of sound in a second


@dataclass(frozen=True)
class Encoder:
    """One model.

    Attributes:
        make: by an attention of its own.
        inputs: so many seconds, or tokens.
        sizes: seconds of sound, or tokens of text, that it is timed at.
        methods: of its own, and ours.
        text: whether sizes are tokens.
    """

    make: Callable[[str], nn.Module]
    inputs: Callable[[int], Tensor]
    sizes: tuple[int, ...] = (10, 30, 60)
    methods: tuple[str, ...] = METHODS
    text: bool = False


def frames(rate: float, bins: int) -> Callable[[int], Tensor]:
    """Random features, so many a second."""
    return lambda seconds: torch.randn(1, int(rate * seconds), bins)


def tokens(count: int) -> Tensor:
    return torch.randint(1, 30, (1, count))


class Vits(nn.Module):
    """VITS's text encoder, called with what it reads."""

    def __init__(self, implementation: str) -> None:
        super().__init__()
        self.encoder = transformers.VitsModel(transformers.VitsConfig()).text_encoder

    def forward(self, ids: Tensor) -> Any:
        mask = torch.ones_like(ids)
        return self.encoder(ids, padding_mask=mask[..., None].float(), attention_mask=mask)


def parakeet(implementation: str) -> nn.Module:
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8, "intermediate_size": 4096}
    longest = {"max_position_embeddings": 100_000}
    return transformers.ParakeetEncoder(
        transformers.ParakeetEncoderConfig(**sizes, **longest, attn_implementation=implementation)
    )


ENCODERS = {
    "parakeet-0.6b": Encoder(parakeet, frames(100, 80), (10, 30, 60, 400, 1200)),
    "wav2vec2-bert": Encoder(
        lambda kind: transformers.Wav2Vec2BertModel(transformers.Wav2Vec2BertConfig(attn_implementation=kind)),
        frames(50, 160),
    ),
    "wav2vec2-conformer-large": Encoder(
        lambda kind: transformers.Wav2Vec2ConformerModel(
            transformers.Wav2Vec2ConformerConfig(
                hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
                position_embeddings_type="relative", attn_implementation=kind,
            )
        ),
        lambda seconds: torch.randn(1, SAMPLES * seconds),
    ),
    "seamless-m4t-v2": Encoder(
        lambda kind: SeamlessM4Tv2SpeechEncoder(transformers.SeamlessM4Tv2Config(attn_implementation=kind)),
        frames(50, 160),
    ),
    "granite-speech": Encoder(
        lambda kind: GraniteSpeechCTCEncoder(transformers.GraniteSpeechEncoderConfig()),
        frames(50, 160),
        (10, 30, 60, 400, 1200),
        ("sdpa", "relattn"),
    ),
    "speecht5": Encoder(
        lambda kind: SpeechT5EncoderWithoutPrenet(transformers.SpeechT5Config()),
        frames(50, 768),
        methods=("eager", "relattn"),
    ),
    "vits": Encoder(Vits, tokens, (256, 1024, 4096), ("eager", "relattn"), text=True),
    "t5-base": Encoder(
        lambda kind: transformers.T5EncoderModel(
            transformers.T5Config(
                d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12, attn_implementation=kind
            )
        ),
        tokens,
        (256, 1024, 4096),
        text=True,
    ),
}  # fmt: skip


def made(name: str, method: str) -> nn.Module:
    """An encoder that computes by a method, the same weights by each."""
    torch.manual_seed(1)
    model = ENCODERS[name].make("sdpa" if method == "relattn" and "sdpa" in ENCODERS[name].methods else method)
    with torch.no_grad():
        for parameter in model.parameters():
            if not bool(parameter.any()):
                parameter.normal_(0, 0.02)
    if method == "relattn":
        faster.enable(model)
    return model.eval()


def encoded(model: nn.Module, name: str, size: int) -> Tensor:
    """What an encoder makes of random inputs, the same for each method."""
    torch.manual_seed(2)
    with torch.inference_mode():
        found: Tensor = model(ENCODERS[name].inputs(size)).last_hidden_state
        return found


def prepare(name: str, method: str, size: int) -> Callable[[], Tensor]:
    """What runs an encoder once."""
    return partial(encoded, made(name, method), name, size)


def shared(name: str, method: str, size: int) -> float:
    """What part of the time is spent in modules that the operator stands in for, attention and projections."""
    model = made(name, method)
    with faster.enable(model):
        lines = faster.report(model).splitlines()
    spent = 0.0
    for line in lines:
        place, _, what = line.partition(" (")
        if not what.endswith(": relattn") or place == "the model":
            continue
        began: list[float] = []
        module = model.get_submodule(place)
        module.register_forward_pre_hook(lambda *_, began=began: began.append(time.perf_counter()))

        def ended(*_: Any, began: list[float] = began) -> None:
            nonlocal spent
            spent += time.perf_counter() - began.pop()

        module.register_forward_hook(ended)
    return spent / measured(partial(encoded, model, name, size))


def seconds_of(name: str, method: str, size: int) -> float:
    """Of one run, after a short one."""
    model = made(name, method)
    encoded(model, name, min(ENCODERS[name].sizes))
    return measured(partial(encoded, model, name, size))


def difference(name: str, size: int) -> float:
    """The largest between the model's own output and ours."""
    own, ours = (prepare(name, method, size)() for method in (ENCODERS[name].methods[-2], "relattn"))
    return float((own - ours).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=ENCODERS, default=list(ENCODERS), help="these encoders")
    parser.add_argument("--sizes", type=int, nargs="*", default=None, help="in place of each encoder's own")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    preload([__name__])
    for name in arguments.only:
        encoder = ENCODERS[name]
        shortest = min(encoder.sizes)
        print(f"{name}: at most {difference(name, shortest):.1e} apart at {shortest}", flush=True)
        last: dict[str, tuple[int, float, float]] = {}  # of each method: size, seconds, bytes
        for size in arguments.sizes or encoder.sizes:
            rows = []
            for method in encoder.methods:
                row: dict[str, object] = {"model": name, "size": size, "unit": "tokens" if encoder.text else "s"}
                row |= {"method": method, "seconds": "", "peak_mib": "", "attention": "", "note": ""}
                row["note"] = too_much(last.get(method), size)
                if not row["note"]:
                    row |= _measure(name, method, size)
                if not row["note"]:
                    last[method] = size, float(str(row["seconds"])), float(str(row["peak_mib"])) * 2**20
                rows.append(row | conditions())
                print({key: row[key] for key in ("model", "size", "method", "seconds", "peak_mib", "note")}, flush=True)
            keep(arguments.out, rows, ("model", "size", "method", "threads"))


def too_much(last: tuple[int, float, float] | None, size: int) -> str:
    """Why a method is not run at a size, by what it took at another and a growth with the square; empty where it is."""
    if last is None:
        return ""
    before, seconds, held = last
    growth = (size / before) ** 2
    if held * growth > 0.8 * available_memory():
        return f"left out: some {held * growth / 2**30:.0f} GiB by what it took at {before}"
    return f"left out: some {seconds * growth:.0f} s" if seconds * growth > MOST_SECONDS else ""


def _measure(name: str, method: str, size: int) -> dict[str, object]:
    """Time, peak memory and attention's share of one encoder by one method, or why there are none."""
    small = name, method, min(ENCODERS[name].sizes)
    try:
        peak = peak_memory(prepare, small, (name, method, size))
        seconds = seconds_of(name, method, size)
        share = shared(name, method, size) if size == min(ENCODERS[name].sizes) else None
    except (MemoryError, RuntimeError) as error:
        return {"note": str(error).partition("\n")[0][:120]}
    found: dict[str, object] = {"seconds": f"{seconds:.2f}", "peak_mib": peak >> 20}
    return found if share is None else found | {"attention": f"{share:.3f}"}


if __name__ == "__main__":
    main()
