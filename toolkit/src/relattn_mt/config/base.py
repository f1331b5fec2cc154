"""Base class of all configurations, which checks their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from inspect import signature
from typing import Any, get_type_hints

from relattn_mt.support.errors import InputError, one_line, require

# Surrogates stand for the bytes of a path that is not UTF-8. PyYAML writes U+0085 (next line) so that it reads a space.
_NOT_TEXT = re.compile("[\0\x85\ud800-\udfff]")


def number(default: float | None, interval: str) -> Any:
    """Declare a setting whose value must be in an interval such as "[0, 1)", or null."""
    return field(default=default, metadata={"interval": interval})


def _contains(interval: str, value: float) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    is_open_end = (value == low and interval[0] == "(") or (value == high and interval[-1] == ")")
    return low <= value <= high and not is_open_end


@dataclass(frozen=True, kw_only=True)
class Config:
    """Base class of all configurations. It checks the intervals of numbers, and that text can be stored as UTF-8."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            name = setting.name
            value = getattr(self, setting.name)
            interval = setting.metadata.get("interval")
            if interval and value is not None:
                require(_contains(interval, value), f"{name} must be in {interval}, got {one_line(value, 40)}")
            if isinstance(value, str):
                valid = not _NOT_TEXT.search(value)
                require(valid, f"{name} must be UTF-8 without NUL and U+0085, got {one_line(ascii(value), 100)}")


def setting_types(kind: Callable[..., Any], prefix: str = "") -> dict[str, Any]:
    """Return the type of each setting of a configuration, or of each argument of a command, by its full name.

    Where an argument is a configuration, its settings count instead. If it has a default, their names begin with its
    own, as in "model.clip"; if it is required, they do not.
    """
    types: dict[str, Any] = {}
    for name, hint, inner in arguments_of(kind, prefix):
        types |= {f"{prefix}{name}": hint} if inner is None else setting_types(hint, inner)
    return types


def arguments_from(kind: Callable[..., Any], values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the arguments to make a configuration or to call a command with, for settings by full name."""
    arguments = {}
    for name, hint, inner in arguments_of(kind, prefix):
        if inner is not None:
            own = arguments_from(hint, values, inner)
            try:
                arguments[name] = hint(**own)
            except InputError as error:
                raise InputError(f"{inner}{error}") from error
        elif f"{prefix}{name}" in values:
            arguments[name] = values[f"{prefix}{name}"]
    return arguments


@cache
def arguments_of(kind: Callable[..., Any], prefix: str) -> list[tuple[str, Any, str | None]]:
    """Return the name and the type of each argument, and for a configuration the prefix of its settings."""
    arguments = []
    hints = get_type_hints(kind)
    for name, argument in signature(kind).parameters.items():
        is_group = isinstance(hints[name], type) and is_dataclass(hints[name])
        inner = prefix if argument.default is argument.empty else f"{prefix}{name}."
        arguments.append((name, hints[name], inner if is_group else None))
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
