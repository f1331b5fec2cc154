"""Description of the API for OpenAPI: the body of each request, its answer and its errors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from relattn.translation.serve.api import AUTO, FORM, MULTIPART
from relattn.translation.serve.progress import JSON_LINES
from relattn.translation.serve.routing import Router

ERRORS = {
    400: "a parameter is missing or wrong, or the request is not valid HTTP",
    403: "api_key is missing or wrong, or the request comes from a web page of another site",
    404: "the file does not exist or has expired",
    408: "the request was not received in time",
    413: "the request is too large",
    422: "HTML or a file takes too much time or memory to parse",
    429: "the queue is full, the request took too long, or there are too many connections; try again after Retry-After",
    500: "internal server error",
    503: "the server cannot translate, or is stopping",
}
_Schema = dict[str, Any]


def _object(optional: dict[str, _Schema] | None = None, **required: _Schema) -> _Schema:
    properties = required | (optional or {})
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _array(items: _Schema, dimensions: int = 1) -> _Schema:
    return {"type": "array", "items": _array(items, dimensions - 1) if dimensions > 1 else items}


def _or_array(one: _Schema) -> _Schema:
    """Return the schema of a value, or of an array with one per text of a request with an array of texts."""
    return {"anyOf": [one, _array(one)]}


def _nullable(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_STRING, _INTEGER, _BOOLEAN = ({"type": name} for name in ("string", "integer", "boolean"))
_PERCENT = {"type": "number", "minimum": 0, "maximum": 100}
_PROBABILITY = {"type": "number", "minimum": 0, "maximum": 1}
_DETECTED = _object(language=_STRING, confidence=_PERCENT)
_LANGUAGE = _object(code=_STRING, name=_STRING)
_RANGE = {**_array(_INTEGER), "minItems": 2, "maxItems": 2}
_WORD = _object(text=_STRING, confidence=_nullable(_PROBABILITY), sentence=_nullable(_INTEGER), sources=_array(_RANGE))
_ANSWERS = {
    "/translate": _object(
        {
            "detectedLanguage": _or_array(_DETECTED),
            "alternatives": _or_array(_array(_STRING)),
            "confidence": _or_array(_PROBABILITY),
            "warnings": _or_array(_array(_STRING)),
        },
        translatedText=_or_array(_STRING),
    ),
    "/detect": _array(_DETECTED),
    "/translate_file": {
        "anyOf": [_object(translatedFileUrl={"type": "string", "format": "uri"}), _object(error=_STRING)]
    },
    "/words": _object(
        {"detectedLanguage": _DETECTED},
        sentences=_array(_STRING),
        words=_array(_WORD),
        alternatives=_array(_STRING),
        warnings=_array(_STRING),
        hasChoices=_BOOLEAN,
    ),
    "/languages": _array(_object(code=_STRING, name=_STRING, targets=_array(_STRING))),
    "/frontend/settings": _object(
        apiKeys=_BOOLEAN,
        charLimit=_INTEGER,
        examples={"type": "object", "additionalProperties": _array(_STRING)},
        filesTranslation=_BOOLEAN,
        frontendTimeout=_INTEGER,
        keyRequired=_BOOLEAN,
        language=_object(source=_LANGUAGE, target=_LANGUAGE),
        suggestions=_BOOLEAN,
        supportedFilesFormat=_array(_STRING),
    ),
    "/health": _object(status={"const": "ok"}),
    "/download_file/{name}": {"type": "string", "format": "binary"},
    "/metrics": _STRING,
}
_CONTENT_TYPES = {"/download_file/{name}": "application/octet-stream", "/metrics": "text/plain"}  # others are JSON
_ALWAYS = 400, 403, 408, 429, 500  # errors of every route
_OTHER_ERRORS = {
    "/translate": (413, 422),
    "/translate_file": (413, 422, 503),
    **dict.fromkeys(("/detect", "/words"), (413,)),
    "/download_file/{name}": (404,),
    "/health": (503,),
}


def describe(path: str, body: type[BaseModel] | None, router: Router) -> _Schema:
    """Return the description of a route for OpenAPI, as far as FastAPI cannot know it."""
    error = {"application/json": {"schema": _object(error=_STRING)}}
    responses: dict[str, _Schema] = {
        str(status): {"description": ERRORS[status], "content": error}
        for status in sorted({*_ALWAYS, *_OTHER_ERRORS.get(path, ())})
    }
    responses["429"]["headers"] = {"Retry-After": {"description": "seconds to wait", "schema": _INTEGER}}
    if path in _ANSWERS:
        content = {_CONTENT_TYPES.get(path, "application/json"): {"schema": _ANSWERS[path]}}
        if path == "/translate_file":  # with progress
            content[JSON_LINES] = {"schema": _STRING}
        responses["200"] = {"description": "the result", "content": content}
    description: _Schema = {"responses": responses}
    if "{name}" in path:
        description["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": _STRING}]
    if body is not None:
        description["requestBody"] = _body(body, router)
    return description


def _body(body: type[BaseModel], router: Router) -> _Schema:
    """Return the description of the body of a request."""
    schema = body.model_json_schema()
    for name, codes in (("source", [*router.sources, AUTO]), ("target", router.codes)):
        if name in schema["properties"]:
            schema["properties"][name]["enum"] = codes
    content_types = [MULTIPART] if "file" in schema["properties"] else ["application/json", FORM]
    return {"required": True, "content": {content_type: {"schema": schema} for content_type in content_types}}
