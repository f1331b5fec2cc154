"""The sampler of mutants: each is another program, and a sample is the same for a seed."""

import ast
import random
from pathlib import Path

from tools import mutants, slips

SOURCE = '''"""A module."""

Pair = tuple[int, int, int]


def f(x: int, *, twice: bool = False) -> int:
    """Return a number."""
    if x < 0:
        raise ValueError(f"x must not be negative, got {x + 1}")
    total = 0
    for i in range(x):
        total += i * 2 if twice else i
    return max(total, len([1, 2][:x]))
'''


def test_each_mutant_is_another_program() -> None:
    """Annotations, messages and docstrings stay; operators, conditions, numbers and statements change."""
    places = slips.python_mutants("a.py", SOURCE) + slips.conditions("a.py", SOURCE)
    changed = [mutant.apply(SOURCE) for place in places for mutant in place]
    assert len({*map(ast.dump, map(ast.parse, changed))}) == len({*changed})
    for each in changed:
        assert ast.dump(ast.parse(each)) != ast.dump(ast.parse(SOURCE))
        assert 'f"x must not be negative, got {x + 1}"' in each
        assert "x: int, *, twice: bool" in each
        assert "Pair = tuple[int, int, int]" in each
    parts = ["x <= 0", "not (x < 0)", "total = 1", "pass", "min(total", "[:]", "i // 2", "twice: bool = True"]
    for part in parts:
        assert any(part in ast.unparse(ast.parse(each)) or part in each for each in changed), part
    code = "/* a < b */\n#define A (1 < 2)\nint f(int a) {\n    a += 1;\n    return a < 2 && a > 0;\n}\n"
    changed = [mutant.apply(code) for place in slips.c_mutants("a.c", code) for mutant in place]
    assert all("/* a < b */\n#define A (1 < 2)\nint f(int a) {" in each for each in changed)
    assert any("a <= 2 &&" in each for each in changed)
    assert any("a < 2 || a" in each for each in changed)


def test_samples_are_the_same_for_a_seed() -> None:
    paths = mutants.shipped_files(["toolkit/src/relattn_mt/search"], (".py",))
    one, same, other = (mutants.sample(paths, 9, False, random.Random(seed)) for seed in (1, 1, 2))
    assert one == same != other
    in_c = mutants.sample(mutants.shipped_files(["kernels"], (".c", ".h")), 9, True, random.Random(1))
    assert len({mutant.path for mutant in in_c}) > 2


def test_a_mutant_in_c_is_compiled_and_undone(tmp_path: Path) -> None:
    tree, path = mutants.Copy(tmp_path), "kernels/engine/engine.c"
    library = tmp_path / "toolkit/src/relattn_mt/engine/relattn_mt.so"
    files = {name: name.read_bytes() for name in (library, tmp_path / path)}
    assert tree.change(path, "const void *const PART = 0;\n")
    assert library.read_bytes() != files[library]
    assert not tree.change(path, "#error\n")
    tree.restore(path)
    assert {name: name.read_bytes() for name in files} == files
