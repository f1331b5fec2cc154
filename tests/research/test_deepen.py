"""A model with more encoder layers: the same function, and gradients that make the new layers differ."""

from dataclasses import replace

import numpy as np
import pytest
from relattn_mt.bundle import read_bundle
from relattn_mt.support.errors import InputError

from research.deepen import deepen
from tests.support.bundles import LINES, save_random_bundle


@pytest.mark.parametrize("new", [1, 2, 5])
def test_new_layers_change_no_probability(tmp_path, new):
    source = read_bundle(save_random_bundle(tmp_path / "bundle"))
    layers = source.model.encoder_layers
    deepen(source, tmp_path / "deeper", layers + new)
    deeper = read_bundle(tmp_path / "deeper")
    assert deeper.model.encoder_layers == layers + new
    before, after = (bundle.translator() for bundle in (source, deeper))
    pieces = [before.tokenizer.encode(line) for line in LINES]
    for old, same in zip(before.log_probs(pieces, pieces), after.log_probs(pieces, pieces), strict=True):
        np.testing.assert_allclose(same, old, atol=1e-5)


def test_what_would_change_the_function_is_refused(tmp_path):
    source = read_bundle(save_random_bundle(tmp_path / "bundle"))
    with pytest.raises(InputError, match="pre-norm"):
        deepen(replace(source, model=replace(source.model, norm="post")), tmp_path / "out", 9)
    with pytest.raises(InputError, match="above"):
        deepen(source, tmp_path / "out", source.model.encoder_layers)
    assert not (tmp_path / "out").exists()
