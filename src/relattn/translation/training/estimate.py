"""Estimate what a training run needs before it starts: memory per device, disk space, tokens and time.

The memory is that of two steps with the longest batch, which are run on tensors without data and counted by PyTorch's
MemTracker. It counts tensors only: on a CPU, the process takes up to four times as much, because training keeps freed
memory.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from relattn.translation.allocation import freed_memory_kept
from relattn.translation.config import Recipe
from relattn.translation.console import duration
from relattn.translation.data.batching import Batch, Step
from relattn.translation.data.encode import has_data, open_training_text, read_tokenizer
from relattn.translation.errors import InputError
from relattn.translation.files import as_size
from relattn.translation.model.transformer import Transformer
from relattn.translation.training.objective import summed_loss
from relattn.translation.training.run_directory import disk_space

PAPER = "the paper's base models: 100,000 steps on 8 K40; its big models: 300,000 on 8 P100 (section 4.1)"


@dataclass(frozen=True)
class Memory:
    """Peak memory of a device, in bytes.

    Attributes:
        weights: Weights; with shards, those of this process.
        gradients: Gradients, twice with several processes, because they are copied to be sent. With shards,
            accumulated micro-batches keep a gradient of the whole model.
        optimizer: Moments of Adam; with shards, those of this process.
        activations: Tensors that the forward pass keeps for the backward pass.
        temporary: Tensors that exist while one layer is computed, such as the gradient of the logits. With shards,
            also the gathered weights.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    temporary: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    def __str__(self) -> str:
        parts = " · ".join(f"{name} {as_size(size)}" for name, size in asdict(self).items())
        return f"{as_size(self.total)}: {parts}"


def distribute(recipe: Recipe, devices: int) -> Recipe:
    """Return the recipe with its steps distributed over a number of devices. A step has the same size as before.

    Raises:
        InputError: The micro-batches of a step cannot be divided evenly.
    """
    parts = recipe.micro_batches_per_step
    if devices < 1 or parts % devices:
        raise InputError(f"devices must divide the {parts} micro-batches of a step, got {devices}")
    return replace(recipe, train=replace(recipe.train, accumulate=parts // devices, devices=devices, nodes=1))


def longest_batch(recipe: Recipe) -> Batch:
    """Return a micro-batch of sentences with the maximum length, as many as fit. All tokens are the same."""
    length = min(recipe.data.max_length + 1, recipe.data.max_tokens)
    if (max_length := recipe.model.position_spec.max_length) is not None:
        length = min(length, max_length)
    rows = max(1, recipe.data.max_tokens // length)
    tokens, lengths = torch.full((rows, length), 4), torch.full((rows,), length)
    return Batch(tokens, lengths, tokens, tokens, lengths)


def make_model(recipe: Recipe) -> Transformer:
    """Return the model of a recipe, with the vocabulary of its run, or with the maximum size if there is none yet."""
    run = Path(recipe.out)
    sizes = read_tokenizer(run, recipe.data).vocab_sizes if has_data(run) else (recipe.data.vocab_size,) * 2
    return Transformer(recipe.model, *sizes)


def memory(recipe: Recipe) -> Memory | None:
    """Return the peak memory of a device, or None if the model cannot run on tensors without data."""
    train = recipe.train
    with FakeTensorMode():
        model, batch = make_model(recipe), longest_batch(recipe)
        if train.activation_checkpointing:
            model.recompute_activations()
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        half = torch.float16 if train.precision == "fp16-mixed" else torch.bfloat16
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()  # makes the moments
        if train.accumulate == 1:
            optimizer.zero_grad()
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            try:
                with torch.autocast("cpu", half, enabled=train.precision != "fp32"):
                    loss = summed_loss(model, batch, train.label_smoothing)
                loss.backward()
            except (DataDependentOutputException, DynamicOutputShapeException):
                return None
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    sizes = {str(getattr(kind, "value", kind)): size for kind, size in peak.items()}
    one = Memory(
        weights=sizes["Parameter"],
        gradients=sizes["Gradient"] + (sizes["Parameter"] if train.processes > 1 else 0),
        optimizer=sizes["Optstate"],
        activations=sizes["Activation"],
        temporary=sizes["Temp"] + sizes["Other"] + sizes["Buffer"],
    )
    if train.strategy == "ddp":
        return one
    # All that is not a layer is gathered for a whole step, and two layers at a time.
    layers = [sum(p.nbytes for p in layer.parameters()) for layer in (*model.encoder, *model.decoder)]
    share = one.weights // train.processes
    return replace(
        one,
        weights=share,
        gradients=share + (one.weights if train.accumulate > 1 else 0),
        optimizer=one.optimizer // train.processes,
        temporary=one.temporary + one.weights - sum(layers) + 2 * max(layers),
    )


def describe_epoch(recipe: Recipe) -> str:
    """Return the steps, sentence pairs and tokens of an epoch, if the run has its data."""
    out = Path(recipe.out)
    if not has_data(out):
        return f"not known before {recipe.out} has its data"
    text = open_training_text(recipe)
    plan = text.epoch(0, parts=recipe.micro_batches_per_step)
    steps, (_, tokens) = plan.steps, plan.lengths
    pairs, per_step = sum(map(len, steps)), sum(int(tokens[step].sum()) for step in steps) / len(steps)
    epochs = recipe.train.steps / len(steps)
    return f"{len(steps):,} steps, {pairs:,} pairs, {per_step:,.0f} target tokens per step; {epochs:.1f} epochs in all"


@freed_memory_kept()
def seconds_per_step(recipe: Recipe, steps: int) -> float:
    """Return the median time of `steps` optimizer steps on one device, after one warm-up step, with longest batches."""
    from lightning.fabric import Fabric  # takes seconds to import

    from relattn.translation.training.distributed import precision_of
    from relattn.translation.training.loop import set_up, take_step

    train = recipe.train
    fabric = Fabric(accelerator=train.accelerator, devices=1, plugins=precision_of(train))
    if train.threads is not None:
        torch.set_num_threads(train.threads)
    model, optimizer = set_up(fabric, make_model(recipe), train)
    batch, count = longest_batch(recipe).to(fabric.device), train.accumulate
    step = Step(0, 0, 0, [batch] * count, list(range(count)), batch.target_tokens * count)
    seconds = []
    for number in range(steps + 1):
        start = time.perf_counter()
        float(take_step(fabric, model, optimizer, step, train, rate=1e-4, key=(recipe.seed, number)))  # waits for a GPU
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])


def plan(recipe: Recipe, *, seconds: float | None = None) -> str:
    """Describe what a training run needs, one line per quantity.

    Args:
        recipe: Recipe of the run.
        seconds: Measured time of a step, if known.
    """
    train, data = recipe.train, recipe.data
    with FakeTensorMode():
        model = make_model(recipe)
    batch, peak = longest_batch(recipe), memory(recipe)
    rows, length = batch.src.shape
    disk = as_size(disk_space(model, train.keep))
    split = f"{train.processes} × {train.accumulate} micro-batches of {data.max_tokens:,}"
    lines = {
        "weights": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        "step": f"at most {data.max_tokens * recipe.micro_batches_per_step:,} tokens per side with padding: {split}",
        f"memory per device, {train.precision}, {rows} × {length} tokens": str(peak or "not known for this model"),
        "disk": f"{disk}: {train.keep} checkpoints, one being written, and the bundle",
        "epoch": describe_epoch(recipe),
        "steps": f"{train.steps:,}",
    }
    if seconds is not None:
        speed = batch.target_tokens * recipe.micro_batches_per_step / seconds
        lines["time"] = (
            f"{duration(train.steps * seconds)}: {seconds:.3g} s per step on one device, {speed:,.0f} target tokens "
            f"per second{' if communication took no time' if train.processes > 1 else ''}"
        )
    return "\n".join([*(f"{name}: {value}" for name, value in lines.items()), PAPER])
