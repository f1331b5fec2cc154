"""`relattn_mt.load`: bundles, exports for CTranslate2 and names on the hub."""

import shutil
import subprocess
import sys

import pytest
import relattn_mt
import torch
from relattn_mt import bundle
from relattn_mt.formats.ctranslate2.write import export
from relattn_mt.support.errors import InputError
from relattn_mt.translate.options import TranslateOptions

from tests.support.foreign_bundles import LINES, make_bundle
from tests.support.loopback import Hub, Repository


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("load") / "bundle").path


def test_load_a_bundle_and_a_name_on_the_hub(server: Hub, saved, tmp_path):
    server.repositories["org/name"] = Repository()
    server.repositories["org/name"].commit({path.name: path.read_bytes() for path in saved.iterdir()})
    export(make_bundle(saved), tmp_path / "export", quantization="float32", sample=LINES[:1])
    state = torch.get_rng_state()
    local, hub = (relattn_mt.load(path) for path in (saved, "org/name"))
    assert torch.equal(torch.get_rng_state(), state)
    expected = local.n_best(["", *LINES], TranslateOptions(n_best=2))
    assert hub.n_best(["", *LINES], TranslateOptions(n_best=2)) == expected
    for call, fact in (
        (lambda: relattn_mt.load(tmp_path / "export"), "relattn-mt import"),
        (lambda: relattn_mt.load(saved, precision="bf16"), "bf16 requires a GPU"),
        (lambda: relattn_mt.load(saved, threads=0), "threads"),
        (lambda: relattn_mt.load(saved, device="meta"), "meta"),
    ):
        with pytest.raises(InputError, match=fact):
            call()


def test_the_model_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    forth, back = (relattn_mt.load("everyday-en-de", tgt_lang=language) for language in ("", "en"))
    assert forth.translate(["Where is the nearest station?"]) == ["Wo ist der nächste Bahnhof?"]
    assert back.translate(["Mein Haus steht auf einem Hügel."]) == ["My house is on a hill."]
    assert all(forth.translate(forth.examples))
    assert (bundle.PACKAGED / "everyday-en-de" / "model.safetensors").stat().st_size < 12e6
    (tmp_path / "everyday-en-de").mkdir()  # a directory takes precedence
    with pytest.raises(InputError, match=r"bundle\.json"):
        relattn_mt.load("everyday-en-de")


FORKS = """
import os, signal, sys, torch
from torch.utils.data import DataLoader
from relattn_mt import load

def translate(*_):
    return [translator.translate(lines) for lines in (LINES, LINES[:1])]

LINES = [f"{'one cat ' * (i % 5)}sat on two mat {i}" for i in range(9)]
translator = load(sys.argv[1], threads=2)
want = translate()
torch.ones(1 << 20).exp()  # on PyTorch's own threads
for _ in range(2):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(translate() != want)
    assert translate() == want
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
workers = DataLoader(range(3), None, num_workers=2, multiprocessing_context="fork", collate_fn=translate, timeout=60)
assert list(workers) == [want] * 3
"""


def test_the_parent_and_the_children_of_a_fork_translate(model):
    """As servers that fork their workers do, and the workers of a DataLoader."""
    subprocess.run([sys.executable, "-c", FORKS, model], check=True, timeout=200)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("widget:\n- text: one apple\n- {text: 'two: \"pears\"', example_title: fruit}", ["one apple", 'two: "pears"']),
        ("widget:\n- src: a.png\n- text: [1]\n- text: ' '\n- two", []),
        ("widget: one", []),
        ("widget: [", []),
        ("license: !!bool x\ndate: !!timestamp x\nnumber: !!int ''\nwidget: [text: one]", ["one"]),
        ("- widget", []),
        ("language: en", []),
    ],
)
def test_examples_come_from_the_card(saved, tmp_path, metadata, expected):
    shutil.copytree(saved, tmp_path / "bundle")
    (tmp_path / "bundle" / "README.md").write_text(f"---\n{metadata}\n---\n\n# A model\n", encoding="utf-8")
    translator = relattn_mt.load(tmp_path / "bundle")
    assert list(translator.examples) == expected
