"""Models with random weights in Marian's own format, as Firefox has them: .bin in float32 or int8, and .npz."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

FLOAT32, INT8, INTGEMM8 = 0x404, 0x101, 0x4101
OPTIONS: dict[str, Any] = {
    "type": "transformer", "dim-rnn": 1024, "enc-cell": "gru", "enc-type": "bidirectional", "dec-cell-base-depth": 2,
    "tied-embeddings": False, "tied-embeddings-src": False, "tied-embeddings-all": True, "transformer-heads": 2,
    "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru", "transformer-ffn-activation": "relu",
    "transformer-preprocess": "", "transformer-postprocess": "dan", "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "", "transformer-ffn-depth": 2, "transformer-decoder-ffn-depth": 0,
    "transformer-no-projection": False, "transformer-tied-layers": [], "input-types": [], "skip": False,
    "layer-normalization": False, "right-left": False, "factors-combine": "sum", "lemma-dim-emb": 0, "ulr": False,
    "transformer-train-position-embeddings": False, "version": "v1.9.56 1 2020",
}  # fmt: skip


def train_vocabulary(path: Path, lines: list[str], pieces: int) -> Path:
    """Write a SentencePiece model with Marian's special tokens."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(path.with_suffix("")), vocab_size=pieces, pad_id=-1, bos_id=-1,
        eos_id=0, unk_id=1, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return path.with_suffix(".model").replace(path)


def random_model(
    vocab: int,
    *,
    target_vocab: int | None = None,
    dim: int = 16,
    inner: int = 24,
    layers: tuple[int, int] = (2, 1),
    seed: int = 1,
    **options: Any,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return weights in float32 by Marian's names, and options; names of `options` have underscores for hyphens."""
    sizes = {"encoder_Wemb": vocab, "decoder_Wemb": vocab if target_vocab is None else target_vocab, "Wemb": vocab}
    vocab = sizes["decoder_Wemb"]
    draw, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    given = {name.replace("_", "-"): value for name, value in options.items()}
    options = {
        **OPTIONS,
        **given,
        "dim-emb": dim,
        "dim-vocabs": [sizes["encoder_Wemb"], vocab],
        "transformer-dim-ffn": inner,
    }
    options |= {"enc-depth": layers[0], "dec-depth": layers[1]}

    def add(name: str, *shape: int, around: float = 0.0, scale: float = 0.2) -> None:
        tensors[name] = (draw.normal(size=shape) * scale + around).astype(np.float32)

    def linear(prefix: str, names: str, inputs: int = dim, outputs: int = dim) -> None:
        for name in names:
            add(f"{prefix}W{name}", inputs, outputs, scale=3 * inputs**-0.5)
            add(f"{prefix}b{name}", 1, outputs)

    def norm(prefix: str, suffix: str = "") -> None:
        add(f"{prefix}_ln_scale{suffix}", 1, dim, around=1.0)
        add(f"{prefix}_ln_bias{suffix}", 1, dim)

    for stack, count in (("encoder", layers[0]), ("decoder", layers[1])):
        for layer in (f"{stack}_l{number}_" for number in range(1, count + 1)):
            has_ssru = stack == "decoder" and options["transformer-decoder-autoreg"] == "rnn"
            for part in ("self",) * (not has_ssru) + ("context",) * (stack == "decoder"):
                linear(f"{layer}{part}_", "qkvo")
                norm(f"{layer}{part}_Wo")
            if has_ssru:
                linear(f"{layer}rnn_", "f")
                add(f"{layer}rnn_W", dim, dim, scale=3 * dim**-0.5)
                norm(f"{layer}rnn_ffn")
            linear(f"{layer}ffn_", "1", dim, inner)
            linear(f"{layer}ffn_", "2", inner, dim)
            norm(f"{layer}ffn_ffn")
        if "n" in options["transformer-postprocess-emb"]:
            norm(f"{stack}_emb", "_pre")
    joint = options["tied-embeddings-all"] or options["tied-embeddings-src"]
    for name in ("Wemb",) if joint else ("encoder_Wemb", "decoder_Wemb"):
        add(name, sizes[name], dim, scale=dim**-0.5)
    if not (options["tied-embeddings-all"] or options["tied-embeddings"]):
        add("decoder_ff_logit_out_Wt", vocab, dim, scale=dim**-0.5)
    add("decoder_ff_logit_out_b", 1, vocab, scale=1.0)
    return tensors, options


def write_bin(path: Path, tensors: dict[str, np.ndarray], options: dict[str, Any], *, int8: bool = False) -> Path:
    """Write a .bin. In int8, matrices have the largest weight at 127, and activations the multiplier 127 / 8.

    As Marian does, the output layer's multiplier is that of none, and with two vocabularies also an integer, 127 with
    the multiplier 127 / 8.
    """
    items = []
    if int8:
        items.append(("none_QuantMultA", FLOAT32, (1, 1), np.float32(127 / 8).tobytes()))
    for name, tensor in tensors.items():
        if not int8 or "_W" not in f"_{name}" or "_ln_" in name:
            items.append((name, FLOAT32, tensor.shape, tensor.tobytes()))
            continue
        multiplier = np.float32(127 / np.abs(tensor).max())
        integers = np.rint(tensor * multiplier).astype(np.int8)
        integers = integers if name.endswith(("Wemb", "Wt")) else integers.T
        items.append((name, INTGEMM8, tensor.shape, integers.tobytes() + multiplier.tobytes()))
        scale = np.float32(127 / 8).tobytes()
        if name == "decoder_Wemb":
            items.append((f"{name}_QuantMultA", INTGEMM8, (1, 1), np.int8(127).tobytes() + scale))
        elif name != "encoder_Wemb":
            items.append((f"{name}_QuantMultA", FLOAT32, (1, 1), scale))
    text = "".join(f"{name}: {value!r}\n" for name, value in options.items()).encode() + b"\0"
    path.write_bytes(as_bin([*sorted(items), ("special:model.yml", INT8, (len(text),), text)]))
    return path


def as_bin(items: list[tuple[str, int, tuple[int, ...], bytes]]) -> bytes:
    """Return the content of a .bin with tensors of these names, types, shapes and data."""
    items = [(name, kind, shape, data + b"\1" * (-len(data) % 256)) for name, kind, shape, data in items]
    heads = [struct.pack("<4Q", len(name) + 1, kind, len(shape), len(data)) for name, kind, shape, data in items]
    start = struct.pack("<QQ", 1, len(items)) + b"".join(heads) + b"".join(f"{name}\0".encode() for name, *_ in items)
    start += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = -(len(start) + 8) % 256
    return start + struct.pack("<Q", padding) + b"\0" * padding + b"".join(data for *_, data in items)


def write_shortlist(
    path: Path,
    vocab: int,
    *,
    first: int = 4,
    best: int = 5,
    offsets: int | None = None,
    seed: int = 1,
    lists: list[np.ndarray] | None = None,
) -> Path:
    """Write a lexical shortlist, by default with at most five random pieces for each piece."""
    draw = np.random.default_rng(seed)
    lists = lists or [np.unique(draw.integers(0, vocab, draw.integers(0, 6))) for _ in range(offsets or vocab)]
    begins, ids = np.cumsum([0, *map(len, lists)]), np.concatenate(lists)
    content = struct.pack("<4Q", first, best, len(begins), len(ids)) + begins.astype("<u8").tobytes()
    content += ids.astype("<u4").tobytes()
    checksum = 0
    for (number,) in struct.iter_unpack("<Q", content[: len(content) // 8 * 8]):
        checksum ^= (number + 0x9E3779B9 + checksum * 64 + checksum // 4) % 2**64
    path.write_bytes(struct.pack("<QQ", 0xF11A48D5013417F5, checksum) + content)
    return path


def write_npz(path: Path, tensors: dict[str, np.ndarray], options: dict[str, Any]) -> Path:
    """Write a .npz."""
    text = "".join(f"{name}: {value!r}\n" for name, value in options.items()).encode() + b"\0"
    np.savez(path, **{**tensors, "special:model.yml": np.frombuffer(text, np.int8)})  # type: ignore[arg-type]
    return path
