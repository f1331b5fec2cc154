"""Settings in files: a recipe, a run's recipe, a bundle's configuration, all read by one parser, the command line's.

Every value stays the text it is in the file and is handed on as a flag, so a language called ``no`` stays a language,
and one set of types, ranges and messages serves files and flags.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml

from relattn.translation.config import OPTION_NAMES, OPTIONS, Positions, Recipe, dump
from relattn.translation.errors import InputError, one_line, reading, require
from relattn.translation.presets import PRESETS

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

_C = TypeVar("_C")
_LARGEST_FILE = 1 << 20  # bytes of YAML
_DEEPEST = 3  # levels of it that are looked at


def read_recipe(path: str | Path) -> Recipe:
    """The recipe in a file; what the file leaves out is as by default.

    Raises:
        InputError: as `recipe_flags`, or a value is not of its type or out of its range.
    """
    return to_config(Recipe, read_yaml(path, "a recipe"), path)


def recipe_flags(path: str, overriding: Sequence[str] = ()) -> list[str]:
    """A recipe's settings as command-line flags (``--model.clip=8``), one parser for both.

    Args:
        path: of a file, or the name of a preset where there is no such file.
        overriding: flags that are to follow. Where they choose another position scheme, options that the recipe has for
            its own and that mean nothing for the other are left out.

    Raises:
        InputError: as `read_yaml`, or the file names a setting that a recipe does not have.
    """
    if path in PRESETS and not Path(path).exists():
        content = _names_and_values(dump(PRESETS[path]), path, "a recipe")
    else:
        content = read_yaml(path, "a recipe")
    flags = _flags(content, Recipe, path)
    pairs = pairwise([word for flag in overriding for word in flag.split("=", 1)])
    chosen = [value for name, value in pairs if name == "--model.positions" and value in get_args(Positions)]
    if not chosen:
        return flags
    vain = {f"--model.{name}" for name in OPTION_NAMES if name not in OPTIONS.get(chosen[-1], {})}
    return [flag for flag in flags if flag.partition("=")[0] not in vain]


def read_yaml(path: str | Path, what: str) -> dict[str, Any]:
    """Names and values of a YAML file, of at most 1 MiB; a group of settings is a dictionary, any other value a `str`.

    Every value stays the text it is in the file, so that a language called ``no`` is not read as a false; text in
    quotes is `Quoted`. A list, which no setting is, is an empty list. `what` is what messages call the content.

    Raises:
        InputError: the file cannot be read, is not YAML, gives a name twice, or holds no names and values.
    """
    with reading(path, "not YAML"):
        with open(path, "rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        require(len(content) <= _LARGEST_FILE, f"{path}: too large for settings: more than {_LARGEST_FILE:,} bytes")
        return _names_and_values(content.decode("utf-8"), path, what)


def _names_and_values(text: str, path: str | Path, what: str) -> dict[str, Any]:
    root = yaml.compose(text, Loader=yaml.BaseLoader)
    if root is None or root.value in ("", []):
        return {}
    if not isinstance(root, yaml.MappingNode):
        shown = f"'{one_line(root.value, 40)}'" if isinstance(root, yaml.ScalarNode) else "a list"
        raise InputError(f"{path}: {what} is a list of names and values, this is {shown}")
    content: dict[str, Any] = _plain(root, path, depth=0)
    return content


class Quoted(str):
    """A value in quotes: text, whatever it looks like."""


def _plain(node: yaml.Node, path: str | Path, depth: int) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return node.value if node.style is None else Quoted(node.value)
    content: dict[str, Any] = {}
    if isinstance(node, yaml.MappingNode) and depth < _DEEPEST:
        for key, value in node.value:
            name = one_line(key.value, 40) if isinstance(key, yaml.ScalarNode) else "a list or a group"
            require(name not in content, f"{path}: {name} is given twice, again in line {key.start_mark.line + 1}")
            content[name] = _plain(value, path, depth + 1)
        return content
    return []


def add_settings(parser: ArgumentParser, kind: type) -> None:
    """Flags for all settings of a config, each as by default where it is not given.

    Options of a scheme have no value then: a default model has those of its own scheme, and another may be chosen.
    """
    parser.add_class_arguments(kind)
    if "model" in get_type_hints(kind):
        parser.set_defaults({f"model.{name}": None for name in OPTION_NAMES})


def of_version_1(model: Any) -> Any:
    """A model's settings from when all options were written down, whether they meant anything for its scheme or not."""
    if not isinstance(model, dict):
        return model
    means = OPTIONS.get(str(model.get("positions")), {})
    kept = {name: value for name, value in model.items() if name not in OPTION_NAMES or name in means}
    return {**dict.fromkeys(OPTION_NAMES, "null"), **kept}


def of_version_2(model: Any) -> Any:
    """A model's settings from when all models had one activation and shared their embeddings."""
    then = {
        "activation": "relu",
        "shared_embeddings": "all",
        "scaled_embeddings": "true",
        "output_bias": "false",
        "norm_epsilon": "1e-5",
    }
    return {**then, **model} if isinstance(model, dict) else model


def of_version_4(search: Any, early_stopping: str = "false") -> Any:
    """How to search, from when that was not said: our own search never stopped early, that of an export always."""
    return {"early_stopping": early_stopping, **search} if isinstance(search, dict) else search


def to_config(kind: type[_C], content: Any, where: str | Path, *, whole: bool = False) -> _C:
    """A config from what `read_yaml` gave for it, every value read and checked as on the command line.

    Args:
        kind: the dataclass.
        content: names and values.
        where: what messages begin with.
        whole: whether a setting that is not given is a mistake; otherwise it is as by default.
    """
    from jsonargparse import ArgumentError, ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    add_settings(parser, kind)
    flags = _flags(content, kind, where, whole=whole)
    try:
        return kind(**parser.instantiate(parser.parse_args(flags)).as_dict())
    except (ArgumentError, InputError) as error:
        raise InputError(f"{where}: {one_line(error)}") from error


def _flags(
    content: dict[str, Any], kind: type, path: str | Path, prefix: str = "", *, whole: bool = False
) -> list[str]:
    types = get_type_hints(kind)
    flags = []
    for name, value in content.items():
        key = f"{prefix}{name}"
        if name not in types:
            close = difflib.get_close_matches(name, types, n=1)
            raise InputError(f"{path}: unknown setting {key}" + (f"; is {prefix}{close[0]} meant?" if close else ""))
        if is_dataclass(types[name]):
            require(isinstance(value, dict), f"{path}: {key} must be a group of settings")
            flags += _flags(value, types[name], path, f"{key}.", whole=whole)
        else:
            require(isinstance(value, str), f"{path}: {key} must be one value")
            flags.append(f"--{key}={_as_flag(value, types[name])}")
    missing = [f"{prefix}{name}" for name in types if name not in content] if whole else []
    require(not missing, f"{path}: missing: {', '.join(missing)}")
    return flags


def _as_flag(value: str, kind: Any) -> str:
    """The text of a value on the command line; what is not text stays in its quotes there, and so is refused."""
    if kind is str or get_origin(kind) is Literal:
        return value
    if isinstance(value, Quoted) and not any(value in get_args(choice) for choice in get_args(kind)):
        return json.dumps(value)
    return value or "null"  # "clip_right:" with nothing after it
