"""Base class of all configurations, which checks their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from inspect import Parameter, cleandoc, getdoc, signature
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from relattn_mt.support.errors import InputError, one_line, require
from relattn_mt.support.types import Fields

# Surrogates stand for the bytes of a path that is not UTF-8. PyYAML writes U+0085 (next line) so that it reads a space.
_NOT_TEXT = re.compile("[\0\x85\ud800-\udfff]")


# Value of each setting by its full name, such as "model.clip". As read from a file: text, a list of text, or the stages
# of a recipe. None stands for any other list.
Settings = dict[str, Any]
Owner = Callable[..., Any]  # a configuration, or the function of a command
Types = dict[str, Any]  # type of each setting by its full name


def number(default: float | None, interval: str) -> Any:
    """Declare a setting whose value must be in an interval such as "[0, 1)", or null."""
    return field(default=default, metadata={"interval": interval})


def _contains(interval: str, value: float) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    is_open_end = (value == low and interval[0] == "(") or (value == high and interval[-1] == ")")
    return low <= value <= high and not is_open_end


@dataclass(frozen=True, kw_only=True)
class Config:
    """Base class of all configurations. It checks numbers, choices, and that text can be stored as UTF-8."""

    def __post_init__(self) -> None:
        owner: Any = type(self)
        arguments = arguments_of(owner)
        for setting in fields(self):
            name = setting.name
            value = getattr(self, setting.name)
            kind = arguments[name].kind if setting.init else Any
            interval = setting.metadata.get("interval")
            if interval and value is not None:
                require(_contains(interval, value), f"{name} must be in {interval}, got {one_line(value, 40)}")
            if isinstance(value, str):
                valid = not _NOT_TEXT.search(value)
                require(valid, f"{name} must be UTF-8 without NUL and U+0085, got {one_line(ascii(value), 100)}")
            literals = [each for each in (kind, *get_args(kind)) if get_origin(each) is Literal]
            if literals and (isinstance(value, str) or kind in literals):
                choices = [choice for each in literals for choice in get_args(each)]
                require(value in choices, f"{name} must be one of {', '.join(choices)}, got {one_line(value, 40)!r}")


class Argument(NamedTuple):
    """An argument of a command, or a setting of a configuration.

    Attributes:
        owner: The function of the command, or the configuration.
        name: Its name.
        kind: Its type, a configuration for a group of settings.
        default: Its default, `Parameter.empty` if it is required.
        positional: Whether it is given without a name.
    """

    owner: Owner
    name: str
    kind: Any
    default: Any
    positional: bool

    @property
    def required(self) -> bool:
        return self.default is Parameter.empty

    @property
    def is_group(self) -> bool:
        return isinstance(self.kind, type) and is_dataclass(self.kind)

    @property
    def help(self) -> str:
        """Its meaning by the docstring of its owner."""
        return documentation(self.owner)[1].get(self.name, "")

    def prefix(self, outer: str) -> str:
        """Return the prefix of the names of the settings in a group. A required group adds nothing to `outer`."""
        return outer if self.required else f"{outer}{self.name}."


@cache
def arguments_of(owner: Owner) -> dict[str, Argument]:
    """Return the arguments of a command, or the settings of a configuration, by name."""
    hints = get_type_hints(owner)
    arguments = {}
    for name, parameter in signature(owner).parameters.items():
        positional = parameter.kind is not parameter.KEYWORD_ONLY
        arguments[name] = Argument(owner, name, hints[name], parameter.default, positional)
    return arguments


def documentation(obj: Any) -> tuple[str, dict[str, str]]:
    """Return the description of a function or class, and the meaning of each argument, its own or inherited."""
    helps: dict[str, str] = {}
    for base in reversed(getattr(obj, "__mro__", [obj])):
        _, _, text = cleandoc(getattr(base, "__doc__", None) or "").partition("\n\nArgs:\n")
        matches = re.finditer(r"    (\w+): (.*(?:\n {8}.*)*)", text)
        helps |= {match[1]: " ".join(match[2].split()) for match in matches}
    return (getdoc(obj) or "").partition("\n\nArgs:\n")[0], helps


def setting_types(owner: Owner, prefix: str = "") -> Types:
    """Return the type of each setting of a configuration, or of each argument of a command, by its full name.

    Where an argument is a configuration, its settings count instead. If it has a default, their names begin with its
    own, as in "model.clip"; if it is required, they do not.
    """
    types: Types = {}
    for name, argument in arguments_of(owner).items():
        if argument.is_group:
            types |= setting_types(argument.kind, argument.prefix(prefix))
        else:
            types[f"{prefix}{name}"] = argument.kind
    return types


def arguments_from(owner: Owner, values: Settings, prefix: str = "") -> Fields:
    """Return the arguments to make a configuration or to call a command with, for settings by full name."""
    arguments = {}
    for name, argument in arguments_of(owner).items():
        if argument.is_group:
            inner = argument.prefix(prefix)
            own = arguments_from(argument.kind, values, inner)
            try:
                arguments[name] = argument.kind(**own)
            except InputError as error:
                raise InputError(f"{inner}{error}") from error
        elif f"{prefix}{name}" in values:
            arguments[name] = values[f"{prefix}{name}"]
    return arguments


def differences(old: dict, new: dict, prefix: str = "") -> list[str]:
    """Return a line "name: old → new" for every setting that differs between two configurations as dictionaries."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        a = old.get(name)
        b = new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += differences(a, b, f"{prefix}{name}.")
        elif a != b:
            lines.append(f"{prefix}{name}: {a} → {b}")
    return lines
