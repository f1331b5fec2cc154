"""`relattn completion`"""

from typing import Any, Literal, get_args, get_origin

from relattn.translation.commands.main import COMMANDS, command_of
from relattn.translation.commands.parser import arguments_of, make_parser

_START = {"bash": "", "zsh": "autoload -U +X bashcompinit && bashcompinit\n"}  # zsh then runs scripts for bash
_SCRIPT = """\
{start}_relattn() {{  # $2: current word; $3: the word before it
    local candidates="" command="${{COMP_WORDS[1]}}"
    [[ $command == analyze ]] && command="analyze ${{COMP_WORDS[2]}}"
    case "$COMP_CWORD $command $3" in
{values}
    *) [[ $2 == -* ]] && case "$command" in
{options}
    esac ;;
    esac
    COMPREPLY=($(compgen -W "$candidates" -- "$2"))
}}
complete -o default -F _relattn relattn"""


def completion(shell: Literal["bash", "zsh"]) -> None:
    """Print a script that completes commands, options, their choices, and names of files.

    For bash: relattn completion bash > ~/.local/share/bash-completion/completions/relattn

    For zsh, after the line with compinit: relattn completion zsh >> ~/.zshrc

    Args:
        shell: Shell that runs the script.
    """
    first = dict.fromkeys(name.split()[0] for name in COMMANDS)
    second = [name.split()[1] for name in COMMANDS if " " in name]
    values = [
        _clause('"1 "*', [*first, "help", "--help", "--version"]),
        _clause('"2 help help"', first),
        _clause('"2 analyze "*|"3 help analyze"', second),
    ]
    options = []
    for name in COMMANDS:
        _, function, _ = command_of(name.split())
        arguments = arguments_of(function)
        _, types = make_parser(name, function, arguments)
        flags = {"help", "quiet", *(key for key, argument in arguments.items() if argument.kind is bool)}
        positional = [key for key in types if key in arguments and arguments[key].positional]
        for key, kind in types.items():
            pattern = f'"2 {name} {name}"' if key in positional[:1] else f'*" {name} --{key}"'
            choices = [] if key in flags else _choices(kind)
            values += [_clause(pattern, choices)] if choices else []
        options.append(_clause(f'"{name}"', [f"--{key}" for key in types if key not in positional]))
    print(_SCRIPT.format(start=_START[shell], values="\n".join(values), options="\n".join(options)))


def _clause(pattern: str, candidates: Any) -> str:
    """Return a clause of the shell's `case`."""
    return f'    {pattern}) candidates="{" ".join(candidates)}" ;;'


def _choices(kind: Any) -> list[str]:
    """Return the choices of a type, if it has any."""
    if kind is bool:
        return ["true", "false"]
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    return [choice for each in get_args(kind) for choice in _choices(each)]
