"""The process of a server: start, a published client of LibreTranslate's API, and an end under load."""

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
import urllib.error
import urllib.parse
import urllib.request
import venv
from contextlib import closing
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml
from libretranslatepy import LibreTranslateAPI
from prometheus_client import generate_latest
from relattn_mt import load
from relattn_mt.commands import main as cli
from relattn_mt.serve import routing, server
from relattn_mt.serve.limits import Limits
from relattn_mt.serve.metrics import Metrics
from relattn_mt.support.errors import EXTRAS
from starlette.testclient import TestClient

from tests.support.bundles import save_random_bundle

ROOT = Path(__file__).parents[3]
LISTED = dict(
    line.split("==")
    for line in (ROOT / "deploy" / "requirements.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_bundle(tmp_path_factory.mktemp("serve") / "bundle")


def post(address: str, **parameters: str) -> Any:
    body = json.dumps({"source": "en", "target": "de", **parameters}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=60))


def test_packages_of_the_extra_and_of_the_container(monkeypatch, capsys):
    for missing in (*EXTRAS["serve"], *EXTRAS["documents"]):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            assert cli.main(["serve", "everyday-en-de"]) == 2
        assert f'{missing} cannot be imported: pip install "./toolkit[serve]"' in capsys.readouterr().err
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()[1:])
    assert {name: pinned.get(name) for name in LISTED} == LISTED
    assert "torch" not in LISTED


def test_manifest_for_kubernetes_fits_the_server(monkeypatch, capsys):
    monkeypatch.setattr("torch.set_num_threads", [].append)
    deployment, _, autoscaler = yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert cli.main(["serve", "no such model", *container["args"]]) == 2
    assert "no such model" in capsys.readouterr().err
    (metric,) = autoscaler["spec"]["metrics"]
    assert f"\n{metric['pods']['metric']['name']} " in generate_latest(Metrics(Limits()).registry).decode()
    _, pause = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > int(pause) + Limits().seconds + 1


@pytest.fixture
def clean(tmp_path: Path) -> str:
    """Path of a Python that has the packages of the container, and no others."""
    venv.create(tmp_path, with_pip=False, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(tmp_path), "platbase": str(tmp_path)}))
    (packages / "relattn").symlink_to(ROOT / "library/src/relattn")
    (packages / "relattn_mt").symlink_to(ROOT / "toolkit/src/relattn_mt")
    for name in LISTED:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            if not (packages / top).is_symlink():
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
    return str(tmp_path / "bin" / "python")


def test_a_bundle_is_served_without_pytorch_until_a_signal(model, clean):
    """Requests that were accepted before the signal are answered. A file ends with an error.

    SIGHUP becomes SIGTERM in the server, so both are tested.
    """
    options = ["--port", "0", "--threads", "1", "--limits.batch", "1"]
    command = [clean, "-I", "-m", "relattn_mt", "serve", str(model), *options]
    began = datetime.now(UTC)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            found = re.fullmatch(r"en to de: (http://127\.0\.0\.1:\d+/)\n", process.stdout.readline())
            assert found, process.communicate()[1]
            answers = use_and_stop(process, found[1], load(model).translate(["one apple"])[0])
            _, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    rows = [json.loads(line) for line in log.splitlines()]
    assert [row["route"] for row in rows[:4]] == ["/translate", "/detect", "/languages", "/words"]
    assert [row["client"] for row in rows] == ["127.0.0.1"] * 4 + ["203.0.113.7"] + ["127.0.0.1"] * (len(rows) - 5)
    assert {row["level"] for row in rows} == {"info"}
    times = [datetime.fromisoformat(row["time"]) for row in rows]
    assert began <= times[0] <= times[-1] <= datetime.now(UTC)
    assert "apple" not in log
    assert len(answers) == 4
    assert len(set(answers)) == 1


def use_and_stop(process: subprocess.Popen[str], address: str, expected: str) -> list[str]:
    """Send some requests, and then a signal under load. Return the answers to the requests under load."""
    client = LibreTranslateAPI(address)
    assert client.translate("one apple", "en", "de") == expected
    assert client.detect("This is plain English text.")[0]["language"] == "en"
    assert [each["code"] for each in client.languages()] == ["de", "en"]
    words = post(f"{address}words", q="one apple")["words"]
    assert "".join(word["text"] for word in words) == expected
    headers = {"X-Forwarded-For": "203.0.113.7, 127.0.0.1"}
    urllib.request.urlopen(urllib.request.Request(f"{address}languages", headers=headers), timeout=60).close()
    html = post(f"{address}translate", q="<p>one <b>pear</b></p>", format="html")["translatedText"]
    assert re.fullmatch(r"<p>[^<>]*<b>[^<>]*</b></p>", html)
    text, answers = "one apple on two pears.\n" * 190, list[str]()

    def ask() -> None:
        answers.append(client.translate(text, "en", "de", timeout=60))

    closed = list[str | None]()

    def ask_on_a_connection_that_stays_open() -> None:
        body = json.dumps({"q": text, "source": "en", "target": "de"})
        with closing(http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc, timeout=60)) as connection:
            connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
            closed.append(connection.getresponse().getheader("connection"))

    ends = list[Any]()

    def translate_a_long_file() -> None:
        head = "Content-Disposition: form-data; name="
        fields = {"source": "en", "target": "de", "progress": "true", 'file"; filename="a.txt': text * 50}
        body = "".join(f'--x\r\n{head}"{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()) + "--x--\r\n"
        form = {"Content-Type": "multipart/form-data; boundary=x"}
        request = urllib.request.Request(f"{address}translate_file", body.encode(), form)
        with urllib.request.urlopen(request, timeout=60) as answer:
            ends.append(json.loads(answer.readline()))
            ends.append(json.loads(answer.read().splitlines()[-1]))

    file = threading.Thread(target=translate_a_long_file)
    file.start()
    while not ends:
        time.sleep(0.01)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    threads.append(threading.Thread(target=ask_on_a_connection_that_stays_open))
    before = characters(address)
    for thread in threads:
        thread.start()
    while characters(address) < before + 5 * len(text):  # until all are accepted
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    for thread in (file, *threads):
        thread.join(60)
    assert closed == ["close"]
    assert [list(each) for each in ends] == [["progress"], ["error"]]  # nobody could download it
    return answers


def characters(address: str) -> float:
    """Return the number of characters that a server was asked to translate."""
    metrics = urllib.request.urlopen(f"{address}metrics", timeout=60).read().decode()
    return float(re.findall(r"^relattn_characters_total (\S+)", metrics, re.MULTILINE)[0])


def test_socket_of_a_server(model, monkeypatch, capsys):
    """Small responses are sent without delay. The printed address has brackets for IPv6."""
    ran: list[socket.socket] = []
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(uvicorn.Server, "run", lambda _, sockets: ran.extend(each.dup() for each in sockets))
    assert cli.main(["serve", str(model), "--host", "::1", "--port", "0"]) == 0
    with ran[0] as listener:
        assert capsys.readouterr().out == f"en to de: http://[::1]:{listener.getsockname()[1]}/\n"
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


WRONG_ORIGINS = ("https://example.org/", "example.org", "https://Example.org", "http://example.org:80", "null")


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ("", 403),
        ("--host ::1", 403),
        ("--hosts my-server example.org", 200),
        ("--hosts *", 200),
        ("--host 0.0.0.0", 200),
        ("--host 0.0.0.0 --hosts my-server", 403),
    ],
)
def test_names_that_requests_may_have(model, monkeypatch, options, status):
    statuses: list[int] = []

    def ask(server: uvicorn.Server, sockets: object) -> None:
        client = TestClient(server.config.app)  # type: ignore[arg-type]
        statuses.extend(
            client.get("/languages", headers={"Host": f"{name}:5000"}).status_code for name in ("example.org", "[::1]")
        )

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(uvicorn.Server, "run", ask)
    assert cli.main(["serve", str(model), "--port", "0", *options.split()]) == 0
    assert statuses == [status, 200]


def test_errors_before_a_server_starts(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for arguments, message in (
            (f"{{model}} --port {taken.getsockname()[1]}", "cannot listen on 127.0.0.1, port"),
            ("{model} --port 70000", "port must be"),
            ("{model} --host=", "host must be an address to listen on"),
            ("{model} --host no.such.host.invalid", "cannot listen on no.such.host.invalid"),
            ("{model} {model}", "one model per language pair"),
            ("{model} --keys {tmp_path}/none", "none: no such file"),
            ("{model} --hosts http://example.org", "hosts must be names such as"),
            ("{model} --hosts example.org:5000", "got 'example.org:5000'"),
            *((f"{{model}} --cors {each}", f"or *, got '{each}'") for each in WRONG_ORIGINS),
            *((f"{{model}} --proxies {each}", f"or only *, got '{each}'") for each in ("nginx", "10.0.0.1/8")),
            ("{model} --proxies ::1 *", "or only *, got '*'"),
            ("{model} --pivot fr", "pivot must be"),
            ("{model} --limits.waiting 0", "waiting must be in [1, 1e10]"),
            ("{model} --limits.sentences 9999", "sentences must be at most"),
            ("{model} --limits.pause 2000", "pause must be"),
            ("{model} --limits.seconds 0", "seconds must be"),
            ("{tmp_path}", f"{tmp_path}"),
            ("{tmp_path}/none", "no such directory"),
        ):
            given = [each.format(model=model, tmp_path=tmp_path) for each in arguments.split()]
            port = [] if "--port" in arguments else ["--port", "0"]
            assert cli.main(["serve", *given, *port]) == 2
            error = capsys.readouterr().err
            assert message in error
            assert error.count("\n") == 1


def test_environment_variables_set_options(model, monkeypatch, capsys):
    served: dict[str, Any] = {}
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(server, "serve", lambda _, **options: served.update(options))
    monkeypatch.setattr(
        routing, "Router", lambda translators, limits, **_: served.update(made=translators, limits=limits)
    )
    for name, value in {
        "PORT": "80", "HOST": "0.0.0.0", "HOSTS": '["a.org", "b.org"]', "PROXIES": "10.89.61.0/24", "LIMITS__FILE": "7",
        "BEAM_SIZE": "3", "KEYS": "", "QUIET": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"RELATTN_MT_SERVE_{name}", value)
    assert cli.main(["serve", "--host", "::1", "--", str(model)]) == 0
    assert (served["host"], served["port"], served["hosts"]) == ("::1", 80, ["a.org", "b.org"])
    assert (served["proxies"], served["limits"].file, served["keys"]) == (["10.89.61.0/24"], 7, None)
    assert {translator.search.beam_size for translator in served["made"].values()} == {3}
    monkeypatch.setenv("RELATTN_MT_SERVE_PROT", "80")
    assert cli.main(["serve", str(model)]) == 2
    assert "RELATTN_MT_SERVE_PROT" in capsys.readouterr().err
    monkeypatch.delenv("RELATTN_MT_SERVE_PROT")
    monkeypatch.setenv("RELATTN_MT_SERVE_PORT", "x")
    assert cli.main(["serve", str(model)]) == 2
    assert "--port must be a whole number, got 'x'" in capsys.readouterr().err
