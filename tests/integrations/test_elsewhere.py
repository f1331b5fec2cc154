"""Tests of the functions for other packages in docs/models.md.

ESPnet's function is compared with the class of ESPnet. For the others, modules with the names that the page uses get
the weights of classes that transformers has of the same models.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import ParakeetEncoderConfig, SeamlessM4Tv2Config, VitsConfig
from transformers.models.parakeet import modeling_parakeet as parakeet
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import SeamlessM4Tv2ConformerSelfAttention
from transformers.models.vits.modeling_vits import VitsAttention

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8").partition("## Elsewhere")[2]
N, DIM, HEADS = 14, 24, 3
LENGTHS = torch.tensor([N, 9])
VALID = torch.arange(N) < LENGTHS[:, None]
MASK = VALID[:, None, None].expand(2, 1, N, N)


@pytest.fixture(scope="module")
def page() -> SimpleNamespace:
    namespace: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(code, namespace)
    return SimpleNamespace(**namespace)


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, N, DIM)


def close(ours: Tensor, own: Tensor) -> None:
    torch.testing.assert_close(ours, own, rtol=0, atol=2e-6)


def split(x: Tensor, *projections: nn.Module) -> list[Tensor]:
    return [projection(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for projection in projections]


@pytest.mark.filterwarnings("ignore")
def test_espnet(page, x):
    from espnet.nets.pytorch_backend.transformer.attention import RelPositionMultiHeadedAttention

    own, positions = RelPositionMultiHeadedAttention(HEADS, DIM, 0.0).eval(), torch.randn(1, 2 * N - 1, DIM)
    plain, masked = (own(x, x, x, positions, mask) for mask in (None, VALID[:, None]))
    close(page.espnet(own, x, positions), plain)
    close(page.espnet(own, x, positions, LENGTHS), masked)
    assert float((masked - plain).abs().max()) > 1e-3


def test_nemo(page, x):
    sizes = {"hidden_size": DIM, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    config = ParakeetEncoderConfig(**sizes, attn_implementation="eager")
    own = parakeet.ParakeetEncoderAttention(config, 0).eval()
    nn.init.normal_(own.bias_u)
    nn.init.normal_(own.bias_v)
    theirs = SimpleNamespace(
        forward_qkv=lambda x, *_: split(x, own.q_proj, own.k_proj, own.v_proj), linear_pos=own.relative_k_proj,
        pos_bias_u=own.bias_u, pos_bias_v=own.bias_v, h=HEADS, linear_out=own.o_proj, dropout=nn.Dropout(0.0),
        training=False,
    )  # fmt: skip
    positions = parakeet.ParakeetEncoderRelPositionalEncoding(config)(x)
    mask = (VALID[:, None] & VALID[:, :, None])[:, None]
    close(page.espnet(theirs, x, positions[:1]), own(x, positions)[0])
    close(page.espnet(theirs, x, positions[:1], LENGTHS)[VALID], own(x, positions, mask)[0][VALID])


def test_fairseq2(page, x):
    config = SeamlessM4Tv2Config(
        hidden_size=DIM, speech_encoder_attention_heads=HEADS, attn_implementation="sdpa",
        left_max_position_embeddings=5, right_max_position_embeddings=2,
    )  # fmt: skip
    own, table = SeamlessM4Tv2ConformerSelfAttention(config).eval(), nn.Embedding(8, DIM // HEADS)
    theirs = SimpleNamespace(
        rel_k_embed=own.distance_embedding, rel_v_embed=None, max_left_rel_pos=5, max_right_rel_pos=2
    )
    query, key, value = split(x, own.linear_q, own.linear_k, own.linear_v)
    for lengths, mask in ((None, None), (LENGTHS, MASK)):
        out = page.fairseq2(theirs, query, key, value, lengths)
        close(own.linear_out(out.transpose(1, 2).flatten(2)), own(x, mask)[0])
    theirs.rel_v_embed = table
    distance = (torch.arange(N) - torch.arange(N)[:, None]).clamp(-5, 2) + 5
    scores = query @ key.mT + torch.einsum("nhsk,stk->nhst", query, own.distance_embedding(distance))
    weights = (scores * (DIM // HEADS) ** -0.5).softmax(-1)
    want = weights @ value + torch.einsum("nhst,stk->nhsk", weights, table(distance))
    close(page.fairseq2(theirs, query, key, value), want)


def test_rvc(page, x):
    own = VitsAttention(VitsConfig(hidden_size=DIM, num_attention_heads=HEADS, window_size=4)).eval()

    def convolution(linear: nn.Linear) -> nn.Conv1d:
        layer = nn.Conv1d(DIM, DIM, 1)
        layer.load_state_dict({"weight": linear.weight[..., None], "bias": linear.bias})
        return layer

    names = {"conv_q": own.q_proj, "conv_k": own.k_proj, "conv_v": own.v_proj, "conv_o": own.out_proj}
    theirs = SimpleNamespace(
        **{name: convolution(linear) for name, linear in names.items()}, emb_rel_k=own.emb_rel_k,
        emb_rel_v=own.emb_rel_v, n_heads=HEADS, drop=nn.Dropout(0.1), training=False,
    )  # fmt: skip
    mask = torch.where(MASK, 0.0, torch.finfo(torch.float32).min)
    close(page.rvc(theirs, x.mT).mT, own(x)[0])
    close(page.rvc(theirs, x.mT, LENGTHS).mT, own(x, attention_mask=mask)[0])
