"""What is public: each name is documented, argument by argument, and stands in the reference."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import subprocess
import sys
import textwrap
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
# Where a docstring leaves arguments to another's, it says whose.
ELSEWHERE = re.compile(r"those of `|[Aa]s in `|[Ss]ee `|as `")


def members() -> Iterator[tuple[str, object]]:
    """Every public name that can be called or read, and what is public of a class."""
    for name, public in NAMES.items():
        if not callable(public):
            continue
        yield name, public
        for member, value in vars(public).items() if inspect.isclass(public) else ():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod)):
                yield f"{name}.{member}", value.fget if isinstance(value, property) else getattr(public, member)


EVERY = dict(members())


@pytest.mark.parametrize("name", EVERY)
def test_a_public_name_is_documented(name):
    text = inspect.getdoc(EVERY[name]) or ""
    assert text, name
    arguments = [n for n in inspect.signature(EVERY[name]).parameters if n not in ("self", "args", "kwargs", "options")]
    if not ELSEWHERE.search(text):
        assert [argument for argument in arguments if not re.search(rf"\b{argument}\b", text)] == []


def shaped(text: str, argument: str) -> bool:
    """Whether a docstring has a shape, such as (batch, n) or (labels,), in what it says of an argument."""
    return any(re.match(r".{,120}\([^()]*,[^()]*\)", said) for said in re.split(rf"\b{argument}\b", text)[1:])


@pytest.mark.parametrize("name", EVERY)
def test_its_tensors_have_shapes(name):
    text = " ".join((inspect.getdoc(EVERY[name]) or "").split())
    given = inspect.signature(EVERY[name]).parameters.items()
    tensors = [argument for argument, kind in given if "Tensor" in str(kind.annotation)]
    if not ELSEWHERE.search(text):
        assert [argument for argument in tensors if not shaped(text, argument)] == []


@pytest.mark.parametrize("name", EVERY)
def test_what_it_raises_is_said(name):
    public = EVERY[name]
    try:
        source = inspect.getsource(public.__init__ if inspect.isclass(public) else public)
    except OSError:  # a data class's own
        return
    raises = any(isinstance(node, ast.Raise) for node in ast.walk(ast.parse(textwrap.dedent(source))))
    assert not raises or re.search(r"^Raises:|raised", inspect.getdoc(public) or "", re.MULTILINE)


def test_the_reference_has_every_public_name():
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    named = set(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE))
    modules = {"relattn.integrations.transformers"}  # which are there whole
    assert {name for name in NAMES if name not in named and name.rpartition(".")[0] not in modules & named} == set()


@pytest.mark.whole
def test_a_typed_program_is_right_about_the_types():
    """mypy, strict, of the program alone: what it says of our own files is for `make check`."""
    program = Path(__file__).with_name("typed_program.py")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1] / "src")
    assert (done.stdout, done.returncode) == ("Success: no issues found in 1 source file\n", 0)


def test_the_typed_program_runs():
    names = runpy.run_path(str(Path(__file__).with_name("typed_program.py")))
    out, lse = names["attend"](torch.randn(2, 3, 5, 8))
    assert (out.shape, lse.shape) == ((2, 3, 5, 8), (2, 3, 5))
    y, length = names["decode"](torch.randn(2, 5, 8))
    assert (y.shape, length) == ((2, 5, 8), 5)
    assert names["translate"]("nowhere", ["a"])[0].startswith("nowhere: ")
    assert names["wider"](Recipe()).clip == 17
