"""Word alignments from cross-attention, and output formats."""

import json
import math
import random
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from relattn_mt.config import ModelConfig
from relattn_mt.data.batching import collate
from relattn_mt.model.torch_engine import TorchEngine
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.errors import InputError
from relattn_mt.text.alignment import align_words
from relattn_mt.tokens.tokenizer import SpecialTokens, word_indices
from relattn_mt.translate.output_formats import LineFormat, pharaoh
from relattn_mt.translate.translation import Translation

from tests.support.engines import compiled
from tests.support.foreign_bundles import tokenizer


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["▁Ein", "▁Ma", "nn", "."], [0, 1, 1, 1]),
        (["▁", "Ein", "▁", "▁", "Mann"], [None, 0, None, None, 1]),
        (["▁a", "<0xC3>", "<0xA9>", "▁", "<0xC3>", "<0xA9>", "b"], [0, 0, 0, None, 1, 1, 1]),
        (["▁a", "▁", "<0xC3>", "<0xE2>", "<0x96>", "▁b", "<0x81>"], [0, None, None, None, None, 1, None]),
        (["ohne", "▁am▁", "Ende"], [0, 1, 2]),
        ([], []),
    ],
)
def test_word_indices(pieces, words):
    assert word_indices(pieces) == words


def test_there_are_as_many_words_as_in_the_text():
    """Also with the byte pieces of spaces and line breaks."""
    draw, own = random.Random(1), tokenizer()
    pieces = own.vocabularies[1]
    for _ in range(3_000):
        ids = [draw.randrange(4, len(pieces)) for _ in range(draw.randrange(1, 6))]
        indices = [index for index in word_indices([pieces[i] for i in ids]) if index is not None]
        assert len(re.findall("[^ ]+", own.decode(ids))) == max(indices, default=-1) + 1


def test_a_word_is_linked_to_the_word_with_the_most_weight():
    source, target = ["▁a", "▁b", "c", "▁d"], ["▁u", "v", "▁w", "▁", "▁x"]
    weights = np.array(
        [  # begin of sentence, a, b, c, d, end of sentence
            [0.0, 0.4, 0.3, 0.2, 0.1, 0.0],  # u: by itself linked to a,
            [0.0, 0.1, 0.2, 0.5, 0.1, 0.1],  # v: but uv to bc
            [0.3, 0.1, 0.0, 0.0, 0.4, 0.2],  # w: both special tokens outweigh d
            [0.0, 0.0, 0.0, 0.0, 1.0, 0.0],  # in no word
            [0.1, 0.1, 0.1, 0.0, 0.5, 0.2],
            [0.0, 1.0, 0.0, 0.0, 0.0, 0.0],  # end of sentence
        ]
    )
    found = align_words(weights, source, target, SpecialTokens(src_begin=(1,))).links
    assert found == [(1, 0), (2, 2)]
    assert pharaoh(found) == "1-0 2-2"
    assert align_words(weights[:1, 4:], [], [], SpecialTokens(src_begin=(1,))).links == []
    assert align_words(weights[:, 4:], [], target, SpecialTokens(src_begin=(1,))).links == []


@pytest.mark.parametrize(
    ("source", "target", "rows", "expected"),
    [
        # of the words `open`, `the` and `door.`: the full stop of `Tür.` looks at `open`, that of `door.` has more
        # weight than `door`
        (["▁open", "▁the", "▁door", "."], ["▁Tür", "."], [[0.1, 0.0, 0.6, 0.3], [0.9, 0.0, 0.1, 0.0]], [(2, 0)]),
        (["▁open", ".", "▁door"], ["▁Tür"], [[0.1, 0.6, 0.3]], [(1, 0)]),
        # alone, punctuation counts, and so it does in a word without letters or digits
        (["▁a", "▁-", "▁b"], ["▁–"], [[0.1, 0.7, 0.2]], [(1, 0)]),
        (["▁a", "▁", "...", "!"], ["▁", "…"], [[0.9, 0.0, 0.0, 0.1], [0.1, 0.1, 0.5, 0.3]], [(1, 0)]),
        # digits, marks of scripts without letters in a piece, and bytes count as letters do
        (["▁3", ",", "5", "▁b"], ["▁3", ".", "5"], [[0.1, 0, 0.2, 0], [0, 0, 0, 1], [0.1, 0, 0.2, 0]], [(0, 0)]),
        (["▁a", "▁क", "ा"], ["▁x"], [[0.4, 0.1, 0.5]], [(1, 0)]),
        (["▁a", "▁", "<0xC3>", "<0xA9>"], ["▁x"], [[0.4, 0, 0.3, 0.3]], [(1, 0)]),
        # without spaces between words, a sentence is one word
        (["▁開け", "、", "て。"], ["▁Öffne", "n"], [[0.3, 0.5, 0.2], [0.2, 0.6, 0.1]], [(0, 0)]),
        (["▁open", "▁it"], ["▁開け", "。"], [[0.7, 0.2], [0.0, 1.0]], [(0, 0)]),
    ],
)  # fmt: skip
def test_punctuation_does_not_decide_for_a_word_with_letters(source, target, rows, expected):
    rest = np.zeros((len(rows), 1))  # the end of the source
    assert align_words(np.hstack([np.array(rows), rest]), source, target, SpecialTokens()).links == expected


def make_model(seed: int, **changes: object) -> Transformer:
    torch.manual_seed(seed)
    sizes = {"dim": 24, "heads": 3, "feed_forward_dim": 32, "encoder_layers": 1, "decoder_layers": 3, "clip": 2}
    return Transformer(ModelConfig(**{**sizes, **changes}), 40).eval()


@torch.no_grad()
@pytest.mark.parametrize(
    ("norm", "layers", "settings", "expected"),
    [  # expected: the layer, and how many of the first heads
        ("pre", 3, {}, (2, 3)),
        ("post", 2, {"alignment_layer": 0, "alignment_heads": 1}, (0, 1)),
        ("post", 1, {"alignment_heads": 2}, (0, 2)),
        ("pre", 3, {"alignment_layer": 1, "alignment_heads": 3}, (1, 3)),
    ],
)
def test_attention_is_that_of_the_layer_and_the_heads_of_the_configuration(
    monkeypatch, norm, layers, settings, expected
):
    """Compare with PyTorch's attention in that layer, whose values are replaced by unit vectors, on both engines."""
    model = make_model(1, norm=norm, decoder_layers=layers, **settings)
    batch = collate([[5, 6, 7], [8]], [[9, 10], [11, 12, 13, 14]])
    logits, found = model(batch.src, batch.src_lengths, batch.tgt_in, model.config.alignment)
    seen = []
    sdpa = F.scaled_dot_product_attention

    def spy(query, key, value, *arguments, **options):
        if key.shape[2] == 4 and query.shape[2] == 5:
            ones = torch.eye(4).expand(*key.shape[:2], 4, 4)
            seen.append(sdpa(query, key, ones, *arguments, **options))
        return sdpa(query, key, value, *arguments, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    assert torch.equal(model(batch.src, batch.src_lengths, batch.tgt_in), logits)
    assert len(seen) == layers
    layer, heads = expected
    torch.testing.assert_close(found, seen[layer][:, :heads].mean(1))
    assert float(found[1, :, 2:].abs().max()) == 0
    sources, targets = [[5, 6, 7, 3], [8, 3]], [[2, 9, 10, 3], [2, 11, 12, 13, 14, 3]]
    both = zip(compiled(model).align(sources, targets), TorchEngine(model).align(sources, targets), strict=True)
    for mine, its in both:
        np.testing.assert_allclose(mine, its, atol=1e-6)
        np.testing.assert_allclose(mine.sum(1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alignment_layer": 3}, r"alignment_layer must be in \[0, 2\]"),
        ({"alignment_layer": -1}, r"alignment_layer must be in \[0, 2\]"),
        ({"alignment_heads": 4}, "alignment_heads must be at most heads, got 4 and heads 3"),
    ],
)
def test_other_layers_and_heads_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        make_model(1, **settings)


TWO = [
    Translation("ein\tMann »x«", -0.51239, [5], math.log(0.5), [(0, 0), (2, 1)]),
    Translation("", -2.0, [], warnings=("empty", "length")),
]


@pytest.mark.parametrize(
    ("style", "n_best", "align", "lines"),
    [
        ("text", False, False, ["ein\tMann »x«", ""]),
        ("text", False, True, ["ein\tMann »x« ||| 0-0 2-1", " ||| "]),
        ("text", True, False, ["6 ||| ein\tMann »x« ||| -0.5124", "6 |||  ||| -2.0000"]),
        ("text", True, True, ["6 ||| ein\tMann »x« ||| -0.5124 ||| 0-0 2-1", "6 |||  ||| -2.0000 ||| "]),
        ("tsv", True, True, ["7\t-0.5124\t0.5\tein Mann »x«\t\t0-0 2-1", "7\t-2.0\t1.0\t\tempty length\t"]),
        ("tsv", False, False, ["7\t-0.5124\t0.5\tein Mann »x«\t", "7\t-2.0\t1.0\t\tempty length"]),
    ],
)
def test_output_formats(style, n_best, align, lines):
    assert LineFormat(style, n_best, align).lines(7, TWO) == lines
    columns = "line\tscore\tconfidence\ttranslation\twarnings" + ("\talignment" if align else "")
    assert [*LineFormat(style, n_best, align).output([])] == ([columns] if style == "tsv" else [])


def test_translations_as_json():
    rows = [json.loads(line) for line in LineFormat("jsonl", n_best=True, align=True).lines(7, TWO)]
    expected = {"line": 7, "score": -0.5124, "confidence": 0.5}
    assert rows[0] == {**expected, "translation": "ein\tMann »x«", "warnings": "", "alignment": "0-0 2-1"}
