"""A family: the patches of one model, and a small model of random weights on which they are checked.

Versions of transformers differ. So a family is used only after its small model gave the same outputs with the patches
as with its own code, in the calls that people make: with padding, for a loss where the model has one, and several with
a cache where it generates or streams. This is done once per process and family.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from relattn.integrations.transformers.attention_weights import without_warnings
from relattn.integrations.transformers.forward_patch import ForwardPatch, load_class

TOLERANCE = 1e-4  # largest difference of the outputs, relative to the largest output
# settings that make many models small, and the convolutions of those that read sound
SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}
SMALL_CONVOLUTIONS = {
    "conv_dim": (8,), "conv_kernel": (3,), "conv_stride": (5,), "num_feat_extract_layers": 1,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Family:
    """The patches of one model, and how to make a small model for the check.

    Attributes:
        model: Class of the small model: a name in transformers, or a path below transformers.models.
        settings: Settings of its configuration that make it small.
        inputs: Returns the arguments of a call, a batch of two. `text_inputs` and `sound_inputs` make the usual ones.
        patches: Patches of the model's classes.
        since: The oldest version of transformers whose classes the patches fit.
        run: Calls the small model with these arguments, and returns its outputs. Default: one call.
        config: Class of the configuration, named as `model` is. Default: `config_class` of the model.
        unit: Path of a class whose parts exchange positions or masks, so that they are enabled together only. Default:
            each module is enabled on its own.
    """

    model: str
    settings: dict[str, Any]
    inputs: Callable[[], dict[str, Any]]
    patches: tuple[ForwardPatch, ...]
    since: str
    run: Callable[[nn.Module, dict[str, Any]], list[Any]] = lambda model, inputs: [model(**inputs)]
    config: str = ""
    unit: str = ""

    @property
    def name(self) -> str:
        """Name of the model, such as "Parakeet"."""
        return re.sub("(For[A-Z][a-zA-Z]*|Model|Encoder)+$", "", self.model.rpartition(".")[2])

    @property
    def takes_window(self) -> bool:
        """Whether all patches support a sliding window."""
        return all(patch.takes_window for patch in self.patches if patch.has_attention)

    def make(self, **settings: Any) -> nn.Module:
        """Return the small model in float32 and evaluation mode. No parameter is zero."""
        model_type = class_of(self.model)
        config_type = class_of(self.config) if self.config else model_type.config_class
        model: nn.Module = model_type(config_type(**self.settings | settings)).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        return model


def class_of(name: str) -> Any:
    """Return a class by its name in transformers, or by its path below transformers.models."""
    return load_class(name) if "." in name else getattr(transformers, name)


def too_old(since: str) -> str | None:
    """Return that a version of transformers is needed, or None if the installed one is that or later."""
    installed = transformers.__version__
    if TorchVersion(installed) >= since:  # compares any versions
        return None
    return f"transformers must be {since} or later, got {installed}"


def valid_rows(length: int) -> Tensor:
    """Return a mask whose last sequence ends after 60 % of the length: (2, length)."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[-1, length * 6 // 10 :] = 0
    return mask


def text_inputs(length: int = 67) -> dict[str, Tensor]:
    """Return tokens below 30 and their mask, each (2, length)."""
    return {"input_ids": torch.randint(1, 30, (2, length)), "attention_mask": valid_rows(length)}


def masked_text_inputs(length: int = 67) -> dict[str, Tensor]:
    """Return `text_inputs` and the labels of a masked language model."""
    inputs = text_inputs(length)
    return inputs | {"labels": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)}


def labels() -> dict[str, Tensor]:
    """Return the labels of a sequence model: five tokens below 30, (2, 5)."""
    return {"labels": torch.randint(1, 30, (2, 5))}


def sound_inputs(name: str, *shape: int) -> dict[str, Tensor]:
    """Return features, (2, *shape), as the argument `name`, and their mask, (2, frames)."""
    return {name: torch.randn(2, *shape, dtype=torch.float32), "attention_mask": valid_rows(shape[0])}


def generate(model: Any, inputs: dict[str, Any]) -> list[Any]:
    """Call a model for its loss, and let it generate four tokens, with a cache if it has one."""
    prompt = {name: x for name, x in inputs.items() if name != "labels"}
    return [model(**inputs), model.generate(**prompt, do_sample=False, min_new_tokens=4, max_new_tokens=4)]


def difference(family: Family, enabled: Callable[[nn.Module], AbstractContextManager[None]]) -> str | None:
    """Compare the outputs of the small model with and without the patches.

    A call for attention weights must be answered by the model's own code, or they would be missing.

    Args:
        family: The family to check.
        enabled: Returns a context manager in which the patches of a model are used.

    Returns:
        What differs, or None.
    """
    with _isolated(), without_warnings({load_class(patch.class_path).__module__ for patch in family.patches}):
        inputs = family.inputs()
        model = family.make()
        original = tensors_of(family, model, inputs)
        with enabled(model):
            patched = tensors_of(family, model, inputs)
        for ours, own in zip(patched, original, strict=True):
            if ours.shape != own.shape:
                return f"an output has the shape {tuple(ours.shape)} instead of {tuple(own.shape)}"
            largest = float(own.abs().max())
            max_difference = float((ours - own).abs().max())
            if not max_difference <= TOLERANCE * largest:  # also if it is NaN
                return f"outputs up to {largest:.1e} differ by {max_difference:.1e}"
        model = family.make(attn_implementation="eager")
        try:
            original_count = attention_weights(model, inputs)
        except TypeError:  # the model has no attention weights to return
            return None
        with enabled(model):
            patched_count = attention_weights(model, inputs)
        return None if patched_count == original_count else "attention weights are missing"


def attention_weights(model: nn.Module, inputs: dict[str, Any]) -> int:
    """Call a model for attention weights, and return the number of layers that return them."""
    output = model(**inputs, output_attentions=True)
    weights = (getattr(output, f"{part}attentions", None) or () for part in ("", "encoder_", "decoder_", "cross_"))
    return sum(weight is not None for layers in weights for weight in layers)


def tensors_of(family: Family, model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    """Run the small model, and return the tensors of its outputs: without the second half of the second sequence.

    It is padding for the most part, where outputs may differ.
    """
    torch.default_generator.manual_seed(2)  # some models have dropout in evaluation mode
    tensors = []
    for output in family.run(model, inputs):
        parts: Iterable[Any] = [output]
        if isinstance(output, dict):
            parts = output.values()
        elif not isinstance(output, Tensor):
            parts = output[:1]
        for x in parts:
            if isinstance(x, Tensor) and x.dim() > 1 and len(x) == 2:
                first, second = x.float()
                tensors.append(torch.cat([first.flatten(), second[: len(second) // 2].flatten()]))
            elif isinstance(x, Tensor):
                tensors.append(x.float())
    return tensors


@contextmanager
def _isolated() -> Iterator[None]:
    """Run on the CPU from fixed random numbers, and leave generators and defaults as they were.

    The default dtype stays as it is, because other threads read it, and may change it before this ends.

    Warnings and messages of the model's own code are not shown, since nobody called that model. One thread is enough
    for a small model, and several would wait for each other on a busy machine.
    """
    threads = torch.get_num_threads()
    verbosity = transformers.logging.get_verbosity()
    with (
        torch.random.fork_rng(devices=[]),
        torch.device("cpu"),
        torch.autocast("cpu", enabled=False),
        torch.inference_mode(False),
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(1)  # torch.manual_seed would also seed the generators of GPUs
        torch.set_num_threads(1)
        transformers.logging.set_verbosity(transformers.logging.CRITICAL)
        try:
            yield
        finally:
            transformers.logging.set_verbosity(verbosity)
            torch.set_num_threads(threads)
