"""Draws what `benchmarks.models` measured: a line for each encoder and length, own code and ours, seconds and memory.

A cross ends the line of a method that was left out or ended, and stands at the edge.
"""

import csv
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.picture import begin, command, save

COLOURS = {"eager": "#bc4c00", "sdpa": "#57606a", "relattn": "#0550ae"}
NAMES = {"eager": "own code, eager", "sdpa": "own code, SDPA", "relattn": "relattn"}
Lines = dict[tuple[str, int, str], dict[str, dict[str, str]]]  # model, size, unit -> a method's name -> its row


def read(path: Path) -> Lines:
    lines: Lines = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            lines.setdefault((row["model"], int(row["size"]), row["unit"]), {})[row["method"]] = row
    return lines


def panel(axis: Axes, lines: Lines, column: str, title: str) -> None:
    for height, rows in enumerate(reversed(lines.values())):
        found = {method: float(row[column]) for method, row in rows.items() if row[column]}
        axis.plot(list(found.values()), [height] * len(found), color="#d0d7de", linewidth=1.2, zorder=1)
        for method, value in found.items():
            size = 46 if method == "relattn" else 26
            axis.scatter(value, height, color=COLOURS[method], s=size, zorder=3 if method == "relattn" else 2)
        for place, method in enumerate(method for method in rows if method not in found):
            axis.text(
                0.99 - 0.025 * place,
                height,
                "×",
                transform=axis.get_yaxis_transform(),
                color=COLOURS[method],
                ha="center",
                va="center_baseline",
            )
    axis.set(xscale="log", ylim=(-0.7, len(lines) - 0.3))
    axis.set_title(title, loc="left", fontsize=10.5)
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,g}")
    axis.minorticks_off()
    axis.margins(x=0.08)
    axis.grid(axis="x", color="#d0d7de", linewidth=0.6)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(left=False)
    names = [
        f"{model}, {size:,} {unit}" if place == 0 or before != model else f"{size:,} {unit}"
        for place, ((model, size, unit), before) in enumerate(
            zip(lines, ["", *(model for model, _, _ in lines)], strict=False)
        )
    ]
    axis.set_yticks(range(len(lines)), reversed(names))


def draw(results: Path, out: Path) -> None:
    begin()
    lines = read(results)
    figure, (left, right) = plt.subplots(
        1, 2, sharey=True, figsize=(10, 0.6 + 0.24 * len(lines)), layout="constrained", facecolor="white"
    )
    panel(left, lines, "seconds", "seconds")
    panel(right, lines, "peak_mib", "peak memory beyond the weights (MiB)")
    for method, name in NAMES.items():
        left.scatter([], [], color=COLOURS[method], label=name)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    save(figure, out)


def main() -> None:
    arguments = command("models_picture", __doc__, "models-cpu.csv", "models.svg").parse_args()
    draw(arguments.results, arguments.out)


if __name__ == "__main__":
    main()
