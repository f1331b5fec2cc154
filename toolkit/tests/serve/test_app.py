"""The routes of a server: results, errors and their status, limits, log and metrics."""

import asyncio
import io
import json
import logging
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import docx
import html5lib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relattn_mt.documents.read import FORMATS
from relattn_mt.serve import api, files
from relattn_mt.serve.access import Access
from relattn_mt.serve.languages import language_name, served_code
from relattn_mt.serve.limits import Limits
from relattn_mt.serve.queue import QueueFull
from relattn_mt.support.errors import InputError
from starlette.testclient import TestClient

from tests.support.document_files import archive
from tests.support.servers import LIMITS, client_of, translate, upload

GERMAN = "Guten Morgen, wie geht es Ihnen heute? Das Wetter ist schön."
ENGLISH = "Good morning, how are you doing today?"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of("en-de de-en en-fr") as client:
        yield client


def test_texts_are_translated_by_sentences(client):
    answer = translate(client, q="Good day. And you?\n\n Well. ")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {"translatedText": "de:GOOD DAY. de:AND YOU?\n\n de:WELL. "}
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert translate(client, q=["one", "", "two\nthree"], alternatives=2).json() == {
        "translatedText": ["de:ONE", "", "de:TWO\nde:THREE"],
        "alternatives": [["de:ONE'", "de:ONE''"], [], ["de:TWO'\nde:THREE'", "de:TWO''\nde:THREE''"]],
    }
    assert translate(client, q="one", alternatives=50).json()["alternatives"] == ["de:ONE'", "de:ONE''"]  # of the beam
    html = '<p>one <b>two</b></p><p translate="no">x</p>'
    expected = '<p>de:ONE <b>TWO</b></p><p translate="no">x</p>'
    assert translate(client, q=html, format="html").json() == {"translatedText": expected}


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>one hundred; 91%", "<p>ONE HUNDRED; 91 %"),
        ("one hundred; <b>91%</b>", "ONE HUNDRED; <b>91 %</b>"),
        ("<b>12.5%</b>; <i>5 km</i>", "<b>12.5 %</b>; <i>5 KM</i>"),
        ("12.5<b>%</b> of <i>x: y</i>", "12.5 <b>%</b> OF <i>X: Y</i>"),
        ("<b>12.5</b>%", "<b>12.5</b> %"),
        ("5<b> km</b> %w<img>", "5<b> KM</b> %W<img>"),
        ("<b>May </b><i>3</i>, (x)", "<b>MAY </b><i>3</i>, (X)"),
        (
            "<b>One two. Three</b> four. <u><i>Five</i>. Six.</u>",
            "<b>ONE TWO. THREE</b> FOUR. <u><i>FIVE</i>. SIX.</u>",
        ),
        ("11" + 90 * "<b>2</b>", "11" + 90 * "<b>2</b>"),
    ],
)
def test_html_is_translated_as_plain_text(client, html, expected):
    """Numbers, units and placeholders of a page with tags are not copied."""
    answer = translate(client, q=html, format="html").json()["translatedText"]
    assert re.sub("de:", "", answer) == expected
    plain = translate(client, q=re.sub("<[^>]*>", "", html)).json()["translatedText"]
    assert re.sub("<[^>]*>", "", answer) == plain


def test_parameters_may_be_a_form_or_a_query(client):
    parameters, expected = {"q": "one", "source": "en", "target": "de"}, {"translatedText": "de:ONE"}
    assert client.post("/translate", data=parameters).json() == expected
    assert client.post("/translate", files={"other": b""}, data=parameters).json() == expected
    assert client.post("/translate", params=parameters).json() == expected
    assert translate(client, q="one", format=None, api_key=None).json() == expected
    assert translate(client, q="one", source="EN", target="De", format="", alternatives=-1).json() == expected
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for body in ("q=Schöne Grüße%21+%C3%B6&source=en&target=de", "source=en&target=de"):
        query = "" if body[0] == "q" else "?q=Sch%C3%B6ne%20Gr%C3%BC%C3%9Fe!%20%C3%B6"
        answer = client.post(f"/translate{query}", content=body.encode(), headers=form).json()
        assert answer == {"translatedText": "de:SCHÖNE GRÜSSE! de:Ö"}
    assert client.post("/translate", content=b"q=%ff", headers=form).status_code == 400


def test_another_language_has_a_warning():
    english = "I do not know what you mean by that."
    with client_of("en-de") as client:
        client.engines["en", "de"].change = lambda text: [GERMAN]
        german, right = translate(client, q=[GERMAN, english], warnings=True).json()["warnings"]
        assert ("language" in german, "language" in right) == (True, False)
        client.engines["en", "de"].change = lambda text: [text]
        assert "language" in translate(client, q=english, warnings=True).json()["warnings"]


def test_languages_are_detected(client):
    first, second = client.post("/detect", json={"q": GERMAN}).json()
    assert (first["language"], second["language"]) == ("de", "en")
    assert 50 < first["confidence"] <= 100
    assert client.post("/detect", json={"q": "12 34"}).json() == [{"confidence": 0.0, "language": "en"}]
    answer = translate(client, q=GERMAN, source="auto", target="en").json()
    assert answer["detectedLanguage"] == first
    assert answer["translatedText"].startswith("en:GUTEN MORGEN")
    answer = translate(client, q=[GERMAN, ENGLISH], source="auto", target="en").json()
    assert [each["language"] for each in answer["detectedLanguage"]] == ["de", "en"]
    assert answer["translatedText"][1] == ENGLISH  # unchanged


def test_description_of_the_server(client):
    assert client.get("/languages").json() == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": ["de", "fr"]},
        {"code": "fr", "name": "French", "targets": []},
    ]
    assert [language_name(code) for code in ("pt-BR", "xx", "?")] == ["Portuguese (Brazil)", "xx", "?"]
    answer = client.get("/frontend/settings").json()
    assert (answer["charLimit"], answer["keyRequired"]) == (1000, False)
    assert answer["language"]["source"] == {"code": "de", "name": "German"}
    assert answer["supportedFilesFormat"] == list(FORMATS)
    assert client.get("/health").json() == {"status": "ok"}
    body = client.get("/spec").json()["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["required"] == ["q", "source", "target"]
    assert body["schema"]["properties"]["source"]["enum"] == ["de", "en", "auto"]
    assert client.post("/suggest", data={"q": "x"}).status_code == 403
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, kind)
        assert "://" not in answer.text  # nothing comes from other servers
    page = html5lib.parse(client.get("/").text, namespaceHTMLElements=False)
    assert page.attrib["lang"] == "en"
    assert page.find("body/noscript/p").text  # without scripts, the page says why it does nothing


def test_a_glossary_and_alternatives_concern_the_last_model_of_a_pivot(monkeypatch):
    asked = []
    with client_of("de-en en-fr", pivot="en") as client:
        for pair, engine in client.engines.items():
            tokenizer, search = engine.tokenizer, engine.search

            def recorded(requests, rules, pair=pair, tokenizer=tokenizer, search=search):
                terms = [tokenizer.decode(phrase) for each in requests for phrase in each.phrases]
                asked.append((pair, terms, rules.n_best))
                return search(requests, rules)

            monkeypatch.setattr(engine, "search", recorded)
        glossary = {"katze": "wrong", "KATZE": "chat"}
        answer = translate(client, q="eine katze", source="de", target="fr", glossary=glossary, alternatives=2)
    assert answer.json()["alternatives"] == ["fr:EN:EINE KATZE'", "fr:EN:EINE KATZE''"]
    assert asked == [(("de", "en"), [], 1), (("en", "fr"), [], 3), (("en", "fr"), ["chat"], 3)]


def test_pivot_keys_and_origins(tmp_path, monkeypatch):
    monkeypatch.setattr(api, "WRONG_KEY_SECONDS", 0.2)
    keys, origin = tmp_path / "keys", {"Origin": "https://example.org"}
    keys.write_text("# ours\none-key\n\nanother\n")
    with client_of("de-en en-fr", pivot="en", keys=keys, access=Access(origins=["https://example.org"])) as client:
        for key in ({}, {"api_key": "wrong"}, {"api_key": "# ours"}, {"api_key": ""}, {"api_key": ["one-key"]}):
            began = time.monotonic()
            answer = translate(client, q="x", target="fr", **key)
            assert answer.status_code == 403
            assert "api_key" in answer.json()["error"]
            assert time.monotonic() - began >= (0.2 if any(key.values()) else 0)  # guessing is slow
        for authorization, status in (("Bearer one-key", 200), ("bearer one-key", 200), ("BEARER  wrong", 403)):
            headers = {"Authorization": authorization}
            assert client.post("/detect", data={"q": "x"}, headers=headers).status_code == status
        assert client.post("/detect", data={"q": "x"}).status_code == 403
        assert client.get("/frontend/settings").json()["keyRequired"] is True
        answer = translate(client, q="ja", source="de", target="fr", api_key="another")
        assert answer.json() == {"translatedText": "fr:EN:JA"}
        answer = client.get("/languages", headers=origin)
        assert answer.headers["access-control-allow-origin"] == origin["Origin"]
        assert answer.json()[0]["targets"] == ["en", "fr"]
        answer = client.get("/languages", headers={"Origin": "https://x.org"})
        assert "access-control-allow-origin" not in answer.headers
    keys.write_text("\n# none\n")
    for options, message in (({"pivot": "es"}, "got es"), ({"keys": keys}, "at least one key")):
        with pytest.raises(InputError, match=message):
            client_of("de-en en-fr", **options)


OWN, OTHER, SITE = "http://localhost:5000", "https://example.org", "Sec-Fetch-Site"
LOCAL = ("127.0.0.1:5000", "LOCALHOST", "a.localhost:1", "[::1]:5000", "10.0.0.7", "")
FOREIGN = ("evil.example:5000", "localhost.evil.example", "1.2.3.4.evil.example")
ORIGINS = [(OTHER, 403), ("null", 403), ("http://localhost:3000", 403), ("https://localhost", 403), (OWN, 200)]
ORIGINS += [("https://cors.example", 200), ("moz-extension://5a1c", 200), ("app://obsidian.md", 200)]


REQUESTS: dict[tuple[str, ...] | None, list[tuple[dict[str, str], int]]] = {  # headers and status, by --hosts
    (): [
        *(({"Host": host}, 200) for host in LOCAL),
        *(({"Host": host, "Origin": f"http://{host}", SITE: "same-origin"}, 403) for host in FOREIGN),
        ({"Host": "evil.example", "X-Forwarded-Host": "localhost"}, 403),
        *(({"Host": host, "X-Forwarded-For": "127.0.0.1"}, 403) for host in ("evil.example", "evil.example:80")),
        ({"Host": "example.org:443", "X-Forwarded-For": "10.0.0.7"}, 200),  # the port of this server is 80
        *(({"Host": "localhost:5000", "Origin": origin}, status) for origin, status in ORIGINS),
    ],
    ("my-server",): [({"Host": "example.org:443", "X-Forwarded-For": "10.0.0.7"}, 403), ({"Host": "example.org"}, 403)],
    ("my-server", "example.org"): [({"Host": "Example.org.:80"}, 200)],
    None: [
        ({"Host": "example.org"}, 200),
        ({"Host": "10.0.0.7:5000", "Origin": OTHER, SITE: "same-origin"}, 200),  # a proxy changed Host
        ({"Host": "example.org", "Origin": OTHER, SITE: "cross-site"}, 403),
        ({"Host": "example.org", "Origin": OTHER}, 200),
    ],
}


@pytest.mark.parametrize("hosts", REQUESTS)
def test_requests_of_pages_of_other_sites_are_refused(hosts):
    """Also if a page's own name resolves to the server (DNS rebinding)."""
    with client_of("en-de", access=Access(hosts, ["https://cors.example"])) as client:
        parameters, batches = {"q": "one", "source": "en", "target": "de"}, client.engines["en", "de"].batches
        for headers, status in REQUESTS[hosts]:
            batches.clear()
            for answer in (
                client.post("/translate", json=parameters, headers=headers),
                client.post("/detect", data=parameters, headers=headers),
                upload(client, "a.txt", b"one", headers=headers),
            ):
                assert (answer.status_code, "error" in answer.json()) == (status, status == 403), headers
            assert batches == ([["one"]] * 2 if status == 200 else []), headers
            reads = 403 if hosts is not None and "Host must" in answer.text else 200
            assert client.get("/languages", headers=headers).status_code == reads


def test_codes_and_paths_of_other_clients():
    """A language has several codes, and some clients write two slashes."""
    with client_of("zh-de pt-de en-nb") as client:
        query = "q=a&target=de"
        for code in ("zh", "ZH-CN", "zh_Hans", "pt", "pb", "pt-BR"):
            assert client.post(f"http://testserver//translate?{query}&source={code}").status_code == 200, code
        assert translate(client, q="a", source="en-US", target="no-NO").status_code == 200
        assert translate(client, q="a", source="zh-TW", target="de").status_code == 400
    served = ["zh-Hans", "zh-Hant", "pt-BR", "pt", "en-GB", "fil", "he", "nb", "sr-Latn", "sr", "auto"]
    expected = {"zh": "zh-Hans", "zt": "zh-Hant", "zh-tw": "zh-Hant", "pt": "pt", "pb": "pt-BR", "AUTO": "auto"}
    expected |= {"en": "en-GB", "en-US": "en-GB", "pt_PT": "pt", "tl": "fil", "iw": "he", "no-NO": "nb", "xx": "xx"}
    expected |= {"zh-SG": "zh-Hans", "sr-RS": "sr", "sr-Latn-RS": "sr-Latn", "zh-HK": "zh-Hant", "a\0/..": "a\0/.."}
    assert {name: served_code(name, served) for name in expected} == expected


def test_files(client, monkeypatch):
    answer = upload(client, "../../Grüße.srt", b"1\n00:00:01,000 --> 00:00:02,000\nhi\n")
    assert answer.status_code == 200, answer.text
    address = answer.json()["translatedFileUrl"]
    assert address.startswith("http://testserver/download_file/")
    assert ".." not in address.partition("//")[2]
    fetched = client.get(address)
    assert fetched.content == b"1\n00:00:01,000 --> 00:00:02,000\nde:HI\n"
    assert fetched.headers["content-disposition"] == "attachment; filename*=UTF-8''Gr%C3%BC%C3%9Fe_de.srt"
    assert client.head(address).headers["content-length"] == str(len(fetched.content))
    assert client.get(f"{address[:-5]}.srt").status_code == 404  # a name that was not given out
    same = client.get(upload(client, "a.txt", b"one", target="EN").json()["translatedFileUrl"])
    assert same.content == b"one"  # the language of the file
    monkeypatch.setattr(files, "LIFETIME", -1.0)
    assert client.get(upload(client, "a.txt", b"").json()["translatedFileUrl"]).status_code == 404


def test_files_have_a_report(client):
    """It has a row per sentence, as that of the command, and the answer counts those with warnings."""
    answer = upload(client, "my notes.txt", b"I am here. We have 50 cats in 1999.\n\nOne").json()
    fetched = client.get(answer["reportUrl"])
    assert fetched.headers["content-disposition"] == "attachment; filename*=UTF-8''my%20notes_de.tsv"
    header, *rows = (line.split("\t") for line in fetched.text.splitlines())
    assert header == ["sentence", "source", "score", "confidence", "translation", "warnings"]
    assert [row[:2] for row in rows] == [["1", "I am here."], ["2", "We have 50 cats in 1999."], ["3", "One"]]
    translation = client.get(answer["translatedFileUrl"]).text
    assert all(row[4] in translation for row in rows)
    assert answer["sentences"] == 3
    assert answer["sentencesWithWarnings"] == sum(bool(row[5]) for row in rows)
    unchanged = upload(client, "a.txt", b"one", target="en").json()
    assert (unchanged["sentences"], unchanged["sentencesWithWarnings"]) == (0, 0)


def test_a_report_has_the_texts_that_stay(client):
    formula = '<table:table-cell table:formula="of:=IF([.B1]=&quot;Yes&quot;;1;0)"/>'
    content = f"<x>{formula}<text:p>Yes</text:p><text:p>Open</text:p></x>"
    members = {"mimetype": "application/vnd.oasis.opendocument.spreadsheet", "content.xml": content}
    answer = upload(client, "a.ods", archive(members)).json()
    _, *rows = (line.split("\t") for line in client.get(answer["reportUrl"]).text.splitlines())
    assert [(row[1], row[4], row[5]) for row in rows] == [("Open", "de:OPEN", ""), ("Yes", "Yes", "kept")]
    assert (answer["sentences"], answer["sentencesWithWarnings"]) == (2, 1)


def test_files_of_other_clients_are_kept():
    store = files.FileStore(100)
    first = store.add(b"x" * 30, "a", ".txt", "first client")
    others = [store.add(b"x" * 20, "b", ".txt", "second client") for _ in range(5)]
    assert [store.get(each) is not None for each in (first, *others)] == [True, False, False, False, True, True]
    with pytest.raises(QueueFull):
        store.add(b"x" * 31, "c", ".txt", "third client")
    own = store.add(b"x" * 30, "d", ".txt", "third client")
    for size in (31, 51, 101):  # too large even without the client's own file, which stays
        with pytest.raises(QueueFull):
            store.add(b"x" * size, "e", ".txt", "third client")
        assert store.get(own) is not None
    assert store.get(store.add(b"x" * 30, "f", ".txt", "third client")) is not None
    assert store.get(own) is None


LINES = [f"line {i}" for i in range(400)]
LONG = "\n".join(LINES).encode()  # longer than a request may be


def test_long_file_is_translated_with_progress():
    """Its sentences enter the queue in portions. An answer that takes long begins with empty lines."""
    limits = replace(LIMITS, batch=4, waiting=40, seconds=1)
    with client_of("de-en en-fr", limits=limits, pivot="en") as client:
        first = client.engines["de", "en"]
        first.running.clear()
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(upload, client, "a.txt", LONG, source="de", target="fr")
            time.sleep(0.8)
            first.running.set()
            plain = answer.result(60)
        assert (plain.status_code, plain.text[0]) == (200, "\n")
        answer = upload(client, "a.txt", LONG, source="auto", target="fr", progress="true")
        assert answer.headers["content-type"] == "application/x-ndjson"
        *lines, last = map(json.loads, answer.text.split("\n"))
        shares = [each["progress"] for each in lines]
        assert shares == sorted(shares)
        assert shares[0] < 1
        for result, language in ((plain.json(), "fr:EN"), (last, "fr")):  # "line 1" is English
            expected = [f"{language}:{each.upper()}" for each in LINES]
            assert client.get(result["translatedFileUrl"]).text == "\n".join(expected)
        assert upload(client, "a.txt", b"x " * 50_001).status_code == 413
        refused = upload(client, "a.txt", b"", source="de", target="xx", progress="true")
        assert (refused.status_code, "no model" in refused.json()["error"]) == (400, True)


def waiting(client: TestClient) -> float:
    """Return the number of sentences in the queues."""
    return float(re.findall(r"^relattn_waiting_sentences (\S+)", client.get("/metrics").text, re.MULTILINE)[0])


def test_long_file_does_not_delay_a_text_of_the_same_client():
    limits = replace(LIMITS, batch=4, waiting=40, files=4)
    with client_of("en-de", limits=limits) as client, ThreadPoolExecutor(3) as threads:
        translator = client.engines["en", "de"]
        translator.running.clear()
        files = []
        before = 0.0
        for content in (LONG, b"one"):
            files.append(threads.submit(upload, client, "a.txt", content))
            while waiting(client) == before and not files[-1].done():
                time.sleep(0.01)
            before = waiting(client)
        third = upload(client, "a.txt", LONG)
        assert (third.status_code, "too many files" in third.json()["error"]) == (429, True)
        text = threads.submit(translate, client, q="short")
        while waiting(client) == before:
            time.sleep(0.01)
        translator.running.set()
        assert [answer.result(60).status_code for answer in (text, *files)] == [200, 200, 200]
        assert sum("short" in batch for batch in translator.batches[:2]) == 1
        assert all(len(batch) <= 4 for batch in translator.batches)
        assert upload(client, "b.txt", LONG).status_code == 200


def test_long_file_ends_with_its_client_and_with_the_server():
    boundary = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    body = b"".join(boundary % each for each in ((b"source", b"en"), (b"target", b"de"), (b"progress", b"true")))
    body += (boundary % (b'file"; filename="a.txt', LONG)) + b"--x--\r\n"
    message = {"type": "http.request", "body": body, "more_body": False}
    with client_of("en-de", limits=replace(LIMITS, batch=4, files=1)) as client, ThreadPoolExecutor(1) as threads:
        translator = client.engines["en", "de"]
        translator.running.clear()
        form = {"path": "/translate_file", "content_type": "multipart/form-data; boundary=x"}
        assert client.portal.call(partial(send, client, message, {"type": "http.disconnect"}, **form)) == 499
        file = threads.submit(upload, client, "a.txt", LONG, progress="true")
        while not waiting(client):
            time.sleep(0.01)
        client.portal.call(client.app.state.stopping.set)
        error = json.loads(file.result(60).text.split("\n")[-1])["error"]
        assert "stopping" in error
        assert upload(client, "a.txt", LONG).status_code == 503
        assert waiting(client) == 0
        translator.running.set()
        assert translate(client, q="one").status_code == 200
        assert sum(map(len, translator.batches)) <= 2 * 4 + 1


@pytest.mark.parametrize("name", ["a.html", "a.docx"])
def test_language_of_a_file_is_that_of_its_text(client, name):
    """Not that of its bytes or its scripts."""
    script = "<script>" + "The quick brown fox jumps over the lazy dog. " * 20 + "</script>"
    for text, source, expected in ((GERMAN, "auto", "en:"), (ENGLISH, "auto", ENGLISH)):
        content = f"<html>{script}<p>{text}</p></html>".encode()
        if name == "a.docx":
            document, out = docx.Document(), io.BytesIO()
            document.add_paragraph(text)
            document.save(out)
            content = out.getvalue()
        answer = upload(client, name, content, source=source, target="en").json()
        assert answer["detectedLanguage"]["language"] == ("de" if text == GERMAN else "en")
        translation = client.get(answer["translatedFileUrl"]).content
        if name == "a.docx":
            translation = docx.Document(io.BytesIO(translation)).paragraphs[0].text.encode()
        assert expected.encode() in translation
    answer = translate(client, q=f"{script}<p>{GERMAN}</p>", source="auto", target="en", format="html").json()
    assert answer["detectedLanguage"]["language"] == "de"


@pytest.mark.parametrize(
    ("message", "wrong"),
    {
        "q is missing": [{}],
        "q must have type string, got 1": [{"q": 1}],
        "q must have type string, got object": [{"q": {"a": 1}}, {"q": {}}],
        "maxProperties 1000, got array": [{"q": "x", "glossary": [1]}],
        "q must have type array, items {'type': 'string'}, got 1": [{"q": ["a", 1]}],
        "no model translates from 'xx' to 'de'": [{"q": "x", "source": "xx"}],
        "no model translates from 'en' to '": [{"q": "x", "target": "../x"}, {"q": "x", "target": "auto"}],
        "no model translates from 'de' to 'fr'": [{"q": "ja", "source": "de", "target": "fr"}],
        "format must have type string, enum ['text', 'html', ''], got pdf": [{"q": "x", "format": "pdf"}],
        "alternatives must have type integer, maximum 100, got ": [
            {"q": "x", "alternatives": 101},
            {"q": "x", "alternatives": "many"},
        ],
        "at most 1,000 characters, got 1,001": [{"q": "x" * 1001}],
        "at most 20 sentences, got 21": [{"q": "a.\n" * 21}],
        "at most 5 texts, got 6": [{"q": ["x"] * 6}],
        "the translator refused line 1": [{"q": "please refuse"}],
    }.items(),
)
def test_wrong_parameters(client, message, wrong):
    for parameters in wrong:
        answer = translate(client, **parameters)
        assert answer.status_code == 400
        assert message in answer.json()["error"]
        assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize("body", [b'{"q": "a\\uD800"}', b'{"q": ["\\udc00\\ud800"]}', b'{"\\ud800": 1}'])
def test_half_of_a_surrogate_pair_is_named(client, body):
    answer = client.post("/translate", content=body)
    assert answer.status_code == 400
    assert re.search(r"surrogate pairs, got '.ud[8c]00'", answer.json()["error"])


def test_bodies_that_are_no_request(client):
    surrogate = b'{"q": "\\ud800", "source": "en", "target": "de"}'
    bodies = (b"{", b"[1]", b'"x"', b"\xff\xfe", b"[" * 60_000, b'{"q": 1' + b"0" * 5000 + b"}", surrogate)
    for body in bodies:
        for kind in ("application/json", "", "multipart/form-data", "multipart/form-data; boundary=x"):
            answer = client.post("/translate", content=body, headers={"Content-Type": kind})
            assert answer.status_code == 400, (body[:20], kind)
            assert "error" in answer.json()
    for content in (b" " * 1_000_000, (b" " * 10_000 for _ in range(100))):
        assert client.post("/translate", content=content).status_code == 413
    parameters = {"source": "en", "target": "de"}
    for size in (120_000, 200_000):  # more than a file, or a request, may have
        answer = client.post("/translate_file", data=parameters, files={"file": ("a.txt", b"x" * size)})
        assert answer.status_code == 413
    both = {"Content-Length": "3", "Transfer-Encoding": "chunked"}
    assert client.post("/translate", content=b"q=x", headers=both).status_code == 400
    assert client.get("/translate").status_code == 405
    assert client.head("/health").status_code == 200
    for path in ("/nothing", "/../../etc/passwd", "/page/../api.py", "/download_file/..%2f..%2fetc%2fpasswd"):
        answer = client.get(path)
        assert (answer.status_code, list(answer.json())) == (404, ["error"])


PIECES = [*"a. <>&\n\0\x1b\u202e\ufeff😀\uffff", "<b>", "</b>", "<!--", "]]>", "<m0>", "</m0>", "&#xd800;", "<script>"]
TEXTS = st.one_of(st.text(max_size=20), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))


@settings(max_examples=60)
@given(TEXTS, st.sampled_from(["text", "html", "x", *(f"a{suffix}" for suffix in FORMATS)]), st.integers(0, 4))
def test_any_text_is_answered(client, text, kind, alternatives):
    """A text, or a file with it, never causes an internal error."""
    if "." in kind:
        file = {"file": (kind, text.encode("utf-8", "surrogatepass"))}
        answer = client.post("/translate_file", data={"source": "auto", "target": "de"}, files=file)
    else:
        answer = translate(client, q=text, source="auto", format=kind, alternatives=alternatives)
    assert answer.status_code in (200, 400)
    if "." not in kind and "\0" in text:
        assert answer.status_code == 400
    elif kind == "text":
        assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"


def test_nul_is_refused(client):
    wide = "Good morning".encode("utf-16-le").decode()
    language = {"source": "en", "target": "de"}
    for path, body in (
        ("/translate", {**language, "q": wide}),
        ("/translate", {**language, "q": ["one", wide], "format": "html"}),
        ("/translate", {**language, "q": "one", "glossary": {"one": "eins\0"}}),
        ("/translate", {"q": wide, "source": "auto", "target": "en"}),
        ("/detect", {"q": wide}),
        ("/words", {**language, "q": wide}),
        ("/words", {**language, "q": "one", "prefix": "de:\0"}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 400, body
        assert "must be text without NUL" in answer.json()["error"]
    answer = upload(client, "a.txt", wide.encode())
    assert answer.status_code == 400
    assert "iconv -f UTF-16LE" in answer.json()["error"]


def test_concurrent_requests_share_batches():
    with client_of("en-de") as client, ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda i: translate(client, q=f"a{i}.\nb{i}").json(), range(40)))
        assert answers == [{"translatedText": f"de:A{i}.\nde:B{i}"} for i in range(40)]
        assert len(client.engines["en", "de"].batches) < 40
        metrics = client.get("/metrics").text
    assert 'relattn_requests_total{route="/translate",status="200"} 40.0' in metrics
    assert "relattn_batch_sentences_sum 80.0" in metrics


@pytest.mark.parametrize(
    ("limit", "html"), {"parsing": "<b " + "a=b " * 4_000_000, "memory": "<b>😀" + "x" * 18_000_000}.items()
)
def test_parsing_has_limits(limit, html):
    """A file that takes too much time or memory is refused. Meanwhile, others are answered."""
    limits = replace(LIMITS, file=20_000_000, parsing=1, memory=100_000_000 if limit == "memory" else LIMITS.memory)
    with client_of("en-de", limits=limits) as client, ThreadPoolExecutor(4) as threads:
        upload(client, "a.html", b"<p>One</p>")  # starts a process
        refused = threads.submit(upload, client, "a.html", html.encode())
        began = time.monotonic()
        assert translate(client, q="two").json() == {"translatedText": "de:TWO"}
        assert limit == "memory" or not refused.done(), time.monotonic() - began
        answer = refused.result(60)
        assert (answer.status_code, "too much time or memory" in answer.text) == (422, True), answer.text
        assert translate(client, q="<p>Three</p>", format="html").json() == {"translatedText": "<p>de:THREE</p>"}


async def send(
    client: TestClient, *messages: dict[str, Any], path: str = "/translate", content_type: str = "application/json"
) -> int:
    """Return the status of a request whose client sends these messages and no others; 499 without an answer."""
    queue, statuses = list(messages), []
    headers = [(b"content-type", content_type.encode())]
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "headers": headers}

    async def receive() -> dict[str, Any]:
        if not queue:
            await asyncio.sleep(60)
        return queue.pop(0)

    async def note(message: dict[str, Any]) -> None:
        statuses.append(message.get("status"))

    await client.app({**scope, "query_string": b"", "raw_path": path.encode()}, receive, note)  # type: ignore[arg-type]
    return statuses[0] if statuses else 499


def test_full_queue_and_deadlines():
    """A request is refused if the queue is full, or if it takes too long to receive or to answer."""
    body = json.dumps({"q": "gone 1.\ngone 2.\ngone 3.", "source": "en", "target": "de"}).encode()
    message = {"type": "http.request", "body": body, "more_body": False}
    limits = Limits(sentences=5, waiting=5, batch=1, seconds=2)
    with client_of("en-de", limits=limits) as client, ThreadPoolExecutor(8) as threads:
        translator = client.engines["en", "de"]
        translator.running.clear()
        requests = [threads.submit(translate, client, q=f"text {i}") for i in range(8)]
        while sum(request.done() for request in requests) < 2:
            time.sleep(0.01)
        translator.running.set()
        answers = [request.result(60) for request in requests]
        assert {answer.status_code for answer in answers} == {200, 429}
        assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 429)
        texts = [answer.json().get("translatedText", f"de:TEXT {i}") for i, answer in enumerate(answers)]
        assert texts == [f"de:TEXT {i}" for i in range(8)]
        translator.running.clear()
        translator.batches.clear()
        assert client.portal.call(send, client, message, {"type": "http.disconnect"}) == 499
        assert "relattn_waiting_sentences 0.0" in client.get("/metrics").text
        late = threads.submit(translate, client, q="late")
        assert client.portal.call(send, client, {**message, "more_body": True}) == 408
        answer = late.result(60)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
        assert "2 seconds" in answer.json()["error"]
        translator.running.set()
        lines = {line for batch in translator.batches for line in batch}
        assert lines <= {"gone 1.", "late"}  # nothing else is translated for a client that disconnected


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, None])
def test_health_is_that_of_the_translation(error, monkeypatch):
    """The server recovers with it. With None, the translator does not return."""
    monkeypatch.setattr("relattn_mt.serve.routing._PROBE_SECONDS", 0.3)
    with client_of("en-de", limits=replace(LIMITS, seconds=1)) as client:
        translator = client.engines["en", "de"]

        def statuses() -> list[int]:
            return [client.get("/health").status_code, translate(client, q="x").status_code]

        assert statuses() == [200, 200]
        if error is None:
            translator.running.clear()
            assert statuses() == [200, 429]  # it may only be busy
        else:
            translator.error = error
        answer = client.get("/health")
        assert (answer.status_code, "cannot translate" in answer.json()["error"]) == (503, True)
        assert statuses() == [503, 429 if error is None else 500]
        translator.running.set()
        translator.error = None
        while client.get("/health").status_code != 200:  # the batch ends, or the next word is translated
            time.sleep(0.01)
        assert statuses() == [200, 200]


def test_health_of_each_model():
    with client_of("en-de en-fr") as client:
        second = client.engines["en", "fr"]
        second.search = lambda *_, **__: []  # no result per item
        assert translate(client, q="x", target="fr").status_code == 500
        assert client.get("/health").status_code == 503
        assert translate(client, q="x").status_code == 200
        del second.search
        assert client.get("/health").status_code == 200
        assert translate(client, q="please refuse").status_code == 400
        assert client.get("/health").status_code == 200  # the request was at fault


def test_log_has_no_text_and_no_key(client, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "relattn_mt.serve")
    translate(client, q="my secret", api_key="my key")
    client.post("/translate?q=my+secret&api_key=my+key&source=en&target=de")
    rows = [json.loads(record.message) for record in caplog.records if record.name == "relattn_mt.serve"]
    assert [(row["route"], row["status"]) for row in rows] == [("/translate", 200)] * 2

    monkeypatch.setattr(client.engines["en", "de"], "error", RuntimeError("my secret"))
    answer = translate(client, q="x")
    assert answer.status_code == 500
    assert "RuntimeError at " in caplog.text
    assert "my" not in answer.text + caplog.text
