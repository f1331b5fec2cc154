"""Time of DeBERTa's attention layer on a GPU: its own code, ours, disentangled-flash's and FlashDeBERTa's.

A layer of DeBERTa v3 base (12 heads of 64 dimensions, 512 rows of position embeddings) in bfloat16, with projections,
on 16,384 tokens without padding, as in disentangled-flash's table. Packages that are not installed are left out.
"""

import contextlib
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_times import MEASURED, REPEATS, SECONDS, memory_and_launch, seconds_on_gpu
from benchmarks.measure import Row, alternate
from benchmarks.workers import Task, reason

KEY = ("layer", "n", "pass", "tokens", "dtype")
LENGTHS = (8192, 512, 2048, 128, 4096, 1024, 256)
PASSES = ("forward", "forward + backward")
Layer = Callable[[Tensor, Tensor, Tensor], Tensor]  # (hidden states, mask of valid keys, position embeddings) -> output


def config_of(heads: int, head_dim: int) -> Any:
    from transformers import DebertaV2Config

    return DebertaV2Config(
        hidden_size=heads * head_dim, num_attention_heads=heads, relative_attention=True, position_buckets=256,
        max_position_embeddings=512, max_relative_positions=-1, pos_att_type=["p2c", "c2p"], share_att_key=True,
        norm_rel_ebd="layer_norm", attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip


def layers(config: Any, device: str) -> dict[str, tuple[nn.Module, Layer]]:
    """Return a module per implementation, and the function that calls it."""
    from transformers.models.deberta_v2 import modeling_deberta_v2 as deberta_v2

    from relattn.integrations.transformers.families.deberta import attention

    def own(module: Any, states: Tensor, valid: Tensor, rows: Tensor) -> Tensor:
        if not arguments:  # the encoder makes them once for all layers
            arguments["attention_mask"] = valid[:, None, None] & valid[:, None, :, None]
            arguments["relative_pos"] = deberta_v2.build_relative_position(
                states, states, bucket_size=config.position_buckets, max_position=config.max_position_embeddings
            )
        output: Tensor = module(states, rel_embeddings=rows, **arguments)[0]
        return output

    arguments: dict[str, Tensor] = {}

    def ours(module: Any, states: Tensor, valid: Tensor, rows: Tensor) -> Tensor:
        options = {"relative_pos": states.new_empty(0), "rel_embeddings": rows}
        return attention(None, module, states, valid[:, None, None], **options)[0]  # type: ignore[arg-type]

    def like_own(module: Any, states: Tensor, valid: Tensor, rows: Tensor) -> Tensor:
        output: Tensor = module(states, valid, rel_embeddings=rows)[0]
        return output

    classes: dict[str, tuple[Any, Any]] = {
        "own code": (deberta_v2.DisentangledSelfAttention, own),
        "relattn": (deberta_v2.DisentangledSelfAttention, ours),
    }
    if importlib.util.find_spec("disentangled_flash"):
        from disentangled_flash import TritonTrainingDisentangledSelfAttention

        classes["disentangled-flash"] = TritonTrainingDisentangledSelfAttention, like_own
    if importlib.util.find_spec("flashdeberta"):
        from flashdeberta.model import FlashDisentangledSelfAttention

        classes["FlashDeBERTa"] = FlashDisentangledSelfAttention, like_own
    found: dict[str, tuple[nn.Module, Layer]] = {}
    for name, (module_type, call) in classes.items():
        torch.manual_seed(0)
        module = module_type(config).to(device, torch.bfloat16)
        found[name] = module, partial(call, module)
    return found


def works_of(n: int, tokens: int, heads: int, device: str, backward: bool) -> dict[str, Callable[[], Tensor]]:
    """Return a function per implementation that runs it and returns its output, or a gradient of the states."""
    config = config_of(heads, 64 if device == "cuda" else 8)
    states = torch.randn(max(1, tokens // n), n, config.hidden_size, device=device, dtype=torch.bfloat16)
    valid = torch.ones(states.shape[:2], dtype=torch.bool, device=device)
    rows = torch.randn(2 * config.position_buckets, config.hidden_size, device=device, dtype=torch.bfloat16)
    cotangent = torch.randn_like(states)

    def run(module: nn.Module, layer: Layer) -> Tensor:
        with torch.set_grad_enabled(backward):
            output = layer(states, valid, rows)
        leaves = [states, rows, *module.parameters()]
        return torch.autograd.grad(output, leaves, cotangent, allow_unused=True)[0] if backward else output

    states.requires_grad_(backward)
    rows.requires_grad_(backward)
    return {name: partial(run, *implementation) for name, implementation in layers(config, device).items()}


def compile_layers(n: int, tokens: int, heads: int, device: str) -> None:
    """Run both passes of each implementation once, so that Triton's cache on the disk has their kernels."""
    for backward in (False, True):
        for work in works_of(n, tokens, heads, device, backward).values():
            with contextlib.suppress(Exception):  # `time_layers` has the error
                work()


def time_layers(n: int, tokens: int, heads: int, device: str) -> list[Row]:
    """Return a row per implementation and pass, with the difference of its result from that of the own code.

    The result is the output, and with the backward pass the gradient of the hidden states.
    """
    found: list[Row] = []
    for backward in (False, True):
        works, columns, want = dict[str, Any](), dict[str, Row](), torch.empty(0)
        for name, work in works_of(n, tokens, heads, device, backward).items():
            row = columns[name] = {
                "layer": name, "n": n, "pass": PASSES[backward], "tokens": tokens, "dtype": "bfloat16", "heads": heads,
            } | dict.fromkeys((*MEASURED, "difference"), "")  # fmt: skip
            try:
                result = work().float()
                want = result if name == "own code" else want
                row["difference"] = f"{(result - want).norm().item() / want.norm().item():.1e}"
                if device == "cuda":
                    row |= memory_and_launch(work)
                    works[name] = partial(seconds_on_gpu, row["launch ms"] / 1e3, work)
                else:
                    works[name] = work
            except Exception as error:  # of another library, or out of memory
                row["note"] = reason(error)
        times = alternate(works, REPEATS, SECONDS, clock=None if device == "cpu" else lambda clock: clock())
        base = times.get("own code")
        for name, time in times.items():
            columns[name] |= time.columns() | {"time ratio": round(time.median / base.median, 3) if base else ""}
        found += columns.values()
    return found


def tasks(device: str, compiles: bool = False) -> dict[str, Task]:
    """Return a task per length; with `compiles`, it only compiles the kernels."""
    function: Any = compile_layers if compiles else time_layers
    if device == "cpu":
        return {"DeBERTa, n 16": (function, (16, 16, 2, device))}
    return {f"DeBERTa, n {n}": (function, (n, 16384, 12, device)) for n in LENGTHS}
