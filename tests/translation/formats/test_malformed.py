"""Whatever is wrong with a model, importing it gives one line that names the file, and never a traceback."""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from relattn.translation.errors import InputError
from relattn.translation.formats.import_model import import_model
from tests.translation.formats.test_read_ctranslate2 import KINDS, change, write
from tests.translation.formats.test_read_ctranslate2 import tokenizers as tokenizers

FIXTURES = Path(__file__).parent / "fixtures"
WEIGHTS = {  # an embedding, a weight and a bias of each
    "opennmt_py": (
        "encoder.embeddings.make_embedding.emb_luts.0.weight",
        "encoder.transformer.0.self_attn.linear_query.weight",
        "decoder.transformer_layers.0.layer_norm_2.bias",
    ),
    "eole": (
        "src_emb.embeddings.weight",
        "encoder.transformer_layers.0.self_attn.linear_query.weight",
        "encoder.transformer_layers.0.self_attn.relative_positions_embeddings.weight",
        "decoder.transformer_layers.1.input_layernorm.bias",
    ),
    "ctranslate2": (
        "encoder/embeddings_0/weight",
        "encoder/layer_0/self_attention/linear_0/weight",
        "decoder/layer_0/ffn/layer_norm/beta",
    ),
}
VALUES = [2.5, math.nan, -1, "two", None, [2], {"a": 1}]


def with_value(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[-1] = value
        return tensor

    return changed


TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": with_value(math.nan),
    "inf": with_value(math.inf),
    "integer": lambda x: x.int(),
    "boolean": lambda x: x > 0,
    "complex": lambda x: x.to(torch.complex64),
    "too large for float32": lambda x: x.double() + 1e300,
    "0-d": lambda x: x.sum(),
    "1-d": lambda x: x.flatten()[:3],
    "3-d": lambda x: x[None],
    "empty": lambda x: x[:0],
    "sparse": lambda x: x.to_sparse(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "meta": lambda x: x.to("meta"),
}
FEW = ("NaN", "0-d", "1-d")  # for all but the first weight
REFUSED = {"NaN", "inf", "integer", "boolean", "complex", "too large for float32"}


def damages(toolkit: str) -> list[tuple[str, str, Callable[[torch.Tensor], torch.Tensor]]]:
    first = WEIGHTS[toolkit][0]
    return [(n, k, damage) for n in WEIGHTS[toolkit] for k, damage in TENSORS.items() if n == first or k in FEW]


def attempt(path: Path, out: Path, tokenizers: tuple[Path, Path | None]) -> str:
    """Import a model, and return the error, which must be one line that begins with a path; empty if it worked."""
    message = ""
    try:
        import_model(
            path, out, tokenizer=tokenizers[0], tgt_tokenizer=tokenizers[1], src_lang="en", tgt_lang="de", sample=2
        )
    except InputError as error:
        message = str(error)
    assert out.exists() == (not message)
    assert "\n" not in message
    assert message.startswith(str(path)) or not message
    shutil.rmtree(out, ignore_errors=True)
    return message


def require_named(message: str, name: str, must_fail: bool) -> None:
    assert message or not must_fail, name
    assert not message or name.rsplit(".", 1)[0] in message, message


def checkpoint(path: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(FIXTURES / "opennmt_py.pt", weights_only=True)
    edit(content)
    torch.save(content, path / "model.pt")
    return path / "model.pt"


@pytest.mark.filterwarnings("ignore")
def test_checkpoints_of_opennmt_py(tmp_path):
    tokenizer = (FIXTURES / "sentencepiece.model", None)

    def attempted(edit: Callable[[dict[str, Any]], object]) -> str:
        return attempt(checkpoint(tmp_path, edit), tmp_path / "out", tokenizer)

    for name, kind, damage in damages("opennmt_py"):
        message = attempted(lambda c, n=name, d=damage: c["model"].update({n: d(c["model"][n])}))
        require_named(message, name, kind in REFUSED)
    options = ("heads", "norm_eps", "pos_ffn_activation_fn", "num_kv", "max_relative_positions", "sliding_window")
    for name in options:
        for value in [*VALUES, torch.ones(2)]:
            message = attempted(lambda c, n=name, v=value: vars(c["opt"]).update({n: v}))
            assert message or not isinstance(value, str | list | torch.Tensor), (name, value)
    for name in ("src", "tgt", "src_feats", "decoder_start_token", "data_task"):
        for value in [*VALUES, torch.ones(2)]:
            attempted(lambda c, n=name, v=value: c["vocab"].update({n: v}))
    for part in ("model", "generator", "vocab", "opt"):
        for value in [*VALUES, torch.ones(2)]:
            attempted(lambda c, p=part, v=value: c.update({p: v}))
    for part in ("model", "generator", "vocab"):
        attempted(lambda c, p=part: c[p].update({3: torch.ones(2)}))


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore")
def test_directories_of_eole(tmp_path):
    tokenizer, path = (FIXTURES / "sentencepiece.model", None), tmp_path / "eole"
    shutil.copytree(FIXTURES / "eole", path)
    file = path / "model.00.safetensors"
    tensors, whole = safetensors.torch.load_file(file), file.read_bytes()
    for name, kind, damage in damages("eole"):
        if kind not in ("sparse", "quantized", "meta"):
            safetensors.torch.save_file({**tensors, name: damage(tensors[name]).contiguous()}, file)
            require_named(attempt(path, tmp_path / "out", tokenizer), name, kind in REFUSED)
    file.write_bytes(whole)
    for name, group, keys in (
        ("config.json", "model", ("heads", "norm_eps", "mlp_activation_fn", "heads_kv", "embeddings", "decoder")),
        ("config.json", "", ("model",)),
        ("vocab.json", "", ("src", "tgt", "specials", "decoder_start_token")),
        ("vocab.json", "specials", ("eos_token",)),
    ):
        before = (path / name).read_text()
        for key in keys:
            for value in VALUES:
                content = json.loads(before)
                target = content.setdefault(group, {}) if group else content
                if isinstance(target.get("decoder"), dict):
                    target["decoder"].pop(key, None)
                target[key] = value
                (path / name).write_text(json.dumps(content))
                attempt(path, tmp_path / "out", tokenizer)
        (path / name).write_text(before)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore")
def test_directories_for_ctranslate2(tmp_path, tokenizers):
    path = write(tmp_path / "there", KINDS["as OpenNMT-py's"], tokenizers)
    whole = (path / "model.bin").read_bytes()
    draw = np.random.default_rng(1)
    shapes = {"weight": (36, 12), "beta": (12,)}
    for name in WEIGHTS["ctranslate2"]:
        array = draw.normal(size=shapes[name.rpartition("/")[2]]).astype(np.float32)
        for damaged in (
            array * np.float32(np.nan),
            array.astype(np.int8),
            array.sum(),
            array.reshape(-1)[:3],
            array[:0],
        ):
            change(path, {name: damaged})
            require_named(attempt(path, tmp_path / "out", tokenizers), name, must_fail=True)
            (path / "model.bin").write_bytes(whole)
    for name in ("num_heads", "pre_norm", "activation", "scale_embeddings"):
        for value in (np.float32(np.nan), np.float32(2.5), np.ones(2, np.int8), np.int32(-(2**31)), np.int8(0)):
            change(path, {f"{stack}/{name}": value for stack in ("encoder", "decoder")})
            attempt(path, tmp_path / "out", tokenizers)
            (path / "model.bin").write_bytes(whole)
    before = (path / "config.json").read_text()
    for name in ("layer_norm_epsilon", "bos_token", "eos_token", "unk_token", "decoder_start_token", "add_source_bos"):
        for value in VALUES:
            (path / "config.json").write_text(json.dumps({**json.loads(before), name: value}))
            attempt(path, tmp_path / "out", tokenizers)


def test_a_table_of_positions_of_any_shape(tmp_path):
    for shape in ((), (3,), (30, 8), (30, 2, 8), (30, 1, 8), (1, 30, 1, 8)):
        names = [f"{stack}.embeddings.make_embedding.pe.pe" for stack in ("encoder", "decoder")]

        def edit(content: dict[str, Any], names=names, shape=shape) -> None:
            kept = {name: x for name, x in content["model"].items() if "relative" not in name}
            content["model"] = kept | {name: torch.randn(shape) for name in names}

        attempt(checkpoint(tmp_path, edit), tmp_path / "out", (FIXTURES / "sentencepiece.model", None))


@pytest.mark.parametrize("code", ["../..", "en\nde", "", "e", "en/de", "en de", "\x1b[31m"])
def test_languages_are_codes(tmp_path, code):
    for src, tgt in ((code, "de"), ("en", code)):
        with pytest.raises(InputError, match="lang") as caught:
            import_model(
                FIXTURES / "opennmt_py.pt", tmp_path / "out", tokenizer=FIXTURES / "sentencepiece.model",
                tgt_tokenizer=None, src_lang=src, tgt_lang=tgt, sample=2,
            )  # fmt: skip
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_messages_never_advise_to_run_code(tmp_path):
    for name, content in (("text.pt", b"no checkpoint"), ("empty.pt", b""), ("pickle.pt", b"\x80\x04\x95\x00.")):
        (tmp_path / name).write_bytes(content)
        message = attempt(tmp_path / name, tmp_path / "out", (FIXTURES / "sentencepiece.model", None))
        assert message
        assert "weights_only" not in message
