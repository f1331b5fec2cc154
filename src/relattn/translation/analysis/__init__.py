"""Analyze a trained model: its attention, its predictions by position, its tables."""

from typing import Literal

Part = Literal["encoder", "decoder", "cross"]  # part of a model whose attention is shown
