"""The routes: what LibreTranslate's clients send and get, what is refused and how, and that nothing is mixed up."""

from __future__ import annotations

import io
import json
import logging
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from benchmarks.fuzz import request
from relattn.translation import load
from relattn.translation.config import Recipe, SearchConfig
from relattn.translation.errors import InputError
from relattn.translation.serve import routing
from relattn.translation.serve.app import make_app
from relattn.translation.serve.limits import Limits
from relattn.translation.serve.routing import Router
from relattn.translation.serve.text.html import Markup
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import Translation, Translator

LIMITS = Limits(characters=1000, sentences=20, texts=5, file=100_000, waiting=40)


class Shouting(Translator):
    """Translates by capitals, with its name before, so that it shows which way a text went."""

    def __init__(self, name: str) -> None:
        self.name, self.search = name, SearchConfig(beam_size=3)
        self.batches: list[list[str]] = []
        self.going = threading.Event()
        self.going.set()

    def n_best(self, lines: Any, options: TranslateOptions, **_: Any) -> list[list[Translation]]:
        assert self.going.wait(20)
        self.batches.append(list(lines))
        for line in lines:
            if "refuse" in line:
                raise InputError("line 1 has what no model reads")
        capitals = [line if "<" in line else line.upper() for line in lines]
        return [
            [Translation(f"{self.name}{line}" + "'" * k, 0.0, []) for k in range(options.n_best)] for line in capitals
        ]

    search_batch = log_probs = align_batch = None  # type: ignore[assignment]


Shouting.__abstractmethods__ = frozenset()


def served(pairs: str = "en-de", *, limits: Limits = LIMITS, pivot: str = "", **options: Any) -> TestClient:
    found = [tuple(pair.split("-")) for pair in pairs.split()]
    translators = {(source, target): Shouting(f"{target}:") for source, target in found}
    client = TestClient(make_app(Router(translators, limits, pivot=pivot), **options))
    client.translators = translators  # type: ignore[attr-defined]
    return client


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served("en-de de-en en-fr") as client:
        yield client


def asked(client: TestClient, **given: Any) -> Any:
    return client.post("/translate", json={"source": "en", "target": "de", **given})


def test_a_text_is_translated_sentence_by_sentence(client: TestClient) -> None:
    answer = asked(client, q="Good day. And you?\n\n Well. ")
    assert answer.status_code == 200
    assert answer.json() == {"translatedText": "de:GOOD DAY. de:AND YOU?\n\n de:WELL. "}


def test_a_list_is_answered_by_a_list_in_its_order(client: TestClient) -> None:
    answer = asked(client, q=["one", "", "two\nthree"], alternatives=2)
    assert answer.json() == {
        "translatedText": ["de:ONE", "", "de:TWO\nde:THREE"],
        "alternatives": [["de:ONE'", "de:ONE''"], [], ["de:TWO'\nde:THREE'", "de:TWO''\nde:THREE''"]],
    }


def test_parameters_come_as_a_form_or_in_the_address_too(client: TestClient) -> None:
    given = {"q": "one", "source": "en", "target": "de"}
    expected = {"translatedText": "de:ONE"}
    assert client.post("/translate", data=given).json() == expected
    assert client.post("/translate", files={"other": b""}, data=given).json() == expected
    assert client.post("/translate", params=given).json() == expected
    assert asked(client, q="one", format=None, api_key=None).json() == expected


def test_alternatives_are_as_many_as_the_search_has(client: TestClient) -> None:
    assert asked(client, q="one", alternatives=50).json()["alternatives"] == ["de:ONE'", "de:ONE''"]


def test_html_keeps_its_tags(client: TestClient) -> None:
    answer = asked(client, q='<p>one <b>two</b></p><p translate="no">x</p>', format="html")
    assert answer.json() == {"translatedText": '<p>de:one <b>two</b></p><p translate="no">x</p>'}


def test_a_language_is_detected_among_those_that_are_translated(client: TestClient) -> None:
    german = "Guten Morgen, wie geht es Ihnen heute? Das Wetter ist schön."
    (first, second) = client.post("/detect", json={"q": german}).json()
    assert (first["language"], second["language"]) == ("de", "en")
    assert 50 < first["confidence"] <= 100
    answer = asked(client, q=german, source="auto", target="en").json()
    assert answer["detectedLanguage"] == first
    assert answer["translatedText"].startswith("en:GUTEN MORGEN")
    both = asked(client, q=[german, "Good morning, how are you doing today?"], source="auto", target="en").json()
    assert [one["language"] for one in both["detectedLanguage"]] == ["de", "en"]
    assert both["translatedText"][1] == "Good morning, how are you doing today?"
    assert client.post("/detect", json={"q": "12 34"}).json() == []


def test_languages_and_settings(client: TestClient) -> None:
    assert client.get("/languages").json() == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": ["de", "fr"]},
        {"code": "fr", "name": "French", "targets": []},
    ]
    settings = client.get("/frontend/settings").json()
    assert settings["charLimit"] == 1000
    assert settings["language"]["source"] == {"code": "de", "name": "German"}
    assert settings["supportedFilesFormat"] == [".txt", ".srt", ".html", ".htm", ".docx"]
    assert client.get("/health").json() == {"status": "ok"}
    body = client.get("/spec").json()["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["required"] == ["q", "source", "target"]
    assert body["schema"]["properties"]["source"]["enum"] == ["de", "en", "auto"]
    assert client.post("/suggest", data={"q": "x"}).status_code == 403


def test_a_pivot_is_gone_through_where_it_is_asked_for() -> None:
    with served("de-en en-fr") as client:
        assert asked(client, q="ja", source="de", target="fr").status_code == 400
    with served("de-en en-fr", pivot="en") as client:
        assert asked(client, q="ja", source="de", target="fr").json() == {"translatedText": "fr:EN:JA"}
        assert client.get("/languages").json()[0]["targets"] == ["en", "fr"]
    with pytest.raises(InputError, match="got es"):
        served("de-en en-fr", pivot="es")


def test_a_file_is_translated_and_fetched(client: TestClient) -> None:
    given = {"source": "en", "target": "de"}
    answer = client.post(
        "/translate_file", data=given, files={"file": ("../../a.srt", b"1\n00:00:01,000 --> 00:00:02,000\nhi\n")}
    )
    assert answer.status_code == 200, answer.text
    address = answer.json()["translatedFileUrl"]
    assert address.startswith("http://testserver/download_file/")
    assert ".." not in address.partition("//")[2]
    fetched = client.get(address)
    assert fetched.content == b"1\n00:00:01,000 --> 00:00:02,000\nde:HI\n\n"
    assert fetched.headers["content-disposition"].startswith("attachment")
    assert client.get(address[:-5] + "x.srt").status_code == 404


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "q is missing"),
        ({"q": 1}, "q: "),
        ({"q": ["a", 1]}, "q: "),
        ({"q": {"a": 1}}, "q: "),
        ({"q": "x", "source": ""}, "from '' to 'de'"),
        ({"q": "x", "source": "xx"}, "from 'xx' to 'de'"),
        ({"q": "x", "target": "../x"}, "from 'en' to '../x'"),
        ({"q": "x", "target": "auto"}, "from 'en' to 'auto'"),
        ({"q": "x", "format": "pdf"}, "format: "),
        ({"q": "x", "alternatives": -1}, "alternatives: "),
        ({"q": "x", "alternatives": "many"}, "alternatives: "),
        ({"q": "x" * 1001}, "at most 1,000 characters, got 1,001"),
        ({"q": "a.\n" * 21}, "at most 20 sentences, got 21"),
        ({"q": ["x"] * 6}, "at most 5 texts, got 6"),
        ({"q": "please refuse"}, "what no model reads"),
        ({"q": "<b>" * 300, "format": "html"}, "nested elements"),
    ],
)
def test_mistakes_are_400_with_a_line(client: TestClient, given: dict[str, Any], message: str) -> None:
    answer = asked(client, **given)
    assert answer.status_code == 400
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert asked(client, q="one").json() == {"translatedText": "de:ONE"}


HALF_A_PAIR = b'{"q": "\\ud800", "source": "en", "target": "de"}'
NO_REQUESTS = [b"{", b"[1]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"q": 1' + b"0" * 5000 + b"}", HALF_A_PAIR]
KINDS = ["application/json", "", "multipart/form-data", "multipart/form-data; boundary=x"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", NO_REQUESTS)
def test_what_is_no_request_is_400(client: TestClient, body: bytes, kind: str) -> None:
    answer = client.post("/translate", content=body, headers={"Content-Type": kind})
    assert answer.status_code in (400, 413), answer.text
    assert "error" in answer.json()


TEXTS = [
    "\x00\x01\x1b[31m",
    "\u202eright to left",
    "😀" * 50,
    "a\ud7ff\uffff\U0010ffff",
    "\ufeff",
    "<script>x</script>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_answered_as_json(client: TestClient, text: str) -> None:
    for kind in ("text", "html"):
        answer = asked(client, q=text, format=kind)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "script-src 'self'" in answer.headers["content-security-policy"]


@pytest.mark.sampled(2)
def test_damaged_requests_are_answered(trained: TestClient) -> None:
    draw, statuses = random.Random(1), set()
    for _ in range(400):
        method, path, body, headers = request(draw)
        statuses.add(trained.request(method, path, content=body, headers=headers).status_code)
    assert {200, 400, 404} <= statuses
    assert max(statuses) < 500


def test_large_requests_are_413(client: TestClient) -> None:
    assert client.post("/translate", content=b" " * 1_000_000).status_code == 413
    assert client.post("/translate", content=(b" " * 10_000 for _ in range(100))).status_code == 413
    big = {"file": ("a.txt", b"x" * 120_000)}
    assert client.post("/translate_file", data={"source": "en", "target": "de"}, files=big).status_code == 413


def test_other_routes_and_methods(client: TestClient) -> None:
    assert client.get("/translate").status_code == 405
    for path in ("/nothing", "/../../etc/passwd", "/page/../api.py", "/download_file/..%2f..%2fetc%2fpasswd"):
        answer = client.get(path)
        assert answer.status_code == 404, path
        assert "error" in answer.json()


def test_keys_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\none-key\n\nanother\n")
    with served(keys=file) as client:
        for key in ({}, {"api_key": "wrong"}, {"api_key": "# ours"}, {"api_key": ""}, {"api_key": ["one-key"]}):
            answer = asked(client, q="x", **key)
            assert answer.status_code == 403
            assert "api_key" in answer.json()["error"]
        assert asked(client, q="x", api_key="another").status_code == 200
        assert client.post("/detect", data={"q": "x"}).status_code == 403
        assert client.get("/frontend/settings").json()["keyRequired"] is True
    file.write_text("\n# none\n")
    with pytest.raises(InputError, match="at least one key"):
        served(keys=file)


def test_other_origins_are_let_in_only_where_that_is_asked_for() -> None:
    origin = {"Origin": "https://example.org"}
    with served() as client:
        assert "access-control-allow-origin" not in client.get("/languages", headers=origin).headers
    with served(cors=["https://example.org"]) as client:
        assert client.get("/languages", headers=origin).headers["access-control-allow-origin"] == "https://example.org"
        assert (
            "access-control-allow-origin" not in client.get("/languages", headers={"Origin": "https://x.org"}).headers
        )


def test_a_full_queue_is_429_and_says_when_to_come_again() -> None:
    with served(limits=Limits(sentences=5, waiting=5, batch=1, seconds=30)) as client, ThreadPoolExecutor(8) as threads:
        translator = client.translators["en", "de"]  # type: ignore[attr-defined]
        translator.going.clear()
        waiting = [threads.submit(asked, client, q=f"text {i}") for i in range(8)]
        while sum(future.done() for future in waiting) < 2:
            pass
        translator.going.set()
        answers = [future.result(20) for future in waiting]
    assert sorted({answer.status_code for answer in answers}) == [200, 429]
    assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 429)
    right = [answer.json().get("translatedText") in (None, f"de:TEXT {i}") for i, answer in enumerate(answers)]
    assert all(right)


def test_what_takes_too_long_is_429() -> None:
    with served(limits=Limits(seconds=0.2)) as client:
        translator = client.translators["en", "de"]  # type: ignore[attr-defined]
        translator.going.clear()
        answer = asked(client, q="x")
        translator.going.set()
        assert answer.status_code == 429
        assert "0.2 seconds" in answer.json()["error"]
        assert asked(client, q="x").status_code in (200, 429)


def test_while_a_page_is_read_or_written_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    going, slow = threading.Event(), threading.Event()

    class Slow(Markup):
        def fill(self, *arguments: Any, **options: Any) -> str:
            slow.set()
            assert going.wait(20)
            return super().fill(*arguments, **options)

    monkeypatch.setattr(routing, "Markup", Slow)
    with served() as client, ThreadPoolExecutor(2) as threads:
        page = threads.submit(asked, client, q="<p>One</p>", format="html")
        assert slow.wait(20)
        assert threads.submit(asked, client, q="two").result(20).json() == {"translatedText": "de:TWO"}
        going.set()
        assert page.result(20).json() == {"translatedText": "<p>de:ONE</p>"}


def test_requests_of_many_are_translated_together_and_answered_apart() -> None:
    with served(limits=Limits(pause=20)) as client, ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda i: asked(client, q=f"a{i}.\nb{i}").json(), range(64)))
        assert answers == [{"translatedText": f"de:A{i}.\nde:B{i}"} for i in range(64)]
        batches = client.translators["en", "de"].batches  # type: ignore[attr-defined]
        assert len(batches) < 64
        told = client.get("/metrics").text
    assert 'relattn_requests_total{route="/translate",status="200"} 64.0' in told
    assert "relattn_batch_sentences_sum 128.0" in told


def test_the_log_has_no_text_and_no_key(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "relattn.serve")
    asked(client, q="my secret", api_key="my key")
    client.post("/translate?q=my+secret&api_key=my+key&source=en&target=de")
    rows = [json.loads(record.message) for record in caplog.records if record.name == "relattn.serve"]
    assert [(row["route"], row["status"]) for row in rows] == [("/translate", 200)] * 2
    assert "secret" not in caplog.text
    assert "my" not in caplog.text


def test_an_error_of_ours_is_500_and_its_words_are_not_told(
    client: TestClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("my secret")

    monkeypatch.setattr(client.translators["en", "de"], "n_best", fail)  # type: ignore[attr-defined]
    answer = asked(client, q="x")
    assert answer.status_code == 500
    assert "secret" not in answer.text + caplog.text


@pytest.fixture(scope="module")
def trained(finished: Recipe) -> Iterator[TestClient]:
    translator = load(Path(finished.out) / "bundle")
    with TestClient(make_app(Router({("en", "de"): translator}, LIMITS))) as client:
        client.translator = translator  # type: ignore[attr-defined]
        yield client


def test_words_are_the_translations_and_have_confidences(trained: TestClient) -> None:
    text = "one cat sat\n two and two"
    answer = trained.post("/words", json={"q": text, "source": "en", "target": "de", "alternatives": 1}).json()
    assert "".join(word["text"] for word in answer["words"]) == asked(trained, q=text).json()["translatedText"]
    assert len(answer["alternatives"]) == 1
    translator = trained.translator  # type: ignore[attr-defined]
    ((best,),) = translator.n_best(["one cat sat"])
    if words := best.text.split():
        ((*log_probs, _),) = translator.log_probs([translator.tokenizer.encode("one cat sat")], [best.tokens])
        found = [word["confidence"] for word in answer["words"] if word["confidence"] is not None]
        assert all(0 < one <= 1 for one in found)
        assert len(found) >= len(words)
        assert len(log_probs) == len(best.tokens)


def test_words_of_sentences_without_a_space_between_them_are_put_apart(finished: Recipe) -> None:
    translator = load(Path(finished.out) / "bundle")
    given = {"q": "一。二。", "source": "zh", "target": "de"}
    with TestClient(make_app(Router({("zh", "de"): translator}, LIMITS))) as client:
        words = client.post("/words", json=given).json()["words"]
        translation = client.post("/translate", json=given).json()["translatedText"]
    assert "".join(word["text"] for word in words) == translation


@pytest.mark.parametrize("part", ["encoder", "decoder", "cross"])
def test_attention_of_a_layer(trained: TestClient, part: str) -> None:
    given = {"q": "one cat. Two.", "source": "en", "target": "de", "part": part}
    answer = trained.post("/attention", json=given)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["layers"], found["heads"]) == (1, 3)
    assert len(found["weights"][0]) == len(found["down"])
    assert len(found["weights"][0][0]) == len(found["across"])
    assert found["across"][-1] == "</s>" or part == "decoder"
    assert trained.post("/attention", json={**given, "layer": 2}).status_code == 400
    assert trained.post("/attention", json={**given, "q": " "}).status_code == 400
    assert trained.post("/attention", json={**given, "q": "one " * 61}).status_code == 400


def test_the_page_and_its_files(client: TestClient) -> None:
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "http://" not in answer.text
        assert "https://" not in answer.text
    assert io.StringIO(client.get("/").text)
