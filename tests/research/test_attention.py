"""Attention of a model over a sentence: the terms of its scores, and the data of them."""

import http.client
import json
import re
import threading
from pathlib import Path

import pytest
import torch
from relattn_mt.config import SCHEMES, ModelConfig
from relattn_mt.support.errors import InputError
from relattn_mt.translate.translator import Translator

from research import attention_page as page
from research.__main__ import main
from research.attention import as_json, inspect, shows_terms, view
from tests.support.commands import Result, assert_refused
from tests.support.foreign_bundles import make_bundle
from tests.support.schemes import VARIANTS, config_of

MODELS: dict[str, dict] = {name: options for name, options in VARIANTS.items() if shows_terms(config_of(name))}
MODELS["asymmetric tables per head"] = {"clip": 2, "clip_right": 1, "tables_per_head": True}


@pytest.fixture
def translator(tmp_path: Path) -> Translator:
    return make_bundle(tmp_path / "bundle", clip=2).torch_translator()


@pytest.mark.filterwarnings("ignore:(positions. none|clip. 0):UserWarning")
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_weights_are_those_of_the_layer(tmp_path: Path, options: dict) -> None:
    """Attending with them gives the output of the layer."""
    model = make_bundle(tmp_path / "bundle", **options).make_model().eval()
    for layer in (model.encoder[0].self_attention, model.decoder[0].self_attention):  # the second is causal
        x = torch.randn(1, 9, 12)
        found = view(layer, x, model.config.position_spec.mixer)
        heads = (layer.num_heads, layer.head_dim)
        value = layer.value(x).unflatten(-1, heads).transpose(1, 2)[0]
        attended = found.weights @ value
        table = getattr(layer.attention, "rel_value", None)
        if table is not None:
            left, right = layer.attention.clip
            rows = table().expand(heads[0], -1, -1)
            for i in range(9):
                for j in range(9):
                    label = max(-left, min(right, j - i)) + left
                    if label == j - i + left or layer.attention.beyond == "clip":
                        attended[:, i] += found.weights[:, i, j, None] * rows[:, label]
        expected = layer.out(attended.transpose(0, 1).flatten(1))
        torch.testing.assert_close(layer(x)[0], expected, atol=1e-5, rtol=1e-5)
    if options == VARIANTS["relative"]:  # terms by distance are means over queries
        found = view(model.encoder[0].self_attention, torch.randn(1, 9, 12), model.config.position_spec.mixer)
        diagonal = torch.stack([found.relative[:, i, i] for i in range(9)]).mean(0)
        torch.testing.assert_close(found.by_distance[:, found.distances.index(0)], diagonal)


def test_a_sentence_is_inspected_with_its_translation(translator: Translator) -> None:
    found = inspect(translator, "one apple")
    ((best,),) = translator.n_best(["one apple"])
    assert found.translation == best.text
    assert found.source[-1] == "</s>"
    assert [len(found.encoder), len(found.decoder), len(found.cross)] == [2, 1, 1]
    assert found.cross[0].shape == (3, len(found.written), len(found.source))
    torch.testing.assert_close(found.cross[0].sum(-1), torch.ones(3, len(found.written)))
    assert bool((found.decoder[0].weights.triu(1) == 0).all())
    assert json.loads(as_json(found))["decoder"][0]["weights"][0][0][0] == 1.0


def test_what_cannot_be_inspected(tmp_path: Path, translator: Translator) -> None:
    for model, line, fact in (
        *(
            (translator, *case)
            for case in ((" ", "blank"), ("a\udcff", "UTF-8"), ("one " * 10, "at most 5 tokens, got"))
        ),
        (make_bundle(tmp_path / "compiled", clip=2).translator(), "one", "requires a translator on PyTorch"),
        *(
            (make_bundle(tmp_path / name, positions=name, dim=24).torch_translator(), "one", f"{name} positions")
            for name in SCHEMES
            if not shows_terms(ModelConfig(positions=name))
        ),
    ):
        with pytest.raises(InputError, match=fact):
            inspect(model, line, longest=5)


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def attention(*arguments: object) -> Result:
        code = main(["attention", *map(str, arguments)])
        return Result(code, *capsys.readouterr())

    path = make_bundle(tmp_path / "bundle", clip=2, heads=1, encoder_layers=1).path
    command = [path, "one apple $ two"]
    assert attention(*command, "--out", tmp_path / "all.json").code == 0
    assert set(json.loads((tmp_path / "all.json").read_text())) >= {"encoder", "decoder", "cross", "translation"}
    result = attention(*command, "two </script>", "--out", tmp_path / "all.html")
    assert (result.code, result.out.count("\n")) == (0, 2)
    (content,) = re.findall(
        '<script id="data" type="application/json">(.*?)</script>', (tmp_path / "all.html").read_text()
    )
    shown = json.loads(content)
    assert [each["line"] for each in shown["sentences"]] == ["one apple $ two", "two </script>"]
    for part in shown["sentences"][0]["parts"].values():
        down, across = part["down"]["pieces"], part["across"]["pieces"]
        for layer in part["layers"]:
            assert torch.tensor(layer["weights"]).shape == (1, len(down), len(across))
        words = part["across"]["words"]
        assert [each["begin"] for each in words[1:]] == [each["end"] for each in words[:-1]]
        assert words[-1]["end"] == len(across)
    assert_refused(attention(*command, "one", "--out", tmp_path / "x.json"), "a .json has one sentence")
    assert_refused(attention(*command, "--serve", "--out", "x"), "either --out or --serve")
    assert_refused(attention(*command, "--out", tmp_path / "x.png"), "out must end in .html or .json")
    assert_refused(attention(path, "one \udcff", "--out", tmp_path / "x.html"), r"must be UTF-8, got 'one \udcff'")
    assert_refused(attention(path, "one", "--out", tmp_path / "x.json", "--precision=int8"), "requires precision fp32")
    assert_refused(attention(path, "one", "--out", path / "x.html"), "the output must not")
    assert not list(tmp_path.glob("x.*"))


def test_a_local_page_answers_sentences(translator: Translator) -> None:
    server = page.serve(
        page.as_html(translator, [], asks=True), lambda line: page.attention_of(translator, line), port=0
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def get(path: str, host: str = "localhost") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.request("GET", path, headers={"Host": f"{host}:{server.server_port}"})
        answer = connection.getresponse()
        content = answer.status, answer.read().decode()
        connection.close()
        return content

    try:
        assert '"asks": true' in get("/")[1]
        assert json.loads(get("/sentence?line=one%20apple")[1]) == page.attention_of(translator, "one apple")
        assert json.loads(get("/sentence?line=")[1]) == {"error": "the sentence must not be blank"}
        assert (get("/none")[0], get("/", host="example.org")[0]) == (404, 403)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
