"""The compiled engine against the model in PyTorch: logits, candidates, and translations of searches."""

import ctypes
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from relattn_mt.config import ModelConfig, SearchConfig
from relattn_mt.engine import decoder, engine, library, packing
from relattn_mt.engine.decoder import NativeDecoder, supports_positions, unsupported_reason
from relattn_mt.engine.engine import NativeEngine
from relattn_mt.model.torch_engine import TorchEngine
from relattn_mt.model.transformer import Transformer
from relattn_mt.model.weights import arrays_of
from relattn_mt.search import beam
from relattn_mt.search.types import Hypothesis, Request, SearchRules
from relattn_mt.support.errors import InputError

from tests.support.covering import pairwise
from tests.support.levels import allowed_levels
from tests.support.schemes import VARIANTS, config_of

pytestmark = pytest.mark.skipif(decoder.KERNELS is None, reason=f"no compiled engine: {decoder.MISSING}")

VOCAB = 331  # more than the kernel computes at a time
LENGTHS = [19, 1, 7, 16, 2]
SCHEMES = {name: options for name, options in VARIANTS.items() if supports_positions(config_of(name))} | {
    "values per head": {"clip": 3, "relative_tables": "values", "tables_per_head": True},
    "wide, per head": {"clip": 70, "tables_per_head": True},
    "asymmetric": {"positions": "relative+sinusoidal", "clip": 17, "clip_right": 2},
    "zero beyond, per head": {"clip": 3, "beyond": "zero", "tables_per_head": True},
}
ACTIVATIONS = ["relu", "gelu", "gelu_tanh", "gelu_sigmoid", "swish"]
SIZES = {  # dim, heads, head_dim, feed_forward_dim
    "exact": (64, 4, 0, 48),
    "narrow": (12, 3, 0, 20),
    "odd": (38, 1, 0, 33),
    "wide heads": (22, 3, 10, 17),
}


def levels() -> list[str]:
    """Return the values of RELATTN_LEVEL that this processor supports, one per processor level or kernel for int8."""
    found = dict[tuple[str, int], str]()
    for name in allowed_levels()[::-1]:
        kernels = library.load(name)
        found[kernels.level, kernels.int8_kernels[-1]] = name
    return list(found.values())


@pytest.fixture(autouse=True)
def inference_in_filled_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill new memory, so that no result may depend on it: arrays with NaN, and what C allocates with 3.4e38."""
    aligned = packing.aligned

    def filled(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        array = aligned(*shape, dtype=dtype)
        array[...] = -1 if np.issubdtype(dtype, np.integer) else np.nan
        return array

    for module in (decoder, engine, packing):
        monkeypatch.setattr(module, "aligned", filled)
    perturb = getattr(ctypes.CDLL(None), "mallopt", lambda name, value: None)  # of the GNU C library
    perturb(-6, 0x80)
    with torch.inference_mode():
        yield
    perturb(-6, 0)


def make_model(scheme: str = "relative", size: str = "exact", **options: Any) -> Transformer:
    torch.manual_seed(1)
    names = "dim", "heads", "head_dim", "feed_forward_dim"
    sizes = {**dict(zip(names, SIZES[size], strict=True)), "encoder_layers": 1, "decoder_layers": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about models that cannot tell word order
        config = ModelConfig(**{**sizes, **options, **SCHEMES[scheme]})  # type: ignore[arg-type]
        model = Transformer(config, VOCAB).eval()
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn_like(parameter)  # biases and norms start at constants
    return model


def native(model: Transformer, *, int8: bool = False) -> NativeDecoder:
    """Return the compiled engine of a model."""
    return NativeDecoder(model.config, model.vocab_sizes, arrays_of(model), int8=int8)


def engines_of(model: Transformer, *, int8: bool = False) -> tuple[NativeEngine, TorchEngine]:
    """Return the compiled engine of a model, and PyTorch."""
    return NativeEngine(native(model, int8=int8)), TorchEngine(model)


def random_ids(lengths: Iterable[int], vocab: int = VOCAB) -> list[list[int]]:
    return [torch.randint(3, vocab, (length,)).tolist() for length in lengths]


def rules_of(beam_size: int, **options: Any) -> SearchRules:
    names = {"early_stopping", "length_penalty", "alpha", "no_repeat_ngram"} & options.keys()
    search = SearchConfig(beam_size=beam_size, **{name: options.pop(name) for name in names})
    return SearchRules(**{"config": search, "bos": 1, "eos": 2, "banned": (0, 1), **options})


@pairwise(
    1,  # schemes do not meet the other options in the code
    scheme=SCHEMES,
    norm=["pre", "post", "rms"],
    scaled=[False, True],
    biased=[False, True],
    feed_forward=["plain", "gated"],
    in_turn={"size": SIZES, "activation": ACTIVATIONS},
)
def test_logits_of_reordered_hypotheses(scheme, norm, scaled, biased, feed_forward, size, activation):
    settings = {"norm": norm, "activation": activation, "feed_forward": feed_forward, "output_bias": biased}
    model = make_model(scheme, size, **settings, scaled_embeddings=scaled, norm_epsilon=1e-3)
    engines, sources, rules = engines_of(model), random_ids(LENGTHS), rules_of(4)
    states = [engine.start(sources, 37) for engine in engines]
    count = len(LENGTHS)
    for step in range(37):
        rows = list(range(count))
        if step == 1:  # three hypotheses per source
            rows = [row for row in rows for _ in range(3)]
        if step in (5, 16):  # hypotheses replace others, and the last source replaces the second
            rows = [0, 1, 0, *rows[-3:], *rows[6:-3]]
        if step == 20:  # different numbers of hypotheses per source, in another order
            rows = [8, 0, 0, 1, 7, 5]
        count = len(rows)
        tokens = torch.randint(VOCAB, (count,)).tolist()
        found, theirs = (
            engine.step(state, tokens, rows, rules, 5) for engine, state in zip(engines, states, strict=True)
        )
        logits, expected = torch.from_numpy(found.logits()), torch.from_numpy(theirs.logits())
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=2e-5 * float(expected.abs().max()))
        log_probs = logits - torch.from_numpy(found.log_sums)[:, None]
        torch.testing.assert_close(log_probs, expected.log_softmax(-1), rtol=1e-5, atol=1e-4)
        log_probs[:, list(rules.banned)] = -torch.inf
        values = torch.from_numpy(found.values)
        assert torch.equal(values, log_probs.sort(dim=1, descending=True).values[:, :5])
        assert torch.equal(values, log_probs.gather(1, torch.from_numpy(found.tokens)))


@pairwise(1, scheme=SCHEMES, size=SIZES, norm=["pre", "post"])
def test_scores_and_attention_of_given_translations(scheme, size, norm):
    """Of targets of different lengths; a sentence has the same bits alone."""
    model = make_model(scheme, size, norm=norm)
    (own, theirs), sources, targets = engines_of(model), random_ids(LENGTHS), random_ids([9, 2, 37, 5, 16])
    scores, weights = own.score(sources, targets), own.align(sources, targets)
    for found, expected in zip(scores, theirs.score(sources, targets), strict=True):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-4)
    for found, expected in zip(weights, theirs.align(sources, targets), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    for i, each in enumerate(scores):
        assert own.score(sources[i : i + 1], targets[i : i + 1]) == [each]
        np.testing.assert_array_equal(own.align(sources[i : i + 1], targets[i : i + 1])[0], weights[i])


def test_a_state_has_a_limit():
    own, _ = engines_of(make_model())
    state = own.start([[5, 2]], 1)
    own.step(state, [1], [0], rules_of(1), 1)
    with pytest.raises(ValueError, match="1 positions"):
        own.step(state, [1], [0], rules_of(1), 1)
    with pytest.raises(InputError, match="at most 8,192 pieces, got a limit of 8,193"):
        own.search([Request(1, [5, 2], 8193)], rules_of(1))


@pairwise(
    3,
    sentences=[1, 3, 67],
    early_stopping=[False, True, "heuristic"],
    given=[(), (7,), (9, 5)],
    n_best=[1, 2],
    ties=[False, True],
    penalty=[("gnmt", 0.6), ("average", 1.0), ("none", 0.0)],
    in_turn={"scheme": SCHEMES, "beam_size": [1, 2, 4, 8]},
)
def test_searches_find_the_same(sentences, early_stopping, given, n_best, ties, penalty, scheme, beam_size):
    model = make_model(scheme, output_bias=True)
    model.output_bias[2] = 3.0  # ends that come early
    model.output_bias[[0, VOCAB - 1]] = torch.tensor([3.0, 20.0])  # likely, but banned
    if ties:
        model.embedding[40:46] = model.embedding[60]
        model.output_bias[40:46] = model.output_bias[60] = 4.0
    limits = torch.randint(1 + len(given), 37, (sentences,)).tolist()
    sources = random_ids(torch.randint(1, 13, (sentences,)).tolist())
    rules = rules_of(
        beam_size,
        early_stopping=early_stopping,
        n_best=min(n_best, beam_size),
        banned=(0, 1, VOCAB - 1),
        length_penalty=penalty[0],
        alpha=penalty[1],
        given=len(given),
    )
    requests = [Request(1, ids, limit, list(given)) for ids, limit in zip(sources, limits, strict=True)]
    own, theirs = engines_of(model)
    assert_same(own.search(requests, rules), beam.search(own, requests, rules), rel=1e-7)
    if not ties:  # which PyTorch may rank in any order
        assert_same(own.search(requests, rules), theirs.search(requests, rules))


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]], *, rel: float = 1e-5) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], rel=rel)


def test_a_beam_wider_than_the_vocabulary():
    torch.manual_seed(1)
    config = ModelConfig(dim=12, heads=3, feed_forward_dim=20, encoder_layers=1, decoder_layers=1, clip=2)
    own, theirs = engines_of(Transformer(config, 7).eval())
    requests = [Request(1, ids, limit) for ids, limit in zip(random_ids([3, 1], 7), [4, 6], strict=True)]
    rules = rules_of(30, n_best=30)
    assert_same(own.search(requests, rules), theirs.search(requests, rules))


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("int8", [False, True])
def test_nan_ends_its_sentence_only(beam_size, int8):
    model = make_model(shared_embeddings="none")
    model.src_embedding[200] = torch.tensor([3e38, -3e38]).repeat(32)  # its variance is infinite
    own, _ = engines_of(model, int8=int8)
    sources, rules = random_ids([5, 4, 7], 200), rules_of(beam_size)
    requests = [Request(i, ids, 9) for i, ids in enumerate(sources, 1)]
    restrained = rules_of(beam_size, no_repeat_ngram=2)
    for search in (
        lambda given: own.search(given, rules),
        lambda given: own.search(given, restrained),
        lambda given: beam.search(own, given, rules),
    ):
        broken = Request(2, [*sources[1], 200], 9)
        found = search([requests[0], broken, requests[2]])
        assert found == [*search(requests[:1]), [], *search(requests[2:])]
        assert all([found[0], found[2]])


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


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.zeros(3), np.float32),
        (np.zeros(3, np.float32), np.int64),
        (np.zeros(3, np.int32), np.int64),
        (np.zeros((4, 4), np.float32).T[1:], np.float32),
    ],
)
def test_arrays_that_the_kernel_would_misread_are_refused(array, dtype):
    with pytest.raises(TypeError, match=f"must have contiguous numbers of {np.dtype(dtype)}, got {array.dtype}"):
        packing.address(array, dtype)


def test_models_that_are_not_supported(monkeypatch):
    config = make_model().config
    assert unsupported_reason(config) is None
    assert "not on cuda" in unsupported_reason(config, "cuda:1")
    assert "bfloat16" in unsupported_reason(config, dtype="bfloat16")
    monkeypatch.setattr(decoder, "KERNELS", None)
    monkeypatch.setattr(decoder, "MISSING", "no compiler")
    assert "no compiler" in unsupported_reason(config)
