"""Exports as ONNX graphs: the modules that become graphs, and what is refused.

tests/system/test_onnx_exports.py traces models with each position scheme, which takes ten seconds per model.
"""

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from relattn_mt.bundle import Bundle
from relattn_mt.formats import onnx as module
from relattn_mt.formats.onnx import PAST, DecoderStep, Encoder, export
from relattn_mt.formats.parity import Reference
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.errors import InputError
from relattn_mt.translate.options import TranslateOptions
from torch import Tensor

from examples.translate_onnx import Model
from tests.support import transformers_models as models
from tests.support.foreign_bundles import LINES, SEARCH, make_bundle, random_lines, run_import
from tests.support.schemes import VARIANTS, formats_of

GREEDY = replace(SEARCH, beam_size=1, length_penalty="none", max_length_ratio=0.0, max_length_extra=4 * PAST + 1)
MODELS = {name: options for name, options in VARIANTS.items() if "onnx" in formats_of(name)} | {
    "per head": {"tables_per_head": True, "clip_right": 0, "norm": "post"}
}
Graph = Callable[[dict[str, np.ndarray]], list[np.ndarray]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make(path: Path, **options: object) -> Bundle:
    return make_bundle(path / "bundle", search=GREEDY, encoder_layers=1, **options)


def assert_graphs_agree(model: Transformer, encoder: Graph, decoder: Graph) -> None:
    """Assert that graphs compute the log-probabilities of a model, one target position at a time, at several sizes."""
    torch.manual_seed(2)
    layers, heads = model.config.decoder_layers, model.config.heads
    for rows, src_len, tgt_len in ((1, 1, 1), (1, 29, 2), (5, 2, 11)):
        src, tgt = torch.randint(4, 100, (rows, src_len)), torch.randint(4, 100, (rows, tgt_len))
        lengths = torch.randint(1, src_len + 1, (rows,))
        lengths[0] = src_len
        with torch.no_grad():
            expected = model(src, lengths, tgt).log_softmax(-1).numpy()
        source_keys, source_values = encoder({"src": src.numpy(), "src_lengths": lengths.numpy()})
        source = {"src_lengths": lengths.numpy(), "source_keys": source_keys, "source_values": source_values}
        head_dim = source_keys.shape[-1]
        keys = values = np.zeros((layers, rows, heads, 0, head_dim), dtype=np.float32)
        for position in range(tgt_len):
            tokens = tgt[:, position : position + 1].numpy()
            found, keys, values = decoder({"tokens": tokens, "keys": keys, "values": values, **source})
            np.testing.assert_allclose(found, expected[:, position], rtol=0, atol=1e-4)


def as_graph(module: torch.nn.Module) -> Graph:
    def call(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            outputs: tuple[Tensor, ...] = module(**{name: torch.from_numpy(x) for name, x in inputs.items()})
        return [each.numpy() for each in outputs]

    return call


@pytest.mark.filterwarnings("ignore:(positions. none|clip. 0):UserWarning")
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS.keys())
def test_modules_that_become_graphs(tmp_path, options):
    model = make(tmp_path, decoder_layers=2, **options).make_model().eval()
    assert_graphs_agree(model, as_graph(Encoder(model)), as_graph(DecoderStep(model)))


def check_imported_model(tmp_path: Path) -> None:
    """Export a model with two SentencePiece models and vocabularies, a language before the source, and a first token.

    tests/system/test_onnx_exports.py runs its graphs.
    """
    options = {"separate": True, "languages": ("deu", "fra"), "draw": (0.2, 1.0)}
    models.marian(tmp_path / "model", **options, generation={"forced_bos_token_id": 9})
    parts = run_import(tmp_path / "model", tmp_path / "bundle", "en", "fra")
    assert parts.tokenizer.special.tgt_begin == (9,)
    search = replace(parts.search, beam_size=1, max_length_ratio=0.0, max_length_extra=4 * PAST + 1)
    with redirect_stderr(Terminal()) as errors:
        report = export(replace(parts, search=search), tmp_path / "out", sample=LINES)
    assert "100%" in errors.getvalue()
    assert report.parities["float32"].worst < 1e-4
    ours, model = parts.translator(), Model(tmp_path / "out")
    lines = [*LINES, *random_lines([1, 9]), "\N{SNOWMAN} pears"]
    raw = TranslateOptions(search=search, copy=False, keep_literals=False)
    for line, (best,) in zip(lines, ours.n_best(lines, raw), strict=True):
        assert model.encode(line) == ours.tokenizer.encode(line)
        assert model.search(model.encode(line)) == best.tokens
        assert model.translate(line) == best.text
    assert model.decode([ours.tokenizer.vocabularies[1].index(piece) for piece in ("<unk>", ">>deu<<")]) == ""


def test_imported_models(tmp_path, monkeypatch):
    """PyTorch's modules take the place of the graphs, which take ten seconds to make."""
    modules: dict[str, torch.nn.Module] = {}

    def trace(model: Transformer, out: Path) -> None:
        modules.update({"encoder": Encoder(model), "decoder": DecoderStep(model)})

    def session(path: str) -> SimpleNamespace:
        graph = as_graph(modules[Path(path).stem])
        return SimpleNamespace(run=lambda names, inputs: graph(inputs))

    monkeypatch.setattr(module, "_trace", trace)
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    check_imported_model(tmp_path)


def test_exports_that_are_refused(tmp_path, monkeypatch):
    parts, out = make(tmp_path), tmp_path / "out"
    with pytest.raises(InputError, match="at least one line"):
        export(parts, out, sample=[" "])
    monkeypatch.setattr(module, "_trace", lambda model, out: None)
    monkeypatch.setattr(
        module, "_log_probs", lambda path, shape, special, src, tgt: [[-1.0] * (len(ids) + 1) for ids in tgt]
    )
    with pytest.raises(InputError, match=f"^{out}: not exported: log-probabilities must differ"):
        export(parts, out, sample=LINES)
    assert {path.name for path in tmp_path.iterdir()} == {"bundle"}
    out.mkdir()
    (out / "thesis.txt").write_text("all of it")
    with pytest.raises(InputError, match=r"out: not replaced, .*thesis\.txt"):
        export(parts, out, sample=LINES)
    (out / "thesis.txt").unlink()
    monkeypatch.setattr(Reference, "compare", None)  # is not reached
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=r"^onnxscript .*toolkit\[export\]"):
        export(parts, out, sample=LINES)
    assert not list(out.iterdir())
