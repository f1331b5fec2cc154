"""Parse the arguments of a command: flags come from the signature of its function, help from its docstring.

Parameters before `*` are positional. Flags may be written with hyphens or underscores. A flag with a list of values may
be given several times, others once. A parameter whose type is a dataclass adds the fields of the dataclass as flags;
one with a default adds them as a group, `--limits.file`. If the dataclass requires other dataclasses, its fields count
as parameters of the command. A parameter of type `Recipe` is the path of a recipe, with a flag for each
setting.

Every command has the flag `--quiet`. The options of `relattn-mt serve` can also be set by environment variables.
"""

from __future__ import annotations

import os
import re
from argparse import SUPPRESS, Action
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from inspect import Parameter, cleandoc, getdoc, signature
from itertools import chain
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter

from relattn_mt.config import Recipe
from relattn_mt.config.base import setting_types
from relattn_mt.config.yaml import add_settings, recipe_flags, require_decimal, type_message
from relattn_mt.support.errors import InputError, require, unknown

_MESSAGES = (  # of argparse, and ours
    (r"argument (\S+): expected .*one argument", "{0} must have a value"),
    (r"argument (\S+): ignored explicit argument .*", "{0} must have no value"),
    (r"the following arguments are required: ([^\s,]+).*", "missing argument: {1}"),
    (r"unrecognized arguments: (.*)", "unexpected argument: {0}"),
)
_OPTION = re.compile(r"--([a-zA-Z][\w.-]*)(=.*)?", re.DOTALL)
_PREFIX = "RELATTN_MT_SERVE"  # of environment variables
_QUIET = "Print no progress and no notes to standard error, only warnings and errors."


class Argument(NamedTuple):
    """An argument of a command, or a group of arguments.

    Attributes:
        kind: Its type, a dataclass for a group.
        default: Its default, `Parameter.empty` if it is required.
        positional: Whether it is given without a name.
        help: Its meaning, empty for a group.
    """

    kind: Any
    default: Any
    positional: bool
    help: str

    @property
    def required(self) -> bool:
        return self.default is Parameter.empty

    @property
    def is_flat_group(self) -> bool:
        """Whether the fields of a dataclass are flags without a prefix."""
        return self.required and isinstance(self.kind, type) and is_dataclass(self.kind)


class _Help(DefaultHelpFormatter):
    """Help with defaults in the words of the command line, and without types."""

    def _get_help_string(self, action: Action) -> str:
        text, default = action.help or "", action.default
        if action.dest == "help":
            return super()._get_help_string(action)
        if action.nargs == 0 or default in (None, SUPPRESS, "", (), []):  # a flag has no value
            return text
        if isinstance(default, bool):
            default = str(default).lower()
        values = default if isinstance(default, (list, tuple)) else [default]
        return f"{text} (default: {' '.join(map(str, values))})"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(paragraph, width, indent) for paragraph in text.split("\n\n"))


class _Parser(ArgumentParser):
    def print_help(self, file: object = None) -> None:
        """Print the help. Unlike the inherited method, raise an OSError if it cannot be written."""
        of_jsonargparse = r"\n +--\S+( CONFIG\s+Path to a configuration file\.|\.help +Show the help for .*)"
        print(re.sub(of_jsonargparse, "", self.format_help()), end="", flush=True)


def parse(
    name: str, function: Callable[..., None], argv: Sequence[str], program: str = "relattn-mt"
) -> tuple[dict[str, Any], bool]:
    """Return the arguments to call the function of a command with, and whether the command is quiet.

    Raises:
        InputError: The arguments are not those of the command.
        SystemExit: The help was printed.
    """
    arguments = arguments_of(function)
    parser, types = make_parser(f"{program} {name}", function, arguments)
    argv = _normalize(argv, arguments, types, name)
    parser.default_env = name == "serve" and not {"-h", "--help"} & set(argv)  # variables would make the help longer
    variables = [f"{_PREFIX}_{key.replace('.', '__').upper()}" for key in types]
    for variable in os.environ if parser.default_env else ():
        if variable.startswith(f"{_PREFIX}_") and variable not in variables:
            raise unknown("environment variable", variable, variables)
    recipe = ""
    try:
        parsed = parser.parse_args(argv)
        if "recipe" in arguments and arguments["recipe"].kind is Recipe:
            if parsed.recipe is None:
                raise InputError(f"{name} requires a recipe, a YAML file")
            recipe = f"{parsed.recipe}: "
            parsed = parser.parse_args([*recipe_flags(parsed.recipe, overriding=argv), *argv])
        values = parser.instantiate(parsed).as_dict()
    except ArgumentError as error:

        def label(key: str) -> str:
            positional = key in arguments and arguments[key].positional
            return key.removesuffix("s").upper() if positional else f"{recipe or '--'}{key}"

        message = type_message(error, types, label)
        for pattern, ours in _MESSAGES:
            if match := re.fullmatch(pattern, message):
                message = ours.format(match[1], label(match[1]))
        raise InputError(message) from None
    return _instances(function, values), values["quiet"]


def _instances(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments to call a function or a dataclass with, from the values of all flags."""
    instances = {}
    for key, argument in _own_arguments(function).items():
        if argument.is_flat_group:
            instances[key] = argument.kind(**_instances(argument.kind, values))
        else:
            instances[key] = tuple(values[key]) if get_origin(argument.kind) is tuple else values[key]
    return instances


def arguments_of(function: Callable[..., Any]) -> dict[str, Argument]:
    """Return the arguments of a command by name, those that its options require included."""
    arguments: dict[str, Argument] = {}
    for key, argument in _own_arguments(function).items():
        inner = arguments_of(argument.kind) if argument.is_flat_group else {}
        nested = any(each.is_flat_group for each in inner.values())
        arguments |= inner if nested else {key: argument}
    return arguments


def _own_arguments(function: Callable[..., Any]) -> dict[str, Argument]:
    hints, (_, helps) = get_type_hints(function), documentation(function)
    return {
        key: Argument(hints[key], each.default, each.kind is not each.KEYWORD_ONLY, helps.get(key, ""))
        for key, each in signature(function).parameters.items()
    }


def documentation(obj: Any) -> tuple[str, dict[str, str]]:
    """Return the description of a function or class, and the meaning of each argument, its own or inherited."""
    helps: dict[str, str] = {}
    for base in reversed(getattr(obj, "__mro__", [obj])):
        _, _, text = cleandoc(getattr(base, "__doc__", None) or "").partition("\n\nArgs:\n")
        matches = re.finditer(r"    (\w+): (.*(?:\n {8}.*)*)", text)
        helps |= {match[1]: " ".join(match[2].split()) for match in matches}
    return (getdoc(obj) or "").partition("\n\nArgs:\n")[0], helps


def make_parser(
    usage: str, function: Callable[..., None], arguments: dict[str, Argument]
) -> tuple[ArgumentParser, dict[str, Any]]:
    """Return the parser of a command, and the type of each argument."""
    types: dict[str, Any] = {"help": bool, "quiet": bool}
    description = documentation(function)[0]
    parser = _Parser(
        prog=usage,
        description=description,
        formatter_class=_Help,
        exit_on_error=False,
        allow_abbrev=False,
        env_prefix=_PREFIX,
    )
    parser.add_argument("--quiet", action="store_true", help=_QUIET)
    for key, (kind, default, positional, text) in arguments.items():
        required = default is Parameter.empty
        if kind is not Recipe and isinstance(kind, type) and is_dataclass(kind):
            parser.add_class_arguments(kind, None if required else key)
            types |= setting_types(kind, "" if required else f"{key}.")
            continue
        types[key] = kind
        options: dict[str, Any] = {"help": text, "type": kind}
        options |= {} if required else {"default": default}
        metavar = key.upper()
        if kind is Recipe:
            options |= {"type": str | None, "nargs": "?"}
            add_settings(parser, kind)
            types |= setting_types(kind)
        elif kind is bool:
            options = {"help": text, "action": "store_true"}
        elif get_origin(kind) in (list, tuple):
            options |= {"type": get_args(kind)[0], "nargs": "+" if required else "*"}
            options |= {} if required else {"default": [*default]}
            metavar = metavar.removesuffix("S") + " ..."
        if positional:
            if not required:
                options["nargs"], metavar = options.get("nargs", "?"), f"[{metavar}]"
            parser.add_argument(key, metavar=metavar.strip("[] ."), **options)
            usage += f" {metavar}"
        else:
            parser.add_argument(f"--{key}", required=required, **options)
            usage += f" --{key} {metavar}" if required else ""
    parser.usage = f"{usage} [options]"
    return parser, types


def _normalize(argv: Sequence[str], arguments: dict[str, Argument], types: dict[str, Any], command: str) -> list[str]:
    """Return the arguments with underscores in the names of options, and each list in one part. Values are left alone.

    Raises:
        InputError: The command has no such option, one that is not a list is given twice, or a number is not decimal.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    options = [_OPTION.fullmatch(word) for word in argv[:end]]
    counts = Counter(option[1].replace("-", "_") for option in options if option)
    normalized: list[str] = []
    lists: dict[str, list[str]] = {}  # with the name first, for each list that is given in parts
    current, name = normalized, ""  # where the next value belongs, and the option that it is a value of
    for word, option in zip(argv, options, strict=False):
        value: str | None = word
        if option is not None:
            name, value = option[1].replace("-", "_"), option[2] and option[2][1:]
            if name not in types:
                raise unknown(f"option of {command}", f"--{name}", [f"--{other}" for other in types])
        require_decimal(f"--{name}", value or "", types.get(name, str))
        is_list = name in arguments and get_origin(arguments[name].kind) in (list, tuple)
        if option is None:
            current.append(word)
        else:
            require(is_list or counts[name] == 1, f"--{name} must be given once, got it {counts[name]} times")
            current = normalized
            if counts[name] == 1:
                current.append(f"--{name}{option[2] or ''}")
            elif value is not None:
                lists.setdefault(name, [f"--{name}"]).append(value)
            else:
                current = lists.setdefault(name, [f"--{name}"])
        if value is not None and not is_list:
            name = ""
    return [*normalized, *chain.from_iterable(lists.values()), *argv[end:]]
