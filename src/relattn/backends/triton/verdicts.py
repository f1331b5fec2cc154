"""What trials of the kernels found (`trial.py`), remembered by the process and recorded on disk for later ones.

The file is `relattn/triton.json` under `$XDG_CACHE_HOME`, or under `~/.cache`. It has verdicts by kind of call, for
every setting, which is all that a compiled kernel depends on. It may be deleted at any time; where it cannot be read or
written, a process has its own verdicts alone.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from relattn.backends.triton.kinds import Kind


class Verdict(NamedTuple):
    agreed: bool
    words: str  # how well, or why not


REMEMBERED: dict[tuple[str, Kind], Verdict] = {}  # by this process


def found(device: torch.device, kind: Kind) -> Verdict | None:
    """The verdict on a kind of call on a device, where there is one."""
    place = setting(device), kind
    if place not in REMEMBERED:
        recorded = on_disk(*place)
        if recorded is None:
            return None
        REMEMBERED[place] = recorded
    return REMEMBERED[place]


def record(device: torch.device, kind: Kind, verdict: Verdict) -> None:
    """For this process and later ones."""
    remember(device, kind, verdict)
    path = file()
    if path is None:
        return
    name, content = setting(device), read(path)
    content[name] = verdicts_of(content, name) | {str(kind): verdict._asdict()}
    with contextlib.suppress(OSError):
        write(path, json.dumps(content, indent=1, sort_keys=True))


def remember(device: torch.device, kind: Kind, verdict: Verdict) -> None:
    REMEMBERED[setting(device), kind] = verdict


def on_disk(name: str, kind: Kind) -> Verdict | None:
    path = file()
    match {} if path is None else verdicts_of(read(path), name).get(str(kind)):
        case {"agreed": bool(agreed), "words": str(words)}:
            return Verdict(agreed, words)
    return None


def file() -> Path | None:
    """Where verdicts are recorded; None where the user has no home, as in some jobs."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return base / "relattn" / "triton.json" if base.is_absolute() else None


def read(path: Path) -> dict[str, Any]:
    """Its content; nothing where it is no file of ours."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def verdicts_of(content: dict[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name)
    return found if isinstance(found, dict) else {}


def write(path: Path, text: str) -> None:
    """All at once. Where two processes write at the same time, one's verdict may be lost, and is found again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with open(handle, "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(aside, path)
    except OSError:
        os.unlink(aside)
        raise


@functools.cache
def setting(device: torch.device) -> str:
    """What a verdict depends on, in words: chip, driver, PyTorch, Triton and these kernels."""
    return ", ".join(f"{name} {what}" for name, what in versions(device).items())


def versions(device: torch.device) -> dict[str, str]:
    import relattn

    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return {
        "chip": chip(device),
        "driver": driver(device),
        "torch": torch.__version__,
        "Triton": triton_version(),
        "relattn": f"{relattn.__version__} (kernels {hashlib.sha256(sources).hexdigest()[:8]})",
    }


def chip(device: torch.device) -> str:
    from relattn.backends.triton import interpreted

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{name} in Triton's interpreter" if interpreted() else name


def driver(device: torch.device) -> str:
    """The NVIDIA driver's version, or, where the system does not say, the CUDA version that it is for."""
    if device.type != "cuda":
        return "none"
    with contextlib.suppress(OSError):
        told = re.search(r"Module.*?(\d+\.[\d.]+)", Path("/proc/driver/nvidia/version").read_text(encoding="utf-8"))
        if told is not None:
            return told[1]
    return f"for CUDA {torch._C._cuda_getDriverVersion()}"  # type: ignore[attr-defined]


def triton_version() -> str:
    import triton

    return triton.__version__
