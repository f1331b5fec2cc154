"""Classes of all position schemes by name, and a warning about models that cannot tell word order."""

from __future__ import annotations

from relattn.translation.config import ModelConfig
from relattn.translation.model.positions.absolute import Learned, Sinusoidal
from relattn.translation.model.positions.base import CNN, LSTM, NoPositions, PositionScheme
from relattn.translation.model.positions.distance_terms import T5, ALiBi, TransformerXL
from relattn.translation.model.positions.relative import Relative, RelativeAndSinusoidal
from relattn.translation.model.positions.rotary import RoPE, RoVE

SCHEMES: dict[str, type[PositionScheme]] = {
    "none": NoPositions,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "relative": Relative,
    "relative+sinusoidal": RelativeAndSinusoidal,
    "xl": TransformerXL,
    "t5": T5,
    "alibi": ALiBi,
    "rope": RoPE,
    "rove": RoVE,
    "lstm": LSTM,
    "cnn": CNN,
}


def missing_position_signal(config: ModelConfig) -> str | None:
    """Return a warning if a model of this configuration cannot tell word order, else None."""
    if config.positions == "none":
        return "positions: none gives no position signal, so this model cannot tell word order; use it as a baseline"
    if config.positions == "relative" and config.clipping_range == (0, 0):
        return "clip: 0 gives all pairs of positions the same label, so this model cannot tell word order"
    if config.positions == "cnn" and config.kernel_size == 1:
        return "kernel_size: 1 lets each position see only itself, so this model cannot tell word order"
    return None
