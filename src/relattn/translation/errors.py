"""The one error a user of the toolkit meets: a line that says what is wrong and where."""


class InputError(ValueError):
    """A mistake in what was given (a file, a recipe, a bundle, a line of text), told in one line.

    The command line prints it as ``relattn: error: …`` and exits with code 2; nothing is half-written.
    """


class Interrupted(Exception):
    """Training was asked to stop and did, after a step, with a checkpoint to go on from."""
