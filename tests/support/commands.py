"""Results of commands that run in the test's process, and errors of calls."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from relattn_mt.support.errors import InputError


class Result(NamedTuple):
    code: int | str | None
    out: str
    err: str


def assert_refused(result: Result, message: str) -> None:
    """Assert that a command ended in one line, which contains `message`, and exit code 2."""
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result
    assert result.err.startswith("relattn-mt: error: ")
    assert message in result.err


def refusal(call: Callable[..., object], *arguments: object, **named: object) -> str:
    """Return the message of the InputError that a call raises, which must be one short line."""
    with pytest.raises(InputError) as error:
        call(*arguments, **named)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 1000
    return message
