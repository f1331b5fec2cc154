"""Draw the pictures of the documentation: docs/*.svg and arguments/*.svg.

    python -m tools.pictures

The first show the rows of the CSV files in benchmarks/results. Those of docs/arguments.md show the calls before
each picture, as a matrix of queries × keys per call and sequence: in rows-NAME.svg, the table row that each pair reads,
a dash if it reads none; in terms-NAME.svg, the relative term of each pair's score. Cells of masked pairs are empty.
"""

import csv
import re
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import relattn
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from torch import Tensor

from benchmarks.measure import RESULTS
from tools import DOCS

GREY, GRID = "#57606a", "#d0d7de"
BLUE, ORANGE, GREEN, PURPLE, PINK = "#0550ae", "#bc4c00", "#1a7f37", "#8250df", "#bf3989"
COLOURS = (ORANGE, PURPLE, GREEN, BLUE, PINK)  # of processors
Names = dict[str, tuple[str, str]]  # method -> name in the legend, and colour
WINDOWS: Names = {
    "window": ("relattn, window (128, 128)", BLUE),
    "full": ("relattn, all pairs", GREEN),
    "mask": ("PyTorch, a band as mask, no positions", GREY),
    "flex": ("FlexAttention, a band as block mask, no positions", ORANGE),
}
ENCODERS: Names = {"eager": ("own code, eager", ORANGE), "sdpa": ("own code, SDPA", GREY), "relattn": ("relattn", BLUE)}
BOTH, FORWARD = {"pass": "forward + backward"}, {"pass": "forward"}
Panel = tuple[str, dict[str, str], str]  # title, values of columns that choose rows, and column to draw
PANELS_OF_ATTENTION: tuple[Panel, ...] = tuple(
    (f"{rows['pass']}: time ÷ PyTorch's without positions", rows | {"causal": "False"}, "time ratio")
    for rows in (FORWARD, BOTH)
)
PANELS_OF_WINDOWS: tuple[Panel, ...] = tuple(
    (f"microseconds per position, {rows['pass']}", rows, "us per token") for rows in (FORWARD, BOTH)
)
EncoderRows = dict[tuple[str, int, str], dict[str, dict[str, str]]]  # (model, size, unit) -> method -> row


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def draw_processors(results: Path, out: Path) -> None:
    """Draw our time over that of PyTorch's attention by length, a line per processor."""
    from tools.tables import PROCESSORS  # which reads CSV files by this module

    rows = [
        row | {"method": row["device"].removesuffix(", 2 cores")} for row in read(results) if row["method"] == "auto"
    ]
    names = [name for name in PROCESSORS if any(row["method"] == name for row in rows)]
    methods = {name: (PROCESSORS[name], colour) for name, colour in zip(names, COLOURS, strict=False)}
    note = "8 heads, d = 64, k = 16, both tables, 8,192 tokens per batch, float32, two threads"
    draw_lengths(rows, out, methods, PANELS_OF_ATTENTION, note, even=1.0)


def draw_engines(results: Path, out: Path) -> None:
    """Draw words per second of programs that translate with one model, a panel per beam size and a bar per program."""
    from tools.tables import PROCESSORS, PROGRAMS

    rows = [row for row in read(results) if row["threads"] == "1" and row["kind"] == "engine"]
    device = rows[-1]["device"]
    figure, axes = new_figure(figsize=(10, 2.3))
    for axis, beam in zip(axes, ("1", "4"), strict=True):
        speeds = {
            row["name"]: float(row["words_per_second"])
            for row in rows
            if (row["device"], row["beam"]) == (device, beam)
        }
        names = sorted(speeds, key=speeds.__getitem__)
        colours = [BLUE if name == "relattn-mt" else GREY for name in names]
        bars = axis.barh(
            [PROGRAMS[name] for name in names], [speeds[name] for name in names], color=colours, height=0.6
        )
        axis.bar_label(bars, fmt="{:,.0f}", padding=3)
        axis.margins(x=0.15)
        finish(axis, f"words per second, int8, beam {beam}, one thread", axis="x")
    processor = PROCESSORS.get(device.removesuffix(", 2 cores"), device)
    figure.supxlabel(f"one model for all, Multi30k, {processor}", fontsize=9)
    save(figure, out)


def draw_lengths(
    rows: list[dict[str, str]], out: Path, methods: Names, panels: Sequence[Panel], note: str = "", even: float = 0.0
) -> None:
    """Draw a column of float32 rows by length, a line per method, and a dashed line at `even`.

    A line ends before the first length without a row.
    """
    found = [row for row in rows if row.get("dtype", "float32") == "float32"]
    figure, axes = new_figure(figsize=(10, 4.3))
    for axis, (title, wanted, column) in zip(axes, panels, strict=True):
        chosen = [row for row in found if row["method"] in methods and wanted.items() <= row.items()]
        for method, (name, colour) in methods.items():
            points = sorted((int(row["n"]), float(row[column])) for row in chosen if row["method"] == method)
            width = 2.6 if colour == BLUE else 1.5
            axis.plot(*zip(*points, strict=True), color=colour, label=name, linewidth=width, marker="o", markersize=4)
        if even:
            axis.axhline(even, color=GREY, linestyle="--", linewidth=1.2)
        axis.set(xscale="log", yscale="log", xlabel="length n")
        ticks = sorted({int(row["n"]) for row in chosen})
        axis.set_xticks(ticks, [f"{n:,}" for n in ticks], rotation=45, ha="right", rotation_mode="anchor")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")
        finish(axis, title)
    lines = axes[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=3, frameon=False, title=note, title_fontsize=8.5)
    save(figure, out)


def draw_models(results: Path, out: Path) -> None:
    """Draw seconds and memory of encoders, a line per encoder and size. A cross at the edge is a method left out."""
    lines: EncoderRows = {}
    for row in [row for row in read(results) if "AVX2" not in row["device"]]:
        lines.setdefault((row["model"], int(row["size"]), row["unit"]), {})[row["method"]] = row
    figure, (left, right) = new_figure(sharey=True, figsize=(10, 0.6 + 0.24 * len(lines)))
    models_panel(left, lines, "seconds", "seconds")
    models_panel(right, lines, "peak_mib", "peak memory beyond the weights (MiB)")
    for name, colour in ENCODERS.values():
        left.scatter([], [], color=colour, label=name)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    save(figure, out)


def models_panel(axis: Axes, lines: EncoderRows, column: str, title: str) -> None:
    for height, rows in enumerate(reversed(lines.values())):
        values = {method: float(row[column]) for method, row in rows.items() if row[column]}
        axis.plot(list(values.values()), [height] * len(values), color=GRID, linewidth=1.2, zorder=1)
        for method, value in values.items():
            size = 46 if method == "relattn" else 26
            axis.scatter(value, height, color=ENCODERS[method][1], s=size, zorder=3 if method == "relattn" else 2)
        for place, method in enumerate(method for method in rows if method not in values):
            style: dict[str, Any] = {"transform": axis.get_yaxis_transform(), "ha": "center", "va": "center_baseline"}
            axis.text(0.99 - 0.025 * place, height, "×", color=ENCODERS[method][1], **style)
    axis.set(xscale="log", ylim=(-0.7, len(lines) - 0.3))
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,g}")
    axis.margins(x=0.08)
    axis.spines["left"].set_visible(False)
    axis.tick_params(left=False)
    finish(axis, title, axis="x")
    names, before = list[str](), ""
    for model, size, unit in lines:
        names.append(f"{size:,} {unit}" if model == before else f"{model}, {size:,} {unit}")
        before = model
    axis.set_yticks(range(len(lines)), reversed(names))


def new_figure(**options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure with two panels in the common style."""
    matplotlib.use("Agg")
    matplotlib.rcParams |= {"font.size": 9.5, "svg.hashsalt": "relattn", "axes.edgecolor": GREY}
    figure, axes = plt.subplots(1, 2, layout="constrained", facecolor="white", **options)
    return figure, list(axes)


def finish(panel: Axes, title: str, **grid: Any) -> None:
    """Add what all panels have."""
    panel.set_title(title, loc="left", fontsize=10.5)
    panel.minorticks_off()
    panel.grid(color=GRID, linewidth=0.6, **grid)
    panel.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, out: Path) -> None:
    """Write an SVG file, the same bytes for the same rows."""
    figure.savefig(out, dpi=130, metadata={"Date": None})
    plt.close(figure)


PAGE = DOCS / "arguments.md"
PARTS = re.compile(r"```python\n(?P<code>.*?)```|^!\[[^]]*\]\((?P<path>[^)]+)\)$", re.DOTALL | re.MULTILINE)
CELL, GAP, EDGE = 30, 26, 22
LEFT, MIDDLE, RIGHT = (33, 102, 172), (247, 247, 247), (217, 95, 14)
Matrices = tuple[Tensor, float, float]  # (batch, heads, queries, keys), and the values with the darkest colours


def argument_pictures() -> dict[Path, str]:
    """Return the SVG of each picture of docs/arguments.md by its path."""
    names: dict[str, Any] = {}
    calls: list[tuple[Callable[..., Any], dict[str, Any]]] = []  # an operator and its arguments

    def recorded(operator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append((operator, dict(signature(operator).bind(*args, **kwargs).arguments)))
            return operator(*args, **kwargs)

        return call

    operators = {name: getattr(relattn, name) for name in ("relative_attention", "relation_attention")}
    drawn = {}
    for part in PARTS.finditer(PAGE.read_text(encoding="utf-8")):
        if part["code"]:
            calls.clear()
            exec(part["code"], names)
            names |= {name: recorded(operator) for name, operator in operators.items()}
        elif part["path"].startswith(PAGE.stem):
            content = Path(part["path"]).name.partition("-")[0]
            drawn[DOCS / part["path"]] = draw_matrices([CONTENTS[content](*call) for call in calls], content)
    return drawn


def scores(operator: Callable[..., Any], given: dict[str, Any]) -> Tensor:
    """Return the scores of a call, (batch, heads, queries, keys), from the log-sum-exp of one key at a time.

    Scores of masked pairs are −inf.
    """
    keys, mask = given["key"].shape[2], given.get("mask")
    columns = []
    for j in range(keys):
        alone = torch.arange(keys) == j
        given["mask"] = alone[None] if mask is None else mask & alone
        columns.append(operator(**given, return_lse=True)[1])
    return torch.stack(columns, -1)


def rows(operator: Callable[..., Any], given: dict[str, Any]) -> Matrices:
    """Return the table row that each pair reads; −1 for none, −inf for a masked pair."""
    tables = [given.pop(name) for name in ("rel_key", "rel_value") if name in given]
    given["query"] = torch.zeros_like(given["query"])
    labels = tables[0].shape[-2] if tables else 1
    if tables:  # the score of a pair is the number of its row, from 1
        given["rel_key"] = torch.arange(1.0, labels + 1)[:, None]
        given |= {"rel_query": torch.ones_like(given["query"][..., :1]), "scale": 1.0}
    return scores(operator, given).round() - 1, 0, labels - 1


def terms(operator: Callable[..., Any], given: dict[str, Any]) -> Matrices:
    """Return the relative term of each pair's score."""
    query = given["query"]
    given = ({"rel_query": query} if "rel_key" in given else {}) | {"scale": query.shape[-1] ** -0.5} | given
    relative = scores(operator, given | {"query": torch.zeros_like(query)})
    most = float(relative.abs().max())
    return relative, -most, most


CONTENTS = {"rows": rows, "terms": terms}


def draw_matrices(calls: list[Matrices], content: str) -> str:
    """Return an SVG with the first head of each call and sequence, side by side."""
    matrices = [(sequence[0], *bounds) for call, *bounds in calls for sequence in call]
    titled = len(matrices) > 1
    top, left, parts = 40 if titled else 24, EDGE, []
    for number, (matrix, low, high) in enumerate(matrices):
        if titled:
            title = f"{'call' if len(calls) > 1 else 'sequence'} {number}"
            parts.append(text(left, 14, title, anchor="start", size=12))
        for j in range(matrix.shape[1]):
            parts.append(text(left + (j + 0.5) * CELL, top - 7, j, size=10, fill=GREY))
        for i, row in enumerate(matrix.tolist()):
            parts.append(text(left - 9, top + (i + 0.5) * CELL + 4, i, size=10, fill=GREY))
            for j, value in enumerate(row):
                place = (value - low) / (high - low or 1)
                parts += cell(left + j * CELL, top + i * CELL, value, content, place)
        left += matrix.shape[1] * CELL + GAP
    height = top + max(matrix.shape[0] for matrix, *_ in matrices) * CELL + 8
    size = f'width="{left}" height="{height}" viewBox="0 0 {left} {height}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">']
    lines += [f'<rect width="{left}" height="{height}" rx="6" fill="#ffffff"/>', *parts, "</svg>"]
    return "\n".join(lines) + "\n"


def cell(x: float, y: float, value: float, content: str, place: float) -> list[str]:
    """Return the cell of a pair, in a colour from blue at place 0 to orange at 1."""
    square = f'x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{CELL - 2}" rx="3"'
    if value == float("-inf"):
        return [f'<rect {square} fill="none" stroke="#d8dee4" stroke-dasharray="2 3"/>']
    if content == "rows" and value < 0:
        return [f'<rect {square} fill="#f6f8fa"/>', text(x + CELL / 2, y + CELL / 2 + 4, "–", fill=GREY)]
    towards, share = (LEFT, 1 - 2 * place) if place < 0.5 else (RIGHT, 2 * place - 1)
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(MIDDLE, towards, strict=True))
    shown = f"{value:.0f}" if content == "rows" else f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−")
    fill = "#ffffff" if share > 0.6 else "#1f2328"
    colour = f"#{red:02x}{green:02x}{blue:02x}"
    return [f'<rect {square} fill="{colour}"/>', text(x + CELL / 2, y + CELL / 2 + 4, shown, fill=fill)]


def text(x: float, y: float, what: object, *, anchor: str = "middle", size: int = 11, fill: str = "#1f2328") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{what}</text>'


def main() -> None:
    draw_processors(RESULTS / "attention-cpu.csv", DOCS / "attention.svg")
    draw_engines(RESULTS / "engines-cpu.csv", DOCS / "engines.svg")
    windows = [row for row in read(RESULTS / "windows-cpu.csv") if "AVX2" not in row["device"]]  # with most rows
    draw_lengths(windows, DOCS / "windows.svg", WINDOWS, PANELS_OF_WINDOWS)
    draw_models(RESULTS / "models-cpu.csv", DOCS / "models.svg")
    for path, content in argument_pictures().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
