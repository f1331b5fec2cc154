"""The modules: tables, projections and the cache."""

import itertools

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from relattn import RelativeAttention, RelativePositionTable, RelativeSelfAttention, relative_attention


def layer(seed=0, **options):
    torch.manual_seed(seed)
    made = RelativeSelfAttention(15, 3, (4, 2), **options).double()
    with torch.no_grad():
        for bias in (made.query.bias, made.key.bias, made.value.bias, made.out.bias):
            if bias is not None:
                bias.normal_()
    return made


def sentences(batch, n, seed=1):
    return torch.randn(batch, n, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("clip", [3, (3, 3), (5, 1)])
@pytest.mark.parametrize("heads", [None, 7])
def test_a_table_is_a_row_a_label_glorot_uniform(clip, heads):
    torch.manual_seed(0)
    table = RelativePositionTable(clip, 64, heads)
    assert table().shape == ((7, 64) if heads is None else (7, 7, 64))
    bound = (6 / (7 + 64)) ** 0.5
    assert table().abs().max() <= bound
    assert table().abs().max() > 0.95 * bound
    assert table().std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
    assert table().requires_grad


@pytest.mark.parametrize("tables", ["both", "keys", "values", "neither"])
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_the_layer_is_projections_around_the_operator(tables, per_head, bias):
    attention, x = layer(tables=tables, per_head=per_head, bias=bias), sentences(2, 11)
    projections = (attention.query, attention.key, attention.value)
    query, key, value = (project(x).view(2, 11, 3, 5).transpose(1, 2) for project in projections)
    named = dict(attention.named_parameters())
    rel_key, rel_value = (named.get(f"attention.{table}.weight") for table in ("rel_key", "rel_value"))
    assert (rel_key is not None, rel_value is not None) == (tables in ("both", "keys"), tables in ("both", "values"))
    assert rel_key is None or rel_key.shape == ((3, 7, 5) if per_head else (7, 5))
    want = relative_attention(query, key, value, rel_key, rel_value, clip=(4, 2), backend="reference")
    close(attention(x), attention.out(want.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("tables", ["both", "keys", "values", "neither"])
@pytest.mark.parametrize("heads", [None, 3])
def test_tables_and_call_are_the_operator(tables, heads):
    """Options of the operator pass through, in the place of the module's own."""
    attention = RelativeAttention(5, (4, 2), heads, tables=tables, beyond="zero", dtype=torch.float64)
    query, key, value = (torch.randn(2, 3, 7, 5, dtype=torch.float64, generator=torch.manual_seed(i)) for i in range(3))
    named = dict(attention.named_parameters())
    rows = [named.get(f"{table}.weight") for table in ("rel_key", "rel_value")]
    assert [x is not None for x in rows] == [tables in ("both", "keys"), tables in ("both", "values")]
    assert all(x is None or x.shape == ((7, 5) if heads is None else (3, 7, 5)) for x in rows)
    options = {"is_causal": True, "key_lengths": torch.tensor([7, 4]), "backend": "reference"}
    want = relative_attention(query, key, value, *rows, clip=(4, 2), beyond="zero", return_lse=True, **options)
    for got, right in zip(attention(query, key, value, return_lse=True, **options), want, strict=True):
        close(got, right)
    close(attention(query, key, value, **options), want[0])


def test_modules_are_made_where_they_are_asked_to_be():
    for made in (RelativePositionTable(2, 4, device="meta", dtype=torch.bfloat16),
                 RelativeAttention(4, 2, device="meta", dtype=torch.bfloat16),
                 RelativeSelfAttention(8, 2, 2, device="meta", dtype=torch.bfloat16)):  # fmt: skip
        assert {(x.device.type, x.dtype) for x in made.parameters()} == {("meta", torch.bfloat16)}


modes = pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])


@modes
@pytest.mark.parametrize("capacity", [0, 7, 13, 20])
@pytest.mark.parametrize("beyond", ["clip", "zero"])
def test_a_token_at_a_time_in_chunks_and_all_at_once_are_one(beyond, capacity, mode):
    attention, x = layer(is_causal=True, beyond=beyond), sentences(3, 13)
    whole = attention(x)
    with mode():
        for cuts in (range(14), (0, 13), (0, 1, 6, 7, 13), (0, 5, 5, 13)):
            cache, outputs = attention.empty_cache(3, capacity), []
            for start, stop in itertools.pairwise(cuts):
                before = cache
                output, cache = attention(x[:, start:stop], cache=cache)
                outputs.append(output)
                assert (before.length, cache.length) == (start, stop)
            close(torch.cat(outputs, dim=1), whole)


@modes
def test_a_reordered_cache_goes_on_from_the_chosen_sequences(mode):
    attention, x = layer(is_causal=True), sentences(4, 9)
    rows, again = torch.tensor([2, 2, 0, 3, 2]), torch.tensor([3, 0])
    with mode():
        _, cache = attention(x[:, :5], cache=attention.empty_cache(4, capacity=8))
        output, cache = attention(x[rows, 5:7], cache=cache.select(rows))
        close(output, attention(x)[rows, 5:7])
        output, _ = attention(x[rows[again], 7:], cache=cache.select(again))
        close(output, attention(x)[rows[again], 7:])


@modes
def test_sequences_of_different_lengths_go_on_each_at_its_own(mode):
    """Right-padded prompts, a right-padded chunk after them, then a token at a time, in another order at last."""
    attention, x = layer(is_causal=True), sentences(4, 14)
    alone = attention(x)
    ends, chunk = torch.tensor([6, 0, 1, 4]), torch.tensor([3, 2, 0, 1])
    with mode():
        output, cache = attention(x[:, :6], ends, attention.empty_cache(4, capacity=11))
        for row, end in enumerate(ends):
            close(output[row, :end], alone[row, :end])
            close(output[row, end:], attention.out.bias.expand(6 - end, -1))
        following = torch.stack([x[row, end : end + 3] for row, end in enumerate(ends)])
        output, cache = attention(following, ends + chunk, cache)
        for row, (end, n) in enumerate(zip(ends, chunk, strict=True)):
            close(output[row, :n], alone[row, end : end + n])
        ends, rows = ends + chunk, torch.arange(4)
        for reorder in ([0, 1, 2, 3], [3, 1, 1, 0, 2], [4, 0]):
            rows, ends, cache = rows[reorder], ends[reorder], cache.select(torch.tensor(reorder))
            output, cache = attention(x[rows, ends][:, None], cache=cache)
            close(output[:, 0], alone[rows, ends])
            ends = ends + 1


def test_gradients_pass_through_a_cache():
    attention, x = layer(is_causal=True), sentences(2, 7).requires_grad_()
    cotangent = sentences(2, 7, seed=3)
    leaves = [x, *attention.parameters()]
    cache, outputs = attention.empty_cache(2, capacity=9), []
    for chunk in x.split([3, 1, 1, 2], dim=1):
        output, cache = attention(chunk, cache=cache)
        outputs.append(output)
    stepped = torch.autograd.grad(torch.cat(outputs, dim=1), leaves, cotangent)
    for got, want in zip(stepped, torch.autograd.grad(attention(x), leaves, cotangent), strict=True):
        close(got, want)


@pytest.mark.parametrize("is_causal", [False, True])
def test_padding_changes_no_sentence(is_causal):
    attention, x = layer(is_causal=is_causal), sentences(2, 11)
    padded = attention(x, lengths=torch.tensor([11, 6]))
    close(padded[0], attention(x[:1])[0])
    close(padded[1, :6], attention(x[1:, :6])[0])
    close(padded[1, 6:], attention.out.bias.expand(5, -1))


def test_padding_with_a_cache_counts_the_positions_before():
    attention, x = layer(is_causal=True), sentences(2, 11)
    lengths = torch.tensor([11, 8])
    whole = attention(x, lengths=lengths)
    _, cache = attention(x[:, :6], cache=attention.empty_cache(2))
    output, _ = attention(x[:, 6:], lengths=lengths, cache=cache)
    close(output, whole[:, 6:])


def test_dropout_is_for_training():
    attention, x = layer(dropout=0.5), sentences(2, 7)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))
    close(attention(x), layer()(x))


def test_all_parameters_learn():
    attention, x = layer(per_head=True), sentences(2, 7)
    attention(x).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in attention.parameters())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_layer_exports_with_any_batch_and_length(is_causal):
    attention = layer(is_causal=is_causal).eval()
    batch, n = torch.export.Dim("batch"), torch.export.Dim("n")
    shapes = ({0: batch, 1: n}, {0: batch})
    program = torch.export.export(attention, (sentences(2, 7), torch.tensor([7, 3])), dynamic_shapes=shapes).module()
    for sizes, lengths in (((2, 7), [4, 7]), ((3, 30), [30, 0, 12])):
        x = sentences(*sizes)
        close(program(x, torch.tensor(lengths)), attention(x, torch.tensor(lengths)))


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("backend", ["native", "dense", "reference"])
def test_a_traced_layer_serves_other_lengths(backend, tmp_path):
    """Traced with two positions, which are fewer than the clipping distance."""
    module = layer(is_causal=True, backend=backend)
    torch.jit.trace(module, (sentences(2, 2), torch.tensor([2, 1]))).save(tmp_path / "module.pt")
    traced, x, lengths = torch.jit.load(tmp_path / "module.pt"), sentences(3, 11), torch.tensor([11, 4, 7])
    torch.testing.assert_close(traced(x, lengths), module(x, lengths))


def test_tables_may_be_freed_after_their_forward():
    """As by FSDP2, which frees the parameters of every module that it shards."""
    module = layer()
    x = sentences(2, 7)
    want = module(x)
    want.sum().backward()
    gradient = module.attention.rel_key.weight.grad.clone()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for table in (module.attention.rel_key, module.attention.rel_value):
            fully_shard(table, mesh=mesh, reshard_after_forward=True)
        module.zero_grad()
        got = module(x)
        got.sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    assert torch.equal(got, want)
    assert torch.equal(module.attention.rel_key.weight.grad.full_tensor(), gradient)


def test_messages():
    refused = [
        (lambda: RelativeSelfAttention(16, 3, 4), "embed_dim must be a multiple of num_heads, got 16 and 3"),
        (lambda: RelativeSelfAttention(0, 1, 3), "embed_dim must be an integer >= 1, got 0"),
        (lambda: RelativeSelfAttention(16, 0, 3), "num_heads must be an integer >= 1, got 0"),
        (lambda: RelativeSelfAttention(15, 3, 4, tables="none"), "tables must be .*, got 'none'"),
        (lambda: RelativeSelfAttention(15, 3, 4, dropout=1.5), "dropout must be .*, got 1.5"),
        (lambda: RelativeSelfAttention(15, 3, 4, backend="fast"), "backend must be .*, got 'fast'"),
        (lambda: RelativeAttention(5, 4, tables="all"), "tables must be .*, got 'all'"),
        (lambda: RelativeAttention(0, 4, tables="neither"), "head_dim must be .*, got 0"),
        (lambda: RelativeAttention(5, 4, beyond="wrap"), "beyond must be .*, got 'wrap'"),
        (lambda: RelativeAttention(5, None), "clip must be .*, got None"),
        (lambda: RelativePositionTable(-1, 4), "clip must be .*, got -1"),
        (lambda: RelativePositionTable(None, 4), "clip must be .*, got None"),
        (lambda: RelativePositionTable(1, 4, 0), "heads must be .*, got 0"),
        (lambda: layer()(sentences(1, 2), cache=layer().empty_cache(1)), "a cache must be used with is_causal=True"),
    ]
    for make, message in refused:
        with pytest.raises(ValueError, match=message):
            make()
