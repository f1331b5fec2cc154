"""Print the size of the shipped Python by package, and the words of the documentation by page.

    python -m tools.size

Nodes and statements are those of the syntax trees. Words are those of Markdown pages outside of tables, which are lines
that begin with "|". Code in pages counts.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = {"relattn": ROOT / "library/src/relattn", "relattn_mt": ROOT / "toolkit/src/relattn_mt"}
PAGES = ("*.md", ".github/*.md", "benchmarks/*.md", "docs/**/*.md", "library/**/*.md", "toolkit/**/*.md")


def code_size(paths: list[Path]) -> tuple[int, int, int]:
    """Return the number of nodes, statements and lines of Python files."""
    texts = [path.read_text(encoding="utf-8") for path in paths]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    return len(nodes), statements, sum(text.count("\n") for text in texts)


def package_size() -> dict[str, tuple[int, int, int]]:
    """Return nodes, statements and lines of each package, and of each of its folders, by name."""
    sizes = {}
    for name, folder in SOURCES.items():
        sizes[name] = code_size([*folder.rglob("*.py")])
        for part in sorted(path for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.py"))):
            sizes[f"  {name}.{part.name}"] = code_size([*part.rglob("*.py")])
    return sizes


def words(text: str) -> int:
    """Return the number of words outside of tables."""
    return sum(len(line.split()) for line in text.splitlines() if not line.lstrip().startswith("|"))


def page_words() -> dict[str, int]:
    """Return the number of words of each page by its path."""
    paths = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    return {path.relative_to(ROOT).as_posix(): words(path.read_text(encoding="utf-8")) for path in paths}


def main() -> None:
    print(f"{'nodes':>9} {'statements':>10} {'per statement':>13} {'lines':>7}")
    for name, (nodes, statements, lines) in package_size().items():
        print(f"{nodes:9,} {statements:10,} {nodes / statements:13.1f} {lines:7,}  {name}")
    pages = page_words()
    print(f"\n{'words':>9} outside of tables")
    for name, count in [*pages.items(), ("all pages", sum(pages.values()))]:
        print(f"{count:9,}  {name}")


if __name__ == "__main__":
    main()
