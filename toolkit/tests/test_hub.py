"""Bundles on a hub: the loopback server of `loopback.py`."""

import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import relattn_mt
from huggingface_hub import constants
from relattn_mt import hub, load
from relattn_mt.support.errors import InputError

from tests.support import transformers_models as models
from tests.support.bundles import LINES, save_random_bundle
from tests.support.commands import assert_refused
from tests.support.loopback import Hub, Repository, files_no_larger_than

NEEDED = ["bundle.json", "model.safetensors", "tokenizer.model"]
LOG_IN = "`hf auth login`"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a bundle, from a language that YAML reads as false into a locale. Read it, do not write to it."""
    path = tmp_path_factory.mktemp("hub") / "bundle"
    return save_random_bundle(path, src_lang="no", tgt_lang="pt_BR", card="# Über\n")


@pytest.fixture
def held(server: Hub, model: Path) -> Hub:
    """The hub with the bundle as org/name, and other files in the same repository."""
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    server.repositories["org/name"] = Repository()
    server.repositories["org/name"].commit({**files, "run.py": b"raise SystemExit", "pytorch_model.bin": b"pickle"})
    return server


def refusal(call: Callable[..., object], *arguments: object, **named: object) -> str:
    with pytest.raises(InputError) as error:
        call(*arguments, **named)
    assert len(str(error.value).splitlines()) == 1
    assert str(error.value).startswith(str(arguments[-1]))
    return str(error.value)


def disconnect(server: Hub, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif how == "refused":
        huggingface_hub.close_session()
        server.socket.close()
    else:
        server.failing["/"] = 500


def test_newest_or_named_revision_is_fetched_once(held, model):
    folder = hub.resolve("org/name")
    assert sorted(path.name for path in folder.iterdir()) == NEEDED
    fetched = [path for path in held.asked if path.startswith("GET /org/name/resolve/")]
    assert sorted(path.rpartition("/")[2] for path in fetched) == NEEDED
    held.asked.clear()
    assert hub.resolve("org/name") == folder
    assert held.asked == ["GET /api/models/org/name"]
    repository = held.repositories["org/name"]
    first = repository.branches["v1.0"] = repository.branches["main"]
    repository.branches["refs/pr/1"] = repository.commit({"bundle.json": b'{"format": "second"}'})
    repository.commit({"bundle.json": b'{"format": "third"}'})
    revisions = ("", "@main", "@refs/pr/1", "@v1.0", f"@{first}")
    contents = [(hub.resolve(f"org/name{revision}") / "bundle.json").read_bytes() for revision in revisions]
    old = (model / "bundle.json").read_bytes()
    assert contents == [b'{"format": "third"}', b'{"format": "third"}', b'{"format": "second"}', old, old]


def test_local_directory_takes_precedence(held, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model, "org/name")
    assert hub.resolve("org/name") == Path("org/name")
    Path("org/file").touch()
    names = ["org/file", "name", "a/b/c", "/org/name", "../name", "org/na me", "org/näme", "org/name@"]
    for name in names:  # files, and what is not a name on the hub
        assert "no such directory" in refusal(load, Path(name))
    assert held.asked == []


@pytest.mark.parametrize(
    ("how", "reason"),
    [("offline", "offline mode is enabled"), ("refused", "Connection refused"), ("broken", "as the test wants it")],
)
def test_hub_that_cannot_be_reached(held, model, monkeypatch, caplog, how, reason):
    """A model in the cache loads without the hub."""
    with monkeypatch.context() as patch:
        disconnect(held, patch, "offline")
        assert "not in the cache" in refusal(hub.resolve, "org/name")
    hub.resolve("org/name")
    disconnect(held, monkeypatch, how)
    assert load("org/name").translate(LINES) == load(model).translate(LINES)
    assert reason in refusal(hub.resolve, "org/other")
    assert not caplog.records


def test_model_that_the_hub_does_not_give(held, model, monkeypatch):
    assert hub.resolve("org/name").is_dir()
    assert "no such model" in refusal(hub.resolve, "org/other")
    assert "no such revision" in refusal(hub.resolve, "org/name@v9")
    held.repositories["org/name"].commit({"model.safetensors": b"!python/object"})
    with pytest.raises(InputError, match="not a safetensors file"):  # checked as any bundle
        load("org/name")
    for name in NEEDED:
        files = {path.name: path.read_bytes() for path in model.iterdir() if path.name != name}
        held.repositories[f"org/no-{name}"] = Repository()
        held.repositories[f"org/no-{name}"].commit(files)
        assert f"not a complete bundle: it has no {name}" in refusal(hub.resolve, f"org/no-{name}")
    assert "GET /org/no-bundle.json/resolve/main/model.safetensors" not in held.asked
    held.repositories["org/name"].private = True
    assert hub.resolve("org/name").is_dir()
    monkeypatch.delenv("HF_TOKEN")
    held.repositories["org/private"] = Repository(private=True)
    refusals = [refusal(hub.resolve, "org/private")]
    held.repositories["org/name"].private, held.gated = False, True
    refusals.append(refusal(hub.resolve, "org/name"))
    held.failing["/api/models/"] = 401
    refusals.append(refusal(hub.resolve, "org/name"))
    assert all(LOG_IN in each for each in refusals)
    assert ["no such model" in each for each in refusals] == [True, False, False]


@pytest.mark.filterwarnings("default")
def test_failed_download_leaves_no_file(held, model, monkeypatch, tmp_path, caplog):
    """A cut connection, and a disk that is full, or about to be."""
    held.cuts["model.safetensors"] = 1000
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the attempts of huggingface_hub
    assert "peer closed connection" in refusal(hub.resolve, "org/name")
    assert not caplog.records
    held.cuts.clear()
    with files_no_larger_than((model / "model.safetensors").stat().st_size - 1):
        assert "File too large" in refusal(hub.resolve, "org/name")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
        assert "Not enough free disk space" in refusal(hub.resolve, "org/name")
    assert not [*(tmp_path / "cache").rglob("model.safetensors"), *(tmp_path / "cache").rglob("*.incomplete")]
    assert load("org/name").translate(LINES) == load(model).translate(LINES)


def test_requests_say_nothing_about_the_system(held, caplog):
    caplog.set_level(logging.INFO, logger="huggingface_hub")
    hub.resolve("org/name")
    python = ".".join(map(str, sys.version_info[:3]))
    ours = f"relattn-mt/{relattn_mt.__version__}"
    assert held.agents == {f"{ours}; hf_hub/{huggingface_hub.__version__}; python/{python}"}
    assert all("/org/" in asked for asked in held.asked)
    assert constants.HF_HUB_DISABLE_TELEMETRY is False  # as the caller had it
    assert logging.getLogger("huggingface_hub").level == logging.INFO


def test_missing_huggingface_hub(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert '"./toolkit[hub]"' in refusal(hub.resolve, "org/name")
    assert load(model).translate([""]) == [""]


def test_a_model_of_transformers_is_imported(relattn, server, tmp_path):
    """Only files that the import reads are fetched, settings before weights, and weights in one format."""
    models.marian(tmp_path / "model")
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    extra = {"modeling_custom.py": b"raise SystemExit", "pytorch_model.bin": b"pickle", "tf_model.h5": b"large"}
    server.repositories["org/opus"] = Repository()
    server.repositories["org/opus"].commit({**files, **extra})
    assert relattn("import", "org/opus", "--out", tmp_path / "out").code == 0
    fetched = [path.rpartition("/")[2] for path in server.asked if path.startswith("GET /org/opus/resolve/")]
    assert {*fetched} == {*files}
    assert fetched[-1] == "model.safetensors"
    assert load(tmp_path / "out").translate(LINES)
    config = json.loads(files["config.json"])
    for name, changed, fact in (
        ("bart", {"config.json": json.dumps({**config, "model_type": "bart"}).encode()}, "model_type must be marian"),
        ("bare", {"model.safetensors": None}, "it has no model.safetensors and no pytorch_model.bin"),
    ):
        server.repositories[f"org/{name}"] = Repository()
        content = {key: value for key, value in {**files, **changed}.items() if value is not None}
        server.repositories[f"org/{name}"].commit(content)
        server.asked.clear()
        assert_refused(relattn("import", f"org/{name}", "--out", tmp_path / "no"), fact)
        assert not any(path.endswith("safetensors") for path in server.asked)
        assert not (tmp_path / "no").exists()
