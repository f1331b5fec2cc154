"""The disk space that a run needs."""

from __future__ import annotations

from pathlib import Path

from relattn.translation.data.encode import read_tokenizer
from relattn.translation.model.transformer import Transformer
from relattn.translation.training import checkpoints, run_directory


def test_checkpoints_and_bundle_have_the_estimated_size(finished):
    out = Path(finished.out)
    saved = [path.stat().st_size for path in checkpoints.list_checkpoints(out / "checkpoints")]
    used = sum(saved) * (len(saved) + 1) / len(saved) + (out / "bundle" / "model.safetensors").stat().st_size
    model = Transformer(finished.model, *read_tokenizer(out, finished.data).vocab_sizes)
    assert 0.5 * used < run_directory.disk_space(model, finished.train.keep) < used
