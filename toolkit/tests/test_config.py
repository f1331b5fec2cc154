"""Configurations: valid values, options of position schemes, and settings read from YAML."""

import re
import string
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relattn_mt.config import (
    OPTION_NAMES,
    SCHEMES,
    AugmentConfig,
    CleaningConfig,
    DataConfig,
    ModelConfig,
    Positions,
    Recipe,
    SearchConfig,
    StageConfig,
    TrainConfig,
    as_dict,
    dump,
)
from relattn_mt.config.settings import to_config
from relattn_mt.config.yaml import read_yaml
from relattn_mt.support.errors import InputError

from tests.support.commands import refusal

CONFIGS = (ModelConfig, AugmentConfig, DataConfig, TrainConfig, SearchConfig, CleaningConfig, StageConfig)
CONFIGS += (Recipe,)
POSITIONS = get_args(Positions)
# A value of each option that is not the default.
OTHER_VALUES = {"clip": 5, "clip_right": 2, "beyond": "zero", "relative_tables": "keys", "tables_per_head": True}
OTHER_VALUES |= {"bias_per_layer": True, "max_positions": 9}


@pytest.fixture(scope="module")
def recipe_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | bytes], Recipe]:
    """Function that reads a recipe with the given text."""
    path = tmp_path_factory.mktemp("config") / "recipe.yaml"

    def read(text: str | bytes) -> Recipe:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return to_config(Recipe, read_yaml(path), path)

    return read


OUT_OF_RANGE = [
    (ModelConfig, {"heads": 0, "clip": -1, "clip_right": -1, "dropout": 1.0, "attention_dropout": -0.1}),
    (ModelConfig, {"norm_epsilon": 0.0}),
    (DataConfig, {"vocab_size": 2**20 + 1, "temperature": 0.001, "src_lang": "e n", "tgt_lang": ""}),
    (TrainConfig, {"learning_rate_factor": 0.0, "warmup_steps": 0, "threads": 1025}),
    (SearchConfig, {"alpha": 5.1, "beam_size": 1001}),
    (CleaningConfig, {"min_script": 1.5}),
    (Recipe, {"seed": 2**63, "out": ""}),
]


@pytest.mark.parametrize(("kind", "values"), OUT_OF_RANGE)
def test_value_out_of_range(kind, values):
    for name, value in values.items():
        assert refusal(kind, **{name: value}).startswith(f"{name} must ")


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (ModelConfig, {"dim": 10, "heads": 3}, "got heads 3 and dim 10"),
        *((ModelConfig, {"dim": 9, "heads": 3, "positions": p}, f"dim must be even for {p} positions, got 9")
          for p in ("xl", "sinusoidal", "relative+sinusoidal")),
        *((ModelConfig, {"dim": 18, "heads": 6, "positions": p}, f"head_dim must be even for {p} positions, got 3")
          for p in ("rope",)),
        (DataConfig, {"src_lang": "de", "tgt_lang": "DE"}, "src_lang and tgt_lang must differ, got de and DE"),
        (DataConfig, {"vocab_size": 3}, "vocab_size must be in [261, 1048576], got 3"),
        (DataConfig, {"max_tokens": 1}, "max_tokens must be in [2, 1e9], got 1"),
        (DataConfig, {"train_src": "a"}, "train_tgt"),
        (DataConfig, {"train_src": "a", "train_tgt": "b", "valid_tgt": "c"}, "valid_src"),
        (DataConfig, {"train_src": "a", "train_tgt": "b", "train_list": "c"}, "train_list"),
        (DataConfig, {"train_src": "a", "train_tgt": "./a"}, "train_src and train_tgt must be different files"),
        (TrainConfig, {"average": 6, "keep": 5}, "keep (5), got 6"),
        (StageConfig, {"weights": (0.0, 0.0)}, "at least one above 0, got [0.0, 0.0]"),
        (StageConfig, {"weights": (2.0, float("nan"))}, "weights of a stage must be in [0, 1000]"),
        (Recipe, {"stages": (StageConfig(steps=3),)}, "the last stage must have no steps"),
        (Recipe, {"stages": (StageConfig(), StageConfig())}, "stages before the last must have steps"),
        *((Recipe, {"stages": (StageConfig(steps=n),) * 2 + (StageConfig(),), "train": TrainConfig(steps=8)},
           f"must end before train.steps (8), got {2 * n}") for n in (4, 5)),
        (Recipe, {"stages": (StageConfig(weights=(1.0,)),)}, "require data.train_list"),
        (Recipe, {"stages": (StageConfig(),), "data": DataConfig(augment=AugmentConfig(typos=1))}, "data.augment must"),
        (SearchConfig, {"max_length_ratio": 0.5, "max_length_extra": 0}, "at least 1, got 0.5"),
    ],
)  # fmt: skip
def test_values_that_exclude_each_other(kind, values, message):
    assert message in refusal(kind, **values)


def test_a_limit_of_one_token_is_allowed():
    for ratio, extra in ((1.0, 0), (0.0, 1)):
        assert SearchConfig(max_length_ratio=ratio, max_length_extra=extra).max_length_extra == extra


@pytest.mark.parametrize("value", [10**400, float("nan")])
def test_every_number_has_a_range(value):
    numbers = [(kind, f.name) for kind in CONFIGS for f in fields(kind) if f.type.split(" ")[0] in ("int", "float")]
    assert len(numbers) > 40
    for kind, name in numbers:
        assert refusal(kind, **{name: value}).startswith(f"{name} must be in ")


@pytest.mark.parametrize("value", ["runs/\udcff", "runs/\0", "runs/\x85"])
def test_every_text_must_be_valid(value):
    texts = [(kind, field.name) for kind in CONFIGS for field in fields(kind) if isinstance(field.default, str)]
    assert len(texts) > 10
    for kind, name in texts:
        assert refusal(kind, **{name: value}).startswith(f"{name} must be UTF-8")


@pytest.mark.parametrize("value", [None, 3, ["gnmt"]])
def test_choices_are_text(value):
    assert refusal(SearchConfig, length_penalty=value).startswith("length_penalty must be ")


@pytest.mark.parametrize("value", ["other", "", "null", "1"])
def test_every_choice_is_checked(value):
    choices = [
        (kind, field.name)
        for kind in CONFIGS
        for field in fields(kind)
        if re.search("Literal|Normalization|Activation|Positions", field.type)
    ]
    assert len(choices) > 12
    for kind, name in choices:
        assert refusal(kind, **{name: value}).startswith(f"{name} must be ")


def with_other_values(positions: str) -> ModelConfig:
    """Return a model with a value of each option that is not the default."""
    options = {name: OTHER_VALUES[name] for name in SCHEMES[positions].options}
    return ModelConfig(dim=32, norm="post", positions=positions, **options)


@pytest.mark.parametrize("positions", POSITIONS)
def test_options_of_a_scheme(recipe_of, positions):
    """A scheme has its own options only. It can replace any other scheme, and survives a YAML file."""
    assert sorted(OTHER_VALUES) == OPTION_NAMES
    plain, changed = ModelConfig(dim=32, norm="post", positions=positions), with_other_values(positions)
    for option, value in OTHER_VALUES.items():
        if option in SCHEMES[positions].options:
            assert getattr(plain, option) == SCHEMES[positions].options[option]
            assert as_dict(replace(plain, **{option: value})) == {**as_dict(plain), option: value}
            continue
        assert getattr(plain, option) is None
        every = [scheme.options.get(option) for scheme in SCHEMES.values()]
        defaults = [default for default in every if default is not None]
        for refused in (value, *defaults):  # a default is refused too
            for call in (ModelConfig, plain.with_positions):
                message = refusal(call, positions=positions, **{option: refused})
                assert message == f"{option} must not be set for {positions} positions, got {refused}"
    options = {name: OTHER_VALUES[name] for name in SCHEMES[positions].options}
    for other in POSITIONS:
        assert with_other_values(other).with_positions(positions) == plain
        assert with_other_values(other).with_positions(positions, **options) == changed
    for model in (plain, changed):
        assert recipe_of(dump(Recipe(model=model))).model == model


LAUGHS = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghij"))


@pytest.mark.parametrize(
    ("message", "texts"),
    {
        "unknown setting 'modell.dim'; did you mean model.dim?": ["modell: {dim: 3}"],
        "unknown setting '": ["xyzzy: {xyzzy: 3}", "7: 3", "seed: {a: 1}", "model: &m {dim: *m}", "? [a]\n: 3", LAUGHS],
        "model must be a group with settings": ["model: 3", "model:", "model: [1]", "model: {}"],
        "data.augment must be a group with settings": ["data: {augment: {}}"],
        "unknown setting 'modle'": ["seed: 1\nmodle: {}"],
        "must have settings, got an empty file": ["", "# only a comment\n", "---\n", "{}"],
        "must be a mapping": ["- seed", "words"],
        "not YAML: ": ["model: {", "a: b: c", b"seed: \x00", "seed: 1\n---\nseed: 2", "[" * 800, "{model: " * 800],
        "not UTF-8 at byte 6": [b"seed: \xff"],
        "must have at most 1,048,576 bytes": ["x" * (1 << 20) + "x"],
        "is given twice, again in line 2": ["seed: 1\nseed: 2", "model: {dim: 8, heads: 2,\n dim: 16}"],
        "out must be UTF-8": ['out: "a\\0b"'],
        "must be a whole number": ["seed: '3'", "model: {dim: 2.5}", "model: {clip: 'null'}", "model: {dim: wide}"],
        "must be a whole number in decimal notation": [
            *(f"seed: {text}" for text in ("0x10", "1:30", "010", "-00", "0b1", "1_000", "１６", "1:30:00.5")),
            "model: {clip: 0x1F}", "stages: [{steps: 0x10}, {}]",
        ],
        "must be a number in decimal notation": [f"model: {{dropout: {x}}}" for x in ("0x0", "00.5", "0_0.5", "0:0.0")],
        "model.dim must be in [1, 65536], got -3": ["model: {dim: -3}"],
        "train.average must be at most keep (5), got 9": ["train: {average: 9}"],
        "model.dim must be a whole number in decimal notation, got '8' in quotes": ["model: {dim: '8'}"],
        "must be a list, each of a number": ["stages: [{weights: [0x10]}]", "stages: [{weights: [1, 1:30]}]"],
        "must be a whole number, got": ["seed: yes", "seed: .inf", "seed: no"],
        "model.beyond must be one of clip, zero": ["model: {beyond: 'null'}", "model: {beyond: far}"],
        "must be text, got ": ["out: null", "out: ~", "data: {valid_src: ~}", "data: {src_lang: null}"],
        "stages must be a list, each of the settings of a stage": ["stages: 3", "stages: null", "stages: x"],
        "stage 1: must be a mapping": ["stages: [3]", "stages: &a [*a]", "stages: [2020-01-01]"],
        "stage 2: steps must be a whole number, got 'x'": ["stages: [{steps: 1}, {steps: x}]"],
        "stage 1: weights must be": ["stages: [{weights: [a]}]", "stages: [{weights: [[1]]}]"],
        "stage 1: unknown setting": ["stages: [&a {stages: [*a]}]", "stages: [&a {steps: 3, x: *a}]"],
        "stage 1: augment.typos must be in [0, 1], got 2.0": ["stages: [{augment: {typos: 2}}]"],
        "must not be set for rope": ["model: {positions: rope, clip: 3}", "model: {positions: rope, beyond: clip}"],
    }.items(),
)  # fmt: skip
def test_invalid_recipe(recipe_of, message, texts):
    for text in texts:
        refused = refusal(recipe_of, text)
        assert "recipe.yaml: " in refused
        assert message in refused


TEXTS = st.one_of(
    st.sampled_from(["no", "NO", "1e-4", "null", "~", "'", '"', "a: b", "- x", "# x", " x ", "\u2028", "[", "*a", "|"]),
    st.text(string.printable + "é😀\u2028\ufeff", min_size=1, max_size=8),
)


@settings(max_examples=8)
@given(st.lists(TEXTS, min_size=5, max_size=5, unique=True))
def test_dumped_recipe_can_be_read(recipe_of, texts):
    names = ("train_src", "train_tgt", "valid_src", "valid_tgt")
    recipe = Recipe(out=texts[0], data=DataConfig(**dict(zip(names, texts[1:], strict=True))))
    assert recipe_of(dump(recipe)) == recipe


def test_dumped_stages_can_be_read(recipe_of):
    stages = (StageConfig(steps=3, weights=(0.0, 0.1)), StageConfig(augment=AugmentConfig(typos=0.2)))
    recipe = Recipe(stages=stages, data=DataConfig(train_list="no"))
    assert recipe_of(dump(recipe)) == recipe
    assert recipe_of("stages: [{steps: 3}, {}]").stages == (StageConfig(steps=3), StageConfig())


VALUES = ["0", "-1", "1e999", ".nan", "9" * 5000, "0x1F", "1:30", "null", "", "true", "no", "'3'", "[1]", "{a: 1}"]
VALUES += ["*a", "&a 3", "!!int 3", "!!python/name:os.system", "2020-01-01", '"\\0"', '"\\ud800"', "|\n  x", "é", "3 #"]
NAMES = [(group, name) for group, each in as_dict(Recipe()).items() if isinstance(each, dict) for name in each]


@settings(max_examples=15)
@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), min_size=1, max_size=3))
def test_random_recipe_is_read_or_refused(recipe_of, entries):
    groups: dict[str, str] = {}
    for (group, name), value in entries.items():
        groups[group] = groups.get(group, f"{group}:\n") + f"  {name}: {value}\n"
    text = "".join(groups.values())
    try:
        recipe = recipe_of(text)
    except InputError:
        assert "recipe.yaml: " in refusal(recipe_of, text)
    else:
        assert recipe_of(dump(recipe)) == recipe
