"""Rules against repetition, against those of transformers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from relattn_mt.config import ModelConfig, SearchConfig
from relattn_mt.model.transformer import Transformer
from relattn_mt.search.repetition import restrain
from relattn_mt.support.errors import InputError
from relattn_mt.tokens.tokenizer import Tokenizer
from relattn_mt.translate.glossary import Glossary
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.translator import Translator
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from tests.support.bundles import LINES
from tests.support.engines import translator_of

TOKENIZER = Tokenizer.train(LINES * 5, 300, seed=1)


def translators() -> tuple[Translator, Translator]:
    """Return a translator that repeats itself, and one of the same model that runs on PyTorch alone."""
    torch.manual_seed(3)
    sizes = {"dim": 24, "heads": 3, "feed_forward_dim": 32, "encoder_layers": 1, "decoder_layers": 1, "clip": 3}
    model = Transformer(ModelConfig(**sizes), *TOKENIZER.vocab_sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    search = SearchConfig(max_length_ratio=3.0, max_length_extra=10)
    return translator_of(model, TOKENIZER, search), translator_of(model, TOKENIZER, search, torch=True)


@given(
    tokens=st.integers(1, 9).flatmap(
        lambda length: st.lists(st.lists(st.integers(0, 4), min_size=length, max_size=length), min_size=1, max_size=3)
    ),
    size=st.integers(0, 4),
    penalty=st.sampled_from([1.0, 1.3, 5.0]),
)
def test_logits_equal_those_of_transformers(tokens, size, penalty):
    logits = torch.randn(len(tokens), 6, generator=torch.Generator().manual_seed(0))
    search = SearchConfig(no_repeat_ngram=size, repetition_penalty=penalty)
    tokens = torch.tensor(tokens, dtype=torch.long)
    want = RepetitionPenaltyLogitsProcessor(penalty)(tokens, logits.clone())
    want = NoRepeatNGramLogitsProcessor(size)(tokens, want) if size else want
    found = restrain(logits.numpy(), tokens.numpy(), search, np.zeros(len(tokens), dtype=bool))
    np.testing.assert_array_equal(found, want)


def repeats(tokens: list[int], size: int) -> bool:
    ngrams = list(zip(*(tokens[i:] for i in range(size)), strict=False))
    return len(ngrams) > len(set(ngrams))


BOTH = {"no_repeat_ngram": 3, "repetition_penalty": 1.3}


@pytest.mark.parametrize(
    ("beam_size", "rules"), [(1, BOTH), (4, BOTH), (4, {"no_repeat_ngram": 2}), (4, {"repetition_penalty": 1.1})]
)
def test_both_engines_find_the_same(beam_size, rules):
    ours, pytorch = translators()
    lines = [f"{line} {LINES[0]}" for line in LINES]
    plain = SearchConfig(beam_size=beam_size, max_length_ratio=3.0, max_length_extra=10)
    free = ours.n_best(lines, TranslateOptions(search=plain))
    options = TranslateOptions(search=SearchConfig(**vars(plain) | rules), n_best=beam_size)
    found, wanted = ours.n_best(lines, options), pytorch.n_best(lines, options)
    for translations, others in zip(found, wanted, strict=True):
        assert [each.tokens for each in translations] == [each.tokens for each in others]
        assert [each.score for each in translations] == pytest.approx([each.score for each in others], rel=1e-4)
    assert [each[0].tokens for each in found] != [each[0].tokens for each in free]
    if size := rules.get("no_repeat_ngram", 0):
        assert any(repeats(best.tokens, size) for best, *_ in free)
        assert not any(repeats(each.tokens, size) for translations in found for each in translations)


def test_prefixes_obey_the_rules_and_a_glossary_is_refused():
    ours, _ = translators()
    search = SearchConfig(no_repeat_ngram=2, max_length_ratio=3.0, max_length_extra=10)
    prefix = "Birne Birne Birne Bir"  # given text may repeat itself
    (text,) = ours.translate(LINES[:1], TranslateOptions(search=search), prefixes=[prefix])
    assert text.startswith(prefix)
    with pytest.raises(InputError, match="glossary does not work with no_repeat_ngram"):
        ours.translate(["pears"], TranslateOptions(search=search, glossary=Glossary([(1, "pears", "Birnen")])))
