"""The mean of weights against NumPy's."""

import numpy as np
import pytest
import torch

from relattn.translation.errors import Diverged, InputError
from relattn.translation.training.checkpoints import average


def states(count: int) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    return [{"a": torch.randn(2, 3), "b": torch.randn(5).bfloat16(), "c": torch.randn(())} for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_it_is_the_mean(count):
    given = states(count)
    mean = average(iter(given))
    for name, tensor in mean.items():
        expected = np.mean([state[name].double().numpy() for state in given], axis=0)
        assert tensor.dtype == given[0][name].dtype
        torch.testing.assert_close(tensor, torch.tensor(expected).to(tensor.dtype), rtol=0, atol=0)
    assert mean.keys() == given[0].keys()


def test_it_changes_no_state_it_was_given():
    given = states(2)
    before = [{name: tensor.clone() for name, tensor in state.items()} for state in given]
    average(given)
    for state, kept in zip(given, before, strict=True):
        assert all(torch.equal(state[name], kept[name]) for name in kept)


@pytest.mark.parametrize(
    "other", [{"a": torch.zeros(2)}, {"a": torch.zeros(3), "b": torch.zeros(1)}, {"b": torch.zeros(3)}, {}]
)
def test_states_of_different_models_are_refused(other):
    with pytest.raises(InputError, match="checkpoint 2 to average must have the weights of the first one") as caught:
        average([{"a": torch.zeros(3)}, other])
    assert caught.type is InputError  # a wrong list of files; no run diverged


def test_nothing_has_no_mean():
    with pytest.raises(InputError, match="no checkpoint to average"):
        average([])


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_have_no_mean(wrong):
    with pytest.raises(Diverged, match=r"must be finite, got b of checkpoint 2: training diverged$"):
        average([{"a": torch.zeros(3), "b": torch.zeros(2)}, {"a": torch.zeros(3), "b": torch.tensor([1.0, wrong])}])
