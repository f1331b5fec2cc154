"""The picture of a scale's page: two panels of curves per table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from research.drawing import png
from research.rows import Model, Row


def draw(tables: Mapping[str, Sequence[Model]], long: str) -> bytes:
    """Return a picture as PNG: validation loss by step, and loss by target position, of each table.

    Args:
        tables: Models by the title of their table. Models without rows are left out.
        long: Name of the long lines.
    """
    figure = Figure(figsize=(12, 4 * len(tables)), layout="constrained")
    axes = figure.subplots(len(tables), 2, squeeze=False)
    for (title, models), (training, positions) in zip(tables.items(), axes, strict=True):
        trained = [model for model in models if model.rows]
        _draw(training, trained, Row.valid_losses)
        training.set(title=title, xlabel="steps", ylabel="validation loss, nats per token", yscale="log")
        training.yaxis.set_major_formatter("{x:g}")  # instead of powers of ten
        training.yaxis.set_minor_formatter("{x:g}")
        _draw(positions, trained, Row.nats_by_position)
        positions.axvline(trained[0].rows[0].figures["longest"], color="black", linewidth=1)
        labels = {"xlabel": "target position (line: longest in training)", "ylabel": "nats per token"}
        positions.set(title=long, **labels)
        positions.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    return png(figure)


def _draw(axis: Axes, models: Sequence[Model], points: Callable[[Row], Mapping[Any, float]]) -> None:
    for number, model in enumerate(models):
        curve = model.curve(points)
        style = ".-" if number < 10 else ".--"  # there are 10 colours
        axis.plot(list(curve), list(curve.values()), style, label=model.entry.label)
