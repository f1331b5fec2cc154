"""Small models with random weights, and their vocabularies, in the files that Marian writes and OPUS-MT publishes."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.support.foreign_bundles import LINES
from tests.support.transformers_models import train_sentencepiece

DIM, INNER = 24, 20


def write(path: Path, *, norm: str = "post", shared: bool = True, end: float = 5.0, **options: Any) -> Path:
    """Write model.npz with its options, vocabularies, decoder.yml and SentencePiece models.

    Args:
        path: The directory.
        norm: "pre" or "post".
        shared: Whether both sides and the output share a vocabulary and a matrix.
        end: Number that is added to the logit of the end of sentence, so that some translations end by themselves.
        options: Further options of Marian.
    """
    path.mkdir(parents=True)
    sides = [
        train_sentencepiece(path / f"{name}.spm", kind, size, LINES)[3:]
        for name, kind, size in (("source", "unigram", 60), ("target", "bpe", 50))
    ]
    if shared:
        sides = [[*dict.fromkeys(sides[0] + sides[1])]] * 2
    vocabularies = [["</s>", "<unk>", *pieces] for pieces in sides]
    names = ["vocab.yml"] * 2 if shared else ["source.vocab.yml", "target.vocab.yml"]
    for name, pieces in zip(names, vocabularies, strict=True):
        (path / name).write_text("".join(f"{_quoted(piece)}: {i}\n" for i, piece in enumerate(pieces)))
    model = {
        **{"type": "transformer", "enc-depth": 2, "dec-depth": 1, "transformer-heads": 3, "dim-emb": DIM},
        **{"transformer-decoder-autoreg": "self-attention", "transformer-no-projection": False},
        **{"transformer-ffn-activation": "swish", "transformer-postprocess-emb": "d"},
        **{"transformer-guided-alignment-layer": "last"},
        "transformer-preprocess": "n" if norm == "pre" else "",
        "transformer-postprocess": "da" if norm == "pre" else "dan",
        "transformer-postprocess-top": "n" if norm == "pre" else "",
        **options,
    }
    sizes = len(vocabularies[0]), len(vocabularies[1])
    weights = _weights(sizes, norm, shared, "n" in model["transformer-postprocess-emb"], end)
    text = np.frombuffer(yaml.safe_dump(model).encode() + b"\0", np.int8)
    np.savez(path / "model.npz", **weights, **{"special:model.yml": text})
    decoder = {"models": ["model.npz"], "vocabs": names, "relative-paths": True, "beam-size": 6, "normalize": 1}
    (path / "decoder.yml").write_text(yaml.safe_dump(decoder))
    return path


def _quoted(piece: str) -> str:
    return '"' + piece.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _weights(
    sizes: tuple[int, int], norm: str, shared: bool, embedding_norm: bool, end: float
) -> dict[str, np.ndarray]:
    draw, weights = np.random.default_rng(1), {}

    def add(name: str, *shape: int, mean: float = 0.0) -> None:
        weights[name] = draw.normal(mean, 0.3, shape).astype(np.float32)

    def add_norm(scope: str, pre: bool = norm == "pre") -> None:
        add(f"{scope}_ln_scale{'_pre' * pre}", 1, DIM, mean=1.0)
        add(f"{scope}_ln_bias{'_pre' * pre}", 1, DIM)

    embeddings = ["Wemb"] if shared else ["encoder_Wemb", "decoder_Wemb"]
    for name, size in zip(embeddings, sizes, strict=False):
        add(name, size, DIM)
    for stack, count, attentions in (("encoder", 2, ["self"]), ("decoder", 1, ["self", "context"])):
        for layer in (f"{stack}_l{i + 1}" for i in range(count)):
            for scope in (f"{layer}_{attention}" for attention in attentions):
                for part in "qkvo":
                    add(f"{scope}_W{part}", DIM, DIM)
                    add(f"{scope}_b{part}", 1, DIM)
                add_norm(f"{scope}_Wo")
            for part, shape in (("1", (DIM, INNER)), ("2", (INNER, DIM))):
                add(f"{layer}_ffn_W{part}", *shape)
                add(f"{layer}_ffn_b{part}", 1, shape[1])
            add_norm(f"{layer}_ffn_ffn")
        if norm == "pre":
            add_norm(f"{stack}_top", pre=False)
        if embedding_norm:
            add_norm(f"{stack}_emb", pre=True)
    add("decoder_ff_logit_out_b", 1, sizes[1])
    weights["decoder_ff_logit_out_b"][0, 0] += end
    if not shared:
        add("decoder_ff_logit_out_W", DIM, sizes[1])
    return weights
