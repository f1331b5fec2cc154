"""Pairs of parameters of /translate, in JSON, a form and a query: what each changes, whatever the others are."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.covering import combinations
from tests.support.servers import client_of

QUESTION = "Good morning, how are you doing today?"
TEXTS = {  # what is sent, and its translation, by format and whether literals are kept
    "one": QUESTION,
    "several": [QUESTION, "", "A cat sat."],
    "sentences": f"{QUESTION} The cat sat.\nIt slept.",
}
TERM = {"cat": "KATZE"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of("en-de de-en") as client:
        yield client


def translation(text: str, mark: str = "") -> str:
    """Return the translation of a text without markup, each sentence of which has a mark at its end."""
    lines = []
    for line in text.split("\n"):
        sentences = line.replace("? T", "?|T").replace(". I", ".|I").split("|")
        lines.append(" ".join(f"de:{each.upper()}{mark}" for each in sentences if each))
    return "\n".join(lines)


CASES = combinations(
    text=list(TEXTS), source=["en", "EN", "auto"], format=["text", "html", "", None], alternatives=[-1, 0, 1, 2, None],
    keep_literals=[True, False, None], warnings=[True, False, None], confidence=[True, False, None],
    glossary=[{}, TERM, None], way=["JSON", "form", "query", "multipart"],
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pairs_of_parameters(client: TestClient, case: dict[str, Any]) -> None:
    """None leaves a parameter out."""
    options = dict(case)
    text, way, alternatives = (options.pop(name) for name in ("text", "way", "alternatives"))
    question = TEXTS[text] if way == "JSON" or text != "several" else QUESTION
    sent: dict[str, Any] = {"q": question, "target": "de", "alternatives": alternatives, **options}
    if way != "JSON":
        sent["glossary"] = None  # an object
    sent = {name: value for name, value in sent.items() if value is not None}
    plain = {name: value if isinstance(value, str | dict) else str(value) for name, value in sent.items()}
    match way:
        case "JSON":
            answer = client.post("/translate", json=sent)
        case "form":
            answer = client.post("/translate", data=plain)
        case "query":
            answer = client.post("/translate", params=plain)
        case "multipart":
            answer = client.post("/translate", data=plain, files={"other": b""})
    assert answer.status_code == 200, answer.text
    found, several = answer.json(), isinstance(question, list)
    count = max(0, alternatives or 0)
    texts = listed = question if several else [question]

    def shaped(values: list[Any]) -> Any:
        return values if several else values[0]

    if options["format"] == "html":  # where the end of a line is a space
        texts = [each.replace("\n", " ") for each in listed]
    wanted: dict[str, Any] = {"translatedText": shaped([translation(each) for each in texts])}
    if count:
        others = [[translation(each, "'" * k) for k in range(1, count + 1)] if each else [] for each in texts]
        wanted["alternatives"] = shaped(others)
    names = {*wanted}
    for name, is_asked in (("detectedLanguage", options["source"] == "auto"), ("warnings", options["warnings"]),
                           ("confidence", options["confidence"])):  # fmt: skip
        names |= {name} if is_asked else set()
    assert found.keys() == names
    assert {name: found[name] for name in wanted} == wanted
    for name in names - {*wanted}:
        assert isinstance(found[name], list) or not several
        if several:
            assert len(found[name]) == len(listed)
    if options["source"] == "auto":
        first = found["detectedLanguage"][0] if several else found["detectedLanguage"]
        assert first["language"] == "en"
