"""Known corpora from a loopback server: downloads are complete and verified, or a one-line error says why not."""

from __future__ import annotations

import gzip
import socket
from pathlib import Path

import pytest
from sacrebleu.dataset import DATASETS

from relattn.translation.commands import main as cli
from relattn.translation.config import CleaningConfig
from relattn.translation.config.presets import PRESETS
from relattn.translation.corpus import fetch
from relattn.translation.corpus.pipeline import prepare
from relattn.translation.corpus.sources import KnownCorpus
from relattn.translation.data.text_files import read_parallel
from relattn.translation.errors import InputError
from tests.translation.corpus.conftest import HELD_OUT
from tests.translation.loopback import Hub, files_no_larger_than

TRAIN = "de-en/train-00000-of-00002.parquet"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # between attempts


def refusal(call, *arguments: object) -> str:
    with pytest.raises(InputError) as error:
        call(*arguments)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def content(hub: Hub, name: str = TRAIN) -> bytes:
    repository = hub.repositories["datasets/wmt/wmt14"]
    return repository.commits[repository.branches["main"]][name]


def listed(name: str = TRAIN) -> fetch.RemoteFile:
    return next(file for file in fetch.list_files("wmt/wmt14") if file.name == name)


def kept(tmp_path: Path) -> list[Path]:
    """Complete and incomplete downloads."""
    return [path for path in (tmp_path / "assets").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_file_is_downloaded_once(known):
    file = listed()
    path = fetch.download(file)
    assert path.read_bytes() == content(known)
    known.asked.clear()
    assert fetch.download(file) == path
    assert known.asked == []


def test_a_cut_connection_loses_nothing(known, tmp_path):
    file, half = listed(), len(content(known)) // 2
    known.cuts[TRAIN] = half
    message = refusal(fetch.download, file)
    assert message.startswith(f"wmt/wmt14: {TRAIN}: from the hub: peer closed connection")
    [part] = kept(tmp_path)
    start = part.stat().st_size
    assert start == len(content(known)) - half
    assert known.ranges == [f"bytes={start}-"] * 5  # further attempts of the same call
    known.cuts.clear()
    known.ranges.clear()
    assert fetch.download(file).read_bytes() == content(known)
    assert known.ranges == [f"bytes={start}-"]
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("name", [TRAIN, "README.md"])  # checked by SHA-256, and by Git's checksum
def test_wrong_bytes_are_reported_and_deleted(known, tmp_path, name):
    file, right = listed(name), content(known, name)
    known.wrong[name] = bytes([right[0] ^ 1]) + right[1:]
    message = refusal(fetch.download, file)
    assert message.startswith(f"wmt/wmt14: {name}: the download was deleted: ")
    assert f"must have {len(right):,} bytes with checksum {file.checksum}, got {len(right):,} with " in message
    assert kept(tmp_path) == []
    known.wrong.clear()
    assert fetch.download(file).read_bytes() == right


@pytest.mark.parametrize("difference", [-10, 10])
def test_a_wrong_length_is_reported_and_deleted(known, tmp_path, difference):
    file, right = listed(), content(known)
    known.wrong[TRAIN] = right[:difference] if difference < 0 else right + bytes(difference)
    message = refusal(fetch.download, file)
    assert f"must have {len(right):,} bytes with" in message
    assert f"got {len(right) + difference:,} with" in message
    assert kept(tmp_path) == []


def test_a_full_disk_loses_nothing(known, tmp_path):
    file = listed()
    with files_no_larger_than(1000):
        message = refusal(fetch.download, file)
    assert message.endswith(f"{Path(TRAIN).name}: cannot be written: File too large")
    assert fetch.download(file).read_bytes() == content(known)
    assert known.ranges == ["bytes=1000-"]


def test_a_missing_data_set_is_reported(known, tmp_path):
    del known.repositories["datasets/wmt/wmt14"]
    message = refusal(prepare, KnownCorpus("wmt14-en-de"), tmp_path / "out", CleaningConfig())
    assert message.startswith("wmt/wmt14: from the hub: no such data set, or a private one")
    assert not (tmp_path / "out").exists()


def test_a_data_set_with_another_layout_is_reported(known, tmp_path):
    repository = known.repositories["datasets/wmt/wmt14"]
    repository.commits[repository.branches["main"]].pop("fr-en/train-00000-of-00001.parquet")
    message = refusal(prepare, KnownCorpus("wmt14-en-fr"), tmp_path / "out", CleaningConfig())
    assert message == "wmt/wmt14: the data set has no file fr-en/train-…"
    repository.commit({TRAIN: b"PAR1, or not"})
    message = refusal(prepare, KnownCorpus("wmt14-en-de"), tmp_path / "out", CleaningConfig())
    assert f"{Path(TRAIN).name}: not Parquet" in message


def test_wmt14_has_the_files_that_its_recipes_name(known, tmp_path):
    out = tmp_path / "out"
    prepared = prepare(KnownCorpus("wmt14-en-de"), out, CleaningConfig(), part=10)
    names = [f"{name}.{lang}.gz" for name in ("newstest2013", "newstest2014", "train") for lang in ("de", "en")]
    assert sorted(path.name for path in out.iterdir()) == sorted(["README.md", *names, "prepared.json"])
    assert gzip.decompress((out / "newstest2013.en.gz").read_bytes()).decode() == f"{HELD_OUT[0]}\none\n"
    assert gzip.decompress((out / "newstest2014.de.gz").read_bytes()).decode() == "Neues\n"
    src, tgt = (gzip.decompress((out / f"train.{lang}.gz").read_bytes()).decode().splitlines() for lang in ("en", "de"))
    assert len(src) == len(tgt) == prepared.stats.kept
    assert ("one two", "eins zwei") in zip(src, tgt, strict=True)
    assert prepared.stats.read == 61
    assert prepared.stats.dropped["overlap"] == 2
    card = (out / "README.md").read_text(encoding="utf-8")
    assert known.repositories["datasets/wmt/wmt14"].branches["main"] in card
    assert listed().checksum in card


def test_a_recipe_can_read_what_the_command_writes(known, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    known.failing[TRAIN] = 503
    assert cli.main(["prepare", "wmt14-en-de", "--processes", "1"]) == 2
    message = f"relattn: error: wmt/wmt14: {TRAIN}: from the hub: as the test wants it\n"
    assert capsys.readouterr() == ("", message)
    assert not Path("data").exists()
    known.failing.clear()
    assert cli.main(["prepare", "wmt14-en-de", "--processes", "1"]) == 0
    out, err = capsys.readouterr()
    assert (out.splitlines()[-1], err) == ("data/wmt14-en-de/README.md", "")
    data = PRESETS["wmt14-en-de-base"].data
    assert list(read_parallel(data.valid_src, data.valid_tgt)) == [tuple(HELD_OUT), ("one", "eins")]
    assert len(list(read_parallel(data.train_src, data.train_tgt))) > 10


def test_an_interrupted_preparation_stays_at_its_commit(known, tmp_path, monkeypatch):
    corpus = KnownCorpus("wmt14-en-de")
    expected = prepare(corpus, tmp_path / "whole", CleaningConfig(), part=10)
    name = "de-en/train-00001-of-00002.parquet"
    with monkeypatch.context() as patch:
        patch.setattr("relattn.translation.corpus.pipeline._write_parts", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(corpus, tmp_path / "out", CleaningConfig(), part=10)
    known.repositories["datasets/wmt/wmt14"].commit({name: b"other"})
    assert prepare(corpus, tmp_path / "out", CleaningConfig(), part=10) == expected
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_multi30k(known, tmp_path):
    out = tmp_path / "out"
    prepared = prepare(KnownCorpus("multi30k"), out, CleaningConfig())
    assert prepared.stats.read == 36
    assert (out / "test2016.de").read_text() == "Ein Mann.\n"
    assert len((out / "valid.en").read_text().splitlines()) == 10
    known.repositories["datasets/bentrevett/multi30k"].commit({"train.jsonl": b'{"en": "a"}\n'})
    message = refusal(prepare, KnownCorpus("multi30k"), tmp_path / "other", CleaningConfig())
    assert message.endswith("train.jsonl: not pairs as JSON lines: 'de'")


# sacreBLEU's test sets


def wmt13() -> list[tuple[str, str]]:
    return fetch.sacrebleu_pairs("wmt13", "en", "de")


def test_a_test_set_is_downloaded_once(known):
    pairs = [tuple(HELD_OUT), ("one", "eins")]
    assert wmt13() == pairs
    known.asked.clear()
    assert wmt13() == pairs
    assert known.asked == []


def test_a_test_set_with_wrong_bytes_is_reported_and_deleted(known, tmp_path, caplog):
    known.wrong["/files/test.tgz"] = known.files["/files/test.tgz"] + b"\0"
    message = refusal(wmt13)
    assert message.startswith("wmt13: sacreBLEU's test set: Fatal: MD5 sum of downloaded file was incorrect")
    assert not (tmp_path / "sacrebleu" / "wmt13").exists()
    assert not caplog.records
    known.wrong.clear()
    assert len(wmt13()) == 2


def test_a_failed_download_of_a_test_set_is_reported(known, tmp_path):
    known.cuts["/files/test.tgz"] = 10
    assert refusal(wmt13).startswith("wmt13: sacreBLEU's test set: IncompleteRead")
    known.files.clear()
    known.failing["/files/"] = 503
    assert refusal(wmt13) == "wmt13: sacreBLEU's test set: HTTP Error 503: Service Unavailable"


def test_a_silent_server_times_out(known, monkeypatch):
    monkeypatch.setattr(fetch, "_TIMEOUT", 0.2)
    before = socket.getdefaulttimeout()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(DATASETS["wmt13"], "data", [f"http://127.0.0.1:{silent.getsockname()[1]}/x.tgz"])
        assert refusal(wmt13) == "wmt13: sacreBLEU's test set: timed out"
    assert socket.getdefaulttimeout() == before


@pytest.mark.parametrize("damaged", ["raw/wmt13.test.tgz", "wmt13.en-de.ref"])
def test_a_damaged_test_set_is_downloaded_again(known, tmp_path, damaged):
    expected = wmt13()
    path = tmp_path / "sacrebleu" / "wmt13" / damaged
    path.write_bytes(path.read_bytes()[:10])
    assert wmt13() == expected
    assert path.stat().st_size > 10


def test_sacrebleu_has_the_test_sets_of_the_catalog():
    from relattn.translation.corpus.catalog import CATALOG

    for corpus in CATALOG.values():
        for text in corpus.held_out:
            assert not text.sacrebleu or f"{corpus.src_lang}-{corpus.tgt_lang}" in DATASETS[text.sacrebleu].langpairs
