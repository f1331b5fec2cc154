"""Results of commands that run in the test's process."""

from typing import NamedTuple


class Result(NamedTuple):
    code: int | str | None
    out: str
    err: str


def assert_refused(result: Result, message: str) -> None:
    """Assert that a command ended in one line, which contains `message`, and exit code 2."""
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result
    assert result.err.startswith("relattn: error: ")
    assert message in result.err
