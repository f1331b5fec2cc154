"""The compiled decoder against the model in PyTorch: logits, candidates, and translations of searches."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from relattn.translation.config import ModelConfig
from relattn.translation.errors import Diverged, InputError
from relattn.translation.kernels import decoder, packing
from relattn.translation.kernels.decoder import NativeDecoder, supports_positions, unsupported_reason
from relattn.translation.model.transformer import Transformer
from relattn.translation.model.weights import arrays_of
from relattn.translation.search import beam
from relattn.translation.search.length_penalty import length_penalty
from relattn.translation.search.types import SearchRules
from tests.support.covering import pairwise
from tests.support.schemes import VARIANTS, config_of

pytestmark = pytest.mark.skipif(decoder.KERNELS is None, reason=f"no compiled decoder: {decoder.MISSING}")

VOCAB = 331  # more than the kernel computes at a time
LENGTHS = [19, 1, 7, 16, 2]
SCHEMES = {name: options for name, options in VARIANTS.items() if supports_positions(config_of(name))} | {
    "values per head": {"clip": 3, "relative_tables": "values", "tables_per_head": True},
    "wide, per head": {"clip": 70, "tables_per_head": True},
    "asymmetric": {"positions": "relative+sinusoidal", "clip": 17, "clip_right": 2},
    "zero beyond, per head": {"clip": 3, "beyond": "zero", "tables_per_head": True},
}
ACTIVATIONS = ["relu", "gelu", "gelu_tanh", "gelu_sigmoid", "swish"]
SIZES = {"exact": (64, 4, 48), "narrow": (12, 3, 20), "odd": (38, 1, 33)}  # dim, heads, feed_forward_dim


@pytest.fixture(autouse=True)
def inference_in_filled_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill new memory, so that no result may depend on it: arrays with NaN, and what C allocates with 3.4e38."""
    aligned = packing.aligned

    def filled(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        array = aligned(*shape, dtype=dtype)
        array[...] = -1 if np.issubdtype(dtype, np.integer) else np.nan
        return array

    for module in (decoder, packing):
        monkeypatch.setattr(module, "aligned", filled)
    perturb = getattr(ctypes.CDLL(None), "mallopt", lambda name, value: None)  # of the GNU C library
    perturb(-6, 0x80)
    with torch.inference_mode():
        yield
    perturb(-6, 0)


def make_model(scheme: str = "relative", size: str = "exact", **options: Any) -> Transformer:
    torch.manual_seed(1)
    dim, heads, feed_forward_dim = SIZES[size]
    sizes = {"dim": dim, "heads": heads, "feed_forward_dim": feed_forward_dim, "encoder_layers": 1, "decoder_layers": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about models that cannot tell word order
        config = ModelConfig(**{**sizes, **options, **SCHEMES[scheme]})  # type: ignore[arg-type]
        model = Transformer(config, VOCAB).eval()
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn_like(parameter)  # biases and norms start at constants
    return model


def native(model: Transformer, *, int8: bool = False) -> NativeDecoder:
    """Return the compiled decoder of a model."""
    return NativeDecoder(model.config, model.vocab_sizes, arrays_of(model), int8=int8)


def start(model: Transformer, own: NativeDecoder, capacity: int = 40) -> tuple[Any, Any]:
    """Return the caches of a model and its compiled decoder for sources with NaN in their padding."""
    lengths = torch.tensor(LENGTHS)
    sources = torch.randint(3, VOCAB, (len(LENGTHS), max(LENGTHS)))
    memory = model.encode(sources, lengths)
    for row, length in zip(memory, LENGTHS, strict=True):
        row[length:] = 0.0
    expected = model.start(memory, lengths, capacity)
    for row, length in zip(memory, LENGTHS, strict=True):
        row[length:] = torch.nan
    return expected, own.start(memory.numpy(), lengths, capacity)


@pairwise(
    scheme=SCHEMES,
    size=SIZES,
    norm=["pre", "post"],
    scaled=[False, True],
    biased=[False, True],
    in_turn={"activation": ACTIVATIONS},
)
def test_logits_of_reordered_hypotheses(scheme, size, norm, activation, scaled, biased):
    model = make_model(
        scheme, size, norm=norm, activation=activation, scaled_embeddings=scaled, output_bias=biased, norm_epsilon=1e-3
    )
    own = native(model)
    caches = start(model, own)
    every, steps = torch.arange(len(LENGTHS)), 37
    for step in range(steps):
        if step == 1:  # three hypotheses per source
            caches = tuple(cache.select(every.repeat_interleave(3)) for cache in caches)
        if step in (5, 16):  # hypotheses replace others, and the last source replaces the second
            last = caches[1].rows - 3
            moves = torch.tensor([0, last, last + 1, last + 2]), torch.tensor([2, 3, 4, 5])
            caches = tuple(cache.move(*moves, last) for cache in caches)
        if step == 20:  # different numbers of hypotheses per source, in another order
            caches = tuple(cache.select(torch.tensor([8, 0, 0, 1, 7, 5])) for cache in caches)
        rows = caches[1].rows
        tokens = torch.randint(VOCAB, (rows, 1))
        (expected, first), (logits, second) = model.step(tokens, caches[0]), own.step(tokens, caches[1])
        caches = first, second
        torch.testing.assert_close(torch.tensor(logits), expected, rtol=1e-5, atol=2e-5 * float(expected.abs().max()))


def test_a_prefix_is_read_as_its_tokens_are():
    model = make_model("xl")
    own = native(model)
    expected, cache = start(model, own)
    tokens = torch.randint(VOCAB, (len(LENGTHS), 19))
    torch.testing.assert_close(
        torch.tensor(own.step(tokens, cache)[0]), model.step(tokens, expected)[0], rtol=1e-5, atol=1e-4
    )
    with pytest.raises(ValueError, match="40 positions"):
        own.step(torch.randint(VOCAB, (len(LENGTHS), 41)), start(model, own)[1])


def rules_of(beam_size: int, **options: Any) -> SearchRules:
    penalty = length_penalty("gnmt", 0.6)
    return SearchRules(**{"beam_size": beam_size, "bos": 1, "eos": 2, "banned": (0, 1), "penalty": penalty, **options})


@pairwise(
    scheme=SCHEMES,
    sentences=[1, 3, 67],
    early_stopping=[False, True, "heuristic"],
    given=[(), (7,), (9, 5)],
    n_best=[1, 2],
    ties=[False, True],
    penalty=[("gnmt", 0.6), ("average", 1.0), ("none", 0.0)],
    in_turn={"beam_size": [1, 2, 4, 8]},
)
def test_searches_find_the_same(scheme, beam_size, sentences, early_stopping, given, n_best, ties, penalty):
    model = make_model(scheme, output_bias=True)
    model.output_bias[2] = 3.0  # ends that come early
    model.output_bias[[0, VOCAB - 1]] = torch.tensor([3.0, 20.0])  # likely, but banned
    if ties:
        model.embedding[40:46] = model.embedding[60]
        model.output_bias[40:46] = model.output_bias[60] = 4.0
    own = native(model)
    lengths = torch.randint(1, 13, (sentences,))
    memory = model.encode(torch.randint(3, VOCAB, (sentences, 12)), lengths)
    limits = torch.randint(1 + len(given), 37, (sentences,))
    rules = rules_of(
        beam_size,
        early_stopping=early_stopping,
        n_best=min(n_best, beam_size),
        banned=(0, 1, VOCAB - 1),
        penalty=length_penalty(*penalty),
        given=len(given),
    )
    cache = model.start(memory, lengths, int(limits.max()))
    expected = beam.search(model.step, cache, limits, rules, torch.tensor([given] * sentences, dtype=torch.long))
    found = own.search(memory.numpy(), lengths, limits, rules, given)
    for ours, theirs in zip(found, expected, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], rel=1e-5)


def test_a_beam_wider_than_the_vocabulary():
    torch.manual_seed(1)
    config = ModelConfig(dim=12, heads=3, feed_forward_dim=20, encoder_layers=1, decoder_layers=1, clip=2)
    model, lengths, limits = Transformer(config, 7).eval(), torch.tensor([3, 1]), torch.tensor([4, 6])
    memory, rules = model.encode(torch.randint(3, 7, (2, 3)), lengths), rules_of(30, n_best=30)
    cache, prefixes = model.start(memory, lengths, 6), torch.zeros(2, 0, dtype=torch.long)
    expected = beam.search(model.step, cache, limits, rules, prefixes)
    for ours, theirs in zip(native(model).search(memory.numpy(), lengths, limits, rules), expected, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], rel=1e-5)


def test_scores_that_are_nan_are_reported():
    model, lengths = make_model(), torch.tensor(LENGTHS)
    memory = model.encode(torch.randint(3, 200, (len(LENGTHS), max(LENGTHS))), lengths)
    model.embedding[200] = torch.tensor([3e38, -3e38]).repeat(32)  # infinite products in the logits of all rows
    with pytest.raises(Diverged):
        native(model).search(memory.numpy(), lengths, torch.full((len(LENGTHS),), 9), rules_of(4))


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("relative", "embedding"),
        ("relative", "encoder.0.self_attention.key.weight"),
        ("relative", "decoder.1.cross_attention.out.bias"),
        ("relative", "decoder.0.self_attention.attention.rel_value.weight"),
        ("relative", "decoder_norm.weight"),
        ("learned", "src_positions.signal.weight"),
        ("t5", "tgt_positions.bias.weight"),
        ("xl", "encoder.0.self_attention.attention.v"),
    ],
)
def test_weights_that_are_not_finite_are_named(scheme, name, number):
    weights = arrays_of(model := make_model(scheme))
    weights[name].flat[1] = number
    for int8 in (False, True):
        with pytest.raises(InputError, match=f"must be finite, got NaN or infinity in {name}$"):
            NativeDecoder(model.config, model.vocab_sizes, weights, int8=int8)


def test_models_that_are_not_supported(monkeypatch):
    config = make_model().config
    assert unsupported_reason(config) is None
    assert "not on cuda" in unsupported_reason(config, "cuda:1")
    assert "bfloat16" in unsupported_reason(config, dtype="bfloat16")
    monkeypatch.setattr(decoder, "KERNELS", None)
    monkeypatch.setattr(decoder, "MISSING", "no compiler")
    assert "no compiler" in unsupported_reason(config)
