"""Time of DeBERTa's attention layer on a GPU: its own code, ours, disentangled-flash's and FlashDeBERTa's.

A layer of DeBERTa v3 base (12 heads of 64 dimensions, 512 rows of position embeddings) in bfloat16, with projections,
on 16,384 tokens without padding, as in disentangled-flash's table. Packages that are not installed are left out.
"""

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
PACKAGES = {"disentangled-flash": "disentangled_flash", "FlashDeBERTa": "flashdeberta"}
Layer = Callable[[Tensor, Tensor, Tensor], Tensor]  # (hidden states, mask of valid keys, position embeddings) -> output


def config_of(heads: int, head_dim: int) -> Any:
    from transformers import DebertaV2Config

    return DebertaV2Config(
        hidden_size=heads * head_dim, num_attention_heads=heads, relative_attention=True, position_buckets=256,
        max_position_embeddings=512, max_relative_positions=-1, pos_att_type=["p2c", "c2p"], share_att_key=True,
        norm_rel_ebd="layer_norm", attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip


def layers(config: Any, device: str) -> dict[str, tuple[nn.Module, Layer]]:
    """Return a module per implementation, and how it is called."""
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
    found = {}
    for name, (module_type, call) in classes.items():
        torch.manual_seed(0)
        module = module_type(config).to(device, torch.bfloat16)
        found[name] = module, partial(call, module)
    return found


def time_layers(n: int, tokens: int, heads: int, device: str) -> list[Row]:
    """Return a row per implementation and pass, with the difference of its output from that of the own code."""
    config, torch_device = config_of(heads, 64 if device == "cuda" else 8), torch.device(device)
    states = torch.randn(max(1, tokens // n), n, config.hidden_size, device=torch_device, dtype=torch.bfloat16)
    valid = torch.ones(states.shape[:2], dtype=torch.bool, device=torch_device)
    rows = torch.randn(2 * config.position_buckets, config.hidden_size, device=torch_device, dtype=torch.bfloat16)
    states.requires_grad_()
    rows.requires_grad_()
    cotangent, want, found = torch.randn_like(states), None, []
    modules = layers(config, device)
    for backward in (False, True):
        works, columns = dict[str, Any](), dict[str, Row]()
        for name, (module, layer) in modules.items():
            row = columns[name] = {
                "layer": name, "n": n, "pass": PASSES[backward], "tokens": tokens, "dtype": "bfloat16", "heads": heads,
            } | dict.fromkeys((*MEASURED, "difference"), "")  # fmt: skip
            leaves = [states, rows, *module.parameters()]

            def forward(layer: Layer = layer) -> Tensor:
                with torch.no_grad():
                    return layer(states, valid, rows)

            def both(layer: Layer = layer, leaves: list[Tensor] = leaves) -> object:
                return torch.autograd.grad(layer(states, valid, rows), leaves, cotangent, allow_unused=True)

            try:
                output = forward().float()
                want = output if want is None else want
                row["difference"] = f"{float((output - want).norm() / want.norm()):.1e}"
                work = both if backward else forward
                work()
                if device == "cuda":
                    row |= memory_and_launch(work)
                    works[name] = partial(seconds_on_gpu, row["launch ms"] / 1e3, work)
                else:
                    works[name] = work
            except Exception as error:  # of another library, or out of memory
                row["note"] = reason(error)
        times = alternate(works, REPEATS, SECONDS, clock=None if device == "cpu" else lambda clock: clock())
        for name, time in times.items():
            columns[name] |= time.columns()
        base = columns["own code"]["ms"]
        for row in columns.values():
            row["time ratio"] = round(row["ms"] / base, 3) if row["ms"] and base else ""
        found += columns.values()
    return found


def tasks(device: str) -> dict[str, Task]:
    if device == "cpu":
        return {"DeBERTa, n 16": (time_layers, (16, 16, 2, device))}
    return {f"DeBERTa, n {n}": (time_layers, (n, 16384, 12, device)) for n in LENGTHS}
