"""A bundle as two ONNX graphs, for onnxruntime and whatever else runs them: the encoder, and one step of the decoder.

    encoder.onnx      src (rows, src_len), src_lengths (rows,)
                      -> source_keys, source_values (layers, rows, heads, src_len, head_dim)
    decoder.onnx      tokens (rows, 1), src_lengths, source_keys, source_values,
                      keys, values (layers, rows, heads, past, head_dim) of the target positions before
                      -> log_probs (rows, vocab) of the next token; keys, values with one position more
    config.json       languages, numbers of the special tokens, the search of the bundle, shapes
    tokenizer.model   the SentencePiece model, of both sides
    README.md         the bundle's card

Rows, src_len and past are of any size; past starts at 0. Source rows are pieces and the end, padded on the right.
examples/translate_onnx.py decodes so, with onnxruntime alone.
"""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from relattn import AttentionCache
from relattn.translation.bundle import CARD, Bundle
from relattn.translation.config import as_dict
from relattn.translation.data.batching import collate
from relattn.translation.data.tokenizer import TOKENIZER, Tokenizer
from relattn.translation.errors import InputError, require_installed
from relattn.translation.files import putting, require_replaceable
from relattn.translation.formats import with_report
from relattn.translation.formats.parity import FARTHEST
from relattn.translation.model.layers import DecoderLayer
from relattn.translation.model.transformer import Cache, Transformer

ENCODER, DECODER, CONFIG = "encoder.onnx", "decoder.onnx", "config.json"
ROWS, SRC_LEN, PAST = 3, 7, 5  # with which the graphs are traced


class Encoder(nn.Module):
    """What is made of a source once: keys and values of each decoder layer."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, src: Tensor, src_lengths: Tensor) -> tuple[Tensor, Tensor]:
        memory = self.model.encode(src, src_lengths)
        layers = [cast(DecoderLayer, layer).cross_attention.project(memory) for layer in self.model.decoder]
        keys, values = zip(*layers, strict=True)
        return torch.stack(keys), torch.stack(values)


class Step(nn.Module):
    """One token more: what follows it, and what has been seen then."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, src_lengths: Tensor, source_keys: Tensor, source_values: Tensor, keys: Tensor,
        values: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        room = (0, 0, 0, 1)  # for the new position, so that a cache need not ask whether it has any
        seen = tuple(
            AttentionCache((F.pad(key, room), F.pad(value, room)), keys.shape[3], appended=False)
            for key, value in zip(keys, values, strict=True)
        )
        cache = Cache(tuple(zip(source_keys, source_values, strict=True)), src_lengths, seen)
        logits, cache = self.model.step(tokens, cache)
        held = cast("Sequence[AttentionCache]", cache.layers)
        return logits[:, -1].log_softmax(-1), torch.stack([c.key for c in held]), torch.stack([c.value for c in held])


@dataclass(frozen=True)
class Report:
    """What an export was found to be.

    Attributes:
        lines: whose translations were scored, one token at a time.
        tokens: of them, ends counted.
        longest: the longest source and the longest translation, in pieces.
        worst: the largest difference of a token's log-probability, in nats.
    """

    lines: int
    tokens: int
    longest: tuple[int, int]
    worst: float

    def __str__(self) -> str:
        return (
            f"log-probabilities of {self.tokens:,} tokens of our translations of {self.lines:,} lines, one at a time: "
            f"at most {self.worst:.1e} apart; sources of up to {self.longest[0]:,} pieces, translations of up to "
            f"{self.longest[1]:,}, traced with {SRC_LEN} and {PAST}"
        )


def require_exportable(parts: Bundle) -> None:
    """Raise an InputError where a model has no attention to its own target, or a vocabulary beside its tokenizer."""
    if parts.model.positions in ("lstm", "cnn"):
        raise InputError(
            f"{parts.path}: not for ONNX: {parts.model.positions} in place of self-attention is not exported"
        )
    if not isinstance(parts.tokenizer, Tokenizer):
        raise InputError(f"{parts.path}: not for ONNX: an imported model, whose vocabulary is not its tokenizer's")


def export(parts: Bundle, out: Path, *, sample: Sequence[str]) -> Report:
    """Write a bundle as ONNX graphs, and check in onnxruntime that they say the same.

    Args:
        parts: of the bundle.
        out: the directory; one that holds an export is replaced.
        sample: lines to check it with.

    Raises:
        InputError: the model is none that is exported, onnx, onnxscript or onnxruntime is not installed, the check
            fails, `out` holds something else or cannot be written. `out` is then as it was.
    """
    require_installed("onnx", "onnxscript", "onnxruntime", extra="export")
    require_exportable(parts)
    out = out.resolve()
    require_replaceable(out, (ENCODER, DECODER, CONFIG, TOKENIZER, CARD), "model for ONNX")
    sample = [line for line in sample if line.strip()]
    if not sample:
        raise InputError("there is nothing to check the export with: no lines")
    translator = parts.translator()
    src_ids = [translator.tokenizer.encode(line) for line in sample]
    tgt_ids = [best.tokens for (best,) in translator.n_best(sample)]
    config, marks = parts.model, parts.tokenizer.marks
    about = {
        "src_lang": parts.src_lang,
        "tgt_lang": parts.tgt_lang,
        "pad": marks.pad,
        "bos": marks.bos,
        "eos": marks.eos,
        "layers": config.decoder_layers,
        "heads": config.heads,
        "head_dim": config.dim // config.heads,
        "max_length": translator.max_length,
        "search": as_dict(parts.search),
    }
    with putting(out) as aside:
        aside.mkdir(parents=True)
        _trace(translator.model, aside)
        (aside / CONFIG).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(parts.path / TOKENIZER, aside / TOKENIZER)
        scores = zip(translator.log_probs(src_ids, tgt_ids), _forced(aside, about, src_ids, tgt_ids), strict=True)
        gaps = [abs(a - b) for mine, its in scores for a, b in zip(mine, its, strict=True)]
        longest = (max(map(len, src_ids)) + 1, max(map(len, tgt_ids)) + 1)
        report = Report(len(sample), len(gaps), longest, max(gaps))
        if not report.worst <= FARTHEST:
            raise InputError(f"{out}: not exported: it would not say the same: {report}")
        (aside / CARD).write_text(with_report(parts.card, report), encoding="utf-8")
    return report


def _trace(model: Transformer, out: Path) -> None:
    """Write the two graphs."""
    config = model.config
    rows, src_len, past = Dim("rows"), Dim("src_len"), Dim("past")
    src = torch.full((ROWS, SRC_LEN), 4)
    lengths = torch.arange(SRC_LEN, SRC_LEN - ROWS, -1)
    shape = config.decoder_layers, ROWS, config.heads
    of_source = torch.zeros(*shape, SRC_LEN, config.dim // config.heads)
    seen = torch.zeros(*shape, PAST, config.dim // config.heads)
    memory, states = {1: rows, 3: src_len}, {1: rows, 3: past}
    with torch.no_grad(), _quiet():
        torch.onnx.export(
            Encoder(model),
            (src, lengths),
            out / ENCODER,
            dynamic_shapes=({0: rows, 1: src_len}, {0: rows}),
            input_names=["src", "src_lengths"],
            output_names=["source_keys", "source_values"],
            external_data=False,
            verbose=False,
        )
        torch.onnx.export(
            Step(model),
            (src[:, :1], lengths, of_source, of_source + 1, seen, seen + 1),
            out / DECODER,
            dynamic_shapes=({0: rows}, {0: rows}, memory, memory, states, states),
            input_names=["tokens", "src_lengths", "source_keys", "source_values", "keys", "values"],
            output_names=["log_probs", "new_keys", "new_values"],
            external_data=False,
            verbose=False,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what PyTorch's exporter says of itself on its way."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _forced(
    path: Path, about: dict[str, Any], src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]
) -> list[list[float]]:
    """The log-probability of each piece of given translations and of their ends, by the graphs, one at a time."""
    import onnxruntime

    encoder, decoder = (onnxruntime.InferenceSession(str(path / name)) for name in (ENCODER, DECODER))
    scores: list[list[float]] = []
    for start in range(0, len(src_ids), ROWS + 1):
        chosen = slice(start, start + ROWS + 1)
        batch = collate(src_ids[chosen], tgt_ids[chosen])
        src, lengths, tgt_in, tgt_out = (t.numpy() for t in (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out))
        source_keys, source_values = encoder.run(None, {"src": src, "src_lengths": lengths})
        keys = values = np.zeros((about["layers"], len(src), about["heads"], 0, about["head_dim"]), dtype=np.float32)
        columns = []
        given = {"src_lengths": lengths, "source_keys": source_keys, "source_values": source_values}
        for position in range(tgt_in.shape[1]):
            tokens = tgt_in[:, position : position + 1]
            log_probs, keys, values = decoder.run(None, {"tokens": tokens, "keys": keys, "values": values, **given})
            columns.append(np.take_along_axis(log_probs, tgt_out[:, position : position + 1], axis=1)[:, 0])
        table = np.stack(columns, axis=1)
        scores += [table[i, :length].tolist() for i, length in enumerate(batch.tgt_lengths.tolist())]
    return scores
