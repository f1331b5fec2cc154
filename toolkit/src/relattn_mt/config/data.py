"""Configuration of the training and validation text, and of its cleaning."""

from __future__ import annotations

from dataclasses import dataclass, field
from os.path import normpath
from typing import Literal

from relattn_mt.config.base import Config, number
from relattn_mt.support.errors import require, require_language, same_language

MOST_WEIGHT = 1000  # passes over a corpus per epoch
Normalization = Literal["nfc", "nmt_nfkc", "identity"]


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(Config):
    """Augmentation of the training text: the share of an epoch's pairs with each change, drawn for every epoch.

    A pair can have several changes. Validation text has none.

    Args:
        join_lines: Share of pairs that are joined with the next one to three pairs.
        drop_punctuation: Share of pairs whose final punctuation is removed, on both sides.
        typos: Share of pairs with typing errors in the source, in one word of ten.
        title_case: Share of pairs in which every word begins with a capital letter, on both sides.
        upper_case: Share of pairs in upper case, on both sides.
        copy: Share of pairs into which the same text is inserted on both sides, so that a model learns to copy emoji,
            symbols, addresses, placeholders, long numbers and words of other scripts.
        split_pieces: Share of pairs whose source is split into shorter pieces at random (BPE-dropout, Provilkov et al.
            2020): one piece in ten becomes two.
    """

    join_lines: float = number(0.0, "[0, 1]")
    drop_punctuation: float = number(0.0, "[0, 1]")
    typos: float = number(0.0, "[0, 1]")
    title_case: float = number(0.0, "[0, 1]")
    upper_case: float = number(0.0, "[0, 1]")
    copy: float = number(0.0, "[0, 1]")
    split_pieces: float = number(0.0, "[0, 1]")


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """Training and validation text, and how it is batched.

    Args:
        src_lang: Source language code.
        tgt_lang: Target language code.
        train_src: Training text, source side, one sentence per line, plain or compressed (gzip, bzip2, xz, zstd).
        train_tgt: Training text, target side.
        valid_src: Validation text, source side. By default none.
        valid_tgt: Validation text, target side.
        train_list: File that lists several corpora, instead of train_src and train_tgt: one per line, as source file,
            target file and optionally a weight, separated by tabs. Paths are relative to the file. With
            language_tokens, a line ends with the codes of the source and the target language.
        valid_list: File that lists several validation sets in the same form, without weights. patience uses the loss
            on the first.
        language_tokens: Target trains one model for several pairs of languages: every source sentence begins with the
            token of its target language. src_lang and tgt_lang are then the default of the bundle.
        temperature: With several corpora, an epoch draws from each in proportion to (pairs · weight)^(1 / temperature).
        normalization: Normalization of all text, also of text to translate and of translations. nfc removes invisible
            and control characters and unnecessary spaces, and gives each character one encoding. nmt_nfkc, the default
            of SentencePiece, also replaces characters by similar ones: ½ by 1⁄2, ² by 2. identity changes nothing.
        vocab_size: Maximum number of SentencePiece tokens, shared by both sides.
        vocab_lines: Maximum number of lines, of both sides, to learn the vocabulary from. If there are more, they are
            drawn at random.
        max_tokens: Maximum number of tokens per micro-batch, counted on the longer side, padding included.
        max_length: Skip training pairs with more tokens than this on either side.
        augment: Augmentation of the training text.
    """

    src_lang: str = "en"
    tgt_lang: str = "de"
    train_src: str = ""
    train_tgt: str = ""
    valid_src: str = ""
    valid_tgt: str = ""
    train_list: str = ""
    valid_list: str = ""
    language_tokens: Literal["none", "target"] = "none"
    temperature: float = number(1.0, "[0.01, 1e6]")
    normalization: Normalization = "nfc"
    vocab_size: int = number(8000, "[261, 1048576]")  # a byte is a piece, and there are 4 special tokens
    vocab_lines: int = number(500_000, "[1, 1e9]")
    max_tokens: int = number(4096, "[2, 1e9]")  # a piece and the end of sentence
    max_length: int = number(256, "[1, 1e6]")
    augment: AugmentConfig = field(default_factory=AugmentConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("src_lang", "tgt_lang"):
            require_language(name, getattr(self, name))
        differ = not same_language(self.src_lang, self.tgt_lang)
        require(differ, f"src_lang and tgt_lang must differ, got {self.src_lang} and {self.tgt_lang}")
        for split in ("train", "valid"):
            src, tgt, listed = (getattr(self, f"{split}_{name}") for name in ("src", "tgt", "list"))
            require(bool(src) == bool(tgt), f"{split}_src requires {split}_tgt and vice versa, got '{src}' and '{tgt}'")
            same = bool(src) and normpath(src) == normpath(tgt)
            require(not same, f"{split}_src and {split}_tgt must be different files, got '{src}' twice")
            require(not (src and listed), f"{split}_list must not be set together with {split}_src, got '{listed}'")

    @property
    def given_tokens(self) -> int:
        """Number of tokens before the text of each encoded source."""
        return int(self.language_tokens != "none")


@dataclass(frozen=True, kw_only=True)
class CleaningConfig(Config):
    """Rules of `relattn-mt prepare`: which pairs are dropped. null disables a rule.

    Args:
        max_words: Drop pairs with more words than this on either side. In Chinese, Japanese and Thai, each character
            counts as a word.
        max_characters: Drop pairs with more characters than this on either side.
        max_ratio: Drop pairs where one side has more than max_ratio × (words of the other + 1) words, and one side is
            more than max_ratio times as long as the other in bytes of UTF-8.
        min_script: Drop pairs where less than this share of a side's letters is in the scripts of its language.
        ngram: Drop pairs where a side shares this many consecutive words with a held-out line.
        keep_copies: Keep pairs whose sides have the same words, as in a file that was not translated.
        keep_duplicates: Keep repeated pairs.
    """

    max_words: int | None = number(250, "[1, 1e6]")
    max_characters: int | None = number(5000, "[1, 67108864]")
    max_ratio: float | None = number(3.0, "[1, 1e6]")
    min_script: float | None = number(0.5, "[0, 1]")
    ngram: int | None = number(13, "[1, 1000]")
    keep_copies: bool = False
    keep_duplicates: bool = False


@dataclass(frozen=True, kw_only=True)
class SyntheticCleaningConfig(CleaningConfig):
    """Rules of `relattn-mt distill` and `backtranslate`: those of `relattn-mt prepare`, and the teacher's score.

    Args:
        min_score: Drop pairs whose translation has a lower mean log-probability per token, in nats.
    """

    min_score: float | None = number(-2.0, "[-100, 0]")
