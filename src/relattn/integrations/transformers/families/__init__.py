"""A file for each family of models: which equation of theirs is which call of the operator."""

from relattn.integrations.transformers.families import (
    fastspeech2_conformer,
    granite_speech,
    parakeet,
    speecht5,
    t5,
    vits,
    wav2vec2,
)

STAND_INS = (
    *wav2vec2.STAND_INS,
    *parakeet.STAND_INS,
    *fastspeech2_conformer.STAND_INS,
    *granite_speech.STAND_INS,
    *vits.STAND_INS,
    *speecht5.STAND_INS,
    *t5.STAND_INS,
)
