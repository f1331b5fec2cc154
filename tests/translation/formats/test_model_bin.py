"""Files that ctranslate2 itself wrote come back number by number; a damaged one is one line."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
import torch
from ctranslate2.specs import common_spec, model_spec

from relattn.translation.errors import InputError
from relattn.translation.formats.ctranslate2.model_bin import read_model, weights


class Spec(model_spec.ModelSpec):
    name = "Tested"
    revision = 3

    def __init__(self) -> None:
        super().__init__()
        self.linear = common_spec.LinearSpec()
        self.same = common_spec.LinearSpec()
        self.norm = common_spec.LayerNormSpec()
        self.heads = np.int16(-4)
        self.flag = True
        self.word = "gelu"


def written(path, quantization: str) -> dict[str, torch.Tensor]:
    """The tensors of a model that ctranslate2 writes to `path`, as they were before."""
    torch.manual_seed(1)
    spec, weight = Spec(), torch.randn(5, 3)
    spec.linear.weight, spec.linear.bias = weight.clone(), torch.randn(5)
    spec.same.weight = weight.clone()
    spec.norm.gamma, spec.norm.beta = torch.randn(3), torch.randn(3)
    given = {"linear/weight": weight, "linear/bias": spec.linear.bias.clone(), "same/weight": weight}
    given |= {"norm/gamma": spec.norm.gamma.clone(), "norm/beta": spec.norm.beta.clone()}
    spec.validate()
    spec.optimize(quantization)
    spec._serialize(str(path))
    return given


@pytest.mark.parametrize("quantization", model_spec.ACCEPTED_MODEL_TYPES)
def test_what_ctranslate2_wrote_is_read(tmp_path, quantization):
    given = written(tmp_path / "model.bin", quantization)
    file = read_model(tmp_path / "model.bin")
    assert (file.kind, file.revision) == ("Tested", 3)
    found = weights(file.tensors, "x")
    assert found.keys() == {*given, "heads", "flag", "word"}
    assert [found[name].item() for name in ("heads", "flag")] == [-4, 1]
    assert bytes(found["word"].tolist()) == b"gelu"
    kind = getattr(torch, quantization.removeprefix("int8_"))
    for name, tensor in given.items():
        if "weight" in name and quantization.startswith("int"):
            steps, most = (1024, tensor.abs().max()) if kind == torch.int16 else (127, tensor.abs().amax(1, True))
            torch.testing.assert_close(found[name], (tensor * steps / most).round() * most / steps)
        else:
            assert torch.equal(found[name], tensor if kind in (torch.int8, torch.int16) else tensor.to(kind).float())
        assert found[name].shape == tensor.shape
    assert torch.equal(found["linear/weight"], found["same/weight"])


def test_whatever_is_cut_or_changed_is_told_in_a_line(tmp_path):
    path = tmp_path / "model.bin"
    written(path, "int8")
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(InputError, match=f"^{path}: not a model of CTranslate2, or a damaged one: ends within "):
            read_model(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(InputError, match="1 bytes follow the end"):
        read_model(path)
    draw, told = random.Random(1), []
    for _ in range(300):
        changed = bytearray(whole)
        changed[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        try:
            weights(read_model(path).tensors, path)
        except InputError as error:
            told.append(str(error))
    assert len(told) > 50
    assert all(line.startswith(f"{path}: ") and "\n" not in line for line in told)


def test_what_is_not_read_is_named(tmp_path):
    path = tmp_path / "model.bin"

    def text(word: str) -> bytes:
        return struct.pack("<H", len(word) + 1) + word.encode() + b"\0"

    def refused(content: bytes, message: str) -> None:
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"^{path}: not a model of CTranslate2, or a damaged one: {message}"):
            read_model(path)

    head = struct.pack("<I", 6) + text("TransformerSpec") + struct.pack("<I", 7)
    one = head + struct.pack("<I", 1) + text("a")
    refused(struct.pack("<I", 3) + head[4:], r"the version must be from 4 to 6, got 3$")
    refused(b"PK\3\4" + head, r"the version must be from 4 to 6, got 67324752$")
    refused(struct.pack("<IH", 6, 4) + b"kind" + head[-4:], r"the kind must end with a zero, before byte 10$")
    refused(one + struct.pack("<BIIBI", 2, 3, 2, 0, 20), r"a, \(3, 2\) of torch.float32, must have 24 bytes, got 20$")
    refused(one + struct.pack("<BIBI", 1, 1, 9, 4), r"a must have a type from 0 to 5, got 9$")
    refused(one + struct.pack("<B", 200), r"a must have at most 8 dimensions, got 200$")
    refused(one + struct.pack("<BIIBI", 2, 2**31, 2**31, 0, 0), r"a, \(2147483648, 2147483648\) of torch.float32")
    refused(
        head + struct.pack("<I", 0) + struct.pack("<I", 1) + text("b") + text("a"),
        "b is an alias of a",
    )
    with pytest.raises(InputError, match=f"^{tmp_path / 'none'}: cannot be read: No such file"):
        read_model(tmp_path / "none")


def test_scales_that_do_not_fit(tmp_path):
    good = {"w": torch.ones(2, 3, dtype=torch.int8), "w_scale": torch.tensor([2.0, 4.0])}
    assert weights(good, "x")["w"].tolist() == [[0.5] * 3, [0.25] * 3]
    for wrong in (torch.ones(3), torch.zeros(2), torch.ones(2, dtype=torch.int8)):
        with pytest.raises(InputError, match=r"^x: w, \(2, 3\), has an invalid scale, \("):
            weights({**good, "w_scale": wrong}, "x")
    with pytest.raises(InputError, match=r"^x: w is quantized in an unsupported way \(AWQ\)$"):
        weights({**good, "w_zero": torch.ones(2)}, "x")


def test_the_version_at_hand():
    assert model_spec.CURRENT_BINARY_VERSION == 6
