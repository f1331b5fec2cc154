"""Tests of examples/other_packages.py.

ESPnet's function is compared with the class of ESPnet. For the others, modules with the names that they use get
the weights of classes that transformers has of the same models, or the bias that they describe.
`tests/system/test_packages.py` compares with the classes of the other packages.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers import ParakeetEncoderConfig, SeamlessM4Tv2Config, VitsConfig
from transformers.models.parakeet import modeling_parakeet as parakeet
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import SeamlessM4Tv2ConformerSelfAttention
from transformers.models.vits.modeling_vits import VitsAttention

from examples import other_packages

N, DIM, HEADS = 14, 24, 3
LENGTHS = torch.tensor([N, 9])
VALID = torch.arange(N) < LENGTHS[:, None]
MASK = VALID[:, None, None].expand(2, 1, N, N)


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, N, DIM)


def close(ours: Tensor, own: Tensor) -> None:
    torch.testing.assert_close(ours, own, rtol=0, atol=2e-6)


def split(x: Tensor, *projections: nn.Module) -> list[Tensor]:
    return [projection(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for projection in projections]


@pytest.mark.filterwarnings("ignore")
def test_espnet(x):
    from espnet.nets.pytorch_backend.transformer.attention import RelPositionMultiHeadedAttention

    own, positions = RelPositionMultiHeadedAttention(HEADS, DIM, 0.0).eval(), torch.randn(1, 2 * N - 1, DIM)
    plain, masked = (own(x, x, x, positions, mask) for mask in (None, VALID[:, None]))
    close(other_packages.espnet(own, x, positions), plain)
    close(other_packages.espnet(own, x, positions, LENGTHS), masked)
    assert float((masked - plain).abs().max()) > 1e-3


@pytest.fixture
def nemo() -> parakeet.ParakeetEncoderAttention:
    sizes = {"hidden_size": DIM, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    own = parakeet.ParakeetEncoderAttention(ParakeetEncoderConfig(**sizes, attn_implementation="eager"), 0).eval()
    nn.init.normal_(own.bias_u)
    nn.init.normal_(own.bias_v)
    return own


def test_speechbrain(x, nemo):
    """Its projection is one, a head after another, and its vectors have the shape (head_dim, heads)."""
    projections = (nemo.q_proj, nemo.k_proj, nemo.v_proj)
    for projection in projections:
        projection.bias = None
    by_head = [projection.weight.unflatten(0, (HEADS, -1)) for projection in projections]
    vectors = [vector.view(HEADS, -1).reshape(-1, HEADS) for vector in (nemo.bias_u, nemo.bias_v)]
    theirs = SimpleNamespace(
        in_proj_weight=torch.cat(by_head, dim=1).flatten(0, 1), linear_pos=nemo.relative_k_proj, num_heads=HEADS,
        pos_bias_u=vectors[0], pos_bias_v=vectors[1], vbias=None, scale=0.11, dropout=0.1, out_proj=nemo.o_proj,
        training=False,
    )  # fmt: skip
    nemo.scaling = theirs.scale
    positions = parakeet.ParakeetEncoderRelPositionalEncoding(nemo.config)(x)
    close(other_packages.speechbrain(theirs, x, positions[:1]), nemo(x, positions)[0])
    nemo.v_proj.bias = nn.Parameter(torch.randn(DIM))
    theirs.vbias, theirs.value_bias_weight = True, nemo.v_proj.bias
    mask = (VALID[:, None] & VALID[:, :, None])[:, None]
    close(other_packages.speechbrain(theirs, x, positions[:1], LENGTHS)[VALID], nemo(x, positions, mask)[0][VALID])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("max_distance", [None, 4, 40])
def test_x_transformers(is_causal, max_distance):
    inputs = torch.randn(3, 2, HEADS, N, DIM // HEADS, dtype=torch.float64, requires_grad=True)
    query, key, value = inputs
    table = torch.randn(HEADS, 4 * N - 1, dtype=torch.float64)

    class Bias(SimpleNamespace):
        @torch.inference_mode()  # as the bias that ALiBi's module keeps from a validation
        def __call__(self, i: int, j: int) -> Tensor:
            """Return the bias of the last i of j queries, (heads, i, j), constant from `max_distance` on."""
            distance = torch.arange(j) - torch.arange(j - i, j)[:, None]
            furthest = 2 * N - 1 if max_distance is None else max_distance
            return table[:, distance.clamp(-furthest, furthest) + 2 * N - 1]

    rel_pos = Bias() if max_distance is None else Bias(max_distance=max_distance)
    seen = torch.ones(N, N).tril().bool() if is_causal else torch.ones(N, N).bool()
    for lengths, keys in ((None, torch.ones(2, 1, 1, N).bool()), (LENGTHS, VALID[:, None, None])):
        scores = query @ key.mT * (DIM // HEADS) ** -0.5 + rel_pos(N, N)
        want = scores.masked_fill(~(seen & keys), -torch.inf).softmax(-1) @ value
        got = other_packages.x_transformers(rel_pos, query, key, value, lengths, is_causal=is_causal)
        close(got, want)
        close(*(torch.autograd.grad(out.square().sum(), inputs, retain_graph=True)[0] for out in (got, want)))


def test_fairseq2(x):
    config = SeamlessM4Tv2Config(
        hidden_size=DIM, speech_encoder_attention_heads=HEADS, attn_implementation="sdpa",
        left_max_position_embeddings=5, right_max_position_embeddings=2,
    )  # fmt: skip
    own, table = SeamlessM4Tv2ConformerSelfAttention(config).eval(), nn.Embedding(8, DIM // HEADS)
    theirs = SimpleNamespace(rel_k_embed=own.distance_embedding, max_left_rel_pos=5, max_right_rel_pos=2)
    query, key, value = split(x, own.linear_q, own.linear_k, own.linear_v)
    for names, lengths, mask in (({}, None, None), ({"rel_v_embed": None}, LENGTHS, MASK)):  # WeNet, fairseq2
        vars(theirs).update(names)
        out = other_packages.fairseq2(theirs, query, key, value, lengths)
        close(own.linear_out(out.transpose(1, 2).flatten(2)), own(x, mask)[0])
    theirs.rel_v_embed = table
    distance = (torch.arange(N) - torch.arange(N)[:, None]).clamp(-5, 2) + 5
    scores = query @ key.mT + torch.einsum("nhsk,stk->nhst", query, own.distance_embedding(distance))
    weights = (scores * (DIM // HEADS) ** -0.5).softmax(-1)
    want = weights @ value + torch.einsum("nhst,stk->nhsk", weights, table(distance))
    close(other_packages.fairseq2(theirs, query, key, value), want)


def test_rvc(x):
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
    close(other_packages.rvc(theirs, x.mT).mT, own(x)[0])
    close(other_packages.rvc(theirs, x.mT, LENGTHS).mT, own(x, attention_mask=mask)[0])
