"""Base class of all configurations: frozen dataclasses that check their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from relattn.translation.errors import one_line, require

_Rule = tuple[str, Callable[[Any], bool]]  # what a value must be, and whether it is


def ruled(default: Any, *rules: _Rule) -> Any:
    """Return a field whose values must follow rules, except null."""
    return field(default=default, metadata={"rules": rules})


def number(default: float | None, least: float, most: float) -> Any:
    """Return a field with values from `least` to `most`, which is larger than any useful value and never overflows."""
    return ruled(default, (f"at least {least}", lambda x: x >= least), (f"at most {most:,}", lambda x: x <= most))


def fraction(default: float) -> Any:
    return ruled(default, ("in [0, 1)", lambda x: 0 <= x < 1))


@dataclass(frozen=True, kw_only=True)
class Config:
    """Base of all configurations. It checks the rules of each field, and that text can be stored as UTF-8.

    It is a dataclass itself, because jsonargparse takes a class with any other base as the name of a class to import.
    """

    def __post_init__(self) -> None:
        for setting in fields(self):
            name, value = setting.name, getattr(self, setting.name)
            for what, holds in setting.metadata.get("rules", ()) if value is not None else ():
                require(holds(value), f"{name} must be {what}, got {one_line(value, 40)}")
            if isinstance(value, str):
                require(_is_text(value), f"{name} must be UTF-8 without NUL, got {one_line(ascii(value), 100)}")


def _is_text(value: str) -> bool:
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:  # a surrogate, which stands for a byte of a path that is not UTF-8
        return False


def as_dict(config: Any) -> Any:
    """A config as nested plain dictionaries, for YAML."""
    if not is_dataclass(config):
        return config
    return {f.name: as_dict(getattr(config, f.name)) for f in fields(config)}


def differences(old: dict, new: dict, prefix: str = "") -> list[str]:
    """Lines "name: old → new" for every leaf that differs between two `as_dict` results."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += differences(a, b, f"{prefix}{name}.")
        elif a != b:
            lines.append(f"{prefix}{name}: {a} → {b}")
    return lines
