"""From a data recipe to what training asks for: steps, validation batches and validation text.

Text becomes word pieces once and is kept in Arrow files under the run's cache, named after everything that shaped
them, so a resumed run opens them and a changed recipe never meets stale ones. Preparing writes (one process a
machine); setting up only opens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import lightning
from torch.utils.data import DataLoader

from relattn.translation.config import DataConfig
from relattn.translation.data.batching import Batch, StepStream, eval_batches
from relattn.translation.data.corpora import ParallelFiles
from relattn.translation.data.embedded import embedded
from relattn.translation.data.storage import IdColumn, open_pairs, write_pairs
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError
from relattn.translation.files import write_atomically

VALID_LINES = 500  # lines of the embedded validation set


class TranslationData(lightning.LightningDataModule):
    """The data of a run.

    Pairs with an empty side, a side longer than data.max_length pieces or (where given) data.max_words words are left
    out of training and validation alike.

    Args:
        data: where text comes from and how it is batched.
        seed: seed of the vocabulary and of the order of batches.
        cache_dir: where the tokenizer and the encoded corpus are kept.
        tokenizer: the one to use; by default one is learned from both sides of the training text.

    Attributes:
        position: (epoch, index) of the next training step; set it before training to resume.
        dropped: training pairs left out, by reason.
        valid_pairs: validation text, source and target; empty where the recipe names none.
    """

    def __init__(self, data: DataConfig, *, seed: int, cache_dir: Path, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        self.data = data
        self.seed = seed
        self.cache_dir = Path(cache_dir)
        self.position = (0, 0)
        self.dropped: dict[str, int] = {}
        self.valid_pairs: list[tuple[str, str]] = []
        self._given_tokenizer = tokenizer
        self._tokenizer: Tokenizer | None = None
        self._train: tuple[IdColumn, IdColumn] | None = None
        self._valid: tuple[list[list[int]], list[list[int]]] = ([], [])

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, once set up."""
        if self._tokenizer is None:
            raise RuntimeError("call prepare_data() and setup() first")
        return self._tokenizer

    def prepare_data(self) -> None:
        """Learn the tokenizer and encode the training text, unless that is done.

        Raises:
            InputError: the text cannot be read, is not parallel, or leaves no pair to train on.
        """
        corpus = self._corpus_key()
        text = self._text("train")
        if self._given_tokenizer is not None:
            tokenizer = self._given_tokenizer
        elif (kept := self._tokenizer_path(corpus)).exists():
            tokenizer = Tokenizer.load(kept)
        else:
            wanted = (line for pair in text if _unwanted(pair, self.data.max_words) is None for line in pair)
            tokenizer = Tokenizer.train(wanted, self.data.vocab_size, seed=self.seed)
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(kept, tokenizer.model_bytes)
        arrow, counts = self._encoded_paths(corpus, tokenizer)
        if counts.exists():
            return
        keep = _Filter(self.data, tokenizer, "training")
        write_pairs(arrow, ((src, tgt) for _, src, tgt in keep(text)))
        write_atomically(counts, json.dumps(keep.dropped).encode())

    def setup(self, stage: str | None = None) -> None:
        """Open what `prepare_data` wrote, and read the validation text."""
        if self._train is not None:
            return
        corpus = self._corpus_key()
        self._tokenizer = self._given_tokenizer or Tokenizer.load(self._tokenizer_path(corpus))
        arrow, counts = self._encoded_paths(corpus, self._tokenizer)
        self.dropped = json.loads(counts.read_text())
        self._train = open_pairs(arrow)
        if self.data.embedded or self.data.valid_src:
            kept = list(_Filter(self.data, self._tokenizer, "validation")(self._text("valid")))
            self.valid_pairs = [pair for pair, _, _ in kept]
            self._valid = [src for _, src, _ in kept], [tgt for _, _, tgt in kept]

    def train_dataloader(self) -> DataLoader:
        """This rank's endless steps, from `position` on; each item is a `Step`."""
        if self._train is None:
            raise RuntimeError("call prepare_data() and setup() first")
        src_ids, tgt_ids = self._train
        epoch, index = self.position
        ranks, rank = (1, 0) if self.trainer is None else (self.trainer.world_size, self.trainer.global_rank)
        stream = StepStream(
            src_ids,
            tgt_ids,
            max_tokens=self.data.max_tokens,
            accumulate=self.data.accumulate,
            ranks=ranks,
            rank=rank,
            seed=self.seed,
            epoch=epoch,
            index=index,
        )
        return DataLoader(stream, batch_size=None, num_workers=0)

    def valid_batches(self) -> list[Batch]:
        """The validation pairs, shortest first, in batches of at most max_tokens."""
        return list(eval_batches(*self._valid, self.data.max_tokens))

    def _text(self, split: str) -> Iterable[tuple[str, str]]:
        data = self.data
        if data.embedded:
            lines = data.embedded_lines if split == "train" else VALID_LINES
            return embedded(split, src_lang=data.src_lang, tgt_lang=data.tgt_lang, lines=lines)
        return ParallelFiles(getattr(data, f"{split}_src"), getattr(data, f"{split}_tgt"))

    def _corpus_key(self) -> str:
        """A digest of the training text: of the files' bytes, or of what the embedded corpus is made from."""
        data = self.data
        digest = hashlib.sha256()
        if data.embedded:
            digest.update(json.dumps([data.src_lang, data.tgt_lang, data.embedded_lines]).encode())
            return digest.hexdigest()
        for path in (data.train_src, data.train_tgt):
            try:
                with Path(path).open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
            except FileNotFoundError as error:
                raise InputError(f"{path}: no such file") from error
            except OSError as error:
                raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        return digest.hexdigest()

    def _tokenizer_path(self, corpus: str) -> Path:
        return (
            self.cache_dir
            / f"tokenizer-{_digest([corpus, self.data.vocab_size, self.data.max_words, self.seed])}.model"
        )

    def _encoded_paths(self, corpus: str, tokenizer: Tokenizer) -> tuple[Path, Path]:
        """The Arrow file of the encoded training text, and the counts of what it leaves out, written last."""
        model = hashlib.sha256(tokenizer.model_bytes).hexdigest()
        key = _digest([corpus, model, self.data.max_length, self.data.max_words])
        return self.cache_dir / f"train-{key}.arrow", self.cache_dir / f"train-{key}.dropped.json"


class _Filter:
    """Encodes pairs and leaves out those the recipe does not want, counting them by reason."""

    def __init__(self, data: DataConfig, tokenizer: Tokenizer, purpose: str) -> None:
        self.data = data
        self.tokenizer = tokenizer
        self.purpose = purpose
        self.dropped = {"empty": 0, "max_words": 0, "max_length": 0}

    def __call__(self, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], list[int], list[int]]]:
        """The pairs that stay, each with its source and target ids. Raises InputError when none does."""
        kept = 0
        for pair in pairs:
            reason = _unwanted(pair, self.data.max_words)
            if reason is None:
                src, tgt = self.tokenizer.encode(pair[0]), self.tokenizer.encode(pair[1])
                if max(len(src), len(tgt)) <= self.data.max_length:
                    kept += 1
                    yield pair, src, tgt
                    continue
                reason = "max_length"
            self.dropped[reason] += 1
        if not kept:
            counts = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
            raise InputError(f"no {self.purpose} pair is left; left out: {counts}")


def _unwanted(pair: tuple[str, str], max_words: int | None) -> str | None:
    """Why a pair is left out, as far as its text tells."""
    words = [len(side.split()) for side in pair]
    if min(words) == 0:
        return "empty"
    return "max_words" if max_words is not None and max(words) > max_words else None


def _digest(parts: list) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
