"""Write the reference pages of the command line, a recipe's settings and the position schemes from the code.

    python -m tools.reference

docs/reference/commands.md has the commands, docs/reference/recipe.md the fields of `Recipe`. Types, defaults and
meanings are those that `relattn-mt COMMAND --help` shows. docs/schemes.md has a table of the position schemes, and
what supports them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from relattn_mt.commands.main import GROUPS, command_of
from relattn_mt.commands.parser import command_arguments
from relattn_mt.config import OPTION_NAMES, SCHEMES, ModelConfig, Positions, Recipe, StageConfig
from relattn_mt.config.base import documentation
from relattn_mt.engine.decoder import supports_positions
from relattn_mt.formats.exportable import ctranslate2_reasons

from research.attention import shows_terms
from tools import DOCS
from tools.tables import markdown

GENERATED = "<!-- Written by python -m tools.reference. Do not edit. -->\n"
TABLE = "## Schemes by name\n\n<!-- Written by python -m tools.reference. -->\n"  # what is after it is written
HEAD = ["option", "type", "default", "meaning"]
TYPES = {int: "integer", float: "number", str: "text", bool: "true or false"}


def commands() -> str:
    """Return the page of the command line: a section per command, then one per group of options that they share."""
    parts = [
        GENERATED,
        "# Command line\n",
        "`relattn-mt help COMMAND` prints the same. Names in capitals are arguments without a name, in this order. A "
        "flag has no value, a list takes several. Every command has `--version`, and `--quiet`, which leaves only "
        "warnings and errors on standard error. Names of options may be written with hyphens.\n",
        "An output is complete or absent, and replaces a file that exists. `translate` and `evaluate` replace nothing, "
        "and a bundle or an export only another one.\n",
        "The exit code is 0 after success, 2 after a user error, 130 after Ctrl-C, 143 after SIGTERM and 129 after "
        "SIGHUP, but 0 from `serve` after signals.\n",
    ]
    shared: dict[str, type] = {}
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        for name in names:
            parts += command(name, shared)
    parts.append("## Shared options\n")
    for title, kind in shared.items():
        text = description(kind).rstrip(".")
        known = [other for other in shared.values() if other is not kind and issubclass(kind, other)]
        parts += [
            f"### {title}\n",
            *([f"{text}.\n"] if text != title else []),
            settings(kind, flag="--", without=known),
        ]
    return "\n".join(parts)


def command(name: str, shared: dict[str, type]) -> Iterator[str]:
    """Yield the section of a command. Groups of options are added to `shared`, by title."""
    _, function, _ = command_of(name.split())
    arguments = command_arguments(function)
    rows, links = [], []
    groups: list[tuple[str, str, type]] = []  # of this command alone
    for key, argument in arguments.items():
        kind, required, is_flag = argument.kind, argument.required, not argument.positional
        if isinstance(kind, type) and is_dataclass(kind) and kind is not Recipe:
            title = title_of(kind)
            if required:
                links.append(f"[{title}](#{anchor(title)})")
                shared[title] = kind
            else:
                groups.append((f"--{key}.", title, kind))
            continue
        metavar = re.sub("S$", " ...", key.upper()) if get_origin(kind) is list else key.upper()
        label = f"--{key}" if is_flag else metavar
        default = "required" if required else shown_default(argument.default)
        shown_type = "flag" if kind is bool else type_name(kind)
        rows.append([f"`{label}`", shown_type, "" if kind is bool else default, cell(argument.help)])
    yield f"### relattn-mt {name}\n"
    yield f"{description(function)}\n"
    if any(argument.kind is Recipe for argument in arguments.values()):
        links.append("[settings of the recipe](recipe.md), such as `--model.clip 8`")
    if links:
        rows.append(["others", "", "", ", ".join(links)])
    yield markdown([HEAD, *rows])
    for flag, title, kind in groups:
        yield f"{title}:\n"
        yield settings(kind, flag=flag)


def title_of(kind: type) -> str:
    """Return the title of a group of options: the first clause of its docstring."""
    return re.split("[:;,.]", description(kind))[0].replace("`", "")


def recipe() -> str:
    """Return the page of a recipe's settings."""
    groups: dict[str, Any] = {field.name: kind for field, kind in typed_fields(Recipe) if is_dataclass(kind)}
    parts = [
        GENERATED,
        "# Settings of a recipe\n",
        "A recipe is a YAML file with the settings that differ from their defaults. Each is also an option of "
        "`relattn-mt train` (`--model.clip 8` for `clip: 8` below `model:`). `[0, 1)` includes 0 and excludes 1. "
        "`relattn-mt recipe BUNDLE` prints a recipe.\n",
        settings(Recipe),
    ]
    for name, kind in groups.items():
        parts += [f"## {name}\n", f"{description(kind)}\n", settings(kind, name=f"{name}.")]
        for field, inner in typed_fields(kind):
            if isinstance(inner, type) and is_dataclass(inner):
                title = f"{name}.{field.name}"
                parts += [f"## {title}\n", f"{description(inner)}\n", settings(inner, name=f"{title}.")]
    parts += [
        "## stages\n",
        f"{description(StageConfig)} `stages` is a list, each item with these settings:\n",
        settings(StageConfig),
        "`augment` has the settings of [data.augment](#dataaugment).\n",
    ]
    return "\n".join(parts)


def settings(kind: type, *, flag: str = "", name: str = "", without: Sequence[type] = ()) -> str:
    """Return a table with the fields of a dataclass, without its groups and the fields of the classes `without`."""
    _, helps = documentation(kind)
    shown_elsewhere = {field.name for other in without for field in fields(other)}
    rows = []
    for field, hint in typed_fields(kind):
        if is_dataclass(hint) or field.name in shown_elsewhere or (kind is Recipe and field.name == "stages"):
            continue
        label = f"`{flag}{field.name}`"
        rows.append([label, type_name(hint, field), field_default(field), cell(helps[field.name])])
    return markdown([["setting" if not flag else "option", *HEAD[1:]], *rows])


def typed_fields(kind: type) -> list[tuple[Field[Any], Any]]:
    hints = get_type_hints(kind)
    return [(field, hints[field.name]) for field in fields(kind)]


def description(obj: Any) -> str:
    """Return the description of a function or class, with one line per paragraph."""
    return re.sub(r"(\S)\n(?=\S)", r"\1 ", documentation(obj)[0])


def type_name(kind: Any, field: Field[Any] | None = None) -> str:
    """Return the type of an option for readers, with the range of a number."""
    choices = [choice for choice in get_args(kind) if choice is not NoneType]
    interval = (field.metadata.get("interval") or "") if field is not None else ""
    if get_origin(kind) in (list, tuple):
        return f"list of {type_name(choices[0])}"
    if kind is Recipe:
        return "file or name"
    if kind == Positions:
        return "[name](../schemes.md#schemes-by-name)"
    if get_origin(kind) is Literal:
        return " \\| ".join(f"`{choice}`" for choice in choices)
    if choices:
        return " \\| ".join(type_name(choice, field) for choice in choices)
    return " ".join(filter(None, (TYPES.get(kind, "text"), f"`{interval}`" if interval else "")))


def field_default(field: Field[Any]) -> str:
    if field.name in OPTION_NAMES:  # the meaning gives the default
        return ""
    return "required" if field.default is MISSING else shown_default(field.default)


def shown_default(default: Any) -> str:
    if default is None or default in ("", [], ()):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{' '.join(map(str, default)) if isinstance(default, list) else default}`"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def anchor(title: str) -> str:
    return re.sub(r"[^\w-]+", "-", title.lower()).strip("-")


def schemes() -> str:
    """Return the page of position schemes: what each is, and which parts of the toolkit support it."""
    rows = []
    for name, scheme in SCHEMES.items():
        config = ModelConfig(positions=name)
        defaults = {
            option: "" if value is None else f" (`{str(value).lower()}`)" for option, value in scheme.options.items()
        }
        options = [f"`{option}`{default}" for option, default in defaults.items()]
        support = (supports_positions(config), not ctranslate2_reasons(config), shows_terms(config))
        marks = ["yes" if supported else "no" for supported in support]
        length = config.position_spec.max_length
        limit = "no limit" if length is None else f"{length:,}"
        if "max_positions" in scheme.options:
            limit = "`max_positions`"
        rows.append([f"`{name}`", cell(scheme.summary), ", ".join(options), limit, *marks])
    head = [
        "positions",
        "signal",
        "options (default)",
        "maximum length",
        "compiled engine",
        "CTranslate2, Argos",
        "attention page",
    ]
    return "\n".join(
        [
            (DOCS / "schemes.md").read_text(encoding="utf-8").partition(TABLE)[0] + TABLE,
            "Every scheme trains and translates in PyTorch. The last columns are other parts of the toolkit; what does "
            "not support a scheme refuses it. CTranslate2 and Argos packages support neither `beyond: zero` nor "
            "`tables_per_head`.\n",
            markdown([head, *rows]),
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands,
    "reference/recipe.md": recipe,
    "schemes.md": schemes,
}


def written() -> dict[Path, str]:
    """Return the text of each page."""
    return {DOCS / name: page() for name, page in PAGES.items()}


def main() -> None:
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
