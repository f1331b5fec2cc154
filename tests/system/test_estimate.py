"""Estimates of `relattn plan` for all position schemes and for the paper's recipes."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from relattn.translation.config import Positions
from relattn.translation.config.presets import PRESETS
from relattn.translation.model.transformer import Transformer
from relattn.translation.training import estimate
from tests.translation.training.test_estimate import SMALL, size_of


@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")
def test_memory_is_known_for_every_scheme_but_lstm():
    def known(positions: Positions) -> bool:
        return estimate.memory(replace(SMALL, model=SMALL.model.with_positions(positions))) is not None

    assert [positions for positions in get_args(Positions) if not known(positions)] == ["lstm"]


@pytest.mark.parametrize("name", PRESETS)
def test_recipes_of_the_paper_on_eight_devices(name):
    recipe = estimate.distribute(PRESETS[name], 8)
    assert (recipe.train.accumulate, recipe.train.devices) == (1, 8)
    memory = estimate.memory(recipe)
    assert memory.weights == size_of(Transformer(recipe.model, recipe.data.vocab_size))
    assert 2**31 < memory.total < 2**34
