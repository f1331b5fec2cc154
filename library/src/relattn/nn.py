"""Modules: the tables wK and wV, attention with them, and a self-attention layer.

The paper shares tables among the heads of a layer (section 3.3), or gives each head its own (its base model, section
4.1). Encoder–decoder attention has none. A layer that decodes keeps a cache of keys and values. Distances come from
true positions, so decoding one token at a time gives the same result as the whole sequence at once.
"""

from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor, nn

from relattn import backends
from relattn.cache import AttentionCache
from relattn.call import Beyond
from relattn.checks import (
    as_int64,
    as_integer,
    can_read,
    check_beyond,
    check_dropout,
    check_window,
    clipping_range,
    is_tracing,
    show,
)
from relattn.functional import Chunk, ClippingRange, Options, Window, relative_attention

Tables = Literal["both", "keys", "values", "neither"]


class RelativePositionTable(nn.Module):
    """A learned vector for every clipped distance: `weight` is (labels, dim), or (heads, labels, dim).

    Row 0 is for keys `left` or more to the left, the last row for keys `right` or more to the right;
    labels == left + right + 1. Rows start Glorot uniform (fans: labels and dim), as in the paper's own code in
    Tensor2Tensor. Calling the module returns a copy of `weight`, so that FSDP may free the parameter afterwards.

    Args:
        clip: The clipping distance k, or the clipping range (left, right).
        dim: Dimension of a head.
        heads: Number of heads, for one table per head. Default: one table that all heads share.
        device: Device of the parameter.
        dtype: Dtype of the parameter.

    Raises:
        ValueError: `clip`, `dim` or `heads` is out of range.
    """

    def __init__(
        self,
        clip: ClippingRange,
        dim: int,
        heads: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.clip = clipping_range(clip)
        check_count("dim", dim)
        if heads is not None:
            check_count("heads", heads)
        labels = sum(self.clip) + 1
        shape = (labels, dim) if heads is None else (heads, labels, dim)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table from Xavier's uniform distribution for (labels, dim)."""
        labels, dim = self.weight.shape[-2:]
        bound = (6.0 / (labels + dim)) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self) -> Tensor:
        """Return a copy of `weight`, (labels, dim) or (heads, labels, dim)."""
        return self.weight.clone()

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, clip={self.clip}"


class RelativeAttention(nn.Module):
    """`relative_attention` with its own tables: the core of an attention layer, for any projections around it.

    Args:
        head_dim: Dimension of queries, keys and values.
        clip: The clipping distance k, or the clipping range (left, right).
        heads: Number of heads, for one table per head. Default: tables that all heads share.
        tables: Which of the two tables to use: "both", "keys" (aK), "values" (aV) or "neither".
        beyond: "clip" or "zero", as in `relative_attention`.
        dropout: Dropout probability of attention probabilities during training.
        backend: As in `relative_attention`.
        device: Device of the tables.
        dtype: Dtype of the tables.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        head_dim: int,
        clip: ClippingRange,
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
            raise ValueError(f"tables must be 'both', 'keys', 'values' or 'neither', got {tables!r}")
        check_count("head_dim", head_dim)
        check_beyond(beyond)
        check_dropout("dropout", dropout)
        backends.check_name(backend)
        self.clip = clipping_range(clip)
        self.beyond = beyond
        self.dropout = dropout
        self.backend = backend

        def table(wanted: bool) -> RelativePositionTable | None:
            return RelativePositionTable(clip, head_dim, heads, device=device, dtype=dtype) if wanted else None

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
        """Compute attention of (batch, heads, length, head_dim) tensors.

        Options, results and errors are those of `relative_attention`.
        """
        options = {"dropout_p": self.dropout if self.training else 0.0, "backend": self.backend, **options}
        rel_key, rel_value = (None if table is None else table() for table in (self.rel_key, self.rel_value))
        return relative_attention(query, key, value, rel_key, rel_value, clip=self.clip, beyond=self.beyond, **options)


class SelfAttention(nn.Module):
    """Multi-head self-attention around a given attention module: (batch, n, dim) -> (batch, n, dim).

    For cross-attention, see `RelativeMultiheadAttention`.
    `RelativeSelfAttention` is this layer with `RelativeAttention` in it.

    Args:
        query: Projection of the input to queries, dim -> num_heads · head_dim.
        key: Projection to keys, dim -> num_key_heads · head_dim.
        value: Projection to values, of the sizes of `key`.
        out: Projection of the joined heads to the output.
        attention: Called as ``attention(query, key, value, is_causal=..., query_offset=..., ...)`` on tensors of shape
            (batch, heads, length, head_dim), with the options of `relative_attention`.
        num_heads: Number of heads. The sizes of the projections are not checked.
        num_key_heads: Number of heads of keys and values, which divides `num_heads`. Default: `num_heads`.
        is_causal: Whether a position attends to itself and earlier positions only.
        window: The sliding window (left, right), as in `relative_attention`. Default: none, and `attention` is called
            without this option.
        chunk: (size, left_chunks, right_chunks), as in `relative_attention`. Default: as for `window`.

    Raises:
        ValueError: `window` or `chunk` is out of range, or both are given.
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
        num_key_heads: int | None = None,
        is_causal: bool,
        window: Window = None,
        chunk: Chunk = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = query.out_features // num_heads
        self.is_causal = is_causal
        self.num_key_heads = num_heads if num_key_heads is None else num_key_heads
        self.limits: Options = {}
        self.chunk_size, self.window_left, self.window_right = check_window(window, chunk)
        if window is not None:
            self.limits["window"] = window
        if chunk is not None:
            self.limits["chunk"] = chunk
        self.query = query
        self.key = key
        self.value = value
        self.out = out
        self.attention = attention

    def empty_cache(self, batch: int, capacity: int = 0) -> AttentionCache:
        """Return an empty cache for `batch` sequences, with room for `capacity` positions; it grows by doubling."""
        for name, count in (("batch", batch), ("capacity", capacity)):
            if as_integer(count) is None or count < 0:
                raise ValueError(f"{name} must be an integer >= 0, got {count!r}")
        shape = batch, self.num_key_heads, capacity, self.head_dim
        return AttentionCache((new_memory(self.key, shape), new_memory(self.value, shape)), appended=False)

    @overload
    def forward(
        self, x: Tensor, lengths: Tensor | None = None, cache: None = None, *, mask: Tensor | None = None
    ) -> Tensor: ...
    @overload
    def forward(
        self, x: Tensor, lengths: Tensor | None, cache: AttentionCache, *, mask: Tensor | None = None
    ) -> tuple[Tensor, AttentionCache]: ...
    @overload
    def forward(
        self, x: Tensor, *, cache: AttentionCache, mask: Tensor | None = None
    ) -> tuple[Tensor, AttentionCache]: ...
    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        cache: AttentionCache | None = None,
        *,
        mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, AttentionCache]:
        """Attend from each position of `x` to all of them, and to those in the cache.

        Args:
            x: (batch, n, embed_dim). With a cache: the positions that follow those in the cache.
            lengths: (batch,) numbers of valid positions per sequence, including those in the cache. The rest of `x` is
                padding. A cache does not keep padding: the next call continues at the end of each sequence.
            cache: Keys and values of the earlier positions, for causal layers, and for layers with chunks if the
                earlier positions are whole chunks. The new cache drops positions that no later window reaches, so that
                the memory of a stream is constant.
            mask: bool, broadcastable to (batch, num_heads, n, keys); True: the pair may attend. The keys are the n
                positions of `x`, or with a cache all that it held before the call and these.

        Returns:
            The output, (batch, n, embed_dim). With a cache, a pair of the output and the new cache. Padding positions
            get the bias of the output projection.

        Raises:
            ValueError: A cache is given, and the layer is not causal or in the middle of a chunk; or the cache is of
                another layer.
        """
        width = getattr(self.query, "in_features", None)
        if not is_tracing() and not (x.dim() == 3 and width in (None, x.shape[2])):
            raise ValueError(f"x must have shape (batch, n, {width}), got {show(x)}")
        if cache is not None:
            if not isinstance(cache, AttentionCache):
                raise ValueError(f"cache must be an AttentionCache, got {type(cache).__name__}; see empty_cache")
            self._check_stream(cache)
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        options: Options = {**self.limits, "lengths": lengths}
        if cache is not None:
            offset = cache.next_position
            cache = cache.append(key, value, None if lengths is None else as_int64("lengths", lengths) - cache.dropped)
            key = cache.key
            value = cache.value
            held = cache.lengths
            queries = None if held is None else held - offset
            options = {**self.limits, "query_offset": offset, "key_lengths": held, "query_lengths": queries}
            cache = self._without_past(cache)
        if mask is not None:
            options["mask"] = mask
        attended = self.attention(query, key, value, is_causal=self.is_causal, **options)
        output = self.out(attended.transpose(1, 2).flatten(2))
        return output if cache is None else (output, cache)

    def _check_stream(self, cache: AttentionCache) -> None:
        """Check that positions to come cannot change the outputs of those in the cache."""
        if self.is_causal:
            return
        if "chunk" not in self.limits or self.window_right != self.chunk_size - 1:
            raise ValueError(
                "a cache must be used with is_causal=True, or with chunks that attend to none after them: "
                "later positions would change earlier outputs"
            )
        held = cache.next_position
        ends = held.tolist() if isinstance(held, Tensor) else [held]
        if any(end % self.chunk_size != 0 for end in ends):
            raise ValueError(f"a cache must hold whole chunks of {self.chunk_size} positions, got {ends} positions")

    def _without_past(self, cache: AttentionCache) -> AttentionCache:
        """Return the cache without the positions that no later query attends to, and without padding at its end.

        Without a window, the padding stays where reading lengths would wait for a GPU.
        """
        if self.window_left is not None and not is_tracing():
            shortest = cache.shortest
            return cache.drop(max(0, shortest - shortest % self.chunk_size - self.window_left))
        if cache.lengths is not None and can_read(cache.lengths):
            return cache.drop(0)
        return cache


class RelativeSelfAttention(SelfAttention):
    """Multi-head self-attention with relative position representations: (batch, n, dim) -> (batch, n, dim).

    Args:
        embed_dim: Dimension of the model, a multiple of `num_heads`.
        num_heads: Number of heads.
        clip: The clipping distance k, or the clipping range (left, right).
        num_key_heads: Number of heads of keys and values, which divides `num_heads` (grouped-query attention). The
            cache holds these only. Default: `num_heads`.
        tables: Which of the two tables to use: "both", "keys" (aK), "values" (aV) or "neither".
        per_head: Use one table per head, instead of tables that all heads share.
        beyond: "clip" or "zero", as in `relative_attention`.
        dropout: Dropout probability of attention probabilities during training.
        bias: Whether the projections have a bias.
        is_causal: Whether a position attends to itself and earlier positions only.
        window: The sliding window (left, right), as in `relative_attention`.
        chunk: (size, left_chunks, right_chunks), as in `relative_attention`.
        backend: As in `relative_attention`.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: An argument is out of range, `embed_dim` is not a multiple of `num_heads`, or `num_heads` not one of
            `num_key_heads`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        clip: ClippingRange,
        *,
        num_key_heads: int | None = None,
        tables: Tables = "both",
        per_head: bool = False,
        beyond: Beyond = "clip",
        dropout: float = 0.0,
        bias: bool = True,
        is_causal: bool = False,
        window: Window = None,
        chunk: Chunk = None,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        head_dim = head_dim_of(embed_dim, num_heads)
        num_key_heads = num_heads if num_key_heads is None else num_key_heads
        check_count("num_key_heads", num_key_heads)
        if num_heads % num_key_heads != 0:
            raise ValueError(f"num_heads must be a multiple of num_key_heads, got {num_heads} and {num_key_heads}")
        # Projections are initialised before the tables: the order decides which weights a seed gives.
        widths = (embed_dim, num_key_heads * head_dim, num_key_heads * head_dim, embed_dim)
        query, key, value, out = (linear(embed_dim, width, bias, device=device, dtype=dtype) for width in widths)
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
        super().__init__(
            query,
            key,
            value,
            out,
            attention,
            num_heads=num_heads,
            num_key_heads=num_key_heads,
            is_causal=is_causal,
            window=window,
            chunk=chunk,
        )


def linear(inputs: int, outputs: int, bias: bool = True, **options: Any) -> nn.Linear:
    """Return a linear layer with Glorot-uniform weights and a zero bias."""
    layer = nn.Linear(inputs, outputs, bias=bias, **options)
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def head_dim_of(embed_dim: int, num_heads: int) -> int:
    """Return the dimension of a head, after a check of both arguments."""
    check_count("embed_dim", embed_dim)
    check_count("num_heads", num_heads)
    if embed_dim % num_heads != 0:
        raise ValueError(f"embed_dim must be a multiple of num_heads, got {embed_dim} and {num_heads}")
    return embed_dim // num_heads


def check_count(name: str, count: Any) -> None:
    """Check a number of dimensions or heads."""
    if as_integer(count) is None or count < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {count!r}")


def new_memory(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Allocate memory for outputs of a linear layer; in float32 if it is quantized. An append may change the dtype."""
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor):  # PyTorch's quantized layers, which are on the CPU, have a method of this name
        return torch.empty(shape, dtype=torch.float32, device="cpu")
    dtype = weight.dtype if weight.dtype.is_floating_point else torch.float32
    return torch.empty(shape, dtype=dtype, device=weight.device)
