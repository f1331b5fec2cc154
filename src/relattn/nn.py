"""Modules over `relative_attention`: the tables wK and wV, attention with them, and a self-attention layer.

The paper shares tables by the heads of a layer (section 3.3) or gives each head its own (its base model, section
4.1), and has none of them in encoder–decoder attention. A layer that decodes keeps a cache of keys and values; a
query's distances come from true positions, so one token at a time gives what the whole sequence does.
"""

from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor, nn

from relattn.cache import AttentionCache
from relattn.call import Beyond
from relattn.checks import check_beyond, window
from relattn.functional import Options, relative_attention

Tables = Literal["both", "keys", "values", "neither"]


class RelativePositionTable(nn.Module):
    """A learned vector for every clipped distance: `weight` is (labels, dim), or (heads, labels, dim).

    Row 0 is for keys `left` or more to the left, the last row for `right` or more to the right; labels == left +
    right + 1. The rows start Glorot uniform (fans: labels and dim), as in the paper's own code in Tensor2Tensor.

    Args:
        clip: k, or (left, right).
        dim: of a head.
        heads: how many heads have a table each; None for one table shared by all.
        device: of the parameter, as in PyTorch's own modules.
        dtype: theirs too.
    """

    def __init__(
        self,
        clip: int | tuple[int, int],
        dim: int,
        heads: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        left, right = window(clip)
        self.clip = (left, right)
        lead = () if heads is None else (heads,)
        self.weight = nn.Parameter(torch.empty(*lead, left + right + 1, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew, by Xavier's uniform initialisation of (labels, dim)."""
        labels, dim = self.weight.shape[-2:]
        bound = (6.0 / (labels + dim)) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self) -> Tensor:
        return self.weight

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, clip={self.clip}"


class RelativeAttention(nn.Module):
    """`relative_attention` with tables of its own: the core of an attention layer, for any projections around it.

    Args:
        head_dim: of queries, keys and values.
        clip: k, or (left, right).
        heads: how many heads have tables each; None for tables shared by all.
        tables: which of the two there are: "both", "keys" (aK), "values" (aV) or "neither".
        beyond: "clip" or "zero", as in `relative_attention`.
        dropout: of probabilities, while training.
        backend: as in `relative_attention`.
        device: of the tables, as in PyTorch's own modules.
        dtype: theirs too.

    Raises:
        ValueError, TypeError: an option is none of those above.
    """

    def __init__(
        self,
        head_dim: int,
        clip: int | tuple[int, int],
        heads: int | None = None,
        *,
        tables: Tables = "both",
        beyond: Beyond = "clip",
        dropout: float = 0.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if tables not in ("both", "keys", "values", "neither"):
            raise ValueError(f"tables is {tables!r}; it is 'both', 'keys', 'values' or 'neither'")
        check_beyond(beyond)
        self.clip, self.beyond = window(clip), beyond
        self.dropout, self.backend = dropout, backend

        def table(there: bool) -> RelativePositionTable | None:
            return RelativePositionTable(clip, head_dim, heads, device=device, dtype=dtype) if there else None

        self.rel_key = table(tables in ("both", "keys"))
        self.rel_value = table(tables in ("both", "values"))

    @overload
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_lse: Literal[False] = False,
        **options: Unpack[Options],
    ) -> Tensor: ...  # fmt: skip
    @overload
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_lse: Literal[True], **options: Unpack[Options]
    ) -> tuple[Tensor, Tensor]: ...
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """(batch, heads, length, head_dim) each; options, results and errors are those of `relative_attention`."""
        options = {"dropout_p": self.dropout if self.training else 0.0, "backend": self.backend, **options}
        rel_key, rel_value = (None if table is None else table() for table in (self.rel_key, self.rel_value))
        return relative_attention(query, key, value, rel_key, rel_value, clip=self.clip, beyond=self.beyond, **options)


class SelfAttention(nn.Module):
    """Multi-head self-attention around a given attention module: (batch, n, dim) -> (batch, n, dim).

    `RelativeSelfAttention` is this layer with `RelativeAttention` in it.

    Args:
        query: Projection of the input to queries, dim -> num_heads · head_dim.
        key: Projection to keys, of the same sizes.
        value: Projection to values, of the same sizes.
        out: Projection of the joined heads to the output.
        attention: Called as ``attention(query, key, value, is_causal=..., query_offset=..., ...)`` on tensors of shape
            (batch, heads, length, head_dim), with the options of `relative_attention`.
        num_heads: Number of heads.
        is_causal: Whether a position attends to itself and earlier positions only.
    """

    def __init__(
        self,
        query: nn.Linear,
        key: nn.Linear,
        value: nn.Linear,
        out: nn.Linear,
        attention: nn.Module,
        *,
        num_heads: int,
        is_causal: bool,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.is_causal = num_heads, query.out_features // num_heads, is_causal
        self.query, self.key, self.value, self.out = query, key, value, out
        self.attention = attention

    def empty_cache(self, batch: int, capacity: int = 0) -> AttentionCache:
        """The cache of `batch` sequences to start with: no positions seen, room for `capacity`.

        It grows by doubling where that is short.
        """
        room = batch, self.num_heads, capacity, self.head_dim
        return AttentionCache((self.key.weight.new_empty(room), self.value.weight.new_empty(room)))

    @overload
    def forward(self, x: Tensor, key_lengths: Tensor | None = None, cache: None = None) -> Tensor: ...
    @overload
    def forward(
        self, x: Tensor, key_lengths: Tensor | None, cache: AttentionCache
    ) -> tuple[Tensor, AttentionCache]: ...
    @overload
    def forward(self, x: Tensor, *, cache: AttentionCache) -> tuple[Tensor, AttentionCache]: ...
    def forward(
        self, x: Tensor, key_lengths: Tensor | None = None, cache: AttentionCache | None = None
    ) -> Tensor | tuple[Tensor, AttentionCache]:
        """Attends from each position of `x` to all of them, and to those in the cache.

        Args:
            x: (batch, n, embed_dim); with a cache, the positions that follow those it holds.
            key_lengths: (batch,) valid positions of each sequence, those in the cache counted. The rest of `x` is
                padding, which a cache does not keep: the next call goes on where each sequence ends.
            cache: of the positions before; for causal layers only.

        Returns:
            (batch, n, embed_dim), and with a cache also the new one. Padding positions give the output's bias.

        Raises:
            ValueError: a cache is given to a layer that is not causal, or is another layer's.
        """
        if cache is not None and not self.is_causal:
            raise ValueError("a cache is for causal layers: here later positions would change earlier outputs")
        heads = (self.num_heads, self.head_dim)
        query, key, value = (
            project(x).unflatten(-1, heads).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        where: Options = {"key_lengths": key_lengths}
        if cache is not None:
            offset = cache.next_position
            cache = cache.append(key, value, key_lengths)
            key, value, lengths = cache.key, cache.value, cache.lengths
            where = {"query_offset": offset, "key_lengths": lengths}
            where["query_lengths"] = None if lengths is None else lengths - offset
        attended = self.attention(query, key, value, is_causal=self.is_causal, **where)
        output = self.out(attended.transpose(1, 2).flatten(2))
        return output if cache is None else (output, cache)


class RelativeSelfAttention(SelfAttention):
    """Multi-head self-attention with relative position representations: (batch, n, dim) -> (batch, n, dim).

    Args:
        embed_dim: of the model; a multiple of `num_heads`.
        num_heads: number of heads.
        clip: k, or (left, right).
        tables: which of the two the layer has: "both", "keys" (aK), "values" (aV) or "neither".
        per_head: tables for each head, instead of tables shared by the heads.
        beyond: "clip" or "zero", as in `relative_attention`.
        dropout: of probabilities, while training.
        bias: whether the projections have one.
        is_causal: whether a position attends only to itself and earlier ones.
        backend: as in `relative_attention`.
        device: of the parameters, as in PyTorch's own modules.
        dtype: theirs too.

    Raises:
        ValueError, TypeError: `embed_dim` is no multiple of `num_heads`, or an option is none of those above.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        clip: int | tuple[int, int],
        *,
        tables: Tables = "both",
        per_head: bool = False,
        beyond: Beyond = "clip",
        dropout: float = 0.0,
        bias: bool = True,
        is_causal: bool = False,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if num_heads < 1 or embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim {embed_dim} with {num_heads} heads: it is a multiple of num_heads")
        head_dim = embed_dim // num_heads
        # Projections are initialised before the tables: the order decides which weights a seed gives.
        query, key, value, out = (linear(embed_dim, embed_dim, bias, device=device, dtype=dtype) for _ in range(4))
        attention = RelativeAttention(
            head_dim,
            clip,
            num_heads if per_head else None,
            tables=tables,
            beyond=beyond,
            dropout=dropout,
            backend=backend,
            device=device,
            dtype=dtype,
        )
        super().__init__(query, key, value, out, attention, num_heads=num_heads, is_causal=is_causal)


def linear(inputs: int, outputs: int, bias: bool = True, **made: Any) -> nn.Linear:
    """A linear map with Glorot-uniform weights and a zero bias."""
    layer = nn.Linear(inputs, outputs, bias=bias, **made)
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
