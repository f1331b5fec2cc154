"""`RelativeMultiheadAttention`: PyTorch's nn.MultiheadAttention with relative position representations.

Constructor, forward and the names of the parameters are those of nn.MultiheadAttention, so that a model exchanges the
layer in one line and keeps its weights. The tables wK and wV are the only new parameters.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relattn.call import Beyond
from relattn.checks import can_read, check_dropout, show
from relattn.functional import ClippingRange
from relattn.nn import RelativeAttention, Tables, head_dim_of


class RelativeMultiheadAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention with relative position representations, for self-attention and cross-attention.

    Query i and key j have the positions i and j, also in cross-attention. With tables of zeros the layer computes what
    nn.MultiheadAttention does. It differs as follows:

    - Attention weights are never stored: `need_weights` is False by default, and True is an error.
    - `is_causal` needs no `attn_mask`.
    - A query that may attend to no key gets the bias of the output projection, not NaN.

    Args:
        embed_dim: Dimension of the model, a multiple of `num_heads`.
        num_heads: Number of heads.
        dropout: Dropout probability of attention probabilities during training.
        bias: Whether the projections have a bias.
        add_bias_kv: Must be False: a learned key has no position.
        add_zero_attn: Must be False, for the same reason.
        kdim: Dimension of the keys. Default: `embed_dim`.
        vdim: Dimension of the values. Default: `embed_dim`.
        batch_first: Whether inputs are (batch, n, embed_dim), not (n, batch, embed_dim).
        device: Device of the parameters.
        dtype: Dtype of the parameters.
        clip: The clipping distance k, or the clipping range (left, right).
        tables: Which of the two tables to use: "both", "keys" (aK), "values" (aV) or "neither".
        per_head: Use one table per head, instead of tables that all heads share.
        beyond: "clip" or "zero", as in `relative_attention`.
        backend: As in `relative_attention`.

    Raises:
        ValueError: An argument is out of range or not supported.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        clip: ClippingRange,
        tables: Tables = "both",
        per_head: bool = False,
        beyond: Beyond = "clip",
        backend: str = "auto",
    ) -> None:
        head_dim_of(embed_dim, num_heads)  # checks both
        check_dropout("dropout", dropout)
        for name, option in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            if option:
                raise ValueError(f"{name} must be False, since an added key has no position, got {option!r}")
        sizes: dict[str, Any] = {"kdim": kdim, "vdim": vdim, "batch_first": batch_first}
        super().__init__(embed_dim, num_heads, dropout, bias, **sizes, device=device, dtype=dtype)
        # nn.TransformerEncoderLayer reads this name. If it is true, its fast path for inference uses the projections
        # without calling this module, so that the relative terms would be missing.
        self._qkv_same_embed_dim = False
        self.attention = RelativeAttention(
            self.head_dim,
            clip,
            num_heads if per_head else None,
            tables=tables,
            beyond=beyond,
            dropout=dropout,
            backend=backend,
            device=device,
            dtype=dtype,
        )

    @classmethod
    def from_module(
        cls,
        module: nn.MultiheadAttention,
        *,
        clip: ClippingRange,
        tables: Tables = "both",
        per_head: bool = False,
        beyond: Beyond = "clip",
        backend: str = "auto",
    ) -> RelativeMultiheadAttention:
        """Return a layer with a copy of the weights of an nn.MultiheadAttention, and tables of zeros.

        It computes what `module` does until it is trained. The arguments are those of the class.

        Args:
            module: The layer to copy.
            clip: The clipping distance k, or the clipping range (left, right).
            tables: Which of the two tables to use.
            per_head: Use one table per head.
            beyond: "clip" or "zero".
            backend: As in `relative_attention`.

        Raises:
            ValueError: `module` is not an nn.MultiheadAttention, or has tables or an option that the class does not
                support.
        """
        if not isinstance(module, nn.MultiheadAttention) or isinstance(module, RelativeMultiheadAttention):
            raise ValueError(f"module must be an nn.MultiheadAttention without tables, got {type(module).__name__}")
        weight = module.out_proj.weight
        layer = cls(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            module.in_proj_bias is not None,
            module.bias_k is not None,
            module.add_zero_attn,
            module.kdim,
            module.vdim,
            module.batch_first,
            weight.device,
            weight.dtype,
            clip=clip,
            tables=tables,
            per_head=per_head,
            beyond=beyond,
            backend=backend,
        )
        keys = layer.load_state_dict(module.state_dict(), strict=False)
        if other := [name for name in keys.missing_keys if not name.startswith("attention.")] + keys.unexpected_keys:
            raise ValueError(
                "module must have the parameters of nn.MultiheadAttention, without parametrizations or subclasses "
                f"that replace them, got {type(module).__name__} with other {', '.join(other)}"
            )
        for table in layer.attention.parameters():
            nn.init.zeros_(table)
        return layer.train(module.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Attend from each query to the keys.

        Masks are bool, where True hides, or floating-point and added to the scores. An added mask costs memory
        quadratic in the length, unless it holds only 0 and −inf and is on a CPU, where it is read as a bool mask.

        Args:
            query: (queries, batch, embed_dim), or (batch, queries, embed_dim) with `batch_first`; without a batch,
                (queries, embed_dim).
            key: (keys, batch, kdim), or as `query`.
            value: (keys, batch, vdim), or as `query`.
            key_padding_mask: (batch, keys), or (keys,) without a batch. True marks padding, at any position. Keys and
                values there must be finite.
            need_weights: Must be False.
            attn_mask: (queries, keys) or (batch · num_heads, queries, keys).
            average_attn_weights: Not used.
            is_causal: Query i attends to the keys 0 to i. `attn_mask` is then taken to say the same, and not read.

        Returns:
            A pair of the output, in the layout of `query`, and None.

        Raises:
            ValueError: `need_weights` is True, or a shape or dtype does not fit.
            TypeError: An input is a nested tensor.
        """
        if query.is_nested:  # nn.TransformerEncoder makes one of padded inputs in inference
            raise TypeError(
                "query must be a padded tensor, got a nested tensor; set use_nested_tensor = False of the "
                "nn.TransformerEncoder"
            )
        if need_weights:
            raise ValueError("need_weights must be False, since attention weights are never stored, got True")
        for name, x, width in (("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim)):
            if x.dim() not in (2, 3) or x.dim() != query.dim() or x.shape[-1] != width:
                raise ValueError(
                    f"{name} must have shape (n, {width}) or three dimensions with {width} last, as query has, "
                    f"got {show(x)} with query {show(query)}"
                )
        has_batch = query.dim() == 3
        inputs = [query, key, value]
        if not has_batch:
            inputs = [x[None] for x in inputs]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            inputs = [x.transpose(0, 1) for x in inputs]
        heads = (self.num_heads, self.head_dim)
        q, k, v = (x.unflatten(-1, heads).transpose(1, 2) for x in self._project(inputs))
        options = self._masks(q, k, key_padding_mask, None if is_causal else attn_mask)
        attended = self.attention(q, k, v, is_causal=is_causal, query_offset=0, **options)
        output = self.out_proj(attended.transpose(1, 2).flatten(2))
        if not has_batch:
            return output[0], None
        return output if self.batch_first else output.transpose(0, 1), None

    def _project(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return the projected query, key and value, (batch, n, embed_dim)."""
        weights: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases: Any = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return list(map(F.linear, inputs, weights, biases))

    def _masks(
        self, query: Tensor, key: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> dict[str, Any]:
        """Return both masks as the options `mask` and `bias` of `relative_attention`."""
        batch, heads, queries, _ = query.shape
        keys = key.shape[2]
        check_mask("key_padding_mask", key_padding_mask, (batch, keys))
        check_mask("attn_mask", attn_mask, (queries, keys), (batch * heads, queries, keys))
        masks = []
        if key_padding_mask is not None:
            masks.append(as_bool(key_padding_mask[:, None, None]))
        if attn_mask is not None:
            masks.append(as_bool(attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (batch, heads))))
        hidden = [mask for mask in masks if mask.dtype == torch.bool]
        added = [mask.to(query.dtype) for mask in masks if mask.dtype != torch.bool]
        options: dict[str, Tensor] = {}
        if hidden:
            options["mask"] = ~functools.reduce(torch.logical_or, hidden)
        if added:
            options["bias"] = functools.reduce(torch.add, added)
        return options


def check_mask(name: str, mask: Tensor | None, *shapes: tuple[int, ...]) -> None:
    """Check the dtype and the shape of a mask."""
    if mask is None:
        return
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(f"{name} must be bool or floating-point, got {mask.dtype}")
    if mask.shape not in shapes:
        raise ValueError(f"{name} must have shape {' or '.join(map(str, shapes))}, got {show(mask)}")


def as_bool(mask: Tensor) -> Tensor:
    """Return a floating-point mask of 0 and −inf as a bool mask, where its values can be read without waiting."""
    if mask.dtype == torch.bool or mask.requires_grad or not can_read(mask):
        return mask
    hidden = mask == -torch.inf
    return hidden if bool((hidden | (mask == 0.0)).all()) else mask
