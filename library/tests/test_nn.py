"""The modules: tables, projections, and decoding with a cache."""

import itertools

import pytest
import torch
from relattn import RelativeAttention, RelativePositionTable, RelativeSelfAttention, relative_attention
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.support.covering import pairwise


def layer(seed=0, **options):
    torch.manual_seed(seed)
    made = RelativeSelfAttention(15, 3, (4, 2), **options).double()
    for projection in (made.query, made.key, made.value, made.out):
        if projection.bias is not None:
            torch.nn.init.normal_(projection.bias)
    return made


def sentences(batch, n, seed=1):
    return torch.randn(batch, n, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("clip", "heads"), [(3, None), ((3, 3), 7), ((5, 1), None)])
def test_tables_are_glorot_uniform_with_a_row_per_label(clip, heads):
    torch.manual_seed(0)
    table = RelativePositionTable(clip, 64, heads)
    assert table().shape == ((7, 64) if heads is None else (7, 7, 64))
    bound = (6 / (7 + 64)) ** 0.5
    assert 0.95 * bound < table().abs().max() <= bound
    assert table().std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
    assert str((5, 1) if clip == (5, 1) else (3, 3)) in repr(table)


@pairwise(
    tables=["both", "keys", "values", "neither"], per_head=[False, True], bias=[False, True], key_heads=[1, 3],
    masked=[False, True], cached=[False, True],
)  # fmt: skip
def test_layer_equals_projections_around_the_operator(tables, per_head, bias, key_heads, masked, cached):
    options = {"tables": tables, "per_head": per_head, "bias": bias, "num_key_heads": key_heads, "is_causal": cached}
    attention, x = layer(**options), sentences(2, 7)
    projections = (attention.query, attention.key, attention.value)
    query, key, value = (project(x).view(2, 7, -1, 5).transpose(1, 2) for project in projections)
    assert key.shape[1] == value.shape[1] == key_heads
    named = dict(attention.named_parameters())
    rows = [named.get(f"attention.{table}.weight") for table in ("rel_key", "rel_value")]
    assert [x is not None for x in rows] == [tables in ("both", "keys"), tables in ("both", "values")]
    assert all(x is None or x.shape == ((3, 7, 5) if per_head else (7, 5)) for x in rows)
    mask = torch.rand(2, 3, 7, 7) < 0.6 if masked else None
    options = {"clip": (4, 2), "is_causal": cached, "mask": mask, "backend": "reference"}
    want = attention.out(relative_attention(query, key, value, *rows, **options).transpose(1, 2).flatten(2))
    output = attention(x, mask=mask)
    close(output, want)
    output.square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in attention.parameters())
    if cached:
        cache, outputs = attention.empty_cache(2), []
        for start, stop in ((0, 4), (4, 5), (5, 7)):
            part = None if mask is None else mask[:, :, start:stop, :stop]
            output, cache = attention(x[:, start:stop], cache=cache, mask=part)
            outputs.append(output)
        close(torch.cat(outputs, dim=1), want)


def test_attention_module_passes_options_to_the_operator():
    attention = RelativeAttention(5, (4, 2), beyond="zero", dropout=0.9, dtype=torch.float64)
    query, key, value = (torch.randn(2, 3, 7, 5, dtype=torch.float64, generator=torch.manual_seed(i)) for i in range(3))
    options = {"is_causal": True, "key_lengths": torch.tensor([7, 4]), "backend": "reference", "dropout_p": 0.0}
    rows = attention.rel_key.weight, attention.rel_value.weight
    want = relative_attention(query, key, value, *rows, clip=(4, 2), beyond="zero", return_lse=True, **options)
    close(attention(query, key, value, return_lse=True, **options), want)
    close(attention(query, key, value, **options), want[0])


MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]


@pairwise(beyond=["clip", "zero"], capacity=[0, 7, 20], mode=MODES)
def test_decoding_by_token_in_chunks_and_all_at_once_agree(beyond, capacity, mode):
    attention, x = layer(is_causal=True, beyond=beyond), sentences(3, 13)
    whole = attention(x)
    rows, again = torch.tensor([2, 2, 0, 1]), torch.tensor([3, 0])
    with mode():
        for cuts in (range(14), (0, 1, 6, 7, 13), (0, 5, 5, 13)):
            cache, outputs = attention.empty_cache(3, capacity), []
            for start, stop in itertools.pairwise(cuts):
                before = cache
                output, cache = attention(x[:, start:stop], cache=cache)
                outputs.append(output)
                assert (before.length, cache.length) == (start, stop)
            close(torch.cat(outputs, dim=1), whole)
        _, cache = attention(x[:, :5], cache=attention.empty_cache(3, capacity))
        output, cache = attention(x[rows, 5:7], cache=cache.select(rows))  # reordered, with repeats
        close(output, whole[rows, 5:7])
        output, _ = attention(x[rows[again], 7:], cache=cache.select(again))
        close(output, whole[rows[again], 7:])


@pytest.mark.parametrize("mode", MODES)
def test_sequences_of_different_lengths_continue_at_their_own_end(mode):
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


def test_lengths_of_a_narrow_dtype_are_compared_with_all_positions_before():
    attention = layer(is_causal=True, window=(4, 0))
    cache = attention.empty_cache(1)
    for chunk in sentences(1, 356).split(89, dim=1):
        _, cache = attention(chunk, cache=cache)
    for lengths, facts in (
        (torch.tensor([100], dtype=torch.int8), "from -256"),
        (torch.tensor([357.0]), "integer dtype"),
    ):
        with pytest.raises(ValueError, match=f"lengths must .*{facts}"):
            attention(sentences(1, 1), lengths, cache)


def test_dropout_is_for_training_only():
    attention, x = layer(dropout=0.5), sentences(2, 7)
    assert not torch.equal(attention(x), attention(x))
    close(attention.eval()(x), layer()(x))


@pytest.mark.parametrize("tables", ["both", "keys", "values"])
def test_exported_attention_runs_where_autograd_records(tables):
    attention, x, lengths = RelativeAttention(8, 2, tables=tables), torch.randn(2, 3, 7, 8), torch.tensor([7, 3])
    program = torch.export.export(attention, (x, x, x), {"lengths": lengths}).module()
    torch.testing.assert_close(program(x, x, x, lengths=lengths), attention(x, x, x, lengths=lengths))


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("backend", ["native", "dense"])
def test_traced_layer_runs_with_other_lengths(backend, tmp_path):
    """Traced with two positions, which are fewer than the clipping distance."""
    module = layer(is_causal=True, backend=backend)
    torch.jit.trace(module, (sentences(2, 2), torch.tensor([2, 1]))).save(tmp_path / "module.pt")
    traced, x, lengths = torch.jit.load(tmp_path / "module.pt"), sentences(3, 11), torch.tensor([11, 4, 7])
    torch.testing.assert_close(traced(x, lengths), module(x, lengths))


def test_fsdp_may_free_tables_after_their_forward():
    module, x = layer(), sentences(2, 7)
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


def test_bad_arguments_are_refused():
    refused = [
        (lambda: RelativeSelfAttention(16, 3, 4), "embed_dim.*num_heads.*16 and 3"),
        (lambda: RelativeSelfAttention(0, 1, 3), "embed_dim.*0"),
        (lambda: RelativeSelfAttention(16, 0, 3), "num_heads.*0"),
        (lambda: RelativeSelfAttention(15, 3, 4, num_key_heads=2), "num_heads.*num_key_heads.*3 and 2"),
        (lambda: RelativeSelfAttention(15, 3, 4, dropout=1.5), "dropout.*1.5"),
        (lambda: RelativeSelfAttention(15, 3, 4, backend="fast"), "backend.*'fast'"),
        (lambda: RelativeAttention(5, 4, tables="all"), "tables.*'all'"),
        (lambda: RelativeAttention(0, 4, tables="neither"), "head_dim.*0"),
        (lambda: RelativeAttention(5, 4, beyond="wrap"), "beyond.*'wrap'"),
        (lambda: RelativeAttention(5, None), "clip.*None"),
        (lambda: RelativePositionTable(-1, 4), "clip.*-1"),
        (lambda: RelativePositionTable(1, 4, 0), "heads.*0"),
        (lambda: layer()(sentences(1, 2), cache=layer().empty_cache(1)), "is_causal=True"),
        (lambda: layer()(sentences(1, 2)[..., 1:]), r"x must have shape \(batch, n, .*, got \(1, 2, "),
        (lambda: layer().empty_cache(-1), "batch must be an integer >= 0, got -1"),
        (lambda: layer()(sentences(1, 2), cache=(sentences(1, 2),) * 2), "cache.*AttentionCache.*tuple.*empty_cache"),
    ]
    for make, facts in refused:
        with pytest.raises(ValueError, match=facts):
            make()
