"""Firefox's models by name: both lists, the choice, the cache, and every fault of a download."""

import gzip
import hashlib
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from relattn_mt import load
from relattn_mt.bundle import read_bundle
from relattn_mt.firefox.cache import bundles, cached, root
from relattn_mt.support.errors import InputError
from relattn_mt.support.locking import locked
from relattn_mt.translate.glossary import Glossary
from relattn_mt.translate.options import TranslateOptions

from tests.support.commands import assert_refused
from tests.support.foreign_bundles import LINES, run_import
from tests.support.loopback import files_no_larger_than
from tests.support.mozilla import RECORDS, REGISTRY, Mozilla, model_files, serving, start_import

CUT = TranslateOptions(copy=False, keep_literals=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("files")
    return {
        "en-de": model_files(folder / "1", seed=1),
        "fr-en": model_files(folder / "2", seed=2),
        "en-zh_hant": model_files(folder / "3", seed=3, two=True),
        "newer": model_files(folder / "4", seed=4),
        "nightly": model_files(folder / "5", seed=5),
    }


@pytest.fixture
def mozilla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, Any]) -> Iterator[Mozilla]:
    with serving(tmp_path / "cache") as (server, variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for name in ("HTTP_PROXY", "http_proxy", "RELATTN_OFFLINE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            monkeypatch.delenv(name, raising=False)
        for pair in ("en-de", "fr-en", "en-zh_hant"):
            server.add(pair, files[pair])
        yield server


@pytest.fixture
def expected(tmp_path: Path, files: dict[str, Any]) -> list[str]:
    """Translations of the model from English to German, imported from its files."""
    folder = tmp_path / "plain"
    folder.mkdir()
    names = {"model": "model.bin", "lex": "lex.bin", "vocab": "vocab.spm"}
    for kind, content in files["en-de"].items():
        (folder / names[kind]).write_bytes(content)
    parts = run_import(folder, tmp_path / "plain-bundle", "en", "de")
    return parts.translator().translate(LINES, CUT)


def refusal(name: str, **options: Any) -> str:
    """Return the error of a name, in one line, after which the cache has no model and nothing else."""
    with pytest.raises(InputError) as error:
        bundles(name, **options)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(name)
    assert leftovers() == []
    return message


def leftovers() -> list[str]:
    return sorted(str(path.relative_to(root())) for path in root().rglob("*") if path.is_file())


def disconnect(server: Mozilla, monkeypatch: pytest.MonkeyPatch) -> None:
    server.asked.clear()
    monkeypatch.setenv("RELATTN_FIREFOX_MIRROR", "http://127.0.0.1:9")


def test_a_model_is_downloaded_once_and_used_without_a_network(mozilla, expected, monkeypatch, caplog, relattn):
    caplog.set_level("INFO")
    translator = load("firefox:en-de")
    assert (translator.src_lang, translator.tgt_lang) == ("en", "de")
    assert translator.translate(LINES, CUT) == expected
    assert "MPL-2.0" in caplog.text
    kinds = [Path(path).name for path in mozilla.asked if "models/" in path and path not in (REGISTRY, RECORDS)]
    assert sorted(kinds) == ["lex.bin.gz", "model.bin.gz", "vocab.bin.gz"]
    (path,) = cached()
    assert str(path.relative_to(root())) == "en-de/base-memory-3.0"
    assert leftovers() == sorted(f"en-de/{path.name}/{file.name}" for file in path.iterdir())
    parts = read_bundle(path)
    assert parts.is_quantized
    assert parts.shortlist is not None
    for fact in ("MPL-2.0", mozilla.url, "version 3.0", "bleu 38.8"):
        assert fact in parts.card
    disconnect(mozilla, monkeypatch)
    for name in ("firefox:en-de", "firefox:en-de@3.0"):
        assert load(name).translate(LINES, CUT) == expected
    assert bundles("firefox:en-de", offline=True, update=True) == [path]
    assert "must be in the cache" in str(error_of(bundles, "firefox:fr-en", offline=True))
    monkeypatch.setenv("RELATTN_OFFLINE", "1")
    assert "must be in the cache" in str(error_of(load, "firefox:fr-en"))
    assert_refused(relattn("models", "firefox"), "RELATTN_OFFLINE must not be set")
    assert mozilla.asked == []


def error_of(call: Callable[..., object], *arguments: Any, **options: Any) -> InputError:
    with pytest.raises(InputError) as error:
        call(*arguments, **options)
    return error.value


def test_records_alone_will_do(mozilla, expected):
    """Where there is no registry, files in .zst are checked by the records."""
    mozilla.statuses[REGISTRY] = 404
    assert load("firefox:en-de").translate(LINES, CUT) == expected
    assert [path for path in mozilla.asked if path.endswith(".gz")] == []
    assert ".zst" in read_bundle(cached()[0]).card


def test_the_registry_alone_will_do(mozilla, expected, files):
    """Without records, versions are unknown, and a model is named by the start of its digest."""
    mozilla.statuses[RECORDS] = 500
    assert load("firefox:en-de").translate(LINES, CUT) == expected
    (path,) = cached()
    digest = hashlib.sha256(files["en-de"]["model"]).hexdigest()
    assert path.name == f"base-memory-{digest[:8]}"
    assert bundles(f"firefox:en-de@{digest[:8]}", update=True) == [path]


def test_the_best_model_is_chosen(mozilla, files, monkeypatch):
    """Released before others, then base-memory before tiny. A newer one is downloaded on request, and the old stays."""
    mozilla.add("en-de", files["newer"], architecture="tiny")
    assert bundles("firefox:en-de", architecture="tiny")[0].name == "tiny-3.0"
    mozilla.add("en-de", files["nightly"], status=None, version="4.0a1")
    (released,) = bundles("firefox:en-de", architecture="base-memory", update=True)
    assert released.name == "base-memory-3.0"
    (newer,) = bundles("firefox:en-de@4.0a1", update=True)
    assert newer.name == "base-memory-4.0a1"
    assert bundles("firefox:en-de") == [newer]  # the last one
    assert bundles("firefox:en-de@3.0", architecture="base-memory") == [released]
    assert bundles("firefox:en-de", update=True) == [released]
    assert bundles("firefox:en-de") == [released]
    assert len(cached()) == 3
    with pytest.raises(InputError, match=r"must be one of .*tiny 3\.0, .*got base 3\.0$"):
        bundles("firefox:en-de@3.0", architecture="base")
    with pytest.raises(InputError, match=r"must be one of en-de, en-zh-hant, fr-en, got en-fi$"):
        bundles("firefox:en-fi")
    (chinese,) = bundles("firefox:en-zh-Hant")
    assert chinese.parent.name == "en-zh-hant"
    for name in (
        "firefox:",
        "firefox:en",
        "firefox:en-de@",
        "firefox:../en-de",
        "firefox:en-de/..",
        "firefox:EN_de",
        "firefox:*-de",
        "firefox:en-de@*",
    ):
        assert "a name must be such as firefox:en-de" in str(error_of(bundles, name))


def test_a_pair_goes_through_english(mozilla, monkeypatch):
    """Documents, tables and lines are translated by two models; what concerns words of one model is refused."""
    first, second = bundles("firefox:fr-de")
    disconnect(mozilla, monkeypatch)
    translator, (into, out) = load("firefox:fr-de"), (load(first), load(second))
    assert (translator.src_lang, translator.tgt_lang, translator.pairs) == ("fr", "de", [("fr", "de")])
    lines = [*LINES, "", "-"]
    options = TranslateOptions(n_best=1)
    assert translator.translate(lines, options) == out.translate(into.translate(lines, options), options)
    (best,), (between,) = translator.n_best(LINES[:1], CUT)[0], into.n_best(LINES[:1], CUT)[0]
    (last,) = out.n_best([between.text], CUT)[0]
    assert best == last
    terms = TranslateOptions(glossary=Glossary([(1, "apple", "Apfel")]), copy=False)
    plain = replace(terms, glossary=None)
    assert translator.translate(LINES, terms) == out.translate(into.translate(LINES, plain), terms)
    with pytest.raises(InputError, match="align requires one model"):
        translator.translate(LINES, TranslateOptions(align=True))
    with pytest.raises(InputError, match="scores require one model"):
        list(translator.score([(LINES[0], LINES[1])]))
    with pytest.raises(InputError, match="line 2 has 20,000 characters"):
        translator.translate(["a", "a" * 20_000])
    assert mozilla.asked == []


def edit(server: Mozilla, change: Callable[[dict[str, Any]], object]) -> None:
    change(server.registry["models"]["en-de"][0])


def change_file(server: Mozilla, name: str, change: Callable[[bytes], bytes]) -> None:
    path = next(path for path in server.files if path.startswith("models/en-de") and name in path)
    server.files[path] = change(server.files[path])


ABSENT = "firefox:en-de: must be one of "
FAULTS: dict[str, tuple[Callable[[Mozilla], object], str]] = {
    "404": (lambda s: s.statuses.update({"model.bin": 404}), "model.bin.gz: HTTP status 404"),
    "500": (lambda s: s.statuses.update({"vocab": 500}), "HTTP status 500"),
    "other weights": (
        lambda s: change_file(s, "model.bin", lambda x: gzip.compress(gzip.decompress(x)[:-1] + b"!")),
        "model.bin.gz: must have SHA-256",
    ),
    "other vocabulary": (
        lambda s: change_file(s, "vocab", lambda x: gzip.compress(gzip.decompress(x)[:-1] + b"!")),
        "vocab.bin.gz: must have SHA-256",
    ),
    "longer": (
        lambda s: change_file(s, "model.bin", lambda x: gzip.compress(gzip.decompress(x) + b"!")),
        "bytes when it is unpacked, got more",
    ),
    "shorter": (
        lambda s: change_file(s, "model.bin", lambda x: gzip.compress(gzip.decompress(x)[:-1])),
        "model.bin.gz: must have SHA-256",
    ),
    "not compressed": (lambda s: change_file(s, "model.bin", lambda x: b"<html>"), "model.bin.gz: "),
    "damaged": (lambda s: change_file(s, "model.bin", lambda x: x[:-20]), "model.bin.gz: cannot be read: "),
    "to a file": (lambda s: s.redirects.update({"model.bin": "file:///etc/passwd"}), "HTTP status 302"),
    "to FTP": (lambda s: s.redirects.update({"model.bin": "ftp://127.0.0.1:9/model.bin"}), "HTTP status 302"),
    "in a circle": (lambda s: s.redirects.update({"models/": f"{s.url}/models/"}), "HTTP status 302"),
    "no list": (lambda s: s.statuses.update({"models.json": 404, "records": 404}), "db/models.json: HTTP status 404"),
    "not JSON": (lambda s: setattr(s, "registry", b"<html>"), "db/models.json: not JSON"),
    "a list": (lambda s: setattr(s, "registry", b"[1]"), "db/models.json: malformed: "),
    "deep": (lambda s: setattr(s, "registry", b"[" * 100_000), "db/models.json: "),
    "another list": (lambda s: setattr(s, "registry", {"novel": 1}), "db/models.json: malformed: "),
    "outside": (lambda s: edit(s, lambda e: e["files"]["model"].update(path="../../etc/passwd")), ABSENT),
    "elsewhere": (lambda s: edit(s, lambda e: e["files"]["vocab"].update(path="//evil.invalid/x")), ABSENT),
    "a malicious language": (lambda s: edit(s, lambda e: e.update(targetLanguage="../../de")), ABSENT),
    "a malicious architecture": (lambda s: edit(s, lambda e: e.update(architecture="../x")), ABSENT),
    "another type": (lambda s: edit(s, lambda e: e["files"].update(model={"path": "x.exe"})), ABSENT),
    "a program": (
        lambda s: edit(s, lambda e: e["files"]["vocab"].update(path="x.exe")),
        "x.exe: must end in .gz or .zst",
    ),
    "a number": (lambda s: edit(s, lambda e: e.update(files=7)), ABSENT),
    "no digest": (lambda s: edit(s, lambda e: e["files"]["model"].update(uncompressedHash="../x")), ABSENT),
    "another digest": (
        lambda s: edit(s, lambda e: e["files"]["model"].update(uncompressedHash="0123456789")),
        "model.bin.gz: must have SHA-256 0123456789 unpacked",
    ),
    "a size": (lambda s: edit(s, lambda e: e["files"]["model"].update(uncompressedSize="x")), ABSENT),
    "a negative size": (
        lambda s: edit(s, lambda e: e["files"]["model"].update(uncompressedSize=-1)),
        ABSENT,
    ),
    "a huge size": (lambda s: edit(s, lambda e: e["files"]["model"].update(uncompressedSize=1 << 50)), ABSENT),
    "no model": (lambda s: edit(s, lambda e: e["files"].pop("model")), ABSENT),
    "no vocabulary": (lambda s: edit(s, lambda e: e["files"].pop("vocab")), ABSENT),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults(mozilla, name):
    """Each is one line that names what is wrong; nothing stays behind; other pairs are not concerned."""
    cause, fact = FAULTS[name]
    if fact == ABSENT or "digest" in name or "size" in name:  # or the records have it
        mozilla.statuses[RECORDS] = 404
    cause(mozilla)
    message = refusal("firefox:en-de")
    assert fact in message, message
    if fact == ABSENT or "must have" in fact:
        assert len(bundles("firefox:fr-en")) == 1


def test_redirects_are_followed(mozilla, expected):
    for path in [*mozilla.files]:
        if path.startswith("models/en-de"):
            mozilla.files[f"elsewhere/{Path(path).name}"] = mozilla.files[path]
            mozilla.redirects[path] = f"{mozilla.url}/elsewhere/{Path(path).name}"
    assert load("firefox:en-de").translate(LINES, CUT) == expected


def test_https(mozilla, expected, monkeypatch, tmp_path):
    """A certificate of a company is accepted if it is named, and a redirect never leads away from HTTPS."""
    certificate = tmp_path / "certificate.pem"
    mozilla.encrypt(certificate)
    monkeypatch.setenv("RELATTN_FIREFOX_MIRROR", mozilla.url)
    assert "SSL_CERT_FILE" in refusal("firefox:en-de")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert load("firefox:en-de").translate(LINES, CUT) == expected
    with serving(root()) as (plain, _):
        plain.files = mozilla.files
        (path,) = [path for path in mozilla.files if path.startswith("models/fr-en") and "model.bin" in path]
        mozilla.redirects[path] = f"{plain.url}/{path}"
        message = str(error_of(bundles, "firefox:fr-en"))
        assert "HTTP status 302: must redirect to https, got http:" in message
        assert plain.asked == []


@pytest.mark.parametrize("address", ["file:///etc", "data:,", "127.0.0.1/x", "ftp://127.0.0.1:9"])
def test_addresses_of_other_protocols(mozilla, monkeypatch, address):
    monkeypatch.setenv("RELATTN_FIREFOX_MIRROR", address)
    assert "must begin with https: or http:" in refusal("firefox:en-de")


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_download_that_was_cut_short_continues(mozilla, expected, has_ranges):
    """With a known digest, what arrived is kept for the next call; the registry alone has none, and starts again."""
    mozilla.statuses[REGISTRY] = 404
    mozilla.has_ranges = has_ranges
    mozilla.cuts[location(mozilla)] = 10
    message = str(error_of(load, "firefox:en-de"))
    assert re.search(r"\.zst: the answer ended after [\d,]+ of [\d,]+ bytes; try again$", message)
    assert cached() == []
    assert "model.bin.zst" in [Path(path).name for path in leftovers()]
    mozilla.cuts.clear()
    assert load("firefox:en-de").translate(LINES, CUT) == expected
    (path,) = cached()
    assert leftovers() == sorted(f"en-de/{path.name}/{file.name}" for file in path.iterdir())


def location(server: Mozilla) -> str:
    """Return the path of the weights from English to German in the records."""
    (record,) = (x for x in server.records["data"] if (x["name"], x["targetLanguage"]) == ("model.bin", "de"))
    return record["attachment"]["location"]


def test_a_part_of_another_file_is_not_used(mozilla, expected):
    mozilla.statuses[REGISTRY] = 404
    mozilla.cuts[location(mozilla)] = 10
    error_of(load, "firefox:en-de")
    (part,) = root().rglob("model.bin.zst")
    content = part.read_bytes()
    mozilla.cuts.clear()
    part.write_bytes(content[:99] + b"!" + content[100:])
    refusal("firefox:en-de")
    assert load("firefox:en-de").translate(LINES, CUT) == expected
    shutil.rmtree(root())
    part.parent.mkdir(parents=True)
    part.write_bytes(content + b"!" * 20)  # longer than the file: the server answers 416, and it is sent anew
    assert load("firefox:en-de").translate(LINES, CUT) == expected


def test_a_part_without_a_digest_is_not_used(mozilla, expected):
    mozilla.statuses[RECORDS] = 500
    mozilla.cuts["vocab"] = 10
    error_of(load, "firefox:en-de")
    (part,) = root().rglob("vocab.spm.gz")
    part.write_bytes(b"!" * 20)
    mozilla.cuts.clear()
    assert load("firefox:en-de").translate(LINES, CUT) == expected


def test_a_full_disk(mozilla, expected):
    for size in (1000, 7000, 40_000):  # of a download, of an unpacked file, of a bundle
        with files_no_larger_than(size):
            assert "cannot be written: File too large" in refusal("firefox:en-de")
    assert load("firefox:en-de").translate(LINES, CUT) == expected


@pytest.mark.timeout(120)
def test_two_processes_import_a_model_once(mozilla, tmp_path):
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "RELATTN_FIREFOX_MIRROR": mozilla.url}
    processes = [start_import("firefox:en-de", variables) for _ in range(2)]
    outputs = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    (path,) = cached()
    assert [out.strip() for out, _ in outputs] == [str(path)] * 2
    assert sum("model.bin.gz" in path for path in mozilla.asked) == 1


def test_a_process_that_waits_imports_what_another_one_could_not(mozilla):
    """The first leaves an empty directory, in which the second was waiting."""
    directory = root() / "en-de"
    is_locked = threading.Event()

    def fail() -> None:
        with locked(directory, "importing a model", wait=True):
            is_locked.set()
            time.sleep(0.5)  # for the other one to ask for the lock

    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(fail)
        is_locked.wait()
        assert bundles("firefox:en-de") == cached()
        failing.result()
    assert len(cached()) == 1


def test_a_proxy_is_used(mozilla, expected, monkeypatch):
    monkeypatch.setenv("RELATTN_FIREFOX_MIRROR", "http://models.invalid/")
    monkeypatch.setenv("http_proxy", mozilla.url)
    assert load("firefox:en-de").translate(LINES, CUT) == expected


def test_unknown_fields_are_ignored(mozilla, expected):
    edit(mozilla, lambda entry: entry.update(novel={"a": 1}))
    edit(mozilla, lambda entry: entry["files"].update(qualityModel={"path": "x"}))
    mozilla.registry.update(novel=[], schema=9)
    mozilla.registry["models"].update({"en-xx": [None, 7, {"files": []}]})
    mozilla.records["data"] += [None, {"name": 7}, {"attachment": {"location": 1}}]
    assert load("firefox:en-de").translate(LINES, CUT) == expected


def test_names_of_scores_are_printed_in_one_line(mozilla, relattn):
    edit(mozilla, lambda entry: entry.update(metrics={"flores200-plus": {"\x1b[2J\n\tbleu": 1.5}}))
    lines = relattn("models", "firefox").out.splitlines()
    assert len(lines) == 3
    assert [line.split("\t")[5] for line in lines] == [r"\x1b[2J bleu 1.5", "bleu 38.8", "bleu 38.8"]


def refusal_beside(name: str) -> str:
    return str(error_of(bundles, name))


def test_commands(mozilla, relattn, tmp_path, files):
    done = relattn("import", "firefox:en-de", "--out", tmp_path / "bundle")
    assert (done.code, done.out) == (0, f"{tmp_path / 'bundle'}\n")
    assert "MPL-2.0" in read_bundle(tmp_path / "bundle").card
    assert_refused(relattn("import", "firefox:en-de", "--out", tmp_path / "bundle"), "use --overwrite")
    translated = relattn("translate", "firefox:fr-de", "--input", lines_file(tmp_path), "--output", tmp_path / "out")
    assert translated.code == 0
    assert (tmp_path / "out").read_text().splitlines() == load("firefox:fr-de").translate(LINES)
    assert relattn("models", "--remove", "firefox:fr-en").code == 0
    assert relattn("import", "firefox:en-de").out == f"{cached()[0]}\n"
    mozilla.add("en-de", files["newer"], version="3.1")
    listed = relattn("models", "firefox").out.splitlines()
    assert [line.split("\t")[0] for line in listed] == [
        "firefox:en-de@3.1", "firefox:en-de@3.0", "firefox:en-zh-hant@3.0", "firefox:fr-en@3.0"
    ]  # fmt: skip
    assert listed[0].split("\t")[1:3] == ["base-memory", "released"]
    assert listed[0].endswith("\t\tbleu 38.8")
    assert listed[1].endswith("\tcached\tbleu 38.8")
    assert listed[3].endswith("\t\tbleu 38.8")
    (line,) = relattn("models").out.splitlines()
    assert line.startswith("firefox:en-de@3.0\t")
    assert_refused(
        relattn("models", "--remove", "firefox:en-de", "firefox:en-fr"),
        "must name a model in the cache, got firefox:en-fr",
    )
    assert_refused(relattn("models", "firefox", "--remove", "firefox:en-de"), "--remove must be without firefox")
    assert len(cached()) == 1
    assert relattn("models", "--remove", "firefox:en-de@3.0").out.startswith("removed: ")
    assert relattn("models").out == ""
    assert leftovers() == []
    assert_refused(
        relattn("export", "ctranslate2", "firefox:fr-de", "--quiet", "--out", tmp_path / "x"), "with two models"
    )
    assert_refused(relattn("import", "firefox:en-fr", "--offline"), "firefox:en-fr: must be in the cache")
    for option in ("--tokenizer", "--src_lang", "--check_lines", "--alignment_text"):
        assert_refused(relattn("import", "firefox:en-de", option, "x"), f"got {option}")
    assert_refused(relattn("import", "firefox:en-de", "--check_count", "5"), "got --check_count")
    assert_refused(relattn("import", "directory", "--offline", "--out", tmp_path / "y"), "require a model such as")
    assert_refused(relattn("import", "directory"), "out must name a directory")


def lines_file(folder: Path) -> Path:
    (folder / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    return folder / "in.txt"


def test_a_server_of_pairs_by_name(mozilla, relattn, monkeypatch):
    """A pair that goes through English brings the pivot and both models, each once."""
    served: list[Any] = []
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("relattn_mt.serve.server.serve", lambda router, **options: served.append(router))
    done = relattn("serve", "firefox:fr-en", "firefox:fr-de")
    assert done.code == 0
    (router,) = served
    assert router.pairs == [("en", "de"), ("fr", "en")]
    assert router.targets("fr") == ["de", "en"]


def test_records_are_recorded_in_the_form_of_remote_settings(mozilla):
    """The digest in a record of the test server is that of the attachment, as the client checks it."""
    record = mozilla.records["data"][0]
    content = mozilla.files[record["attachment"]["location"]]
    assert hashlib.sha256(content).hexdigest() == record["attachment"]["hash"]
    assert json.dumps(mozilla.registry)
