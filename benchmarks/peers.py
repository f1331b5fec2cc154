"""Other libraries' attention with relative positions, imported from their own packages, beside ours.

They go into an environment of their own, since OpenNMT-py asks for torch < 2.3 and eole for another SentencePiece than
ours; `peers.txt` pins them and all that importing them needs:

    python3 -m venv .cache/peers
    .cache/peers/bin/pip install --constraint constraints.txt --editable '.[translation]'
    .cache/peers/bin/pip install --no-deps --requirement benchmarks/peers.txt
    .cache/peers/bin/python -m benchmarks.peers

The last command holds each against `relative_attention`, called so that it computes the same, outputs and gradients,
causal and not; it prints the largest differences and exits 1 where one is more than rounding. A peer's projections are
taken out, so that attention alone is compared and timed: it gets the queries, keys and values themselves.
"""

import argparse
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import torch
from torch import Tensor, nn

from relattn import relative_attention
from tests.support.numerics import Shape, budgets, error, make_inputs, outputs_and_gradients

Attend = Callable[..., Tensor]  # (query, key, value, table or tables) -> output, each (batch, heads, n, dim)


@dataclass(frozen=True)
class Case:
    """Self-attention over sentences of one length."""

    batch: int
    heads: int
    n: int
    dim: int
    left: int
    right: int
    is_causal: bool
    dtype: torch.dtype = torch.float32
    dropout_p: float = 0.0

    def causal_mask(self) -> Tensor | None:
        """(batch, 1, n, n), True where a query may attend; made once, as a model makes it once for all its layers."""
        visible = torch.ones(self.n, self.n, dtype=torch.bool).tril()
        return visible.expand(self.batch, 1, self.n, self.n) if self.is_causal else None

    def causal_bias(self) -> Tensor | None:
        """The same as numbers to add to scores."""
        mask, least = self.causal_mask(), torch.finfo(self.dtype).min
        return None if mask is None else torch.zeros(mask.shape, dtype=self.dtype).masked_fill(~mask, least)


@dataclass(frozen=True)
class Peer:
    package: str  # its name on PyPI
    module: str  # what `make` imports
    computes: str
    tables: int  # 1 where keys and values share one or values have none
    products: int  # with tables: 1 where values have none
    make: Callable[[Case], Attend]
    same: Callable[..., Any]  # `relative_attention`, called so that it computes what the peer does
    lopsided: bool  # left ≠ right can be asked for
    vectors: Literal["pairs", "diagonals"]  # what a query is multiplied with, a table: n or 2n − 1 vectors
    gathers: tuple[int, int]  # peak memory, forward and with backward, in arrays of one vector per pair, n × n × dim,
    scores: tuple[int, int]  # and of one number per pair and head, batch × heads × n × n

    def memory(self, case: Case, backward: bool) -> int:
        """Bytes that it was seen to need beyond its inputs."""
        pair = self.gathers[backward] * case.dim + self.scores[backward] * case.batch * case.heads
        return pair * case.n * case.n * case.dtype.itemsize


class Given(nn.Module):
    """In a projection's place: what a projection would have made of the hidden states."""

    def __init__(self, copy: bool = False) -> None:
        super().__init__()
        self.copy = copy
        self.projected = torch.empty(0)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.projected.clone() if self.copy else self.projected


def bare(
    module: nn.Module,
    case: Case,
    projections: tuple[str, str, str, str],
    tables: dict[str, tuple[int, ...]],
    hidden: int = 1,
    overwrites_query: bool = False,
    **options: object,
) -> Attend:
    """A peer's module as a function of queries, keys, values and tables.

    `projections` names those of query, key, value and output; `tables` the parameters that hold them, with their
    shapes; the module takes the hidden states `hidden` times, and `options`.
    """
    given = [Given(copy=overwrites_query), Given(), Given()]
    for name, stand_in in zip(projections, [*given, nn.Identity()], strict=True):
        setattr(module, name, stand_in)
    module.eval()

    def attend(query: Tensor, key: Tensor, value: Tensor, *rows: Tensor) -> Tensor:
        for stand_in, heads in zip(given, (query, key, value), strict=True):
            stand_in.projected = heads.transpose(1, 2).flatten(2)  # (batch, n, heads · dim)
        held = {name: table.view(shape) for (name, shape), table in zip(tables.items(), rows, strict=True)}
        output = torch.func.functional_call(module, held, (given[0].projected,) * hidden, options)[0]
        return output.unflatten(-1, (case.heads, case.dim)).transpose(1, 2)

    return attend


def opennmt_py(case: Case) -> Attend:
    from onmt.modules.multi_headed_attn import MultiHeadedAttention

    module = MultiHeadedAttention(
        case.heads, case.heads * case.dim, dropout=0.0, max_relative_positions=case.left, attn_type="self"
    )
    mask = case.causal_mask()
    return bare(
        module,
        case,
        ("linear_query", "linear_keys", "linear_values", "final_linear"),
        {"relative_positions_embeddings.weight": (2 * case.left + 1, case.dim)},
        hidden=3,
        overwrites_query=True,
        mask=None if mask is None else ~mask,
    )


def eole(case: Case) -> Attend:
    from eole.config.models import TransformerEncoderConfig
    from eole.constants import PositionEncodingType
    from eole.modules.multi_headed_attn import SelfMHA

    config = TransformerEncoderConfig(
        hidden_size=case.heads * case.dim,
        heads=case.heads,
        position_encoding_type=PositionEncodingType.Relative,
        n_positions=case.left,
    )
    return bare(
        SelfMHA(config),
        case,
        ("linear_query", "linear_keys", "linear_values", "final_linear"),
        {"relative_positions_embeddings.weight": (2 * case.left + 1, case.dim)},
        attn_mask=case.causal_mask(),
    )


def w2v_bert(case: Case) -> Attend:
    from transformers import Wav2Vec2BertConfig
    from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

    config = Wav2Vec2BertConfig(
        hidden_size=case.heads * case.dim,
        num_attention_heads=case.heads,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=case.left,
        right_max_position_embeddings=case.right,
        attention_dropout=0.0,
        attn_implementation="sdpa",  # what a model of this kind takes by itself
    )
    return bare(
        Wav2Vec2BertSelfAttention(config),
        case,
        ("linear_q", "linear_k", "linear_v", "linear_out"),
        {"distance_embedding.weight": (case.left + case.right + 1, case.dim)},
        attention_mask=case.causal_mask(),
    )


def vits(case: Case) -> Attend:
    from transformers import VitsConfig
    from transformers.models.vits.modeling_vits import VitsAttention

    config = VitsConfig(
        hidden_size=case.heads * case.dim,
        num_attention_heads=case.heads,
        window_size=case.left,
        attention_dropout=0.0,
    )
    table = (1, 2 * case.left + 1, case.dim)
    return bare(
        VitsAttention(config),
        case,
        ("q_proj", "k_proj", "v_proj", "out_proj"),
        {"emb_rel_k": table, "emb_rel_v": table},
        attention_mask=case.causal_bias(),
    )


def one_table(rel_key: Tensor, rel_value: None, **call: Any) -> Any:
    return relative_attention(rel_key=rel_key, rel_value=rel_key, **call)


def one_table_unscaled(rel_key: Tensor, rel_value: None, **call: Any) -> Any:
    return relative_attention(rel_key=rel_key * rel_key.shape[-1] ** 0.5, rel_value=rel_key, **call)


def zero_beyond(**call: Any) -> Any:
    return relative_attention(beyond="zero", **call)


PEERS = {
    "OpenNMT-py": Peer(
        package="OpenNMT-py",
        module="onmt.modules.multi_headed_attn",
        computes="one table for keys and values",
        tables=1,
        products=2,
        make=opennmt_py,
        same=one_table,
        lopsided=False,
        vectors="pairs",
        gathers=(1, 3),
        scores=(3, 3),
    ),
    "eole": Peer(
        package="eole",
        module="eole.modules.multi_headed_attn",
        computes="one table for keys and values, q · aK not scaled",
        tables=1,
        products=2,
        make=eole,
        same=one_table_unscaled,
        lopsided=False,
        vectors="pairs",
        gathers=(1, 3),
        scores=(3, 3),
    ),
    "W2V-BERT": Peer(
        package="transformers",
        module="transformers.models.wav2vec2_bert.modeling_wav2vec2_bert",
        computes="keys only",
        tables=1,
        products=1,
        make=w2v_bert,
        same=relative_attention,
        lopsided=True,
        vectors="pairs",
        gathers=(1, 2),
        scores=(2, 3),
    ),
    "VITS": Peer(
        package="transformers",
        module="transformers.models.vits.modeling_vits",
        computes="both tables, no term beyond the clipping range",
        tables=2,
        products=2,
        make=vits,
        same=zero_beyond,
        lopsided=False,
        vectors="diagonals",
        gathers=(0, 0),
        scores=(9, 9),
    ),
}


def installed(name: str) -> bool:
    try:
        metadata.version(PEERS[name].package)
    except metadata.PackageNotFoundError:
        return False
    return True


def version(name: str) -> str:
    package = PEERS[name].package
    return f"{package} {metadata.version(package)}"


def load(name: str, case: Case) -> Attend:
    """A peer's attention for a case. What its import warns of (kernels for devices we lack) is kept quiet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PEERS[name].make(case)


def compare(name: str, n: int, is_causal: bool) -> dict[str, tuple[float, float]]:
    """How far a peer's output and gradients are from ours, and how far rounding may take them."""
    peer = PEERS[name]
    left, right = 5, 3 if peer.lopsided else 5
    shape = Shape(batch=2, heads=3, key_heads=3, queries=n, keys=n, dim=8, value_dim=8, left=left, right=right)
    inputs = make_inputs(shape, tables="both" if peer.tables == 2 else "keys", dtype=torch.float32)
    options: dict[str, Any] = {"clip": (left, right), "is_causal": is_causal}
    ours = outputs_and_gradients(peer.same, inputs, **options)
    _, allowed = budgets(peer.same, inputs, **options)
    attend = load(name, Case(batch=2, heads=3, n=n, dim=8, left=left, right=right, is_causal=is_causal))

    def operator(return_lse: bool, **given: Tensor | None) -> tuple[Tensor, Tensor]:
        return attend(*(x for x in given.values() if x is not None)), ours["lse"]  # which a peer does not give

    got = outputs_and_gradients(operator, inputs)
    return {result: (error(x, ours[result]), allowed[result]) for result, x in got.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PEERS), metavar="PEER", help=", ".join(PEERS))
    arguments = parser.parse_args()
    missing = [name for name in arguments.names if name not in PEERS or not installed(name)]
    if missing:
        parser.error(f"not known or not installed: {', '.join(missing)}; benchmarks/peers.py says how to install")

    print(
        "largest difference from relative_attention, as a share of four times what float32 costs the reference backend"
    )
    agree = True
    for name in arguments.names:
        print(f"\n{name} ({version(name)}): {PEERS[name].computes}")
        for is_causal in (False, True):
            for n in (1, 4, 29):  # alone, within the clipping range, past it
                found = compare(name, n, is_causal)
                result, (off, allowed) = max(found.items(), key=lambda item: item[1][0] / item[1][1])
                agree = agree and off <= allowed
                verdict = "same" if off <= allowed else "DIFFERENT"
                causal = "causal" if is_causal else "full"
                print(f"  n = {n:<3} {causal:<7} {off / allowed:>9.2f} ({off:.1e}, {result})  {verdict}")
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
