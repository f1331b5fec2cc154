"""The same bytes with any number of processes and after interruptions; mistakes give one-line errors."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from functools import partial
from itertools import repeat
from multiprocessing import active_children
from pathlib import Path

import pytest
from filelock import FileLock

from relattn.translation.commands import main as cli
from relattn.translation.config import CleaningConfig
from relattn.translation.corpus import filter_pool, pipeline
from relattn.translation.corpus.filters import REASONS, Cleaner, normalize_spaces
from relattn.translation.corpus.pipeline import Prepared, prepare
from relattn.translation.corpus.sources import OwnFiles
from relattn.translation.errors import InputError
from tests.translation.corpus.conftest import HELD_OUT, made_up
from tests.translation.loopback import files_no_larger_than

CONFIG = CleaningConfig(max_words=20)
LANGUAGES = "en", "de"


@pytest.fixture
def own(corpus: tuple[str, str], tmp_path: Path) -> OwnFiles:
    (tmp_path / "test.en").write_text(f"{HELD_OUT[0]}\n", encoding="utf-8")
    return OwnFiles(*corpus, LANGUAGES, (str(tmp_path / "test.en"),))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_pool, "_PAIRS", 3)  # so that a part has more chunks than are under way


def run(own: OwnFiles, out: Path, config: CleaningConfig = CONFIG, *, processes: int = 1) -> Prepared:
    return prepare(own, out, config, processes=processes, part=50)


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def refusal(*arguments: object, **named: object) -> str:
    with pytest.raises(InputError) as error:
        run(*arguments, **named)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def test_kept_pairs_are_those_that_the_rules_and_a_set_keep(own, tmp_path):
    prepared = run(own, tmp_path / "out")
    cleaner, known, expected = Cleaner(CONFIG, LANGUAGES, HELD_OUT[:1]), set(), []
    dropped = dict.fromkeys(REASONS, 0)
    for pair in made_up(300):
        text = normalize_spaces(pair[0]), normalize_spaces(pair[1])
        reason = cleaner.drop_reason(*text) or ("duplicate" if text in known else None)
        known.add(text)
        if reason is None:
            expected.append(text)
        else:
            dropped[reason] += 1
    assert list(zip(*(lines(tmp_path / "out" / f"train.{lang}.gz") for lang in LANGUAGES), strict=True)) == expected
    assert prepared.stats.dropped == dropped
    assert (prepared.stats.kept, prepared.stats.read, prepared.already_done) == (len(expected), 306, False)
    assert all(count > 0 for reason, count in dropped.items() if reason not in ("ratio",))


def test_examples_are_the_first_pairs_shortened(own, tmp_path):
    stats, pairs = run(own, tmp_path / "out").stats, made_up(300)
    assert len(stats.examples["duplicate"]) == 3
    for reason, examples in stats.examples.items():
        assert len(examples) == min(3, stats.dropped[reason])
        for example in examples:
            number, text = example.split(": ", 1)
            src, tgt = map(normalize_spaces, pairs[int(number) - 1])
            src = src.replace("\0", "\\x00")
            assert text == f"{src} ||| {tgt}" or text == f"{src} ||| {tgt[:98]} …"


def test_keep_duplicates(own, tmp_path):
    free = run(own, tmp_path / "free", CleaningConfig(max_words=20, keep_duplicates=True)).stats
    strict = run(own, tmp_path / "strict").stats
    assert free.kept == strict.kept + strict.dropped["duplicate"]
    assert free.dropped["duplicate"] == 0


def test_the_number_of_processes_makes_no_difference(own, tmp_path):
    assert run(own, tmp_path / "one") == run(own, tmp_path / "three", processes=3)
    assert content(tmp_path / "one") == content(tmp_path / "three")


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.02, 0.08])
def test_a_killed_worker_is_reported(delay):
    line = "word " * 100_000  # more than a pipe holds, so the worker may be killed while it writes
    config = CleaningConfig(max_characters=None, max_words=None)
    with filter_pool.filter_pool(2, partial(Cleaner, config, LANGUAGES, [])) as filter_chunks:
        filtered = filter_chunks(repeat((1, [(line, line)])))
        next(filtered)
        threading.Timer(delay, active_children()[0].kill).start()
        with pytest.raises(InputError, match="was killed, perhaps because memory ran out"):
            deque(filtered)
    assert active_children() == []


@pytest.mark.parametrize("stop", [0, 3, 6])
def test_an_interrupted_preparation_continues(own, tmp_path, monkeypatch, stop):
    run(own, tmp_path / "whole")
    written = []
    write_part = pipeline._write_part

    def counting(path, chunks, seen):
        if path.name == f"part-{stop:05}":
            next(iter(chunks))
            raise KeyboardInterrupt
        written.append(path.name)
        return write_part(path, chunks, seen)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "_write_part", counting)
        with pytest.raises(KeyboardInterrupt):
            run(own, tmp_path / "out")
    assert len(written) == stop
    stop = -1
    monkeypatch.setattr(pipeline, "_write_part", counting)
    run(own, tmp_path / "out")
    assert written == [f"part-{index:05}" for index in range(7)]
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_preparation_interrupted_after_its_last_part_continues(own, tmp_path, monkeypatch):
    run(own, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "data_card", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(own, tmp_path / "out")
    assert (tmp_path / "out" / "train.en.gz").exists()
    monkeypatch.setattr(pipeline, "_write_part", None)
    run(own, tmp_path / "out")
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.whole
def test_a_killed_preparation_leaves_no_process_and_continues(tmp_path):
    pairs = made_up(60_000)
    for side in (0, 1):
        (tmp_path / f"corpus.{side}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    script = """
import sys
from pathlib import Path
from relattn.translation.config import CleaningConfig
from relattn.translation.corpus.pipeline import prepare
from relattn.translation.corpus.sources import OwnFiles
if __name__ == "__main__":
    files = OwnFiles(sys.argv[1] + "/corpus.0", sys.argv[1] + "/corpus.1", ("en", "de"))
    prepare(files, Path(sys.argv[1], sys.argv[2]), CleaningConfig(), processes=2, part=10_000)
"""
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    subprocess.run([*command, "whole"], check=True, timeout=100)
    process = subprocess.Popen([*command, "out"], start_new_session=True)
    parts = tmp_path / "out" / ".preparing"
    deadline = time.monotonic() + 60
    while not (parts / "part-00001").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert not (tmp_path / "out" / "prepared.json").exists()
    subprocess.run([*command, "out"], check=True, timeout=100)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    while time.monotonic() < deadline:  # workers end when they notice the end of their parent
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail("a worker is still running")


def test_a_full_disk_is_reported_and_finished_parts_are_kept(own, tmp_path):
    run(own, tmp_path / "whole")
    largest = (tmp_path / "whole" / "train.en.gz").stat().st_size
    out = tmp_path / "out"
    with files_no_larger_than(largest - 1):
        message = refusal(own, out)
    kept = "cannot be written: File too large; what was there before is kept"
    assert message == f"{out / 'train.en.gz'}: {kept}"
    assert len(list((out / ".preparing").glob("part-*"))) == 7
    run(own, out)
    assert content(out) == content(tmp_path / "whole")


def test_a_disk_that_fills_up_within_a_part_is_reported(own, tmp_path):
    for path in (own.src, own.tgt):
        Path(path).write_text("".join(f"{number} {number * 7919 % 10007}\n" for number in range(3000)))
    out = tmp_path / "out"
    with files_no_larger_than(1500), pytest.raises(InputError) as error:  # less than the part, more than its settings
        prepare(own, out, CONFIG)
    message = str(error.value)
    assert message.startswith(f"{out / '.preparing/part-00000'}: cannot be written: File too large")
    assert [path.name for path in (out / ".preparing").iterdir()] == ["settings.json"]


def test_a_finished_directory_is_not_prepared_again(own, tmp_path, monkeypatch):
    first = run(own, tmp_path / "out")
    before = content(tmp_path / "out")
    monkeypatch.setattr(pipeline, "_write_part", None)
    again = run(OwnFiles(own.src, own.tgt, LANGUAGES, own.exclude), tmp_path / "out")
    assert (again.stats, again.already_done) == (first.stats, True)
    assert content(tmp_path / "out") == before


def test_other_rules_or_text_are_refused(own, tmp_path, monkeypatch):
    out = tmp_path / "out"
    run(own, out)
    message = refusal(own, out, CleaningConfig(max_words=19))
    assert message == (
        f"{out}: was prepared from other text or by other rules: cleaning.max_words: 20 → 19; choose another --out"
    )
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "_write_part", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(own, tmp_path / "begun")
    Path(own.src).write_text(Path(own.src).read_text().replace("w1", "w2"))
    message = refusal(OwnFiles(own.src, own.tgt, LANGUAGES, own.exclude), tmp_path / "begun")
    assert message.startswith(f"{tmp_path}/begun: was prepared from other text or by other rules: text.src: ")
    assert message.endswith(f"; to start over, remove {tmp_path}/begun/.preparing")


def test_a_directory_with_other_files_is_refused(own, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README.md").write_text("mine")
    message = refusal(own, tmp_path / "notes")
    assert message == f"{tmp_path}/notes: the output must be an empty directory, got one with README.md"
    assert content(tmp_path / "notes") == {"README.md": b"mine"}
    assert refusal(own, Path(own.src)) == f"{own.src}: the output must be a directory, got a file"


def test_a_directory_in_use_by_another_process_is_refused(own, tmp_path):
    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out" / ".lock"):
        assert refusal(own, tmp_path / "out") == f"{tmp_path}/out: another process is preparing this directory"


@pytest.mark.parametrize("record", ["[]", "{}", "{", '{"settings": 1, "origin": {}}', '{"settings": {}, "origin": {}}'])
def test_a_foreign_record_is_refused(own, tmp_path, record):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "prepared.json").write_text(record)
    assert refusal(own, tmp_path / "out").startswith(f"{tmp_path}/out/prepared.json: ")


def test_sides_of_different_length_are_reported_before_anything_is_written(tmp_path):
    for side, count in (("en", 5), ("de", 4)):
        (tmp_path / f"text.{side}.gz").write_bytes(gzip.compress(b"line\n" * count))
    paths = [str(tmp_path / f"text.{side}.gz") for side in LANGUAGES]
    message = refusal(OwnFiles(*paths, LANGUAGES), tmp_path / "out")
    assert message == f"{paths[0]} and {paths[1]} must have the same number of lines, got 5 and 4"
    assert not (tmp_path / "out").exists()


def test_a_corpus_without_a_kept_pair_is_reported(tmp_path):
    for side in LANGUAGES:
        (tmp_path / side).write_text("\n\0\n")
    message = refusal(OwnFiles(str(tmp_path / "en"), str(tmp_path / "de"), LANGUAGES), tmp_path / "out")
    assert message.startswith(f"{tmp_path}/out: no pair is left; dropped: 1 empty (a side has no text); 1 control (")


def test_a_command_that_kept_nothing_can_be_corrected(tmp_path):
    for side, text in (("en", "one cat\n"), ("ru", "один кот\n")):
        (tmp_path / side).write_text(text, encoding="utf-8")
    paths = str(tmp_path / "en"), str(tmp_path / "ru")
    assert "min_script" in refusal(OwnFiles(*paths, ("ru", "en")), tmp_path / "out")
    assert run(OwnFiles(*paths, ("en", "ru")), tmp_path / "out").stats.kept == 1


def test_the_same_text_may_be_renamed_or_compressed(own, tmp_path):
    first = run(own, tmp_path / "out")
    (tmp_path / "other.gz").write_bytes(gzip.compress(Path(own.src).read_bytes()))
    again = run(OwnFiles(str(tmp_path / "other.gz"), own.tgt, LANGUAGES, own.exclude), tmp_path / "out")
    assert (again.stats, again.already_done) == (first.stats, True)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"x")])
def test_a_missing_or_damaged_result_is_written_again(own, tmp_path, damage):
    run(own, tmp_path / "out")
    before = content(tmp_path / "out")
    damage(tmp_path / "out" / "train.de.gz")
    assert not run(own, tmp_path / "out").already_done
    assert content(tmp_path / "out") == before


def test_a_pipe_is_refused(own, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    message = refusal(OwnFiles(str(tmp_path / "pipe"), own.tgt, LANGUAGES), tmp_path / "out")
    assert "must be a regular file" in message
    assert not (tmp_path / "out").exists()


def test_a_name_that_is_not_utf8_is_written_with_escapes(own, tmp_path):
    name = os.fsdecode(bytes(tmp_path / "text-") + b"\xff")
    Path(name).write_bytes(Path(own.src).read_bytes())
    run(OwnFiles(name, own.tgt, LANGUAGES, own.exclude), tmp_path / "out")
    assert "`text-\\xff`" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_the_card_and_the_record_match_the_files(own, tmp_path):
    import hashlib

    stats = run(own, tmp_path / "out").stats
    record = json.loads((tmp_path / "out" / "prepared.json").read_text(encoding="utf-8"))
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    for name, file in record["files"].items():
        written = tmp_path / "out" / name
        assert file == {"lines": len(lines(written)), "sha256": hashlib.sha256(written.read_bytes()).hexdigest()}
        assert f"| `{name}` | {file['lines']:,} | `{file['sha256']}` |" in card
    for path in (own.src, own.tgt, *own.exclude):
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        assert f"| `{Path(path).name}` |" in card
        assert digest in card
    assert f"| duplicate | {stats.dropped['duplicate']} |" in card
    assert "`max_words: 20`" in card
    assert str(tmp_path) not in card


# The command line


def test_the_command(own, tmp_path, capsys):
    given = ["--src", own.src, "--tgt", own.tgt, "--src_lang", "en", "--tgt_lang", "de", "--exclude", *own.exclude]
    command = ["prepare", *given, "--out", str(tmp_path / "out"), "--max_words", "20", "--processes", "1"]
    assert cli.main(command) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("read                306   100.00 %\nkept ")
    assert "\ncontrol: a side has a control character" in out
    assert "a\\x00b ||| x\n" in out
    assert out.endswith(f"\n{tmp_path}/out/README.md\n")
    assert cli.main(command) == 0
    again, err = capsys.readouterr()
    assert again == f"{tmp_path}/out was prepared before, from the same text by the same rules\n\n{out}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["wmt15"], "unknown corpus 'wmt15'; choose from wmt14-en-de, wmt14-en-fr, multi30k"),
        (["multi30k", "--src", "a", "--exclude", "b"], "--src does not work with the known corpus multi30k"),
        (["--src", "a", "--tgt", "b", "--out", "c"], "--src_lang is missing"),
        (["--src", "a", "--tgt", "b", "--out", "c", "--src_lang", "e/n", "--tgt_lang", "de"], "src_lang must be"),
        (
            ["--src", "a", "--tgt", "b", "--out", "c", "--src_lang", "de", "--tgt_lang", "de"],
            "must differ",
        ),
        (["multi30k", "--processes", "0"], "processes must be at least 1 and at most 1,024, got 0"),
        (["multi30k", "--max_words", "0"], "max_words must be in [1, 1e6], got 0"),
    ],
)
def test_mistaken_commands(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["prepare", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert list(tmp_path.iterdir()) == []
