"""Position schemes that CTranslate2 supports. Importing this module does not import PyTorch."""

from __future__ import annotations

from pathlib import Path

from relattn_mt.config import ModelConfig
from relattn_mt.config.positions import BucketBias, ClippedTables, DotProduct, LearnedVectors, Sinusoids
from relattn_mt.engine.decoder import unsupported_reason
from relattn_mt.support.errors import InputError


def ctranslate2_reasons(config: ModelConfig) -> list[str]:
    """Return what CTranslate2 lacks: it has tables that all heads share, biases, or vectors added to embeddings."""
    spec = config.position_spec
    other = f"{spec.name} positions (train with --model.positions relative)"
    reasons = [] if config.decoder_mixer == "scheme" else [f"decoder_mixer {config.decoder_mixer}"]
    match spec.signal, spec.mixer:
        case (None | Sinusoids() | LearnedVectors(), DotProduct()) | (None, BucketBias()):
            pass
        case (signal, ClippedTables(per_head=per_head, beyond=beyond)):
            if signal is not None:
                reasons.append(other)
            if per_head:
                reasons.append("one table per head (train with --model.tables_per_head false)")
            if beyond != "clip":
                reasons.append("tables with zero beyond the clipping distance (train with --model.beyond clip)")
        case _:
            reasons.append(other)
    return reasons


def require_exportable(config: ModelConfig, source: str | Path) -> None:
    """Check that CTranslate2 supports a model. `source` is the name of the bundle in messages.

    Raises:
        InputError: It does not. The message names all unsupported features, and the formats that support the model.
    """
    if unsupported := ctranslate2_reasons(config):
        formats = ["marian"] if config.decoder_mixer == "ssru" else []
        if unsupported_reason(config) is None:
            formats.append("web")
        hint = f"this model can be exported to {' and '.join(formats)}" if formats else "no export format supports them"
        raise InputError(f"{source}: CTranslate2 does not support {'; '.join(unsupported)}; {hint}")
