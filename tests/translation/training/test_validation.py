"""Whether a training that reads no order says so: shuffled sources, by hand, and runs that do and do not read it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from relattn.translation.data.batching import collate
from relattn.translation.data.tokenizer import SpecialTokens
from relattn.translation.training import loop
from relattn.translation.training.train import train
from relattn.translation.training.validation import shuffled

SETTINGS = {"steps": 9, "warmup_steps": 3, "valid_every": 3, "log_every": 9}


def test_pieces_change_places_and_marks_do_not():
    special = SpecialTokens(src_begin=(7, 8), src_end=(9,))
    batch = collate([list(range(20, 60)), [20], []], [[30], [31], [32]], special)
    found = shuffled(batch, special, 1)
    for before, after, length in zip(batch.src.tolist(), found.src.tolist(), batch.src_lengths.tolist(), strict=True):
        assert sorted(before[2 : length - 1]) == sorted(after[2 : length - 1])
        assert (before[:2], before[length - 1 :]) == (after[:2], after[length - 1 :])
    assert found.src[0].tolist() != batch.src[0].tolist()
    assert torch.equal(found.tgt_out, batch.tgt_out)
    assert torch.equal(shuffled(batch, special, 1).src, found.src)
    assert not torch.equal(shuffled(batch, special, 2).src, found.src)


def test_a_model_that_reads_no_order_is_named_after_its_warm_up(tmp_path, make_recipe, caplog):
    train(make_recipe(tmp_path / "run", train={**SETTINGS, "learning_rate_factor": 1e-9}))
    lines = [line for line in caplog.messages if "does not use word order" in line]
    assert [line.split(":")[0] for line in lines] == ["step 6", "step 9"]


@pytest.mark.filterwarnings("ignore:.*cannot tell word order:UserWarning")
@pytest.mark.parametrize("changes", [{"positions": "none"}, {"positions": "relative", "clip": 0}], ids=str)
def test_one_that_cannot_read_it_said_so_when_it_was_made(tmp_path, make_recipe, caplog, changes):
    recipe = make_recipe(tmp_path / "run", train=SETTINGS)
    train(replace(recipe, model=recipe.model.with_positions(**changes)))
    assert "order" not in caplog.text


def test_once_order_is_read_it_is_not_asked_for_again(tmp_path, make_recipe, caplog, monkeypatch):
    asked = []
    monkeypatch.setattr(loop, "ignores_order", lambda *_: asked.append(1))
    train(make_recipe(tmp_path / "run", train=SETTINGS))
    assert asked == [1]
    assert "order" not in caplog.text
