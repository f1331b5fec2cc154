"""Supported model families, one file each. Each file maps the equation of its models to one call of the operator."""

from relattn.integrations.transformers.families import (
    fastspeech2_conformer,
    granite_speech,
    nemotron,
    parakeet,
    speecht5,
    t5,
    vits,
    wav2vec2,
)

PATCHES = (
    *wav2vec2.PATCHES,
    *parakeet.PATCHES,
    *nemotron.PATCHES,
    *fastspeech2_conformer.PATCHES,
    *granite_speech.PATCHES,
    *vits.PATCHES,
    *speecht5.PATCHES,
    *t5.PATCHES,
)
