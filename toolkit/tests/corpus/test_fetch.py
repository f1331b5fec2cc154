"""Known corpora from a loopback server: downloads are complete and verified, or a one-line error says why not."""

import gzip
import hashlib
import socket
from pathlib import Path
from unittest.mock import patch

import pytest
from relattn_mt.config import CleaningConfig
from relattn_mt.config.presets import PRESETS
from relattn_mt.corpus import fetch
from relattn_mt.corpus.catalog import CATALOG
from relattn_mt.corpus.pipeline import prepare
from relattn_mt.corpus.sources import KnownCorpus
from relattn_mt.data.text_files import read_parallel
from sacrebleu.dataset import DATASETS

from testing.commands import assert_refused, refusal
from testing.loopback import Repository, files_no_larger_than
from toolkit.tests.corpus.conftest import HELD_OUT

TRAIN = "de-en/train-00000-of-00002.parquet"
WMT14, MULTI30K = "datasets/wmt/wmt14", "datasets/bentrevett/multi30k"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # between attempts


def listed(name: str = TRAIN) -> fetch.RemoteFile:
    return next(file for file in fetch.list_files("wmt/wmt14") if file.name == name)


def test_a_file_is_downloaded_completely_and_once(known):
    file = listed()
    known.cuts[TRAIN] = file.size // 2
    assert f"wmt/wmt14: {TRAIN}: from the hub" in refusal(fetch.download, file)
    known.cuts.clear()
    with files_no_larger_than(100):
        assert f"wmt/wmt14: {TRAIN}: from the hub" in refusal(fetch.download, file)
    path = fetch.download(file)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == file.checksum
    known.asked.clear()
    assert (fetch.download(file), known.asked) == (path, [])


@pytest.mark.parametrize(
    ("corpus", "repository", "files", "facts"),
    [
        ("wmt14-en-de", WMT14, None, ("wmt/wmt14", "no such data set")),
        ("wmt14-en-fr", WMT14, {TRAIN: b""}, ("wmt/wmt14", "no file fr-en/train-")),
        ("wmt14-en-de", WMT14, {TRAIN: b"PAR1, or not"}, (Path(TRAIN).name, "not Parquet")),
        (
            "multi30k",
            MULTI30K,
            {"train.jsonl": b"", "val.jsonl": b'{"en": "a"}\n'},
            ("val.jsonl", "not pairs as JSON lines", "'de'"),
        ),
    ],
)
def test_unusable_data_sets_are_reported(known, tmp_path, corpus, repository, files, facts):
    del known.repositories[repository]
    if files is not None:
        known.repositories[repository] = Repository()
        known.repositories[repository].commit(files)
    message = refusal(prepare, KnownCorpus(corpus), tmp_path / "out", CleaningConfig())
    assert all(fact in message for fact in facts)


def test_a_recipe_can_read_what_the_command_writes(relattn, known, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known.failing[TRAIN] = 503
    assert_refused(relattn("prepare", "wmt14-en-de", "--processes", 1), f"{TRAIN}: from the hub")
    assert not Path("data").exists()
    known.failing.clear()
    code, out, err = relattn("prepare", "wmt14-en-de", "--processes", 1)
    assert (code, out.split()[1], out.splitlines()[-1], err) == (0, "67", "data/wmt14-en-de/README.md", "")
    data, texts = PRESETS["wmt14-en-de-base"].data, {}
    for path in Path("data/wmt14-en-de").glob("*.gz"):
        texts[path.name] = gzip.decompress(path.read_bytes()).decode()
    names = [f"{name}.{lang}.gz" for name in ("newstest2013", "newstest2014", "train") for lang in ("de", "en")]
    assert sorted(texts) == names
    assert texts["newstest2014.de.gz"] == "Neues\n"
    assert list(read_parallel(data.valid_src, data.valid_tgt)) == [tuple(HELD_OUT), ("one", "eins")]
    train = list(read_parallel(data.train_src, data.train_tgt))
    assert ("one two", "eins zwei") in train
    assert tuple(HELD_OUT) not in train
    card = Path("data/wmt14-en-de/README.md").read_text(encoding="utf-8")
    assert known.repositories[WMT14].branches["main"] in card
    assert listed().checksum in card


def test_an_interrupted_preparation_stays_at_its_commit(known, tmp_path):
    corpus = KnownCorpus("wmt14-en-de")
    expected = prepare(corpus, tmp_path / "whole", CleaningConfig(), part=10)
    with patch("relattn_mt.corpus.pipeline._write_parts", None), pytest.raises(TypeError):
        prepare(corpus, tmp_path / "out", CleaningConfig(), part=10)
    known.repositories[WMT14].commit({"de-en/train-00001-of-00002.parquet": b"other"})
    assert prepare(corpus, tmp_path / "out", CleaningConfig(), part=10) == expected
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_multi30k(known, tmp_path):
    prepared = prepare(KnownCorpus("multi30k"), tmp_path / "out", CleaningConfig())
    assert prepared.stats.read == 39
    assert (tmp_path / "out" / "test2016.de").read_text() == "Ein Mann.\n"
    assert len((tmp_path / "out" / "valid.en").read_text().splitlines()) == 13


def wmt13() -> list[tuple[str, str]]:
    return fetch.sacrebleu_pairs("wmt13", "en", "de")


def test_a_test_set_is_downloaded_once_unless_it_is_damaged(known, tmp_path):
    pairs = [tuple(HELD_OUT), ("one", "eins")]
    assert wmt13() == pairs
    known.asked.clear()
    assert (wmt13(), known.asked) == (pairs, [])
    (tmp_path / "sacrebleu" / "wmt13" / "wmt13.en-de.ref").write_text("one\n")
    refusal(wmt13)
    assert wmt13() == pairs


def test_failed_downloads_of_a_test_set_are_reported(known, tmp_path, monkeypatch, caplog):
    archive, before = known.files["/files/test.tgz"], socket.getdefaulttimeout()
    known.wrong["/files/test.tgz"] = archive + b"\0"
    assert "MD5 sum of downloaded file was incorrect" in refusal(wmt13)
    assert not (tmp_path / "sacrebleu" / "wmt13").exists()
    assert not caplog.records
    known.wrong.clear()
    known.cuts["/files/test.tgz"] = 10
    assert "wmt13: sacreBLEU's test set: IncompleteRead" in refusal(wmt13)
    known.cuts.clear()
    known.failing["/files/"] = 503
    assert "wmt13: sacreBLEU's test set: HTTP Error 503" in refusal(wmt13)
    known.failing.clear()
    monkeypatch.setattr(fetch, "_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, monkeypatch.context() as patched:
        patched.setattr(DATASETS["wmt13"], "data", [f"http://127.0.0.1:{silent.getsockname()[1]}/x.tgz"])
        assert "wmt13: sacreBLEU's test set: timed out" in refusal(wmt13)
    assert (len(wmt13()), socket.getdefaulttimeout()) == (2, before)


def test_sacrebleu_has_the_test_sets_of_the_catalog():
    for corpus in CATALOG.values():
        for text in corpus.held_out:
            assert not text.sacrebleu or f"{corpus.src_lang}-{corpus.tgt_lang}" in DATASETS[text.sacrebleu].langpairs
