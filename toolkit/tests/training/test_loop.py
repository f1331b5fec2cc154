"""The loss against its formula, optimizer steps against float64, and the learning-rate schedule."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from relattn_mt.config import Recipe
from relattn_mt.data.batching import Batch, collate
from relattn_mt.data.encode import load_data
from relattn_mt.model.transformer import Transformer
from relattn_mt.tokens.tokenizer import SpecialTokens
from relattn_mt.training import checkpoints, loop
from relattn_mt.training.loop import seed_dropout
from relattn_mt.training.objective import alignment_loss, learning_rate, summed_loss
from relattn_mt.training.train import train
from torch import Tensor

from tests.support.training_states import SRC, TGT, make_model

STEPS = 3


def smoothed_cross_entropy(logits: Tensor, target: Tensor, epsilon: float) -> Tensor:
    """Szegedy et al. (2016), section 7: (1 − ε) · −log p(y) + ε · mean over v of −log p(v); 0 is padding."""
    log_p = logits - logits.logsumexp(-1, keepdim=True)
    each = -(1 - epsilon) * log_p.gather(-1, target[..., None])[..., 0] - epsilon * log_p.mean(-1)
    return each[target != 0].sum()


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.7])
def test_loss_is_the_smoothed_cross_entropy_without_padding(epsilon):
    model, batch = make_model().eval(), collate(SRC, TGT)
    logits = model(batch.src, batch.src_lengths, batch.tgt_in)
    loss = summed_loss(model, batch, epsilon).item()
    assert loss == pytest.approx(smoothed_cross_entropy(logits.double(), batch.tgt_out, epsilon).item(), rel=1e-6)
    alone = [summed_loss(model, collate([src], [tgt]), epsilon).item() for src, tgt in zip(SRC, TGT, strict=True)]
    assert loss == pytest.approx(sum(alone), rel=1e-6)


def test_loss_and_gradients_of_bfloat16_logits_are_those_of_their_values():
    model, batch = make_model().eval(), collate(SRC, TGT)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch.src, batch.src_lengths, batch.tgt_in).detach()
    assert logits.dtype == torch.bfloat16
    exact = logits.double().requires_grad_()
    expected = smoothed_cross_entropy(exact, batch.tgt_out, 0.1)
    expected.backward()

    class Given(torch.nn.Module):
        def forward(self, *_: Tensor) -> Tensor:
            return leaf * 1  # the loss may write over what a module returns, but not over a leaf

    leaf = logits.requires_grad_()
    loss = summed_loss(Given(), batch, 0.1)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=2**-8, atol=1e-6)


def guided_cross_entropy(attention: Tensor, batch: Batch) -> Tensor:
    """Chen et al. (2016): each target piece with links has the probability 1 / links at each of them."""
    links: dict[tuple[int, int], list[int]] = {}
    for sentence, target, source in batch.links.tolist():
        links.setdefault((sentence, target), []).append(source)
    pieces = [-sum(attention[piece][source].log() for source in own) / len(own) for piece, own in links.items()]
    return torch.stack(pieces).sum()


def test_loss_of_the_alignment_is_the_cross_entropy_of_pieces_with_links():
    """With special tokens around the source, and a second one before the target, as in imported models."""
    special = SpecialTokens(src_begin=(4,), tgt_begin=(5,))
    batch, model = collate(SRC, TGT, special), make_model(alignment_layer=1, alignment_heads=1).eval()
    batch = replace(batch, links=torch.tensor([[0, 0, 1], [0, 0, 3], [0, 1, 2], [1, 3, 0], [2, 0, 5]]))
    logits, attention = model(batch.src, batch.src_lengths, batch.tgt_in, (1, 1))
    assert torch.equal(logits, model(batch.src, batch.src_lengths, batch.tgt_in))
    plain = smoothed_cross_entropy(logits[:, 1:].double(), batch.tgt_out, 0.1).item()
    expected = plain + 3 * guided_cross_entropy(attention[:, 1:], batch).item()
    assert summed_loss(model, batch, 0.1, (3.0, (1, 1))).item() == pytest.approx(expected, rel=1e-6)
    unlinked = collate(SRC, TGT, special)
    assert summed_loss(model, unlinked, 0.1, (3.0, (1, 1))).item() == pytest.approx(plain, rel=1e-6)


def test_attention_that_is_zero_at_a_link_gives_a_finite_loss():
    attention = torch.tensor([[[0.0, 1.0]]], requires_grad=True)
    loss = alignment_loss(attention, torch.tensor([[0, 0, 0]]))
    loss.backward()
    assert loss.isfinite()
    assert attention.grad.isfinite().all()


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_gradients_of_the_loss_are_those_of_float64(epsilon):
    torch.manual_seed(0)
    batch = collate([[5]] * 40, [[4] * (1 + n % 7) for n in range(40)])
    logits = torch.randn(*batch.tgt_out.shape, 3000, requires_grad=True)
    exact = logits.detach().double().requires_grad_()
    output = logits * 1
    (summed_loss(lambda *_: output, batch, epsilon) / 3).backward()
    (smoothed_cross_entropy(exact, batch.tgt_out, epsilon) / 3).backward()
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=1e-5, atol=1e-7)
    assert torch.equal(output, logits.grad)  # in the memory of the logits


def test_dropout_depends_on_seed_step_and_micro_batch(tmp_path, make_recipe, monkeypatch):
    def draw(*key: int) -> float:
        seed_dropout(*key)
        return torch.rand(()).item()

    keys = [(1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1), (0, 0, 0, 0), (1, 10**9, 0, 0)]
    numbers = [draw(*key) for key in keys]
    assert len(set(numbers)) == len(keys)
    assert [draw(*key) for key in keys] == numbers

    used = []
    monkeypatch.setattr(loop, "seed_dropout", lambda *key: used.append(key))
    settings = {"steps": 4, "accumulate": 3, "valid_bleu_lines": 0}
    train(make_recipe(tmp_path / "run", data={"max_tokens": 32}, train=settings), show=False)
    assert len(set(used)) == len(used) > 4
    assert {key[:2] for key in used} == {(1, step) for step in range(4)}


def trained(recipe: Recipe) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Train, and return the parameters and Adam's means of their gradients, in float64."""
    train(recipe, show=False)
    content = checkpoints.newest(Path(recipe.out) / "checkpoints")
    values = {name: value.double() for name, value in content["model"].items()}
    means = [state["exp_avg"].double() for state in content["optimizer"]["state"].values()]
    return values, dict(zip(values, means, strict=True))


def trained_in_float64(recipe: Recipe) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Take the steps of a run, each as one batch, with the loss, the schedule and Adam written out."""
    data = load_data(recipe)
    torch.manual_seed(recipe.seed)
    model = Transformer(recipe.model, data.tokenizer.vocab_size).double()
    names, parameters = zip(*model.named_parameters(), strict=True)
    mean, square = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    for t, step in enumerate(islice(data.train.steps(), STEPS), start=1):
        (batch,) = step.micro_batches
        logits, attention = model(batch.src, batch.src_lengths, batch.tgt_in, (0, 1))
        loss = smoothed_cross_entropy(logits, batch.tgt_out, recipe.train.label_smoothing)
        if recipe.train.guided_alignment > 0:
            loss = loss + recipe.train.guided_alignment * guided_cross_entropy(attention, batch)
        loss = loss / (batch.tgt_out != 0).sum()
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        scale = min(1.0, recipe.train.gradient_clip / norm.item()) if recipe.train.gradient_clip > 0 else 1.0
        rate = learning_rate(t, recipe.model.dim, recipe.train.warmup_steps)
        with torch.no_grad():
            for p, g, m, v in zip(parameters, gradients, mean, square, strict=True):
                m.mul_(0.9).add_(0.1 * scale * g)
                v.mul_(0.98).add_(0.02 * (scale * g).square())
                p -= rate * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-9)
    return {n: p.detach() for n, p in zip(names, parameters, strict=True)}, dict(zip(names, mean, strict=True))


def errors(a: tuple[dict[str, Tensor], ...], b: tuple[dict[str, Tensor], ...]) -> dict[str, float]:
    """Return the largest difference of each parameter and of each mean gradient.

    The gradient of a key's bias is zero, because it adds the same to all scores of a query. Adam scales up its rounding
    errors, so only the mean gradient can be compared.
    """
    found = {f"mean gradient of {n}": (m - b[1][n]).abs().max().item() for n, m in a[1].items()}
    return found | {n: (v - b[0][n]).abs().max().item() for n, v in a[0].items() if "key.bias" not in n}


@pytest.mark.parametrize(("clip", "accumulate", "guided"), [(0.0, 2, 0.0), (0.5, 4, 2.0)])
def test_step_equals_float64_however_it_is_split(tmp_path, make_recipe, clip, accumulate, guided):
    """The error allowed for several micro-batches is a few times the largest error of a single one.

    The error of one parameter says little, because Adam scales up a gradient that is nearly zero.
    """
    settings = {"steps": STEPS, "gradient_clip": clip, "valid_bleu_lines": 0, "guided_alignment": guided}
    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0, "alignment_heads": 1}
    one = make_recipe(tmp_path / "one", model=no_dropout, data={"max_tokens": 512}, train=settings)
    unsplit, exact = trained(one), trained_in_float64(one)
    allowed = 4 * max(errors(unsplit, exact).values())
    assert allowed < 1e-4
    data, parts = replace(one.data, max_tokens=512 // accumulate), replace(one.train, accumulate=accumulate)
    split = replace(one, out=str(tmp_path / "split"), data=data, train=parts)
    found = errors(trained(split), exact)
    assert {name: value for name, value in found.items() if not value <= allowed} == {}
    steps = load_data(split).train.steps(accumulate=accumulate)
    assert max(len(step.micro_batches) for step in islice(steps, STEPS)) == accumulate
