"""Preparation of a corpus, compared with brute force: the same bytes with any number of processes and interruptions."""

import gzip
import hashlib
import json
import os
import re
import threading
import unicodedata
from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import repeat
from multiprocessing import active_children
from pathlib import Path
from unittest.mock import patch

import pytest
from filelock import FileLock
from relattn_mt.config import CleaningConfig
from relattn_mt.corpus import filter_pool, pipeline
from relattn_mt.corpus.filters import REASONS, Cleaner
from relattn_mt.corpus.pipeline import prepare
from relattn_mt.corpus.report import FilterStats
from relattn_mt.corpus.sources import OwnFiles
from relattn_mt.support.errors import InputError, escape
from relattn_mt.tokens.normalization import normalize

from tests.support.commands import assert_refused, refusal
from tests.support.loopback import files_no_larger_than
from toolkit.tests.corpus.conftest import HELD_OUT, random_pairs

CONFIG = CleaningConfig(max_words=20, max_ratio=4.0)
LANGUAGES = "en", "de"
PAIRS = random_pairs(300)


@pytest.fixture(autouse=True, scope="module")
def _small_chunks():
    with patch.object(filter_pool, "_PAIRS", 3):  # so that a part has more chunks than are under way
        yield


def write_corpus(directory: Path) -> OwnFiles:
    directory.mkdir(exist_ok=True)
    for side, lang in enumerate(LANGUAGES):
        (directory / lang).write_text("".join(f"{pair[side]}\n" for pair in PAIRS), encoding="utf-8")
    (directory / "test").write_text(f"{HELD_OUT[0]}\n", encoding="utf-8")
    return OwnFiles(*(str(directory / lang) for lang in LANGUAGES), LANGUAGES, (str(directory / "test"),))


@pytest.fixture
def own(tmp_path: Path) -> OwnFiles:
    """Two parallel files, and one with a held-out line."""
    return write_corpus(tmp_path / "text")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[FilterStats, dict[str, bytes]]:
    """Result and files of a preparation by two processes without interruptions. Tests compare them with those of one.

    Read them, do not write to them.
    """
    directory = tmp_path_factory.mktemp("whole")
    prepared = run(write_corpus(directory / "text"), directory / "out", processes=2)
    return prepared, content(directory / "out")


def run(own: OwnFiles, out: Path, config: CleaningConfig = CONFIG, *, processes: int = 1) -> FilterStats:
    return prepare(own, out, config, processes=processes, part=50)


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def reason_by_brute_force(src: str, tgt: str) -> str | None:
    """Return why a pair is dropped, for pairs in Latin script and a held-out line of fewer than `ngram` words."""
    words = [re.findall(r"\w+", side.lower()) for side in (src, tgt)]
    few, many = sorted(map(len, words))
    short, long = sorted(len(side.encode()) for side in (src, tgt))
    letters = [[unicodedata.name(c).split()[0] for c in side if c.isalpha()] for side in (src, tgt)]
    if not all(any(c.isprintable() and c != " " for c in side) for side in (src, tgt)) and "\0" not in src:
        return "empty"
    if any(unicodedata.category(c) == "Cc" for c in src + tgt):
        return "control"
    if max(len(src), len(tgt)) > CONFIG.max_characters or many > CONFIG.max_words:
        return "long"
    if many > CONFIG.max_ratio * (few + 1) and long > CONFIG.max_ratio * short:
        return "ratio"
    if any(side.count("LATIN") < CONFIG.min_script * len(side) for side in letters):
        return "script"
    if words[0] == words[1]:
        return "copy"
    return "overlap" if HELD_OUT[0].split() in words else None


@pytest.mark.parametrize("keep_duplicates", [False, True])
def test_kept_and_dropped_pairs_match_brute_force(own, tmp_path, keep_duplicates):
    stats = run(own, tmp_path / "out", replace(CONFIG, keep_duplicates=keep_duplicates))
    known, kept = set(), []
    dropped: dict[str, list[tuple[int, str, str]]] = {reason: [] for reason in REASONS}
    for number, pair in enumerate(PAIRS, start=1):
        pair = tuple(map(normalize, pair))
        reason = reason_by_brute_force(*pair) or ("duplicate" if pair in known and not keep_duplicates else None)
        known.add(pair)
        if reason is None:
            kept.append(pair)
        else:
            dropped[reason].append((number, *pair))
    packed = [(tmp_path / "out" / f"train.{lang}.gz").read_bytes() for lang in LANGUAGES]
    sides = [gzip.decompress(side).decode().splitlines() for side in packed]
    assert list(zip(*sides, strict=True)) == kept
    assert (stats.kept, stats.read) == (len(kept), len(PAIRS))
    assert stats.dropped == {reason: len(pairs) for reason, pairs in dropped.items()}
    absent = {"score", "duplicate"} if keep_duplicates else {"score"}  # only synthetic pairs have scores
    assert {reason for reason in REASONS if not stats.dropped[reason]} == absent
    for reason, pairs in dropped.items():  # the first ones are kept as examples, shortened
        sides = [(n, escape(src), escape(tgt)) for n, src, tgt in pairs]
        shown = [(n, src, tgt if len(tgt) < 100 else f"{tgt[:98]} …") for n, src, tgt in sides]
        assert stats.examples[reason] == [f"{n}: {src} ||| {tgt}" for n, src, tgt in shown[:3]]


def test_a_killed_worker_is_reported():
    line = "word " * 100_000  # more than a pipe holds, so the worker is killed while it writes
    config = CleaningConfig(max_characters=None, max_words=None)
    with filter_pool.filter_pool(2, partial(Cleaner, config, LANGUAGES, [])) as filter_chunks:
        filtered = filter_chunks(repeat((1, [(line, line)])))
        next(filtered)
        threading.Timer(0.02, active_children()[0].kill).start()
        with pytest.raises(InputError, match="was killed"):
            deque(filtered)
    assert active_children() == []


@pytest.mark.parametrize("stop", [0, 3, 6, 7])  # index of the part, or after the last
def test_an_interrupted_preparation_continues(own, tmp_path, monkeypatch, whole, stop):
    written, write_part = [], pipeline._write_part

    def counting(path, chunks, seen):
        if path.name == f"part-{stop:05}":
            next(iter(chunks))
            raise KeyboardInterrupt
        written.append(path.name)
        return write_part(path, chunks, seen)

    monkeypatch.setattr(pipeline, "_write_part", counting)
    with pytest.raises(KeyboardInterrupt), patch.object(pipeline, "file_digest", side_effect=KeyboardInterrupt):
        run(own, tmp_path / "out")
    assert len(written) == stop
    stop = -1
    assert (run(own, tmp_path / "out"), content(tmp_path / "out")) == whole
    assert written == [f"part-{index:05}" for index in range(7)]


def test_a_full_disk_is_reported_and_finished_parts_are_kept(own, tmp_path, whole):
    out = tmp_path / "out"
    with files_no_larger_than(len(whole[1]["train.en.gz"]) - 1):
        message = refusal(run, own, out)
    assert message.startswith(f"{out / 'train.en.gz'}: cannot be written: File too large")
    assert len(list((out / ".relattn-preparing").glob("part-*"))) == 7
    assert (run(own, out), content(out)) == whole
    for path, factor in ((own.src, 7919), (own.tgt, 7907)):  # now within a part
        Path(path).write_text("".join(f"{number} {number * factor % 10007}\n" for number in range(3000)))
    out = tmp_path / "other"
    with files_no_larger_than(1500), pytest.raises(InputError) as error:  # more than the settings of the preparation
        prepare(OwnFiles(own.src, own.tgt, LANGUAGES), out, CONFIG)
    assert str(error.value).startswith(f"{out / '.relattn-preparing/part-00000'}: cannot be written: File too large")
    assert [path.name for path in (out / ".relattn-preparing").iterdir()] == ["settings.json"]


def test_a_finished_directory_is_prepared_again_only_if_it_is_damaged(own, tmp_path, whole):
    """The same text may be renamed and compressed."""
    out = tmp_path / "out"
    run(own, out)
    (tmp_path / "other.gz").write_bytes(gzip.compress(Path(own.src).read_bytes()))
    renamed = replace(own, src=str(tmp_path / "other.gz"))
    with patch.object(pipeline, "_write_part", None):
        assert run(renamed, out) == whole[0]
    for damage in (Path.unlink, lambda path: path.write_bytes(b"x")):
        damage(out / "train.de.gz")
        assert (run(own, out), content(out)) == whole


RECORDS = ("[]", "{}", "{", '{"settings": 1, "origin": {}}', '{"settings": {}, "origin": {}}')
FAULTS = (
    "other rules", "other text", "notes", ".notes.part", "a file", "in use", "different lengths", "a pipe", *RECORDS,
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_refusals_change_nothing(own, tmp_path, fault):
    out, config = tmp_path / "out", CONFIG
    if fault in ("in use", "notes", ".notes.part", *RECORDS):
        out.mkdir()
    match fault:
        case "other rules":
            run(own, out)
            config, facts = replace(CONFIG, max_words=19), ["cleaning.max_words: 20 → 19", "--out"]
        case "other text":
            with patch.object(pipeline, "_write_part", None), pytest.raises(TypeError):
                run(own, out)
            Path(own.src).write_text(Path(own.src).read_text().replace("w1", "w2"))
            own, facts = replace(own), ["text.src: ", f"remove {out}/.relattn-preparing"]
        case "notes" | ".notes.part":  # could be a user's own
            (out / fault).write_text("mine")
            facts = ["empty", fault]
        case "a file":
            out.write_text("mine")
            facts = ["must be a directory"]
        case "in use":
            facts = ["another process"]
        case "different lengths":
            (tmp_path / "longer.gz").write_bytes(gzip.compress(Path(own.tgt).read_bytes() + b"line\n"))
            own, facts = replace(own, tgt=str(tmp_path / "longer.gz")), [own.src, "longer.gz", "309 and 310"]
        case "a pipe":
            os.mkfifo(tmp_path / "pipe")
            own, facts = replace(own, src=str(tmp_path / "pipe")), ["pipe must be a regular file"]
        case record:
            (out / "prepared.json").write_text(record)
            facts = [f"{out}/prepared.json: "]

    def files() -> dict[Path, bytes]:
        return {
            path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".relattn.lock"
        }

    before = files()
    with FileLock(out / ".relattn.lock") if fault == "in use" else nullcontext():
        message = refusal(run, own, out, config)
    assert all(fact in message for fact in facts), message
    assert files() == before


def test_a_preparation_that_kept_nothing_can_be_corrected(tmp_path):
    for side, text in (("en", "one cat\n\n\0\n"), ("ru", "один кот\nx\nx\n")):
        (tmp_path / side).write_text(text, encoding="utf-8")
    paths = str(tmp_path / "en"), str(tmp_path / "ru")
    message = refusal(run, OwnFiles(*paths, ("ru", "en")), tmp_path / "out")
    for fact in (f"{tmp_path}/out: no pair is left", "1 empty (a side", "1 control (a side", "min_script"):
        assert fact in message
    assert run(OwnFiles(*paths, ("en", "ru")), tmp_path / "out").kept == 1


def test_the_record_matches_the_files(own, tmp_path):
    name = os.fsdecode(bytes(tmp_path / "text-") + b"\xff")  # not UTF-8, so it is written with an escape
    Path(name).write_bytes(Path(own.src).read_bytes())
    stats = run(replace(own, src=name), tmp_path / "out")
    record = json.loads((tmp_path / "out" / "prepared.json").read_text(encoding="utf-8"))
    for file, described in record["files"].items():
        written = (tmp_path / "out" / file).read_bytes()
        count, digest = len(gzip.decompress(written).splitlines()), hashlib.sha256(written).hexdigest()
        assert described == {"lines": count, "sha256": digest}
    digests = record["settings"]["text"]
    names = record["origin"]["files"]
    paths = {"src": (name, "text-\\xff"), "tgt": (own.tgt, "de"), "excluded 1": (*own.exclude, "test")}
    assert digests.keys() == names.keys() == paths.keys()
    for role, (path, shown) in paths.items():
        assert names[role] == shown
        assert digests[role] == hashlib.sha256(Path(path).read_bytes()).hexdigest()
    assert record["stats"]["dropped"] == stats.dropped
    assert record["settings"]["cleaning"]["max_words"] == 20


def test_the_command(relattn, own, tmp_path):
    given = ["--src", own.src, "--tgt", own.tgt, "--src_lang", "en", "--tgt_lang", "de", "--exclude", *own.exclude]
    command = ["prepare", *given, "--out", tmp_path / "out", "--max_words", 20, "--processes", 1]
    code, out, err = relattn(*command)
    assert (code, out.split()[:4], err) == (0, ["read", "309", "100.00", "%"], "")
    assert "a\\x00b ||| x\n" in out
    assert out.endswith(f"\n{tmp_path}/out/prepared.json\n")
    assert relattn(*command).out.endswith(out)  # it says so if nothing was done


FILES, PAIR = ["--src", "a", "--tgt", "b", "--out", "c"], ["--src_lang", "en", "--tgt_lang", "de"]


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (FILES, "missing argument: --src_lang"),
        ([*FILES, "--src_lang", "e/n", "--tgt_lang", "de"], "src_lang"),
        *(
            ([*FILES, "--src_lang", src, "--tgt_lang", tgt], f"must have different languages, got {src} and {tgt}")
            for src, tgt in (("de", "de"), ("en", "EN"), ("pt-BR", "pt_BR"), ("pt_br", "PT-BR"))
        ),
        ([*FILES, *PAIR, "--processes", "0"], "processes.*got 0"),
        ([*FILES, *PAIR, "--max_words", "0"], "max_words.*got 0"),
    ],
)
def test_mistaken_commands(relattn, tmp_path, monkeypatch, arguments, fact):
    monkeypatch.chdir(tmp_path)
    result = relattn("prepare", *arguments)
    assert_refused(result, "")
    assert re.search(fact, result.err)
    assert list(tmp_path.iterdir()) == []
