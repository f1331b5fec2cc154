"""A bundle comes back as it was saved, and whatever is wrong with one is said in one line."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
import yaml
from torch import Tensor

import relattn.translation
from relattn.translation import bundle
from relattn.translation.config import Calibration, DataConfig, ModelConfig, Recipe, SearchConfig
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError
from relattn.translation.model.positions.schemes import SCHEMES
from relattn.translation.model.transformer import Transformer
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.torch_translator import TorchTranslator

FILES = {"config.yaml", "model.safetensors", "tokenizer.model", "README.md"}
LINES = ["one apple and two pears", "zwei Birnen und ein Apfel", "17 apples, 4 pears", "17 Äpfel, 4 Birnen"]
RECIPE = Recipe(
    model=ModelConfig(
        dim=12, heads=3, feed_forward_dim=20, encoder_layers=1, decoder_layers=2, clip=3, clip_right=1, norm="post"
    ),
    data=DataConfig(src_lang="no", tgt_lang="de"),  # a language that YAML reads as false
    search=SearchConfig(beam_size=3, length_penalty="average", alpha=0.0, max_length_ratio=1.25, max_length_extra=2),
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(LINES * 5, 300, seed=1)


def make_model(tokenizer: Tokenizer, seed: int = 1) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(RECIPE.model, tokenizer.vocab_size)


@pytest.fixture
def saved(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    path = tmp_path / "runs" / "model"
    bundle.save(path, model=make_model(tokenizer), recipe=RECIPE, tokenizer=tokenizer, card="# A model\n\nüber\n")
    return path


def change_config(path: Path, change: Callable[[dict], object]) -> None:
    config = yaml.safe_load((path / "config.yaml").read_text())
    change(config)
    (path / "config.yaml").write_text(yaml.safe_dump(config))


def change_weights(path: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    state = {name: tensor.clone() for name, tensor in safetensors.torch.load_file(path / "model.safetensors").items()}
    change(state)
    with safetensors.safe_open(path / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
    safetensors.torch.save_file(state, path / "model.safetensors", metadata=metadata)


def test_what_is_loaded_is_what_was_saved(saved, tokenizer):
    assert {file.name for file in saved.iterdir()} == FILES
    assert (saved / "README.md").read_text(encoding="utf-8") == "# A model\n\nüber\n"
    parts = bundle.read_bundle(saved)
    assert (parts.model, parts.search) == (RECIPE.model, RECIPE.search)
    assert (parts.src_lang, parts.tgt_lang) == ("no", "de")
    assert parts.tokenizer.model_bytes == tokenizer.model_bytes
    loaded = relattn.translation.load(saved)
    original = make_model(tokenizer)
    assert not loaded.model.training
    assert loaded.model.state_dict().keys() == original.state_dict().keys()
    assert all(torch.equal(tensor, original.state_dict()[name]) for name, tensor in loaded.model.state_dict().items())


VARIANTS = {**{name: {"positions": name} for name in SCHEMES}, "zero": {"positions": "relative", "beyond": "zero"}}
BLIND = "ignore:positions. none:UserWarning"


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings(BLIND)
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_scheme_comes_back(tmp_path, tokenizer, options):
    recipe = replace(RECIPE, model=RECIPE.model.with_positions(**options))
    torch.manual_seed(1)
    model = Transformer(recipe.model, tokenizer.vocab_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    bundle.save(tmp_path / "model", model=model, recipe=recipe, tokenizer=tokenizer, card="")
    stored = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    assert stored.keys() == {name for name, _ in model.named_parameters()}
    assert sum("bucket" in name for name in stored) == (2 if options["positions"] == "t5" else 0)  # one a stack
    loaded = relattn.translation.load(tmp_path / "model").model
    assert loaded.config == recipe.model
    lengths = torch.tensor([9, 4])
    batch = torch.randint(4, 30, (2, 9)), lengths, torch.randint(4, 30, (2, 7))
    assert torch.equal(loaded(*batch), model(*batch))


def test_a_calibration_is_written_into_a_bundle(saved):
    before = bundle.read_bundle(saved)
    assert relattn.translation.load(saved).calibration == Calibration()
    bundle.calibrate(saved, Calibration(bias=1.5, slope=2.25))
    after = bundle.read_bundle(saved)
    assert after.calibration == Calibration(bias=1.5, slope=2.25)
    assert (after.model, after.search, after.src_lang) == (before.model, before.search, before.src_lang)
    assert relattn.translation.load(saved).calibration == after.calibration
    assert {file.name for file in saved.iterdir()} == FILES


def test_an_option_of_another_scheme_is_refused(saved):
    change_config(saved, lambda c: c["model"].update(positions="alibi"))
    with pytest.raises(InputError, match=r"config\.yaml: beyond must not be set for alibi positions, got "):
        relattn.translation.load(saved)


def test_it_translates_as_the_model_that_was_saved(saved, tokenizer):
    expected = TorchTranslator(make_model(tokenizer), tokenizer, RECIPE.search).n_best(
        LINES, TranslateOptions(n_best=3)
    )
    loaded = relattn.translation.load(saved)
    assert loaded.n_best(LINES, TranslateOptions(n_best=3)) == expected
    assert loaded.translate([*LINES, ""]) == [best.text for best, *_ in expected] + [""]


def test_a_tensor_used_twice_is_stored_once(tmp_path, tokenizer):
    def tied(seed: int) -> Transformer:
        model = make_model(tokenizer, seed)
        model.decoder[1].feed_forward = model.decoder[0].feed_forward
        return model

    bundle.save(tmp_path / "tied", model=tied(1), recipe=RECIPE, tokenizer=tokenizer, card="")
    state = safetensors.torch.load_file(tmp_path / "tied" / "model.safetensors")
    assert "decoder.0.feed_forward.0.weight" in state
    assert "decoder.1.feed_forward.0.weight" not in state
    other = tied(2)
    bundle.load_weights(other, state, source="it")
    assert all(torch.equal(tensor, tied(1).state_dict()[name]) for name, tensor in other.state_dict().items())


def test_a_bundle_is_replaced_by_another(saved, tokenizer):
    bundle.save(saved, model=make_model(tokenizer, 2), recipe=RECIPE, tokenizer=tokenizer, card="second")
    assert (saved / "README.md").read_text() == "second"
    assert torch.equal(relattn.translation.load(saved).model.embedding, make_model(tokenizer, 2).embedding)
    assert [entry.name for entry in saved.parent.iterdir()] == ["model"]  # nothing is left beside it


def test_an_empty_directory_is_filled(tmp_path, tokenizer):
    (tmp_path / "model").mkdir()
    bundle.save(tmp_path / "model", model=make_model(tokenizer), recipe=RECIPE, tokenizer=tokenizer, card="")
    assert relattn.translation.load(tmp_path / "model").translate([""]) == [""]


def test_a_directory_with_anything_else_in_it_is_refused(saved, tokenizer):
    (saved / "thesis.tex").write_text("years of work")
    before = {file.name: file.read_bytes() for file in saved.iterdir()}
    with pytest.raises(InputError, match=r"not replaced, because it contains more than a bundle: thesis\.tex"):
        bundle.save(saved, model=make_model(tokenizer, 2), recipe=RECIPE, tokenizer=tokenizer, card="")
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before


def test_a_file_in_the_place_is_refused(tmp_path, tokenizer):
    (tmp_path / "model").write_text("mine")
    with pytest.raises(InputError, match="model: a bundle must be a directory, got a file"):
        bundle.save(tmp_path / "model", model=make_model(tokenizer), recipe=RECIPE, tokenizer=tokenizer, card="")
    assert (tmp_path / "model").read_text() == "mine"


@pytest.mark.parametrize("failing", ["pathlib.Path.write_bytes", "os.fsync", "pathlib.Path.rename"])
def test_a_save_that_fails_keeps_the_bundle_before_it(saved, tokenizer, monkeypatch, failing):
    before = {file.name: file.read_bytes() for file in saved.iterdir()}
    rename, calls = Path.rename, []

    def fail(*args: object, **_: object) -> object:
        calls.append(args)
        if failing == "pathlib.Path.rename" and len(calls) != 2:  # the second puts the new bundle in place
            return rename(*args)  # type: ignore[arg-type]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(failing, fail)
    with pytest.raises(InputError, match=r"runs/model: cannot be written: .*No space left on device"):
        bundle.save(saved, model=make_model(tokenizer, 2), recipe=RECIPE, tokenizer=tokenizer, card="second")
    monkeypatch.undo()
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before
    assert [entry.name for entry in saved.parent.iterdir()] == ["model"]


def test_every_file_can_be_read_by_whom_the_others_can(saved):
    assert len({file.stat().st_mode for file in saved.iterdir()}) == 1


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere: no such directory"):
        relattn.translation.load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", sorted(FILES - {"README.md"}))
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(InputError, match=f"model: not a complete bundle: it has no {name}$"):
        relattn.translation.load(saved)


def test_the_card_is_for_people(saved):
    (saved / "README.md").unlink()
    assert relattn.translation.load(saved).translate([""]) == [""]


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_truncated_weights_are_reported(saved, kept):
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"model\.safetensors: truncated, damaged, or not a safetensors file: .*") as e:
        relattn.translation.load(saved)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("kept", [0, 5, 1000, -100])
def test_a_truncated_tokenizer_is_reported(saved, kept):
    (saved / "tokenizer.model").write_bytes((saved / "tokenizer.model").read_bytes()[:kept])
    with pytest.raises(InputError, match=r"tokenizer\.model: "):
        relattn.translation.load(saved)


def test_all_weights_that_do_not_fit_are_told_at_once(saved, tokenizer):
    def change(state: dict[str, Tensor]) -> None:
        state["embedding"] = state["embedding"][:-1].contiguous()
        state["extra"] = torch.zeros(2)
        del state["decoder.0.feed_forward.0.bias"]

    change_weights(saved, change)
    with pytest.raises(InputError) as error:
        relattn.translation.load(saved)
    pieces = tokenizer.vocab_size
    assert str(error.value) == (
        f"{saved}/model.safetensors: the weights do not fit the model: decoder.0.feed_forward.0.bias is missing; "
        f"embedding must be ({pieces}, 12), got ({pieces - 1}, 12); extra is not in the model"
    )


def test_many_weights_that_do_not_fit_are_counted(saved):
    change_config(saved, lambda config: config["model"].update(feed_forward_dim=24))
    with pytest.raises(InputError, match=r"; and 4 more$") as error:
        relattn.translation.load(saved)
    assert len(str(error.value).split("; ")) == 6


def test_a_model_is_left_as_it_was_by_weights_that_do_not_fit(tokenizer):
    model = make_model(tokenizer)
    with pytest.raises(InputError, match="is missing"):
        bundle.load_weights(model, {"embedding": torch.zeros_like(model.embedding)}, source="it")
    assert torch.equal(model.embedding, make_model(tokenizer).embedding)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("format"), "format must be relattn bundle, got None"),
        (lambda c: c.update(version=5), "version must be 1, got 5$"),
        (lambda c: c.update(version="1.0"), r"version must be 1, got 1\.0$"),
        (lambda c: c.update(version=[1]), r"version must be 1, got \[\]$"),
        (lambda c: c.pop("version"), "version must be 1, got None$"),
        (lambda c: c.pop("search"), r"missing: search\.beam_size, "),
        (lambda c: c["search"].pop("early_stopping"), r"missing: search\.early_stopping$"),
        (lambda c: c.pop("calibration"), r"missing: calibration\.bias, calibration\.slope$"),
        (lambda c: c["model"].update(positions=None), r"model\.positions must be "),
        (lambda c: c["model"].update(positions=["relative"]), r"model\.positions must be one value$"),
        (lambda c: c.update(colour="red"), "unknown setting 'colour'"),
        (lambda c: c.pop("tgt_lang"), "missing: tgt_lang"),
        (lambda c: c.update(src_lang=["no"]), "src_lang must be one value$"),
        (lambda c: c.update(model=[1]), "model must be a group of settings$"),
        (lambda c: c["model"].update(hidden=3), r"unknown setting 'model\.hidden'"),
        (lambda c: c["model"].pop("clip"), r"missing: model\.clip$"),
        (
            lambda c: c["model"].update(dim="12"),
            r"model\.dim must be ",
        ),
        (
            lambda c: c["model"].update(dim=True),
            r"model\.dim must be ",
        ),
        (lambda c: c["model"].update(heads=5), "heads must divide dim"),
        (lambda c: c["model"].update(clip_right=1.5), r"model\.clip_right must be "),
        (lambda c: c["model"].update(norm="mid"), r"model\.norm must be "),
        (
            lambda c: c["search"].update(alpha="0.6"),
            r"search\.alpha must be ",
        ),
        (lambda c: c["search"].update(beam_size=0), r"beam_size must be in \[1, 1000\], got 0"),
    ],
)
def test_a_config_that_is_wrong_is_reported(saved, change, message):
    change_config(saved, change)
    with pytest.raises(InputError, match=rf"model/config\.yaml: {message}"):
        relattn.translation.load(saved)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "format must be relattn bundle, got None"),
        (b"- 1\n", "must be a mapping"),
        (b"a: [1\n", "not YAML: "),
        (b"a: \xff\n", "not UTF-8 at byte 3"),
        (b"a: !!python/object/apply:os.system ['touch pwned']\n", "format must be relattn bundle, got None"),
    ],
)
def test_a_config_that_is_no_config_is_reported(saved, content, message):
    (saved / "config.yaml").write_bytes(content)
    with pytest.raises(InputError, match=rf"config\.yaml: {message}") as error:
        relattn.translation.load(saved)
    assert "\n" not in str(error.value)


def test_numbers_may_be_whole_where_fractions_are_meant(saved):
    change_config(saved, lambda config: config["search"].update(alpha=1))
    assert bundle.read_bundle(saved).search.alpha == 1


@pytest.mark.whole
def test_a_bundle_is_loaded_without_lightning_and_the_package_without_anything(saved):
    script = """
import sys
import relattn.translation
assert "sentencepiece" not in sys.modules and "yaml" not in sys.modules
relattn.translation.load(sys.argv[1]).translate(["one apple"])
assert not {"lightning", "datasets", "sacrebleu", "matplotlib"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script, str(saved)], check=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(FILES - {"README.md"}))
def test_whatever_happens_to_a_file_it_is_read_or_refused_in_one_line(saved, tokenizer, name):
    """Bits turned, bytes lost, bytes put in: a tokenizer is the same or refused, all else translates."""
    source, whole = random.Random(name), (saved / name).read_bytes()
    refused = 0
    for turn in range(24):
        damaged = bytearray(whole)
        at = source.randrange(len(whole) if turn % 4 else min(len(whole), 1500))
        if turn % 3 == 0:
            del damaged[at:]
        elif turn % 3 == 1:
            damaged[at : at + source.randrange(20)] = source.randbytes(source.randrange(20))
        else:
            damaged[at] ^= 1 << source.randrange(8)
        (saved / name).write_bytes(damaged)
        told: InputError | None = None
        try:
            loaded = relattn.translation.load(saved)
        except InputError as error:
            told = error
        if told:
            refused += 1
            assert str(told).startswith(f"{saved}/")
            assert "\n" not in str(told)
            assert len(str(told)) < 1500
        else:
            assert loaded.tokenizer.model_bytes == tokenizer.model_bytes
    assert refused > 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 1_000_000, "heads": 1}, r"config\.yaml: dim must be in \[1, 65536\], got 1000000$"),
        ({"decoder_layers": 10**6}, r"config\.yaml: decoder_layers must be in \[1, 1000\], got 1000000$"),
        ({"dim": 1_200}, r"model\.safetensors: the weights do not fit the model: .*; and \d+ more$"),
        (
            {"encoder_layers": 999},
            r"model\.safetensors: the weights do not fit the model: \d+ tensors for 1001 layers$",
        ),
        ({"feed_forward_dim": 2**20}, r"the weights do not fit the model: .* must be \(1048576,\), got \(20,\)"),
    ],
)
def test_no_room_is_made_for_a_model_that_the_weights_are_not_of(saved, monkeypatch, changes, message):
    change_config(saved, lambda config: config["model"].update(changes))
    monkeypatch.setattr(bundle, "load_weights", None)  # what a model with room for its weights would be given to
    with pytest.raises(InputError, match=message):
        relattn.translation.load(saved)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64])
def test_weights_that_are_no_real_numbers_are_refused(saved, dtype):
    change_weights(saved, lambda state: state.update(embedding=state["embedding"].to(dtype)))
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(InputError, match=rf"not fit the model: embedding must be floating point, got {kind}$"):
        relattn.translation.load(saved)


def test_weights_without_the_digest_of_their_tokenizer_are_refused(saved):
    state = safetensors.torch.load_file(saved / "model.safetensors")
    safetensors.torch.save_file(state, saved / "model.safetensors")
    with pytest.raises(InputError, match=r"tokenizer\.model: damaged, or not the one these weights were trained with$"):
        relattn.translation.load(saved)


def test_a_tokenizer_of_other_weights_is_refused(saved, tokenizer):
    other = Tokenizer.train(["three plums", "drei Pflaumen", *LINES[2:]] * 5, tokenizer.vocab_size, seed=1)
    (saved / "tokenizer.model").write_bytes(other.model_bytes)
    with pytest.raises(InputError, match=r"tokenizer\.model: damaged, or not the one these weights were trained with$"):
        relattn.translation.load(saved)


def test_the_same_model_is_the_same_files(tmp_path, tokenizer):
    made = []
    for turn in range(12):
        path = tmp_path / str(turn)
        bundle.save(path, model=make_model(tokenizer), recipe=RECIPE, tokenizer=tokenizer, card="")
        made.append({file.name: file.read_bytes() for file in path.iterdir()})
    assert all(files == made[0] for files in made)
