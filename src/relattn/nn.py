"""Modules over `relative_attention`: the tables wK and wV of a layer, and a self-attention layer that has them.

The paper shares tables by the heads of a layer (section 3.3) or gives each head its own (its base model, section
4.1), and has none of them in encoder–decoder attention. A layer that decodes keeps a cache of keys and values; a
query's distances come from true positions, so one token at a time gives what the whole sequence does.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from relattn.cache import AttentionCache
from relattn.call import Beyond
from relattn.functional import relative_attention, window

Tables = Literal["both", "keys", "values", "neither"]


class RelativePositionTable(nn.Module):
    """A learned vector for every clipped distance: `weight` is (labels, dim), or (heads, labels, dim).

    Row 0 is for keys `left` or more to the left, the last row for `right` or more to the right; labels == left +
    right + 1. The rows start Glorot uniform (fans: labels and dim), as in the paper's own code in Tensor2Tensor.

    Args:
        clip: k, or (left, right).
        dim: of a head.
        heads: how many heads have tables of their own; None for one table shared by all.
    """

    def __init__(self, clip: int | tuple[int, int], dim: int, heads: int | None = None) -> None:
        super().__init__()
        left, right = window(clip)
        self.clip = (left, right)
        lead = () if heads is None else (heads,)
        self.weight = nn.Parameter(torch.empty(*lead, left + right + 1, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        labels, dim = self.weight.shape[-2:]
        bound = (6.0 / (labels + dim)) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self) -> Tensor:
        return self.weight

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, clip={self.clip}"


class RelativeSelfAttention(nn.Module):
    """Multi-head self-attention with relative position representations: (batch, n, dim) -> (batch, n, dim).

    Args:
        dim: of the model; a multiple of `heads`.
        heads: number of heads.
        clip: k, or (left, right).
        tables: which of the two the layer has: "both", "keys" (aK), "values" (aV) or "neither".
        per_head: tables a head, instead of one shared by the heads.
        beyond: "clip" or "zero", as in `relative_attention`.
        dropout: of probabilities, while training.
        bias: whether the projections have one.
        is_causal: whether a position attends to later ones.
        backend: as in `relative_attention`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        clip: int | tuple[int, int],
        *,
        tables: Tables = "both",
        per_head: bool = False,
        beyond: Beyond = "clip",
        dropout: float = 0.0,
        bias: bool = True,
        is_causal: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads != 0:
            raise ValueError(f"dim {dim} with {heads} heads: dim is a multiple of heads")
        if tables not in ("both", "keys", "values", "neither"):
            raise ValueError(f"tables is {tables!r}; it is 'both', 'keys', 'values' or 'neither'")
        self.heads, self.head_dim = heads, dim // heads
        self.clip, self.beyond = window(clip), beyond
        self.dropout, self.is_causal, self.backend = dropout, is_causal, backend
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)
        own = heads if per_head else None
        self.rel_key = RelativePositionTable(clip, self.head_dim, own) if tables in ("both", "keys") else None
        self.rel_value = RelativePositionTable(clip, self.head_dim, own) if tables in ("both", "values") else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot uniform for W^Q, W^K, W^V and W^O, each by its own fans; biases zero."""
        for weight in (*self.qkv.weight.chunk(3), self.out.weight):
            nn.init.xavier_uniform_(weight)
        for linear in (self.qkv, self.out):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def empty_cache(self, batch: int, capacity: int = 0) -> AttentionCache:
        """The cache to start with: no positions seen, room for `capacity`. It grows by doubling where that is short."""
        room = batch, self.heads, capacity, self.head_dim
        return AttentionCache((self.qkv.weight.new_empty(room), self.qkv.weight.new_empty(room)))

    def forward(
        self, x: Tensor, key_lengths: Tensor | None = None, cache: AttentionCache | None = None
    ) -> Tensor | tuple[Tensor, AttentionCache]:
        """Attends from each position of `x` to all of them, and to those in the cache.

        Args:
            x: (batch, n, dim); with a cache, the positions that follow those it holds.
            key_lengths: (batch,) valid positions of each sequence, those in the cache counted. The rest of `x` is
                padding, which a cache does not keep: the next call goes on where each sequence ends.
            cache: of the positions before; for causal layers only.

        Returns:
            (batch, n, dim), and with a cache also the new one. Padding positions give the output's bias.
        """
        if cache is not None and not self.is_causal:
            raise ValueError("a cache is for causal layers: here later positions would change earlier outputs")
        batch, n, dim = x.shape
        query, key, value = self.qkv(x).view(batch, n, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        offset: int | Tensor = 0
        if cache is not None:
            offset, cache = cache.next_position, cache.append(key, value, key_lengths)
            key, value, key_lengths = cache.key, cache.value, cache.lengths
        attended = relative_attention(
            query,
            key,
            value,
            None if self.rel_key is None else self.rel_key(),
            None if self.rel_value is None else self.rel_value(),
            clip=self.clip,
            beyond=self.beyond,
            query_offset=offset,
            is_causal=self.is_causal,
            key_lengths=key_lengths,
            dropout_p=self.dropout if self.training else 0.0,
            backend=self.backend,
        )
        assert isinstance(attended, Tensor)
        output = self.out(attended.transpose(1, 2).reshape(batch, n, dim))
        return output if cache is None else (output, cache)
