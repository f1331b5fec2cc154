"""`relattn-mt completion`"""

from typing import Literal

from jsonargparse import ArgumentParser

from relattn_mt.commands.main import COMMANDS, command_of
from relattn_mt.commands.parser import arguments_of, make_parser


def completion(shell: Literal["bash", "zsh"]) -> None:
    """Print a script that completes commands, options and their choices.

    For bash: relattn-mt completion bash > ~/.local/share/bash-completion/completions/relattn

    For zsh: relattn-mt completion zsh > DIRECTORY/_relattn, for a DIRECTORY in $fpath

    Args:
        shell: Shell that runs the script.
    """
    parser, analyze = ArgumentParser(prog="relattn-mt"), ArgumentParser()
    commands = parser.add_subcommands()
    commands.add_subcommand("analyze", analyze, help="Look into a model")
    analyses = analyze.add_subcommands()
    for name, summary in COMMANDS.items():
        _, function, _ = command_of(name.split())
        command, _ = make_parser(name, function, arguments_of(function))
        group = analyses if name.startswith("analyze ") else commands
        group.add_subcommand(name.removeprefix("analyze "), command, help=summary)
    print(parser.get_completion_script(f"shtab-{shell}"))
