"""Read settings from YAML files: recipes, and the configuration of bundles and exports.

Values are read as text and parsed as command-line flags. So a language called ``no`` stays text, and files and flags
have the same types, ranges and messages. Numbers must be decimal: YAML 1.1 reads ``0x10`` as 16, ``010`` as 8 and
``1:30`` as 90.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml

from relattn_mt.config.base import setting_types
from relattn_mt.config.data import AugmentConfig
from relattn_mt.config.positions import OPTION_NAMES, SCHEMES
from relattn_mt.config.recipe import Recipe, StageConfig
from relattn_mt.support.errors import InputError, one_line, reading, require, unknown
from relattn_mt.support.files import require_regular

_C = TypeVar("_C")
Settings = dict[str, str | None]  # text of each setting by its full name, such as "model.clip"; None for a list
_MAX_BYTES = 1 << 20  # per file
_NUMBER = re.compile(r"""(?<![^\s\[{:",])[-+.]?\d[^\s\]}",]*""")  # in any notation, also in a list
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
        root = yaml.compose(content.decode(), Loader=yaml.BaseLoader)
        return {} if root is None or not root.value else _settings(root, path, ("stages", "pairs"))


def _settings(root: yaml.Node, path: str | Path, listed: tuple[str, ...]) -> Settings:
    """Return the settings of a mapping. Those named in `listed` may be lists, which become JSON.

    Stages are checked here, because only here the number of a stage is known for messages.
    """
    settings: Settings = {}
    require(isinstance(root, yaml.MappingNode), f"{path}: must be a mapping of names to values")
    for name, node in _leaves(root):
        require(name not in settings, f"{path}: {name} is given twice, again in line {node.start_mark.line + 1}")
        settings[name] = None
        if isinstance(node, yaml.ScalarNode):
            settings[name] = Quoted(node.value) if node.style else node.value
        elif isinstance(node, yaml.SequenceNode) and name == "stages" in listed:
            items = [(f"{path}: stage {number}", each) for number, each in enumerate(node.value, start=1)]
            stages = [to_config(StageConfig, _settings(each, where, ("weights",)), where) for where, each in items]
            settings[name] = json.dumps(list(map(asdict, stages)))
        elif (
            isinstance(node, yaml.SequenceNode)
            and name.rpartition(".")[2] in listed
            and all(map(_is_scalar, node.value))
        ):
            settings[name] = json.dumps([each.value for each in node.value])
    return settings


def _is_scalar(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode)


def _leaves(group: yaml.Node, prefix: str = "") -> Iterator[tuple[str, yaml.Node]]:
    """Yield the full name and the value of each setting in a group."""
    for key, value in group.value:
        name = prefix + (one_line(key.value, 40) if isinstance(key, yaml.ScalarNode) else "a list or a group")
        if isinstance(value, yaml.MappingNode) and value.value and prefix.count(".") < _MAX_DEPTH:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def recipe_flags(path: str, overriding: Sequence[str] = ()) -> list[str]:
    """Return the settings of a recipe as command-line flags such as ``--model.clip=8``.

    Args:
        path: YAML file.
        overriding: Flags that will follow. Options that their position scheme does not have are left out.
    """
    settings = read_yaml(path)
    require(bool(settings), f"{path}: must have settings, got an empty file")
    words = [word for flag in overriding for word in flag.split("=", 1)]
    schemes = [value for name, value in pairwise(words) if name == "--model.positions"]
    if schemes and schemes[-1] in SCHEMES:
        unused = {f"model.{name}" for name in OPTION_NAMES if name not in SCHEMES[schemes[-1]].options}
        settings = {name: value for name, value in settings.items() if name not in unused}
    types = setting_types(Recipe)
    return [f"--{name}={_flag_value(value, types[name])}" for name, value in _checked(settings, types, path).items()]


def to_config(kind: type[_C], settings: Settings, path: str | Path, *, complete: bool = False) -> _C:
    """Return a configuration made from settings, which are checked as on the command line.

    Args:
        kind: Dataclass of the configuration.
        settings: Settings as `read_yaml` returns them.
        path: File to name in messages.
        complete: Raise an error if a setting is missing, instead of using its default.
    """
    require(bool(settings) or kind is not Recipe, f"{path}: must have settings, got an empty file")
    types = setting_types(kind)
    checked = _checked(settings, types, path)
    missing = [name for name in types if name not in settings]
    require(not (complete and missing), f"{path}: missing: {', '.join(missing)}")
    values = {}
    for name, value in checked.items():
        try:
            values[name] = _parsed(value, types[name])
        except ValueError as error:
            message = f"{path}: {name} must be {_describe(types[name])}, got '{one_line(value, 40)}'"
            raise InputError(message) from error
    try:
        return _instance(kind, values)
    except InputError as error:
        raise InputError(f"{path}: {one_line(error)}") from error


def _instance(kind: type[_C], values: dict[str, Any], prefix: str = "") -> _C:
    """Return a configuration with values by full name, in groups with `prefix`."""
    arguments = {}
    for name, hint in get_type_hints(kind).items():
        if isinstance(hint, type) and is_dataclass(hint):
            arguments[name] = _instance(hint, values, f"{prefix}{name}.")
        elif f"{prefix}{name}" in values:
            arguments[name] = values[f"{prefix}{name}"]
    return kind(**arguments)


def _parsed(value: str, kind: Any) -> Any:
    """Return the value of a type that a text has. Text in quotes is text only. Raises ValueError if it has none."""
    choices = get_args(kind)
    if kind is str or (get_origin(kind) is Literal and value in choices):
        return str(value)
    if get_origin(kind) in (list, tuple):
        items = json.loads(value)
        if not isinstance(items, list):
            raise ValueError
        parse = _stage if choices[0] is StageConfig else lambda item: _parsed(str(item), choices[0])
        return get_origin(kind)(map(parse, items))
    if get_origin(kind) in (Union, UnionType):
        for choice in sorted(choices, key=lambda each: each is str):  # text last
            with suppress(ValueError):
                return _parsed(value, choice)
    elif not isinstance(value, Quoted):
        if kind in (int, float):
            return kind(value)
        if kind is bool and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if kind is NoneType and value in ("", "null", "~"):
            return None
    raise ValueError


def _stage(stage: dict[str, Any]) -> StageConfig:
    """Return a stage of its JSON."""
    weights = None if stage["weights"] is None else tuple(stage["weights"])
    return StageConfig(steps=stage["steps"], weights=weights, augment=AugmentConfig(**stage["augment"]))


def _checked(settings: Settings, types: dict[str, Any], path: str | Path) -> dict[str, str]:
    """Return the settings, which exist and have one value each, in decimal notation if it is a number."""
    for name, value in settings.items():
        is_group = any(setting.startswith(f"{name}.") for setting in types)
        require(not is_group, f"{path}: {name} must be a group with settings")
        if name not in types:
            raise InputError(f"{path}: {unknown('setting', name, types)}")
        if value is None:
            raise InputError(f"{path}: {name} must be one value")
        require_decimal(f"{path}: {name}", value, types[name])
    return cast("dict[str, str]", settings)


def _flag_value(value: str, kind: Any) -> str:
    """Return the text of a value on the command line. Text in quotes keeps them if the setting is not text."""
    if kind is str or get_origin(kind) is Literal:
        return value
    if isinstance(value, Quoted) and not any(value in get_args(choice) for choice in get_args(kind)):
        return json.dumps(value)
    return value or "null"  # "clip_right:" with nothing after it


def require_decimal(label: str, value: str, kind: Any) -> None:
    """Raise an InputError if a number, or one in a list, is not decimal.

    Args:
        label: Name of the setting in messages.
        value: Text of the value.
        kind: Type of the setting.
    """
    if _is_number(kind) and not all(map(_DECIMAL.fullmatch, _NUMBER.findall(value))):
        raise InputError(f"{label} must be {_describe(kind)} in decimal notation, got '{one_line(value, 40)}'")


def _is_number(kind: Any) -> bool:
    """Return whether the values of a type are numbers or lists of numbers, or may be."""
    return kind in (int, float, StageConfig) or any(map(_is_number, get_args(kind)))


def add_settings(parser: Any, kind: type) -> None:
    """Add flags for all settings of a configuration. Options of position schemes get defaults from `ModelConfig`."""
    parser.add_class_arguments(kind)
    parser.set_defaults({name: None for name in setting_types(kind) if name.removeprefix("model.") in OPTION_NAMES})


def type_message(error: Exception, types: dict[str, Any], label: Callable[[str], str]) -> str:
    """Return the message for a value of the wrong type; `label` returns the name of a setting. Other errors stay."""
    match = re.match(r'Parser key "([^"]+)"[^:]*:(?:.*(?:Got|Given) value: (.*))?', str(error), re.DOTALL)
    if not match or match[1] not in types:
        return one_line(error)
    message = f"{label(match[1])} must be {_describe(types[match[1]])}"
    return message if match[2] is None else f"{message}, got '{one_line(match[2], 40)}'"


def _describe(kind: Any) -> str:
    """Describe the values of a type."""
    choices = [choice for choice in get_args(kind) if choice is not type(None)]
    if get_origin(kind) is Literal:
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if get_origin(kind) is tuple:
        return f"a list, each of {_describe(get_args(kind)[0])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", StageConfig: "the settings of a stage"}
    return " or ".join(map(_describe, choices)) or names.get(kind, "text")
