"""Vision encoders of SAM, SAM-HQ, ViTDet, GOT-OCR2, and others with the attention of MViTv2.

    e_ij = q_i · k_j · scale + q_i · H_(y_i−y_j) + q_i · W_(x_i−x_j)        z_i = Σ_j softmax_j(e_ij) v_j

Positions are the cells (y, x) of an image. A query has only as many different relative terms as the image has rows and
columns. They become further components of the query, and an indicator of a key's row and column becomes further
components of the key. So the sum of both terms is a product, and memory is linear in the number of positions.

Arguments of `relative_attention`: the longer queries and keys, without tables. The relative terms are not scaled, so
`scale` is 1 and the queries are scaled.

The models' own code stores n × n relative terms per head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relattn import relative_attention
from relattn.integrations.transformers.adapters import join_heads
from relattn.integrations.transformers.family import Family
from relattn.integrations.transformers.forward_patch import Forward, ForwardPatch


def attention(
    own: Forward,
    module: Any,
    hidden_states: Tensor,  # (batch, height, width, dim)
    output_attentions: bool | None = None,
) -> Any:
    """Compute the self-attention of one layer: (batch, height, width, dim), and no weights."""
    has_dropout = module.training and "Sdpa" not in type(module).__name__  # the own code with SDPA has none
    dropout_p = module.dropout if has_dropout else 0.0
    return attend(module, hidden_states, module.num_attention_heads, dropout_p), None


def vitdet_attention(
    own: Forward,
    module: Any,
    hidden_state: Tensor,  # (batch, height, width, dim)
    output_attentions: bool = False,
) -> Any:
    """Compute the self-attention of one layer of ViTDet: (batch, height, width, dim)."""
    return (attend(module, hidden_state, module.num_heads),)


def attend(module: Any, states: Tensor, heads: int, dropout_p: float = 0.0) -> Tensor:
    """Project `states`, (batch, height, width, dim), attend, and project the result."""
    height, width = states.shape[1:3]
    query, key, value = module.qkv(states.flatten(1, 2)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    grid = query.unflatten(2, (height, width))  # (batch, heads, height, width, head_dim)
    rows = torch.einsum("bnyxd,ykd->bnyxk", grid, rows_of_pairs(height, module.rel_pos_h))
    columns = torch.einsum("bnyxd,xkd->bnyxk", grid, rows_of_pairs(width, module.rel_pos_w))
    query = torch.cat((grid * module.scale, rows, columns), dim=-1).flatten(2, 3)
    key = torch.cat((key, positions(key, height, width).expand(*key.shape[:2], -1, -1)), dim=-1)
    attended = relative_attention(query, key, value, scale=1.0, dropout_p=dropout_p)
    output: Tensor = module.proj(join_heads(attended)).unflatten(1, (height, width))
    return output


def rows_of_pairs(size: int, table: Tensor) -> Tensor:
    """Return the row of each pair of positions, (size, size, head_dim); the table is interpolated for other sizes.

    The models' own functions compute positions in the default dtype and on the default device.
    """
    rows = 2 * size - 1
    if len(table) != rows:
        table = nn.functional.interpolate(table.T[None], size=rows, mode="linear")[0].T
    position = torch.arange(size, device=table.device)
    return table[position[:, None] - position + size - 1]


def positions(like: Tensor, height: int, width: int) -> Tensor:
    """Return the indicator of the row and of the column of each position: (height · width, height + width)."""
    row, column = (torch.eye(size, dtype=like.dtype, device=like.device) for size in (height, width))
    return torch.cat((row.repeat_interleave(width, dim=0), column.repeat(height, 1)), dim=-1)


def unsupported_reason(module: Any) -> str | None:
    """Return why an attention module keeps its own code, or None."""
    name = "use_rel_pos" if hasattr(module, "use_rel_pos") else "use_relative_position_embeddings"
    return None if getattr(module, name) else f"{name} must be True, got False"


SMALL = {
    "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "mlp_dim": 24, "output_channels": 8,
    "image_size": 44, "patch_size": 4, "window_size": 7, "global_attn_indexes": [1], "initializer_range": 0.1,
}  # fmt: skip


def family(folder: str, prefix: str, *names: str, model: str = "Encoder", **settings: int) -> Family:
    """Return the family of a model whose attention has the code of SAM's."""
    module = f"{folder}.modeling_{folder}.{prefix}"
    return Family(
        f"{module}{model}",
        SMALL | settings,
        lambda: {"pixel_values": torch.randn(2, 3, 44, 44, dtype=torch.float32)},
        tuple(ForwardPatch(f"{module}{name}Attention", attention, unsupported_reason) for name in ("", *names)),
        since="5.2",
        config=f"{folder}.configuration_{folder}.{prefix}Config",
    )


FAMILIES = (
    family("sam", "SamVision", "Sdpa"),
    family("sam_hq", "SamHQVision", "Sdpa"),
    family("got_ocr2", "GotOcr2Vision"),
    family("deepseek_ocr2", "DeepseekOcr2SamVision", "Sdpa"),
    family("unlimited_ocr", "UnlimitedOcrSamVision", "Sdpa"),
    family("slanext", "SLANeXtVision"),
    family("pp_formulanet", "PPFormulaNetVision", model="Model", output_channels=256),
    Family(
        "VitDetModel",
        {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "image_size": 44, "patch_size": 4}
        | {"window_size": 7, "window_block_indices": [1], "use_relative_position_embeddings": True},
        lambda: {"pixel_values": torch.randn(2, 3, 36, 44, dtype=torch.float32)},
        (ForwardPatch("vitdet.modeling_vitdet.VitDetAttention", vitdet_attention, unsupported_reason),),
        since="5.0",
    ),
)
