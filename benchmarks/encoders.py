"""Encoders of Hugging Face transformers at their published sizes, with random weights. Nothing is downloaded."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from relattn.integrations import transformers as faster
from torch import Tensor, nn
from transformers.models.sam.modeling_sam import SamVisionEncoder
from transformers.models.seamless_m4t.modeling_seamless_m4t import SeamlessM4TSpeechEncoder
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import SeamlessM4Tv2SpeechEncoder
from transformers.models.speecht5.modeling_speecht5 import SpeechT5EncoderWithoutPrenet

SAMPLES = 16_000  # audio samples per second
Options = dict[str, Any]
LONGEST = 100_000  # positions; Parakeet's published limit of 5,000 is seven minutes, and no table depends on it


@dataclass(frozen=True)
class Encoder:
    """An encoder of transformers.

    Attributes:
        make: Function from the name of an attention implementation to the model.
        inputs: Function from a batch size and an input size to random inputs.
        sizes: Input sizes to measure, in seconds of audio, tokens of text, or pixels of a side of a square image.
        own: Names of its attention implementations. Our operator replaces the last.
        unit: Unit of the sizes.
        batch: Number of inputs that are measured together.
        masked: Whether it accepts a padding mask.
        random: Whether its output is sampled, and so differs from call to call.
    """

    make: Callable[[str], nn.Module]
    inputs: Callable[[int, int], Tensor]
    sizes: tuple[int, ...] = (10, 30, 60)
    own: tuple[str, ...] = ("eager", "sdpa")
    unit: str = "s"
    batch: int = 1
    masked: bool = True
    random: bool = False


def frames(rate: int, bins: int) -> Callable[[int, int], Tensor]:
    """Return a function that makes random features with `rate` frames per second."""
    return lambda batch, seconds: torch.randn(batch, rate * seconds, bins)


def sound(batch: int, seconds: int) -> Tensor:
    return torch.randn(batch, SAMPLES * seconds)


def tokens(batch: int, count: int) -> Tensor:
    return torch.randint(1, 30, (batch, count))


def images(batch: int, side: int) -> Tensor:
    return torch.randn(batch, 3, side, side)


class Vits(nn.Module):
    """VITS's text encoder, with the signature of the other models."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.encoder = transformers.VitsModel(transformers.VitsConfig(**options)).text_encoder

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        mask = torch.ones_like(ids) if attention_mask is None else attention_mask
        valid = mask[..., None].to(next(self.parameters()).dtype)
        return self.encoder(ids, padding_mask=valid, attention_mask=mask, **kwargs)


class Voice(nn.Module):
    """VITS from text to audio."""

    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.VitsModel(transformers.VitsConfig())

    def forward(self, ids: Tensor) -> Any:
        return SimpleNamespace(last_hidden_state=self.model(ids).waveform)


def model(name: str, encoder: str = "", **options: Any) -> Callable[[str], nn.Module]:
    """Return a function that makes the model `name` of transformers, or its class `encoder`, with an attention."""

    def make(attention: str) -> nn.Module:
        config = getattr(transformers, f"{name}Config")(attn_implementation=attention, **options)
        made: nn.Module = getattr(transformers, encoder or f"{name}Model")(config)
        return made

    return make


LARGE: Options = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
BASE = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
TEXT: Options = {"inputs": tokens, "sizes": (256, 1024, 4096), "unit": "tokens"}
DEBERTA_V3 = Encoder(
    model(
        "DebertaV2", hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
        relative_attention=True, position_buckets=256, share_att_key=True, norm_rel_ebd="layer_norm",
        pos_att_type="p2c|c2p", position_biased_input=False, type_vocab_size=0,
    ),
    tokens, (128, 256, 512, 1024, 2048), ("eager",), "tokens",
)  # fmt: skip
DEBERTA = Encoder(
    model("Deberta", relative_attention=True, pos_att_type="c2p|p2c", position_biased_input=False, type_vocab_size=0),
    tokens, (128, 512), ("eager",), "tokens",
)  # fmt: skip
MPNET = Encoder(model("MPNet", max_position_embeddings=514), tokens, (128, 256, 512), ("eager",), "tokens")
LONG = (10, 30, 60, 400, 1200)
ENCODERS = {
    "parakeet-0.6b": Encoder(
        model("ParakeetEncoder", "ParakeetEncoder", max_position_embeddings=LONGEST), frames(100, 80), LONG
    ),
    "wav2vec2-bert": Encoder(model("Wav2Vec2Bert"), frames(50, 160)),
    "wav2vec2-conformer-large": Encoder(
        model("Wav2Vec2Conformer", position_embeddings_type="relative", **LARGE), sound
    ),
    "seamless-m4t-v2": Encoder(
        lambda own: SeamlessM4Tv2SpeechEncoder(transformers.SeamlessM4Tv2Config(attn_implementation=own)),
        frames(50, 160),
    ),
    "speecht5": Encoder(
        lambda own: SpeechT5EncoderWithoutPrenet(transformers.SpeechT5Config()), frames(50, 768), own=("eager",)
    ),
    "vits": Encoder(lambda own: Vits(), **TEXT, own=("eager",)),
    "vits, to sound": Encoder(lambda own: Voice(), tokens, (256,), ("eager",), "tokens", random=True),
    "t5-base": Encoder(model("T5", "T5EncoderModel", **BASE), **TEXT),
    "umt5-base": Encoder(model("UMT5", "UMT5EncoderModel", **BASE), **TEXT),
    "deberta-v3-base": DEBERTA_V3,
    "deberta-v3-base, 8 texts": replace(DEBERTA_V3, batch=8),
    "deberta-base": DEBERTA,
    "mpnet-base": MPNET,
    "mpnet-base, 8 texts": replace(MPNET, batch=8),
    "wavlm-base": Encoder(model("WavLM"), sound, own=("eager",)),
    "sam-vit-base": Encoder(
        lambda own: SamVisionEncoder(transformers.SamVisionConfig(attn_implementation=own, initializer_range=0.02)),
        images,
        (1024,),
        unit="pixels",
        masked=False,
    ),
    "seamless-m4t": Encoder(
        lambda own: SeamlessM4TSpeechEncoder(transformers.SeamlessM4TConfig(attn_implementation=own)),
        frames(50, 160),
    ),
}


def make(name: str, method: str) -> nn.Module:
    """Return an encoder with the attention "relattn" or one of its own, with the same random weights for all."""
    torch.manual_seed(1)
    encoder = ENCODERS[name].make(ENCODERS[name].own[-1] if method == "relattn" else method)
    with torch.no_grad():
        for parameter in encoder.parameters():
            if not bool(parameter.any()):
                parameter.normal_(0, 0.02)
    if method == "relattn":
        faster.enable(encoder)
    return encoder.eval()


def inputs(name: str, batch: int, size: int) -> Tensor:
    """Return the inputs of an encoder, the same in every call."""
    torch.manual_seed(2)
    return ENCODERS[name].inputs(batch, size)


RANDOM = "attention_dropout", "activation_dropout", "dropout", "dropout_positions", "layerdrop", "jitter_noise"


def remove_randomness(model: nn.Module) -> None:
    """Make a model in training mode deterministic."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
        for option in RANDOM:
            if isinstance(getattr(module, option, None), float):
                setattr(module, option, 0.0)
    config = getattr(model, "config", None)
    if config is not None:
        config.layerdrop = config.speech_encoder_layerdrop = 0.0
        config.apply_spec_augment = False


def padding(given: Tensor) -> Tensor:
    """Return a padding mask, (batch, length), that ends the second sequence after 60 % of its length."""
    mask = torch.ones(given.shape[:2], dtype=torch.long)
    mask[1, given.shape[1] * 6 // 10 :] = 0
    return mask
