"""Scores, compared with sacreBLEU."""

import json
import subprocess
import sys

import pytest
import sacrebleu
from relattn_mt import evaluation
from relattn_mt.evaluation import paired_bootstrap, score
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


def other_compared(others: list[str], references: list[str]) -> object:
    return evaluation.paired_bootstrap(references, others, references)


@pytest.mark.parametrize("measure", [score, other_compared])
def test_number_of_lines_must_agree(measure):
    with pytest.raises(InputError, match="one translation per reference, got 2 and 3"):
        measure(HYPOTHESES[:2], REFERENCES)
    with pytest.raises(InputError, match="at least one line"):
        measure([], [])


def test_bootstrap_equals_that_of_sacrebleu(tmp_path):
    """Two systems have errors in different lines, one of them slightly more often."""
    references = [f"the {i}th cat sat on mat {i * i} and slept until {i % 7} today" for i in range(60)]
    base = [line.replace("slept until", "was awake") if i % 5 == 0 else line for i, line in enumerate(references)]
    other = [line.replace("sat on", "saw a") if i % 4 == 1 else line for i, line in enumerate(references)]
    for name, lines in (("base", base), ("other", other), ("ref", references)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "base", "other", "--paired-bs", "-f", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = json.loads(done.stdout)[1]["BLEU"]["p_value"]
    assert 0.1 < expected < 0.5
    assert paired_bootstrap(base, other, references) == pytest.approx(expected, abs=1e-4)
    assert paired_bootstrap(base, base, references) == 1.0
