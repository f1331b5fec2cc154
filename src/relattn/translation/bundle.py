"""A trained model on disk: a directory that holds all that translating needs, and that runs no code when loaded.

    config.yaml         the format's version, the languages, the model's and the search's configuration
    model.safetensors   the weights, each tensor once
    tokenizer.model     the SentencePiece model, of both sides
    README.md           a card for people: what it was trained on, its scores, the command

One that was imported has two files more of its tokenizer (`data/imported.py`).

A bundle is written beside its place, synced, and renamed into it, so one that can be seen is whole.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

import safetensors
import safetensors.torch
import torch
import yaml
from torch import Tensor

from relattn.translation import files
from relattn.translation.config import Calibration, ModelConfig, Precision, Recipe, SearchConfig, as_dict
from relattn.translation.data.imported import TGT_TOKENIZER, VOCABULARY, AnyTokenizer, ImportedTokenizer
from relattn.translation.data.tokenizer import TOKENIZER, Tokenizer
from relattn.translation.errors import InputError, one_line, reading
from relattn.translation.files import putting, require_files, write_atomically
from relattn.translation.model.ensemble import Ensemble
from relattn.translation.model.linear import pack
from relattn.translation.model.transformer import SkipInitialization, Transformer
from relattn.translation.settings import of_version_1, of_version_2, of_version_4, read_yaml, to_config
from relattn.translation.translate.torch_translator import TorchTranslator

PRECISIONS: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
FORMAT = "relattn bundle"
VERSION = 5
_FORMER_NAMES = re.compile(r"\.(key|value)_table\.")  # of the tables in bundles made before November 2026
CONFIG, WEIGHTS, CARD = "config.yaml", "model.safetensors", "README.md"
TOKENIZER_FILES = {"own": (TOKENIZER,), "imported": (TOKENIZER, TGT_TOKENIZER, VOCABULARY)}

_MOST_NAMED = 5  # tensors named in one message
# In the metadata of the weights, the SHA-256 of the tokenizer they were trained with. It stands there alone, for
# safetensors writes several entries in any order, and the same model is to give the same file.
_TOKENIZER_OF = "tokenizer"


@dataclass(frozen=True, kw_only=True)
class _Description:
    """What config.yaml says of a bundle, all of it, beside the format and its version."""

    src_lang: str
    tgt_lang: str
    tokenizer: Literal["own", "imported"] = "own"
    model: ModelConfig = field(default_factory=ModelConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    calibration: Calibration = field(default_factory=Calibration)


@dataclass(frozen=True)
class Bundle:
    """What a bundle holds, read and checked, before a model is made of it."""

    path: Path
    model: ModelConfig
    search: SearchConfig
    calibration: Calibration
    src_lang: str
    tgt_lang: str
    state: dict[str, Tensor]  # on CPU, each tensor once, under its first name in the model
    tokenizer: AnyTokenizer

    @property
    def card(self) -> str:
        """What its README.md says; nothing where there is none."""
        path = self.path / CARD
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def translator(
        self, *others: Bundle, device: str = "cpu", precision: Precision = "fp32", workers: int = 1
    ) -> TorchTranslator:
        """The model made, ready to translate; with others, an ensemble of them all, searched as this one is.

        Args:
            device: where to compute.
            precision: precision of weights and arithmetic; the search always adds log-probabilities in float32.
            workers: number of batches that are searched at the same time, with one thread each.

        Raises:
            InputError: weights do not fit their model, the others have other languages or another tokenizer, or there
                is no such precision.
        """
        if precision not in PRECISIONS:
            raise InputError(f"precision is {' or '.join(PRECISIONS)}, not {one_line(str(precision), 40)!r}")
        for other in others:
            if (other.src_lang, other.tgt_lang) != (self.src_lang, self.tgt_lang):
                raise InputError(
                    f"{other.path} translates {other.src_lang} to {other.tgt_lang}, {self.path} {self.src_lang} to "
                    f"{self.tgt_lang}: models of an ensemble have the same languages"
                )
            if other.tokenizer.digest != self.tokenizer.digest:
                raise InputError(
                    f"{other.path} has another tokenizer than {self.path}: models of an ensemble have the same pieces"
                )
        models = [
            make_model(one.model, one.tokenizer.vocab_sizes, one.state, source=one.path / WEIGHTS)
            for one in (self, *others)
        ]
        model = (Ensemble(models) if others else models[0]).to(PRECISIONS[precision])
        translator = TorchTranslator(
            model,
            self.tokenizer,
            self.search,
            device=device,
            languages=(self.src_lang, self.tgt_lang),
            calibration=self.calibration,
            workers=workers,
        )
        for one in models:
            pack(one)
        return translator


def require_replaceable(path: Path) -> None:
    """Raise an `InputError` if `path` holds anything but a bundle, or part of one."""
    files.require_replaceable(path, (CONFIG, WEIGHTS, CARD, *TOKENIZER_FILES["imported"]), "bundle")


def save(
    path: str | Path,
    *,
    model: Transformer,
    recipe: Recipe,
    tokenizer: AnyTokenizer,
    card: str,
    calibration: Calibration | None = None,
) -> None:
    """Write a bundle: the model's weights as they are, with the recipe's model, languages and search.

    A bundle already at `path` is replaced; a moment without either lies between two renames. An empty directory is
    filled, anything else is refused.

    Raises:
        InputError: something else stands at `path`, or writing fails; whatever was there before is kept.
    """
    path = Path(path).resolve()
    require_replaceable(path)
    config = _configuration(
        recipe.data.src_lang,
        recipe.data.tgt_lang,
        tokenizer,
        recipe.model,
        recipe.search,
        calibration or Calibration(),
    )
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in weights_of(model).items()}
    with putting(path) as aside:
        aside.mkdir(parents=True)
        (aside / CONFIG).write_bytes(config)
        for name, content in tokenizer.files.items():
            (aside / name).write_bytes(content)
        (aside / CARD).write_text(card, encoding="utf-8")
        (aside / WEIGHTS).write_bytes(safetensors.torch.save(weights, metadata={_TOKENIZER_OF: tokenizer.digest}))


def calibrate(path: str | Path, calibration: Calibration) -> None:
    """Write a calibration into a bundle, in the place of the one it has. Raises InputError as `read_bundle`."""
    parts = read_bundle(path)
    content = _configuration(parts.src_lang, parts.tgt_lang, parts.tokenizer, parts.model, parts.search, calibration)
    write_atomically(Path(path) / CONFIG, content)


def _configuration(
    src_lang: str,
    tgt_lang: str,
    tokenizer: AnyTokenizer,
    model: ModelConfig,
    search: SearchConfig,
    calibration: Calibration,
) -> bytes:
    """What config.yaml holds."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "src_lang": src_lang,
        "tgt_lang": tgt_lang,
        "tokenizer": "own" if isinstance(tokenizer, Tokenizer) else "imported",
        "model": as_dict(model),
        "search": as_dict(search),
        "calibration": as_dict(calibration),
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode()


def load(path: str | Path, *others: str | Path, device: str = "cpu", precision: Precision = "fp32") -> TorchTranslator:
    """A translator from a bundle, or from an ensemble of several, with the search that the first names.

    Args:
        device, precision: as in `Bundle.translator`.

    Raises:
        InputError: a file of a bundle is missing, damaged or of another version, or as `Bundle.translator`.
    """
    return read_bundle(path).translator(*map(read_bundle, others), device=device, precision=precision)


def read_bundle(path: str | Path) -> Bundle:
    """The checked contents of a bundle. Raises InputError as `load` does, but for weights that do not fit."""
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path}: no such directory; a bundle is a directory")
    require_files(path, CONFIG, WEIGHTS, TOKENIZER, what="bundle")
    where = path / CONFIG
    content = read_yaml(where, "a bundle's configuration")
    if (found := content.pop("format", None)) != FORMAT:
        raise InputError(f"{where}: not the configuration of a bundle: format is {found and one_line(found, 40)!r}")
    if (found := content.pop("version", None)) not in map(str, range(1, VERSION + 1)):
        raise InputError(f"{where}: version {found and one_line(found, 40)}; this relattn reads 1 to {VERSION}")
    if found == "1":
        content["model"] = of_version_1(content.get("model"))
    if found in ("1", "2"):
        content = {"tokenizer": "own", **content, "model": of_version_2(content.get("model"))}
    if found != str(VERSION):
        content["search"] = of_version_4(content.get("search"))
    if found in ("1", "2", "3"):
        content["calibration"] = dict.fromkeys(as_dict(Calibration()), "null")
    config = to_config(_Description, content, where, whole=True)
    require_files(path, *TOKENIZER_FILES[config.tokenizer], what="bundle")
    tokenizer = Tokenizer.load(path / TOKENIZER) if config.tokenizer == "own" else ImportedTokenizer.load(path)
    state, metadata = read_weights(path / WEIGHTS)
    belongs = metadata.get(_TOKENIZER_OF)
    if belongs is not None and belongs != tokenizer.digest:
        raise InputError(f"{path / TOKENIZER}: damaged, or not the one these weights were trained with")
    return Bundle(
        path=path,
        model=config.model,
        search=config.search,
        calibration=config.calibration,
        src_lang=config.src_lang,
        tgt_lang=config.tgt_lang,
        state=state,
        tokenizer=tokenizer,
    )


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors in a safetensors file, and its metadata. Raises InputError where it is missing or damaged."""
    damaged = reading(path, "truncated, damaged, or not a safetensors file")
    with damaged, safetensors.safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def tokenizer_files(config: Path) -> tuple[str, ...]:
    """The files of a bundle's tokenizer, as far as its configuration tells before it is checked."""
    imported = b"\ntokenizer: imported\n" in config.read_bytes()
    return TOKENIZER_FILES["imported" if imported else "own"]


def make_model(
    config: ModelConfig, vocab_sizes: tuple[int, int], state: dict[str, Tensor], *, source: str | Path
) -> Transformer:
    """A model with the weights `state`, which it is compared with before room is made for it.

    Raises:
        InputError: as `load_weights`, or there are fewer weights than layers.
    """
    layers = config.encoder_layers + config.decoder_layers
    if layers > len(state):
        raise InputError(f"{source}: the weights do not fit the model: {len(state)} tensors for {layers} layers")
    with SkipInitialization():
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the model below gives the same warnings
            _require_fit(Transformer(config, *vocab_sizes), _renamed(state), source)
        model = Transformer(config, *vocab_sizes)
    load_weights(model, state, source=source)
    return model


def load_weights(model: Transformer, state: dict[str, Tensor], *, source: str | Path) -> None:
    """Copy `state` into a model of the same shape. `source` is what messages call it.

    Raises:
        InputError: names or shapes differ; all differences are told at once, and the model is left as it was.
    """
    state = _renamed(state)
    _require_fit(model, state, source)
    for name, tensor in weights_of(model).items():
        tensor.detach().copy_(state[name])


def _renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {_FORMER_NAMES.sub(lambda found: f".rel_{found[1]}.", name): tensor for name, tensor in state.items()}


def _require_fit(model: Transformer, state: dict[str, Tensor], source: str | Path) -> None:
    tensors = weights_of(model)
    wrong = [f"{name} is missing" for name in tensors if name not in state]
    wrong += [f"{one_line(name, 80)} is not in the model" for name in state if name not in tensors]
    for name in tensors.keys() & state.keys():
        if tensors[name].shape != state[name].shape:
            wrong.append(f"{name} is {tuple(state[name].shape)}, the model has {tuple(tensors[name].shape)}")
        elif not state[name].is_floating_point():
            wrong.append(f"{name} is {str(state[name].dtype).removeprefix('torch.')}, weights are floating point")
    if wrong:
        named = sorted(wrong)[:_MOST_NAMED]
        more = f"; and {len(wrong) - len(named)} more" if len(wrong) > len(named) else ""
        raise InputError(f"{source}: the weights do not fit the model: {'; '.join(named)}{more}")


def weights_of(model: Transformer) -> dict[str, Tensor]:
    """What a model's state is made of; a tensor used in several places is named once, which safetensors insists on."""
    kept = model.state_dict().keys()
    return {name: tensor for name, tensor in chain(model.named_parameters(), model.named_buffers()) if name in kept}
