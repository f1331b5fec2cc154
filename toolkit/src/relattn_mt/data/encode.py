"""Data of a run: encode the text that a recipe names, keep it on disk, and open it again.

    tokenizer.model     trained on both sides of the training text, unless one is given, which may have more files
    data/train.pairs    encoded training text, one corpus after the other
    data/links.pairs    word alignment of the encoded training text, with train.guided_alignment
    data/text.json      written last: the corpora, digests of their files and of data/, numbers of dropped pairs

A run continues with these files. It is refused if the text has changed since; the files may have been moved.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

from relattn_mt.config import DataConfig, Recipe, StageConfig
from relattn_mt.data.augmentation import AugmentedPairs, sample_perturbed
from relattn_mt.data.batching import Batch, Stage, TrainingText, eval_batches
from relattn_mt.data.links import LINKS, write_links
from relattn_mt.data.mixture import CorpusFiles, Mixture, read_corpus_list
from relattn_mt.data.storage import open_pairs, write_pairs
from relattn_mt.support.errors import one_line, reading, require
from relattn_mt.support.files import file_digest, require_regular, write_atomically
from relattn_mt.support.types import Fields, IdPair, Ids, LanguagePair, SentencePair
from relattn_mt.text.patterns import has_text
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer, tokenizer_in
from relattn_mt.tokens.text_files import ParallelFiles
from relattn_mt.tokens.tokenizer import LONGEST_PIECE, TOKENIZER, SpecialTokens, Tokenizer

ENCODED = "data/train.pairs"
TEXT = "data/text.json"
_CHUNK = 5000  # pairs that are encoded at once
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """Parallel text that a recipe names.

    Attributes:
        name: Name of the source file.
        pairs: Sentence pairs.
        text: Files of the pairs.
        weight: Weight in a mixture.
        settings: Settings of the recipe that name the source and the target.
        languages: Codes of the source and the target language.
    """

    name: str
    pairs: Iterable[SentencePair]
    text: ParallelFiles
    weight: float
    settings: tuple[str, str]
    languages: LanguagePair

    def record(self, pairs: int) -> Fields:
        """Return what data/text.json says about this corpus. `pairs` is the number of encoded pairs."""
        return {
            "name": self.name,
            "pairs": pairs,
            "weight": self.weight,
            "digests": self.text.digests(),
            "languages": self.languages,
        }


@dataclass
class TextRecord:
    """Content of data/text.json.

    Attributes:
        tokenizer: Digest of the tokenizer.
        encoded: Digest of data/train.pairs.
        links: Digest of data/links.pairs; "" without that file.
        train: `Corpus.record` of each training corpus.
        valid: The same of each validation set.
        dropped: Number of training pairs that were dropped, by reason.
    """

    tokenizer: str
    encoded: str = ""
    links: str = ""
    train: list[Fields] = field(default_factory=list)
    valid: list[Fields] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class ValidationSet:
    """Text to validate on.

    Attributes:
        name: Name of the source file.
        languages: Codes of the source and the target language.
        pairs: Sentence pairs.
        batches: The pairs in batches of at most max_tokens, shortest first.
    """

    name: str
    languages: LanguagePair
    pairs: list[SentencePair]
    batches: list[Batch]


@dataclass(frozen=True)
class TranslationData:
    """Data of a run.

    Attributes:
        tokenizer: Tokenizer of both sides.
        train: Encoded training text.
        valid: Validation sets, none if the recipe names none.
        dropped: Number of training pairs that were dropped, by reason.
        languages: Codes of the source and the target language of the training corpora, each pair once.
    """

    tokenizer: AnyTokenizer
    train: TrainingText
    valid: list[ValidationSet]
    dropped: dict[str, int]
    languages: list[LanguagePair]


def has_data(directory: Path) -> bool:
    """Return whether a run's directory has its data."""
    return (directory / TEXT).exists()


def load_data(recipe: Recipe, *, tokenizer: AnyTokenizer | None = None, check: bool = True) -> TranslationData:
    """Return the data of a run. If its directory does not have them, encode the text and write them.

    Without a tokenizer, one is trained. One of several processes must `check` the text against the run's digests.

    Pairs with a side without text, or with a side of more than max_length pieces, are dropped, from
    training and validation text. Training text is read twice if a tokenizer is trained on it, otherwise once. If the
    run has its data, it is only read for its digest. The tokenizer is trained on text that is changed as in an epoch,
    so that it has tokens for words in upper case.

    Raises:
        InputError: The text cannot be read, is not parallel, has no pair that is kept, or has changed since the run
            started.
    """
    config = recipe.data
    directory = recipe.directory
    # first, because an error in it is found quickly
    valid = [replace(corpus, pairs=list(corpus.pairs)) for corpus in _corpora(config, "valid")]
    train = _corpora(config, "train")
    _require_fit(recipe, [corpus.languages for corpus in train], tokenizer)
    is_new = not has_data(directory)
    if is_new:
        _write_data(recipe, train, valid, tokenizer)
    data = open_data(recipe)
    if check and not is_new:
        record = _read_record(directory)
        for name, digest in ((ENCODED, record.encoded), (LINKS, record.links)):
            is_same = not digest or file_digest(directory / name) == digest
            require(is_same, f"{directory / name}: damaged: it must be as this run has written it")
        _require_same_text("train", train, record.train)
        _require_same_text("valid", valid, record.valid)
    for corpus in valid:
        pairs, src, tgt = zip(*_encoded(corpus, data.tokenizer, config, Counter()), strict=True)
        batches = list(eval_batches(src, tgt, config.max_tokens, data.tokenizer.special))
        data.valid.append(ValidationSet(corpus.name, corpus.languages, list(pairs), batches))
    return data


def open_data(recipe: Recipe) -> TranslationData:
    """Open the data of a run that has them, without the validation sets. The files of its text are not read.

    With language_tokens, encoded sources have their tokens, so the tokenizer adds none.

    Raises:
        InputError: The tokenizer is not the one that encoded them.
    """
    config = recipe.data
    directory = recipe.directory
    record = _read_record(directory)
    tokenizer = tokenizer_in(directory)
    if not config.given_tokens:
        tokenizer = tokenizer.with_languages(config.src_lang, config.tgt_lang)
    same = record.tokenizer == tokenizer.digest
    require(same, f"{directory / TOKENIZER} must be the tokenizer that this run started with, got another one")
    sizes = tuple(corpus["pairs"] for corpus in record.train)
    weights = tuple(corpus["weight"] for corpus in record.train)
    stages = []
    end = 0
    for stage in recipe.stages or (StageConfig(augment=config.augment),):
        augmented = None
        if any(vars(stage.augment).values()):
            augmented = partial(
                AugmentedPairs, stage.augment, tokenizer, sizes, config.max_length, recipe.seed, config.given_tokens
            )
        mixture = Mixture.weighted(sizes, weights if stage.weights is None else stage.weights, config.temperature)
        end += stage.steps or 0
        stages.append(Stage(mixture, augmented, None if stage.steps is None else end))
    text = TrainingText(
        pairs=open_pairs(directory / ENCODED, sum(sizes)),
        names=tuple(corpus["name"] for corpus in record.train),
        stages=tuple(stages),
        special=tokenizer.special,
        max_tokens=config.max_tokens,
        seed=recipe.seed,
        links=open_pairs(directory / LINKS, sum(sizes)) if record.links else None,
    )
    languages = dict.fromkeys(tuple(corpus["languages"]) for corpus in record.train)
    return TranslationData(tokenizer, text, [], record.dropped, list(languages))


def _read_record(directory: Path) -> TextRecord:
    with reading(directory / TEXT, "not as this version writes it"):
        return TextRecord(**json.loads((directory / TEXT).read_bytes()))


def _corpora(config: DataConfig, split: str) -> list[Corpus]:
    """Return the corpora of a split; none if the recipe names no validation text."""
    src, tgt, path = (getattr(config, f"{split}_{part}") for part in ("src", "tgt", "list"))
    files = [CorpusFiles(src, tgt)] if src else []
    require(src or path or split == "valid", "data.train_src or data.train_list must be set")
    if path:
        files = read_corpus_list(path, weighted=split == "train", languages=config.given_tokens > 0)
    settings = (f"{split}_list",) * 2 if path else (f"{split}_src", f"{split}_tgt")
    corpora = []
    for src, tgt, weight, languages in files:
        require_regular(src, tgt)  # read more than once
        pairs = ParallelFiles(src, tgt)
        languages = languages or (config.src_lang, config.tgt_lang)
        corpora.append(Corpus(Path(src).name, pairs, pairs, weight, settings, languages))
    return corpora


def _require_fit(recipe: Recipe, pairs: list[LanguagePair], tokenizer: AnyTokenizer | None) -> None:
    """Raise an InputError if the stages, lengths or languages of a run do not fit its corpora, model or tokenizer."""
    data = recipe.data
    corpora = len(pairs)
    if data.given_tokens:
        default = data.src_lang, data.tgt_lang
        listed = ", ".join(map(" to ".join, dict.fromkeys(pairs)))
        require(
            default in pairs,
            f"data.src_lang and data.tgt_lang must be a pair of data.train_list ({one_line(listed, 200)}), got "
            f"{' to '.join(default)}",
        )
        if tokenizer is not None:
            has_tokens = isinstance(tokenizer, Tokenizer) and bool(tokenizer.languages)
            require(has_tokens, "data.language_tokens requires a model that was trained with it in train.init_from")
            for pair in pairs:
                tokenizer.with_languages(*pair)  # raises for a language without a token
    positions = recipe.model.position_spec.max_length
    special = SpecialTokens() if tokenizer is None else tokenizer.special
    around = max(special.per_source + data.given_tokens, special.per_target)
    longest = data.max_length if positions is None else positions - around
    message = f"data.max_length must be at most {longest}, so that sentences fit into model.max_positions {positions}"
    require(data.max_length <= longest, f"{message}, got {data.max_length}")
    for stage in recipe.stages:
        count = corpora if stage.weights is None else len(stage.weights)
        require(count == corpora, f"weights of a stage must be {corpora}, one per corpus, got {count}")


def _require_same_text(split: str, corpora: list[Corpus], recorded: list[Fields]) -> None:
    """Raise an InputError if the corpora of a split are not those that the run started with."""
    count = len(recorded)
    require(len(corpora) == count, f"data.{split}_list must have {count} corpora in this run, got {len(corpora)}")
    for corpus, before in zip(corpora, recorded, strict=True):
        of_corpus = f"of {corpus.name} must be"
        wanted = " to ".join(before["languages"])
        got = " to ".join(corpus.languages)
        require(got == wanted, f"data.{split}_list: the languages {of_corpus} {wanted} in this run, got {got}")
        weight = before["weight"]
        message = f"data.{split}_list: the weight {of_corpus} {weight:g} in this run, got {corpus.weight:g}"
        require(corpus.weight == weight, message)
        paths = corpus.text.src, corpus.text.tgt
        files = zip(corpus.settings, paths, corpus.text.digests(), before["digests"], strict=True)
        for setting, path, digest, expected in files:
            require(digest == expected, f"data.{setting}: {path} must have the text that this run started with")


def _write_data(recipe: Recipe, train: list[Corpus], valid: list[Corpus], tokenizer: AnyTokenizer | None) -> None:
    """Write the tokenizer, the encoded training text, and last its record.

    By default, a tokenizer is trained on the pairs of the training text that may be kept, changed as in an epoch.
    """
    config = recipe.data
    directory = recipe.directory
    if tokenizer is None:
        pairs = chain.from_iterable(corpus.pairs for corpus in train)
        kept = _without_empty_and_long(pairs, LONGEST_PIECE * config.max_length, Counter())
        tokenizer = Tokenizer.train(
            chain.from_iterable(sample_perturbed(kept, recipe.augments, recipe.seed)),
            config.vocab_size,
            seed=recipe.seed,
            max_lines=config.vocab_lines,
            normalization=config.normalization,
            languages=sorted({corpus.languages[1] for corpus in train}) if config.given_tokens else (),
        )
    (directory / ENCODED).parent.mkdir(parents=True, exist_ok=True)
    for name, content in tokenizer.files.items():
        write_atomically(directory / name, content)
    record = TextRecord(tokenizer.digest)

    def rows() -> Iterator[IdPair]:
        for corpus in train:
            count = copies = 0
            for pair, src, tgt in _encoded(corpus, tokenizer, config, record.dropped):
                count += 1
                copies += pair[0] == pair[1]
                yield src, tgt
            record.train.append(corpus.record(count))
            if 2 * copies > count:
                _log.warning("%s: both sides are the same text in %d of %d pairs", corpus.name, copies, count)

    write_pairs(directory / ENCODED, rows(), vocab_size=max(tokenizer.vocab_sizes))
    record.encoded = file_digest(directory / ENCODED)
    if recipe.train.guided_alignment > 0:
        encoded = open_pairs(directory / ENCODED)
        write_links(directory / LINKS, encoded, config.given_tokens, tokenizer.vocab_sizes)
        record.links = file_digest(directory / LINKS)
    for corpus in valid:
        record.valid.append(corpus.record(sum(1 for _ in _encoded(corpus, tokenizer, config, Counter()))))
    write_atomically(directory / TEXT, json.dumps(vars(record)).encode())


def _encoded(
    corpus: Corpus, tokenizer: AnyTokenizer, config: DataConfig, dropped: Counter[str]
) -> Iterator[tuple[SentencePair, list[int], list[int]]]:
    """Yield text and piece ids of the pairs of a corpus that are kept, and count those that are empty or too long.

    With language_tokens, a source begins with the token of its target language.

    Raises:
        InputError: No pair is kept.
    """
    kept = 0
    candidates = _without_empty_and_long(corpus.pairs, tokenizer.longest_piece * config.max_length, dropped)
    given: Ids = ()
    if config.given_tokens:
        given = tokenizer.with_languages(*corpus.languages).special.src_begin
    while chunk := list(islice(candidates, _CHUNK)):
        for pair, (src, tgt) in zip(chunk, tokenizer.encode_pairs(chunk), strict=True):
            if not src or not tgt:  # normalization left nothing
                dropped["empty"] += 1
            elif max(len(src), len(tgt)) > config.max_length:
                dropped["max_length"] += 1
            else:
                kept += 1
                yield pair, [*given, *src], tgt
    counts = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
    require(kept > 0, f"{corpus.name}: at least one pair must be kept, but all were dropped: {counts}")


def _without_empty_and_long(
    pairs: Iterable[SentencePair], max_characters: float, dropped: Counter[str]
) -> Iterator[SentencePair]:
    """Yield the pairs that are kept, as far as this is known without encoding them, and count the others."""
    for pair in pairs:
        if not all(map(has_text, pair)):
            dropped["empty"] += 1
        elif max(map(len, pair)) > max_characters:
            dropped["max_length"] += 1
        else:
            yield pair
