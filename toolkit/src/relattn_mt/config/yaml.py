"""Read settings from YAML files: recipes, and the configuration of bundles and exports.

Values are read as text, like those of command-line flags. So a language called ``no`` stays text, and files and flags
have the same types, ranges and messages. Numbers must be decimal: YAML 1.1 reads ``0x10`` as 16, ``010`` as 8 and
``1:30`` as 90.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import yaml

from relattn_mt.config.base import arguments_from, setting_types
from relattn_mt.support.errors import InputError, one_line, reading, require, unknown
from relattn_mt.support.files import require_regular

_C = TypeVar("_C")
# Value of each setting by its full name, such as "model.clip": text, a list of text, or the stages of a recipe. None
# stands for any other list.
Settings = dict[str, Any]
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # with libyaml if PyYAML has it, which is faster
_MAX_BYTES = 1 << 20  # per file
_BEGINS_AS_NUMBER = re.compile(r"[-+.]?\d")  # in any notation
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*|(?=\.))(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_MAX_DEPTH = 2  # levels of groups, because an alias can contain itself


class Quoted(str):
    """Text in quotes. It is never a number, true, false or null."""


def read_yaml(path: str | Path) -> Settings:
    """Read the settings in a YAML file of at most 1 MiB. Raise an InputError if it is not a mapping of names."""
    require_regular(path)
    with reading(path, "not YAML"), open(path, "rb") as file:
        content = file.read(_MAX_BYTES + 1)
        require(len(content) <= _MAX_BYTES, f"{path}: must have at most {_MAX_BYTES:,} bytes")
        return parse_yaml(content.decode(), path)


def parse_yaml(text: str, path: str | Path) -> Settings:
    """Return the settings in a text of YAML. `path` is for messages."""
    root = yaml.compose(text, Loader=_LOADER)
    if root is None or not root.value:
        raise InputError(f"{path}: must have settings, got an empty file")
    return _settings(root, path)


def _settings(root: yaml.Node, path: str | Path, *, in_stage: bool = False) -> Settings:
    """Return the settings of a mapping.

    Stages are checked here, because only here the number of a stage is known for messages.
    """
    settings: Settings = {}
    require(isinstance(root, yaml.MappingNode), f"{path}: must be a mapping of names to values")
    for name, node in _leaves(root):
        require(name not in settings, f"{path}: {name} is given twice, again in line {node.start_mark.line + 1}")
        settings[name] = None
        if isinstance(node, yaml.ScalarNode):
            settings[name] = Quoted(node.value) if node.style else node.value
        elif isinstance(node, yaml.SequenceNode) and name == "stages" and not in_stage:
            from relattn_mt.config.recipe import StageConfig

            items = [(f"{path}: stage {number}", each) for number, each in enumerate(node.value, start=1)]
            settings[name] = [to_config(StageConfig, _settings(each, at, in_stage=True), at) for at, each in items]
        elif isinstance(node, yaml.SequenceNode) and all(isinstance(each, yaml.ScalarNode) for each in node.value):
            settings[name] = [each.value for each in node.value]
    return settings


def _leaves(group: yaml.Node, prefix: str = "") -> Iterator[tuple[str, yaml.Node]]:
    """Yield the full name and the value of each setting in a group."""
    for key, value in group.value:
        name = prefix + (one_line(key.value, 40) if isinstance(key, yaml.ScalarNode) else "a list or a group")
        if isinstance(value, yaml.MappingNode) and value.value and prefix.count(".") < _MAX_DEPTH:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def to_config(kind: type[_C], settings: Settings, path: str | Path, *, complete: bool = False) -> _C:
    """Return a configuration made from settings, which are checked as on the command line.

    Args:
        kind: Dataclass of the configuration.
        settings: Settings as `read_yaml` returns them.
        path: File to name in messages.
        complete: Raise an error if a setting is missing, instead of using its default.
    """
    types = setting_types(kind)
    values = values_of(settings, types, path)
    missing = [name for name in types if name not in settings]
    require(not (complete and missing), f"{path}: missing: {', '.join(missing)}")
    try:
        return kind(**arguments_from(kind, values))
    except InputError as error:
        raise InputError(f"{path}: {one_line(error)}") from error


def values_of(settings: Settings, types: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """Return the values of settings in their types. Raise an InputError that names `path` if one is wrong."""
    groups = {setting.rpartition(".")[0] for setting in types}
    for name in settings:
        require(name not in groups, f"{path}: {name} must be a group with settings")
        if name not in types:
            raise InputError(f"{path}: {unknown('setting', name, types)}")
    return {name: value_of(f"{path}: {name}", value, types[name]) for name, value in settings.items()}


def value_of(label: str, value: Any, kind: Any) -> Any:
    """Return the value of a type that a text or a list has. Raise an InputError that begins with `label` if none."""
    try:
        return _parsed(value, kind)
    except ValueError as error:
        items = value if isinstance(value, list) else [value]
        is_number = any(isinstance(each, str) and _BEGINS_AS_NUMBER.match(each) for each in items)
        wanted = _describe(kind, " in decimal notation" if is_number else "")
        shown = one_line(", ".join(map(str, items)), 40)
        shown = f"'{shown}'" if isinstance(value, str) else f"[{shown}]" if value else "another list"
        got = shown + " in quotes" * isinstance(value, Quoted)
        raise InputError(f"{label} must be {wanted}, got {got}") from error


def _parsed(value: Any, kind: Any) -> Any:
    """Return the value of a type that a text or a list has. Raise ValueError if it has none."""
    choices = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        for choice in sorted(choices, key=lambda each: each is str):  # text last
            with suppress(ValueError):
                return _parsed(value, choice)
    elif isinstance(value, list) and get_origin(kind) in (list, tuple):
        return get_origin(kind)(_parsed(each, choices[0]) for each in value)
    elif is_dataclass(kind) and type(value) is kind:  # a stage
        return value
    elif isinstance(value, str):
        if kind is str or (get_origin(kind) is Literal and value in choices):
            return str(value)
        if kind in (int, float) and (_DECIMAL.fullmatch(value) or not _BEGINS_AS_NUMBER.match(value)):
            return kind("" if isinstance(value, Quoted) else value)
        if kind is bool and value.lower() in ("true", "false") and not isinstance(value, Quoted):
            return value.lower() == "true"
        if kind is NoneType and value in ("", "null", "~") and not isinstance(value, Quoted):
            return None
    raise ValueError


def _describe(kind: Any, notation: str) -> str:
    """Describe the values of a type. `notation` follows a number."""
    choices = [choice for choice in get_args(kind) if choice is not NoneType]
    if get_origin(kind) is Literal:
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if get_origin(kind) in (list, tuple):
        return f"a list, each of {_describe(choices[0], notation)}"
    names = {int: f"a whole number{notation}", float: f"a number{notation}", bool: "true or false"}
    if is_dataclass(kind):
        return "the settings of a stage"
    return " or ".join(_describe(each, notation) for each in choices) or names.get(kind, "text")
