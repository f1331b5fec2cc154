"""Scores, compared with sacreBLEU and with brute force."""

from itertools import combinations

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from relattn.translation import evaluation
from relattn.translation.data.builtin import ITEM_SEPARATOR
from relattn.translation.errors import InputError
from relattn.translation.evaluation import common_subsequence, item_accuracy, score

REFERENCES = ["The cat sat on the mat.", "A dog barked at the moon all night long.", "It rains again today, you see."]
HYPOTHESES = ["The cat sat on a mat.", "A dog barked at the moon all day long.", "It rains again today, you see."]


def test_scores_match_sacrebleu():
    scores = score(HYPOTHESES, REFERENCES)
    assert scores.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert scores.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert 50 < scores.bleu < 100
    assert scores.sentences == 3
    assert str(scores).startswith(f"BLEU {scores.bleu:.2f}  nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert f"\nchrF {scores.chrf:.2f}  nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:" in str(scores)


def other_compared(others: list[str], references: list[str]) -> object:
    return evaluation.paired_bootstrap(references, others, references)


@pytest.mark.parametrize("measure", [score, item_accuracy, other_compared])
def test_number_of_lines_must_agree(measure):
    with pytest.raises(InputError, match="one translation per reference, got 2 and 3"):
        measure(HYPOTHESES[:2], REFERENCES)
    with pytest.raises(InputError, match="at least one line"):
        measure([], [])


@pytest.mark.parametrize(
    ("hypotheses", "references", "accuracy"),
    [
        (["acd", "e", "fxg"], ["abcd", "e", "fgh"], (6 / 8, 1 / 3)),
        (["ba"], ["ab"], (0.5, 0.0)),
        (["aabb"], ["ab"], (1.0, 0.0)),
        (["abc"], ["ab"], (1.0, 0.0)),
        (["ab"], ["ab"], (1.0, 1.0)),
        ([""], ["ab"], (0.0, 0.0)),
    ],
)
def test_accuracy_of_items(hypotheses, references, accuracy):
    """A letter is an item."""
    lines = ([ITEM_SEPARATOR.join(line) for line in side] for side in (hypotheses, references))
    assert item_accuracy(*lines) == accuracy


WORDS = st.text("abc", max_size=7)


@given(WORDS, WORDS)
def test_common_subsequence_matches_brute_force(a, b):
    subsequences = {each for n in range(len(a) + 1) for each in combinations(a, n)}
    expected = max(len(each) for n in range(len(b) + 1) for each in combinations(b, n) if each in subsequences)
    assert common_subsequence(a, b) == expected
