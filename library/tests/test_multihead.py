"""`RelativeMultiheadAttention` against nn.MultiheadAttention, and with tables against the operator."""

import pytest
import torch
from relattn import RelativeMultiheadAttention, relative_attention
from torch import nn

from tests.support.covering import pairwise

BATCH, HEADS, DIM = 2, 3, 15


def normal(*sizes, seed=0):
    return torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def filled(module):
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = 0.3 * normal(*parameter.shape, seed=seed)
    return module


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def inputs_of(layout, queries, keys, kdim=None, vdim=None):
    made = []
    for seed, (n, width) in enumerate(((queries, DIM), (keys, kdim or DIM), (keys, vdim or DIM))):
        sizes = {"batch first": (BATCH, n), "time first": (n, BATCH), "no batch": (n,)}[layout]
        made.append(normal(*sizes, width, seed=seed).requires_grad_())
    return made


def masks_of(layout, padding, attn, queries, keys):
    batch = 1 if layout == "no batch" else BATCH
    hidden = torch.zeros(batch, keys, dtype=torch.bool)
    hidden[0, 2] = hidden[-1, :2] = True  # not on the right
    blocked = torch.rand(batch * HEADS, queries, keys, generator=torch.Generator().manual_seed(7)) < 0.3
    blocked[..., 3] = False
    choices = {
        "none": None,
        "bool": blocked[0],
        "bool per head": blocked,
        "float": normal(queries, keys, seed=8),
        "float per head": normal(batch * HEADS, queries, keys, seed=8),
        "0 and -inf": torch.zeros(queries, keys, dtype=torch.float64).masked_fill(blocked[0], -torch.inf),
    }
    masks = {"attn_mask": choices[attn]}
    if padding != "none":
        as_given = hidden
        if padding == "float":
            as_given = torch.zeros(batch, keys, dtype=torch.float64).masked_fill(hidden, -torch.inf)
            as_given[:, 4] = -0.7
        masks["key_padding_mask"] = as_given[0] if layout == "no batch" else as_given
    return masks


@pairwise(
    layout=["batch first", "time first", "no batch"],
    dims=[(None, None), (7, 11)],
    bias=[False, True],
    sizes=[(7, 7), (5, 11)],
    padding=["none", "bool", "float"],
    attn=["none", "bool", "bool per head", "float", "float per head", "0 and -inf"],
)
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")
def test_zero_tables_equal_multihead_attention(layout, dims, bias, sizes, padding, attn):
    """Outputs, and the gradients of the inputs and of all parameters."""
    options = {"bias": bias, "kdim": dims[0], "vdim": dims[1], "batch_first": layout == "batch first"}
    theirs = filled(nn.MultiheadAttention(DIM, HEADS, **options).double())
    ours = RelativeMultiheadAttention.from_module(theirs, clip=2)
    assert not any(table.any() for table in ours.attention.parameters())
    masks = masks_of(layout, padding, attn, *sizes)
    results = []
    for module in (ours, theirs):
        inputs = inputs_of(layout, *sizes, *dims)
        output, weights = module(*inputs, need_weights=False, **masks)
        assert weights is None
        output.square().sum().backward()
        named = {name: x.grad for name, x in module.named_parameters() if not name.startswith("attention.")}
        results.append({"output": output.detach(), **dict(zip("qkv", (x.grad for x in inputs), strict=True)), **named})
    assert results[0].keys() == results[1].keys()
    for name, want in results[1].items():
        close(results[0][name], want)
    assert all(table.grad.abs().max() > 0 for table in ours.attention.parameters())


def test_tables_are_those_of_the_operator_and_is_causal_needs_no_mask():
    module = filled(RelativeMultiheadAttention(DIM, HEADS, clip=(3, 1), per_head=True, batch_first=True).double())
    x = normal(BATCH, 7, DIM)
    q, k, v = (
        each.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for each in nn.functional.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    )
    tables = module.attention.rel_key.weight, module.attention.rel_value.weight
    for is_causal in (False, True):
        want = relative_attention(q, k, v, *tables, clip=(3, 1), is_causal=is_causal, backend="reference")
        want = module.out_proj(want.transpose(1, 2).flatten(2))
        close(module(x, x, x, is_causal=is_causal)[0], want)
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    close(module(x, x, x, attn_mask=hidden)[0], want)
    close(module(x[:, :5], x, x, is_causal=True)[0], module(x[:, :5], x, x, attn_mask=hidden[:5])[0])


def test_layer_of_a_transformer_encoder_keeps_its_relative_terms_in_inference():
    """The fast path of PyTorch's encoder layer would read the projections without calling the module."""
    layer = nn.TransformerEncoderLayer(12, 4, 7, dropout=0.0, batch_first=True).double().eval()  # heads must be even
    x, padding = normal(BATCH, 5, 12), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    layer.self_attn = RelativeMultiheadAttention.from_module(layer.self_attn, clip=2)
    with torch.no_grad():
        plain = layer(x, src_key_padding_mask=padding)
        filled(layer.self_attn.attention)
        inference = layer(x, src_key_padding_mask=padding)
    assert not torch.allclose(inference, plain)
    close(inference, layer(x, src_key_padding_mask=padding).detach())


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
def test_compiles_as_one_graph():
    module = filled(RelativeMultiheadAttention(DIM, HEADS, clip=2, batch_first=True).double())
    compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=True)
    results = []
    for run in (module, compiled):
        inputs = inputs_of("batch first", 5, 7)
        output = run(*inputs, **masks_of("batch first", "bool", "bool", 5, 7))[0]
        gradients = torch.autograd.grad(output.square().sum(), [*inputs, *module.parameters()])
        results.append([output.detach(), *gradients])
    for got, want in zip(*results, strict=True):
        close(got, want)


def test_exports_with_other_lengths_and_both_kinds_of_masks():
    layout = "time first"
    module = filled(RelativeMultiheadAttention(DIM, HEADS, clip=2).double())
    queries, keys = torch.export.Dim("queries"), torch.export.Dim("keys")
    masks = masks_of(layout, "bool", "float", 5, 7)
    shapes = {
        "query": {0: queries},
        "key": {0: keys},
        "value": {0: keys},
        "key_padding_mask": {masks["key_padding_mask"].dim() - 1: keys},
        "attn_mask": {0: queries, 1: keys},
    }
    inputs = [x.detach() for x in inputs_of(layout, 5, 7)]
    exported = torch.export.export(module.eval(), tuple(inputs), masks, dynamic_shapes=shapes).module()
    for sizes in ((5, 7), (11, 13)):
        inputs, masks = [x.detach() for x in inputs_of(layout, *sizes)], masks_of(layout, "bool", "float", *sizes)
        close(exported(*inputs, **masks)[0], module(*inputs, **masks)[0])


def test_dropout_is_for_training_only():
    module, x = RelativeMultiheadAttention(DIM, HEADS, 0.5, clip=2, batch_first=True).double(), normal(BATCH, 7, DIM)
    assert not torch.equal(module(x, x, x)[0], module(x, x, x)[0])
    module.eval()
    assert torch.equal(module(x, x, x)[0], module(x, x, x)[0])


def test_bad_arguments_are_refused():
    module, x = RelativeMultiheadAttention(DIM, HEADS, clip=2, batch_first=True).double(), normal(BATCH, 7, DIM)
    normed = nn.MultiheadAttention(15, 3)  # its weight is no parameter, so it would not be copied
    nn.utils.parametrizations.weight_norm(normed.out_proj)
    refused = [
        (lambda: RelativeMultiheadAttention(16, 3, clip=2), "embed_dim.*num_heads.*16 and 3"),
        (lambda: RelativeMultiheadAttention(DIM, HEADS, add_bias_kv=True, clip=2), "add_bias_kv must be False"),
        (lambda: RelativeMultiheadAttention(DIM, HEADS, add_zero_attn=True, clip=2), "add_zero_attn must be False"),
        (lambda: RelativeMultiheadAttention.from_module(nn.MultiheadAttention(15, 3, add_bias_kv=True), clip=2), "add"),
        (lambda: module(x, x, x, need_weights=True), "need_weights must be False"),
        (lambda: RelativeMultiheadAttention.from_module(nn.Linear(3, 3), clip=2), "nn.MultiheadAttention.*Linear"),
        (lambda: RelativeMultiheadAttention.from_module(module, clip=2), "without tables, got Relative"),
        (lambda: RelativeMultiheadAttention.from_module(normed, clip=2), "other out_proj.weight, out_proj.param"),
        (lambda: module(x, x, x, key_padding_mask=torch.ones(2, 7).int()), "key_padding_mask.*bool.*int32"),
        (lambda: module(x, x, x, attn_mask=torch.ones(7, 7).long()), "attn_mask.*bool.*int64"),
        (lambda: module(x, x, x, attn_mask=torch.ones(7, 7).cfloat()), "attn_mask.*bool.*complex64"),
        (lambda: module(x, x[..., :4], x), r"key.*15.*\(2, 7, 4\)"),
        (lambda: module(x, x, x, key_padding_mask=torch.zeros(7, 2).bool()), r"key_padding_mask.*\(2, 7\).*\(7, 2\)"),
        (lambda: module(x, x, x, attn_mask=torch.zeros(2, 7, 7).bool()), r"attn_mask.*\(6, 7, 7\).*\(2, 7, 7\)"),
    ]
    for make, facts in refused:
        with pytest.raises(ValueError, match=facts):
            make()


@pytest.mark.filterwarnings("ignore:.*nested tensor")
def test_an_existing_encoder_with_padding():
    """In inference, nn.TransformerEncoder passes nested tensors to layers that it was made with others of."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x, padding = torch.randn(2, 5, 16), torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool()
    with torch.inference_mode():
        own = encoder(x, src_key_padding_mask=padding)
        for layer in encoder.layers:
            layer.self_attn = RelativeMultiheadAttention.from_module(layer.self_attn, clip=4)
        with pytest.raises(TypeError, match="set use_nested_tensor = False"):
            encoder(x, src_key_padding_mask=padding)
        encoder.use_nested_tensor = False
        ours = encoder(x, src_key_padding_mask=padding)
    torch.testing.assert_close(ours[~padding], own[~padding])
