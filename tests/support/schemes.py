"""Every registered position scheme, with its defaults and with other values of its options."""

from typing import Any

from relattn_mt.config import SCHEMES, ModelConfig

OTHER_VALUES: dict[str, list[Any]] = {  # of each option
    "clip": [0, 70],
    "clip_right": [1],
    "beyond": ["zero"],
    "relative_tables": ["keys", "values"],
    "tables_per_head": [True],
    "bias_per_layer": [True],
    "max_positions": [130],
}


def _defaults(name: str) -> dict[str, Any]:
    """Return settings of a scheme; sequences of the tests are longer than the clipping distance of 3."""
    return {"positions": name, **({"clip": 3} if "clip" in SCHEMES[name].options else {})}


VARIANTS: dict[str, dict[str, Any]] = {name: _defaults(name) for name in SCHEMES}
VARIANTS["ssru in the decoder"] = {"positions": "t5", "decoder_mixer": "ssru"}
VARIANTS["norm of the embeddings"] = {"positions": "learned", "embedding_norm": True}
VARIANTS |= {  # each option once, with the first scheme that has it
    f"{name}, {option}={value}": {**_defaults(name), option: value}
    for option, values in OTHER_VALUES.items()
    for name in [next(name for name in SCHEMES if option in SCHEMES[name].options)]
    for value in values
}
assert {option for scheme in SCHEMES.values() for option in scheme.options} == set(OTHER_VALUES)


def config_of(variant: str, **settings: Any) -> ModelConfig:
    """Return the configuration of a small model with a variant."""
    sizes = {"dim": 12, "heads": 3, "feed_forward_dim": 20, "encoder_layers": 1, "decoder_layers": 1}
    return ModelConfig(**{**sizes, **VARIANTS[variant], **settings})
