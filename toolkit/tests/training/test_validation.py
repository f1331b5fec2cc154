"""The warning about a model that does not use word order."""

import pytest
import torch
from relattn_mt.data.batching import collate
from relattn_mt.data.tokenizer import SpecialTokens
from relattn_mt.training import loop
from relattn_mt.training.train import train
from relattn_mt.training.validation import shuffled

SETTINGS = {"steps": 9, "warmup_steps": 3, "valid_every": 3, "log_every": 9, "valid_bleu_lines": 0, "average": 1}


def test_shuffling_moves_tokens_but_no_special_tokens():
    special = SpecialTokens(src_begin=(7, 8), src_end=(9,))
    batch = collate([list(range(20, 60)), [20], []], [[30], [31], [32]], special)
    result = shuffled(batch, special, 1)
    for before, after, length in zip(batch.src.tolist(), result.src.tolist(), batch.src_lengths.tolist(), strict=True):
        assert sorted(before[2 : length - 1]) == sorted(after[2 : length - 1])
        assert (before[:2], before[length - 1 :]) == (after[:2], after[length - 1 :])
    assert result.src[0].tolist() != batch.src[0].tolist()
    assert torch.equal(result.tgt_out, batch.tgt_out)
    assert torch.equal(shuffled(batch, special, 1).src, result.src)
    assert not torch.equal(shuffled(batch, special, 2).src, result.src)


@pytest.mark.filterwarnings("ignore:.*cannot tell word order:UserWarning")
def test_model_that_ignores_order_causes_warnings_until_it_uses_it(tmp_path, make_recipe, caplog, monkeypatch):
    """From the end of the warmup on. A model that cannot use word order is not checked."""
    slow = {**SETTINGS, "learning_rate_factor": 1e-9}
    train(make_recipe(tmp_path / "slow", train=slow))
    lines = [line for line in caplog.messages if "does not use word order" in line]
    assert [line.split(":")[0] for line in lines] == ["step 6", "step 9"]
    caplog.clear()
    calls = []
    monkeypatch.setattr(loop, "ignores_order", lambda *_: calls.append(1))
    for clip, checks in ((0, 0), (2, 1)):
        train(make_recipe(tmp_path / str(clip), model={"clip": clip}, train=SETTINGS))
        assert len(calls) == checks
    assert "order" not in caplog.text
