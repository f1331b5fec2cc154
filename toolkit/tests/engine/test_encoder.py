"""The compiled encoder against the model in PyTorch, and the bits of a source in any batch."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from relattn_mt.engine import decoder, library

from tests.support.covering import pairwise
from toolkit.tests.engine.test_decoder import (
    ACTIVATIONS,
    SCHEMES,
    VOCAB,
    inference_in_filled_memory,
    levels,
    make_model,
    native,
)

pytestmark = pytest.mark.skipif(decoder.KERNELS is None, reason=f"no compiled engine: {decoder.MISSING}")
__all__ = ["inference_in_filled_memory"]  # a fixture of all tests here

LENGTHS = [19, 1, 7, 130, 2, 49, 16, 64, 96, 97]  # some are longer than a block of queries, of rows or of outputs
SIZES = {
    f"{heads} heads of {dim}": {"heads": heads, "dim": heads * dim, "feed_forward_dim": feed_forward_dim}
    for heads, dim, feed_forward_dim in [(3, 16, 48), (2, 20, 33), (2, 32, 70), (2, 64, 300), (3, 4, 20)]
}
SIZES["3 wide heads"] = {"heads": 3, "dim": 26, "head_dim": 20, "feed_forward_dim": 70}


@pytest.fixture(autouse=True)
def _kernels_of_the_level(request, monkeypatch):
    """Use the kernels of a test's processor level."""
    monkeypatch.setattr(decoder, "KERNELS", library.load(request.node.callspec.params["level"]))


@pairwise(
    level=levels(),
    sizes=SIZES,
    norm=["pre", "post", "rms"],
    feed_forward=["plain", "gated"],
    activation=ACTIVATIONS,
    shared=["all", "none"],
    scaled=[False, True],
    in_turn={"scheme": SCHEMES},
)
def test_the_output_is_that_of_the_model(level, scheme, sizes, norm, feed_forward, activation, shared, scaled):
    options = {"norm": norm, "activation": activation, "shared_embeddings": shared, "scaled_embeddings": scaled}
    options["feed_forward"] = feed_forward
    model = make_model(scheme, **SIZES[sizes], encoder_layers=2, norm_epsilon=1e-3, **options)
    src, lengths = torch.randint(3, VOCAB, (len(LENGTHS), max(LENGTHS))), torch.tensor(LENGTHS)
    expected = model.double().encode(src, lengths)
    found = torch.tensor(native(model.float()).encode(src, lengths))
    for row, (ours, theirs, length) in enumerate(zip(found, expected, LENGTHS, strict=True)):
        scale = float(theirs[:length].abs().max())
        torch.testing.assert_close(ours[:length].double(), theirs[:length], rtol=1e-5, atol=1e-5 * scale)
        assert not ours[length:].any(), row


@pairwise(
    level=levels(),
    scheme=SCHEMES,
    int8=[False, True],
    in_turn={"sizes": SIZES, "norm": ["pre", "post", "rms", "pre", "post"], "feed_forward": ["plain", "gated"]},
)
def test_a_source_has_the_same_bits_in_any_batch(level, scheme, int8, norm, sizes, feed_forward):
    model = make_model(scheme, **SIZES[sizes], norm=norm, feed_forward=feed_forward, encoder_layers=2)
    own, other = (native(model, int8=int8) for _ in range(2))
    lengths = torch.tensor([*range(1, 28), 9, 1, 130, 9])
    src = torch.randint(3, VOCAB, (len(lengths), int(lengths.max())))
    together, order = own.encode(src, lengths), torch.randperm(len(lengths))
    assert np.array_equal(own.encode(src[order], lengths[order]), together[order.numpy()])

    def alone(row: int) -> bool:
        length = int(lengths[row])
        return np.array_equal(
            other.encode(src[row : row + 1, :length], lengths[row : row + 1])[0], together[row, :length]
        )

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(alone, range(len(lengths))))
