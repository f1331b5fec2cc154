"""Slips as a person makes them, in Python and C: single changes of a file, for `tools/mutants.py`."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "startswith": "endswith", "endswith": "startswith",
    "lstrip": "rstrip", "rstrip": "lstrip", "find": "rfind", "rfind": "find", "partition": "rpartition",
    "start": "end", "end": "start",
}  # fmt: skip
C_SLIPS = [  # a pattern of a line of C, and what replaces it
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "), (r" != ", " == "),
    (r" \+ 1\b", ""), (r" - 1\b", ""), (r" \+ ", " - "), (r" - ", " + "), (r" \+= ", " = "), (r" && ", " || "),
    (r" \|\| ", " && "), (r" \* ", " + "), (r"\bif \((?=[^()]*\) )", "if (!"), (r" = 0;", " = 1;"),
    (r"\bMIN\(", "MAX("), (r"\bMAX\(", "MIN("), (r"(?<=[;{] )[a-z_]\w*(?:\[[^=;]*\])? [-+*]?= [^;{}]+;", ";"),
    (r"^ +[a-z_]\w*(?:\[[^=;]*\])? [-+*]?= [^;{}]+;$", ";"), (r"^ +[a-z_]\w*\([^;{}]*\);$", ";"),
]  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of a file: characters from `start` to `end` become `text`."""

    path: str
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """Return the content of the file with the change."""
        return source[: self.start] + self.text + source[self.end :]

    def describe(self, source: str) -> str:
        """Return the place of the change, as an editor takes it, the code before and after it."""
        line = source.count("\n", 0, self.start) + 1
        column = self.start - source.rfind("\n", 0, self.start)
        return f"{self.path}:{line}:{column}\n    - {source[self.start : self.end]}\n    + {self.text}"


def python_mutants(path: str, source: str) -> list[list[Mutant]]:
    """Return the mutants of a Python file, grouped by the place that they change."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    encoded = source.encode()

    def offset(line: int, column: int) -> int:
        return len(encoded[: starts[line - 1] + column].decode())

    places = []
    for node in shipped_nodes(ast.parse(source)):
        end_line, end_column = getattr(node, "end_lineno", None), getattr(node, "end_col_offset", None)
        if end_line is None or end_column is None:
            continue
        start, end = offset(node.lineno, node.col_offset), offset(end_line, end_column)  # type: ignore[attr-defined]
        is_expression = isinstance(node, ast.expr) and not isinstance(node, ast.Constant | ast.Slice)
        texts = [f"({text})" if is_expression else text for text in map(ast.unparse, slips(node))]
        if texts:
            places.append([Mutant(path, start, end, text) for text in texts])
    return places


def shipped_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree that are executed and that are no messages."""
    yield node
    for name, value in ast.iter_fields(node):
        is_skipped = name in ("annotation", "returns", "decorator_list", "msg", "exc")
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.Assign) and re.match(r"_?[A-Z]\w*[a-z]\w* = \w+[\[ ][^(]*$", ast.unparse(child)):
                continue  # an alias of a type
            if not is_skipped:
                yield from shipped_nodes(child)


def slips(node: ast.AST) -> Iterator[ast.AST]:
    """Yield variants of a node, each with one slip."""

    def variant(**fields: object) -> ast.AST:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        return other

    def without(name: str) -> Iterator[ast.AST]:
        items = getattr(node, name)
        for i in range(len(items)):
            yield variant(**{name: items[:i] + items[i + 1 :]})

    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            yield variant(ops=[COMPARISONS[type(operator)]()])
        case ast.BinOp(op=operator) if type(operator) in ARITHMETIC:
            yield variant(op=ARITHMETIC[type(operator)]())
            yield node.left
        case ast.BoolOp(op=operator, values=values):
            yield variant(op=ast.Or() if isinstance(operator, ast.And) else ast.And())
            yield from without("values") if len(values) > 2 else iter(values)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.If() | ast.While() | ast.IfExp():
            negated = ast.UnaryOp(ast.Not(), node.test)
            if isinstance(node, ast.IfExp):
                yield from (variant(test=negated), node.body, node.orelse)
        case ast.Call(func=function, args=arguments):
            yield from without("keywords")
            if len(arguments) == 2 and all(isinstance(each, ast.Name | ast.Attribute) for each in arguments):
                yield variant(args=arguments[::-1])
            name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            if name in NAMES and isinstance(function, ast.Name):
                yield variant(func=ast.Name(NAMES[name]))
            elif name in NAMES and isinstance(function, ast.Attribute):
                yield variant(func=ast.Attribute(function.value, NAMES[name]))
        case ast.Slice(lower=lower, upper=upper):
            if lower is not None:
                yield variant(lower=ast.BinOp(lower, ast.Add(), ast.Constant(1)))
            if upper is not None:
                yield variant(upper=None)
        case ast.Tuple(elts=elements, ctx=ast.Load()) if len(elements) > 2:
            yield from without("elts")
        case ast.Set(elts=elements) | ast.List(elts=elements, ctx=ast.Load()) if len(elements) > 1:
            yield from without("elts")
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Pass()
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield ast.Pass()


def conditions(path: str, source: str) -> list[list[Mutant]]:
    """Return the mutants of a Python file that negate the condition of a statement."""
    found = []
    for match in re.finditer(r"^ +(?:el)?(?:if|while) (.+):$", source, re.MULTILINE):
        if "TYPE_CHECKING" not in match[1]:
            found.append([Mutant(path, *match.span(1), f"not ({match[1]})")])
    return found


def c_mutants(path: str, source: str) -> list[list[Mutant]]:
    """Return the mutants of a C file, grouped by line."""
    is_code = re.sub(
        r"/\*[^*]*(?:\*[^/][^*]*)*\*/|^#(?:.*\\\n)*.*$", lambda m: re.sub(r"[^\n]", "\0", m[0]), source, flags=re.M
    )
    places, start = [], 0
    for line in is_code.splitlines(keepends=True):
        found = [
            Mutant(path, start + match.start(), start + match.end(), text)
            for pattern, text in C_SLIPS
            for match in re.finditer(pattern, line.rstrip("\n"))
        ]
        if found:
            places.append(found)
        start += len(line)
    return places
