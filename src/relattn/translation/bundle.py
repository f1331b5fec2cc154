"""A trained model on disk: a directory that holds all that translating needs, and that runs no code when loaded.

    config.yaml         the format's version, the languages, the model's and the search's configuration
    model.safetensors   the weights, each tensor once
    tokenizer.model     the SentencePiece model, of both sides
    README.md           a card for people: what it was trained on, its scores, the command

A bundle is written beside its place, synced, and renamed into it, so one that can be seen is whole.
"""

from __future__ import annotations

import os
import re
import shutil
import types
import typing
import uuid
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import yaml
from torch import Tensor

from relattn.translation.config import ModelConfig, Recipe, SearchConfig, as_dict
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError
from relattn.translation.files import sync_directory
from relattn.translation.model.transformer import Transformer
from relattn.translation.search.translator import Translator

FORMAT = "relattn bundle"
VERSION = 1
_FORMER_NAMES = re.compile(r"\.(key|value)_table\.")  # of the tables in bundles made before November 2026
CONFIG, WEIGHTS, TOKENIZER, CARD = "config.yaml", "model.safetensors", "tokenizer.model", "README.md"

_MOST_NAMED = 5  # tensors named in one message
_Config = TypeVar("_Config", ModelConfig, SearchConfig)


@dataclass(frozen=True)
class Parts:
    """What a bundle holds, read and checked, before a model is made of it."""

    path: Path
    model: ModelConfig
    search: SearchConfig
    src_lang: str
    tgt_lang: str
    state: dict[str, Tensor]  # on CPU, each tensor once, under its first name in the model
    tokenizer: Tokenizer

    def translator(self, *, device: str = "cpu") -> Translator:
        """The model made, ready to translate. Raises InputError when the weights do not fit it."""
        model = Transformer(self.model, self.tokenizer.vocab_size)
        load_weights(model, self.state, source=self.path / WEIGHTS)
        return Translator(model, self.tokenizer, self.search, device=device)


def save(path: str | Path, *, model: Transformer, recipe: Recipe, tokenizer: Tokenizer, card: str) -> None:
    """Write a bundle: the model's weights as they are, with the recipe's model, languages and search.

    A bundle already at `path` is replaced; a moment without either lies between two renames. An empty directory is
    filled, anything else is refused.

    Raises:
        InputError: something else stands at `path`, or writing fails; whatever was there before is kept.
    """
    path = Path(path).resolve()
    _require_replaceable(path)
    config = {
        "format": FORMAT,
        "version": VERSION,
        "src_lang": recipe.data.src_lang,
        "tgt_lang": recipe.data.tgt_lang,
        "model": as_dict(recipe.model),
        "search": as_dict(recipe.search),
    }
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        aside.mkdir(parents=True)
        (aside / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
        (aside / TOKENIZER).write_bytes(tokenizer.model_bytes)
        (aside / CARD).write_text(card, encoding="utf-8")
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in _tensors(model).items()}
        (aside / WEIGHTS).write_bytes(safetensors.torch.save(weights, metadata={"format": "pt"}))
        for file in aside.iterdir():
            _sync_file(file)
        sync_directory(aside)
        _swap(aside, path)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: cannot be written: {error}; what was there before is kept") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def load(path: str | Path, *, device: str = "cpu") -> Translator:
    """A translator from a bundle, ready to use, with the search the bundle names.

    Raises:
        InputError: a file of the bundle is missing, damaged or of another version, or the weights do not fit the model.
    """
    return load_parts(path).translator(device=device)


def load_parts(path: str | Path) -> Parts:
    """The checked contents of a bundle. Raises InputError as `load` does, but for weights that do not fit."""
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path}: no such directory; a bundle is a directory")
    missing = [name for name in (CONFIG, WEIGHTS, TOKENIZER) if not (path / name).is_file()]
    if missing:
        raise InputError(f"{path}: not a complete bundle: it has no {', no '.join(missing)}")
    config = _read_yaml(path / CONFIG)
    where = str(path / CONFIG)
    if config.get("format") != FORMAT:
        raise InputError(f"{where}: not the configuration of a bundle: format is {config.get('format')!r}")
    if config.get("version") != VERSION:
        raise InputError(f"{where}: version {config.get('version')!r}; this relattn reads version {VERSION}")
    _require_names(config, {"format", "version", "src_lang", "tgt_lang", "model", "search"}, where)
    for name in ("src_lang", "tgt_lang"):
        _require_type(config[name], str, name, where)
    try:
        state = safetensors.torch.load_file(path / WEIGHTS)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path / WEIGHTS}: truncated, damaged, or not a safetensors file: {error}") from error
    return Parts(
        path=path,
        model=_to_config(ModelConfig, config["model"], "model", where),
        search=_to_config(SearchConfig, config["search"], "search", where),
        src_lang=config["src_lang"],
        tgt_lang=config["tgt_lang"],
        state=state,
        tokenizer=Tokenizer.load(path / TOKENIZER),
    )


def load_weights(model: Transformer, state: dict[str, Tensor], *, source: str | Path) -> None:
    """Copy `state` into a model of the same shape. `source` is what messages call it.

    Raises:
        InputError: names or shapes differ; all differences are told at once, and the model is left as it was.
    """
    state = {_FORMER_NAMES.sub(lambda found: f".rel_{found[1]}.", name): x for name, x in state.items()}
    tensors = _tensors(model)
    wrong = [f"{name} is missing" for name in tensors if name not in state]
    wrong += [f"{name} is not in the model" for name in state if name not in tensors]
    for name in tensors.keys() & state.keys():
        if tensors[name].shape != state[name].shape:
            wrong.append(f"{name} is {tuple(state[name].shape)}, the model has {tuple(tensors[name].shape)}")
    if wrong:
        named = sorted(wrong)[:_MOST_NAMED]
        more = f"; and {len(wrong) - len(named)} more" if len(wrong) > len(named) else ""
        raise InputError(f"{source}: the weights do not fit the model: {'; '.join(named)}{more}")
    for name, tensor in tensors.items():
        tensor.detach().copy_(state[name])


def _tensors(model: Transformer) -> dict[str, Tensor]:
    """What a model's state is made of; a tensor used in several places is named once, which safetensors insists on."""
    kept = model.state_dict().keys()
    return {name: tensor for name, tensor in chain(model.named_parameters(), model.named_buffers()) if name in kept}


def _require_replaceable(path: Path) -> None:
    """Refuse a place that holds anything but a bundle."""
    if not os.path.lexists(path):
        return
    if not path.is_dir():
        raise InputError(f"{path}: a file stands there; a bundle is a directory")
    strangers = sorted(entry.name for entry in path.iterdir() if entry.name not in (CONFIG, WEIGHTS, TOKENIZER, CARD))
    if strangers:
        raise InputError(f"{path}: not overwritten, for it holds more than a bundle: {strangers[0]}")


def _swap(aside: Path, path: Path) -> None:
    """Put the directory `aside` at `path`; what stood there goes when the new one is in place, or comes back."""
    old = aside.with_suffix(".old")
    had_one = path.exists()
    if had_one:
        path.rename(old)
    try:
        aside.rename(path)
    except OSError:
        if had_one:
            old.rename(path)
        raise
    sync_directory(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected names with values, got {type(content).__name__}")
    return content


def _to_config(kind: type[_Config], values: Any, section: str, where: str) -> _Config:
    """A config dataclass from what YAML gave for it: every name known and of its type, values checked by the class."""
    if not isinstance(values, dict):
        raise InputError(f"{where}: {section} must be names with values, got {values!r}")
    hints = typing.get_type_hints(kind)
    _require_names(values, set(hints), f"{where}: {section}")
    for name, value in values.items():
        _require_type(value, hints[name], f"{section}.{name}", where)
    try:
        return kind(**values)
    except InputError as error:
        raise InputError(f"{where}: {section}: {error}") from error


def _require_names(values: dict[str, Any], names: set[str], where: str) -> None:
    unknown, missing = sorted(map(str, values.keys() - names)), sorted(names - values.keys())
    if unknown:
        raise InputError(f"{where}: unknown: {', '.join(unknown)}")
    if missing:
        raise InputError(f"{where}: missing: {', '.join(missing)}")


def _require_type(value: Any, hint: Any, name: str, where: str) -> None:
    """Refuse a value YAML read as something else, such as a bare `no` that is meant as Norwegian."""
    if not _is_a(value, hint):
        expected = hint.__name__ if isinstance(hint, type) else str(hint).removeprefix("typing.")
        raise InputError(f"{where}: {name} must be {expected}, got {value!r}")


def _is_a(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_is_a(value, option) for option in typing.get_args(hint))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float) if hint is float else isinstance(value, hint)
