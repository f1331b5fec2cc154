"""Which tests execute which block of shipped code: a plugin of pytest, for a copy of the tree that is instrumented.

A block is the body of a function, of a loop, or of a branch. Each gets a statement that sets one byte, which takes a
few nanoseconds, where a tracer of lines takes as long as the tests. What a fixture or the import of a test file
executes belongs to all tests of the file.
"""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

MODULE = "_executed_blocks"  # beside the packages of the copy
RECORD = Path("blocks.json")  # of the copy
Block = tuple[str, int, int]  # a file, its first and its last line


def instrument(root: Path, folders: tuple[str, ...]) -> list[Block]:
    """Change all Python files of folders so that each block records that it is executed. Return the blocks."""
    blocks: list[Block] = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            Marker(str(path.relative_to(root)), blocks).visit(tree)
            after = 0
            while after < len(tree.body) and is_before_imports(tree.body[after]):
                after += 1
            tree.body.insert(after, ast.parse(f"from {MODULE} import executed as executed_blocks").body[0])
            path.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
    for folder in folders:
        text = f"executed = bytearray({len(blocks)})\n"
        (root / folder / f"{MODULE}.py").write_text(text, encoding="utf-8")
    return blocks


def is_before_imports(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring or an import from `__future__`."""
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_docstring or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__")


class Marker(ast.NodeTransformer):
    """Adds a statement to each block of a file.

    Args:
        path: The file.
        blocks: All blocks up to now, to which those of the file are added.
    """

    def __init__(self, path: str, blocks: list[Block]) -> None:
        self.path = path
        self.blocks = blocks

    def generic_visit(self, node: ast.AST) -> ast.AST:
        is_compiled = any("jit" in ast.unparse(decorator) for decorator in getattr(node, "decorator_list", ()))
        if is_compiled:  # Triton reads the source of its kernels
            return node
        super().generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._mark(node.body, node.lineno)
        elif isinstance(node, ast.If | ast.For | ast.While | ast.Try | ast.ExceptHandler | ast.match_case):
            for name in ("body", "orelse", "finalbody"):
                body = getattr(node, name, [])
                if body:
                    self._mark(body, body[0].lineno)
        return node

    def _mark(self, body: list[ast.stmt], first: int) -> None:
        last = body[-1].end_lineno or first
        mark = ast.parse(f"executed_blocks[{len(self.blocks)}] = 1").body[0]
        self.blocks.append((self.path, first, last))
        body.insert(1 if is_before_imports(body[0]) else 0, mark)


class Recorder:
    """Writes which test, or which file of tests, has executed which blocks."""

    def __init__(self, executed: bytearray) -> None:
        self.executed = executed
        self.found: dict[str, set[int]] = {}
        self.written = time.monotonic()

    def take(self, name: str) -> None:
        """Count what has been executed since the last call for a test or a file."""
        numbers = {i for i, value in enumerate(self.executed) if value}
        self.executed[:] = bytes(len(self.executed))
        self.found.setdefault(name, set()).update(numbers)

    def write(self) -> None:
        """Write the record."""
        RECORD.write_text(json.dumps({name: sorted(numbers) for name, numbers in self.found.items()}))
        self.written = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        report = yield
        name = collector.nodeid.partition("::")[0]
        self.take(name)
        if not name.endswith(".py"):  # a folder
            del self.found[name]
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.take(item.nodeid.partition("::")[0])
        try:
            return (yield)
        finally:
            self.take(item.nodeid)
            if time.monotonic() > self.written + 60.0:
                self.write()

    def pytest_sessionfinish(self) -> None:
        self.write()


def pytest_configure(config: pytest.Config) -> None:
    import _executed_blocks  # of the copy

    config.pluginmanager.register(Recorder(_executed_blocks.executed))
