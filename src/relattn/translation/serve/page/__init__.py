"""The page of a server, and what it asks for beside LibreTranslate's routes: words with their confidence, attention."""

from __future__ import annotations

from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from relattn.translation.config import Part
from relattn.translation.errors import InputError
from relattn.translation.serve.parameters import parameters

if TYPE_CHECKING:
    from relattn.translation.serve.app import Api


class Words(BaseModel):
    """What is asked of /words."""

    q: str
    source: str
    target: str
    alternatives: int = Field(0, ge=0, le=100)
    api_key: str = ""


class Attention(BaseModel):
    """What is asked of /attention."""

    q: str
    source: str
    target: str
    part: Part = "encoder"
    layer: int = Field(1, ge=1, le=1000)
    api_key: str = ""


class Page:
    """The page's routes.

    Args:
        api: that it is a page of.
    """

    FILES = {  # noqa: RUF012
        "/": ("index.html", "text/html; charset=utf-8"),
        "/page.css": ("page.css", "text/css; charset=utf-8"),
        "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    }

    def __init__(self, api: Api) -> None:
        self._api = api

    async def file(self, request: Request) -> Response:
        """A file of the page."""
        name, kind = self.FILES[request.url.path]
        return Response(files(__name__).joinpath(name).read_bytes(), media_type=kind)

    async def words(self, request: Request) -> Response:
        """A translation word by word, each with its confidence, and others."""
        given = self._api.admitted(Words, await parameters(request))
        self._api.translating.require_few_characters([given.q])
        (source,), detected = self._api.sources([given.q], given.source)
        answer: dict[str, Any] = {"words": [{"text": given.q, "confidence": None}], "alternatives": []}
        if source != given.target:
            count = given.alternatives + 1
            words, others = await self._api.translating.words(given.q, source, given.target, count=count)
            answer = {"words": [asdict(word) for word in words], "alternatives": others}
        if detected:
            answer["detectedLanguage"] = detected[0]
        return JSONResponse(answer)

    async def attention(self, request: Request) -> Response:
        """What one layer reads in the first sentence: content and relative part of its scores, and their softmax."""
        given = self._api.admitted(Attention, await parameters(request))
        self._api.translating.require_few_characters([given.q])
        (source,), _ = self._api.sources([given.q], given.source)
        found = await self._api.translating.inspection(given.q, source, given.target)
        layers: list[Any] = getattr(found, given.part)
        if given.layer > len(layers):
            raise InputError(f"layer must be at most {len(layers)}, got {given.layer}")
        from relattn.translation.analysis.attention import numbers, view_as_data

        one = layers[given.layer - 1]
        across = found.target if given.part == "decoder" else found.source
        answer: dict[str, Any] = {"part": given.part, "layers": len(layers), "across": across, "down": across}
        if given.part == "cross":
            answer |= {"weights": numbers(one), "down": found.written}
        else:
            answer |= view_as_data(one)
        return JSONResponse(answer | {"heads": len(answer["weights"])})
