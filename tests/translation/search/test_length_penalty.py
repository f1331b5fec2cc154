import pytest
import torch

from relattn.translation.search.length_penalty import length_penalty

LENGTHS = torch.tensor([1, 7, 31])


def test_gnmt_is_equation_14_of_wu_et_al():
    expected = torch.tensor([1.0, 2.0**0.6, 6.0**0.6])
    torch.testing.assert_close(length_penalty("gnmt", 0.6)(LENGTHS), expected)


def test_average_with_alpha_1_divides_by_the_length():
    torch.testing.assert_close(length_penalty("average", 1.0)(LENGTHS), LENGTHS.float())
    torch.testing.assert_close(length_penalty("average", 0.5)(LENGTHS), LENGTHS.float().sqrt())


def test_none_divides_by_one():
    torch.testing.assert_close(length_penalty("none", 0.6)(LENGTHS), torch.ones(3))


@pytest.mark.parametrize("name", ["gnmt", "average"])
def test_alpha_0_is_no_penalty(name):
    torch.testing.assert_close(length_penalty(name, 0.0)(LENGTHS), torch.ones(3))
