"""Pictures of a table's page. They are declared as panels of curves, and one function draws them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from relattn.translation.analysis.table_norms import draw_norms
from relattn.translation.drawing import png
from relattn.translation.evaluation import by_length
from relattn.translation.experiments.rows import Model, Row
from relattn.translation.experiments.tables import Pairs, Scale, Table

Points = dict[Any, float]  # x → y; an x of type str is a category


class Panel(NamedTuple):
    """Curves in one coordinate system."""

    curves: dict[str, Points]  # by label
    axes: dict[str, Any]  # properties of the axes
    line: float | None = None  # x of a vertical line


def draw_all(table: Table, scale: Scale, models: Sequence[Model], pairs: Pairs) -> dict[str, bytes]:
    """Return the pictures of a table as PNG, by name.

    Args:
        table: the table.
        scale: its scale.
        models: its models, each with at least one row.
        pairs: pairs that the models translated.
    """
    lengths = [len(src.split()) for src, _ in pairs]
    references = [tgt for _, tgt in pairs]
    first = models[0].rows[0]

    def curves(points: Callable[[Row], Points]) -> dict[str, Points]:
        return {model.entry.label: model.curve(points) for model in models}

    def bleu_by_length(row: Row) -> Points:
        return {b.label: b.bleu for b in by_length(row.translations, references, lengths, scale.edges)}

    def by_position(lines: str) -> Panel:
        labels = {"title": lines, "xlabel": "target position (line: longest in training)", "ylabel": "nats per token"}
        points = curves(lambda row: row.nats_by_position(lines, "middle"))
        return Panel(points, labels, first.figures["longest"])

    loss = {"xlabel": "steps", "ylabel": "validation loss, nats per token", "yscale": "log"}
    panels = {
        "training": [Panel(curves(Row.valid_losses), loss)],
        "positions": [by_position(lines) for lines in first.positions],
        "lengths": [Panel(curves(bleu_by_length), {"xlabel": "words of the source", "ylabel": "BLEU"})],
    }
    if table.name == "clip":
        panels["k"] = [_bleu_by_clip(models)]
    figures = {name: _draw(panel) for name, panel in panels.items()}
    norms = {model.entry.label: model.rows[0].norms for model in models if model.rows[0].norms}
    if norms:
        figures["learned"] = _draw_norms(norms)
    return {f"{table.name}-{name}": png(figure) for name, figure in figures.items()}


def _bleu_by_clip(models: Sequence[Model]) -> Panel:
    """Return BLEU by clipping distance, here and in the paper, relative to the first model."""
    bleu = {
        model.entry.options["clip"]: (
            statistics.mean(row.figures["bleu"] for row in model.rows),
            model.entry.paper or math.nan,
        )
        for model in models
    }
    base = [value or math.nan for value in bleu[models[0].entry.options["clip"]]]  # nothing is relative to 0
    curves = {
        label: {str(clip): bleu[clip][index] / base[index] for clip in sorted(bleu)}
        for index, label in enumerate(("mean over seeds", "paper"))
    }
    return Panel(curves, {"xlabel": "k", "ylabel": f"BLEU, relative to {models[0].entry.label}"})


def _draw(panels: Sequence[Panel]) -> Figure:
    figure = Figure(figsize=(4.5 * len(panels) + 3, 4.5), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, panel in zip(axes, panels, strict=True):
        for number, (label, points) in enumerate(panel.curves.items()):
            style = ".-" if number < 10 else ".--"  # there are 10 colours
            axis.plot(list(points), list(points.values()), style, label=label)
        if panel.line is not None:
            axis.axvline(panel.line, color="black", linewidth=1)
        axis.set(**panel.axes)
        axis.label_outer()
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    return figure


def _draw_norms(models: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the norms of aK and aV by layer and distance: a row of heat maps per model."""
    figure = Figure(figsize=(11, 2.6 * len(models)), layout="constrained")
    subfigures = figure.subfigures(len(models), squeeze=False)[:, 0]
    for subfigure, (label, norms) in zip(subfigures, models.items(), strict=True):
        subfigure.suptitle(label)
        axes = subfigure.subplots(1, len(norms), squeeze=False)[0]
        draw_norms(dict(zip(norms, axes, strict=True)), norms)
    return figure
