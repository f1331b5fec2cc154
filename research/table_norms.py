"""Norms of the vectors in the tables of relative positions, by distance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from relattn_mt.config.positions import ClippedTables
from relattn_mt.model.transformer import Transformer

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Norms(NamedTuple):
    """Norms of the vectors of a table, in every layer that has it.

    Attributes:
        layers: Names of the layers.
        left: Distance of the first column is j − i = −left.
        rows: Norm of each vector per layer; the mean over heads if each head has its own table.
    """

    layers: list[str]
    left: int
    rows: list[list[float]]


def table_norms(model: Transformer) -> dict[str, Norms]:
    """Return the norms of aK and aV, if the model has them."""
    tables: dict[str, Norms] = {}
    mixer = model.config.position_spec.mixer
    if not isinstance(mixer, ClippedTables):
        return tables
    for name, parameter in model.named_parameters():
        stack, _, rest = name.partition(".")
        for table, symbol in (("rel_key", "aK"), ("rel_value", "aV")):
            if f".{table}." in name:
                norms = tables.setdefault(symbol, Norms([], mixer.left, []))
                norms.layers.append(f"{stack} {int(rest.partition('.')[0]) + 1}")
                norms.rows.append(parameter.detach().norm(dim=-1).reshape(-1, parameter.shape[-2]).mean(0).tolist())
    return tables


def draw_norms(axes: Mapping[str, Axes], tables: Mapping[str, Norms]) -> None:
    """Draw a heat map of each table on the axis with its name."""
    from matplotlib.ticker import MaxNLocator

    for name, (layers, left, rows) in tables.items():
        axis, right = axes[name], len(rows[0]) - left - 1
        image = axis.imshow(rows, aspect="auto", extent=(-left - 0.5, right + 0.5, len(rows) - 0.5, -0.5))
        axis.set(title=f"norm of the {name} vectors", xlabel="key position − query position")
        axis.set_yticks(range(len(rows)), layers)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.figure.colorbar(image, ax=axis)
