"""Attention classes of other packages, unmodified, and our calls: examples/other_packages.py and docs/family.md.

They need a separate environment. `packages.txt` has their versions and those of what they import:

    python3 -m venv .cache/packages
    .cache/packages/bin/pip install --constraint constraints.txt --editable ./library --editable './toolkit[train]'
    .cache/packages/bin/pip install --no-deps --requirement benchmarks/packages.txt
    .cache/packages/bin/python -m benchmarks.packages

Prints the largest difference of the outputs, and of the gradients of inputs and parameters, relative to the largest
number compared, over lengths and padding. The exit code is 1 if a difference is larger than `TOLERANCE`. With
`--time`, prints our time over theirs instead: medians of alternating runs on one thread, projections included.
"""

import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from itertools import product
from pathlib import Path
from types import CodeType
from typing import Any
from unittest.mock import MagicMock

import torch
from relattn import relative_attention
from torch import Tensor, nn

from benchmarks.measure import alternate, command

other_packages: Any = import_module("examples.other_packages")
DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "family.md").read_text(encoding="utf-8")
TOLERANCE = 1e-5
# Imported by the packages, and not used by their attention.
UNUSED = (
    "scipy", "scipy.stats", "soundfile", "torchaudio", "torchaudio.functional", "torchvision", "torchvision.ops",
    "torchvision.ops.boxes", "torchvision.transforms", "torchvision.transforms.functional",
)  # fmt: skip
Attend = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Size:
    """A batch of sequences of length n, the second one padded after `valid` positions; or of n × `valid` images."""

    n: int
    valid: int
    heads: int = 3
    head_dim: int = 8
    batch: int = 2

    @property
    def dim(self) -> int:
        return self.heads * self.head_dim

    @property
    def lengths(self) -> Tensor | None:
        return None if self.valid == self.n else torch.tensor([self.n, self.valid])

    @property
    def mask(self) -> Tensor:
        """Return which positions are valid: (batch, n)."""
        ends = torch.full((self.batch,), self.n) if self.lengths is None else self.lengths
        return torch.arange(self.n) < ends[:, None]


Pair = tuple[nn.Module, Attend, Attend]  # modules with the parameters, our attention, their attention


def blocks(section: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@cache
def scheme(heading: str) -> CodeType:
    """Return the code below the heading of a scheme on the page."""
    (text,) = blocks(re.split(r"\n##", PAGE.partition(f"\n### {heading}\n")[2])[0])
    return compile(text, heading, "exec")


def run(heading: str, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any], **names: Any) -> Tensor:
    """Run the code of a scheme with other options of the call."""
    names |= {"torch": torch, "query": query, "key": key, "value": value, "scale": query.shape[-1] ** -0.5}
    names["relative_attention"] = partial(relative_attention, **options)
    exec(scheme(heading), names)
    out: Tensor = names["out"]
    return out


def joined(x: Tensor) -> Tensor:
    """Reshape (batch, heads, n, head_dim) to (batch, n, dim)."""
    return x.transpose(1, 2).flatten(2)


def positions(size: Size) -> Tensor:
    return torch.randn(1, 2 * size.n - 1, size.dim)


def espnet_or_funasr(size: Size, module: str) -> Pair:
    own = import_module(module).RelPositionMultiHeadedAttention(size.heads, size.dim, 0.0)
    pos_emb, mask = positions(size), None if size.lengths is None else size.mask[:, None]
    return own, lambda x: other_packages.espnet(own, x, pos_emb, size.lengths), lambda x: own(x, x, x, pos_emb, mask)


def funasr_chunks(size: Size) -> Pair:
    from funasr.models.transformer.attention import RelPositionMultiHeadedAttentionChunk
    from funasr.models.transformer.utils.nets_utils import make_chunk_mask

    own, pos_emb, chunk = RelPositionMultiHeadedAttentionChunk(size.heads, size.dim), positions(size), (4, 2)
    chunk_mask, options = make_chunk_mask(size.n, *chunk), {"chunk": chunk, "key_lengths": size.lengths}

    def ours(x: Tensor) -> Tensor:
        names = {"R": own.linear_pos(pos_emb[0]), "u": own.pos_bias_u, "v": own.pos_bias_v}
        names |= {"heads": size.heads, "head_dim": size.head_dim}
        query, key, value = own.forward_qkv(x, x, x)
        out = joined(run("Transformer-XL", query, key, value, options, **names))
        return own.linear_out(out)  # type: ignore[no-any-return]

    return own, ours, lambda x: own(x, x, x, pos_emb, ~size.mask, chunk_mask)


def speechbrain(size: Size, vbias: bool) -> Pair:
    from speechbrain.nnet.attention import RelPosMHAXL

    own, pos_embs = RelPosMHAXL(size.dim, size.heads, vbias=vbias), positions(size)
    options = {"key_padding_mask": None if size.lengths is None else ~size.mask, "return_attn_weights": False}
    theirs = partial(own, pos_embs=pos_embs, **options)
    return own, lambda x: other_packages.speechbrain(own, x, pos_embs, size.lengths), lambda x: theirs(x, x, x)


def x_transformers(size: Size, bias: str, is_causal: bool, flash: bool) -> Pair:
    import x_transformers.x_transformers as package

    own = package.Attention(
        size.dim, dim_head=size.head_dim, heads=size.heads, causal=is_causal, flash=flash,
        use_rel_proj_pos_bias=bias == "projected", rel_proj_max_dist=max(4, size.n // 2),
    )  # fmt: skip
    rel_pos, mask = None, None if size.lengths is None else size.mask
    if bias == "T5":
        rel_pos = package.RelativePositionBias(size.head_dim**0.5, is_causal, heads=size.heads)
    elif bias == "ALiBi":
        rel_pos = package.AlibiPositionalBias(size.heads)
    elif bias == "dynamic":
        rel_pos = package.DynamicPositionBias(size.dim, heads=size.heads, depth=2)

    def ours(x: Tensor) -> Tensor:
        inputs = own.split_q_heads(own.to_q(x)), own.split_k_heads(own.to_k(x)), own.split_v_heads(own.to_v(x))
        if rel_pos is None:
            rel_query = own.rel_proj_pos_bias.to_distance_weights(x) / own.scale
            rel_key = own.rel_proj_pos_bias.distance_bank.T.flip(0)
            out = relative_attention(
                *inputs, rel_key, rel_query=rel_query, clip=(rel_key.shape[0] - 1, 0), beyond="zero",
                is_causal=is_causal, key_lengths=size.lengths,
            )  # fmt: skip
        else:
            out = other_packages.x_transformers(rel_pos, *inputs, size.lengths, is_causal)
        return own.to_out(own.merge_heads(out))  # type: ignore[no-any-return]

    modules = nn.ModuleList([own] if rel_pos is None else [own, rel_pos])
    return modules, ours, lambda x: own(x, mask=mask, rel_pos=rel_pos)


def segment_anything(size: Size) -> Pair:
    from segment_anything.modeling.image_encoder import Attention

    h, w = size.n, size.valid
    own = Attention(size.dim, size.heads, use_rel_pos=True, input_size=(h, w))

    def ours(x: Tensor) -> Tensor:
        query, key, value = own.qkv(x.flatten(1, 2)).unflatten(-1, (3, size.heads, -1)).permute(2, 0, 3, 1, 4)
        out = run("SAM", query, key, value, {}, h=h, w=w, rel_pos_h=own.rel_pos_h, rel_pos_w=own.rel_pos_w)
        return own.proj(joined(out)).unflatten(1, (h, w))  # type: ignore[no-any-return]

    return own, ours, own


CLASSES: dict[str, Callable[[Size], Pair]] = {
    "ESPnet": partial(espnet_or_funasr, module="espnet.nets.pytorch_backend.transformer.attention"),
    "FunASR": partial(espnet_or_funasr, module="funasr.models.transformer.attention"),
    "FunASR, chunks": funasr_chunks,
    "SpeechBrain": partial(speechbrain, vbias=False),
    "SpeechBrain, vbias": partial(speechbrain, vbias=True),
    "segment-anything": segment_anything,
    **{
        f"x-transformers, {bias}{', causal' * is_causal}{', flash' * flash}": partial(
            x_transformers, bias=bias, is_causal=is_causal, flash=flash
        )
        for bias, is_causal, flash in product(("T5", "ALiBi", "dynamic", "projected"), (False, True), (False, True))
    },
}


def random_parameters(modules: nn.Module) -> dict[str, Tensor]:
    parameters: dict[str, Tensor] = dict(modules.named_parameters())
    for parameter in parameters.values():
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3)
    return parameters


def inputs(name: str, size: Size) -> Tensor:
    shape = (size.n, size.valid) if name == "segment-anything" else (size.n,)
    return torch.randn(size.batch, *shape, size.dim, requires_grad=True)


def difference(name: str, size: Size) -> float:
    """Return the largest difference of the valid outputs, or of the gradients, relative to their largest number."""
    modules, *both = CLASSES[name](size)
    parameters, x = random_parameters(modules), inputs(name, size)
    results = []
    for attend in both:
        output = attend(x)
        if name != "segment-anything":
            output = output * size.mask[..., None]
        cotangent = torch.linspace(-1.0, 1.0, output.numel()).view_as(output).cos()
        gradients = torch.autograd.grad(
            output, [x, *parameters.values()], cotangent, materialize_grads=True, allow_unused=True
        )
        results.append([output.detach(), *gradients])
    pairs = list(zip(*results, strict=True))
    shares = []
    for group in (pairs[:1], pairs[1:]):  # a gradient alone may be zero, as that of a key's bias is
        off = max(float((ours - theirs).abs().max()) for ours, theirs in group)
        shares.append(off / max(float(theirs.abs().max()) for _, theirs in group))
    return max(shares)


def ratios(name: str, size: Size) -> list[float]:
    """Return our time over theirs: of inference, and of a forward and backward pass."""
    modules, ours, theirs = CLASSES[name](size)
    parameters, x = random_parameters(modules), inputs(name, size)

    def inference(attend: Attend) -> None:
        with torch.inference_mode():
            attend(x)

    def training(attend: Attend) -> None:
        torch.autograd.grad(attend(x).sum(), [x, *parameters.values()], allow_unused=True)

    found = []
    for work in (inference, training):
        times = alternate({"ours": partial(work, ours), "theirs": partial(work, theirs)}, repeats=5, seconds=2.0)
        found.append(times["ours"].median / times["theirs"].median)
    return found


def time(name: str) -> bool:
    image = name == "segment-anything"
    for n in (14, 64) if image else (128, 512, 2048):
        size = Size(n, n, heads=8, head_dim=64, batch=25 if n == 14 else 1)  # 25 windows of an image, or all of it
        forward, training = ratios(name, size)
        print(f"{name:<38}{n:>5}  inference {forward:.2f}  training {training:.2f}", flush=True)
    return True


def compare(name: str) -> bool:
    agree = True
    image = name == "segment-anything"
    for n, valid in ((5, 7), (3, 3)) if image else ((1, 1), (7, 7), (29, 29), (29, 18), (300, 170)):
        off = difference(name, Size(n, valid))
        agree = agree and off <= TOLERANCE
        print(f"{name:<38}{n:>5}{valid:>5}  {off:.1e}  {'same' if off <= TOLERANCE else 'DIFFERENT'}", flush=True)
    return agree


def main() -> None:
    parser = command("packages", __doc__)
    parser.add_argument("names", nargs="*", default=list(CLASSES), metavar="CLASS", help="; ".join(CLASSES))
    parser.add_argument("--time", action="store_true", help="time instead of comparing")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(CLASSES):
        parser.error(f"CLASS must be known, got {', '.join(unknown)}; see --help")
    warnings.simplefilter("ignore")
    sys.modules.update({name: MagicMock() for name in UNUSED})
    torch.manual_seed(0)
    if arguments.time:
        torch.set_num_threads(1)
    results = [(time if arguments.time else compare)(name) for name in arguments.names]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
