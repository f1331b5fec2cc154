"""From a data recipe to what training asks for: steps, validation batches and validation text.

Text becomes word pieces once and is kept in the run's directory:

    tokenizer.model     learned from both sides of the training text, unless one is given, which may have more files
    data/train.arrow    the encoded training text, its corpora one behind the other
    data/text.json      written last: the corpora, digests of their text, and how many pairs were left out

A run goes on with these, whatever happens to the text meanwhile; a text that has changed is refused, wherever it lies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from relattn.translation.config import DataConfig
from relattn.translation.data.batching import Batch, eval_batches
from relattn.translation.data.builtin import builtin
from relattn.translation.data.imported_tokenizer import AnyTokenizer, tokenizer_in
from relattn.translation.data.mixture import Listed, Mixture, read_list
from relattn.translation.data.storage import open_pairs, write_pairs
from relattn.translation.data.text_files import ParallelFiles
from relattn.translation.data.tokenizer import LONGEST_PIECE, TOKENIZER, Tokenizer
from relattn.translation.data.training_text import TrainingText
from relattn.translation.errors import InputError, reading
from relattn.translation.files import write_atomically

Text = ParallelFiles | list[tuple[str, str]]
VALID_LINES = 500  # lines of the validation set of the built-in corpus
ENCODED, TEXT = "data/train.arrow", "data/text.json"
_PAIRS_AT_ONCE = 5000  # that are encoded together


@dataclass(frozen=True)
class Corpus:
    """Text of a recipe.

    Attributes:
        name: what it is called where there are several: its source's file, without directory.
        text: its pairs.
        weight: in a mixture.
        settings: of the recipe, that name its source and its target.
    """

    name: str
    text: Text
    weight: float = 1.0
    settings: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class ValidationSet:
    """A validation set.

    Attributes:
        name: of the set.
        pairs: source and target.
        batches: the same in batches of at most max_tokens, shortest first.
    """

    name: str
    pairs: list[tuple[str, str]]
    batches: list[Batch]


@dataclass(frozen=True)
class TranslationData:
    """The data of a run.

    Attributes:
        tokenizer: of both sides.
        train: the training text.
        valid: the validation sets; none where the recipe names none.
        dropped: training pairs left out, by reason.
    """

    tokenizer: AnyTokenizer
    train: TrainingText
    valid: list[ValidationSet]
    dropped: dict[str, int]


def has_data(directory: Path) -> bool:
    """Whether a run's directory holds its data."""
    return (directory / TEXT).exists()


def load_data(
    config: DataConfig, directory: Path, *, seed: int, tokenizer: AnyTokenizer | None = None, check: bool = True
) -> TranslationData:
    """The data of a run, made and written into its directory unless it is there.

    Pairs with an empty side, a side longer than max_length pieces or (where given) max_words words are left out of
    training and validation alike. Training text is read once, and once more where a vocabulary is learned from it; of
    a run that has its data, it is read for its digest alone.

    Args:
        config: where text comes from and what is left out.
        directory: of the run.
        seed: of the vocabulary and of the order of batches.
        tokenizer: the one to use; by default one is learned.
        check: hold the training text to the digests of the run's data. One process does, for all.

    Raises:
        InputError: the text cannot be read, is not parallel, leaves no pair to train on, or has changed since the run's
            data were made.
    """
    valid = _corpora(config, "valid")
    valid_pairs = [list(corpus.text) for corpus in valid]  # a mistake in these is found before the long work on others
    corpora = _corpora(config, "train")
    if has_data(directory):
        made = _made(directory)
        tokenizer = read_tokenizer(directory)
        if check:
            _require_same_text(made, corpora, valid)
    else:
        if tokenizer is None:
            longest = LONGEST_PIECE * config.max_length  # a line past it will be left out, whatever is learned
            fits = (
                pair
                for pair in chain.from_iterable(corpus.text for corpus in corpora)
                if _unwanted(pair, config.max_words) is None and len(max(pair, key=len)) <= longest
            )
            wanted = (line for pair in fits for line in pair)
            tokenizer = Tokenizer.train(wanted, config.vocab_size, seed=seed, max_lines=config.vocab_lines)
        (directory / ENCODED).parent.mkdir(parents=True, exist_ok=True)
        for name, content in tokenizer.files.items():
            write_atomically(directory / name, content)
        made = _encode(corpora, tokenizer, config, directory / ENCODED)
        digests = {key: side.digest for key, side in _sides(corpora, valid).items()}
        made["digests"] = digests | {TOKENIZER: tokenizer.digest}
    sets = []
    for corpus, pairs in zip(valid, valid_pairs, strict=True):
        kept = list(_Filter(config, tokenizer, "validation")(pairs))
        sides = [found.src for found in kept], [found.tgt for found in kept]
        batches = list(eval_batches(*sides, config.max_tokens, tokenizer.special))
        sets.append(ValidationSet(corpus.name, [found.pair for found in kept], batches))
    if not has_data(directory):
        write_atomically(directory / TEXT, json.dumps(made).encode())
    return TranslationData(tokenizer, open_training_text(config, directory, seed=seed), sets, made["dropped"])


def open_training_text(config: DataConfig, directory: Path, *, seed: int) -> TrainingText:
    """The training text of a run that has its data."""
    corpora = _made(directory)["corpora"]
    return TrainingText(
        pairs=open_pairs(directory / ENCODED),
        names=tuple(corpus["name"] for corpus in corpora),
        mixture=Mixture.of(
            [corpus["pairs"] for corpus in corpora], [corpus["weight"] for corpus in corpora], config.temperature
        ),
        special=read_tokenizer(directory).special,
        config=config,
        seed=seed,
    )


def _encode(corpora: list[Corpus], tokenizer: AnyTokenizer, config: DataConfig, path: Path) -> dict[str, Any]:
    """Write the pairs that stay to path, and return how many they are of each corpus, and how many others."""
    keep = _Filter(config, tokenizer, "training")
    sizes = [0] * len(corpora)

    def rows() -> Iterator[tuple[list[int], list[int], int]]:
        for number, corpus in enumerate(corpora):
            for found in keep(corpus.text):
                sizes[number] += 1
                yield found.src, found.tgt, found.line

    write_pairs(path, rows(), pieces=max(tokenizer.vocab_sizes))
    told = [
        {"name": corpus.name, "pairs": size, "weight": corpus.weight}
        for corpus, size in zip(corpora, sizes, strict=True)
    ]
    return {"corpora": told, "dropped": keep.dropped}


def _require_same_text(made: dict[str, Any], corpora: list[Corpus], valid: list[Corpus]) -> None:
    """Refuse text, or a mixture of it, that a run did not begin with."""
    if len(corpora) != len(made["corpora"]):
        raise InputError(f"data.train_list: {len(corpora)} corpora, and this run began with {len(made['corpora'])}")
    for corpus, then in zip(corpora, made["corpora"], strict=True):
        if corpus.weight != then["weight"]:
            told = f"data.train_list: the weight of {corpus.name} is {corpus.weight:g}"
            raise InputError(f"{told}, and this run began with {then['weight']:g}")
    for key, side in _sides(corpora, valid).items():
        if made["digests"].get(key) != side.digest:
            raise InputError(f"data.{side.setting}: {side.path} is not the text that this run began with")


def read_tokenizer(directory: Path) -> AnyTokenizer:
    """The tokenizer of a run that has its data. Raises InputError when it is not the one that made them."""
    tokenizer = tokenizer_in(directory)
    if _made(directory)["digests"].get(TOKENIZER) != tokenizer.digest:
        raise InputError(f"{directory / TOKENIZER}: is not the tokenizer that this run began with")
    return tokenizer


def _made(directory: Path) -> dict[str, Any]:
    """What `prepare` noted of the data it made."""
    with reading(directory / TEXT, "not as this version writes it"):
        made = json.loads((directory / TEXT).read_bytes())
        corpora = [{name: corpus[name] for name in ("name", "pairs", "weight")} for corpus in made["corpora"]]
        return {"corpora": corpora, **{name: dict(made[name]) for name in ("digests", "dropped")}}


def _corpora(config: DataConfig, split: str) -> list[Corpus]:
    """The text of a split; nothing where the recipe names no validation text."""
    if config.builtin:
        lines = config.builtin_lines if split == "train" else VALID_LINES
        text = builtin(split, src_lang=config.src_lang, tgt_lang=config.tgt_lang, lines=lines)
        return [Corpus("the built-in corpus", text)]
    src, tgt, path = (getattr(config, f"{split}_{part}") for part in ("src", "tgt", "list"))
    settings = (f"{split}_list",) * 2 if path else (f"{split}_src", f"{split}_tgt")
    listed = read_list(path, weighted=split == "train") if path else [Listed(src, tgt)] if src else []
    return [Corpus(Path(each.src).name, ParallelFiles(each.src, each.tgt), each.weight, settings) for each in listed]


class _Side(NamedTuple):
    """A file of a recipe's text."""

    setting: str
    path: str
    digest: str


def _sides(corpora: list[Corpus], valid: list[Corpus]) -> dict[str, _Side]:
    """The files of a recipe's text, by where they stand. The built-in corpus is what the recipe says, and has none."""
    return {
        f"{split} {number} {name}": _Side(setting, str(path), digest)
        for split, found in (("train", corpora), ("valid", valid))
        for number, corpus in enumerate(found)
        if isinstance(corpus.text, ParallelFiles)
        for name, setting, path, digest in zip(
            ("src", "tgt"), corpus.settings, (corpus.text.src, corpus.text.tgt), corpus.text.digests(), strict=True
        )
    }


class _Kept(NamedTuple):
    """A pair that stays: its line, counted from 1, its text and its pieces."""

    line: int
    pair: tuple[str, str]
    src: list[int]
    tgt: list[int]


class _Filter:
    """Encodes pairs and leaves out those the recipe does not want, counting them by reason."""

    def __init__(self, data: DataConfig, tokenizer: AnyTokenizer, purpose: str) -> None:
        self.data = data
        self.tokenizer = tokenizer
        self.purpose = purpose
        self.dropped = {"empty": 0, "max_words": 0, "max_length": 0}

    def __call__(self, pairs: Iterable[tuple[str, str]]) -> Iterator[_Kept]:
        """The pairs that stay. Raises InputError when none does."""
        numbered, kept = enumerate(pairs, start=1), False
        while chunk := list(islice(numbered, _PAIRS_AT_ONCE)):
            wanted = [(line, pair) for line, pair in chunk if self._may_stay(pair)]
            encoded = self.tokenizer.encode_pairs([pair for _, pair in wanted])
            for (line, pair), (src, tgt) in zip(wanted, encoded, strict=True):
                if not src or not tgt:  # normalisation left nothing of them
                    self.dropped["empty"] += 1
                elif max(len(src), len(tgt)) > self.data.max_length:
                    self.dropped["max_length"] += 1
                else:
                    kept = True
                    yield _Kept(line, pair, src, tgt)
        if not kept:
            counts = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
            raise InputError(f"no {self.purpose} pair is left; left out: {counts}")

    def _may_stay(self, pair: tuple[str, str]) -> bool:
        """Whether a pair stays as far as its text tells; if not, it is counted."""
        reason = _unwanted(pair, self.data.max_words)
        if reason is None and max(map(len, pair)) > self.tokenizer.longest_piece * self.data.max_length:
            reason = "max_length"
        if reason is not None:
            self.dropped[reason] += 1
        return reason is None


def _unwanted(pair: tuple[str, str], max_words: int | None) -> str | None:
    """Why a pair is left out, by its words."""
    if not (pair[0].strip() and pair[1].strip()):
        return "empty"
    return "max_words" if max_words is not None and max(len(side.split()) for side in pair) > max_words else None
