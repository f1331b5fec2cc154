"""Forms of other models with `relative_attention`, and "by mask": all pairs as a mask for PyTorch's attention.

Transformer-XL   scale · (q_i · k_j + r_i · R_{j−i}), a row of R per distance and head, a separate query r
T5               scale · (q_i · k_j + b_{j−i}), a number per distance and head, constant beyond distance 128
DeBERTa          scale · (q_i · k_j + q_i · K_{i−j} + k_j · Q_{i−j}), 512 rows of K and Q per head, by bucket
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers import Attend, Case
from relattn import relative_attention
from relattn.functional import Options
from relattn.positions import distances, labels

FURTHEST = 128  # distance of T5's last bucket
SPAN, LONGEST = 256, 512  # DeBERTa v3: half of the rows of its tables, and the longest distance with its own bucket


@dataclass(frozen=True)
class Form:
    """A form of attention. Its inputs are queries, keys, values, and the tensors that `others` returns."""

    others: Callable[[Case, torch.Generator], list[Tensor]]
    ours: Callable[[Case], Attend]
    by_mask: Callable[[Case], Attend]


def xl_others(case: Case, generator: torch.Generator) -> list[Tensor]:
    table = torch.randn(case.heads, 2 * case.n - 1, case.dim, generator=generator)
    return [table, torch.randn(case.batch, case.n, case.heads, case.dim, generator=generator).transpose(1, 2)]


def xl(case: Case) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor, rel_query: Tensor) -> Tensor:
        options: Options = {"rel_query": rel_query, "is_causal": case.is_causal, "dropout_p": case.dropout_p}
        return relative_attention(query, key, value, table, clip=case.n - 1, **options)

    return attend


def xl_by_mask(case: Case) -> Attend:
    seen = case.causal_mask()

    def attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor, rel_query: Tensor) -> Tensor:
        by_label = rel_query @ (table * case.dim**-0.5).mT  # (batch, heads, n, 2n − 1), at label j − i + n − 1
        flat = by_label.flatten(-2)[..., case.n - 1 : case.n - 1 + case.n * (2 * case.n - 2)]
        bias = flat.unflatten(-1, (case.n, 2 * case.n - 2))[..., : case.n]
        return with_bias(case, seen, query, key, value, bias)

    return attend


def t5_others(case: Case, generator: torch.Generator) -> list[Tensor]:
    return [torch.randn(case.heads, 2 * min(case.n - 1, FURTHEST) + 1, 1, generator=generator)]


def t5(case: Case) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
        ones = torch.ones_like(query[..., :1])
        options: Options = {"rel_query": ones, "is_causal": case.is_causal, "dropout_p": case.dropout_p}
        return relative_attention(query, key, value, table, **options)

    return attend


def t5_by_mask(case: Case) -> Attend:
    clip = min(case.n - 1, FURTHEST)
    label = labels(distances(case.n, case.n, 0, torch.device("cpu")), clip, clip, clips=True)
    seen = case.causal_mask()

    def attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
        bias = F.embedding(label, (table[..., 0] * case.dim**-0.5).mT).permute(2, 0, 1)[None]
        return with_bias(case, seen, query, key, value, bias)

    return attend


def deberta_others(case: Case, generator: torch.Generator) -> list[Tensor]:
    return [torch.randn(case.heads, 2 * SPAN, case.dim, generator=generator) for _ in "KQ"]


def deberta_rows(distance: Tensor) -> Tensor:
    """Return the table row of each distance i − j."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    bucket: Tensor = make_log_bucket_position(distance, SPAN, LONGEST)
    return (bucket.long() + SPAN).clamp(0, 2 * SPAN - 1)


def deberta(case: Case) -> Attend:
    rows = deberta_rows(-torch.arange(1 - case.n, case.n))  # by j − i

    def attend(query: Tensor, key: Tensor, value: Tensor, key_table: Tensor, query_table: Tensor) -> Tensor:
        options: Options = {"is_causal": case.is_causal, "dropout_p": case.dropout_p, "pos_query": query_table[:, rows]}
        return relative_attention(query, key, value, key_table[:, rows], clip=case.n - 1, **options)

    return attend


def deberta_by_mask(case: Case) -> Attend:
    """Gather both terms of all pairs, as DeBERTa's own code does."""
    rows = deberta_rows(-distances(case.n, case.n, 0, torch.device("cpu"))).expand(case.batch, case.heads, -1, -1)
    seen = case.causal_mask()

    def attend(query: Tensor, key: Tensor, value: Tensor, key_table: Tensor, query_table: Tensor) -> Tensor:
        of_queries = (query @ key_table.mT).gather(-1, rows)
        of_keys = (key @ query_table.mT).gather(-1, rows.mT).mT
        return with_bias(case, seen, query, key, value, (of_queries + of_keys) * case.dim**-0.5)

    return attend


def with_bias(case: Case, seen: Tensor | None, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    if seen is not None:
        bias = bias.where(seen[:1], -torch.inf)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=case.dropout_p)


FORMS = {
    "Transformer-XL": Form(xl_others, xl, xl_by_mask),
    "T5": Form(t5_others, t5, t5_by_mask),
    "DeBERTa": Form(deberta_others, deberta, deberta_by_mask),
}
BY_MASK = {f"{name} by mask": name for name in FORMS}
METHODS = (*FORMS, *BY_MASK)


def attention(method: str, case: Case) -> Attend:
    form = FORMS[BY_MASK.get(method, method)]
    return form.by_mask(case) if method in BY_MASK else form.ours(case)


def others(method: str, case: Case, generator: torch.Generator) -> list[Tensor]:
    return FORMS[BY_MASK.get(method, method)].others(case, generator)
