from itertools import combinations

import pytest

from relattn.translation.data.builtin import ITEM_SEPARATOR
from relattn.translation.errors import InputError
from relattn.translation.evaluation import ItemAccuracy, by_length, common_subsequence, item_accuracy, score

REFERENCES = ["The cat sat on the mat.", "A dog barked at the moon all night long.", "It rains again today, you see."]
HYPOTHESES = ["The cat sat on a mat.", "A dog barked at the moon all day long.", "It rains again today, you see."]


def line(*items: str) -> str:
    return ITEM_SEPARATOR.join(items)


def test_scores_are_sacrebleus_and_carry_its_signatures():
    import sacrebleu

    scores = score(HYPOTHESES, REFERENCES)
    assert scores.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert scores.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert 50 < scores.bleu < 100
    assert scores.bleu_signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert scores.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    assert scores.sentences == 3
    assert str(scores) == (
        f"BLEU {scores.bleu:.2f}  {scores.bleu_signature}\nchrF {scores.chrf:.2f}  {scores.chrf_signature}"
    )


def test_a_perfect_translation_scores_100_and_an_empty_one_0():
    perfect, empty = score(REFERENCES, REFERENCES), score(["", "", ""], REFERENCES)
    assert (perfect.bleu, perfect.chrf) == pytest.approx((100, 100))
    assert (empty.bleu, empty.chrf) == (0, 0)


def test_case_counts():
    assert score([text.upper() for text in REFERENCES], REFERENCES).bleu < 20


def test_another_tokenizer_shows_in_the_signature():
    assert "|tok:char|" in score(HYPOTHESES, REFERENCES, tokenize="char").bleu_signature


@pytest.mark.parametrize("measure", [score, item_accuracy, lambda h, r: by_length(h, r, [1] * len(r), [5])])
def test_sides_must_have_the_same_number_of_lines_and_some(measure):
    with pytest.raises(InputError, match="one translation per reference, got 2 and 3"):
        measure(HYPOTHESES[:2], REFERENCES)
    with pytest.raises(InputError, match="at least one line"):
        measure([], [])


def test_one_item_left_out_does_not_fail_those_after_it():
    references = [line("a", "b", "c", "d"), line("e"), line("f", "g", "h")]
    hypotheses = [line("a", "c", "d"), line("e"), line("f", "x", "g")]
    assert item_accuracy(hypotheses, references) == ItemAccuracy(items=6 / 8, lines=1 / 3)
    assert item_accuracy(references, references) == (1.0, 1.0)
    assert item_accuracy(["", "", ""], references) == (0.0, 0.0)


def test_items_out_of_order_or_said_twice_count_once():
    assert item_accuracy([line("b", "a")], [line("a", "b")]).items == 0.5
    assert item_accuracy([line("a", "a", "b", "b")], [line("a", "b")]).items == 1.0
    assert item_accuracy([line("a", "b", "c")], [line("a", "b")]) == (1.0, 0.0)


def test_common_subsequence_agrees_with_trying_them_all():
    words = ["", "a", "abca", "bbca", "caab", "dcba", "ababab"]
    for a in words:
        for b in words:
            subsequences = {c for n in range(len(a) + 1) for c in combinations(a, n)}
            expected = max(len(c) for n in range(len(b) + 1) for c in combinations(b, n) if c in subsequences)
            assert common_subsequence(a, b) == expected


def test_each_length_bucket_is_scored_by_itself():
    rows = by_length(HYPOTHESES, REFERENCES, [3, 4, 9], [3, 6, 7])
    assert [(row.label, row.sentences) for row in rows] == [("1–3", 1), ("4–6", 1), ("8+", 1)]
    for row, hypothesis, reference in zip(rows, HYPOTHESES, REFERENCES, strict=True):
        assert row.bleu == score([hypothesis], [reference]).bleu


def test_buckets_hold_every_sentence_once():
    lengths = [1 + i % 30 for i in range(90)]
    for edges in ([], [10], [10, 20, 30], [5, 29], [100]):
        rows = by_length(HYPOTHESES * 30, REFERENCES * 30, lengths, edges)
        assert sum(row.sentences for row in rows) == 90
    assert [row.label for row in by_length(HYPOTHESES, REFERENCES, [1, 2, 3], [])] == ["1+"]


@pytest.mark.parametrize("edges", [[0, 5], [5, 5], [7, 3]])
def test_edges_must_rise(edges):
    with pytest.raises(InputError, match="edges must increase"):
        by_length(HYPOTHESES, REFERENCES, [1, 2, 3], edges)


def test_lengths_must_be_one_each_and_at_least_1():
    with pytest.raises(InputError, match="one length per reference, got 2 and 3"):
        by_length(HYPOTHESES, REFERENCES, [1, 2], [3])
    with pytest.raises(InputError, match="lengths must be at least 1, got 0"):
        by_length(HYPOTHESES, REFERENCES, [0, 1, 2], [3])
