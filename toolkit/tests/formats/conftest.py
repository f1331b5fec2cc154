"""Fixtures of the tests of formats."""

from pathlib import Path

import pytest
import sentencepiece

from tests.support.foreign_bundles import LINES


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory) -> tuple[Path, Path]:
    """SentencePiece models of two types, of the source and the target, which normalize text."""
    path = tmp_path_factory.mktemp("sentencepiece")
    for name, kind, size in (("src", "unigram", 60), ("tgt", "bpe", 50)):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES * 5), model_prefix=str(path / name), model_type=kind, vocab_size=size,
            hard_vocab_limit=False, character_coverage=1.0, minloglevel=2,
        )  # fmt: skip
    return path / "src.model", path / "tgt.model"
