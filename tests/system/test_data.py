"""Preparation and encoding of text in other processes: killed, and with other hashes, time zones and locales."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

from relattn_mt.tokens.tokenizer import Tokenizer

from research.corpus import builtin
from tests.support.environments import ROOT

PREPARE = """
import sys
from pathlib import Path
from relattn_mt.config import CleaningConfig
from relattn_mt.corpus.pipeline import prepare
from relattn_mt.corpus.sources import OwnFiles
if __name__ == "__main__":
    out = Path(sys.argv[1])
    files = OwnFiles(str(out.with_name("corpus.en")), str(out.with_name("corpus.de")), ("en", "de"))
    prepare(files, out, CleaningConfig(), processes=2, part=10_000)
"""
LOAD = """
import sys
from pathlib import Path
from relattn_mt.config import DataConfig, Recipe
from relattn_mt.data.encode import load_data
from research.corpus import builtin, write_files
text = Path(sys.argv[1], "text")
write_files(text, lines={"train": 200})
files = {"train_src": f"{text}/train.en", "train_tgt": f"{text}/train.de"}
data = load_data(Recipe(out=sys.argv[1], data=DataConfig(**files, vocab_size=600)))
step = next(data.train.steps())
print(data.tokenizer.digest, step.micro_batches[0].src.tolist(), ascii(builtin("long", lines=30, seed=4)))
"""


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_a_killed_preparation_leaves_no_process_and_continues(tmp_path):
    for lang in ("en", "de"):
        lines = [f"{lang} {number} {number * 7919 % 10007}\n" for number in range(60_000)]
        (tmp_path / f"corpus.{lang}").write_text("".join(lines))
    (tmp_path / "script.py").write_text(PREPARE)
    command = [sys.executable, str(tmp_path / "script.py")]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, timeout=100)
    out = tmp_path / "out"
    process = subprocess.Popen([*command, str(out)], start_new_session=True)
    deadline = time.monotonic() + 60
    while not (out / ".relattn-preparing" / "part-00001").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert not (out / "prepared.json").exists()
    with suppress(ProcessLookupError):  # workers end when they notice the end of their parent
        while True:
            os.killpg(process.pid, 0)
            assert time.monotonic() < deadline, "a worker is still running"
            time.sleep(0.01)
    subprocess.run([*command, str(out)], check=True, timeout=100)
    assert content(out) == content(tmp_path / "whole")


def test_data_do_not_depend_on_the_process(tmp_path):
    outputs = set()
    for hash_seed, zone in (("1", "UTC"), ("2", "America/New_York")):
        command = [sys.executable, "-c", LOAD, str(tmp_path / hash_seed)]
        changed = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONHASHSEED": hash_seed, "TZ": zone}
        outputs.add(subprocess.run(command, env=changed, cwd=tmp_path, stdout=subprocess.PIPE, check=True).stdout)
    assert len(outputs) == 1
    assert ascii(builtin("long", lines=30, seed=4)).encode() in outputs.pop()


def test_training_lines_are_longer_than_the_clip_and_long_lines_longer_than_those_of_training():
    """In pieces of a vocabulary that is learned from the training lines, for the default clip of the demo."""
    pairs = {split: builtin(split, lines=lines) for split, lines in (("train", 3000), ("long", 200))}
    tokenizer = Tokenizer.train((side for pair in pairs["train"] for side in pair), 1000, seed=1)
    pieces = {name: [[len(tokenizer.encode(side)) for side in pair] for pair in pairs[name]] for name in pairs}
    longest = max(map(max, pieces["train"]))
    assert median(map(max, pieces["train"])) >= 3 * 8
    assert min(map(min, pieces["long"])) > longest
    assert median(map(max, pieces["long"])) >= 2 * longest
