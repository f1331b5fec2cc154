"""A bundle on a hub: what was pushed is what is loaded, once fetched without a network too; a failure is one line.

The hub is the one of `loopback.py`.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
import yaml
from huggingface_hub import constants

import relattn
import relattn.translation
from relattn.translation import bundle, hub
from relattn.translation.commands import main as cli
from relattn.translation.config import DataConfig, ModelConfig, Recipe, SearchConfig
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError
from relattn.translation.formats.import_model import import_model
from relattn.translation.model.transformer import Transformer
from relattn.translation.translate.options import TranslateOptions
from tests.translation.loopback import Hub, Repository, files_no_larger_than

LINES = ["one apple and two pears", "zwei Birnen und ein Apfel", "17 apples, 4 pears", "17 Äpfel, 4 Birnen"]
FILES = ["README.md", "config.yaml", "model.safetensors", "tokenizer.model"]
LOG_IN = "to log in: `hf auth login`, or set HF_TOKEN"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a bundle with random weights. Read it, do not write to it."""
    path = tmp_path_factory.mktemp("hub") / "bundle"
    torch.manual_seed(1)
    tokenizer = Tokenizer.train(LINES * 5, 300, seed=1)
    recipe = Recipe(
        model=ModelConfig(dim=12, heads=3, feed_forward_dim=20, encoder_layers=1, decoder_layers=1, clip=3),
        data=DataConfig(src_lang="no", tgt_lang="pt_BR"),  # a language that YAML reads as false, and a locale
        search=SearchConfig(beam_size=2, max_length_ratio=1.25, max_length_extra=2),
    )
    bundle.save(
        path, model=Transformer(recipe.model, tokenizer.vocab_size), recipe=recipe, tokenizer=tokenizer, card="# Über\n"
    )
    return path


@pytest.fixture
def held(server: Hub, model: Path) -> Hub:
    """The hub, with the bundle as org/name, and files beside it."""
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    server.repositories["org/name"] = Repository()
    server.repositories["org/name"].commit({**files, "run.py": b"raise SystemExit", "pytorch_model.bin": b"pickle"})
    return server


def refusal(call: Callable[..., object], *arguments: object, **named: object) -> str:
    with pytest.raises(InputError) as error:
        call(*arguments, **named)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def downloads(hub: Hub) -> list[str]:
    return sorted(path.split("/")[-1] for path in hub.asked if path.startswith("GET /org/name/resolve/"))


# Loading


def test_what_is_pushed_is_what_is_loaded(server, model):
    assert hub.push(model, "org/name", license="mit") == f"{server.url}/org/name"
    here, there = relattn.translation.load(model), relattn.translation.load("org/name")
    theirs = there.model.state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in here.model.state_dict().items())
    assert there.n_best(LINES, TranslateOptions(n_best=2)) == here.n_best(LINES, TranslateOptions(n_best=2))


def test_an_imported_bundle_comes_with_all_its_tokenizers_files(server, tmp_path):
    fixtures = Path(__file__).parent / "formats" / "fixtures"
    import_model(
        fixtures / "opennmt_py.pt", tmp_path / "bundle", tokenizer=fixtures / "sentencepiece.model", tgt_tokenizer=None,
        src_lang="en", tgt_lang="de", sample=1,
    )  # fmt: skip
    hub.push(tmp_path / "bundle", "org/name")
    here, there = relattn.translation.load(tmp_path / "bundle"), relattn.translation.load("org/name")
    assert there.tokenizer.digest == here.tokenizer.digest
    assert there.n_best(LINES, TranslateOptions(n_best=2)) == here.n_best(LINES, TranslateOptions(n_best=2))
    names = ["config.yaml", "model.safetensors", "tokenizer.model", "tokenizer.target.model", "vocabulary.json"]
    assert sorted(path.name for path in hub.resolve("org/name").iterdir()) == names


def test_only_the_files_of_a_bundle_are_fetched(held):
    folder = hub.resolve("org/name")
    needed = ["config.yaml", "model.safetensors", "tokenizer.model"]
    assert downloads(held) == sorted(path.name for path in folder.iterdir()) == needed


def test_what_is_there_is_not_fetched_again(held):
    hub.resolve("org/name")
    held.asked.clear()
    hub.resolve("org/name")
    assert held.asked == ["GET /api/models/org/name"]


def test_a_newer_commit_is_fetched_and_an_older_one_can_be_named(held, model):
    repository = held.repositories["org/name"]
    first = repository.branches["v1.0"] = repository.branches["main"]
    hub.resolve("org/name")
    repository.branches["refs/pr/1"] = repository.commit({"config.yaml": b"format: second"})
    repository.commit({"config.yaml": b"format: third"})
    for name, content in (
        ("org/name", b"format: third"),
        ("org/name@main", b"format: third"),
        ("org/name@refs/pr/1", b"format: second"),
        ("org/name@v1.0", (model / "config.yaml").read_bytes()),
        (f"org/name@{first}", (model / "config.yaml").read_bytes()),
    ):
        assert (hub.resolve(name) / "config.yaml").read_bytes() == content


def test_a_directory_here_wins(held, model, tmp_path, monkeypatch):
    shutil.copytree(model, tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert hub.resolve("org/name") == Path("org/name")
    assert relattn.translation.load("org/name").translate([""]) == [""]
    assert held.asked == []


@pytest.mark.parametrize(
    "path", ["name", "a/b/c", "/org/name", "./name", "../name", "org/", "org/na me", "org/näme", "org/name@"]
)
def test_what_is_no_name_is_not_asked_for(held, path):
    assert refusal(relattn.translation.load, path) == f"{Path(path)}: no such directory; a bundle is a directory"
    assert held.asked == []


def test_a_file_is_not_taken_for_a_name(held, tmp_path, monkeypatch):
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").touch()
    monkeypatch.chdir(tmp_path)
    assert refusal(relattn.translation.load, "org/name") == "org/name: no such directory; a bundle is a directory"
    assert held.asked == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gone", ["offline", "refused", "broken"])
def test_what_was_fetched_loads_with_the_hub_out_of_reach(held, model, monkeypatch, caplog, gone):
    hub.resolve("org/name")
    go_away(held, monkeypatch, gone)
    assert relattn.translation.load("org/name").translate(LINES) == relattn.translation.load(model).translate(LINES)
    assert not caplog.records


def go_away(server: Hub, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif how == "refused":
        huggingface_hub.close_session()
        server.socket.close()
    else:
        server.failing["/"] = 500


@pytest.mark.parametrize(
    ("gone", "why"),
    [
        (
            "offline",
            "Cannot reach {}/api/models/org/name: offline mode is enabled. "
            "To disable it, please unset the `HF_HUB_OFFLINE` environment variable.",
        ),
        ("refused", "[Errno 111] Connection refused"),
        ("broken", "as the test wants it"),
    ],
)
def test_a_hub_out_of_reach_is_said(held, monkeypatch, gone, why):
    go_away(held, monkeypatch, gone)
    assert refusal(hub.resolve, "org/name") == (
        f"org/name: no such directory here, and from the hub: not in the cache, and {why.format(held.url)}"
    )


def test_a_model_that_is_not_there_is_said(held):
    assert refusal(hub.resolve, "org/other") == (
        f"org/other: no such directory here, and from the hub: no such model, or a private one; {LOG_IN}"
    )
    assert refusal(hub.resolve, "org/name@v9") == (
        "org/name@v9: no such directory here, and from the hub: the model has no such revision"
    )


def test_a_model_one_has_to_ask_for_is_said(held):
    held.gated = True
    assert refusal(hub.resolve, "org/name").endswith(f"from the hub: Access to model org/name is restricted; {LOG_IN}")


def test_a_private_model_is_for_those_who_may(held, monkeypatch):
    held.repositories["org/name"].private = True
    assert hub.resolve("org/name").is_dir()
    monkeypatch.delenv("HF_TOKEN")
    held.repositories["org/private"] = Repository(private=True)
    assert refusal(hub.resolve, "org/private").endswith(f"no such model, or a private one; {LOG_IN}")


def test_a_token_that_will_not_do_is_said(held):
    held.failing["/api/models/"] = 401
    assert refusal(hub.resolve, "org/name").endswith(f"from the hub: as the test wants it; {LOG_IN}")


@pytest.mark.parametrize("name", ["config.yaml", "model.safetensors", "tokenizer.model"])
def test_a_repository_without_a_bundle_is_said(held, model, name):
    files = {path.name: path.read_bytes() for path in model.iterdir() if path.name != name}
    held.repositories["org/part"] = Repository()
    held.repositories["org/part"].commit(files)
    assert refusal(hub.resolve, "org/part") == (
        f"org/part: no such directory here, and from the hub: not a complete bundle: it has no {name}"
    )
    assert name == "model.safetensors" or not any("model.safetensors" in asked for asked in held.asked)


def test_what_is_fetched_is_checked_as_any_bundle(held):
    repository = held.repositories["org/name"]
    repository.commit({"model.safetensors": b"!python/object"})
    said = refusal(relattn.translation.load, "org/name")
    assert "model.safetensors: truncated, damaged, or not a safetensors file" in said


def test_a_transfer_that_is_cut_off_leaves_nothing_behind(held, model, monkeypatch, tmp_path, caplog):
    held.cuts["model.safetensors"] = 1000
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the attempts of huggingface_hub
    said = refusal(hub.resolve, "org/name")
    assert said.startswith("org/name: no such directory here, and from the hub: peer closed connection")
    assert not caplog.records
    assert not list((tmp_path / "cache").rglob("model.safetensors"))
    with monkeypatch.context() as patch:
        go_away(held, patch, "offline")
        assert "from the hub: not in the cache, and Cannot reach" in refusal(hub.resolve, "org/name")
    held.cuts.clear()
    assert relattn.translation.load("org/name").translate(LINES) == relattn.translation.load(model).translate(LINES)


def test_a_disk_that_is_full_is_said(held, model, tmp_path):
    with files_no_larger_than((model / "tokenizer.model").stat().st_size - 1):
        said = refusal(hub.resolve, "org/name")
    assert said == "org/name: no such directory here, and from the hub: [Errno 27] File too large"
    assert not list((tmp_path / "cache").rglob("*.incomplete"))
    assert relattn.translation.load("org/name").translate([""]) == [""]


@pytest.mark.filterwarnings("default")
def test_a_disk_that_will_not_do_is_said_beforehand(held, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    assert "from the hub: Not enough free disk space to download the file." in refusal(hub.resolve, "org/name")


def test_nothing_about_the_system_is_told(held, model, caplog):
    caplog.set_level(logging.INFO, logger="huggingface_hub")
    hub.resolve("org/name")
    hub.push(model, "org/new")
    python = ".".join(map(str, sys.version_info[:3]))
    assert held.agents == {f"relattn/{relattn.__version__}; hf_hub/{huggingface_hub.__version__}; python/{python}"}
    assert {asked.split("/")[-1] for asked in held.asked if "/org/" not in asked} == {"validate-yaml", "create"}
    assert constants.HF_HUB_DISABLE_TELEMETRY is False  # as the caller had it
    assert logging.getLogger("huggingface_hub").level == logging.INFO


def test_without_huggingface_hub_its_extra_is_named(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert refusal(hub.resolve, "org/name") == (
        'org/name: no such directory here, and from the hub: needs huggingface_hub: pip install "relattn[hub]"'
    )
    assert relattn.translation.load(model).translate([""]) == [""]


# Pushing


def test_a_push_is_one_commit_of_the_four_files(server, model, tmp_path):
    shutil.copytree(model, tmp_path / "bundle")
    (tmp_path / "bundle" / "notes.txt").write_text("for myself")
    hub.push(tmp_path / "bundle", "org/name")
    [first, files] = server.repositories["org/name"].commits.values()
    assert sorted(files.keys() - first.keys()) == FILES
    assert all(files[name] == (model / name).read_bytes() for name in set(FILES) - {"README.md"})


def test_a_push_replaces_a_bundle_and_leaves_the_rest(held, model):
    held.repositories["org/name"].commit({"config.yaml": b"old"})
    hub.push(model, "org/name")
    files = held.repositories["org/name"].commits[held.repositories["org/name"].branches["main"]]
    assert files["config.yaml"] == (model / "config.yaml").read_bytes()
    assert files["run.py"] == b"raise SystemExit"


def pushed_card(server: Hub, path: Path, **named: str) -> tuple[dict, str]:
    hub.push(path, "org/card", **named)
    files = server.repositories["org/card"].commits[server.repositories["org/card"].branches["main"]]
    _, front, body = files["README.md"].decode().split("---\n", 2)
    return yaml.safe_load(front), body


def test_the_card_begins_with_what_the_hub_reads(server, model):
    front, body = pushed_card(server, model)
    assert front == {"language": ["no", "pt"], "library_name": "relattn", "tags": ["translation"]}
    assert body == "\n# Über\n"
    assert (model / "README.md").read_text(encoding="utf-8") == "# Über\n"
    assert pushed_card(server, model, license="mit")[0]["license"] == "mit"


def test_what_a_card_says_itself_is_kept(server, model, tmp_path):
    shutil.copytree(model, tmp_path / "bundle")
    (tmp_path / "bundle" / "README.md").write_text("---\nlanguage: nb\nlicense: mit\ncolour: red\n---\n# Mine\n")
    front, body = pushed_card(server, tmp_path / "bundle")
    mine = {"language": "nb", "license": "mit", "colour": "red"}
    assert (front, body) == ({**mine, "library_name": "relattn", "tags": ["translation"]}, "# Mine\n")


def test_a_bundle_without_a_card_has_one_on_the_hub(server, model, tmp_path):
    shutil.copytree(model, tmp_path / "bundle")
    (tmp_path / "bundle" / "README.md").unlink()
    assert pushed_card(server, tmp_path / "bundle")[0]["library_name"] == "relattn"


def test_private_is_private(server, model):
    hub.push(model, "org/private", private=True)
    assert server.repositories["org/private"].private
    hub.push(model, "org/private", private=True)
    server.repositories["org/public"] = Repository()
    server.repositories["org/public"].commit({})
    assert refusal(hub.push, model, "org/public", private=True) == (
        "org/public: not pushed: it must be private, but the repository exists and is public"
    )
    assert len(server.repositories["org/public"].commits) == 1


@pytest.mark.parametrize("name", ["name", "a/b/c", "org/name@main", "./bundle"])
def test_a_name_that_is_none_is_refused(server, model, name):
    assert refusal(hub.push, model, name) == f"{name}: the name of a model on the hub must be org/name"
    assert server.asked == []


def test_a_bundle_that_does_not_load_is_not_pushed(server, model, tmp_path):
    shutil.copytree(model, tmp_path / "bundle")
    config = (tmp_path / "bundle" / "config.yaml").read_text()
    (tmp_path / "bundle" / "config.yaml").write_text(config.replace("feed_forward_dim: 20", "feed_forward_dim: 24"))
    assert "the weights do not fit the model" in refusal(hub.push, tmp_path / "bundle", "org/name")
    (tmp_path / "bundle" / "model.safetensors").unlink()
    assert "it has no model.safetensors" in refusal(hub.push, tmp_path / "bundle", "org/name")
    assert server.asked == []


def test_who_is_not_logged_in_is_told_how(server, model, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    assert refusal(hub.push, model, "org/name") == (
        "org/name: not pushed: log in first: `hf auth login`, or set HF_TOKEN"
    )
    assert server.asked == []


def test_a_push_that_is_refused_is_said(server, model, monkeypatch):
    assert refusal(hub.push, model, "org/name", license="none").startswith(
        "org/name: not pushed: Invalid metadata in README.md."
    )
    server.failing["/commit/"] = 403
    assert refusal(hub.push, model, "org/name") == f"org/name: not pushed: as the test wants it; {LOG_IN}"
    assert len(server.repositories["org/name"].commits) == 1  # as it was made
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    assert refusal(hub.push, model, "org/name") == (
        f"org/name: not pushed: Invalid credentials in Authorization header; {LOG_IN}"
    )
    go_away(server, monkeypatch, "refused")
    assert refusal(hub.push, model, "org/name") == "org/name: not pushed: [Errno 111] Connection refused"


# The command line


def test_commands_take_names(server, model, capsys, tmp_path):
    assert cli.main(["push", str(model), "org/name", "--private", "--license", "mit"]) == 0
    assert capsys.readouterr() == (f"{server.url}/org/name\n", "")
    repository = server.repositories["org/name"]
    assert repository.private
    assert b"license: mit" in repository.commits[repository.branches["main"]]["README.md"]
    for side in ("src", "ref"):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in LINES))
    given = ["--src", str(tmp_path / "src"), "--ref", str(tmp_path / "ref"), "--out"]
    assert cli.main(["evaluate", "org/name", *given, str(tmp_path / "there")]) == 0
    assert cli.main(["evaluate", str(model), *given, str(tmp_path / "here")]) == 0
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
    assert cli.main(["evaluate", "org/name", "--builtin", "test", "--lines", "1"]) == 0
    capsys.readouterr()
    assert cli.main(["translate", "org/other"]) == 2
    said = f"org/other: no such directory here, and from the hub: no such model, or a private one; {LOG_IN}"
    assert capsys.readouterr() == ("", f"relattn: error: {said}\n")
    assert cli.main(["push", str(model), "name"]) == 2
