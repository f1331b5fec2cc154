"""Attention with relative positions of other libraries, imported from their packages and compared with ours.

They need a separate environment, since OpenNMT-py requires torch < 2.3 and eole another SentencePiece than ours.
`peers.txt` has their versions and those of what they import:

    python3 -m venv .cache/peers
    .cache/peers/bin/pip install --constraint constraints.txt --editable ./library --editable './toolkit[train]'
    .cache/peers/bin/pip install --no-deps --requirement benchmarks/peers.txt
    .cache/peers/bin/python -m benchmarks.peers

The last command compares the outputs and gradients of each with `relative_attention`, causal and not. It prints the
largest differences. The exit code is 1 if a difference is more than rounding. Projections are removed, so that only
attention is compared and timed.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from itertools import product
from typing import Any

import torch
from relattn import relative_attention
from relattn.functional import Options
from torch import Tensor, nn

from benchmarks.measure import command
from tests.support.numerics import Shape, budgets, error, make_inputs, outputs_and_gradients

Attend = Callable[..., Tensor]  # (query, key, value, table or tables) -> output, each (batch, heads, n, dim)


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
class Peer:
    """Attention of another library.

    Attributes:
        package: Name on PyPI.
        module: Module that `make` imports.
        computes: Description of its relative terms.
        tables: Number of tables; 1 if keys and values share a table, or values have none.
        make: Function from a case to its attention.
        same: `relative_attention` with arguments that compute the same.
        asymmetric: Whether the clipping distances of both sides may differ.
    """

    package: str
    module: str
    computes: str
    tables: int
    make: Callable[[Case], Attend]
    same: Callable[..., Any]
    asymmetric: bool = False


class Projection(nn.Module):
    """Replacement of a projection that returns prepared queries, keys or values."""

    def __init__(self, copy: bool = False) -> None:
        super().__init__()
        self.copy = copy
        self.projected = torch.empty(0)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.projected.clone() if self.copy else self.projected


def bare(
    module: nn.Module,
    case: Case,
    tables: dict[str, tuple[int, ...]],
    projections: Sequence[str] = ("linear_query", "linear_keys", "linear_values", "final_linear"),
    hidden: int = 1,
    overwrites_query: bool = False,
    **options: object,
) -> Attend:
    """Return a module of another library as a function of queries, keys, values and tables, without projections.

    Args:
        module: Attention module. It is changed.
        case: Sizes.
        tables: Names of the parameters that hold the tables, with their shapes.
        projections: Names of the submodules that project queries, keys, values and the output.
        hidden: Number of times the module takes the hidden states as an argument.
        overwrites_query: Whether the module changes the projected queries in place.
        options: Other arguments of a call.
    """
    inputs = [Projection(copy=overwrites_query), Projection(), Projection()]
    for name, replacement in zip(projections, [*inputs, nn.Identity()], strict=True):
        setattr(module, name, replacement)
    module.eval()

    def attend(query: Tensor, key: Tensor, value: Tensor, *rows: Tensor) -> Tensor:
        for replacement, heads in zip(inputs, (query, key, value), strict=True):
            replacement.projected = heads.transpose(1, 2).flatten(2)  # (batch, n, heads · dim)
        parameters = {name: table.view(shape) for (name, shape), table in zip(tables.items(), rows, strict=True)}
        output = torch.func.functional_call(module, parameters, (inputs[0].projected,) * hidden, options)[0]
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
        attn_implementation="sdpa",  # the default of these models
    )
    return bare(
        Wav2Vec2BertSelfAttention(config),
        case,
        {"distance_embedding.weight": (case.left + case.right + 1, case.dim)},
        ("linear_q", "linear_k", "linear_v", "linear_out"),
        attention_mask=case.causal_mask(),
    )


def vits(case: Case) -> Attend:
    from transformers import VitsConfig
    from transformers.models.vits.modeling_vits import VitsAttention

    config = VitsConfig(
        hidden_size=case.heads * case.dim, num_attention_heads=case.heads, window_size=case.left, attention_dropout=0.0
    )
    table = (1, 2 * case.left + 1, case.dim)
    return bare(
        VitsAttention(config),
        case,
        {"emb_rel_k": table, "emb_rel_v": table},
        ("q_proj", "k_proj", "v_proj", "out_proj"),
        attention_mask=case.causal_bias(),
    )


def one_table(rel_key: Tensor, rel_value: None, factor: float = 1.0, **call: Any) -> Any:
    return relative_attention(rel_key=factor * rel_key, rel_value=rel_key, **call)


OPENNMT_PY = Peer(
    package="OpenNMT-py",
    module="onmt.modules.multi_headed_attn",
    computes="one table for keys and values",
    tables=1,
    make=opennmt_py,
    same=one_table,
)
EOLE = replace(
    OPENNMT_PY,
    package="eole",
    module="eole.modules.multi_headed_attn",
    computes="one table for keys and values, q · aK not scaled",
    make=eole,
    same=lambda rel_key, **call: one_table(rel_key, factor=rel_key.shape[-1] ** 0.5, **call),
)
W2V_BERT = Peer(
    package="transformers",
    module="transformers.models.wav2vec2_bert.modeling_wav2vec2_bert",
    computes="keys only",
    tables=1,
    make=w2v_bert,
    same=relative_attention,
    asymmetric=True,
)
VITS = Peer(
    package="transformers",
    module="transformers.models.vits.modeling_vits",
    computes="both tables, no term beyond the clipping range",
    tables=2,
    make=vits,
    same=partial(relative_attention, beyond="zero"),
)
PEERS = {"OpenNMT-py": OPENNMT_PY, "eole": EOLE, "W2V-BERT": W2V_BERT, "VITS": VITS}


def installed(name: str) -> bool:
    try:
        return bool(version(name))
    except metadata.PackageNotFoundError:
        return False


def version(name: str) -> str:
    """Return the package of another library's attention with its version."""
    package = PEERS[name].package
    return f"{package} {metadata.version(package)}"


def load(name: str, case: Case) -> Attend:
    """Return another library's attention for a case, without the warnings of its import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PEERS[name].make(case)


def compare(name: str, n: int, is_causal: bool) -> list[tuple[float, float, str]]:
    """Return the difference from ours, the largest allowed difference, and the name, of each output and gradient."""
    peer = PEERS[name]
    left, right = 5, 3 if peer.asymmetric else 5
    shape = Shape(batch=2, heads=3, key_heads=3, queries=n, keys=n, dim=8, value_dim=8, left=left, right=right)
    inputs = make_inputs(shape, tables="both" if peer.tables == 2 else "keys", dtype=torch.float32)
    options: dict[str, Any] = {"clip": (left, right), "is_causal": is_causal}
    ours = outputs_and_gradients(peer.same, inputs, **options)
    _, allowed = budgets(peer.same, inputs, **options)
    attend = load(name, Case(batch=2, heads=3, n=n, dim=8, left=left, right=right, is_causal=is_causal))

    def operator(return_lse: bool, **given: Tensor | None) -> tuple[Tensor, Tensor]:
        return attend(*(x for x in given.values() if x is not None)), ours["lse"]  # others have no log-sum-exp

    got = outputs_and_gradients(operator, inputs)
    return [(error(x, ours[result]), allowed[result], result) for result, x in got.items()]


def main() -> None:
    parser = command("peers", __doc__)
    parser.add_argument("names", nargs="*", default=list(PEERS), metavar="PEER", help=", ".join(PEERS))
    arguments = parser.parse_args()
    missing = [name for name in arguments.names if name not in PEERS or not installed(name)]
    if missing:
        parser.error(f"PEER must be known and installed, got {', '.join(missing)}; see --help")
    print("largest difference from relative_attention, divided by four times the reference's rounding error")
    agree = True
    for name in arguments.names:
        print(f"\n{name} ({version(name)}): {PEERS[name].computes}")
        for is_causal, n in product((False, True), (1, 4, 29)):  # one position, within and beyond the clipping range
            off, allowed, result = max(compare(name, n, is_causal), key=lambda each: each[0] / each[1])
            agree = agree and off <= allowed
            verdict = "same" if off <= allowed else "DIFFERENT"
            print(f"  n = {n:<3} causal {is_causal!s:<6} {off / allowed:>9.2f} ({off:.1e}, {result})  {verdict}")
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
