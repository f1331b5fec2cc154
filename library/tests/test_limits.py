"""Arguments at their limits: the last value that is allowed, the first that is refused, and shapes that differ in one
dimension. Modules pass all their arguments on."""

import itertools
from typing import Any

import pytest
import torch
from relattn import (
    RelativeAttention,
    RelativeMultiheadAttention,
    RelativePositionTable,
    RelativeSelfAttention,
    relation_attention,
    relative_attention,
)
from torch import Tensor, nn

BATCH, HEADS, QUERIES, KEYS, DIM, VALUE_DIM, REL_DIM, LABELS = 3, 10, 7, 11, 13, 17, 19, 23
KEY_HEADS = 5
WHOLE: dict[str, tuple[int, ...]] = {  # every tensor of a call, with sizes that differ
    "query": (BATCH, HEADS, QUERIES, DIM),
    "key": (BATCH, KEY_HEADS, KEYS, DIM),
    "value": (BATCH, KEY_HEADS, KEYS, VALUE_DIM),
    "rel_key": (LABELS, REL_DIM),
    "rel_value": (LABELS, VALUE_DIM),
    "rel_query": (BATCH, HEADS, QUERIES, REL_DIM),
    "pos_query": (LABELS, DIM),
    "rel_bias": (LABELS,),
    "bias": (BATCH, HEADS, QUERIES, KEYS),
    "mask": (BATCH, HEADS, QUERIES, KEYS),
    "query_offset": (BATCH,),
    "key_lengths": (BATCH,),
    "query_lengths": (BATCH,),
}
RELATED = {name: sizes for name, sizes in WHOLE.items() if name != "query_offset"} | {
    "relations": (BATCH, HEADS, QUERIES, KEYS)
}
DTYPES = {
    "mask": torch.bool,
    **dict.fromkeys(("query_offset", "key_lengths", "query_lengths", "relations"), torch.int64),
}


def tensors(sizes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {name: torch.ones(shape, dtype=DTYPES.get(name, torch.float32)) for name, shape in sizes.items()}


def refusal(function: Any, **arguments: Any) -> str:
    """Return the message of a call that is refused, or an empty one if it is not."""
    try:
        function(**arguments)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def other_shapes(name: str, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return shapes with one more or less dimension or row, and none of one dimension, as far as none is right."""
    found = [(2, *shape), shape[1:]] if name not in ("bias", "mask", "query_offset") else [(1, *shape), (2, *shape)]
    if name == "query_offset":
        found = [(2, *shape)]
    for i, size in enumerate(shape):
        changes = {size + 1, 2 * size, 0}
        found += [(*shape[:i], changed, *shape[i + 1 :]) for changed in sorted(changes)]
    return found


@pytest.mark.parametrize("operator", [relative_attention, relation_attention], ids=["relative", "relation"])
def test_each_tensor_must_fit_the_others_in_every_dimension(operator):
    sizes = WHOLE if operator is relative_attention else RELATED
    good = tensors(sizes)
    assert operator(**good, backend="reference").shape == (BATCH, HEADS, QUERIES, VALUE_DIM)
    for name, shape in sizes.items():
        for other in other_shapes(name, shape):
            changed = {**good, **tensors({name: other})}
            assert "got" in refusal(operator, **changed, backend="reference"), (name, other)


@pytest.mark.parametrize("name", WHOLE)
def test_each_tensor_must_have_its_dtype_and_device(name):
    good = tensors(WHOLE)
    others = (good[name].to(torch.complex64), good[name].double(), good[name].to("meta"))
    for other in (*others, good[name].tolist(), nn.Linear(2, 2), good[name].to_sparse()):
        message = refusal(relative_attention, **{**good, name: other}, backend="reference")
        assert name in message, other
        assert "got" in message, other


def small(operator: Any = relative_attention, **options: Any) -> Tensor:
    """Call an operator with a batch of two, three queries and five keys of dimension 2."""
    query, key = torch.ones(2, 1, 3, 2), torch.ones(2, 1, 5, 2)
    return operator(query, key, key, **options)


FAR, WIDE = 2**62, 2**29
LEAST_SCALE = 1.0 / torch.finfo(torch.float32).max
ALLOWED_AND_REFUSED: list[tuple[str, list[Any], list[Any]]] = [
    ("query_offset", [FAR, -FAR, torch.tensor([FAR, -FAR])], [FAR + 1, -FAR - 1]),
    ("query_offset", [], [torch.tensor([0, FAR + 1]), torch.tensor([-FAR - 1, 0]), True, 1.0]),
    ("window", [(WIDE, WIDE), (0, 0), (None, None), [1, 1]], [(WIDE + 1, 0), (0, WIDE + 1), (-1, 0), (0, -1), (1,)]),
    ("chunk", [(1, WIDE), (WIDE, 1), (WIDE, 0), (1, None, None), [2, 1]], [(WIDE + 1, 0), (0, 0), (1, -1), (1,)]),
    ("chunk", [(1, 0, WIDE), (2, 0, WIDE // 2 - 1)], [(WIDE, 2), (2, 0, WIDE // 2), (1, 0, WIDE + 1), (1, 1, 1, 1)]),
    ("dropout_p", [0.0, 1.0, 0, 1], [1.0 + 1e-9, -1e-9]),
    ("scale", [0.0, -1e300, 3, LEAST_SCALE], [torch.inf, -torch.inf, False, "1"]),
    ("key_lengths", [torch.tensor([0, 5])], [torch.tensor([0, 6]), torch.tensor([-1, 5]), torch.tensor([True, True])]),
    ("query_lengths", [torch.tensor([0, 3])], [torch.tensor([0, 4]), torch.tensor([-1, 3])]),
    ("clip", [0, (0, 0)], [-1, (0, -1), (-1, 0), (1,), 1.0, True]),
    ("beyond", ["clip", "zero"], ["", None, "Clip"]),
    ("is_causal", [True, False], [1, 0, None]),
]


@pytest.mark.parametrize(("name", "allowed", "refused"), ALLOWED_AND_REFUSED)
def test_limits_are_allowed_and_what_is_beyond_is_refused(name, allowed, refused):
    others: dict[str, Any] = {"query_offset": 0, "clip": 0, "rel_key": torch.ones(1, 2)}
    for value in allowed:
        small(**{**others, name: value})
    for value in refused:
        assert name in refusal(small, **{**others, name: value}), value


def test_the_scale_of_a_bias_per_label_can_be_inverted():
    for dtype, least in ((torch.float16, 1 / 65504), (torch.float32, LEAST_SCALE)):
        x = torch.ones(1, 1, 2, 2, dtype=dtype)
        for sign in (1, -1):
            call = {"query": x, "key": x, "value": x, "rel_bias": x[0, 0, 0, :1], "clip": 0, "backend": "dense"}
            assert relative_attention(**call, scale=sign * least * 1.01).isfinite().all()
            assert "scale" in refusal(relative_attention, **call, scale=sign * least / 1.01)


def test_labels_from_minus_one_to_the_last_row_are_allowed():
    for check in (None, True):
        for least, most in itertools.product((-2, -1), (3, 4)):
            relations = torch.zeros(1, 1, 3, 5, dtype=torch.int64)
            relations[0, 0, 0, 0] = least
            relations[0, 0, 2, 4] = most
            call = {"relations": relations, "rel_key": torch.ones(4, 2), "check": check}
            if (least, most) == (-1, 3):
                small(relation_attention, **call)
                continue
            assert "relations" in refusal(small, operator=relation_attention, **call)
    small(relation_attention, relations=torch.full((1, 1, 3, 5), 9))  # without a table, labels say nothing


MODULES: dict[str, Any] = {
    "table": lambda **options: RelativePositionTable(1, 1, 1, **options),
    "attention": lambda **options: RelativeAttention(1, 1, 1, **options),
    "layer": lambda **options: RelativeSelfAttention(2, 1, 1, **options),
    "layer with a table per head": lambda **options: RelativeSelfAttention(2, 2, 1, per_head=True, **options),
    "multihead": lambda **options: RelativeMultiheadAttention(2, 1, clip=1, **options),
    "multihead of other inputs": lambda **options: RelativeMultiheadAttention(2, 1, clip=1, kdim=3, **options),
}


@pytest.mark.parametrize("name", MODULES)
def test_all_parameters_have_the_device_and_dtype_that_are_asked_for(name):
    plain = MODULES[name]()
    assert {(x.device.type, x.dtype) for x in plain.parameters()} == {("cpu", torch.float32)}
    for options in ({"dtype": torch.bfloat16}, {"device": "meta"}, {"device": "meta", "dtype": torch.float64}):
        module = MODULES[name](**options)
        want = (options.get("device", "cpu"), options.get("dtype", torch.float32))
        assert {(x.device.type, x.dtype) for x in module.parameters()} == {want}
        assert {key: x.shape for key, x in module.named_parameters()} == {
            key: x.shape for key, x in plain.named_parameters()
        }


LAYERS: dict[str, Any] = {
    "layer": lambda **options: RelativeSelfAttention(12, 4, **options),
    "multihead": lambda **options: RelativeMultiheadAttention(12, 4, **options),
    "from a module": lambda **options: RelativeMultiheadAttention.from_module(nn.MultiheadAttention(12, 4), **options),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_layers_pass_the_options_of_attention_on(make):
    for options in ({}, {"tables": "keys"}, {"tables": "values"}, {"beyond": "zero"}, {"backend": "dense"}):
        for per_head in (False, True):
            got = make(clip=(3, 1), per_head=per_head, **options).attention
            want = RelativeAttention(3, (3, 1), 4 if per_head else None, **options)
            assert (got.clip, got.beyond, got.backend) == (want.clip, want.beyond, want.backend)
            assert {key: x.shape for key, x in got.named_parameters()} == {
                key: x.shape for key, x in want.named_parameters()
            }


def test_a_copy_of_multihead_attention_keeps_its_settings():
    for bias, batch_first, dropout, training in itertools.product(
        [False, True], [False, True], [0.0, 0.3], [False, True]
    ):
        own = nn.MultiheadAttention(12, 4, dropout, bias, batch_first=batch_first, dtype=torch.float64).train(training)
        copy = RelativeMultiheadAttention.from_module(own, clip=1)
        names = ("batch_first", "dropout", "training", "embed_dim", "num_heads", "head_dim", "kdim", "vdim")
        assert [getattr(copy, name) for name in names] == [getattr(own, name) for name in names]
        assert copy.attention.dropout == dropout
        own_weights = own.state_dict()
        weights = {key: x for key, x in copy.state_dict().items() if not key.startswith("attention.")}
        assert weights.keys() == own_weights.keys()
        for key, x in weights.items():
            assert x.dtype == torch.float64
            assert torch.equal(x, own_weights[key])


def test_new_layers_are_initialised_like_those_of_pytorch():
    for options in ({}, {"kdim": 7, "vdim": 5}):
        torch.manual_seed(5)
        own = nn.MultiheadAttention(12, 4, **options)
        torch.manual_seed(5)
        ours = RelativeMultiheadAttention(12, 4, clip=1, **options)
        for key, x in own.state_dict().items():
            got = ours.state_dict()[key]
            assert got.shape == x.shape
            assert bool((got == 0).all()) == bool((x == 0).all())
            if x.any():
                assert abs(float(got.std() / x.std()) - 1.0) < 0.3


def test_an_empty_cache_has_room_in_the_dtype_of_the_projections():
    for dtype, kv_heads, capacity in itertools.product([torch.float32, torch.bfloat16], [1, 2, 4], [0, 3]):
        layer = RelativeSelfAttention(12, 4, 1, num_key_heads=kv_heads, is_causal=True, dtype=dtype)
        cache = layer.empty_cache(2, capacity)
        assert [x.shape for x in cache.buffers] == [(2, kv_heads, capacity, 3)] * 2
        assert [(x.dtype, x.device.type) for x in cache.buffers] == [(dtype, "cpu")] * 2
        assert (cache.length, cache.lengths, cache.dropped, cache.capacity) == (0, None, 0, capacity)
    assert layer.empty_cache(0).batch == 0
    for batch, capacity, name in ((-1, 0, "batch"), (1.0, 0, "batch"), (1, -1, "capacity"), (1, True, "capacity")):
        with pytest.raises(ValueError, match=f"{name} must be an integer >= 0"):
            layer.empty_cache(batch, capacity)


def test_counts_of_modules_are_integers_of_at_least_one():
    makers: dict[str, Any] = {
        "dim": lambda count: RelativePositionTable(1, count),
        "heads": lambda count: RelativePositionTable(1, 2, count),
        "head_dim": lambda count: RelativeAttention(count, 1),
        "embed_dim": lambda count: RelativeSelfAttention(count, 1, 1),
        "num_heads": lambda count: RelativeSelfAttention(4, count, 1),
        "num_key_heads": lambda count: RelativeSelfAttention(4, 2, 1, num_key_heads=count),
    }
    for name, make in makers.items():
        make(1)
        for count in (0, -1, 1.0, True, "1"):
            with pytest.raises(ValueError, match=name):
                make(count)
