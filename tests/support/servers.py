"""A server's application in the test's process, with translators whose results show what they did."""

import re
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from relattn_mt.config import SearchConfig
from relattn_mt.search.types import Hypothesis, Request, SearchRules
from relattn_mt.serve.app import make_app
from relattn_mt.serve.limits import Limits
from relattn_mt.serve.routing import Router
from relattn_mt.support.errors import InputError
from relattn_mt.translate.translator import Translator
from starlette.testclient import TestClient

from tests.support.engines import TextEngine
from tests.support.marked import Characters

LIMITS = Limits(characters=1000, sentences=20, texts=5, file=100_000, waiting=80)


class Shouting(TextEngine):
    """Engine that translates into capitals and "5 %" for "5%", with the target language in front.

    It can be stopped with `running`. `batches` has the texts of each call. A call fails with `error`, if there is one.
    """

    def __init__(self, name: str) -> None:
        super().__init__(Characters(), lambda text: [f"{name}{_shout(text)}" + "'" * k for k in range(9)], _links)
        self.batches: list[list[str]] = []
        self.running = threading.Event()
        self.running.set()
        self.error: BaseException | type[BaseException] | None = None

    def search(self, requests: Sequence[Request], rules: SearchRules) -> list[list[Hypothesis]]:
        lines = [self.tokenizer.decode(request.src_ids[:-1]) for request in requests]
        self.batches.append(lines)
        assert self.running.wait(60)
        if any("refuse" in line for line in lines):
            raise InputError("the translator refused line 1")
        if self.error:
            raise self.error
        return super().search(requests, rules)


def _links(source: str, target: str) -> list[tuple[int, int]]:
    counts = [len(_shout(word).split()) for word in source.split()]
    sources = [i for i, count in enumerate(counts) for _ in range(count)]
    return [(word, place) for place, word in enumerate(sources)]


def _shout(text: str) -> str:
    return re.sub(r"(?<=\d)%", " %", text.upper())


def shouting(name: str) -> Translator:
    """Return a translator with a `Shouting`."""
    tokenizer: Any = Characters()
    return Translator(Shouting(name), tokenizer, SearchConfig(beam_size=3))  # type: ignore[arg-type]


def validated(client: TestClient) -> TestClient:
    """Return a client that compares each answer with the description of the API.

    Its attribute `statuses` has the method, route and status of each answer.
    """
    paths = client.get("/spec", headers={"Host": "localhost"}).json()["paths"]
    statuses: set[tuple[str, str, int]] = set()

    @cache
    def validator(method: str, path: str, status: int, content_type: str) -> Draft202012Validator:
        described = paths[path][method.lower()]["responses"][str(status)]["content"][content_type]["schema"]
        Draft202012Validator.check_schema(described)
        return Draft202012Validator(described)

    def validate(answer: Any) -> None:
        method, path = answer.request.method, re.sub("/download_file/.*", "/download_file/{name}", answer.url.path)
        if method.lower() not in paths.get(path, ()):
            return
        answer.read()
        content_type = answer.headers["content-type"].partition(";")[0]
        content = answer.json() if content_type == "application/json" else answer.text
        validator(method, path, answer.status_code, content_type).validate(content)
        assert answer.status_code != 429 or answer.headers["retry-after"].isdigit()
        statuses.add((method, path, answer.status_code))

    client.event_hooks = {"response": [validate]}  # type: ignore[attr-defined]
    client.statuses = statuses  # type: ignore[attr-defined]
    return client


def client_of(pairs: str, *, limits: Limits = LIMITS, pivot: str = "", **options: Any) -> TestClient:
    """Return a client of an application with a `Shouting` per pair, such as "en-de", in `client.engines`."""
    translators = {(pair[:2], pair[3:]): shouting(f"{pair[3:]}:") for pair in pairs.split()}
    client = validated(TestClient(make_app(Router(translators, limits, pivot=pivot), **options)))
    client.engines = {pair: each.engine for pair, each in translators.items()}  # type: ignore[attr-defined]
    return client


def translate(client: TestClient, **parameters: Any) -> Any:
    """Return the response to a translation from English to German, if not said otherwise."""
    return client.post("/translate", json={"source": "en", "target": "de", **parameters})


def upload(
    client: TestClient, name: str, content: bytes, headers: dict[str, str] | None = None, **parameters: str
) -> Any:
    """Return the response to a file to translate."""
    data = {"source": "en", "target": "de", **parameters}
    return client.post("/translate_file", data=data, files={"file": (name, content)}, headers=headers)
