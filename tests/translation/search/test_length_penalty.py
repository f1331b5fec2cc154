import pytest
import torch

from relattn.translation.search.length_penalty import length_penalty

LENGTHS = torch.tensor([1, 7, 31])


@pytest.mark.parametrize(
    ("name", "alpha", "expected"),
    [
        ("gnmt", 0.6, [1.0, 2.0**0.6, 6.0**0.6]),  # equation 14 of Wu et al. 2016
        ("average", 1.0, [1.0, 7.0, 31.0]),
        ("average", 0.5, [1.0, 7.0**0.5, 31.0**0.5]),
        ("gnmt", 0.0, [1.0, 1.0, 1.0]),
        ("average", 0.0, [1.0, 1.0, 1.0]),
        ("none", 0.6, [1.0, 1.0, 1.0]),
    ],
)
def test_length_penalty(name, alpha, expected):
    torch.testing.assert_close(length_penalty(name, alpha)(LENGTHS), torch.tensor(expected))
