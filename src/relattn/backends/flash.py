"""The platform's flash kernels, with the log-sum-exp out and any log-sum-exp back in: the one owner of private calls.

    z_i = Σ_j p_ij v_j        p_ij = exp(scale · q_i · k_j + bias_j − ℓ_i)

`attend` returns z and ℓ over the keys it is given; `attend_backward` takes any z and ℓ, so that given those of a larger
set of keys it returns this part's exact share of the gradients. A kernel's sharp corners end here: none is launched on
an empty tensor, a row that sees no key has ℓ = −∞ (the kernels say 0), and ℓ = −∞ coming back gives zero gradients
(the kernels give NaN).

On CPU this is `aten::_scaled_dot_product_flash_attention_for_cpu`: float16, bfloat16, float32, float64, grouped keys.
On CUDA it is the flash kernel for half types with no bias, the memory-efficient one else; that part is written from
the operators' schemas and has not been run.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
NEVER = 1e30  # exp(score − NEVER) is 0 for every finite score, in every type log-sum-exps have


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Plain attention of (batch, heads, queries, dim) over (batch, key_heads, keys, dim), all of one width `dim`.

    `bias` (batch, 1, 1, keys) is added to the scores, in the type of the query: 0, or −inf where a key is hidden.
    Returns the output like the query and the log-sum-exp (batch, heads, queries), float32 for half types.
    """
    if query.numel() == 0 or key.numel() == 0:
        exact = torch.promote_types(query.dtype, torch.float32)
        return torch.zeros_like(query), query.new_full(query.shape[:3], -torch.inf, dtype=exact)
    if query.device.type == "cuda":
        output, lse = attend_cuda(query, *per_query_head(query, key, value), bias, scale)
    else:
        output, lse = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=bias, scale=scale)
    if bias is not None:
        lse = lse.masked_fill(bias.isneginf().all(-1), -torch.inf)
    return output, lse


def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, with p = exp(score − lse) and grad · output for Σ_j p_ij (grad · v_j)."""
    if query.numel() == 0 or key.numel() == 0:
        return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    lse = lse.masked_fill(lse.isneginf(), NEVER)
    if query.device.type == "cuda":
        return attend_backward_cuda(grad, query, key, value, output, lse, bias, scale)
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, output, lse, 0.0, False, attn_mask=bias, scale=scale
    )


def attend_cuda(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    if bias is None and query.dtype in (torch.float16, torch.bfloat16):
        output, lse = aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)[:2]
    else:
        mask = aligned(bias, query)
        output, lse = aten._scaled_dot_product_efficient_attention(query, key, value, mask, True, scale=scale)[:2]
    return output, lse[..., : query.shape[2]]


def attend_backward_cuda(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    wide_key, wide_value = per_query_head(query, key, value)
    given = (grad, query, wide_key, wide_value)
    no_dropout = torch.zeros((), dtype=torch.int64)
    if bias is None and query.dtype in (torch.float16, torch.bfloat16):
        sizes = (query.shape[2], key.shape[2], 0.0, False)
        d_query, d_key, d_value = aten._scaled_dot_product_flash_attention_backward(
            *given, output, lse, None, None, *sizes, no_dropout, no_dropout, scale=scale
        )
    else:
        lse = F.pad(lse, (0, -lse.shape[-1] % 32), value=NEVER).contiguous()  # the kernel's rows come in 32s
        wanted = (True, True, True, False)
        mask = aligned(bias, query)
        d_query, d_key, d_value, _ = aten._scaled_dot_product_efficient_attention_backward(
            *given, mask, output, lse, no_dropout, no_dropout, 0.0, wanted, scale=scale
        )
    groups = (key.shape[1], query.shape[1] // key.shape[1])
    return d_query, d_key.unflatten(1, groups).sum(2), d_value.unflatten(1, groups).sum(2)


def per_query_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    group = query.shape[1] // key.shape[1]
    return key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)


def aligned(bias: Tensor | None, query: Tensor) -> Tensor | None:
    """The bias broadcast to every row, as a view of storage whose rows start at multiples of 16 numbers."""
    if bias is None:
        return None
    keys = bias.shape[-1]
    return F.pad(bias, (0, -keys % 16))[..., :keys].expand(*query.shape[:3], keys)
