"""The values of RELATTN_LEVEL that this processor allows, lowest first. Imports nothing of PyTorch."""

import os
import re

from relattn_mt.engine import library


def allowed_levels() -> list[str]:
    """Return the values, as the error for an unknown one lists them, up to that of the environment."""
    try:
        library.load("unknown")
    except ImportError as error:
        (names,) = re.findall(r"must be one of (.*) on this processor", str(error))
        values = names.split(", ")
        limit = os.environ.get("RELATTN_LEVEL") or values[-1]
        return values[: values.index(limit) + 1]
    except OSError:  # no compiled library
        return []
    raise AssertionError("an unknown level must be refused")
