"""The processor of this machine, as the system names it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> str:
    """The processor's model and how many of them there are, as figures name it: ``"Intel Xeon Processor, 2 cores"``."""
    return f"{_field('model name') or platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def is_amd() -> bool:
    """Whether it is one of AMD's; no where the system does not say."""
    return _field("vendor_id") == "AuthenticAMD"


def _field(name: str) -> str:
    """A field of the first processor that Linux lists, empty where there is none."""
    lines = CPUINFO.read_text(encoding="utf-8").splitlines() if CPUINFO.exists() else []
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for field, _, value in fields if field.strip() == name), "")
