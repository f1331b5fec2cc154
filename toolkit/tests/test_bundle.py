"""Bundles: a loaded bundle equals the saved model, and a damaged one is refused with a one-line error."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from relattn_mt import bundle, load
from relattn_mt.config import SCHEMES, ModelConfig, SearchConfig
from relattn_mt.model import weights
from relattn_mt.model.transformer import Transformer
from relattn_mt.model.weights import arrays_of
from relattn_mt.support.errors import InputError
from relattn_mt.tokens.tokenizer import Tokenizer
from relattn_mt.translate.options import TranslateOptions
from torch import Tensor

from tests.support.bundles import LINES
from tests.support.engines import translator_of

FILES = {"bundle.json", "model.safetensors", "tokenizer.model", "README.md"}
CONFIG = ModelConfig(
    dim=12, heads=3, feed_forward_dim=20, encoder_layers=1, decoder_layers=2, clip=3, clip_right=1, norm="post"
)
SEARCH = SearchConfig(beam_size=3, length_penalty="average", alpha=0.0, max_length_ratio=1.25, max_length_extra=2)
LANGUAGES = "no", "de"  # a language that YAML reads as false


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(LINES * 5, 300, seed=1)


def make_model(tokenizer: Tokenizer, config: ModelConfig = CONFIG, seed: int = 1) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(config, tokenizer.vocab_size)


def save(path: Path, tokenizer: Tokenizer, seed: int = 1, card: str = "# A model\n\nüber\n") -> Path:
    return save_model(path, make_model(tokenizer, seed=seed), tokenizer, card=card)


def save_model(path: Path, model: Transformer, tokenizer: Tokenizer, **options: str) -> Path:
    bundle.Bundle(path, model.config, SEARCH, *LANGUAGES, arrays_of(model), tokenizer).save(**options)
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """Directory of a bundle. Read it, do not write to it."""
    return save(tmp_path_factory.mktemp("original") / "model", tokenizer)


@pytest.fixture
def saved(tmp_path: Path, original: Path) -> Path:
    """Directory of a bundle that may be changed."""
    return shutil.copytree(original, tmp_path / "runs" / "model")


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def assert_refused(path: Path, *facts: str) -> None:
    with pytest.raises(InputError) as error:
        load(path)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    assert len(message) < 1500
    assert all(fact in message for fact in facts), message


def test_loaded_bundle_equals_the_saved_one(original, tokenizer):
    assert contents(original).keys() == FILES
    assert (original / "README.md").read_text(encoding="utf-8") == "# A model\n\nüber\n"
    assert len({file.stat().st_mode for file in original.iterdir()}) == 1
    parts, loaded, model = bundle.read_bundle(original), load(original), make_model(tokenizer)
    assert (parts.model, parts.search, parts.src_lang, parts.tgt_lang) == (CONFIG, SEARCH, "no", "de")
    assert parts.tokenizer.files == tokenizer.files
    state = parts.make_model().state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    expected = translator_of(model, tokenizer, SEARCH, languages=("no", "de")).n_best(LINES, TranslateOptions(n_best=3))
    assert loaded.n_best(LINES, TranslateOptions(n_best=3)) == expected
    assert loaded.translate([*LINES, ""]) == [best.text for best, *_ in expected] + [""]


@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")
@pytest.mark.parametrize(
    "options", [*({"positions": name} for name in SCHEMES), {"positions": "relative", "beyond": "zero"}], ids=str
)
def test_every_scheme_can_be_saved(tmp_path, tokenizer, options):
    model = make_model(tokenizer, CONFIG.with_positions(**options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    save_model(tmp_path / "model", model, tokenizer)
    stored = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    assert stored.keys() == {name for name, _ in model.named_parameters()}  # T5's buckets once per stack
    loaded = bundle.read_bundle(tmp_path / "model").make_model().eval()
    assert loaded.config == model.config
    batch = torch.randint(4, 30, (2, 9)), torch.tensor([9, 4]), torch.randint(4, 30, (2, 7))
    assert torch.equal(loaded(*batch), model(*batch))


def test_bundle_is_replaced_and_equal_models_give_equal_files(saved, tmp_path, tokenizer):
    (tmp_path / "empty").mkdir()
    for seed, path in (*((2, saved),) * 5, (2, tmp_path / "empty")):  # safetensors writes metadata in a random order
        save(path, tokenizer, seed, card="second")
        assert contents(path) == contents(saved)
    assert (saved / "README.md").read_text() == "second"
    assert torch.equal(bundle.read_bundle(saved).make_model().embedding, make_model(tokenizer, seed=2).embedding)
    assert [entry.name for entry in saved.parent.iterdir()] == ["model"]


def test_save_never_replaces_other_files(saved, tokenizer):
    (saved / "thesis.tex").write_text("years of work")
    before = contents(saved)
    with pytest.raises(InputError, match=r"contains more than a bundle: thesis\.tex"):
        save(saved, tokenizer, 2)
    with pytest.raises(InputError, match=r"thesis\.tex: a bundle must be a directory"):
        save(saved / "thesis.tex", tokenizer)
    assert contents(saved) == before


def test_missing_files_are_named(saved, tmp_path):
    assert_refused(tmp_path / "nowhere", "no such directory")
    (saved / "README.md").unlink()
    assert load(saved).translate([""]) == [""]
    assert bundle.read_bundle(saved).card == ""
    for name in sorted(FILES - {"README.md"}):
        moved = (saved / name).rename(saved.parent / name)
        assert_refused(saved, f"has no {name}")
        moved.rename(saved / name)
    run = tmp_path / "run"
    run.mkdir()
    saved.rename(run / "bundle")
    assert_refused(run, f"not a bundle; use {run / 'bundle'}")


def change_weights(path: Path, change: Callable[[dict[str, Tensor]], object], **metadata: str) -> None:
    state = {name: tensor.clone() for name, tensor in safetensors.torch.load_file(path / "model.safetensors").items()}
    change(state)
    safetensors.torch.save_file(state, path / "model.safetensors", metadata=metadata)


def test_weights_that_do_not_fit(saved, tokenizer):
    """Several differences are named, and the model is not changed."""

    def change(state: dict[str, Tensor]) -> None:
        state["embedding"] = state["embedding"][:-1].contiguous()
        state["extra"] = torch.zeros(2)
        del state["decoder.0.feed_forward.0.bias"]

    pieces, digest, model = tokenizer.vocab_size, tokenizer.digest, make_model(tokenizer)
    change_weights(saved, change, tokenizer=digest)
    facts = (f"embedding must be ({pieces}, 12), got ({pieces - 1}, 12)", "extra is not in the model")
    assert_refused(saved, "decoder.0.feed_forward.0.bias is missing", *facts)
    for dtype in (torch.int8, torch.bool, torch.complex64):
        save(saved, tokenizer)
        change_weights(saved, lambda s, dtype=dtype: s.update(embedding=s["embedding"].to(dtype)), tokenizer=digest)
        assert_refused(saved, "embedding must be floating point", str(dtype).removeprefix("torch."))
    with pytest.raises(InputError, match="do not fit"):
        weights.load_weights(model, {"embedding": np.zeros((pieces, 12), np.float32)}, source="it")
    assert torch.equal(model.embedding, make_model(tokenizer).embedding)


def test_tokenizer_must_be_that_of_the_weights(saved, tokenizer):
    other = Tokenizer.train(["three plums", "drei Pflaumen", *LINES[2:]] * 5, tokenizer.vocab_size, seed=1)
    fact = "tokenizer.model: damaged, or not the one these weights were trained with"
    (saved / "tokenizer.model").write_bytes(other.files["tokenizer.model"])
    assert_refused(saved, fact)
    (saved / "tokenizer.model").write_bytes(tokenizer.files["tokenizer.model"])
    change_weights(saved, lambda state: None, other="metadata")
    assert_refused(saved, fact)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("format"), "format must be relattn bundle, got None"),
        (lambda c: c.update(version="1.0"), "version must be 1, got 1.0"),
        (lambda c: c.pop("search"), "missing: search.beam_size, "),
        (lambda c: c["model"].update(positions="alibi"), "must not be set for alibi positions"),
        (lambda c: c["model"].update(positions=["relative"]), "model.positions must be one of"),
        (lambda c: c.update(colour="red"), "unknown setting 'colour'"),
        (lambda c: c["model"].update(dim="12"), "model.dim must be a whole number"),
        (lambda c: c.update(src_lang=None), "src_lang must be text, got null"),
        (lambda c: c.update(tgt_lang=1.5), "tgt_lang must be text, got 1.5"),
        (lambda c: c.update(pairs=["no de", True]), "pairs must be a list, each of text, got [no de, true]"),
        (lambda c: c.update(tgt_lang="\ud800"), "not JSON: 'utf-8' codec can't encode character '\\ud800'"),
        (lambda c: c.update({"": 1}), "unknown setting ''"),
        (lambda c: c.update({"model.dim": 12}), "model.dim is given twice"),
        (lambda c: c["model"].update(heads=5), "heads must divide dim"),
        (lambda c: c["search"].update(beam_size=0), "beam_size must be in [1, 1000], got 0"),
        # Memory for a model is allocated only if the weights fit.
        (lambda c: c["model"].update(dim=1_000_000, heads=1), "dim must be in [1, 65536]"),
        (lambda c: c["model"].update(dim=1200), "the weights do not fit the model: "),
        (lambda c: c["model"].update(encoder_layers=999), "tensors for 1001 layers"),
        (lambda c: c["model"].update(feed_forward_dim=2**20), "must be (1048576,), got (20,)"),
        (lambda c: c["model"].update(feed_forward_dim=24), "; and 4 more"),
    ],
)
def test_wrong_config_is_refused(saved, monkeypatch, change, message):
    config = json.loads((saved / "bundle.json").read_text())
    change(config)
    (saved / "bundle.json").write_text(json.dumps(config))
    monkeypatch.setattr(weights, "Transformer", None)
    assert_refused(saved, message)
    for content in (
        b"",
        b"[1]",
        b'{"a": [1',
        b'{"a": "\xff"}',
        b'{"a": 1, "a": 2}',
        *(b'{"a":' * depth + b"1" + b"}" * depth for depth in (990, 1500, 5000)),
    ):
        (saved / "bundle.json").write_bytes(content)
        assert_refused(saved, "bundle.json: ")


@pytest.mark.parametrize("name", sorted(FILES - {"README.md"}))
def test_randomly_damaged_file_is_read_or_refused(saved, tokenizer, name):
    """Files are truncated, bytes replaced and bits flipped. A bundle that still loads has the right tokenizer."""
    source, whole, refused = random.Random(name), (saved / name).read_bytes(), 0
    for turn in range(15):
        damaged = bytearray(whole)
        start = source.randrange(len(whole) if turn % 4 else min(len(whole), 1500))
        if turn % 3 == 0:
            del damaged[start:]
        elif turn % 3 == 1:
            damaged[start : start + source.randrange(20)] = source.randbytes(source.randrange(20))
        else:
            damaged[start] ^= 1 << source.randrange(8)
        (saved / name).write_bytes(damaged)
        try:
            assert load(saved).tokenizer.files == tokenizer.files
        except InputError:
            refused += 1
            assert_refused(saved)
    assert refused >= 5
    for kept in (0, 5, 50):
        (saved / name).write_bytes(whole[:kept])
        assert_refused(saved, f"{name}: ")
