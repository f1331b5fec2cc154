"""Read settings from YAML files: recipes, and the configuration of bundles.

Values are read as text and parsed as command-line flags. So a language called ``no`` stays text, and files and flags
have the same types, ranges and messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml

from relattn.translation.config import OPTION_NAMES, OPTIONS, Positions, Recipe, dump
from relattn.translation.config.presets import PRESETS
from relattn.translation.errors import InputError, one_line, reading, require, unknown

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

_C = TypeVar("_C")
_LARGEST_FILE = 1 << 20  # bytes of YAML
_MAX_DEPTH = 3  # levels of groups


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe from a file. Settings that are not in the file have their defaults.

    Raises:
        InputError: the file cannot be read, or a setting is unknown, has the wrong type or is out of range.
    """
    return to_config(Recipe, read_yaml(path, "a recipe"), path)


def recipe_flags(path: str, overriding: Sequence[str] = ()) -> list[str]:
    """Return the settings of a recipe as command-line flags such as ``--model.clip=8``.

    Args:
        path: a file, or the name of a known recipe if there is no such file.
        overriding: flags that will follow. If they choose another position scheme, options of the recipe that the
            scheme does not have are left out.

    Raises:
        InputError: the file cannot be read, or a setting is unknown.
    """
    if Path(path).exists():
        content = read_yaml(path, "a recipe")
    elif path in PRESETS:
        content = _names_and_values(dump(PRESETS[path]), path, "a recipe")
    elif Path(path).suffix or "/" in path:
        raise InputError(f"{path}: no such file")
    else:
        raise unknown("recipe", path, PRESETS)
    flags = _flags(content, Recipe, path)
    pairs = pairwise([word for flag in overriding for word in flag.split("=", 1)])
    schemes = [value for name, value in pairs if name == "--model.positions" and value in get_args(Positions)]
    if not schemes:
        return flags
    unused = {f"--model.{name}" for name in OPTION_NAMES if name not in OPTIONS.get(schemes[-1], {})}
    return [flag for flag in flags if flag.partition("=")[0] not in unused]


def read_yaml(path: str | Path, what: str) -> dict[str, Any]:
    """Read the names and values of a YAML file of at most 1 MiB. `what` describes the content in messages.

    A group of settings becomes a dictionary, any other value a `str`, or `Quoted` if it is in quotes. No setting is a
    list, so a list becomes an empty one.

    Raises:
        InputError: the file cannot be read, is not YAML, has a name twice, or is not a mapping.
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
        raise InputError(f"{path}: {what} must be a mapping of names to values, got {shown}")
    content: dict[str, Any] = _plain(root, path, depth=0)
    return content


class Quoted(str):
    """A value in quotes: always text."""


def _plain(node: yaml.Node, path: str | Path, depth: int) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return node.value if node.style is None else Quoted(node.value)
    content: dict[str, Any] = {}
    if isinstance(node, yaml.MappingNode) and depth < _MAX_DEPTH:
        for key, value in node.value:
            name = one_line(key.value, 40) if isinstance(key, yaml.ScalarNode) else "a list or a group"
            require(name not in content, f"{path}: {name} is given twice, again in line {key.start_mark.line + 1}")
            content[name] = _plain(value, path, depth + 1)
        return content
    return []


def setting_types(kind: type, prefix: str = "") -> dict[str, Any]:
    """Return the type of each setting of a config, by its name on the command line."""
    types: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        key = f"{prefix}{name}"
        types |= setting_types(hint, f"{key}.") if isinstance(hint, type) and is_dataclass(hint) else {key: hint}
    return types


def add_settings(parser: ArgumentParser, kind: type) -> None:
    """Add flags for all settings of a config.

    Options of a position scheme have no default here, because the scheme may be chosen by another flag.
    """
    parser.add_class_arguments(kind)
    if "model" in get_type_hints(kind):
        parser.set_defaults({f"model.{name}": None for name in OPTION_NAMES})


def to_config(kind: type[_C], content: Any, where: str | Path, *, whole: bool = False) -> _C:
    """Return a config made from names and values, which are parsed and checked as on the command line.

    Args:
        kind: the dataclass.
        content: names and values as `read_yaml` returns them.
        where: file to name in messages.
        whole: raise an error if a setting is missing, instead of using its default.
    """
    from jsonargparse import ArgumentError, ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    add_settings(parser, kind)
    flags = _flags(content, kind, where, whole=whole)
    try:
        return kind(**parser.instantiate(parser.parse_args(flags)).as_dict())
    except ArgumentError as error:
        raise InputError(type_message(error, setting_types(kind), f"{where}: {{}}".format)) from error
    except InputError as error:
        raise InputError(f"{where}: {one_line(error)}") from error


def type_message(error: Exception, types: dict[str, Any], label: Callable[[str], str]) -> str:
    """Return the message for a value of the wrong type, or that of the parser if it has another error.

    Args:
        error: error of the parser.
        types: type of each setting.
        label: returns what messages call a setting.
    """
    match = re.match(r'Parser key "([^"]+)"[^:]*:(?:.*(?:Got|Given) value: (.*))?', str(error), re.DOTALL)
    if not match or match[1] not in types:
        return one_line(error)
    message = f"{label(match[1])} must be {_describe(types[match[1]])}"
    return message if match[2] is None else f"{message}, got '{one_line(match[2], 40)}'"


def _describe(kind: Any) -> str:
    """Describe the values of a type."""
    choices = [choice for choice in get_args(kind) if choice is not type(None)]
    if get_origin(kind) is Literal:
        return f"one of {', '.join(choices)}"
    if choices:
        return " or ".join(map(_describe, choices))
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")


def _flags(
    content: dict[str, Any], kind: type, path: str | Path, prefix: str = "", *, whole: bool = False
) -> list[str]:
    types = get_type_hints(kind)
    flags = []
    for name, value in content.items():
        key = f"{prefix}{name}"
        if name not in types:
            what = f"setting of {prefix[:-1]}" if prefix else "setting"
            raise InputError(f"{path}: {unknown(what, name, types)}")
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
    """Return the text of a value on the command line. Text in quotes keeps them if the setting is no text."""
    if kind is str or get_origin(kind) is Literal:
        return value
    if isinstance(value, Quoted) and not any(value in get_args(choice) for choice in get_args(kind)):
        return json.dumps(value)
    return value or "null"  # "clip_right:" with nothing after it
