"""Configurations: which values are refused, how YAML becomes settings, and how changes are reported."""

from __future__ import annotations

import json
import random
import re
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from relattn.translation.config import (
    OPTION_NAMES,
    OPTIONS,
    Calibration,
    CleaningConfig,
    DataConfig,
    ModelConfig,
    Positions,
    Recipe,
    SearchConfig,
    TrainConfig,
    as_dict,
    differences,
    dump,
)
from relattn.translation.config.yaml import read_yaml, recipe_flags, to_config
from relattn.translation.errors import InputError


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (ModelConfig, {"dim": 10, "heads": 3}, "heads must divide dim, got heads 3 and dim 10"),
        (ModelConfig, {"heads": 0}, "heads must be in [1, 65536], got 0"),
        (ModelConfig, {"clip": -1}, "clip must be in [0, 65536], got -1"),
        (ModelConfig, {"clip_right": -2}, "clip_right must be in [0, 65536], got -2"),
        (ModelConfig, {"dropout": 1.0}, "dropout must be in [0, 1), got 1.0"),
        (ModelConfig, {"attention_dropout": -0.1}, "attention_dropout must be in [0, 1), got -0.1"),
        (ModelConfig, {"activation_dropout": float("nan")}, "activation_dropout must be in [0, 1), got nan"),
        (ModelConfig, {"positions": "cnn", "kernel_size": 4}, "kernel_size must be odd, got 4"),
        (ModelConfig, {"positions": "cnn", "kernel_size": 0}, "kernel_size must be in [1, 999], got 0"),
        (ModelConfig, {"positions": "cnn", "kernel_size": 1001}, "kernel_size must be in [1, 999], got 1001"),
        (ModelConfig, {"dim": 9, "heads": 3, "positions": "xl"}, "dim must be even for xl positions, got 9"),
        (ModelConfig, {"dim": 9, "heads": 3, "positions": "lstm"}, "dim must be even for lstm positions, got 9"),
        (
            ModelConfig,
            {"dim": 9, "heads": 3, "positions": "sinusoidal"},
            "dim must be even for sinusoidal positions, got 9",
        ),
        (
            ModelConfig,
            {"dim": 9, "heads": 3, "positions": "relative+sinusoidal"},
            "dim must be even for relative+sinusoidal positions, got 9",
        ),
        (
            ModelConfig,
            {"dim": 18, "heads": 6, "positions": "rope"},
            "dim / heads must be even for rope positions, got 3",
        ),
        (
            ModelConfig,
            {"dim": 18, "heads": 6, "positions": "rove"},
            "dim / heads must be even for rove positions, got 3",
        ),
        (DataConfig, {"train_src": "a"}, "train_src requires train_tgt and vice versa, got 'a' and ''"),
        (
            DataConfig,
            {"train_src": "a", "train_tgt": "b", "valid_tgt": "c"},
            "valid_src requires valid_tgt and vice versa, got '' and 'c'",
        ),
        (
            DataConfig,
            {"train_src": "a", "train_tgt": "b", "train_list": "c"},
            "train_list must not be set together with train_src, got 'c'",
        ),
        (
            DataConfig,
            {"valid_src": "a", "valid_tgt": "b"},
            "valid_src and valid_list require train_src or train_list",
        ),
        (TrainConfig, {"learning_rate_factor": 0.0}, "learning_rate_factor must be in (0, 1e6], got 0.0"),
        (TrainConfig, {"average": 6, "keep": 5}, "average must be at most keep (5), got 6"),
        (TrainConfig, {"strategy": "fsdp"}, "strategy must be ddp for a single process, got fsdp"),
        (
            SearchConfig,
            {"max_length_ratio": 0.0, "max_length_extra": 0},
            "max_length_ratio + max_length_extra must be at least 1, got 0.0",
        ),
        (Recipe, {"out": ""}, "out must name a directory"),
    ],
)
def test_invalid_values_are_refused(kind, values, message):
    with pytest.raises(InputError) as error:
        kind(**values)
    assert str(error.value) == message


def test_smallest_values():
    ModelConfig(dim=1, heads=1, clip=0, clip_right=0, dropout=0.0)
    for positions in ("none", "learned", "relative", "t5", "alibi", "cnn"):
        ModelConfig(dim=1, heads=1, positions=positions)
    ModelConfig(dim=2, heads=1, positions="lstm")
    ModelConfig(dim=6, heads=3, positions="rove")
    ModelConfig(positions="learned", max_positions=1)
    ModelConfig(positions="cnn", kernel_size=1)
    DataConfig(builtin_lines=1, vocab_size=1, max_tokens=1, max_words=1)
    TrainConfig(steps=1, warmup_steps=1, keep=1, average=1, patience=0, label_smoothing=0.0)
    SearchConfig(beam_size=1, alpha=0, max_length_ratio=0.0, max_length_extra=1)
    Recipe(seed=0)


def read_recipe(path: Path) -> Recipe:
    return to_config(Recipe, read_yaml(path), path)


OTHER_VALUES = {  # a value of each option that is not the default
    "clip": 5,
    "clip_right": 2,
    "beyond": "zero",
    "relative_tables": "keys",
    "tables_per_head": True,
    "max_positions": 9,
    "kernel_size": 7,
}
POSITIONS = get_args(Positions)


def test_options_are_settings_of_schemes():
    assert set(OPTIONS) <= set(POSITIONS)
    assert sorted(OTHER_VALUES) == OPTION_NAMES
    assert OPTIONS["relative"] == OPTIONS["relative+sinusoidal"]
    assert (ModelConfig().clipping_range, ModelConfig().beyond, ModelConfig().relative_tables) == (
        (16, 16),
        "clip",
        "both",
    )
    assert ModelConfig().tables_per_head is False
    assert ModelConfig(positions="learned").max_positions == 1024
    assert ModelConfig(positions="cnn").kernel_size == 3
    unset = {setting.name for setting in fields(ModelConfig) if setting.default is None}
    assert unset == set(OPTION_NAMES)


@pytest.mark.parametrize("option", OPTION_NAMES)
@pytest.mark.parametrize("positions", POSITIONS)
def test_an_option_can_be_set_for_its_schemes_only(positions, option):
    """Options that are not given have their defaults. For other schemes, even the default value is refused."""
    defaults = OPTIONS.get(positions, {})
    config = ModelConfig(positions=positions)
    assert getattr(config, option) == defaults.get(option)
    values = [OTHER_VALUES[option], *(options.get(option) for options in OPTIONS.values())]
    for value in [value for value in values if value is not None]:
        if option in defaults:
            given = ModelConfig(positions=positions, **{option: value})
            assert as_dict(given) == {**as_dict(config), option: value}
        else:
            message = rf"^{option} must not be set for {re.escape(positions)} positions, got {value}$"
            with pytest.raises(InputError, match=message):
                ModelConfig(positions=positions, **{option: value})
            with pytest.raises(InputError, match=message):
                replace(config, **{option: value})
            with pytest.raises(InputError, match=message):
                config.with_positions(positions, **{option: value})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("positions", POSITIONS)
def test_with_positions(tmp_path, positions):
    """The scheme can be changed from any other, and the result can be written and read."""
    options = {name: OTHER_VALUES[name] for name in OPTIONS.get(positions, {})}
    wanted = ModelConfig(dim=32, norm="post", positions=positions, **options)
    for other in POSITIONS:
        before = ModelConfig(
            dim=32, norm="post", positions=other, **{n: OTHER_VALUES[n] for n in OPTIONS.get(other, {})}
        )
        assert before.with_positions(positions, **options) == wanted
        assert before.with_positions(positions) == ModelConfig(dim=32, norm="post", positions=positions)
    for model in (wanted, wanted.with_positions(positions)):
        recipe = Recipe(model=model)
        (tmp_path / "recipe.yaml").write_text(dump(recipe))
        assert read_recipe(tmp_path / "recipe.yaml") == recipe


def test_configurations_are_immutable_and_comparable():
    recipe = Recipe()
    with pytest.raises(FrozenInstanceError):
        recipe.seed = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        ModelConfig(512)  # type: ignore[misc]
    assert recipe == Recipe()
    assert hash(recipe) == hash(Recipe())


@pytest.mark.parametrize(("clip", "right", "expected"), [(3, None, (3, 3)), (3, 0, (3, 0)), (0, 2, (0, 2))])
def test_clipping_range(clip, right, expected):
    assert ModelConfig(clip=clip, clip_right=right).clipping_range == expected


@pytest.mark.parametrize("config", [ModelConfig, DataConfig, TrainConfig, SearchConfig, Recipe])
def test_every_setting_is_documented(config):
    """The docstrings are the text of --help."""
    assert is_dataclass(config)
    for setting in fields(config):
        assert f"        {setting.name}: " in config.__doc__, setting.name


def flags_as_dict(flags: list[str]) -> dict[str, Any]:
    return dict(flag.removeprefix("--").split("=", 1) for flag in flags)  # type: ignore[misc]


def flags_of(tmp_path: Path, text: str | bytes) -> dict[str, Any]:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return flags_as_dict(recipe_flags(str(path)))


def test_values_stay_text(tmp_path):
    text = (
        "seed: 007\ndata: {src_lang: no, tgt_lang: on, train_src: 1e-4, train_tgt: 2020-01-01}\nmodel: {clip: 0x10}\n"
    )
    expected = {"seed": "007", "data.src_lang": "no", "data.tgt_lang": "on", "data.train_src": "1e-4"}
    assert flags_of(tmp_path, text) == {**expected, "data.train_tgt": "2020-01-01", "model.clip": "0x10"}


def test_a_name_without_a_value_is_null_unless_the_setting_is_text(tmp_path):
    text = "data:\n  train_src:\n  max_words:\nmodel:\n  clip_right: null\n"
    assert flags_of(tmp_path, text) == {"data.train_src": "", "data.max_words": "null", "model.clip_right": "null"}


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_recipe_has_no_settings(tmp_path, text):
    assert flags_of(tmp_path, text) == {}


def test_a_dumped_recipe_can_be_read(tmp_path):
    recipe = Recipe(data=DataConfig(src_lang="no", tgt_lang="null", train_src="1e-4", train_tgt="über: x"), seed=3)
    flags = flags_of(tmp_path, dump(recipe))
    assert flags["data.src_lang"] == "no"
    assert flags["data.train_tgt"] == "über: x"
    assert flags["model.clip_right"] == "null"
    assert yaml.safe_load(dump(recipe)) == as_dict(recipe)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modell: {dim: 3}", r"unknown setting 'modell\.dim'; did you mean model\.dim"),
        ("model: {dims: 3}", r"unknown setting 'model\.dims'; did you mean model\.dim"),
        ("train: {warmup: 3}", r"unknown setting 'train\.warmup'; did you mean train\.warmup_steps"),
        ("xyzzy: {xyzzy: 3}", r"unknown setting 'xyzzy\.xyzzy'$"),
        ("dim: 3", "unknown setting 'dim'"),
        ("7: 3", "unknown setting '7'"),
        ("model: 3", "model must be a group of settings$"),
        ("model:", "model must be a group of settings$"),
        ("model: [1]", "model must be a group of settings$"),
        ("seed: {a: 1}", r"unknown setting 'seed\.a'; did you mean seed"),
        ("model: {dim: [1, 2]}", r"model\.dim must be one value$"),
        ("- seed", "must be a mapping of names to values$"),
        ("words", "must be a mapping of names to values$"),
        ("model: {", "not YAML: "),
        ("a: b: c", "not YAML: "),
        (b"seed: \xff", "not UTF-8 at byte 6$"),
        (b"seed: \x00", "not YAML: "),
    ],
)
def test_invalid_recipes_are_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=rf"recipe\.yaml: {message}"):
        flags_of(tmp_path, text)


def test_errors_name_the_recipe(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.yaml: "):
        recipe_flags(str(tmp_path / "nowhere.yaml"))
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        recipe_flags(str(tmp_path))


def test_differences_have_full_names():
    old = Recipe()
    new = replace(old, seed=9, model=replace(old.model, clip_right=3, dim=64), search=replace(old.search, alpha=0.0))
    assert differences(as_dict(old), as_dict(new)) == [
        "model.clip_right: None → 3",
        "model.dim: 512 → 64",
        "search.alpha: 0.6 → 0.0",
        "seed: 1 → 9",
    ]
    assert differences(as_dict(old), as_dict(Recipe())) == []
    assert differences({"a": {"b": 1}}, {"a": {}, "c": 2}) == ["a.b: 1 → None", "c: None → 2"]


CONFIGS = (ModelConfig, DataConfig, TrainConfig, SearchConfig, Recipe)
SETTINGS = [(kind, setting.name) for kind in CONFIGS for setting in fields(kind)]


def assert_one_line(error: InputError) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 1000


@pytest.mark.parametrize("value", [10**400, -(10**400), 2**63, float("inf"), float("-inf"), float("nan"), 1e300])
def test_every_number_has_a_range(value):
    numbers = [(kind, name) for kind, name in SETTINGS if type(getattr(kind(), name)) in (int, float)]
    optional = [(ModelConfig, name) for name in ("clip", "clip_right", "max_positions", "kernel_size")]
    optional += [(DataConfig, "max_words"), (TrainConfig, "threads")]
    optional += [(CleaningConfig, field.name) for field in fields(CleaningConfig) if "None" in field.type]
    optional += [(Calibration, field.name) for field in fields(Calibration)]
    assert len(numbers) == 37
    for kind, name in numbers + optional:
        with pytest.raises(InputError, match=rf"^{name} must be in ") as error:
            kind(**{name: value})
        assert_one_line(error.value)


@pytest.mark.parametrize("value", ["runs/\udcff", "runs/\0"])
def test_text_that_is_not_utf8_is_refused(value):
    texts = [(kind, name) for kind, name in SETTINGS if isinstance(getattr(kind(), name), str)]
    for kind, name in texts:
        with pytest.raises(InputError, match=rf"^{name} must be UTF-8 without NUL, got ") as error:
            kind(**{name: value})
        assert_one_line(error.value)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(10))
def test_random_recipes_are_read_or_refused_in_one_line(tmp_path, seed):
    source = random.Random(seed)
    values = ["0", "-1", "1e999", ".nan", "9" * 5000, "0x1F", "1:30", "null", "", "true", "no", "'3'", "[1]", "{a: 1}"]
    values += [
        "*a",
        "&a 3",
        "!!int 3",
        "!!python/name:os.system",
        "2020-01-01",
        '"\\0"',
        '"\\ud800"',
        "|\n  x",
        "é",
        "3 #",
    ]
    for _ in range(8):
        lines = []
        for name, default in as_dict(Recipe()).items():
            if isinstance(default, dict):
                lines += [f"{name}:", *(f"  {key}: {source.choice(values)}" for key in source.sample(list(default), 2))]
            elif source.random() < 0.3:
                lines.append(f"{name}: {source.choice(values)}")
        (tmp_path / "recipe.yaml").write_text("\n".join(lines), encoding="utf-8")
        refusal: InputError | None = None
        try:
            recipe = read_recipe(tmp_path / "recipe.yaml")
        except InputError as error:
            refusal = error
        if refusal:
            assert str(refusal).startswith(f"{tmp_path}/recipe.yaml: ")
            assert_one_line(refusal)
        else:
            (tmp_path / "again.yaml").write_text(dump(recipe), encoding="utf-8")
            assert read_recipe(tmp_path / "again.yaml") == recipe


@pytest.mark.parametrize(
    "text", ["no", "NO", "1e-4", "null", "~", "'", '"', "a: b", "- x", "# x", " x ", "é\u2028", "\t", "[", "*a"]
)
def test_any_text_can_be_written_and_read(tmp_path, text):
    recipe = Recipe(out=text, data=DataConfig(src_lang=text, train_src=text, train_tgt=text))
    (tmp_path / "recipe.yaml").write_text(dump(recipe), encoding="utf-8")
    assert read_recipe(tmp_path / "recipe.yaml") == recipe


LAUGHS = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghij"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nseed: 2", "seed is given twice, again in line 2$"),
        ("model: {dim: 8, heads: 2, dim: 16}", r"model\.dim is given twice, again in line 1$"),
        (LAUGHS, "unknown setting 'a'"),
        ("[" * 5000, "not YAML: maximum recursion depth"),
        ("{model: " * 5000, "not YAML: "),
        ("model: &m {dim: *m}", r"unknown setting 'model\.dim\.dim'"),
        ("? [a]\n: 3", "unknown setting 'a list or a group'"),
        ("seed: '3'", "seed must be a whole number, got '3'"),
        ("model: {clip_right: 'null'}", "model.clip_right must be "),
        ('out: "a\\0b"', "out must be UTF-8 without NUL"),
        ("x" * (1 << 20) + "x", "must have at most 1,048,576 bytes$"),
        ("seed: 1\n---\nseed: 2", "not YAML: "),
    ],
)
def test_yaml_that_recipes_do_not_support(tmp_path, text, message):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(InputError, match=rf"recipe\.yaml: {message}") as error:
        read_recipe(tmp_path / "recipe.yaml")
    assert_one_line(error.value)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('relative_tables: "keys"', {"relative_tables": "keys"}),
        ("relative_tables: 'values', beyond: 'zero'", {"relative_tables": "values", "beyond": "zero"}),
        ("beyond: zero, clip: 3", {"beyond": "zero", "clip": 3}),
        ("clip: null, beyond: null, relative_tables: , tables_per_head: null, kernel_size: null", {}),
        ("positions: 'cnn', kernel_size: 5, clip: null", {"positions": "cnn", "kernel_size": 5}),
    ],
)
def test_options_in_quotes_and_null(tmp_path, text, options):
    (tmp_path / "recipe.yaml").write_text(f"model: {{{text}}}")
    assert read_recipe(tmp_path / "recipe.yaml").model == ModelConfig(**options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("positions: alibi, clip: 16", "clip must not be set for alibi positions, got 16$"),
        ("positions: rope, tables_per_head: false", "tables_per_head must not be set for rope positions, got False$"),
        ("positions: lstm, beyond: 'clip'", "beyond must not be set for lstm positions, got clip$"),
        (
            "positions: rope, max_positions: 9, clip: 2, beyond: zero",
            "beyond must not be set for rope positions, got zero$",
        ),
        ("kernel_size: 3", "kernel_size must not be set for relative positions, got 3$"),
        ("beyond: 'null'", "model.beyond must be "),
        ("beyond: far", "model.beyond must be .*got 'far'"),
        ("relative_tables: neither", "model.relative_tables must be .*got 'neither'"),
        ("tables_per_head: 'true'", "model.tables_per_head must be "),
        ("clip: '3'", "model.clip must be "),
        ("positions: cnn, kernel_size: 2.0", "model.kernel_size must be "),
        ("positions: null", "model.positions must be "),
        ("positions: sinusoid", "model.positions must be .*got 'sinusoid'"),
    ],
)
def test_invalid_options(tmp_path, text, message):
    (tmp_path / "recipe.yaml").write_text(f"model: {{{text}}}")
    with pytest.raises(InputError, match=rf"recipe\.yaml: {message}") as error:
        read_recipe(tmp_path / "recipe.yaml")
    assert_one_line(error.value)


def test_text_can_be_in_quotes(tmp_path):
    (tmp_path / "recipe.yaml").write_text(json.dumps({"out": "x", "model": {"norm": "post", "dim": 64}}))
    assert read_recipe(tmp_path / "recipe.yaml") == Recipe(out="x", model=ModelConfig(norm="post", dim=64))


def test_every_scheme_and_option_is_documented():
    lines = (Path(__file__).parents[2] / "docs/schemes.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    assert {row[0] for row in rows} == set(get_args(Positions))
    for scheme, _, options, _ in rows:
        documented = {name for name in OPTION_NAMES if name in re.findall(r"\w+", options)}
        assert documented == set(OPTIONS.get(scheme, {}))
