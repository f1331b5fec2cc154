"""Analyze a trained model: its attention."""

from typing import Literal

Part = Literal["encoder", "decoder", "cross"]  # part of a model whose attention is shown
