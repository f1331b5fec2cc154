"""Clipped relative positions of Shaw, Uszkoreit and Vaswani (2018)."""

from __future__ import annotations

from relattn import RelativeAttention
from relattn.translation.model.positions.absolute import Sinusoidal
from relattn.translation.model.positions.base import PositionScheme


class Relative(PositionScheme):
    """A learned vector per clipped distance in the keys and values of self-attention (Shaw et al. 2018).

    Equations 3 and 4 of the paper, with its clip from section 3.2:

        z_i = Σ_j α_ij (x_j W^V + a^V_ij)        e_ij = x_i W^Q · (x_j W^K + a^K_ij) / √d_z
        a_ij = w_clip(j − i)

    `config.clip` is k. Each layer has its own tables w^K and w^V, of shape (2k + 1, head_dim), or
    (heads, 2k + 1, head_dim) with `config.tables_per_head`.
    """

    def attention(self) -> RelativeAttention:
        """Build `RelativeAttention` with the tables of one layer."""
        config = self.config
        return RelativeAttention(
            config.dim // config.heads,
            config.clipping_range,
            config.heads if config.tables_per_head else None,
            tables=config.relative_tables or "both",
            beyond=config.beyond or "clip",
            dropout=config.attention_dropout,
        )


class RelativeAndSinusoidal(Relative, Sinusoidal):
    """Relative positions and sinusoids. The paper reports no gain over relative positions alone."""
