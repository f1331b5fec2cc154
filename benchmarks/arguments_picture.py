"""Draws the pictures of docs/arguments.md: what the calls on that page do, seen through the operator itself.

A picture shows the calls of the Python lines before it, a matrix of queries by keys for each call and sequence:

    rows-NAME.svg      the row of the tables that each pair reads, a dash where it reads none
    terms-NAME.svg     the relative term of each pair's score
    weights-NAME.svg   the probabilities

Pairs that are not attended to stay empty.
"""

import re
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import relattn

PAGE = Path(__file__).parents[1] / "docs" / "arguments.md"
PARTS = re.compile(r"```python\n(?P<code>.*?)```|^!\[[^]]*\]\((?P<path>[^)]+)\)$", re.DOTALL | re.MULTILINE)
CELL, GAP, EDGE = 30, 26, 22
LEFT, MIDDLE, RIGHT = (33, 102, 172), (247, 247, 247), (217, 95, 14)

Made = tuple[Callable[..., Any], dict[str, Any]]  # an operator and what it was given
Shown = tuple[Tensor, float, float]  # (batch, heads, queries, keys), and the numbers that have the darkest colours


def pictures(page: Path = PAGE) -> dict[Path, str]:
    """The SVG of each picture on the page, by its path."""
    names: dict[str, Any] = {}
    calls: list[Made] = []

    def seen(operator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append((operator, dict(signature(operator).bind(*args, **kwargs).arguments)))
            return operator(*args, **kwargs)

        return call

    operators = {name: getattr(relattn, name) for name in ("relative_attention", "relation_attention")}
    drawn = {}
    for part in PARTS.finditer(page.read_text(encoding="utf-8")):
        if part["code"]:
            calls.clear()
            exec(part["code"], names)
            names |= {name: seen(operator) for name, operator in operators.items()}
        elif part["path"].startswith(page.stem):
            kind = Path(part["path"]).name.partition("-")[0]
            drawn[page.parent / part["path"]] = draw([KINDS[kind](*made) for made in calls], kind)
    return drawn


def by_key(operator: Callable[..., Any], given: dict[str, Any]) -> Tensor:
    """The scores of a call, (batch, heads, queries, keys), −inf where a pair is not attended to: a key at a time."""
    keys, mask = given["key"].shape[2], given.get("mask")
    found = []
    for j in range(keys):
        alone = torch.arange(keys) == j
        given["mask"] = alone[None] if mask is None else mask & alone
        found.append(operator(**given, return_lse=True)[1])
    return torch.stack(found, -1)


def rows(operator: Callable[..., Any], given: dict[str, Any]) -> Shown:
    """The row that each pair reads; −1 where it reads none, −inf where it is not attended to."""
    tables = [given.pop(name) for name in ("rel_key", "rel_value") if name in given]
    given["query"] = torch.zeros_like(given["query"])
    labels = tables[0].shape[-2] if tables else 1
    if tables:  # each row holds its own number, from 1
        given["rel_key"] = torch.arange(1.0, labels + 1)[:, None]
        given |= {"rel_query": torch.ones_like(given["query"][..., :1]), "scale": 1.0}
    return by_key(operator, given).round() - 1, 0, labels - 1


def terms(operator: Callable[..., Any], given: dict[str, Any]) -> Shown:
    """The relative term of each pair's score."""
    query = given["query"]
    given = {"rel_query": query, "scale": query.shape[-1] ** -0.5} | given
    found = by_key(operator, given | {"query": torch.zeros_like(query)})
    most = float(found.abs().max())
    return found, -most, most


def weights(operator: Callable[..., Any], given: dict[str, Any]) -> Shown:
    """The probabilities, which is what attention makes of values that are unit vectors."""
    key = given["key"]
    return operator(**given | {"value": torch.eye(key.shape[2]).expand(*key.shape[:2], -1, -1)}), -1, 1


KINDS = {"rows": rows, "terms": terms, "weights": weights}


def draw(calls: list[Shown], kind: str) -> str:
    """An SVG of the first head of each call and sequence, side by side."""
    matrices = [(sequence[0], *bounds) for call, *bounds in calls for sequence in call]
    titled = len(matrices) > 1
    top, left, parts = 40 if titled else 24, EDGE, []
    for number, (matrix, low, high) in enumerate(matrices):
        if titled:
            title = f"{'call' if len(calls) > 1 else 'sequence'} {number}"
            parts.append(text(left, 14, title, anchor="start", size=12))
        for j in range(matrix.shape[1]):
            parts.append(text(left + (j + 0.5) * CELL, top - 7, j, size=10, fill="#57606a"))
        for i, row in enumerate(matrix.tolist()):
            parts.append(text(left - 9, top + (i + 0.5) * CELL + 4, i, size=10, fill="#57606a"))
            for j, value in enumerate(row):
                parts += cell(left + j * CELL, top + i * CELL, value, kind, (value - low) / (high - low or 1))
        left += matrix.shape[1] * CELL + GAP
    height = top + max(matrix.shape[0] for matrix, *_ in matrices) * CELL + 8
    size = f'width="{left}" height="{height}" viewBox="0 0 {left} {height}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">']
    lines += [f'<rect width="{left}" height="{height}" rx="6" fill="#ffffff"/>', *parts, "</svg>"]
    return "\n".join(lines) + "\n"


def cell(x: float, y: float, value: float, kind: str, place: float) -> list[str]:
    """A pair, in a colour that goes from blue at place 0 to orange at 1."""
    square = f'x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{CELL - 2}" rx="3"'
    if value == float("-inf"):
        return [f'<rect {square} fill="none" stroke="#d8dee4" stroke-dasharray="2 3"/>']
    if kind == "rows" and value < 0:
        return [f'<rect {square} fill="#f6f8fa"/>', text(x + CELL / 2, y + CELL / 2 + 4, "–", fill="#57606a")]
    towards, share = (LEFT, 1 - 2 * place) if place < 0.5 else (RIGHT, 2 * place - 1)
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(MIDDLE, towards, strict=True))
    shown = f"{value:.0f}" if kind == "rows" else f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−")
    fill = "#ffffff" if share > 0.6 else "#1f2328"
    colour = f"#{red:02x}{green:02x}{blue:02x}"
    return [f'<rect {square} fill="{colour}"/>', text(x + CELL / 2, y + CELL / 2 + 4, shown, fill=fill)]


def text(x: float, y: float, what: object, *, anchor: str = "middle", size: int = 11, fill: str = "#1f2328") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{what}</text>'


def main() -> None:
    for path, content in pictures().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
