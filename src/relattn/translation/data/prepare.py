"""From a data recipe to what training asks for: steps, validation batches and validation text.

Text becomes word pieces once and is kept in the run's directory:

    tokenizer.model     learned from both sides of the training text, unless one is given, which may have more files
    data/train.arrow    the encoded training text
    data/text.json      written last: digests of the text they were made from, and how many pairs were left out

A run goes on with these, whatever happens to the text meanwhile; a text that has changed is refused, wherever it lies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relattn.translation.config import DataConfig
from relattn.translation.data.batching import Batch, Step, eval_batches, steps
from relattn.translation.data.corpora import ParallelFiles
from relattn.translation.data.embedded import embedded
from relattn.translation.data.imported import AnyTokenizer, tokenizer_in
from relattn.translation.data.storage import IdColumn, open_pairs, write_pairs
from relattn.translation.data.tokenizer import LONGEST_PIECE, TOKENIZER, Tokenizer
from relattn.translation.errors import InputError, reading
from relattn.translation.files import write_atomically

Text = ParallelFiles | list[tuple[str, str]]
VALID_LINES = 500  # lines of the embedded validation set
ENCODED, TEXT = "data/train.arrow", "data/text.json"


@dataclass(frozen=True)
class TranslationData:
    """The data of a run.

    Attributes:
        config: how text is batched.
        seed: of the order of batches.
        tokenizer: of both sides.
        train: encoded source and target sentences, memory-mapped.
        valid_pairs: validation text, source and target; empty where the recipe names none.
        valid_batches: the same in batches of at most max_tokens, shortest first.
        dropped: training pairs left out, by reason.
    """

    config: DataConfig
    seed: int
    tokenizer: AnyTokenizer
    train: tuple[IdColumn, IdColumn]
    valid_pairs: list[tuple[str, str]]
    valid_batches: list[Batch]
    dropped: dict[str, int]

    def steps(self, position: tuple[int, int] = (0, 0), *, ranks: int = 1, rank: int = 0) -> Iterator[Step]:
        """One rank's steps from (epoch, index) on, without end."""
        return steps(
            *self.train,
            max_tokens=self.config.max_tokens,
            accumulate=self.config.accumulate,
            ranks=ranks,
            rank=rank,
            seed=self.seed,
            epoch=position[0],
            index=position[1],
            marks=self.tokenizer.marks,
        )


def prepared(directory: Path) -> bool:
    """Whether a run's directory holds its data."""
    return (directory / TEXT).exists()


def prepare(
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
    valid = _text(config, "valid")
    valid_pairs = list(valid)  # a mistake in these is found before the long work on the others
    if prepared(directory):
        made = _made(directory)
        tokenizer = tokenizer_of(directory)
        now = _digests(_text(config, "train"), valid) if check and not config.embedded else {}
        for name, digest in now.items():
            if made["digests"].get(name) != digest:
                raise InputError(f"data.{name}: {getattr(config, name)} is not the text that this run began with")
    else:
        train = _text(config, "train")
        if tokenizer is None:
            longest = LONGEST_PIECE * config.max_length  # a line past it will be left out, whatever is learned
            fits = (
                pair
                for pair in train
                if _unwanted(pair, config.max_words) is None and len(max(pair, key=len)) <= longest
            )
            wanted = (line for pair in fits for line in pair)
            tokenizer = Tokenizer.train(wanted, config.vocab_size, seed=seed)
        (directory / ENCODED).parent.mkdir(parents=True, exist_ok=True)
        for name, content in tokenizer.files.items():
            write_atomically(directory / name, content)
        keep = _Filter(config, tokenizer, "training")
        write_pairs(directory / ENCODED, ((src, tgt) for _, src, tgt in keep(train)))
        digests = _digests(train, valid) | {TOKENIZER: tokenizer.digest}
        made = {"digests": digests, "dropped": keep.dropped}
    kept = list(_Filter(config, tokenizer, "validation")(valid_pairs)) if valid_pairs else []
    if not prepared(directory):
        write_atomically(directory / TEXT, json.dumps(made).encode())
    sides = [src for _, src, _ in kept], [tgt for _, _, tgt in kept]
    return TranslationData(
        config=config,
        seed=seed,
        tokenizer=tokenizer,
        train=open_pairs(directory / ENCODED),
        valid_pairs=[pair for pair, _, _ in kept],
        valid_batches=list(eval_batches(*sides, config.max_tokens, tokenizer.marks)),
        dropped=made["dropped"],
    )


def tokenizer_of(directory: Path) -> AnyTokenizer:
    """The tokenizer of a run that has its data. Raises InputError when it is not the one that made them."""
    tokenizer = tokenizer_in(directory)
    if _made(directory)["digests"].get(TOKENIZER) != tokenizer.digest:
        raise InputError(f"{directory / TOKENIZER}: is not the tokenizer that this run began with")
    return tokenizer


def _made(directory: Path) -> dict[str, Any]:
    """What `prepare` noted of the data it made."""
    with reading(directory / TEXT, "not as this version writes it"):
        made = json.loads((directory / TEXT).read_bytes())
        return {name: dict(made[name]) for name in ("digests", "dropped")}


def _text(config: DataConfig, split: str) -> Text:
    """The pairs of a split; none where the recipe names no validation text."""
    if config.embedded:
        lines = config.embedded_lines if split == "train" else VALID_LINES
        return embedded(split, src_lang=config.src_lang, tgt_lang=config.tgt_lang, lines=lines)
    src, tgt = getattr(config, f"{split}_src"), getattr(config, f"{split}_tgt")
    return ParallelFiles(src, tgt) if src else []


def _digests(train: Text, valid: Text) -> dict[str, str]:
    """Of each side of the text in files. The embedded corpus is what the recipe says, and needs none."""
    return {
        f"{split}_{side}": digest
        for split, text in (("train", train), ("valid", valid))
        if isinstance(text, ParallelFiles)
        for side, digest in zip(("src", "tgt"), text.digests(), strict=True)
    }


class _Filter:
    """Encodes pairs and leaves out those the recipe does not want, counting them by reason."""

    def __init__(self, data: DataConfig, tokenizer: AnyTokenizer, purpose: str) -> None:
        self.data = data
        self.tokenizer = tokenizer
        self.purpose = purpose
        self.dropped = {"empty": 0, "max_words": 0, "max_length": 0}

    def __call__(self, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], list[int], list[int]]]:
        """The pairs that stay, each with its source and target ids. Raises InputError when none does."""
        kept = 0
        for pair in pairs:
            reason = _unwanted(pair, self.data.max_words)
            if reason is None and all(self.tokenizer.may_fit(side, self.data.max_length) for side in pair):
                src, tgt = self.tokenizer.encode(pair[0]), self.tokenizer.encode_target(pair[1])
                if not src or not tgt:  # normalisation left nothing of them
                    reason = "empty"
                elif max(len(src), len(tgt)) <= self.data.max_length:
                    kept += 1
                    yield pair, src, tgt
                    continue
            self.dropped[reason or "max_length"] += 1
        if not kept:
            counts = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
            raise InputError(f"no {self.purpose} pair is left; left out: {counts}")


def _unwanted(pair: tuple[str, str], max_words: int | None) -> str | None:
    """Why a pair is left out, as far as its text tells."""
    words = [len(side.split()) for side in pair]
    if min(words) == 0:
        return "empty"
    return "max_words" if max_words is not None and max(words) > max_words else None
