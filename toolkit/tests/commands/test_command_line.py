"""The command line: help, dispatch, errors and exit codes."""

import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from relattn_mt import __version__
from relattn_mt.commands import main as cli
from relattn_mt.commands.parser import parse
from relattn_mt.support.console import log_to_stderr
from relattn_mt.support.errors import Interrupted
from relattn_mt.training import train as training

from tests.support.commands import assert_refused

PAPERS = Path(__file__).parents[3] / "recipes/wmt14-en-de-base.yaml"
SCRIPT = """
import sys
import relattn_mt.__main__
from relattn_mt.commands.main import main

def assert_not_imported(*names):
    assert not {*names} & set(sys.modules), {*names} & set(sys.modules)

main(["--help"])
assert_not_imported("torch", "yaml", "tqdm")
main(["translate", "--help"])
assert_not_imported("torch", "sacrebleu", "matplotlib", "pydantic")
import relattn_mt
assert_not_imported("sentencepiece", "torch")
relattn_mt.load(sys.argv[1]).translate(["one cat"])
assert_not_imported("sacrebleu", "matplotlib", "sympy", "torch._dynamo", "triton")
"""


def test_help_and_loading_import_few_libraries(model):
    subprocess.run([sys.executable, "-c", SCRIPT, model], check=True, stdout=subprocess.DEVNULL)


def test_help_and_version(relattn):
    for arguments in ((), ("--help",), ("-h",), ("help",)):
        result = relattn(*arguments)
        assert (result.code, result.err) == (0, "")
        assert all(f"\n  {name} " in result.out for name in cli.COMMANDS)
    assert relattn("--version") == (0, f"relattn-mt {__version__}\n", "")


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_help_and_a_version(relattn, command):
    result = relattn(*command.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"usage: relattn-mt {command}")
    assert relattn("help", *command.split()) == relattn("help", *command.split(), "--help") == result
    assert relattn(*command.split(), "--version") == relattn("--version")
    settings = ("--model.clip", "--train.warmup_steps", "--search.alpha", "--seed", "--resume")
    assert command != "train" or all(setting in result.out for setting in settings)
    of_python = (
        r"type:|<class|\b(Optional|Union|Literal|NoneType|tuple|dict|str|int|float|bool|True|False|None)\b|\w\[\w"
    )
    assert re.findall(of_python, result.out) == []


def test_quiet_prints_no_progress_and_no_notes(relattn, model, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    text = tmp_path / "in.txt"
    text.write_text("one cat\n", encoding="utf-8")
    for command in (
        ("translate", model, "--input", text, "--output", tmp_path / "out"),
        ("evaluate", model, "--src", text, "--ref", text),
    ):
        assert "\r" in relattn(*command).err
        (tmp_path / "out").unlink(missing_ok=True)
        result = relattn(*command, "--quiet")
        assert (result.code, result.err) == (0, "")
    assert_refused(relattn("translate", model, "--quiet", "--output", text), "--input")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (" x", "unknown command ''"),
        ("trian x", "unknown command 'trian'; did you mean train?"),
        ("translate x --beam-sise 3", "did you mean --beam_size?"),
        ("train --steps 1", "did you mean --train.steps?"),
        ("translate x --gpu", "unknown option of translate '--gpu'"),
        ("train my.yam", "my.yam: cannot be read: No such file"),
        ("train", "missing argument: RECIPE"),
        ("translate bundle --n_best x", "--n_best must be a whole number, got 'x'"),
        *((f"translate bundle --n_best{is_}{x}", f"--n_best must be a whole number in decimal notation, got '{x}'")
          for is_ in " =" for x in ("0x10", "010", "1:30")),
        ("translate --keep_tags --n_best 3 0x10", "0x10: no such directory"),
        ("translate bundle --precision fp8", "--precision must be one of fp32, bf16, int8, got 'fp8'"),
        ("translate bundle --n_best", "--n_best must have a value"),
        ("translate bundle --align=x", "--align must have no value"),
        ("translate bundle --n_best -1e-1", "--n_best must be a whole number in decimal notation, got '-1e-1'"),
        ("train RECIPE --stages []\nbogus:", "--stages: not YAML"),
        ('train RECIPE --stages {"bogus":1}', "--stages must be a list, each of the settings of a stage, got '{"),
        ("translate", "missing argument: BUNDLE"),
        ("quantize a b --out c", "unexpected argument: b"),
        ("export argos a --out b --check_count 0", "check_count must be at least 1 and at most 1,000,000, got 0"),
        *((f"{command} --out=", "out must name a directory") for command in ("average run", "import x")),
        ("translate \x1b[31mred\u202e", r"\x1b[31mred\u202e: no such directory"),
    ],
)  # fmt: skip
def test_wrong_arguments(relattn, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert_refused(relattn(*arguments.split(" ")), message)
    assert list(tmp_path.iterdir()) == []


SYNTHESIS = "x --out y --data a b c"
LISTS = {  # options whose values are lists, and a command with three values of each
    ("export", "shortlist"): "marian x --out y --shortlist a b c",
    ("import", "alignment_text"): "x --out y --alignment_text a b c",
    ("prepare", "exclude"): "--src x --tgt y --src_lang=en --tgt_lang=de --out z --exclude a b c",
    **{("distill", "data"): SYNTHESIS, ("distill", "exclude"): f"{SYNTHESIS} --exclude a b c"},
    **{("backtranslate", "data"): SYNTHESIS, ("backtranslate", "exclude"): f"{SYNTHESIS} --exclude a b c"},
    ("models", "remove"): "--remove a b c",
    **{("serve", "cors"): "x --cors a b c", ("serve", "proxies"): "x --proxies a b c"},
    **{("serve", "languages"): "x --languages a b c", ("serve", "hosts"): "x --hosts a b c"},
}


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_option_that_is_given_twice_is_a_list_or_refused(relattn, command):
    """Every list and every fifth other option of a command, in both spellings, with equal values and with others."""
    options = re.findall(r"^ +--([\w.]+)(.*)", relattn(*command.split(), "--help").out, re.MULTILINE)
    for number, (option, values) in enumerate(options):
        if " ...]" not in values:
            if number % 5:
                continue
            twice = f"--{option}", "1", f"--{option.replace('_', '-')}={1 + number % 2}"
            assert_refused(relattn(*command.split(), *twice), f"--{option} must be given once, got it 2 times")
            continue
        name, function, _ = cli.command_of(command.split())
        words = LISTS[command, option].split()
        whole, start = parse(name, function, words), words.index(f"--{option}")
        before, (a, b, c), after = words[:start], words[start + 1 : start + 4], words[start + 4 :]
        for parts in (
            [f"--{option}", a, b, f"--{option}={c}", *before],
            [*before, f"--{option}={a}", f"--{option}", b, c],
        ):
            assert parse(name, function, [*parts, *after]) == whole


def interrupted() -> None:
    raise Interrupted("stopped after step 3", number=15)


@pytest.mark.parametrize(
    ("train", "code", "error"),
    [
        (lambda: torch.empty(2**50), 2, "relattn-mt: error: not enough memory: "),
        (lambda: Path("no/x").write_text(""), 2, "relattn-mt: error: no/x: No such file or directory\n"),
        (interrupted, 143, "relattn-mt: stopped after step 3\n"),
    ],
)
def test_failure_is_one_line(relattn, monkeypatch, train: Callable[[], object], code, error):
    monkeypatch.setattr(training, "train", lambda *_, **__: train())
    result = relattn("train", PAPERS)
    assert (result.code, result.out, result.err.count("\n")) == (code, "", 1)
    assert result.err.startswith(error)


def test_bug_is_a_traceback(relattn, monkeypatch):
    monkeypatch.setattr(training, "train", lambda *_, **__: torch.empty(2, 3) @ torch.empty(2, 3))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        relattn("train", PAPERS)


@pytest.mark.parametrize(
    ("output", "code", "message"),
    [("pipe", 0, ""), ("/dev/full", 2, "No space left on device"), (None, 2, "is closed")],
)
def test_unwritable_standard_output(reading, model, monkeypatch, capsys, output, code, message):
    """A reader that closes its pipe is not an error."""
    reading(b"one cat\n" * 300)
    if output == "pipe":
        reader, output = os.pipe()
        os.close(reader)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output if output is None else open(output, "w"))  # noqa: SIM115
        assert cli.main(["translate", model]) == code
        if output is not None:
            sys.stdout.close()
    assert message in capsys.readouterr().err


def test_control_characters_in_log_messages_are_escaped(capsys):
    with log_to_stderr():
        logging.getLogger("relattn_mt").warning("a\x1b[31m b\nnext")
    assert capsys.readouterr().err == "relattn-mt: warning: a\\x1b[31m b\nnext\n"


def test_a_warning_is_one_message(capsys):
    with log_to_stderr(), warnings.catch_warnings():
        warnings.simplefilter("always")
        for text in ("a", "b", "a"):
            warnings.warn(text, stacklevel=1)
    assert capsys.readouterr().err == "relattn-mt: warning: a\nrelattn-mt: warning: b\n"
