"""Export a bundle as two ONNX graphs, for onnxruntime and other programs: the encoder, and one step of the decoder.

    encoder.onnx      src (rows, src_len), src_lengths (rows,)
                      -> source_keys, source_values (layers, rows, heads, src_len, head_dim)
    decoder.onnx      tokens (rows, 1), src_lengths, source_keys, source_values,
                      keys, values (layers, rows, heads, past, head_dim) of the previous target positions
                      -> log_probs (rows, vocab) of the next token; keys, values with one more position
    config.json       languages, ids of the special tokens, the bundle's search, shapes
    tokenizer.model   SentencePiece model of both sides; an imported bundle has more tokenizer files
    README.md         the bundle's card

Rows, src_len and past have any size; past starts at 0. Source rows are pieces and the end of sentence, padded on the
right. Imported models may have other special tokens around the source, and given tokens before the target.
examples/translate_onnx.py decodes with onnxruntime alone.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from relattn import AttentionCache
from torch import Tensor, nn
from torch.export import Dim
from tqdm import tqdm

from relattn_mt.bundle import CARD, TOKENIZER_FILES, Bundle
from relattn_mt.config import as_dict
from relattn_mt.data.batching import collate
from relattn_mt.formats.exportable import require_exportable
from relattn_mt.formats.parity import Reference, Report, check_lines
from relattn_mt.model.layers import DecoderLayer
from relattn_mt.model.transformer import Cache, Transformer
from relattn_mt.support.console import log_level, shows_progress
from relattn_mt.support.errors import require_installed
from relattn_mt.support.files import putting, require_outside, require_replaceable
from relattn_mt.tokens.tokenizer import SpecialTokens

ENCODER = "encoder.onnx"
DECODER = "decoder.onnx"
CONFIG = "config.json"
FILES = CONFIG, ENCODER, DECODER, *TOKENIZER_FILES["imported"], CARD
# sizes that the graphs are traced with
ROWS = 3
SRC_LEN = 7
PAST = 5
_log = logging.getLogger(__name__)


class _Graph(nn.Module):
    """Part of a model that becomes one graph."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model


class Encoder(_Graph):
    """Computes the keys and values of each decoder layer from the source, once per sentence."""

    def forward(self, src: Tensor, src_lengths: Tensor) -> tuple[Tensor, Tensor]:
        memory = self.model.encode(src, src_lengths)
        layers = [cast(DecoderLayer, layer).cross_attention.project(memory) for layer in self.model.decoder]
        keys, values = zip(*layers, strict=True)
        return torch.stack(keys), torch.stack(values)


class DecoderStep(_Graph):
    """Computes the log-probabilities of the next token, and the cache with one more position."""

    def forward(
        self, tokens: Tensor, src_lengths: Tensor, source_keys: Tensor, source_values: Tensor, keys: Tensor,
        values: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        room = (0, 0, 0, 1)  # space for the new position, so that the cache does not depend on its length
        past = tuple(
            AttentionCache((F.pad(key, room), F.pad(value, room)), keys.shape[3], appended=False)
            for key, value in zip(keys, values, strict=True)
        )
        cache = Cache(tuple(zip(source_keys, source_values, strict=True)), src_lengths, past)
        logits, cache = self.model.step(tokens, cache)
        layers = cast("Sequence[AttentionCache]", cache.layers)
        return (
            logits[:, -1].log_softmax(-1),
            torch.stack([c.key for c in layers]),
            torch.stack([c.value for c in layers]),
        )


def export(bundle: Bundle, out: Path, *, sample: Sequence[str] | int) -> Report:
    """Write a bundle as ONNX graphs, and check in onnxruntime that both agree.

    Args:
        bundle: The bundle.
        out: The directory. An existing export is replaced.
        sample: Lines for the check, or the number of lines to draw from the vocabulary.

    Raises:
        InputError: The model is not supported; onnx, onnxscript or onnxruntime is not installed; the check fails; `out`
            holds something else or cannot be written. `out` is then unchanged.
    """
    require_outside(out, bundle.path)
    config = bundle.model
    special = bundle.tokenizer.special
    require_exportable(config, "onnx", bundle.path)
    out = out.resolve()
    require_replaceable(out, FILES, "model for ONNX")
    translator = bundle.translator(precision="fp32")
    model = bundle.in_float32().make_model().eval()
    lines = check_lines(translator, sample)
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the import, which writes an identifier into the home directory
    require_installed("export", "onnx", "onnxscript", "onnxruntime")
    _log.info("translating %s lines with the bundle", f"{len(lines):,}")
    reference = Reference(translator, lines, bundle.search, is_random=isinstance(sample, int))
    shape = {"layers": config.decoder_layers, "heads": config.heads, "head_dim": config.head_size}
    about = {
        "src_lang": bundle.src_lang,
        "tgt_lang": bundle.tgt_lang,
        **special._asdict(),
        **shape,
        "max_length": model.max_length,
        "search": as_dict(bundle.search),
    }
    with putting(out) as aside:
        aside.mkdir(parents=True)
        _log.info("tracing the encoder and a step of the decoder")
        _trace(model, aside)
        (aside / CONFIG).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        for name, content in bundle.tokenizer.files.items():
            (aside / name).write_bytes(content)
        _log.info("scoring the translations with onnxruntime")
        parity = reference.compare(partial(_log_probs, aside, shape, special))
        parity.require_close(f"{out}: not exported")
        src_len, tgt_len = (max(map(len, ids)) for ids in (reference.src_ids, reference.tgt_ids))
        lengths = f"traced with {SRC_LEN} source and {PAST} target pieces, checked with up to {src_len} and {tgt_len}"
        report = Report([lengths], {"float32": parity})
        (aside / CARD).write_text(report.append_to(bundle.card), encoding="utf-8")
    return report


def _trace(model: Transformer, out: Path) -> None:
    """Write the two graphs."""
    config = model.config
    rows = Dim("rows")
    src_len = Dim("src_len")
    past = Dim("past")
    src = torch.full((ROWS, SRC_LEN), 4)
    lengths = torch.arange(SRC_LEN, SRC_LEN - ROWS, -1)
    layers = config.decoder_layers, ROWS, config.heads
    source = torch.zeros(*layers, SRC_LEN, config.head_size)
    target = torch.zeros(*layers, PAST, config.head_size)
    memory = {1: rows, 3: src_len}
    states = {1: rows, 3: past}
    export = partial(torch.onnx.export, external_data=False, verbose=False)
    with torch.no_grad(), log_level(logging.ERROR, "torch.onnx"), warnings.catch_warnings(action="ignore"):
        export(
            Encoder(model),
            (src, lengths),
            out / ENCODER,
            dynamic_shapes=({0: rows, 1: src_len}, {0: rows}),
            input_names=["src", "src_lengths"],
            output_names=["source_keys", "source_values"],
        )
        export(
            DecoderStep(model),
            (src[:, :1], lengths, source, source + 1, target, target + 1),
            out / DECODER,
            dynamic_shapes=({0: rows}, {0: rows}, memory, memory, states, states),
            input_names=["tokens", "src_lengths", "source_keys", "source_values", "keys", "values"],
            output_names=["log_probs", "new_keys", "new_values"],
        )


def _log_probs(
    path: Path,
    shape: dict[str, int],
    special: SpecialTokens,
    src_ids: Sequence[Sequence[int]],
    tgt_ids: Sequence[Sequence[int]],
) -> list[list[float]]:
    """Return the log-probability of each piece of given translations, and of the end, one step at a time."""
    import onnxruntime

    encoder, decoder = (onnxruntime.InferenceSession(str(path / name)) for name in (ENCODER, DECODER))
    scores: list[list[float]] = []
    starts = range(0, len(src_ids), ROWS + 1)
    for start in tqdm(starts, unit="batch", file=sys.stderr, disable=not shows_progress()):
        rows = slice(start, start + ROWS + 1)
        batch = collate(src_ids[rows], tgt_ids[rows], special)
        src, lengths, tgt_in, tgt_out = (t.numpy() for t in (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out))
        source_keys, source_values = encoder.run(None, {"src": src, "src_lengths": lengths})
        source = {"src_lengths": lengths, "source_keys": source_keys, "source_values": source_values}
        keys = values = np.zeros((shape["layers"], len(src), shape["heads"], 0, shape["head_dim"]), dtype=np.float32)
        columns = []
        for position in range(tgt_in.shape[1]):
            inputs = {"tokens": tgt_in[:, [position]], "keys": keys, "values": values, **source}
            log_probs, keys, values = decoder.run(None, inputs)
            if (place := position - len(special.tgt_begin)) >= 0:
                columns.append(np.take_along_axis(log_probs, tgt_out[:, [place]], axis=1)[:, 0])
        table = np.stack(columns, axis=1)
        scores += [row[:length].tolist() for row, length in zip(table, batch.tgt_lengths.tolist(), strict=True)]
    return scores
