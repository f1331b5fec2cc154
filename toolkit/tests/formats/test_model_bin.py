"""model.bin files that ctranslate2 wrote, and damaged ones."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from ctranslate2.specs import common_spec, model_spec
from relattn_mt.formats.ctranslate2.model_bin import read_model, weights
from relattn_mt.support.errors import InputError


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, bytes]:
    """Path and content of a model that ctranslate2 wrote in int8."""
    path, spec, weight = tmp_path_factory.mktemp("whole") / "model.bin", Spec(), torch.randn(5, 3)
    spec.linear.weight, spec.linear.bias, spec.same.weight = weight.clone(), torch.randn(5), weight.clone()
    spec.norm.gamma, spec.norm.beta = torch.randn(3), torch.randn(3)
    spec.validate()
    spec.optimize("int8")
    spec._serialize(str(path))
    return path, path.read_bytes()


def test_files_that_are_cut(whole):
    path, content = whole
    for end in range(0, len(content), 3):
        path.write_bytes(content[:end])
        with pytest.raises(InputError, match=f"^{path}: .* ends within "):
            read_model(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(InputError, match="1 bytes follow the end"):
        read_model(path)


def text(word: str) -> bytes:
    return struct.pack("<H", len(word) + 1) + word.encode() + b"\0"


HEAD = struct.pack("<I", 6) + text("TransformerSpec") + struct.pack("<I", 7)
ONE = HEAD + struct.pack("<I", 1) + text("a")


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (struct.pack("<I", 1) + HEAD[4:], "version .* got 1"),
        (struct.pack("<I", 3) + ONE[4:] + struct.pack("<BIBI", 1, 1, 8, 1), "a must have a type among 4, 2, 1, got 8"),
        (struct.pack("<I", 3) + ONE[4:] + struct.pack("<BIBI", 1, 5, 4, 4), r"a, \(5,\) .* 20 bytes, got 16"),
        (b"PK\3\4" + HEAD, "version .* got 67324752"),
        (struct.pack("<IH", 6, 4) + b"kind" + HEAD[-4:], "must end with a zero"),
        (ONE + struct.pack("<BIIBI", 2, 3, 2, 0, 20), r"a, \(3, 2\) .* 24 bytes, got 20"),
        (ONE + struct.pack("<BIBI", 1, 1, 9, 4), "a must have a type .* got 9"),
        (ONE + struct.pack("<B", 200), "a must have at most 8 dimensions, got 200"),
        (ONE + struct.pack("<BIIBI", 2, 2**31, 2**31, 0, 0), r"a, \(2147483648, 2147483648\)"),
        (HEAD + struct.pack("<II", 0, 1) + text("b") + text("a"), "b is an alias of a"),
        (None, "cannot be read"),
    ],
)
def test_files_that_are_refused(tmp_path, content, fact):
    path = tmp_path / "model.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{path}: .*{fact}"):
        read_model(path)


def test_scales():
    good = {"w": np.ones((2, 3), np.int8), "w_scale": np.float32([2.0, 4.0])}
    assert weights(good, "x")["w"].tolist() == [[0.5] * 3, [0.25] * 3]
    for wrong in (np.ones(3), np.zeros(2), np.ones(2, np.int8)):
        with pytest.raises(InputError, match=r"^x: w, \(2, 3\), has an invalid scale"):
            weights({**good, "w_scale": wrong}, "x")
    with pytest.raises(InputError, match=r"^x: w is .*AWQ"):
        weights({**good, "w_zero": np.ones(2)}, "x")
