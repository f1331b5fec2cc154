"""The LSTM and the convolution, against loops over their equations, and as schemes of another package."""

import pytest
import torch
import torch.nn.functional as F
from relattn_mt.bundle import read_bundle
from relattn_mt.config import SCHEMES, ModelConfig
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.errors import InputError
from torch import Tensor, nn

from research import baselines
from research.baseline_layers import LSTM, Convolution
from tests.support.commands import assert_refused
from tests.support.foreign_bundles import make_bundle

ROWS, LENGTH, DIM = 3, 7, 6
LENGTHS = torch.tensor([7, 4, 1])
every_baseline = pytest.mark.parametrize("name", baselines.SCHEMES)


def random_tensor(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def randomize(module: nn.Module) -> nn.Module:
    """Convert a module to float64 in evaluation mode, with random values in all parameters."""
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = 0.5 * random_tensor(*parameter.shape, seed=seed)
    return module.eval()


def cells(layer: LSTM, x: Tensor) -> Tensor:
    """Return the output for one sequence, of one LSTMCell per direction, one position at a time."""
    directions = []
    for suffix in ("", "_reverse") if layer.lstm.bidirectional else ("",):
        cell = nn.LSTMCell(DIM, layer.lstm.hidden_size)
        weights = {name: getattr(layer.lstm, f"{name}_l0{suffix}") for name, _ in cell.named_parameters()}
        state = None
        outputs = []
        for position in x.flip(0) if suffix else x:
            state = torch.func.functional_call(cell, weights, (position, state))
            outputs.append(state[0])
        directions.append(torch.stack(outputs[::-1] if suffix else outputs))
    return torch.cat(directions, -1)


def windows(layer: Convolution, x: Tensor, *, is_causal: bool) -> Tensor:
    """Return the output for one sequence: Σ_m W_m x_(i + m − before) + b, one half times the sigmoid of the other."""
    size = layer.kernel.shape[2]
    before = size - 1 if is_causal else size // 2
    outputs = []
    for i in range(len(x)):
        inside = [(m, i + m - before) for m in range(size) if 0 <= i + m - before < len(x)]
        a, b = (layer.bias + sum(layer.kernel[:, :, m] @ x[j] for m, j in inside)).chunk(2)
        outputs.append(a * b.sigmoid())
    return torch.stack(outputs)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", [LSTM, Convolution])
def test_outputs_and_gradients_are_those_of_loops(kind, is_causal):
    layer = randomize(kind(DIM, is_causal=is_causal))
    x = random_tensor(ROWS, LENGTH, DIM, seed=9).requires_grad_()
    options = {} if kind is LSTM else {"is_causal": is_causal}
    rows = [(cells if kind is LSTM else windows)(layer, row[:n], **options) for row, n in zip(x, LENGTHS, strict=True)]
    expected = torch.cat(rows)
    output = layer(x, LENGTHS)
    actual = torch.cat([row[:n] for row, n in zip(output, LENGTHS, strict=True)])
    inputs = (x, *layer.parameters())
    gradient = random_tensor(*expected.shape, seed=10)
    torch.testing.assert_close(actual, expected)
    for got, want in zip(
        torch.autograd.grad(actual, inputs, gradient), torch.autograd.grad(expected, inputs, gradient), strict=True
    ):
        torch.testing.assert_close(got, want)
    assert layer(x[:0], LENGTHS[:0]).shape == (0, LENGTH, DIM)


@every_baseline
@torch.inference_mode()
def test_steps_with_reordered_rows_give_the_logits_of_whole_sequences(name):
    config = ModelConfig(dim=DIM, heads=2, feed_forward_dim=10, encoder_layers=1, decoder_layers=2, positions=name)
    model = randomize(Transformer(config, 23))
    src, tgt = torch.randint(4, 23, (2, ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    expected = model(src, LENGTHS, tgt)
    padded = F.pad(src.where(torch.arange(LENGTH) < LENGTHS[:, None], 5), (0, 2), value=6)
    torch.testing.assert_close(model(padded, LENGTHS, tgt), expected)
    cache = model.start(model.encode(src, LENGTHS), LENGTHS)
    rows = torch.arange(ROWS)
    for first, last, order in ((0, 1, [1, 2, 0]), (1, 4, [0, 0, 2]), (4, 5, [2, 1, 0]), (5, 7, [0, 1, 2])):
        logits, cache = model.step(tgt[rows, first:last], cache)
        torch.testing.assert_close(logits, expected[rows, first:last])
        assert cache.length == last
        cache = cache.select(torch.tensor(order))
        rows = rows[order]


@every_baseline
def test_a_bundle_translates_on_pytorch_and_others_refuse_it(name, tmp_path, relattn, monkeypatch):
    bundle = make_bundle(tmp_path / "bundle", positions=name)
    loaded = read_bundle(bundle.path)
    lines = ["one apple", "17 pears and apples"]
    translator = loaded.translator()
    assert translator.translate(lines) == bundle.torch_translator().translate(lines)
    unsupported = f"does not support {name} positions"
    assert unsupported in translator.engine.name
    with pytest.raises(InputError, match=unsupported):
        loaded.translator(precision="int8")
    for command in ("export ctranslate2", "export argos", "export marian", "export web"):
        result = relattn(*command.split(), bundle.path, "--out", tmp_path / "out")
        assert_refused(result, f"{name} positions")
    assert not (tmp_path / "out").exists()
    monkeypatch.delitem(SCHEMES, name)
    assert_refused(relattn("translate", bundle.path), f"unknown position scheme '{name}'")
