"""Forms of other models with `relative_attention`, and "by mask": all pairs as a mask for PyTorch's attention.

Transformer-XL   scale · (q_i · k_j + r_i · R_{j−i}), a row of R per distance and head, a separate query r
T5               scale · (q_i · k_j + b_{j−i}), a number per distance and head, constant beyond distance 128
DeBERTa          scale · (q_i · k_j + q_i · K_{i−j} + k_j · Q_{i−j}), 512 rows of K and Q per head, by bucket
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from relattn import relative_attention
from relattn.functional import Options
from relattn.positions import distances, labels
from torch import Tensor

Attend = Callable[..., Tensor]  # (query, key, value, table or tables) -> output, each (batch, heads, n, dim)
FURTHEST = 128  # distance of T5's last bucket
SPAN, LONGEST = 256, 512  # DeBERTa v3: half of the rows of its tables, and the longest distance with its own bucket


@dataclass(frozen=True)
class Case:
    """Self-attention of sequences of one length."""

    batch: int
    heads: int
    n: int
    dim: int
    left: int
    right: int
    is_causal: bool
    dtype: torch.dtype = torch.float32
    dropout_p: float = 0.0
    backend: str = "auto"  # of our own forms of attention

    def options(self) -> Options:
        """Return options of `relative_attention`."""
        return {"is_causal": self.is_causal, "dropout_p": self.dropout_p, "backend": self.backend}

    def causal_mask(self) -> Tensor | None:
        """Return the mask of visible pairs, (batch, 1, n, n). Models make it once for all layers."""
        visible = torch.ones(self.n, self.n, dtype=torch.bool).tril()
        return visible.expand(self.batch, 1, self.n, self.n) if self.is_causal else None

    def causal_bias(self) -> Tensor | None:
        """Return the mask as numbers to add to scores."""
        mask, least = self.causal_mask(), torch.finfo(self.dtype).min
        return None if mask is None else torch.zeros(mask.shape, dtype=self.dtype).masked_fill(~mask, least)


@dataclass(frozen=True)
class Form:
    """A form of attention. Its inputs are queries, keys, values, and the tensors that `others` returns."""

    others: Callable[[Case, torch.Generator], list[Tensor]]
    ours: Callable[[Case], Attend]
    by_mask: Callable[[Case], Attend]
    by_flex: Callable[[Case], Attend] | None = None


def xl_others(case: Case, generator: torch.Generator) -> list[Tensor]:
    table = torch.randn(case.heads, 2 * case.n - 1, case.dim, generator=generator)
    return [table, torch.randn(case.batch, case.n, case.heads, case.dim, generator=generator).transpose(1, 2)]


def xl(case: Case) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor, rel_query: Tensor) -> Tensor:
        options: Options = {"rel_query": rel_query, **case.options()}
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


def xl_by_flex(case: Case) -> Attend:
    from torch.nn.attention.flex_attention import flex_attention

    def attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor, rel_query: Tensor) -> Tensor:
        by_label = rel_query @ (table * case.dim**-0.5).mT  # (batch, heads, n, 2n − 1)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + by_label[b, h, i, j - i + case.n - 1]

        return flex_attention(query, key, value, score_mod=score_mod)

    return attend


def t5_others(case: Case, generator: torch.Generator) -> list[Tensor]:
    return [torch.randn(case.heads, 2 * min(case.n - 1, FURTHEST) + 1, 1, generator=generator)]


def t5(case: Case) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
        ones = torch.ones_like(query[..., :1])
        options: Options = {"rel_query": ones, **case.options()}
        return relative_attention(query, key, value, table, **options)

    return attend


def t5_by_mask(case: Case) -> Attend:
    clip = min(case.n - 1, FURTHEST)
    label = labels(distances(case.n, case.n, 0, torch.get_default_device()), clip, clip, clips=True)
    seen = case.causal_mask()

    def attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
        bias = F.embedding(label, (table[..., 0] * case.dim**-0.5).mT).permute(2, 0, 1)[None]
        return with_bias(case, seen, query, key, value, bias)

    return attend


def t5_by_flex(case: Case) -> Attend:
    from torch.nn.attention.flex_attention import flex_attention

    clip = min(case.n - 1, FURTHEST)

    def attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
        by_label = table[..., 0] * case.dim**-0.5  # (heads, labels)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + by_label[h, torch.clamp(j - i, -clip, clip) + clip]

        return flex_attention(query, key, value, score_mod=score_mod)

    return attend


def deberta_others(case: Case, generator: torch.Generator) -> list[Tensor]:
    return [torch.randn(case.heads, 2 * SPAN, case.dim, generator=generator) for _ in "KQ"]


def deberta_rows(distance: Tensor) -> Tensor:
    """Return the table row of each distance i − j."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    bucket: Tensor = make_log_bucket_position(distance, SPAN, LONGEST)
    return (bucket.long() + SPAN).clamp(0, 2 * SPAN - 1)


def deberta(case: Case) -> Attend:
    clip = min(case.n - 1, LONGEST)  # longer distances share a bucket
    rows = deberta_rows(-torch.arange(-clip, clip + 1))  # by j − i

    def attend(query: Tensor, key: Tensor, value: Tensor, key_table: Tensor, query_table: Tensor) -> Tensor:
        options: Options = {**case.options(), "pos_query": query_table[:, rows]}
        return relative_attention(query, key, value, key_table[:, rows], clip=clip, **options)

    return attend


def deberta_by_mask(case: Case) -> Attend:
    """Gather both terms of all pairs, as DeBERTa's own code does."""
    rows = deberta_rows(-distances(case.n, case.n, 0, torch.get_default_device())).expand(
        case.batch, case.heads, -1, -1
    )
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
    "Transformer-XL": Form(xl_others, xl, xl_by_mask, xl_by_flex),
    "T5": Form(t5_others, t5, t5_by_mask, t5_by_flex),
    "DeBERTa": Form(deberta_others, deberta, deberta_by_mask),
}
BY_MASK = {f"{name} by mask": name for name in FORMS}
BY_FLEX = {f"{name} by flex": name for name, form in FORMS.items() if form.by_flex is not None}
METHODS = (*FORMS, *BY_MASK)  # on any device, forward and backward


def attention(method: str, case: Case) -> Attend:
    form = form_of(method)
    if method in BY_FLEX:
        assert form.by_flex is not None
        torch._dynamo.reset()  # each length is compiled, and the number of compiled variants is limited
        return torch.compile(form.by_flex(case), dynamic=False)
    return form.by_mask(case) if method in BY_MASK else form.ours(case)


def others(method: str, case: Case, generator: torch.Generator) -> list[Tensor]:
    return form_of(method).others(case, generator)


def form_of(method: str) -> Form:
    return FORMS[{**BY_MASK, **BY_FLEX}.get(method, method)]
