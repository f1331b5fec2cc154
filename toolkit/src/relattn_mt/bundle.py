"""Bundles: directories with a trained model and all that is needed to translate. Loading one runs no code from it.

    bundle.json         version of the format, languages, configuration of the model and the search
    model.safetensors   weights, each tensor once; quantized ones as in `engine/quantization.py`
    tokenizer.model     SentencePiece model of both sides
    README.md           card for readers: training data, scores, commands

The bundle of an imported model has two more files for its tokenizer (`tokens/imported_tokenizer.py`), and it may have a
lexical shortlist, shortlist.bin (`engine/shortlist.py`).

A bundle is written to a temporary directory, synced, and renamed, so a bundle that is visible is complete.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from relattn_mt.config import ModelConfig, SearchConfig, as_dict
from relattn_mt.config.settings import read_json_settings, to_config
from relattn_mt.engine.decoder import NativeDecoder, unsupported_reason
from relattn_mt.engine.engine import NativeEngine
from relattn_mt.engine.library import LARGEST
from relattn_mt.engine.quantization import in_float32, quantize
from relattn_mt.engine.shortlist import SHORTLIST, Shortlist
from relattn_mt.search.engine import Engine
from relattn_mt.support import files
from relattn_mt.support.allocation import return_freed_memory
from relattn_mt.support.errors import InputError, install_command, language_pairs, naming, one_line, require
from relattn_mt.support.files import as_size, putting, read_bytes, real_path, require_files, require_outside
from relattn_mt.support.types import LanguagePair
from relattn_mt.tokens.imported_tokenizer import TGT_TOKENIZER, VOCABULARY, AnyTokenizer, ImportedTokenizer
from relattn_mt.tokens.tokenizer import TOKENIZER, Tokenizer
from relattn_mt.translate import Precision
from relattn_mt.translate.translator import Translator
from relattn_mt.weights import (
    SCALE,
    LazyWeights,
    Tensors,
    is_quantized,
    read_weights,
    require_fit,
    weight_table,
    write_weights,
)

if TYPE_CHECKING:
    from relattn_mt.model.transformer import Transformer

PRECISIONS: dict[Precision, str] = {"fp32": "float32", "bf16": "bfloat16", "int8": "float32"}  # dtypes of the model
FORMAT = "relattn bundle"
VERSION = 1
PACKAGED = Path(__file__).with_name("models")  # a bundle per directory
CONFIG = "bundle.json"
WEIGHTS = "model.safetensors"
CARD = "README.md"
_MAX_CARD = 1 << 16  # characters that are read for its metadata, and shown
TOKENIZER_FILES = {"own": (TOKENIZER,), "imported": (TOKENIZER, TGT_TOKENIZER, VOCABULARY)}
_MODEL_FILES = (WEIGHTS, SHORTLIST, *TOKENIZER_FILES["imported"])  # besides bundle.json; some bundles have fewer

# Metadata of the weights: the SHA-256 of the tokenizer that they were trained with, and that of a shortlist. It is the
# only entry, because safetensors writes entries in any order, and equal models must give equal files.
_TOKENIZER_OF = "tokenizer"


@dataclass(frozen=True, kw_only=True)
class _Description:
    """Content of bundle.json, except for the format and its version. `pairs` are as `Bundle.pairs`, each "en de"."""

    src_lang: str
    tgt_lang: str
    pairs: list[str] = field(default_factory=list)
    tokenizer: Literal["own", "imported"] = "own"
    model: ModelConfig = field(default_factory=ModelConfig)
    search: SearchConfig = field(default_factory=SearchConfig)


@dataclass(frozen=True)
class Bundle:
    """Content of a bundle. The model is not built yet."""

    path: Path
    model: ModelConfig
    search: SearchConfig
    src_lang: str
    tgt_lang: str
    state: Tensors  # weights, each tensor once, by its first name in the model
    tokenizer: AnyTokenizer
    pairs: Sequence[LanguagePair] = ()  # of languages, in a model that was trained on several
    shortlist: Shortlist | None = None  # of an imported model

    @property
    def is_quantized(self) -> bool:
        """Whether the weights are in 8 bits."""
        return is_quantized(self.state)

    @property
    def has_8_bits(self) -> bool:
        """Whether weights are quantized to more than 7 bits, as those of a model that was imported from int8 are."""
        return any(weight.dtype == np.int8 and np.abs(weight).max() > LARGEST for weight in self.state.values())

    @property
    def card(self) -> str:
        """Content of README.md; empty if the file is missing."""
        path = self.path / CARD
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def make_model(self) -> "Transformer":
        """Return the model, dequantized. Raises InputError as the function `make_model` does."""
        from relattn_mt.model.weights import make_model

        return make_model(self.model, self.tokenizer.vocab_sizes, self.state, source=self.path / WEIGHTS)

    def in_float32(self) -> "Bundle":
        """Return the bundle with dequantized weights."""
        names = (name for name in self.state if not name.endswith(SCALE))
        return replace(self, state=LazyWeights(names, lambda name: in_float32(self.state, name)))

    @property
    def _shown_card(self) -> str:
        """Beginning of the card; empty if it cannot be read."""
        try:
            with open(self.path / CARD, encoding="utf-8") as file:
                return file.read(_MAX_CARD)
        except (OSError, ValueError):
            return ""

    def translator(
        self,
        *,
        device: str = "cpu",
        precision: Precision | None = None,
        workers: int = 1,
        torch_threads: int | None = None,
    ) -> Translator:
        """Return a translator.

        Args:
            device: Device to translate on.
            precision: Precision of weights and arithmetic. "int8" requires the compiled engine and "bf16" a GPU. By
                default "int8" for a quantized bundle if the compiled engine runs it, and else "fp32".
            workers: Number of batches that are searched at the same time, with one thread each.
            torch_threads: Number of threads of PyTorch, if it runs the model; None does not change it.

        Raises:
            InputError: The weights do not fit the model, or `precision` is unknown or not supported for this model.
        """
        if precision is None:
            runs_in_int8 = unsupported_reason(self.model, device) is None
            precision = "int8" if self.is_quantized and runs_in_int8 else "fp32"
        if precision not in PRECISIONS:
            raise InputError(f"precision must be {', '.join(PRECISIONS)}, got {one_line(str(precision), 40)!r}")
        require(precision != "bf16" or device != "cpu", "precision bf16 requires a GPU; use fp32 or int8 on a CPU")
        reason = unsupported_reason(self.model, device, PRECISIONS[precision])
        require(precision != "int8" or reason is None, f"precision int8 requires the compiled engine: {reason}")
        if reason is not None:
            translator = self.torch_translator(device, PRECISIONS[precision], reason)
            if torch_threads is not None:
                import torch

                torch.set_num_threads(torch_threads)
            return translator
        with naming(self.path / WEIGHTS):
            decoder = NativeDecoder(self.model, self.tokenizer.vocab_sizes, self.state, int8=precision == "int8")
        return_freed_memory()
        return self._translator(NativeEngine(decoder, self.shortlist), workers)

    def torch_translator(self, device: str = "cpu", dtype: str = "float32", reason: str = "") -> Translator:
        """Return a translator that runs on PyTorch, whose model can be analyzed. `reason` is why no faster one does."""
        try:
            import torch

            from relattn_mt.model.torch_engine import TorchEngine
        except ModuleNotFoundError as error:
            message = f"translating without the compiled engine requires PyTorch: {install_command('train')}"
            raise InputError(f"{reason}; {message}" if reason else message) from error
        return self._translator(TorchEngine(self.make_model().to(getattr(torch, dtype)), device, reason))

    def save(self, card: str = "") -> None:
        """Write the bundle to its path, with a README.md.

        A bundle that exists there is replaced, by two renames with a moment without a bundle between them.

        Raises:
            InputError: `path` is neither a bundle, an empty directory nor free, or writing fails. What was there is
                kept.
        """
        path = real_path(self.path)
        require_replaceable(path)
        description = _Description(
            src_lang=self.src_lang,
            tgt_lang=self.tgt_lang,
            pairs=list(map(" ".join, self.pairs)),
            tokenizer="own" if isinstance(self.tokenizer, Tokenizer) else "imported",
            model=self.model,
            search=self.search,
        )
        with putting(path) as directory:
            directory.mkdir(parents=True)
            settings = {"format": FORMAT, "version": VERSION, **as_dict(description)}
            (directory / CONFIG).write_bytes(f"{json.dumps(settings, indent=2, ensure_ascii=False)}\n".encode())
            files.write_files(directory, self.tokenizer.files)
            if self.shortlist is not None:
                (directory / SHORTLIST).write_bytes(self.shortlist.content)
            (directory / CARD).write_text(card, encoding="utf-8")
            digests = (
                self.tokenizer.digest if self.shortlist is None else f"{self.tokenizer.digest} {self.shortlist.digest}"
            )
            table = weight_table(self.model, self.tokenizer.vocab_sizes, quantized=self.is_quantized)
            write_weights(directory / WEIGHTS, table, self.state, {_TOKENIZER_OF: digests})

    def _translator(self, engine: Engine, workers: int = 1) -> Translator:
        card = self._shown_card
        return Translator(
            engine,
            self.tokenizer,
            self.search,
            languages=(self.src_lang, self.tgt_lang),
            pairs=self.pairs,
            make_examples=partial(_examples_in, card),
            card=card,
            workers=workers,
        )


def _examples_in(card: str) -> list[str]:
    """Return the texts that the metadata of a card lists as `widget`, as on the hub; none if they cannot be read."""
    import yaml  # takes a tenth of the time until the first translation

    from relattn_mt.config.yaml import LOADER

    head, is_complete, _ = card.removeprefix("---\n").partition("\n---\n")
    if not card.startswith("---\n") or not is_complete:
        return []
    try:
        metadata: Any = yaml.load(head, LOADER)
    except (ValueError, RecursionError, yaml.YAMLError):
        return []
    texts = []
    match metadata:
        case {"widget": [*items]}:
            for item in items:
                match item:
                    case {"text": str(text)} if text.strip():
                        texts.append(text)
    return texts


def require_replaceable(path: Path) -> None:
    """Raise an `InputError` if `path` holds anything but a bundle, or part of one."""
    files.require_replaceable(path, (CONFIG, CARD, *_MODEL_FILES), "bundle")


def require_writable(path: str | Path, overwrite: bool) -> None:
    """Raise an InputError as `require_replaceable`, or if a bundle exists at `path` and may not be overwritten."""
    path = Path(path)
    require_replaceable(path)
    exists = path.is_dir() and any(path.iterdir())
    require(overwrite or not exists, f"{path}: a bundle exists there; use --overwrite to replace it")


def quantize_bundle(source: Bundle, out: str | Path, *, overwrite: bool = False) -> str:
    """Write a bundle with the weights of another one in int8 (7 bits), and return a summary.

    Raises:
        InputError: As `require_writable` and `quantization.quantize`, `out` is in the source, the source is quantized
            to 7 bits already. `out` is then unchanged.
    """
    out = Path(out)
    require_outside(out, source.path)
    require_writable(out, overwrite)
    require(not source.is_quantized or source.has_8_bits, f"{source.path}: quantized already")
    weights = quantize(source.in_float32().state)
    note = "The weights are in int8, integers of 7 bits, from a bundle in float32."
    card = f"{source.card.rstrip()}\n\n## Quantized\n\n{note}\n"
    replace(source, path=out, state=weights).save(card)
    sizes = ((path / WEIGHTS).stat().st_size for path in (source.path, out))
    return "weights: {} in float32, {} in int8".format(*map(as_size, sizes))


def _read_description(file: Path) -> _Description:
    """Read bundle.json."""
    content = read_json_settings(file)
    for name, expected in (("format", FORMAT), ("version", str(VERSION))):
        value = content.pop(name, None)
        require(value == expected, f"{file}: {name} must be {expected}, got {one_line(value, 40)}")
    return to_config(_Description, content, file, complete=True)


def packaged_models() -> list[str]:
    """Return the names of the models of this package."""
    return sorted(path.name for path in PACKAGED.glob("*"))


def read_bundle(path: str | Path) -> Bundle:
    """Read and check a bundle.

    Raises:
        InputError: a file is missing, damaged or of an unsupported version.
    """
    path = Path(path)
    if not path.is_dir():
        names = ", ".join(packaged_models())
        raise InputError(f"{path}: no such directory; a bundle is a directory, or a model of this package: {names}")
    inside = path / "bundle"
    require((path / CONFIG).exists() or not (inside / CONFIG).exists(), f"{path}: not a bundle; use {inside}")
    require_files(path, CONFIG, WEIGHTS, TOKENIZER, what="bundle")
    config = _read_description(path / CONFIG)
    require_files(path, *TOKENIZER_FILES[config.tokenizer], what="bundle")
    state, metadata = read_weights(path / WEIGHTS)
    digest, _, shortlist_digest = metadata.get(_TOKENIZER_OF, "").partition(" ")
    is_own = config.tokenizer == "own"
    tokenizer = Tokenizer.load(path / TOKENIZER, digest) if is_own else ImportedTokenizer.load(path, digest)
    if tokenizer.digest != digest:
        raise InputError(f"{path / TOKENIZER}: damaged, or not the one these weights were trained with")
    tokenizer = tokenizer.with_languages(config.src_lang, config.tgt_lang)
    require_fit(config.model, tokenizer.vocab_sizes, state, path / WEIGHTS)
    shortlist = path / SHORTLIST
    return Bundle(
        path=path,
        model=config.model,
        search=config.search,
        src_lang=config.src_lang,
        tgt_lang=config.tgt_lang,
        pairs=language_pairs(config.pairs, path / CONFIG),
        state=state,
        tokenizer=tokenizer,
        shortlist=read_shortlist(shortlist, tokenizer, shortlist_digest) if shortlist.exists() else None,
    )


def read_shortlist(file: Path, tokenizer: AnyTokenizer, checked_digest: str = "") -> Shortlist:
    """Read a shortlist of Marian, whose vocabularies do not have the last piece that starts the decoder.

    Raises:
        InputError: The file cannot be read, is damaged or belongs to other vocabularies.
    """
    source, target = tokenizer.vocabularies
    is_shared = source == target
    content = read_bytes(file)
    with naming(file):
        return Shortlist(content, (len(source) - is_shared, len(target) - 1), is_shared, checked_digest)
