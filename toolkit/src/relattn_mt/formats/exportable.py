"""Position schemes that each export format supports. Importing this module does not import PyTorch."""

from __future__ import annotations

from pathlib import Path

from relattn_mt.config import ModelConfig, PositionSpec
from relattn_mt.config.positions import BucketBias, ClippedTables, DotProduct, LearnedVectors, Sinusoids
from relattn_mt.support.errors import InputError

FORMATS = {"ctranslate2": "CTranslate2", "argos": "CTranslate2", "onnx": "ONNX export"}  # and who refuses a model


def _ctranslate2_reasons(spec: PositionSpec) -> list[str]:
    """Return what CTranslate2 lacks: it has tables that all heads share, biases, or vectors added to embeddings."""
    match spec.signal, spec.mixer:
        case (None | Sinusoids() | LearnedVectors(), DotProduct()) | (None, BucketBias()):
            return []
        case (signal, ClippedTables(per_head=per_head, beyond=beyond)):
            reasons = [] if signal is None else [f"{spec.name} positions (train with --model.positions relative)"]
            if per_head:
                reasons.append("one table per head (train with --model.tables_per_head false)")
            if beyond != "clip":
                reasons.append("tables with zero beyond the clipping distance (train with --model.beyond clip)")
            return reasons
    return [f"{spec.name} positions (train with --model.positions relative)"]


def _reasons(format: str, config: ModelConfig) -> list[str]:
    """Return what a format lacks. The graphs of ONNX have any scheme whose cache has keys and values."""
    other = [] if config.decoder_mixer == "scheme" else [f"decoder_mixer {config.decoder_mixer}"]
    return other if format == "onnx" else other + _ctranslate2_reasons(config.position_spec)


def supporting_formats(config: ModelConfig) -> list[str]:
    """Return the export formats that support a model."""
    return [name for name in FORMATS if not _reasons(name, config)]


def require_exportable(config: ModelConfig, format: str, source: str | Path) -> None:
    """Check that an export format supports a model. `source` is the name of the bundle in messages.

    Raises:
        InputError: It does not. The message names all unsupported features, and the formats that support the model.
    """
    if unsupported := _reasons(format, config):
        formats = supporting_formats(config)
        if config.decoder_mixer == "ssru":  # which only Marian has
            formats.append("marian")
        hint = f"this model can be exported to {' and '.join(formats)}" if formats else "no export format supports them"
        raise InputError(f"{source}: {FORMATS[format]} does not support {'; '.join(unsupported)}; {hint}")
