"""Compile the kernels for the wheels of both distributions: one library each, with all processor levels of a machine.

`levels.h` lists the levels. The structures of the public header are written beside the library, for its loader. The C
compiler of this machine is used, if there is one. RELATTN_TARGET selects another target, which `ziglang` compiles for:

    x86_64-linux-gnu.2.28, aarch64-linux-gnu.2.28     Linux with a C library (glibc) of at least this version
    aarch64-macos.11.0                                macOS on ARM, from this version on
    none                                              no kernels, for all other machines
"""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib
from importlib.util import find_spec
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path(__file__).parent
FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-Wno-psabi", "-Wno-unknown-warning-option"]
FLAGS += ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
DEFINES = {"float32": [], "float64": ["-DREAL64"], "bfloat16": ["-DBF16"], "int8": []}
SCALARS = {"ptrdiff_t": "c_ssize_t", "uint64_t": "c_uint64", "float": "c_float", "double": "c_double"}
DTYPES = {"EXACT": ["float32", "float64"], "BFLOAT16": ["bfloat16"], "TILES": ["bfloat16", "int8"]}  # of `levels.h`


class Library(NamedTuple):
    """The library of a distribution: its name, its folder there, its kernels, and the dtypes that they compute in."""

    name: str
    folder: Path
    kernels: str
    dtypes: list[str]


ATTENTION = Library(
    "relattn", Path("src/relattn/backends/native"), "attention/attention.c", ["float32", "float64", "bfloat16"]
)
ENGINE = Library("relattn_mt", Path("src/relattn_mt/engine"), "engine/engine.c", ["float32", "int8"])
WEB = Path("src/relattn_mt/web")  # of the toolkit


class Target(NamedTuple):
    """The machine and system of a wheel: its platform tag, its machine, and the command of the compiler."""

    tag: str
    machine: str
    compiler: list[str]


def levels(target: Target) -> dict[str, tuple[list[str], list[str]]]:
    """Return the dtypes and the compiler flags of the levels of a machine, best first. Apple's have no SVE."""
    table = (SOURCES / "levels.h").read_text("utf-8")
    macro = target.machine.upper() if target.machine in ("x86_64", "aarch64") else "OTHER"
    found = {}
    for level, dtypes, flags in re.findall(rf'^{macro}\((\w+), (\w+), .*, "(.*)"\)$', table, re.MULTILINE):
        if "ziglang" in target.compiler:  # its processor names have _ instead of -
            flags = re.sub(r"(?<=-march=)\S+", lambda match: match[0].replace("-", "_"), flags)
        found[level] = DTYPES[dtypes], flags.split()
    if target.tag.startswith("macosx"):
        found.pop("sve256", None)
    return found


def structures(header: str) -> dict[str, list[tuple[str, Any]]]:
    """Return the fields of the structures that a header declares, with types of ctypes; a list is a function's."""
    declared: dict[str, list[tuple[str, Any]]] = {}
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    for body, name in re.findall(r"typedef struct \{(.*?)\} relattn_(?:mt_)?(\w+);", code, flags=re.DOTALL):
        fields: list[tuple[str, Any]] = []
        for line in map(str.strip, body.split(";")[:-1]):
            if function := re.fullmatch(r"ptrdiff_t \(\*(\w+)\)\((.*)\)", line):
                arguments = function[2].split(",")
                fields.append((function[1], ["c_void_p" if "*" in each else "c_ssize_t" for each in arguments]))
            elif declaration := re.fullmatch(r"(?:const )?(?:relattn_(?:mt_)?)?(\w+) (\*?\w+(?:, \*?\w+)*)", line):
                kind = SCALARS.get(declaration[1], declaration[1])
                pointer = "c_char_p" if kind == "char" else "c_void_p"
                members = declaration[2].split(", ")
                fields += [(member.lstrip("*"), pointer if member[0] == "*" else kind) for member in members]
            else:
                raise ValueError(f"{name} must have fields of the form 'type names;', got {line!r}")
        declared[name] = fields
    return declared


def host_target() -> Target | None:
    """Return this machine as a target of its C compiler, or None if there is no compiler."""
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]  # may have a wrapper and flags
    if sys.platform not in ("linux", "darwin") or not shutil.which(compiler[0]):
        return None
    machine = platform.machine()
    tag = re.sub(r"\W", "_", sysconfig.get_platform()).replace("universal2", machine)
    return Target(tag, {"arm64": "aarch64"}.get(machine, machine), compiler)


def parse_target(target: str) -> Target | None:
    """Return the target that a value of RELATTN_TARGET names, or None for "none"."""
    if target == "none":
        return None
    match = re.fullmatch(r"(x86_64|aarch64)-linux-gnu\.(\d+)\.(\d+)|(aarch64)-macos\.(\d+)\.(\d+)", target)
    if not match:
        raise SystemExit(f"RELATTN_TARGET must be MACHINE-linux-gnu.X.Y, aarch64-macos.X.Y or none, got {target!r}")
    if not find_spec("ziglang"):
        raise SystemExit(f"RELATTN_TARGET={target} requires the compiler ziglang: pip install ziglang")
    machine, major, minor = (group for group in match.groups() if group)
    is_macos = "macos" in target
    tag = f"macosx_{major}_{minor}_arm64" if is_macos else f"manylinux_{major}_{minor}_{machine}"
    return Target(tag, machine, [sys.executable, "-m", "ziglang", "cc", "-target", target, "-s"])


def part_commands(library: Library, target: Target) -> dict[tuple[str, str], list[str]]:
    """Return the commands that compile the parts of a library, by level and dtype, each into `LEVEL-DTYPE.o`."""
    commands = {}
    for level, (dtypes, flags) in levels(target).items():
        for dtype in (dtype for dtype in dtypes if dtype in library.dtypes):
            names = [f"-DPART=relattn_{level}_{dtype}", f'-DLEVEL_NAME="{level}"', f'-DLEVEL_FILE="{level}.h"']
            files = ["-c", str(SOURCES / library.kernels), "-o", f"{level}-{dtype}.o"]
            commands[level, dtype] = [*target.compiler, *flags, *FLAGS, *DEFINES[dtype], *names, *files]
    return commands


def build(library: Library, target: Target, folder: Path) -> list[tuple[str, str]]:
    """Write a library, its header and its structures into a folder. Return the parts that could not be compiled."""
    commands = part_commands(library, target)
    source = SOURCES / library.kernels
    path = folder / f"{library.name}.so"

    def run(command: list[str]) -> bool:  # with names of outputs, since macOS writes them into libraries
        return subprocess.run(command, cwd=folder).returncode == 0

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPool(cores) as pool:  # one compiler takes up to half a gigabyte
        results = pool.map(run, commands.values(), chunksize=1)
    parts = [part for part, succeeded in zip(commands, results, strict=True) if succeeded]
    names = "-DPARTS=" + " ".join(f"PART({level}, {dtype})" for level, dtype in parts)
    objects = [str(SOURCES / "levels.c"), str(source.with_name("open.c")), *(f"{'-'.join(part)}.o" for part in parts)]
    end = ["-lm", "-ldl", "-lpthread", "-o", path.name]
    is_linked = bool(parts) and run([*target.compiler, *FLAGS, names, "-shared", *objects, *end])
    for part in parts:
        (folder / f"{'-'.join(part)}.o").unlink()
    if not is_linked:
        return list(commands)
    header = source.with_name(f"{library.name}.h")
    data = {"crc32": zlib.crc32(path.read_bytes()), "structures": structures(header.read_text("utf-8"))}
    path.with_suffix(".json").write_text(json.dumps(data), encoding="utf-8")
    shutil.copy(header, folder)
    return [part for part in commands if part not in parts]


def build_web(folder: Path) -> list[Path]:
    """Write the engine in WebAssembly into a folder, and return its files. Without `ziglang`, there are none."""
    if not find_spec("ziglang"):
        return []
    for path in folder.glob("*.wasm"):
        path.unlink()
    subprocess.run([sys.executable, str(SOURCES / "web.py"), str(folder)], check=True)
    return sorted(folder.glob("*.wasm"))


class CompileKernels(BuildHookInterface):
    """Compile the library of a distribution. Parts that fail are left out for this machine, and errors for a target.

    For a target, also compile the engine in WebAssembly.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        target_name = os.environ.get("RELATTN_TARGET", "")
        target = parse_target(target_name) if target_name else host_target()
        library = ATTENTION if (root / ATTENTION.folder).is_dir() else ENGINE
        if target_name and library is ENGINE:
            build_data["artifacts"] += [f"/{path.relative_to(root)}" for path in build_web(root / WEB)]
        if target is None:
            if not target_name:
                self.app.display_warning("relattn: no C compiler for the kernels; building without them")
            return
        files = [library.folder / f"{library.name}.{suffix}" for suffix in ("so", "json", "h")]
        for file in files:
            (root / file).unlink(missing_ok=True)
        for level, dtype in build(library, target, root / library.folder):
            message = f"relattn: the kernels of {library.name} for {level} in {dtype} could not be compiled"
            if target_name:
                raise SystemExit(f"{message} for {target_name}")
            self.app.display_warning(f"{message}; building without them")
        if (root / files[0]).exists():
            build_data["artifacts"] += [f"/{file}" for file in files]
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{target.tag}"  # for every version of Python
