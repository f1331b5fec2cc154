"""`relattn-mt quantize`: a quantized bundle, and what commands do with it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from relattn_mt import bundle, load
from relattn_mt.engine import decoder
from relattn_mt.model.weights import weights_of
from relattn_mt.support.errors import InputError
from relattn_mt.training.run import read_initial_bundle
from relattn_mt.training.run_directory import read_recipe
from relattn_mt.translate.options import TranslateOptions
from torch import Tensor

from tests.support.bundles import tensors_of
from tests.support.covering import pairwise
from tests.support.foreign_bundles import make_bundle, random_lines
from toolkit.tests.engine.test_decoder import SCHEMES

pytestmark = pytest.mark.skipif(decoder.KERNELS is None, reason=f"no compiled engine: {decoder.MISSING}")
LINES, OPTIONS = random_lines([1, 4, 9, 6]), TranslateOptions(n_best=2)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> bundle.Bundle:
    return make_bundle(tmp_path_factory.mktemp("float") / "bundle", dim=48, feed_forward_dim=96, ends=2.0)


@pytest.fixture(scope="module")
def quantized(original: bundle.Bundle) -> bundle.Bundle:
    out = original.path.with_name("int8")
    bundle.quantize_bundle(original, out)
    return bundle.read_bundle(out)


def tensors_in(path: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(path / bundle.WEIGHTS)


@pytest.mark.filterwarnings("ignore:.*cannot tell word order")
@pairwise(
    1, scheme=SCHEMES, in_turn={"norm": ["pre", "post"], "shared": ["all", "none", "none", "all"], "dim": [24, 48, 24]}
)
def test_it_translates_as_the_original_in_int8(tmp_path, scheme, norm, shared, dim):
    sizes = {"dim": dim, "norm": norm, "shared_embeddings": shared}
    source = make_bundle(tmp_path / "float", **sizes, **SCHEMES[scheme])
    bundle.quantize_bundle(source, tmp_path / "int8")
    expected, found = load(source.path, precision="int8"), load(tmp_path / "int8")
    assert "int8" in found.engine.name
    assert found.n_best(LINES, OPTIONS) == expected.n_best(LINES, OPTIONS)
    pairs = [(line, LINES[0]) for line in LINES]
    assert list(found.score(pairs)) == list(expected.score(pairs))


def test_the_command_writes_a_quarter_of_the_size(relattn, tmp_path):
    source = make_bundle(tmp_path / "float", dim=192, feed_forward_dim=384)
    done = relattn("quantize", source.path, "--out", tmp_path / "int8")
    assert done.code == 0, done.err
    found = bundle.read_bundle(tmp_path / "int8")
    assert (found.model, found.search, found.src_lang, found.tgt_lang) == (
        source.model, source.search, source.src_lang, source.tgt_lang,
    )  # fmt: skip
    before, after = ((path / bundle.WEIGHTS).stat().st_size for path in (source.path, found.path))
    assert after < 0.28 * before
    exact_state, state = tensors_of(source), tensors_of(found)
    for name, weight in state.items():
        if weight.dtype == torch.int8:
            exact, scale = exact_state[name], state[f"{name}_scale"]
            assert ((exact - weight * scale[:, None]).abs() <= 0.5001 * scale[:, None]).all()
        elif not name.endswith("_scale"):
            assert torch.equal(weight, exact_state[name])


def test_other_commands_take_its_dequantized_weights(relattn, quantized, tmp_path):
    path, state = quantized.path, tensors_in(quantized.path)
    names = [name for name, weight in state.items() if weight.dtype == torch.int8]
    exact = {name: state[name] * state[f"{name}_scale"][:, None] for name in names}
    translator = load(path, precision="fp32")
    assert translator.translate(LINES[:1])
    weights = quantized.in_float32().state
    assert all(np.array_equal(weights[name], weight) for name, weight in exact.items())
    (tmp_path / "src").write_text("\n".join(LINES))
    (tmp_path / "ref").write_text("\n".join(reversed(LINES)))
    text = ["--src", tmp_path / "src", "--ref", tmp_path / "ref"]
    for command in (
        ["export", "ctranslate2", path, "--out", tmp_path / "ct2", "--quantization", "int8"],
        ["evaluate", path, *text],
        ["score", path, "--src", tmp_path / "src", "--tgt", tmp_path / "ref"],
    ):
        done = relattn(*command)
        assert done.code == 0, done.err
    (tmp_path / "recipe.yaml").write_text(relattn("recipe", path).out)
    initial = read_initial_bundle(read_recipe(tmp_path))
    assert all(torch.equal(tensors_of(initial)[name], weight) for name, weight in exact.items())
    assert initial.state.keys() == weights_of(initial.make_model()).keys()


def test_where_int8_is_not_supported_it_is_dequantized_and_says_why(quantized, monkeypatch):
    reason = "no compiler"
    monkeypatch.setattr(decoder, "KERNELS", None)
    monkeypatch.setattr(decoder, "MISSING", reason)
    found = load(quantized.path)
    assert reason in found.engine.name
    assert found.translate(LINES[:1])
    with pytest.raises(InputError, match=r"int8 requires the compiled engine: .*no compiler"):
        load(quantized.path, precision="int8")


def test_what_is_refused(relattn, original, quantized, tmp_path):
    shutil.copytree(original.path, tmp_path / "broken")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    state = tensors_in(tmp_path / "broken")
    state["decoder.0.cross_attention.key.weight"][3, 1] = torch.nan
    metadata = {"tokenizer": original.tokenizer.digest}
    safetensors.torch.save_file(state, tmp_path / "broken" / bundle.WEIGHTS, metadata)
    before = {file: file.read_bytes() for file in quantized.path.iterdir()}
    for source, out, message in (
        (quantized.path, tmp_path / "new", f"{quantized.path}: quantized already"),
        (original.path, quantized.path, "a bundle exists there; use --overwrite"),
        (original.path, tmp_path / "other", "contains more than a bundle: thesis.tex"),
        (original.path, original.path / "int8", "must be outside of"),
        (original.path, original.path, "must be outside of"),
        (tmp_path / "broken", tmp_path / "new", "must be finite, got NaN or infinity in decoder.0.cross_attention.key"),
        (tmp_path / "nowhere", tmp_path / "new", "no such directory"),
        (original.path, "", "out must name a directory"),
    ):
        done = relattn("quantize", source, "--out", out)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert message in done.err
    assert not (tmp_path / "new").exists()
    assert before == {file: file.read_bytes() for file in quantized.path.iterdir()}
    assert relattn("quantize", original.path, "--out", quantized.path, "--overwrite").code == 0
    assert before == {file: file.read_bytes() for file in quantized.path.iterdir()}


FEED = "encoder.0.feed_forward.0.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s[FEED][0, :2].fill_(-128), f"{FEED} must be at least -127, got -128"),
        (lambda s: s[f"{FEED}_scale"][1:2].fill_(torch.nan), f"{FEED}_scale must be finite and not negative"),
        (lambda s: s["embedding_scale"][1:2].neg_(), "embedding_scale must be finite and not negative"),
        (lambda s: s.pop(f"{FEED}_scale"), f"{FEED}_scale is missing"),
        (lambda s: s.pop("embedding_scale"), "the weights do not fit the model"),
        (lambda s: s.update({FEED: s[FEED].float()}), f"{FEED} must be int8, got float32"),
        (lambda s: s.update({f"{FEED}_scale": s[f"{FEED}_scale"][1:].clone()}), "_scale must be (96,), got (95,)"),
        (lambda s: s.update({f"{FEED}_scale": s[FEED][:, 0].clone()}), "_scale must be floating point, got int8"),
    ],
)  # fmt: skip
def test_damaged_weights_are_refused(
    quantized: bundle.Bundle, tmp_path: Path, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    shutil.copytree(quantized.path, tmp_path / "b")
    state = tensors_in(tmp_path / "b")
    change(state)
    safetensors.torch.save_file(state, tmp_path / "b" / bundle.WEIGHTS, {"tokenizer": quantized.tokenizer.digest})
    for precision in (None, "fp32"):
        with pytest.raises(InputError) as error:
            load(tmp_path / "b", precision=precision)
        assert message in str(error.value)
        assert "\n" not in str(error.value)
