"""What a user of the toolkit is told: a line that says what is wrong and where, or that a run was stopped."""

import signal


class InputError(ValueError):
    """A mistake in what was given (a file, a recipe, a bundle, a line of text), told in one line.

    The command line prints it as ``relattn: error: …`` and exits with code 2; nothing is half-written.
    """


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop and did; the command line prints why and exits with 128 + the signal.

    Args:
        message: where it stopped, and how to go on.
        number: the signal.
    """

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = number
