"""Number of cores and name of this machine's processor."""

from __future__ import annotations

import os
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> str:
    """Return the processor's model and number of cores, such as ``"Intel Xeon Processor, 2 cores"``."""
    return f"{_field('model name') or platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def _field(name: str) -> str:
    """Return a field of the first processor that Linux lists; empty if there is none."""
    lines = CPUINFO.read_text(encoding="utf-8").splitlines() if CPUINFO.exists() else []
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for field, _, value in fields if field.strip() == name), "")
