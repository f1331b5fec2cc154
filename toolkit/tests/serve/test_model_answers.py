"""Answers of a server that translates with a model, and the description of all routes."""

import io
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import Any

import docx
import pytest
from relattn_mt import load
from relattn_mt.config import SearchConfig
from relattn_mt.documents.read import document_texts
from relattn_mt.serve.api import PAGE
from relattn_mt.serve.app import make_app
from relattn_mt.serve.parsing import ParsingLimitExceeded
from relattn_mt.serve.queue import QueueFull
from relattn_mt.serve.routing import Router
from relattn_mt.support.errors import InputError
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.translator import Translator
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from tests.support.bundles import save_random_bundle
from tests.support.engines import TextEngine
from tests.support.marked import Characters
from tests.support.servers import LIMITS, upload, validated

BODIES = {
    "/translate": {"q": ["one", "two"], "warnings": True, "alternatives": 1},
    "/detect": {"q": "one"},
    "/words": {"q": "one apple."},
    "/languages": {},
    "/suggest": {},
    "/translate_file": {},
}


def fail_with(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def test_description_has_every_answer(with_model, monkeypatch):
    """Every status of every route is given, and its answer is as described (`validated`)."""
    described = {
        (method.upper(), path, int(status))
        for path, methods in with_model.get("/spec").json()["paths"].items()
        for method, operation in methods.items()
        for status in operation["responses"]
    }
    routes = {(method, path) for method, path, _ in described}
    served = {(method, each.path) for each in with_model.app.routes for method in each.methods - {"HEAD"}}
    assert routes == served - {("GET", path) for path in (*PAGE, "/spec")}
    url = upload(with_model, "a.txt", b"one apple").json()["translatedFileUrl"]

    def ask(method: str, path: str, name: str = "", replacement: Any = None) -> int:
        """Return the status of a request while something is replaced."""
        with monkeypatch.context() as patch:
            if name:
                patch.setattr(f"relattn_mt.serve.{name}", replacement)
            if path == "/translate_file":
                return upload(with_model, "a.txt", b"one apple").status_code
            body = {"source": "auto", "target": "de", **BODIES[path]} if path in BODIES and method == "POST" else None
            return with_model.request(method, path.replace("/download_file/{name}", url), json=body).status_code

    both = {"Content-Length": "2", "Transfer-Encoding": "chunked"}
    for method, path in routes:
        assert ask(method, path) == (403 if path == "/suggest" else 200)
        assert with_model.request(method, path, headers=both).status_code == 400
        assert ask(method, path, "access.Access.refusal", lambda *_: "no") == 403
        assert ask(method, path, "access.Access.refusal", fail_with(RuntimeError())) == 500
        for error in (HTTPException(408), HTTPException(413), QueueFull(), ParsingLimitExceeded()):
            if method == "POST" and (not isinstance(error, ParsingLimitExceeded) or (method, path, 422) in described):
                ask(method, path, "api.read_parameters", fail_with(error))
    assert with_model.get("/download_file/none").status_code == 404
    assert ask("POST", "/translate_file", "api.read_parameters", fail_with(HTTPException(503))) == 503  # it is stopping
    assert ask("GET", "/health", "routing.Router.unavailable_reason", fail_with(HTTPException(503))) == 503
    by_connection = {(*route, status) for route in routes for status in (408, 429)}  # before there is a route
    assert described - by_connection == with_model.statuses - by_connection


@pytest.fixture(scope="module")
def with_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Client of a server that translates with a model, from English and Chinese."""
    translator = load(save_random_bundle(tmp_path_factory.mktemp("serve") / "bundle"))
    pairs = {("en", "de"): translator, ("zh", "de"): translator}
    with validated(TestClient(make_app(Router(pairs, LIMITS)))) as client:
        client.translator = translator  # type: ignore[attr-defined]
        yield client


def test_literals_are_kept_unless_a_request_refuses(with_model):
    """Requests of both kinds share batches."""
    texts = [f"one #apple{i} or https://example.org/{i}?a=B" for i in range(20)]
    expected = {keep: with_model.translator.translate(texts, TranslateOptions(keep_literals=keep)) for keep in (0, 1)}
    parameters = {"source": "en", "target": "de"}
    with ThreadPoolExecutor(16) as threads:
        answers = list(
            threads.map(
                lambda i: with_model.post(
                    "/translate", json={**parameters, "q": texts[i // 2], "keep_literals": bool(i % 2)}
                ).json()["translatedText"],
                range(40),
            )
        )
    assert answers == [expected[i % 2][i // 2] for i in range(40)]
    page = {**parameters, "q": "<p>one <b>#apple</b> {x}", "format": "html"}
    kept, translated = (
        with_model.post("/translate", json={**page, **options}).json()["translatedText"]
        for options in ({}, {"keep_literals": False})
    )
    assert [(text.count("#apple"), text.count("{x}")) for text in (kept, translated)] == [(1, 1), (0, 0)]
    for options, count in (({}, 1), ({"keep_literals": "false"}, 0)):
        url = upload(with_model, "a.txt", b"one {x} apple", **options).json()["translatedFileUrl"]
        assert with_model.get(url).content.count(b"{x}") == count


@pytest.mark.parametrize("kind", ["text", "html"])
def test_warnings_of_each_text(with_model, kind):
    parameters = {"source": "en", "target": "de", "format": kind}
    texts = ["one apple for 12.25.\nTwo pears for 17.89.", "-"]
    answer = with_model.post("/translate", json={**parameters, "q": texts, "warnings": True}).json()
    assert [each.count("numbers") for each in answer["warnings"]] == [1, 0]
    assert with_model.post("/translate", json={**parameters, "q": "-", "warnings": True}).json()["warnings"] == []
    assert "warnings" not in with_model.post("/translate", json={**parameters, "q": texts}).json()


@pytest.mark.parametrize("kind", ["text", "html"])
def test_confidence_and_glossary_of_each_text(with_model, kind):
    parameters = {"source": "en", "target": "de", "format": kind}
    texts = ["one apple", "two pears", "-"]
    answer = with_model.post("/translate", json={**parameters, "q": texts, "confidence": True}).json()
    best = [ranked[0] for ranked in with_model.translator.n_best(texts)]
    assert answer["confidence"] == [round(each.confidence, 4) for each in best]
    both = with_model.post("/translate", json={**parameters, "q": "one apple. two pears.", "confidence": True}).json()
    assert both["confidence"] <= 1
    with_terms = {**parameters, "q": texts, "glossary": {"apple": "vier Katze"}}
    answer = with_model.post("/translate", json=with_terms).json()
    assert "confidence" not in answer
    assert "vier Katze" in answer["translatedText"][0]
    assert answer["translatedText"][1] == best[1].text  # in the same batch
    for wrong in ({"a": 61 * "vier "}, {"a": ""}, {" ": "b"}, {str(i): "a" for i in range(1001)}, "a"):
        assert with_model.post("/translate", json={**parameters, "q": "a", "glossary": wrong}).status_code == 400
    for wrong, named in (({"a": 3}, "3"), ({"a": "b", "c": [1]}, "[1]"), ({"a": True}, "true")):
        refused = with_model.post("/translate", json={**parameters, "q": "a", "glossary": wrong})
        assert (refused.status_code, f"got {named}" in refused.json()["error"]) == (400, True)


@pytest.mark.parametrize(("text", "source"), [("one apple and\n two pears", "en"), ("一。二。", "zh")])
def test_words_and_confidences(with_model, text, source):
    parameters = {"q": text, "source": source, "target": "de"}
    answer = with_model.post("/words", json={**parameters, "alternatives": 1}).json()
    translation = with_model.post("/translate", json=parameters).json()["translatedText"]
    assert "".join(word["text"] for word in answer["words"]) == translation
    assert len(answer["alternatives"]) == 1
    ((best,),) = with_model.translator.n_best([text.split("\n")[0].strip()])
    confidences = [word["confidence"] for word in answer["words"] if word["confidence"] is not None]
    assert all(0 < each <= 1 for each in confidences)
    if source == "en":
        assert len(confidences) >= len(best.text.split())
        detected = with_model.post("/words", json={**parameters, "source": "auto"}).json()
        assert detected["detectedLanguage"]["language"] == "en"
        same = with_model.post("/words", json={**parameters, "source": "de"}).json()
        assert same["words"] == [{"text": text, "confidence": None, "sentence": None, "sources": []}]
        assert answer["sentences"] == ["one apple and", "two pears"]
        assert [word["sentence"] for word in answer["words"] if word["confidence"]][:: len(confidences) - 1] == [0, 1]


def test_warnings_of_each_sentence(with_model):
    text = "one apple. Two apples for 12.25. three"
    answer = with_model.post("/words", json={"q": text, "source": "en", "target": "de"}).json()
    assert [names.count("numbers") for names in answer["warnings"]] == [0, 1, 0]


def test_source_words_of_each_word(with_model):
    text = "one apple\u00a0and two.\n\nOne  pear https://example.org/a for you."
    answer = with_model.post("/words", json={"q": text, "source": "en", "target": "de"}).json()
    sentences = ["one apple\u00a0and two.", "One  pear https://example.org/a for you."]
    assert answer["sentences"] == sentences
    for number, sentence in enumerate(sentences):
        words = [word for word in answer["words"] if word["sentence"] == number and word["confidence"] is not None]
        translation = "".join(word["text"] for word in answer["words"] if word["sentence"] == number)
        assert ("https://example.org/a" in translation) == bool(number)
        encode, target = with_model.translator.tokenizer.encode, with_model.translator.tokenizer.encode_target
        (links,) = with_model.translator.align([encode(sentence)], [target(translation)])
        assert links
        shown = [(sentence[slice(*span)], word["text"]) for word in words for span in word["sources"]]
        assert shown == [(sentence.split()[i], translation.split()[j]) for i, j in links]


def test_words_of_another_translation(with_model):
    parameters = {"q": "one apple.\nTwo pears", "source": "en", "target": "de", "alternatives": 2}
    best = with_model.post("/words", json=parameters).json()
    texts = ["".join(word["text"] for word in best["words"]), *best["alternatives"]]
    assert len(set(texts)) == 2  # the beam size
    for choice in texts:
        answer = with_model.post("/words", json={**parameters, "choice": choice}).json()
        assert "".join(word["text"] for word in answer["words"]) == choice
        assert answer["alternatives"] == [text for text in texts if text != choice]
    refused = with_model.post("/words", json={**parameters, "choice": "eins"})
    assert (refused.status_code, refused.json()) == (400, {"error": "choice must be one of the translations"})


def test_words_of_a_translation_that_begins_with_a_prefix(with_model):
    parameters = {"q": "one apple", "source": "en", "target": "de", "alternatives": 1, "prefix": "zwei"}
    answer = with_model.post("/words", json=parameters).json()
    (expected,) = with_model.translator.n_best(["one apple"], TranslateOptions(n_best=2), prefixes=["zwei"])
    texts = ["".join(word["text"] for word in answer["words"]), *answer["alternatives"]]
    assert texts == [each.text for each in expected]
    assert len(with_model.translator.tokenizer.encode("z" * 249)) == 250  # the maximum
    assert with_model.post("/words", json={**parameters, "prefix": "z" * 249}).status_code == 200
    for refusal in ({"q": "one apple. Two pears."}, {"prefix": "z" * 250}, {"prefix": "z" * 4001}):
        assert with_model.post("/words", json={**parameters, **refusal}).status_code == 400


def characters(html: str) -> list[tuple[str, str]]:
    """Return the characters of HTML, each with the names of the elements around it."""
    names: list[str] = []
    found = []
    for part in re.split("(<[^>]*>)", html):
        if part.startswith("</"):
            names.remove(part[2:-1])
        elif part.startswith("<"):
            names.append(part[1:-1])
        else:
            found += [(letter, "".join(sorted(names))) for letter in unescape(part)]
    return found


@pytest.fixture(scope="module")
def with_reversed_words() -> Iterator[TestClient]:
    """Client of a server that returns the words in reverse order."""

    def links(source: str, _: str) -> list[tuple[int, int]]:
        last = source.count(" ")
        return [(i, last - i) for i in range(last + 1)]

    tokenizer: Any = Characters()
    engine: Any = TextEngine(tokenizer, lambda line: " ".join(line.split(" ")[::-1]), links)
    translator = Translator(engine, tokenizer, SearchConfig(beam_size=1))
    with validated(TestClient(make_app(Router({("en", "de"): translator}, LIMITS)))) as client:
        yield client


@pytest.mark.parametrize(
    "html",
    [
        "<b>91%</b>",
        "one <b>apple</b> and 12.5<i>%</i>",
        "<b>17 apples</b> and <i>4 </i>pears",
        "two p<u>ea</u>rs, 5 kg",
        "One <b>apple. Two pears. Three</b> pears.",
        "4<b> pears</b>",
        "<i>two </i><b>one</b>",
        "<u>17</u><b>.5%</b> and <i>one</i>",
    ],
)
def test_pages_and_documents_have_the_translation_of_their_text(with_reversed_words, html):
    client, parameters = with_reversed_words, {"source": "en", "target": "de"}
    plain = client.post("/translate", json={**parameters, "q": re.sub("<[^>]*>", "", html)}).json()
    answer = client.post("/translate", json={**parameters, "q": html, "format": "html"}).json()
    assert unescape(re.sub("<[^>]*>", "", answer["translatedText"])) == plain["translatedText"]
    document, out = docx.Document(), io.BytesIO()
    paragraph = document.add_paragraph()
    for text, tags in characters(html):
        run = paragraph.add_run(text)
        run.bold, run.italic, run.underline = ("b" in tags) or None, ("i" in tags) or None, ("u" in tags) or None
    document.save(out)
    url = client.post("/translate_file", data=parameters, files={"file": ("a.docx", out.getvalue())}).json()
    filled = docx.Document(io.BytesIO(client.get(url["translatedFileUrl"]).content)).paragraphs[0]
    assert filled.text == plain["translatedText"]
    formats = [
        (
            letter,
            "".join(name for name, is_set in zip("biu", (run.bold, run.italic, run.underline), strict=True) if is_set),
        )
        for run in filled.runs
        for letter in run.text
        if letter != " "
    ]
    assert formats == [each for each in characters(answer["translatedText"]) if each[0] != " "]


def test_tags_do_not_count_as_characters_of_a_file(with_model):
    assert document_texts("a.html", b"<p>" + 150 * b"<b>a</b> ", 10_000, 300)
    with pytest.raises(InputError, match="at most 300 characters"):
        document_texts("a.html", b"<p>" + 151 * b"a ", 10_000, 300)
