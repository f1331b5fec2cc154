"""Attention over a set of keys, from attention over disjoint parts of it.

With part p giving output z^p and log-sum-exp ℓ^p of its scores, the whole has ℓ = log Σ_p exp ℓ^p and z = Σ_p exp(ℓ^p −
ℓ) z^p: exact, whatever the parts are. A part with nothing to attend to has ℓ^p = −∞ and weighs nothing, and where every
part is empty so is the whole.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def merge(outputs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Joins attention over disjoint keys.

    Args:
        outputs: one for each part, (..., queries, value_dim).
        lses: one for each part, (..., queries): natural log-sum-exps of the scores, −inf where a part is empty.

    Returns:
        The output and the log-sum-exp over all keys; zeros and −inf where every part is empty. Differentiable in both.

    Raises:
        ValueError: no parts, not as many log-sum-exps as outputs, or shapes that do not match.
    """
    if len(outputs) == 0 or len(outputs) != len(lses):
        raise ValueError(
            f"{len(outputs)} outputs and {len(lses)} log-sum-exps: one of each a part, and one part or more"
        )
    for output, lse in zip(outputs, lses, strict=True):
        if output.shape != outputs[0].shape or lse.shape != output.shape[:-1]:
            shapes = f"output {tuple(output.shape)} with log-sum-exp {tuple(lse.shape)}"
            raise ValueError(
                f"{shapes}: every output is {tuple(outputs[0].shape)}, and a log-sum-exp has no last dimension"
            )
    parts = torch.stack(tuple(lses))
    empty = parts.isneginf().all(0)
    highest = parts.detach().amax(0).masked_fill(empty, 0.0)
    masses = (parts - highest).exp()  # (parts, ..., queries)
    mass = masses.sum(0).masked_fill(empty, 1.0)
    weights = masses / mass
    output = sum(weight[..., None] * part for weight, part in zip(weights, outputs, strict=True))
    assert isinstance(output, Tensor)
    return output.to(outputs[0].dtype), (highest + mass.log()).masked_fill(empty, -torch.inf)
