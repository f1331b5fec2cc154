"""The paired bootstrap, compared with sacreBLEU's command."""

import json
import subprocess
import sys

import pytest

from research.significance import paired_bootstrap


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
