"""The public operators: signatures, documentation and dispatch.

    e_ij = scale · (q_i · k_j + r_i · aK_ij + aQ_ij · k_j) + b_ij + B_ij
    α_i = softmax_j e_ij        z_i = Σ_j α_ij (v_j + aV_ij)

Here r_i is q_i, as in the paper, or an optional separate query for the relative term, which covers Transformer-XL,
WavLM and others (docs/family.md). The other terms are optional too, and the paper has none of them: aQ_ij · k_j is
DeBERTa's, b_ij is a bias per label, T5's or ALiBi's, and B_ij is one per pair. `relative_attention` takes aK_ij, aQ_ij,
aV_ij and b_ij from tables by clip(j − i), key position minus query position (Shaw, Uszkoreit, Vaswani 2018, section
3.2). `relation_attention` takes them by a label that the caller gives for every pair (section 3.1).
`Call.from_arguments` checks the arguments.
"""

from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from relattn import backends, checks
from relattn.backends import pairs, plans
from relattn.call import Beyond, Call, autocast, casts

ClippingRange = int | tuple[int, int]
Clip = ClippingRange | None
Window = tuple[int | None, int | None] | None
Chunk = tuple[int, int | None] | tuple[int, int | None, int | None] | None


class Options(TypedDict, total=False):
    """Keyword arguments of both operators, as `relative_attention` documents them."""

    rel_query: Tensor | None
    pos_query: Tensor | None
    rel_bias: Tensor | None
    query_offset: int | Tensor | None
    is_causal: bool
    window: Window
    chunk: Chunk
    lengths: Tensor | None
    key_lengths: Tensor | None
    query_lengths: Tensor | None
    mask: Tensor | None
    bias: Tensor | None
    dropout_p: float
    scale: float | None
    backend: str


@overload
def relative_attention(
    query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor | None = None, rel_value: Tensor | None = None, *,
    clip: Clip = None, beyond: Beyond = "clip", cu_seqlens: Tensor | None = None, return_lse: Literal[False] = False,
    **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def relative_attention(
    query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor | None = None, rel_value: Tensor | None = None, *,
    clip: Clip = None, beyond: Beyond = "clip", cu_seqlens: Tensor | None = None, return_lse: Literal[True],
    **options: Unpack[Options],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def relative_attention(
    query: Tensor, key: Tensor, value: Tensor, rel_key: Tensor | None = None, rel_value: Tensor | None = None, *,
    rel_query: Tensor | None = None, pos_query: Tensor | None = None, rel_bias: Tensor | None = None,
    clip: Clip = None, beyond: Beyond = "clip", cu_seqlens: Tensor | None = None,
    query_offset: int | Tensor | None = None, is_causal: bool = False, window: Window = None, chunk: Chunk = None,
    lengths: Tensor | None = None, key_lengths: Tensor | None = None, query_lengths: Tensor | None = None,
    mask: Tensor | None = None, bias: Tensor | None = None, dropout_p: float = 0.0, scale: float | None = None,
    backend: str = "auto", return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Compute attention with clipped relative position representations; without tables, plain attention.

    Args:
        query: (batch, heads, queries, dim).
        key: (batch, key_heads, keys, dim). `heads` must be a multiple of `key_heads`; the heads of a group share keys.
        value: (batch, key_heads, keys, value_dim).
        rel_key: The table wK, (labels, dim) for all heads or (heads, labels, dim). Row 0 is for keys farthest to the
            left. With a `rel_query`, (labels, rel_dim) or (heads, labels, rel_dim).
        rel_value: The table wV, (labels, value_dim) or (heads, labels, value_dim).
        rel_query: The query r of the relative term, (batch, heads, queries, rel_dim). Default: `query`. With q + v
            here and q + u as `query`, scores are Transformer-XL's.
        pos_query: The table wQ, (labels, dim) or (heads, labels, dim): position queries, whose rows are multiplied with
            the keys. It is DeBERTa's position-to-content term, whose name this is.
        rel_bias: The bias per label, (labels,) for all heads or (heads, labels), finite. It is added to the scores
            after they are scaled, by the same labels as `rel_key`. `scale` must not be 0.
        clip: The clipping distance k, or the clipping range (left, right), where labels == left + right + 1. Default:
            k for tables of 2k + 1 rows. A table for one side only, as in causal schemes, needs (rows − 1, 0).
        beyond: Pairs beyond the clipping range take the edge row ("clip", the paper) or have no relative term ("zero").
        cu_seqlens: (sequences + 1,) integers from 0 to the length: the cumulative lengths of sequences that are packed
            one after another, without padding, in a batch of one, as in flash-attention's varlen functions. A position
            attends within its own sequence only. Reading them waits for a GPU. It must be given without
            `query_offset`, lengths, `mask` and `bias`.
        query_offset: Position of the first query on the key axis: an integer, or (batch,) integers. Default:
            keys − queries, so the queries are the last positions. It must be given together with `key_lengths` if
            queries ≠ keys and positions matter.
        is_causal: Do not attend to keys at positions after the query's own. This is aligned bottom-right: with the
            default offset the last query sees all keys. PyTorch's `scaled_dot_product_attention` is aligned top-left,
            which is `query_offset=0` here. The two agree if queries == keys.
        window: The sliding window (left, right): a query at position i attends to keys from i − left to i + right, as
            with flash-attention's `window_size`. None for a side: no limit. Time and memory of "native" and "triton"
            are linear in the length for a fixed window.
        chunk: (size, left_chunks) or (size, left_chunks, right_chunks): a query attends to the keys of its own chunk
            of `size` positions, and of as many chunks before and after it (default: none after it); chunks begin at
            multiples of `size`. None for a side: all chunks there. It must not be combined with `window`. Both are
            combined with all other arguments.
        lengths: (batch,) numbers of valid positions of right-padded sequences in self-attention: `key_lengths` and
            `query_lengths` in one. It must be given without these, and requires queries == keys.
        key_lengths: (batch,) numbers of valid keys. Later keys are padding, which nothing attends to.
        query_lengths: (batch,) numbers of valid queries. Later queries are padding. Padding may hold any values,
            NaN and infinity included: they reach no valid position, in the outputs or in the gradients.
        mask: bool, broadcastable to (batch, heads, queries, keys); True: the pair may attend. It is combined with
            `is_causal`, the window and the lengths. Keys and values that a mask hides must be finite.
        bias: The bias per pair, broadcastable to (batch, heads, queries, keys), in the dtype of `query`. It is added to
            the scores after they are scaled, and has a gradient. A value of −inf hides a pair. On a GPU "auto" then
            takes "dense". The memory of a bias is quadratic in the length. For a bias that follows from the
            distance or from a label, use `rel_bias`, which does not need this memory.
        dropout_p: Probability of dropping an attention probability, after normalisation; kept ones are scaled up.
            Pass 0.0 for evaluation.
        scale: Factor on the products of the score, not on the biases. Default: dim ** -0.5.
        backend: "auto", or one of `relattn.backends.NAMES`, which is used or refused with its reasons. On a GPU "auto"
            is "triton" where that has been measured, and otherwise "dense" (docs/arguments.md).
        return_lse: Also return the log-sum-exp of the scores.

    Returns:
        The output, (batch, heads, queries, value_dim). With `return_lse`, a pair of the output and the log-sum-exp
        (batch, heads, queries): natural logarithm, before dropout, at least float32, without gradient. A query
        that is padding or has nothing to attend to gets zeros and −inf, and passes no gradient. All backends have first
        derivatives by autograd. Other derivatives need backend="reference": `torch.func`, forward mode, batched
        gradients and higher derivatives. Under autocast, query, key, value, the tables, `rel_query` and both biases are
        converted to its dtype.

    Raises:
        ValueError, TypeError: An argument breaks a rule above. The message says what must hold and what was given.
        NotImplementedError: A derivative needs backend="reference".
    """
    longest = 0
    if cu_seqlens is not None:
        rows = {"query": query, "key": key, "value": value, "rel_query": rel_query}
        others = {
            "query_offset": query_offset, "lengths": lengths, "key_lengths": key_lengths,
            "query_lengths": query_lengths, "mask": mask, "bias": bias,
        }  # fmt: skip
        cu_seqlens, longest = checks.check_packed(cu_seqlens, rows, others)
    sources = (
        query, key, value, rel_key, rel_value, rel_query, pos_query, rel_bias, bias, None, mask, lengths, key_lengths,
        query_lengths, cu_seqlens,
    )  # fmt: skip
    options = clip, beyond, query_offset, is_causal, window, chunk, dropout_p, scale, longest, None
    return attend(sources, options, backend, return_lse)


@overload
def relation_attention(
    query: Tensor, key: Tensor, value: Tensor, relations: Tensor, rel_key: Tensor | None = None,
    rel_value: Tensor | None = None, *, return_lse: Literal[False] = False, check: bool | None = None,
    **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def relation_attention(
    query: Tensor, key: Tensor, value: Tensor, relations: Tensor, rel_key: Tensor | None = None,
    rel_value: Tensor | None = None, *, return_lse: Literal[True], check: bool | None = None,
    **options: Unpack[Options],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def relation_attention(
    query: Tensor, key: Tensor, value: Tensor, relations: Tensor, rel_key: Tensor | None = None,
    rel_value: Tensor | None = None, *, rel_query: Tensor | None = None, pos_query: Tensor | None = None,
    rel_bias: Tensor | None = None,
    query_offset: int | Tensor | None = None, is_causal: bool = False, window: Window = None, chunk: Chunk = None,
    lengths: Tensor | None = None, key_lengths: Tensor | None = None, query_lengths: Tensor | None = None,
    mask: Tensor | None = None, bias: Tensor | None = None, dropout_p: float = 0.0, scale: float | None = None,
    backend: str = "auto", return_lse: bool = False, check: bool | None = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Compute attention over any labelled graph: the pair (i, j) takes row `relations[..., i, j]` of each table.

    Args:
        relations: (batch or 1, heads or 1, queries, keys) integers in [−1, labels); −1 means no relative term.
        check: Check that the labels are in range. Default: on CPU only, since reading them waits for a GPU. A compiled
            or exported call never checks. Without the check, a label out of range is undefined behaviour.

    The other arguments and the results are those of `relative_attention`.

    Raises:
        ValueError, TypeError: An argument breaks a rule. The message says what must hold and what was given.
        NotImplementedError: A derivative needs backend="reference".
    """
    if relations is None:
        raise TypeError("relations must be a tensor of labels, got None; relative_attention labels pairs by position")
    sources = (
        query, key, value, rel_key, rel_value, rel_query, pos_query, rel_bias, bias, relations, mask, lengths,
        key_lengths, query_lengths, None,
    )  # fmt: skip
    options = None, "zero", query_offset, is_causal, window, chunk, dropout_p, scale, 0, check
    return attend(sources, options, backend, return_lse)


def attend(
    sources: plans.Sources, options: tuple[Any, ...], backend: str, return_lse: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Run a call by its plan, or check it and run it on a backend. Under autocast, its operands are converted first.

    Args:
        sources: Arguments with the names `plans.SOURCES`.
        options: Arguments with the names `plans.OPTIONS`.
        backend: Name of the backend, or "auto".
        return_lse: Whether to return the log-sum-exp.
    """
    query = sources[0]
    if isinstance(query, Tensor) and casts(query.device.type):
        device = query.device.type
        operands = [autocast(x, device) for x in sources[: plans.OPERANDS]]
        with torch.autocast(device, enabled=False):
            return attend((*operands, *sources[plans.OPERANDS :]), options, backend, return_lse)
    form = plans.form_of(sources, (*options, backend, return_lse))
    plan = plans.PLANS.get(form)
    if plan is not None and (result := plan.run(sources)) is not None:
        return result
    given = dict(zip((*plans.SOURCES, *plans.OPTIONS), (*sources, *options), strict=True))
    call = pairs.without_unread_rows(Call.from_arguments(**given))
    chosen = backends.choose(backend, call)
    if form is not None and form not in plans.PLANS:
        plan = plans.add(form, sources, call, options[-1], return_lse, chosen)
        if plan is not None and (result := plan.run(sources)) is not None:
            return result
    output, lse = chosen.attend(call, return_lse)
    return output if lse is None else (output, lse)
