"""Read settings from files: recipes in YAML, and the configuration of bundles and exports in JSON.

Values are read as text, like those of command-line flags. So a language called ``no`` stays text, and files and flags
have the same types, ranges and messages. Numbers must be decimal: YAML 1.1 reads ``0x10`` as 16, ``010`` as 8 and
``1:30`` as 90.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from relattn_mt.config.base import Settings, Types, arguments_from, setting_types
from relattn_mt.support.errors import InputError, naming, one_line, reading, require, unknown
from relattn_mt.support.files import require_regular
from relattn_mt.support.types import AnyPath, Fields

_C = TypeVar("_C")
_MAX_BYTES = 1 << 20  # per file
_BEGINS_AS_NUMBER = re.compile(r"[-+.]?\d")  # in any notation
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*|(?=\.))(\.[0-9]*)?([eE][-+]?[0-9]+)?")


class Quoted(str):
    """Text in quotes. It is never a number, true, false or null."""


class Unquoted(str):
    """A number, true, false or null in JSON, or null in YAML. It is never text."""


def read_text(path: AnyPath, fault: str) -> str:
    """Return the text of a regular file of at most 1 MiB. Raise an InputError with `fault` if it cannot be read."""
    require_regular(path)
    with reading(path, fault), open(path, "rb") as file:
        content = file.read(_MAX_BYTES + 1)
        require(len(content) <= _MAX_BYTES, f"{path}: must have at most {_MAX_BYTES:,} bytes")
        return content.decode()


def read_json_settings(path: AnyPath) -> Settings:
    """Read the settings in a JSON file of at most 1 MiB. Raise an InputError if it is not an object of settings."""
    text = read_text(path, "not JSON")
    with reading(path, "not JSON"):
        root = json.loads(
            text, parse_int=Unquoted, parse_float=Unquoted, parse_constant=Unquoted, object_pairs_hook=_unique
        )
        require(isinstance(root, dict), f"{path}: must be a JSON object")
        return _unique(_leaves(root, ""))


def _unique(pairs: Iterable[tuple[str, Any]]) -> Fields:
    """Return a dictionary of pairs whose names are all different. Raise ValueError if they are not."""
    values = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{one_line(name, 40)} is given twice")
        values[name] = value
    return values


def _leaves(group: Fields, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the full name and the value of each setting in an object of JSON."""
    for key, value in group.items():
        name = prefix + one_line(key, 40)
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, list):
            items = [_text(item) for item in value]
            yield name, None if None in items else items
        else:
            yield name, _text(value)


def _text(value: Any) -> str | None:
    """Return the text of a value in JSON, or None for a list or an object."""
    if isinstance(value, str):
        value.encode()  # raises ValueError for half of a surrogate pair, which cannot be printed
        return value if isinstance(value, Unquoted) else Quoted(value)
    return None if isinstance(value, (list, dict)) else Unquoted(json.dumps(value))


def to_config(kind: type[_C], settings: Settings, path: AnyPath, *, complete: bool = False) -> _C:
    """Return a configuration made from settings, which are checked as on the command line.

    Args:
        kind: Dataclass of the configuration.
        settings: Settings of a file, as this module or `yaml.py` reads them.
        path: File to name in messages.
        complete: Raise an error if a setting is missing, instead of using its default.
    """
    types = setting_types(kind)
    values = values_of(settings, types, path)
    missing = [name for name in types if name not in settings]
    require(not (complete and missing), f"{path}: missing: {', '.join(missing)}")
    with naming(path):
        return kind(**arguments_from(kind, values))


def values_of(settings: Settings, types: Types, path: AnyPath) -> Settings:
    """Return the values of settings in their types. Raise an InputError that names `path` if one is wrong."""
    groups = {setting.rpartition(".")[0] for setting in types if "." in setting}
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
        if isinstance(value, str):
            shown = shown if isinstance(value, Unquoted) else f"'{shown}'"
        else:
            shown = f"[{shown}]" if value else "another list"
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
        is_name = get_origin(kind) is Literal and value in choices
        if (kind is str or is_name) and not isinstance(value, Unquoted):
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
