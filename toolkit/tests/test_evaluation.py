"""Scores, compared with sacreBLEU."""

import pytest
import sacrebleu
from relattn_mt.evaluation import score
from relattn_mt.support.errors import InputError

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


def test_number_of_lines_must_agree():
    with pytest.raises(InputError, match="one translation per reference, got 2 and 3"):
        score(HYPOTHESES[:2], REFERENCES)
    with pytest.raises(InputError, match="at least one line"):
        score([], [])
