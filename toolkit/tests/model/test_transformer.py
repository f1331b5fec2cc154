"""The Transformer: compared with PyTorch's layers, and different ways to compute the same result."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from relattn import AttentionCache
from relattn_mt.config import SCHEMES, ModelConfig
from relattn_mt.data.batching import collate
from relattn_mt.model.layers import Residual
from relattn_mt.model.mixers import MixerState
from relattn_mt.model.transformer import Cache, Transformer
from relattn_mt.model.weights import arrays_of, make_model
from relattn_mt.training.objective import summed_loss
from torch import Tensor, nn

from tests.support.covering import pairwise

VOCAB, ROWS, SRC, TGT = 23, 5, 7, 6
LENGTHS = torch.tensor([7, 1, 4, 6, 2])
PADDING = torch.arange(SRC) >= LENGTHS[:, None]
SCHEME_MODELS: dict[str, dict] = {name: {"positions": name} for name in SCHEMES}
SCHEME_MODELS["learned"] |= {"max_positions": 11}
WITHOUT_ORDER: dict[str, dict] = {
    "none": {"positions": "none"},
    "clip 0": {"clip": 0},
    "clip 0, zero": {"clip": 0, "beyond": "zero"},
}
MODELS: dict[str, dict] = {
    **SCHEME_MODELS,
    **WITHOUT_ORDER,
    "one table per head": {"clip": 3, "clip_right": 1, "tables_per_head": True, "norm": "post"},
    "keys, no distances to the right": {"relative_tables": "keys", "clip_right": 0},
    "values, zero": {"relative_tables": "values", "beyond": "zero", "clip": 1, "clip_right": 3},
}
every_model = pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS.keys())
every_scheme = pytest.mark.parametrize("changes", SCHEME_MODELS.values(), ids=SCHEME_MODELS.keys())


def make(changes: dict, *, seed: int = 1) -> Transformer:
    """Return a float64 model in evaluation mode, in which all parameters are random: zeros would hide errors."""
    size = {"dim": 12, "heads": 3, "feed_forward_dim": 20, "encoder_layers": 1, "decoder_layers": 2}
    if "clip" in SCHEMES[changes.get("positions", "relative")].options:
        size |= {"clip": 2}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*cannot tell word order")  # the warning has its own test
        model = Transformer(ModelConfig(**{**size, "dropout": 0.0, "attention_dropout": 0.0, **changes}), VOCAB)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator) * 0.3
        parameter.data = (noise + (1 if parameter.ndim == 1 else 0)).double()
    return model.double().eval()


def pieces(*shape: int, seed: int = 2) -> Tensor:
    return torch.randint(4, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Return source pieces, their lengths and target pieces."""
    return pieces(ROWS, SRC), LENGTHS, pieces(ROWS, TGT, seed=3)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def target_tensors(cache: Cache) -> list[Tensor]:
    """Return the tensors of a cache that depend on the target."""
    tensors = [layer.tensors if isinstance(layer, MixerState) else (layer.key, layer.value) for layer in cache.layers]
    return [tensor for layer in tensors for tensor in layer]


def addresses(cache: Cache) -> list[int]:
    """Return the memory addresses of the keys and values of a cache. A `MixerState` has none."""
    return [
        tensor.data_ptr() for layer in cache.layers if isinstance(layer, AttentionCache) for tensor in layer.buffers
    ]


def as_pytorch(layer: nn.Module, norm: str) -> nn.Module:
    """Return PyTorch's encoder or decoder layer with the weights of ours."""
    attentions = [(layer.self_attention, "self_attn")]
    if hasattr(layer, "cross_attention"):
        attentions.append((layer.cross_attention, "multihead_attn"))
    kind = nn.TransformerDecoderLayer if len(attentions) == 2 else nn.TransformerEncoderLayer
    theirs = kind(12, 3, 20, 0.0, batch_first=True, norm_first=norm == "pre").double()
    for ours, name in attentions:
        projections = ours.query, ours.key, ours.value
        getattr(theirs, name).in_proj_weight.data = torch.cat([x.weight.data for x in projections])
        getattr(theirs, name).in_proj_bias.data = torch.cat([x.bias.data for x in projections])
        getattr(theirs, name).out_proj.load_state_dict(ours.out.state_dict())
    norms = [(residual.norm, f"norm{number}") for number, residual in enumerate(layer.residuals, start=1)]
    for ours, name in [*norms, (layer.feed_forward[0], "linear1"), (layer.feed_forward[3], "linear2")]:
        getattr(theirs, name).load_state_dict(ours.state_dict())
    return theirs  # in training mode: the fused path of evaluation warns


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_model_without_positions_equals_pytorchs_transformer(norm):
    model, (src, _, tgt) = make({"positions": "none", "norm": norm}), inputs()
    x, y = (F.embedding(tokens, model.embedding) * math.sqrt(12) for tokens in (src, tgt))
    for layer in model.encoder:
        x = as_pytorch(layer, norm)(x, src_key_padding_mask=PADDING)
    memory, future = model.encoder_norm(x), torch.ones(TGT, TGT, dtype=torch.bool).triu(1)
    for layer in model.decoder:
        y = as_pytorch(layer, norm)(y, memory, tgt_mask=future, memory_key_padding_mask=PADDING)
    close(model(src, LENGTHS, tgt), model.decoder_norm(y) @ model.embedding.T)
    close(model.encode(src, LENGTHS)[~PADDING], memory[~PADDING])
    assert [name for name, parameter in model.named_parameters() if VOCAB in parameter.shape] == ["embedding"]


@every_model
@torch.inference_mode()
def test_decoding_in_parts_equals_all_positions_at_once(changes):
    model, (src, _, tgt) = make(changes), inputs()
    whole = model(src, LENGTHS, tgt)
    for sizes in ([1] * TGT, [2, 3, 1], [5, 1]):
        cache, parts = model.start(model.encode(src, LENGTHS), LENGTHS), []
        for chunk in tgt.split(sizes, dim=1):
            logits, cache = model.step(chunk, cache)
            parts.append(logits)
            assert cache.length == sum(part.shape[1] for part in parts)
        close(torch.cat(parts, dim=1), whole)


SELECTIONS = [  # selected rows, number of sources afterwards, and whether the sources are not copied
    ([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4], 5, True),
    ([1, 1, 2, 3, 5, 3, 12, 14, 13], 3, False),
    ([0, 2, 3, 5, 8, 7], 3, True),
    ([4, 0, 2, 2, 5], 5, False),
    ([0, 1, 2, 3, 4], 5, True),
    ([4, 3], 2, False),
]


@every_model
@torch.inference_mode()
def test_rows_of_a_cache_give_the_same_results_as_alone(changes):
    """Beams grow, lose a sentence, shrink and mix. Rows share their source, and steps do not copy the cache."""
    model, (src, _, tgt) = make(changes), inputs()
    expected, memory = model(src, LENGTHS, tgt), model.encode(src, LENGTHS)
    cache, at = model.start(memory, LENGTHS, TGT), torch.arange(ROWS)
    for i, (rows, sources, same) in enumerate(SELECTIONS):
        held = [tensor.clone() for tensor in target_tensors(cache)]
        logits, after = model.step(tgt[at, i : i + 1], cache)
        close(logits[:, 0], expected[at, i])
        assert all(map(torch.equal, held, target_tensors(cache)))
        assert addresses(after) == addresses(cache)
        assert addresses(after)
        cache, at = after.select(torch.tensor(rows)), at[rows]
        assert (len(cache.src_lengths), cache.memory is after.memory) == (sources, same)


@every_model
@torch.inference_mode()
def test_padding_and_later_target_positions_have_no_effect(changes):
    model, (src, _, tgt) = make(changes), inputs()
    expected = model(src, LENGTHS, tgt)
    close(model(F.pad(src.where(~PADDING, 0), (0, 3), value=9), LENGTHS, tgt), expected)
    for row, length in ((1, 1), (2, 4)):
        close(model(src[row : row + 1, :length], LENGTHS[row : row + 1], tgt[row : row + 1])[0], expected[row])
    tgt[:, 4:] = pieces(ROWS, 2, seed=4)
    changed = model(src, LENGTHS, tgt)
    close(changed[:, :4], expected[:, :4])
    assert (changed[:, 4:] - expected[:, 4:]).abs().amax() > 1e-3


@every_model
def test_word_order_has_an_effect_unless_a_warning_says_no(changes):
    model, src, order = make(changes), pieces(1, SRC), torch.tensor([4, 2, 6, 0, 1, 5, 3])
    length = torch.tensor([SRC])
    difference = (model.encode(src[:, order], length) - model.encode(src, length)[:, order]).abs().amax()
    if changes in WITHOUT_ORDER.values():
        assert difference < 1e-11
        with pytest.warns(UserWarning, match="cannot tell word order"):
            Transformer(model.config, VOCAB)
    else:
        assert difference > 1e-3
        Transformer(model.config, VOCAB)  # a warning would be an error


def test_learned_positions_have_a_maximum_length():
    model, lengths = make(SCHEME_MODELS["learned"]), torch.tensor([11])
    _, cache = model.step(pieces(1, 11), model.start(model.encode(pieces(1, 11), lengths), lengths))
    for call in (lambda: model.step(pieces(1, 1), cache), lambda: model.encode(pieces(1, 12), lengths)):
        with pytest.raises(ValueError, match=r"at most 11 pieces .* got 12"):
            call()


def trained(model):
    """Return the names and the parameters that are trained."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


@every_scheme
@pytest.mark.parametrize("how", ["autocast", "weights"])
def test_training_and_decoding_in_bfloat16(changes, how):
    """Errors are a small multiple of rounding, under autocast (precision bf16-mixed) and with bfloat16 weights."""
    model, (src, _, tgt) = make(changes).float(), inputs()
    with torch.no_grad():
        exact = model(src, LENGTHS, tgt)
    if how == "weights":
        model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        logits = model(src, LENGTHS, tgt)
        logits.square().mean().backward()
        with torch.inference_mode():
            cache, parts = model.start(model.encode(src, LENGTHS), LENGTHS, TGT), []
            for chunk in tgt.split([1, 2, 3], dim=1):
                step, cache = model.step(chunk, cache)
                parts.append(step)
    for result in (logits, torch.cat(parts, dim=1)):
        assert result.dtype == torch.bfloat16
        assert (result - exact).abs().max() <= 16 * torch.finfo(torch.bfloat16).eps * exact.abs().max()
    for name, parameter in trained(model):
        assert parameter.grad.dtype == parameter.dtype, name
        assert parameter.grad.isfinite().all(), name


@every_model
def test_an_empty_batch_has_zero_loss_and_gradients(changes):
    model = make(changes).train()
    loss = summed_loss(model, collate([], []), 0.1)
    loss.backward()
    assert loss.item() == 0
    assert not any(parameter.grad.any() for _, parameter in trained(model))


@pairwise(
    name=["embedding", "residual", "attention", "activation"], norm=["pre", "post"], positions=["relative", "rope"]
)
def test_each_dropout_acts_only_in_training(name, norm, positions):
    option = {"attention": "attention_dropout", "activation": "activation_dropout"}.get(name, "dropout")
    changes = {"positions": positions, "norm": norm}
    model, expected = make({**changes, option: 0.5}), make(changes)(*inputs())
    assert torch.equal(model(*inputs()), expected)
    for other in model.modules():  # one option sets both
        if isinstance(other, Residual) and name == "embedding":
            other.dropout.p = 0.0
    model.dropout.p *= name == "embedding"
    dropped = []
    for _ in range(2):
        torch.manual_seed(1)
        dropped.append(model.train()(*inputs()))
    assert torch.equal(*dropped)
    assert (dropped[0] - expected).abs().amax() > 1e-3


@every_scheme
@torch.no_grad()
def test_loaded_models_do_not_depend_on_the_default_dtype_and_device(changes):
    """Another thread that loads a model changes them for the whole process."""
    model = make(changes).float()
    state, want = arrays_of(model), model(*inputs())
    arguments = inputs()
    for dtype, device in ((torch.bfloat16, "cpu"), (torch.float16, "cpu"), (torch.float32, "meta")):
        try:
            torch.set_default_dtype(dtype)
            with torch.device(device), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*cannot tell word order")
                loaded = make_model(model.config, model.vocab_sizes, state, source="model").eval()
                assert torch.equal(loaded(*arguments), want)
        finally:
            torch.set_default_dtype(torch.float32)
