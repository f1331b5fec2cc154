"""Time of DeBERTa's attention layer on a GPU: its own code, ours, disentangled-flash's and FlashDeBERTa's.

A layer of DeBERTa v3 base (12 heads of 64 dimensions, 512 rows of position embeddings) in bfloat16, with projections,
on 16,384 tokens without padding, as in disentangled-flash's table. Packages that are not installed are left out.
"""

import importlib.util
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_times import MEASURED, REPEATS, SECONDS, memory_and_launch, seconds_on_gpu
from benchmarks.measure import Row, alternate
from benchmarks.workers import Task, reason

KEY = ("layer", "n", "pass", "dtype")
TOKENS = 16384
LENGTHS = (8192, 512, 2048, 128, 4096, 1024, 256)
PASSES = ("forward", "forward + backward")
Layer = Callable[[Tensor, Tensor, Tensor], Tensor]  # hidden states, mask of valid keys, position embeddings → output


def config_of(heads: int, head_dim: int) -> Any:
    from transformers import DebertaV2Config

    return DebertaV2Config(
        hidden_size=heads * head_dim, num_attention_heads=heads, relative_attention=True, position_buckets=256,
        max_position_embeddings=512, max_relative_positions=-1, pos_att_type=["p2c", "c2p"], share_att_key=True,
        norm_rel_ebd="layer_norm", attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip


def implementations() -> tuple[str, ...]:
    """Return the names of the implementations that are installed, the first of which the others are compared with."""
    packages = {"disentangled-flash": "disentangled_flash", "FlashDeBERTa": "flashdeberta"}
    return ("own code", "relattn", *(name for name, package in packages.items() if importlib.util.find_spec(package)))


def layer_of(name: str, config: Any, device: str) -> tuple[nn.Module, Layer]:
    """Return the module of an implementation, with the same weights for all, and the function that calls it."""
    from relattn.integrations.transformers.families.deberta import attention
    from transformers.models.deberta_v2 import modeling_deberta_v2 as deberta_v2

    arguments: dict[str, Tensor] = {}

    def own(states: Tensor, valid: Tensor, rows: Tensor) -> Tensor:
        if not arguments:  # the encoder makes them once for all layers
            arguments["attention_mask"] = valid[:, None, None] & valid[:, None, :, None]
            arguments["relative_pos"] = deberta_v2.build_relative_position(
                states, states, bucket_size=config.position_buckets, max_position=config.max_position_embeddings
            )
        output: Tensor = module(states, rel_embeddings=rows, **arguments)[0]
        return output

    def ours(states: Tensor, valid: Tensor, rows: Tensor) -> Tensor:
        if not arguments:
            arguments["attention_mask"] = valid[:, None, None]
            arguments["relative_pos"] = states.new_empty(0)
        return attention(None, module, states, rel_embeddings=rows, **arguments)[0]  # type: ignore[arg-type]

    def of_package(states: Tensor, valid: Tensor, rows: Tensor) -> Tensor:
        output: Tensor = module(states, valid, rel_embeddings=rows)[0]
        return output

    torch.manual_seed(0)
    if name == "disentangled-flash":
        import disentangled_flash as package

        options = {"tuning": package.KernelTuningOptions(mode="heuristic")}  # as in its table
        module = package.TritonTrainingDisentangledSelfAttention(config, **options)
    elif name == "FlashDeBERTa":
        from flashdeberta.model import FlashDisentangledSelfAttention

        module = FlashDisentangledSelfAttention(config)
    else:
        module = deberta_v2.DisentangledSelfAttention(config)
    call = {"own code": own, "relattn": ours}.get(name, of_package)
    return module.to(device, torch.bfloat16), call


def work_of(name: str, n: int, device: str, backward: bool) -> Callable[[], Tensor]:
    """Return a function that runs an implementation and returns its output, or the gradient of the hidden states."""
    heads, head_dim, tokens = (12, 64, TOKENS) if device == "cuda" else (2, 8, n)
    config = config_of(heads, head_dim)
    generator = torch.Generator(device).manual_seed(1)

    def normal(*sizes: int) -> Tensor:
        made = torch.randn(*sizes, device=device, generator=generator).bfloat16()
        return made.requires_grad_(backward)

    states = normal(max(1, tokens // n), n, config.hidden_size)
    rows = normal(2 * config.position_buckets, config.hidden_size)
    valid = torch.ones(states.shape[:2], dtype=torch.bool, device=device)
    cotangent = normal(*states.shape).detach()
    module, layer = layer_of(name, config, device)
    leaves = [states, rows, *module.parameters()]

    def run() -> Tensor:
        with torch.set_grad_enabled(backward):
            output = layer(states, valid, rows)
        return torch.autograd.grad(output, leaves, cotangent, allow_unused=True)[0] if backward else output

    return run


def compile_layer(n: int, names: tuple[str, ...], device: str) -> None:
    """Run both passes of implementations once, so that Triton's cache on the disk has their kernels."""
    for name, backward in product(names, (False, True)):
        work_of(name, n, device, backward)()


def time_layers(n: int, names: tuple[str, ...], device: str) -> list[Row]:
    """Return a row per implementation and pass, with the difference of its result from that of the own code.

    The result is the output, and with the backward pass the gradient of the hidden states.
    """
    found: list[Row] = []
    for backward in (False, True):
        works, columns, want = dict[str, Any](), dict[str, Row](), None
        for name in names:
            row = columns[name] = {"layer": name, "n": n, "pass": PASSES[backward], "dtype": "bfloat16"}
            row |= dict.fromkeys((*MEASURED, "difference"), "")
            try:
                work = work_of(name, n, device, backward)
                result = work().detach().float()
                want = result if name == "own code" else want
                if want is not None:
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
    """Return a task per length; with `compiles`, one per length and implementation, which only compiles the kernels."""
    names, lengths = implementations(), (16,) if device == "cpu" else LENGTHS
    if compiles:
        return {f"{name}, n {n}": (compile_layer, (n, (name,), device)) for n, name in product(lengths, names[1:])}
    return {f"DeBERTa, n {n}": (time_layers, (n, names, device)) for n in lengths}
