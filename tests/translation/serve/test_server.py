"""The process: a published client of LibreTranslate's API, an end under load, and no PyTorch where none is needed."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from libretranslatepy import LibreTranslateAPI

from relattn.translation import bundle
from relattn.translation.commands import main as cli
from relattn.translation.commands.serve import PACKAGES
from relattn.translation.config import Recipe
from relattn.translation.formats.ctranslate2.translator import load
from relattn.translation.formats.ctranslate2.write import export

SLOWLY = ["--limits.batch", "1", "--limits.characters", "100000"]
COMMAND = [sys.executable, "-m", "relattn"]
ROOT = Path(__file__).parents[3]
LISTED = dict(
    line.split("==")
    for line in (ROOT / "deploy" / "requirements.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


@contextmanager
def serving(path: Path, *arguments: str, command: list[str] = COMMAND) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server's process, and its address."""
    called = [*command, "serve", str(path), "--port", "0", "--threads", "1", *arguments]
    with subprocess.Popen(called, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            found = re.fullmatch(r"en to de: (http://127\.0\.0\.1:\d+/)\n", first)
            assert found, first + process.communicate()[1]
            yield process, found[1]
        finally:
            process.kill()


def asked(address: str, **given: str) -> Any:
    body = json.dumps({"source": "en", "target": "de", **given}).encode()
    return json.load(
        urllib.request.urlopen(urllib.request.Request(address, body, {"Content-Type": "application/json"}))
    )


def metrics(address: str) -> str:
    return urllib.request.urlopen(f"{address}metrics").read().decode()


@pytest.fixture(scope="module")
def exported(finished: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("serve") / "exported"
    export(bundle.read_bundle(Path(finished.out) / "bundle"), path, quantization="float32", sample=["one cat"])
    return path


@pytest.mark.parametrize("missing", PACKAGES)
def test_without_one_of_its_packages_the_extra_is_named(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert cli.main(["serve", "no such model"]) == 2
    told = f'relattn: error: {missing} cannot be imported: pip install "relattn[serve]": '
    assert capsys.readouterr().err.startswith(told)


def test_the_extra_has_these_packages() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    distributions = metadata.packages_distributions()
    installed = {name.lower().replace("_", "-") for package in PACKAGES for name in distributions[package]}
    extra = [name.partition(">")[0] for name in settings["project"]["optional-dependencies"]["serve"]]
    assert installed == {name.lower().replace("_", "-") for name in extra}


@pytest.mark.whole
def test_an_answer_is_sent_at_once(exported: Path) -> None:
    """On a connection that is kept; one that waits for the client's word takes 40 ms."""
    with serving(exported) as (_, address):
        host = urllib.parse.urlsplit(address)
        connection = http.client.HTTPConnection(host.hostname or "", host.port)
        taken = []
        for _ in range(9):
            began = time.perf_counter()
            connection.request("GET", "/health")
            connection.getresponse().read()
            taken.append(time.perf_counter() - began)
        connection.close()
    assert sorted(taken)[4] < 0.03


@pytest.mark.whole
def test_a_published_client_translates_detects_and_lists(exported: Path) -> None:
    with serving(exported) as (process, address):
        client = LibreTranslateAPI(address)
        expected = load(exported).translate(["one cat sat"])
        assert client.translate("one cat sat", "en", "de") == expected[0]
        assert client.detect("This is plain English text.")[0]["language"] == "en"
        assert client.languages() == [
            {"code": "de", "name": "German", "targets": []},
            {"code": "en", "name": "English", "targets": ["de"]},
        ]
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    rows = [json.loads(line) for line in log.splitlines()]
    assert [row["route"] for row in rows] == ["/translate", "/detect", "/languages"]
    assert "cat" not in log


@pytest.fixture
def clean(tmp_path: Path) -> list[str]:
    """The command in an environment that has what the container has, and nothing else."""
    venv.create(tmp_path, with_pip=False, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(tmp_path), "platbase": str(tmp_path)}))
    (packages / "relattn").symlink_to(ROOT / "src" / "relattn")
    for name in LISTED:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            if not (packages / top).is_symlink():
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
    return [str(tmp_path / "bin" / "python"), "-I", "-m", "relattn"]


def test_the_container_has_the_versions_that_are_tested() -> None:
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()[1:])
    assert {name: pinned.get(name) for name in LISTED} == LISTED
    assert "torch" not in LISTED


def test_an_export_is_served_by_what_the_container_has(exported: Path, clean: list[str]) -> None:
    with serving(exported, command=clean) as (_, address):
        client = LibreTranslateAPI(address)
        assert client.translate("one cat sat", "en", "de") == load(exported).translate(["one cat sat"])[0]
        with pytest.raises(urllib.error.HTTPError) as refused:
            asked(f"{address}attention", q="one")
        assert refused.value.code == 400
        assert "requires a bundle" in refused.value.read().decode()
        words = asked(f"{address}words", q="one")["words"]
        assert "".join(word["text"] for word in words) == client.translate("one", "en", "de")
        answer = asked(f"{address}translate", q="<p>one <b>cat</b></p>", format="html")["translatedText"]
        assert re.fullmatch(r"<p>[^<>]*<b>[^<>]*</b></p>", answer)


def test_what_was_accepted_is_answered_after_sigterm(exported: Path) -> None:
    text = "one cat sat on two mats.\n" * 400
    answers: list[object] = []

    def ask(address: str) -> None:
        try:
            answers.append(LibreTranslateAPI(address).translate(text, "en", "de", timeout=60))
        except urllib.error.URLError as error:
            answers.append(type(error.reason) if not isinstance(error, urllib.error.HTTPError) else error.code)

    with serving(exported, *SLOWLY) as (process, address):
        clients = [threading.Thread(target=ask, args=(address,)) for _ in range(5)]
        for client in clients:
            client.start()
        while not re.search(r"relattn_waiting_sentences [1-9]", metrics(address)):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        for client in clients:
            client.join(60)
        _, log = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert all(line.startswith("{") for line in log.splitlines())
    said = [answer for answer in answers if isinstance(answer, str)]
    assert len(answers) == 5
    assert said
    assert len(set(said)) == 1
    assert {answer for answer in answers if not isinstance(answer, str)} <= {ConnectionRefusedError}


@pytest.mark.whole
def test_clients_that_are_slow_or_hang_up_hold_nobody(exported: Path) -> None:
    with (
        serving(exported, "--limits.seconds", "1") as (_, address),
        ExitStack() as sockets,
    ):
        port = int(address.rstrip("/").rpartition(":")[2])
        head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        slow = [sockets.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(20)]
        for one in slow:
            one.sendall(head)
        with socket.create_connection(("127.0.0.1", port)) as gone:
            gone.sendall(head)
        client = LibreTranslateAPI(address)
        assert isinstance(client.translate("one", "en", "de", timeout=30), str)
        for one in slow:
            one.settimeout(30)
            assert b" 408 " in one.recv(200)


def test_nothing_is_translated_for_a_client_that_has_gone(exported: Path) -> None:
    with serving(exported, *SLOWLY) as (_, address):
        port = int(address.rstrip("/").rpartition(":")[2])
        body = json.dumps({"q": "one cat sat on two mats.\n" * 400, "source": "en", "target": "de"}).encode()
        head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", port)) as gone:
            gone.sendall(head + body)
            while not re.search(r"relattn_waiting_sentences [1-9]", metrics(address)):
                time.sleep(0.01)
        while "relattn_waiting_sentences 0.0" not in metrics(address):
            time.sleep(0.01)
        told = metrics(address)
        assert 'relattn_requests_total{route="/translate",status="499"} 1.0' in told
        assert float(re.findall(r"relattn_batch_sentences_sum ([\d.]+)", told)[0]) < 400


def test_mistakes_are_said_before_anything_is_served(
    finished: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(Path(finished.out) / "bundle")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, message in (
            ([path, "--port", port], "cannot listen on 127.0.0.1, port"),
            ([path, "--port", "70000"], "port must be"),
            ([path, "--host", "no such host"], "cannot listen on no such host"),
            ([path, path], "one model per language pair"),
            ([path, "--keys", str(tmp_path / "none")], "cannot be read"),
            ([path, "--pivot", "fr"], "pivot must be"),
            ([path, "--limits.waiting", "0"], "waiting must be at least 1"),
            ([path, "--limits.sentences", "9999"], "sentences must be at most"),
            ([str(tmp_path)], str(tmp_path)),
        ):
            assert cli.main(["serve", *arguments]) == 2
            error = capsys.readouterr().err
            assert message in error
            assert error.count("\n") == 1
