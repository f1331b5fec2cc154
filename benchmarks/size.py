"""Size of the source tree: code tokens per package, the longest files and the longest functions.

Comments, docstrings, blank lines and layout are not counted, so rewriting a docstring changes nothing here. Run it on
formatted code (`make format`):

    python -m benchmarks.size                     # src/relattn
    python -m benchmarks.size path/to/src/relattn # another tree
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_tokens(source: str) -> int:
    """Number of tokens of a module, without comments, docstrings and layout."""
    docstrings = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type not in LAYOUT and token.start not in docstrings for token in tokens)


def functions(source: str) -> list[tuple[int, str]]:
    """Length in lines and name of every function of a module; decorators are counted, docstrings too."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.append((node.end_lineno - first + 1, node.name))
    return found


def package_of(path: Path) -> str:
    """First two directories of a file's path, as in "translation/model"; "." for files at the root."""
    return "/".join(path.parts[:-1][:2]) or "."


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the code tokens of a source tree.")
    parser.add_argument("root", nargs="?", type=Path, default=Path("src/relattn"), help="directory (src/relattn)")
    parser.add_argument("--longest", type=int, default=5, help="number of files and functions to list (5)")
    options = parser.parse_args()
    tokens: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    lengths, longest = [], []
    for path in sorted(options.root.rglob("*.py")):
        source, place = path.read_text(encoding="utf-8"), path.relative_to(options.root)
        package = package_of(place)
        files[package] += 1
        tokens[package] += code_tokens(source)
        lines[package] += source.count("\n")
        lengths.append((source.count("\n"), str(place)))
        longest += [(length, f"{place}:{name}") for length, name in functions(source)]
    print(f"{'package':30} {'files':>6} {'lines':>7} {'code tokens':>12}")
    for package in sorted(files):
        print(f"{package:30} {files[package]:>6} {lines[package]:>7,} {tokens[package]:>12,}")
    print(f"{'all':30} {files.total():>6} {lines.total():>7,} {tokens.total():>12,}")
    for title, ranking in (("longest files", lengths), ("longest functions", longest)):
        print(f"\n{title}, in lines:")
        for length, name in sorted(ranking, reverse=True)[: options.longest]:
            print(f"{length:>6} {name}")


if __name__ == "__main__":
    main()
