"""Tests of the public names: each is documented with its arguments, and typed."""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import relattn
import relattn.translation
from relattn.integrations import transformers
from relattn.translation.config import Recipe
from relattn.translation.translate.torch_translator import TorchTranslator

DOCS = Path(__file__).parents[1] / "docs"
NAMES = {
    **{f"relattn.{name}": getattr(relattn, name) for name in relattn.__all__},
    **{f"relattn.integrations.transformers.{name}": getattr(transformers, name) for name in transformers.__all__},
    "relattn.translation.load": relattn.translation.load,
    "relattn.translation.translate.torch_translator.TorchTranslator": TorchTranslator,
}
REFERENCE = re.compile(r"those of `|[Aa]s in `|[Ss]ee `|as `")  # to the docstring that describes the arguments


def members() -> Iterator[tuple[str, object]]:
    """Yield every public function, class and method."""
    for name, public in NAMES.items():
        yield from [(name, public)] if callable(public) else []
        for member, value in vars(public).items() if inspect.isclass(public) else ():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod)):
                yield f"{name}.{member}", value.fget if isinstance(value, property) else getattr(public, member)


@pytest.mark.parametrize("name", dict(members()))
def test_arguments_are_documented_and_tensors_have_shapes(name):
    """A shape, such as (batch, n) or (labels,), stands after the name of the argument."""
    public = dict(members())[name]
    text = " ".join((inspect.getdoc(public) or "").split())
    assert text
    for argument, parameter in inspect.signature(public).parameters.items():
        if REFERENCE.search(text) or argument in ("self", "args", "kwargs", "options"):
            continue
        described = re.split(rf"\b{argument}\b", text)[1:]
        assert described, argument
        has_shape = any(re.match(r".{,120}\([^()]*,[^()]*\)", part) for part in described)
        assert has_shape or "Tensor" not in str(parameter.annotation), argument


def test_the_reference_has_every_public_name():
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    listed = set(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE))
    assert {name for name in NAMES if not {name, name.rpartition(".")[0]} & listed} == set()


def test_the_typed_program_runs():
    """tests/system/test_wheels.py checks its types."""
    names = runpy.run_path(str(Path(__file__).with_name("typed_program.py")))
    out, lse = names["attend"](torch.randn(2, 3, 5, 8))
    assert (out.shape, lse.shape) == ((2, 3, 5, 8), (2, 3, 5))
    y, length = names["decode"](torch.randn(2, 5, 8))
    assert (y.shape, length) == ((2, 5, 8), 5)
    assert names["translate"]("nowhere", ["a"])[0].startswith("nowhere: ")
    assert names["wider"](Recipe()).clip == 17
