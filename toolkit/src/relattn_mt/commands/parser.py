"""Parse the arguments of a command: flags come from the signature of its function, help from its docstring.

Parameters before `*` are positional. Flags may be written with hyphens or underscores. A flag with a list of values may
be given several times, others once. A parameter whose type is a dataclass adds the fields of the dataclass as flags;
one with a default adds them as a group, `--limits.file`. A parameter of type `Recipe` is the path of a recipe, with a
flag for each setting. Values are text, which `config/yaml.py` converts.

Every command has the flag `--quiet`. The options of `relattn-mt serve` can also be set by environment variables.
"""

from __future__ import annotations

import json
import os
import re
from argparse import SUPPRESS, ArgumentParser, HelpFormatter
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin

from relattn_mt.config import OPTION_NAMES, SCHEMES, Recipe, StageConfig
from relattn_mt.config.base import (
    Argument,
    Owner,
    Settings,
    Types,
    arguments_from,
    arguments_of,
    documentation,
    setting_types,
)
from relattn_mt.config.settings import value_of, values_of
from relattn_mt.config.yaml import parse_yaml, read_yaml
from relattn_mt.support.errors import InputError, reading, require, require_known, unknown
from relattn_mt.support.types import Fields

_MESSAGES = (  # of argparse, and ours
    (r"argument (\S+): expected .*one argument", "{} must have a value"),
    (r"argument (\S+): ignored explicit argument .*", "{} must have no value"),
    (r"the following arguments are required: ([^,]+).*", "missing argument: {}"),
    (r"unrecognized arguments: (.*)", "unexpected argument: {}"),
)
_NEGATIVE = re.compile(r"-[\d.]+[eE][-+]?\d+")  # argparse takes it for an option
_OPTION = re.compile(r"--([a-zA-Z][\w.-]*)(=.*)?", re.DOTALL)
_PREFIX = "RELATTN_MT_SERVE"  # of environment variables
_QUIET = "Print no progress and no notes to standard error, only warnings and errors."


class _Parser(ArgumentParser):
    """Parser of a command, with our messages. Arguments that are not given have no value.

    Args:
        usage: The program and the name of the command.
        function: Function of the command.
        given: Arguments that are given already.
    """

    def __init__(self, usage: str, function: Owner, given: Collection[str]) -> None:
        description, _ = documentation(function)
        super().__init__(
            usage=usage,
            description=description,
            formatter_class=_Help,
            argument_default=SUPPRESS,
            allow_abbrev=False,
            add_help=False,
        )
        self.add_argument("-h", "--help", action="help", help="Show this help message and exit.")
        self.add_argument("--quiet", action="store_const", const="true", help=_QUIET)
        for key, argument in command_arguments(function).items():
            if argument.is_group and argument.kind is not Recipe:
                self.add_settings(argument.kind, argument.prefix(""))
                continue
            argument = argument._replace(default=None) if key in given else argument
            options = _options(argument)
            if argument.kind is bool:  # a flag
                options = {"action": "store_const", "const": "true", "help": argument.help}
            self.add_argument(key if argument.positional else f"--{key}", **options)
            if argument.required or argument.positional:
                shown = options["metavar"] + (" ..." if is_list(argument.kind) else "")
                shown = shown if argument.positional else f"--{key} {shown}"
                self.usage = f"{self.usage} {shown if argument.required else f'[{shown}]'}"
            if argument.kind is Recipe:
                self.add_settings(Recipe)
        self.usage = f"{self.usage} [options]"

    def add_settings(self, kind: type, prefix: str = "", title: str = "") -> None:
        """Add the fields of a dataclass as flags whose names begin with `prefix`."""
        group = self.add_argument_group()
        group.title = title or documentation(kind)[0].rstrip(".")
        for name, argument in arguments_of(kind).items():
            if argument.is_group:
                self.add_settings(argument.kind, argument.prefix(prefix), argument.help.rstrip("."))
            else:
                group.add_argument(f"--{prefix}{name}", **_options(argument))

    def error(self, message: str) -> NoReturn:
        for pattern, ours in _MESSAGES:
            if match := re.fullmatch(pattern, message):
                message = ours.format(match[1])
        raise InputError(message)

    def print_help(self, file: object = None) -> None:
        """Print the help. Unlike the inherited method, raise an OSError if it cannot be written."""
        print(self.format_help(), end="", flush=True)


class _Help(HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(paragraph, width, indent) for paragraph in text.split("\n\n"))


def _options(argument: Argument) -> Fields:
    """Return the arguments of `add_argument` for a positional argument, or for an option with a value."""
    kind = argument.kind
    text = argument.help.replace("%", "%%")
    default = argument.default
    if not (argument.required or default in (None, "", (), [])):
        values = default if isinstance(default, (list, tuple)) else [default]
        shown = [str(each).lower() if isinstance(each, bool) else str(each) for each in values]
        text += f" (default: {' '.join(shown)})"
    options: Fields = {"help": text, "metavar": _metavar(argument)}
    if is_list(kind):
        options["nargs"] = "+" if argument.required else "*"
    elif argument.positional and not argument.required:
        options["nargs"] = "?"
    if not argument.positional:
        options["required"] = argument.required
        if is_list(kind):
            options["action"] = "extend"
    return options


def _metavar(argument: Argument) -> str:
    """Return what stands for the value of an argument."""
    choices = get_args(argument.kind) if get_origin(argument.kind) is Literal else ()
    if argument.positional:
        return argument.name.upper().removesuffix("S")
    if argument.kind is bool:
        choices = "true", "false"
    return f"{{{','.join(choices)}}}" if choices else argument.name.upper()


def is_list(kind: Any) -> bool:
    """Return whether an option of a type may have several values."""
    return get_origin(kind) in (list, tuple) and get_args(kind)[0] is not StageConfig


def parse(
    name: str, function: Callable[..., None], argv: Sequence[str], program: str = "relattn-mt"
) -> tuple[Fields, bool]:
    """Return the arguments to call the function of a command with, and whether the command is quiet.

    Raises:
        InputError: The arguments are not those of the command.
        SystemExit: The help was printed.
    """
    types = setting_types(function) | {"quiet": bool}
    given = _environment(types) if name == "serve" else {}
    parser = _Parser(f"{program} {name}", function, given)
    given |= vars(parser.parse_args(_normalized(argv, types, name)))
    recipe = given.pop("recipe", None)
    if text := given.get("stages"):
        lines = " ".join(text.splitlines(keepends=True))  # indented, as a value
        with reading("--stages", "not YAML"):
            given["stages"] = parse_yaml(f"stages: {lines}", "--stages").get("stages", text)
    labels = {key: _metavar(each) for key, each in command_arguments(function).items() if each.positional}
    values = {key: value_of(labels.get(key, f"--{key}"), value, types[key]) for key, value in given.items()}
    if recipe is not None:
        values = _recipe_values(recipe, values.get("model.positions")) | values
    quiet = values.pop("quiet", False)
    return arguments_from(function, values), quiet


def _environment(types: Types) -> Settings:
    """Return the texts of the options that environment variables set."""
    keys = {f"{_PREFIX}_{key.replace('.', '__').upper()}": key for key in types}
    given: Settings = {}
    for variable, text in os.environ.items():
        if variable.startswith(f"{_PREFIX}_"):
            require_known("environment variable", variable, keys)
            given[keys[variable]] = text
            if is_list(types[keys[variable]]):
                with reading(variable, "not JSON"):
                    given[keys[variable]] = json.loads(text) if text.startswith("[") else [text]
    return given


def _recipe_values(path: str, positions: str | None) -> Settings:
    """Return the settings of a recipe, without the options that the position scheme `positions` does not have."""
    values = values_of(read_yaml(path), setting_types(Recipe), path)
    allowed = OPTION_NAMES if positions is None else SCHEMES[positions].options
    unused = {f"model.{name}" for name in OPTION_NAMES if name not in allowed}
    return {name: value for name, value in values.items() if name not in unused}


def _normalized(argv: Sequence[str], types: Types, command: str) -> list[str]:
    """Return the arguments with underscores in the names of options. Values are left alone.

    Raises:
        InputError: The command has no such option, or one that is not a list is given twice.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    options = Counter[str]()
    normalized = list[str]()
    for word in argv[:end]:
        if option := _OPTION.fullmatch(word):
            name = option[1].replace("-", "_")
            if name not in types and name != "help":
                raise unknown(f"option of {command}", f"--{name}", [f"--{other}" for other in types])
            options[name] += name != "help"
            word = f"--{name}{option[2] or ''}"
        elif _NEGATIVE.fullmatch(word) and normalized and re.fullmatch(r"--[\w.]+", normalized[-1]):
            word = f"{normalized.pop()}={word}"
        normalized.append(word)
    for name, count in options.items():
        require(count <= 1 or is_list(types[name]), f"--{name} must be given once, got it {count} times")
    return [*normalized, *argv[end:]]


def command_arguments(function: Owner) -> dict[str, Argument]:
    """Return the arguments of a command by name, those that its options require included."""
    arguments: dict[str, Argument] = {}
    for key, argument in arguments_of(function).items():
        inner = command_arguments(argument.kind) if argument.required and argument.is_group else {}
        has_groups = any(each.required and each.is_group for each in inner.values())
        arguments |= inner if has_groups else {key: argument}
    return arguments
