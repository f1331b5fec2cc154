"""Tests of the functions for other packages in docs/models.md, against ESPnet's class and transformers' classes."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import ParakeetEncoderConfig, SeamlessM4Tv2Config, VitsConfig
from transformers.models.parakeet.modeling_parakeet import (
    ParakeetEncoderAttention,
    ParakeetEncoderRelPositionalEncoding,
)
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import SeamlessM4Tv2ConformerSelfAttention
from transformers.models.vits.modeling_vits import VitsAttention

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8").partition("## Elsewhere")[2]
N, DIM, HEADS = 14, 24, 3
LENGTHS = torch.tensor([N, 9])


@pytest.fixture(scope="module")
def page() -> SimpleNamespace:
    namespace: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(code, namespace)
    return SimpleNamespace(**namespace)


def sequences() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(2, N, DIM), torch.arange(N) < LENGTHS[:, None]


def require_same(ours: Tensor, own: Tensor) -> None:
    torch.testing.assert_close(ours, own, rtol=0, atol=2e-6)


@pytest.mark.filterwarnings("ignore")
def test_espnet(page, capsys):
    from espnet.nets.pytorch_backend.transformer.attention import RelPositionMultiHeadedAttention

    x, valid = sequences()
    own, positions = RelPositionMultiHeadedAttention(HEADS, DIM, 0.0).eval(), torch.randn(1, 2 * N - 1, DIM)
    require_same(page.espnet(own, x, positions), own(x, x, x, positions, None))
    masked = own(x, x, x, positions, valid[:, None])
    require_same(page.espnet(own, x, positions, LENGTHS), masked)
    assert float((masked - own(x, x, x, positions, None)).abs().max()) > 1e-3


def test_nemo(page):
    config = ParakeetEncoderConfig(
        hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=HEADS, attn_implementation="eager"
    )
    own, (x, valid) = ParakeetEncoderAttention(config, 0).eval(), sequences()
    nn.init.normal_(own.bias_u)
    nn.init.normal_(own.bias_v)

    def forward_qkv(*states: Tensor) -> list[Tensor]:
        projections = own.q_proj, own.k_proj, own.v_proj
        return [
            layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer, x in zip(projections, states, strict=True)
        ]

    theirs = SimpleNamespace(
        forward_qkv=forward_qkv, linear_pos=own.relative_k_proj, pos_bias_u=own.bias_u, pos_bias_v=own.bias_v, h=HEADS,
        linear_out=own.o_proj, dropout=nn.Dropout(0.0), training=False,
    )  # fmt: skip
    positions = ParakeetEncoderRelPositionalEncoding(config)(x)
    mask = (valid[:, None] & valid[:, :, None])[:, None]
    require_same(page.espnet(theirs, x, positions[:1]), own(x, positions)[0])
    require_same(page.espnet(theirs, x, positions[:1], LENGTHS)[valid], own(x, positions, mask)[0][valid])


@pytest.mark.parametrize("values", [False, True])
def test_fairseq2(page, values):
    config = SeamlessM4Tv2Config(hidden_size=DIM, speech_encoder_attention_heads=HEADS, attn_implementation="sdpa",
                                 left_max_position_embeddings=5, right_max_position_embeddings=2)  # fmt: skip
    own, (x, valid) = SeamlessM4Tv2ConformerSelfAttention(config).eval(), sequences()
    table = nn.Embedding(8, DIM // HEADS)
    theirs = SimpleNamespace(
        rel_k_embed=own.distance_embedding, rel_v_embed=table if values else None, max_left_rel_pos=5,
        max_right_rel_pos=2,
    )  # fmt: skip
    seqs = [
        projection(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for projection in (own.linear_q, own.linear_k, own.linear_v)
    ]
    if not values:
        for lengths, mask in ((None, None), (LENGTHS, valid[:, None, None].expand(2, 1, N, N))):
            out = page.fairseq2(theirs, *seqs, lengths)
            require_same(own.linear_out(out.transpose(1, 2).flatten(2)), own(x, mask)[0])
        return
    distance = (torch.arange(N) - torch.arange(N)[:, None]).clamp(-5, 2) + 5
    query, key, value = seqs
    scores = query @ key.mT + torch.einsum("nhsk,stk->nhst", query, own.distance_embedding(distance))
    weights = (scores * (DIM // HEADS) ** -0.5).softmax(-1)
    require_same(
        page.fairseq2(theirs, *seqs), weights @ value + torch.einsum("nhst,stk->nhsk", weights, table(distance))
    )


def test_rvc(page):
    own = VitsAttention(VitsConfig(hidden_size=DIM, num_attention_heads=HEADS, window_size=4)).eval()
    x, valid = sequences()

    def convolution(linear: nn.Linear) -> nn.Conv1d:
        layer = nn.Conv1d(DIM, DIM, 1)
        layer.load_state_dict({"weight": linear.weight[..., None], "bias": linear.bias})
        return layer

    theirs = SimpleNamespace(
        conv_q=convolution(own.q_proj), conv_k=convolution(own.k_proj), conv_v=convolution(own.v_proj),
        conv_o=convolution(own.out_proj), emb_rel_k=own.emb_rel_k, emb_rel_v=own.emb_rel_v, n_heads=HEADS,
        drop=nn.Dropout(0.1), training=False,
    )  # fmt: skip
    mask = torch.where(valid[:, None, None].expand(2, 1, N, N), 0.0, torch.finfo(torch.float32).min)
    require_same(page.rvc(theirs, x.mT).mT, own(x)[0])
    require_same(page.rvc(theirs, x.mT, LENGTHS).mT, own(x, attention_mask=mask)[0])
