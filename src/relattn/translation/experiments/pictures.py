"""The pictures of a table's page: quality against k, by position and by length, learned tables, curves of training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relattn.translation.analysis.table_norms import draw_norms
from relattn.translation.drawing import png
from relattn.translation.evaluation import by_length

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from relattn.translation.experiments.report import Line
    from relattn.translation.experiments.scales import Pairs, Scale
    from relattn.translation.experiments.tables import Table

_STYLES = ["-", "--", ":", "-."]  # for more lines than there are colours


def drawn(table: Table, lines: Sequence[Line], scale: Scale, pairs: Pairs, fewest: int) -> dict[str, bytes]:
    """PNGs by name, of the models that have rows with figures; a bin of positions needs `fewest` pieces."""
    lines = [line for line in lines if line.finished]
    if not lines:
        return {}
    figures = {
        "training": _training(lines),
        "positions": _positions(lines, fewest),
        "lengths": _lengths(lines, scale, pairs),
    }
    if table.name == "clip":
        figures["k"] = _clip(lines)
    with_tables = [line for line in lines if line.finished[0].norms]
    if with_tables:
        figures["learned"] = _learned(with_tables)
    return {name: png(figure) for name, figure in figures.items()}


def _training(lines: Sequence[Line]) -> Figure:
    """Loss on the validation set over the steps: the mean over seeds."""
    figure, axis = _figure()
    for style, line in _styled(lines):
        logs = [result.log for result in line.finished]
        _curve(axis, style, line, [{r.step: r.valid_loss for r in log if r.valid_loss is not None} for log in logs])
    axis.set(xlabel="steps", ylabel="nats a piece on the validation set", yscale="log")
    return _legend(figure, axis)


def _positions(lines: Sequence[Line], fewest: int) -> Figure:
    """Nats a piece by target position, given the reference so far, a panel for each set of lines."""
    from matplotlib.figure import Figure

    names = list(lines[0].finished[0].positions)
    figure = Figure(figsize=(4.5 * len(names) + 2, 4.5), layout="constrained")
    axes = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for name, axis in zip(names, axes, strict=True):
        for style, line in _styled(lines):
            runs = [[b for b in result.positions[name] if b.pieces >= fewest] for result in line.finished]
            curves = [{b.middle: b.nats for b in bins if b.middle is not None} for bins in runs]
            _curve(axis, style, line, curves)
        longest = lines[0].finished[0].longest
        axis.axvline(longest, color="black", linewidth=1)
        axis.set(title=f"{name} (line: longest target trained on)", xlabel="target position (pieces before)")
    axes[0].set(ylabel="nats a piece, given those before")
    return _legend(figure, axes[-1])


def _lengths(lines: Sequence[Line], scale: Scale, pairs: Pairs) -> Figure:
    """BLEU by the length of the source, in words."""
    figure, axis = _figure()
    words, references = [len(src.split()) for src, _ in pairs], [tgt for _, tgt in pairs]
    for style, line in _styled(lines):
        of_these = [r.translations for r in line.finished if len(r.translations) == len(pairs)]
        counted = [by_length(translations, references, words, scale.edges) for translations in of_these]
        _curve(axis, style, line, [{b.label: b.bleu for b in buckets} for buckets in counted])
    axis.set(xlabel="words of the source", ylabel="BLEU")
    return _legend(figure, axis)


def _clip(lines: Sequence[Line]) -> Figure:
    """BLEU against k, each as a share of what the table's first k has: ours, every seed a mark, and the paper's."""
    figure, axis = _figure()
    ours, papers = statistics.mean(lines[0].scores("bleu")), lines[0].entry.paper or math.nan
    places = sorted(lines, key=lambda line: line.entry.options["clip"])
    ticks = range(len(places))
    axis.plot(ticks, [statistics.mean(line.scores("bleu")) / ours for line in places], "o-", label="here")
    for tick, line in zip(ticks, places, strict=True):
        axis.plot([tick] * len(line.finished), [bleu / ours for bleu in line.scores("bleu")], "_", color="C0")
    axis.plot(ticks, [(line.entry.paper or math.nan) / papers for line in places], "s--", color="C1", label="the paper")
    axis.set_xticks(ticks, [str(line.entry.options["clip"]) for line in places])
    axis.set(xlabel="k", ylabel=f"BLEU over that of {lines[0].entry.label}")
    return _legend(figure, axis)


def _learned(lines: Sequence[Line]) -> Figure:
    """Lengths of the vectors of aK and aV by layer and distance: a row of panels for each model, its first seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.6 * len(lines)), layout="constrained")
    for subfigure, line in zip(figure.subfigures(len(lines), 1, squeeze=False)[:, 0], lines, strict=True):
        subfigure.suptitle(line.entry.label)
        left, right = subfigure.subplots(1, 2)
        norms = line.finished[0].norms
        draw_norms({"aK": left, "aV": right}, norms)
        for name, axis in (("aK", left), ("aV", right)):
            axis.set_visible(name in norms)
    return figure


def _figure() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    return figure, figure.subplots()


def _styled(lines: Sequence[Line]) -> Iterator[tuple[dict[str, Any], Line]]:
    for number, line in enumerate(lines):
        yield {"color": f"C{number % 10}", "linestyle": _STYLES[number // 10 % len(_STYLES)]}, line


def _curve(axis: Axes, style: dict[str, Any], line: Line, runs: Sequence[Mapping[Any, float]]) -> None:
    """The mean over seeds, at each place where any of them was measured."""
    places = dict.fromkeys(place for run in runs for place in run)
    means = [statistics.mean(run[place] for run in runs if place in run) for place in places]
    axis.plot(list(places), means, marker=".", label=line.entry.label, **style)


def _legend(figure: Figure, axis: Axes) -> Figure:
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    return figure
