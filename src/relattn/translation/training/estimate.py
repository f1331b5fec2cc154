"""What a training will take, before it is begun: weights, memory of each device, room on the disk, tokens, time.

Memory is that of two steps at the longest batch, run on tensors that have shapes and no numbers, and counted by
PyTorch's own MemTracker. It is that of tensors: what an allocator keeps of those that are gone comes on top, on a CPU a
quarter to a half with glibc's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from lightning.fabric import Fabric
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from relattn.translation.config import Recipe
from relattn.translation.data.batching import Batch, Step, row_lengths
from relattn.translation.data.encode import has_data, open_training_text, read_tokenizer
from relattn.translation.errors import InputError
from relattn.translation.files import as_size
from relattn.translation.model.transformer import Transformer
from relattn.translation.training.distributed import precision_of
from relattn.translation.training.loop import set_up, take_step
from relattn.translation.training.objective import summed_loss
from relattn.translation.training.run_directory import room_for

PAPER = "the paper's base models: 100,000 steps on 8 K40; its big models: 300,000 on 8 P100 (section 4.1)"


@dataclass(frozen=True)
class Memory:
    """Bytes of a device at the moment when it holds the most.

    Attributes:
        weights: of the model; in shards a process's own.
        gradients: as much again; with several processes twice, for what is sent. In shards, micro-batches that are
            accumulated leave a gradient of the whole model.
        optimizer: Adam's moments; in shards a process's own.
        activations: what forward keeps for backward.
        passing: what is held only while a layer is computed, such as the gradient of the logits; in shards the weights
            that have come together.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    passing: int

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        parts = " · ".join(f"{field.name} {as_size(getattr(self, field.name))}" for field in fields(self))
        return f"{as_size(self.total)}: {parts}"


@dataclass(frozen=True)
class Epoch:
    """A pass over the text of a run that has its data.

    Attributes:
        pairs: that are trained on.
        steps: they make.
        tokens: target tokens, ends counted.
    """

    pairs: int
    steps: int
    tokens: int


def on_devices(recipe: Recipe, devices: int) -> Recipe:
    """The recipe with its steps spread over so many devices, each as large as before.

    Raises:
        InputError: a step's micro-batches cannot be dealt out evenly.
    """
    parts = recipe.parts
    if devices < 1 or parts % devices:
        raise InputError(f"a step of {parts} micro-batches cannot be dealt out to {devices} devices evenly")
    return replace(recipe, train=replace(recipe.train, accumulate=parts // devices, devices=devices, nodes=1))


def longest_batch(recipe: Recipe) -> Batch:
    """A micro-batch of as many of the longest sentences as it takes, of nothing but one piece."""
    length = min(recipe.data.max_length + 1, recipe.data.max_tokens)
    if recipe.model.max_positions is not None:
        length = min(length, recipe.model.max_positions)
    rows = max(1, recipe.data.max_tokens // length)
    pieces, lengths = torch.full((rows, length), 4), torch.full((rows,), length)
    return Batch(pieces, lengths, pieces, pieces, lengths)


def model_of(recipe: Recipe) -> Transformer:
    """A recipe's model, with the vocabulary that its run has or, before it is learned, the size it asks for."""
    run = Path(recipe.out)
    sizes = read_tokenizer(run).vocab_sizes if has_data(run) else (recipe.data.vocab_size,) * 2
    return Transformer(recipe.model, *sizes)


def memory(recipe: Recipe) -> Memory | None:
    """What a device holds at the most; None for a model that cannot be run without numbers."""
    train = recipe.train
    with FakeTensorMode():
        model, batch = model_of(recipe), longest_batch(recipe)
        if train.activation_checkpointing:
            model.recompute_activations()
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        half = torch.float16 if train.precision == "fp16-mixed" else torch.bfloat16
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            try:
                for _ in range(2):  # in the second step there are moments
                    optimizer.zero_grad()
                    for _ in range(min(2, recipe.train.accumulate)):  # with the second batch there are gradients
                        tracker.reset_mod_stats()
                        with torch.autocast("cpu", half, enabled=train.precision != "fp32"):
                            loss = summed_loss(model, batch, train.label_smoothing)
                        loss.backward()
                    optimizer.step()
            except (DataDependentOutputException, DynamicOutputShapeException):
                return None
        (held,) = tracker.get_tracker_snapshot("peak").values()
    by_part = {str(getattr(part, "value", part)): count for part, count in held.items()}
    alone = Memory(
        weights=by_part["Parameter"],
        gradients=by_part["Gradient"] + (by_part["Parameter"] if train.processes > 1 else 0),
        optimizer=by_part["Optstate"],
        activations=by_part["Activation"],
        passing=by_part["Temp"] + by_part["Other"] + by_part["Buffer"],
    )
    return alone if train.strategy == "ddp" else _in_shards(alone, model, recipe)


def _in_shards(alone: Memory, model: Transformer, recipe: Recipe) -> Memory:
    """The same where every process has a share: all but the layers comes together for a step, two layers at a time."""
    processes, layers = recipe.train.processes, (*model.encoder, *model.decoder)
    of_layers = [sum(parameter.nbytes for parameter in layer.parameters()) for layer in layers]
    gathered = alone.weights - sum(of_layers) + 2 * max(of_layers)
    share = alone.weights // processes
    return replace(
        alone,
        weights=share,
        gradients=share + (alone.weights if recipe.train.accumulate > 1 else 0),
        optimizer=alone.optimizer // processes,
        passing=alone.passing + gathered,
    )


def epoch(recipe: Recipe) -> Epoch | None:
    """What a pass over a run's data is; None where they are not prepared."""
    if not has_data(Path(recipe.out)):
        return None
    text = open_training_text(recipe.data, Path(recipe.out), seed=recipe.seed)
    steps = text.epoch(0, parts=recipe.parts)
    tokens = row_lengths(text.pairs.tgt, 1)
    return Epoch(pairs=sum(map(len, steps)), steps=len(steps), tokens=sum(int(tokens[step].sum()) for step in steps))


def seconds_a_step(recipe: Recipe, steps: int) -> float:
    """Seconds of an optimiser step on one device, all of its batches the longest: the median of so many, after one."""
    train = recipe.train
    fabric = Fabric(accelerator=train.accelerator, devices=1, plugins=precision_of(train))
    if train.threads is not None:
        torch.set_num_threads(train.threads)
    model, optimizer = set_up(fabric, model_of(recipe), train)
    batch, count = longest_batch(recipe).to(fabric.device), recipe.train.accumulate
    step = Step(0, 0, [batch] * count, list(range(count)), batch.target_tokens * count)
    taken = []
    for number in range(steps + 1):
        began = time.perf_counter()
        float(take_step(fabric, model, optimizer, step, recipe, number))  # which waits for the device
        taken.append(time.perf_counter() - began)
    return float(np.median(taken[1:]))


def plan(recipe: Recipe, *, measured: float | None = None) -> str:
    """What a training takes, a line for each thing.

    Args:
        recipe: the training.
        measured: seconds of one of its steps, where they are known.
    """
    train, data = recipe.train, recipe.data
    devices = train.processes
    with FakeTensorMode():
        model = model_of(recipe)
    batch = longest_batch(recipe)
    rows, length = batch.src.shape
    held, found = memory(recipe), epoch(recipe)
    padded = data.max_tokens * recipe.parts
    dealt = f"{devices} × {train.accumulate} micro-batches of {data.max_tokens:,}"
    told = {
        "weights": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        "a step": f"at most {padded:,} pieces a side, padding counted: {dealt}",
        f"memory of a device, {train.precision}, {rows} × {length} pieces": (
            str(held) if held else "not known beforehand"
        ),
        "disk": f"{as_size(room_for(model, train))}: {train.keep} checkpoints, one more in the making, and the bundle",
        "an epoch": (
            f"{found.steps:,} steps: {found.pairs:,} pairs, {found.tokens / found.steps:,.0f} target tokens a step"
            if found
            else f"not known before {recipe.out} has its data"
        ),
        "steps": f"{train.steps:,}" + (f", {train.steps / found.steps:.1f} epochs" if found else ""),
    }
    if measured is not None:
        rate = batch.target_tokens * recipe.parts / measured
        told["time"] = (
            f"{_duration(train.steps * measured)}: {measured:.3g} s a step as measured on one device, {rate:,.0f} "
            f"target tokens a second{' if the others cost nothing' if devices > 1 else ''}"
        )
    return "\n".join([*(f"{name}: {value}" for name, value in told.items()), PAPER])


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
