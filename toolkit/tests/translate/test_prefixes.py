"""Translations that begin with given characters, with tokenizers of subwords."""

import io
import re
from functools import cache
from typing import Any

import pytest
import sentencepiece
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from relattn_mt.config import ModelConfig, SearchConfig
from relattn_mt.model.transformer import Transformer
from relattn_mt.tokens.imported_tokenizer import ImportedTokenizer, Vocabulary
from relattn_mt.tokens.tokenizer import Tokenizer
from relattn_mt.translate.glossary import Glossary
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.prefixes import Prefixes
from relattn_mt.translate.translator import Translator

from tests.support.bundles import LINES
from tests.support.engines import translator_of

TEXT = [*LINES, "Wort Wörter Wortes Birnbaum Birke apfelrot apfelgrün pearl peak", "一个苹果和两个梨"]
OURS = {
    "identity": Tokenizer.train(TEXT * 5, 400, seed=1, normalization="identity"),
    "nfc": Tokenizer.train(TEXT * 5, 400, seed=1),
}
IMPORTED: dict[str, dict[str, Any]] = {
    "unigram": {},
    "bytes": {"byte_fallback": True, "vocab_size": 400},
    "bpe": {"model_type": "bpe", "vocab_size": 90, "hard_vocab_limit": True},
    "ends": {"treat_whitespace_as_suffix": True},
    "bare": {"add_dummy_prefix": False},
}


@cache
def translators(kind: str) -> tuple[Translator, Translator]:
    """Return a translator, and one of the same model that runs on PyTorch alone."""
    if kind in OURS:
        tokenizer: Any = OURS[kind]
    else:
        content = io.BytesIO()
        options = {"vocab_size": 110, "hard_vocab_limit": False, "character_coverage": 1.0, **IMPORTED[kind]}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT * 5), model_writer=content, minloglevel=2, **options
        )
        model = sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())
        pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
        missing = {"▁Wort", "Wort", "W"}  # pieces that the vocabulary lacks are unknown
        target = [piece for piece in reversed(pieces) if piece not in missing]
        vocabulary = Vocabulary(pieces, target, start="<s>", end="</s>", unknown="<unk>")
        tokenizer = ImportedTokenizer(content.getvalue(), content.getvalue(), vocabulary)
    torch.manual_seed(2)
    sizes = {"dim": 24, "heads": 3, "feed_forward_dim": 32, "encoder_layers": 1, "decoder_layers": 1, "clip": 3}
    network = Transformer(ModelConfig(**sizes, shared_embeddings="none"), *tokenizer.vocab_sizes)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)
    search = SearchConfig(beam_size=4, max_length_ratio=1.0, max_length_extra=4)
    return translator_of(network, tokenizer, search), translator_of(network, tokenizer, search, torch=True)


PREFIXES = st.lists(
    st.sampled_from(
        ["Wort", "W", " ", "Birn", "Apfel", "17", ",", "一个", "☃", "ﬁ", "\u00a0", "▁", "<s>", "é", "z", "n"]
    ),
    min_size=1,
    max_size=6,
).map("".join)


@pytest.mark.parametrize("kind", [*OURS, *IMPORTED])
@settings(max_examples=6)
@given(prefix=PREFIXES, beam_size=st.sampled_from([1, 3]))
@example(prefix="Wor", beam_size=3)
@example(prefix="zwei Birnen ", beam_size=3)
def test_translations_begin_with_the_characters(kind, prefix, beam_size):
    """Both engines find the same, and the score is that of the tokens."""
    ours, pytorch = translators(kind)
    lines, prefixes = ["one apple", "17 pears", "two"], [prefix, prefix, ""]
    search = SearchConfig(beam_size=beam_size, max_length_ratio=1.0, max_length_extra=4)
    options = TranslateOptions(n_best=beam_size, search=search)
    found = ours.n_best(lines, options, prefixes=prefixes)
    assert [each.text for each in found[2]] == [each.text for each in ours.n_best(lines[2:], options)[0]]
    for translations, others in zip(found, pytorch.n_best(lines, options, prefixes=prefixes), strict=True):
        assert [each.score for each in translations] == pytest.approx([each.score for each in others], rel=1e-4)
    for line, translations in zip(lines[:2], found, strict=False):
        assert translations
        for each in translations:
            assert each.text.startswith(prefix)
            (log_probs,) = ours.log_probs([ours.tokenizer.encode(line)], [each.tokens])
            assert each.mean_log_prob * len(log_probs) == pytest.approx(sum(log_probs), rel=1e-4)
            if kind == "identity":
                assert ours.tokenizer.decode(each.tokens) == each.text
    if kind in OURS:
        glossary = Glossary([(1, "17", "Birke"), (2, "pears", "Wort")])
        _, (best,) = ours.n_best(lines[:2], TranslateOptions(search=search, glossary=glossary), prefixes=prefixes[:2])
        assert best.text.startswith(prefix)
        assert "terms" in best.warnings or {"Birke", "Wort"} <= set(re.findall("Birke|Wort", best.text))


def test_only_the_end_of_a_long_word_is_spelled():
    """The time to spell all of it grows with the square of its length."""
    ids, spelling = Prefixes(OURS["nfc"]).encode("Wort" * 500)
    assert OURS["nfc"].decode(ids) + "Wort" * 40 in "Wort" * 500
    assert 100 < spelling.size <= 200
    assert translators("nfc")[0].translate(["one apple"], prefixes=["Wort" * 200])[0].startswith("Wort" * 200)
