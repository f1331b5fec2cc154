"""Draws what `benchmarks.attention` measured of ours, as a caller gets it, and of the peers: time as a ratio to plain
attention's, and peak memory, by length.

A line that ends early ends where the next length was left out, since it does not fit half of the machine's memory.
"""

import argparse
import csv
import math
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

NAMES = {"plain": "PyTorch, no positions", "auto": "relattn"}
COLOURS = {
    "plain": "#57606a",
    "auto": "#0550ae",
    "OpenNMT-py": "#bc4c00",
    "eole": "#1a7f37",
    "W2V-BERT": "#8250df",
    "VITS": "#bf3989",
}
Lines = dict[str, list[tuple[int, float]]]  # a method's name -> its points (n, y), in order


def read(path: Path, column: str, causal: bool, both_passes: bool) -> Lines:
    wanted = {"causal": str(causal), "pass": "forward + backward" if both_passes else "forward", "dtype": "float32"}
    lines: Lines = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["method"] in COLOURS and all(row[name] == value for name, value in wanted.items()):
                lines.setdefault(row["method"], []).append((int(row["n"]), float(row[column])))
    return {method: sorted(points) for method, points in lines.items()}


def spread(heights: dict[str, float], gap: float) -> dict[str, float]:
    """The heights, moved as little as keeps them in order and `gap` apart."""
    order = sorted(heights, key=lambda name: heights[name])
    groups: list[tuple[float, list[str]]] = []  # the middle of each run of labels that touch, and the labels
    for name in order:
        middle, members = heights[name], [name]
        while groups and middle - groups[-1][0] < gap * (len(members) + len(groups[-1][1])) / 2:
            below, names = groups.pop()
            middle = (middle * len(members) + below * len(names)) / (len(members) + len(names))
            members = names + members
        groups.append((middle, members))
    return {
        name: middle + gap * (place - (len(members) - 1) / 2)
        for middle, members in groups
        for place, name in enumerate(members)
    }


def panel(axis, lines: Lines, title: str) -> None:
    last = max(n for points in lines.values() for n, _ in points)
    for method, points in lines.items():
        ours = method == "auto"
        style = {"linestyle": "--"} if method == "plain" else {"marker": "o", "markersize": 5 if ours else 3.5}
        axis.plot(
            *zip(*points, strict=True),
            color=COLOURS[method],
            linewidth=2.6 if ours else 1.5,
            zorder=3 if ours else 2,
            **style,
        )
    axis.set(xscale="log", yscale="log", xlabel="sentence length n")
    axis.set_title(title, loc="left", fontsize=10.5)
    ticks = sorted({n for points in lines.values() for n, _ in points})
    axis.set_xticks(ticks, [f"{n:,}" for n in ticks], rotation=45, ha="right", rotation_mode="anchor")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")
    axis.minorticks_off()
    axis.margins(y=0.1)
    axis.grid(color="#d0d7de", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)

    bottom, top = (math.log(y) for y in axis.get_ylim())
    for through in (True, False):  # labels of lines that reach the last length, and of those that do not
        ends = {method: points[-1] for method, points in lines.items() if (points[-1][0] == last) == through}
        heights = {method: (math.log(y) - bottom) / (top - bottom) for method, (_, y) in ends.items()}
        for method, height in spread(heights, gap=0.065).items():
            axis.text(
                1.15 * max(n for n, _ in ends.values()),
                height,
                NAMES.get(method, method) + ("" if through else " ×"),
                transform=axis.get_xaxis_transform(),
                color=COLOURS[method],
                weight="bold" if method == "auto" else "normal",
                va="center",
            )


def draw(results: Path, out: Path, causal: bool) -> None:
    begin()
    time = read(results, "time ratio", causal, both_passes=True)
    memory = read(results, "peak MiB", causal, both_passes=True)
    if not time:
        raise SystemExit(f"{results} has no rows to draw: forward + backward, float32, causal {causal}")
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 4.3), width_ratios=(1.25, 1), layout="constrained", facecolor="white"
    )
    panel(left, time, "time, forward + backward, as a ratio to plain attention's")
    panel(right, memory, "peak memory beyond the inputs (MiB)")
    note = "8 heads, d = 64, k = 16, 8,192 tokens a batch, float32; × the next length does not fit half of the memory"
    figure.supxlabel(note, fontsize=8.5, color="#57606a")
    save(figure, out)


def begin() -> None:
    """How all pictures of results look."""
    matplotlib.use("Agg")
    matplotlib.rcParams |= {"font.size": 9.5, "svg.hashsalt": "relattn", "axes.edgecolor": "#57606a"}


def save(figure: Figure, out: Path) -> None:
    """Write a picture, the same bytes for the same rows, and say where."""
    figure.savefig(out, dpi=130, metadata={"Date": None} if out.suffix == ".svg" else None)
    plt.close(figure)
    print(f"written to {out}")


def command(name: str, about: str | None, results: str, picture: str) -> argparse.ArgumentParser:
    """The arguments of what draws: a file of results/, and one of docs/."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    here = Path(__file__).parent
    parser.add_argument("--results", type=Path, default=here / "results" / results)
    parser.add_argument("--out", type=Path, default=here.parent / "docs" / picture, help="SVG or PNG")
    return parser


def main() -> None:
    parser = command("picture", __doc__, "attention-cpu.csv", "attention.svg")
    parser.add_argument("--causal", action="store_true", help="draw the causal rows")
    arguments = parser.parse_args()
    draw(arguments.results, arguments.out, arguments.causal)


if __name__ == "__main__":
    main()
