"""Description of the API for OpenAPI: the body of each request, its answer and its errors."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.routing import Route

from relattn_mt.serve.api import AUTO
from relattn_mt.serve.parameters import FORM, MULTIPART, PARAMETERS, STRING, Schema
from relattn_mt.serve.progress import JSON_LINES
from relattn_mt.serve.routing import Router

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


def _object(optional: dict[str, Schema] | None = None, **required: Schema) -> Schema:
    properties = required | (optional or {})
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_array(one: Schema) -> Schema:
    """Return the schema of a value, or of an array with one per text of a request with an array of texts."""
    return {"anyOf": [one, _array(one)]}


_INTEGER, _BOOLEAN, _NULL = ({"type": name} for name in ("integer", "boolean", "null"))
_PROBABILITY = {"type": "number", "minimum": 0, "maximum": 1}
_DETECTED = _object(language=STRING, confidence={"type": "number", "minimum": 0, "maximum": 100})
_LANGUAGE = _object(code=STRING, name=STRING)
_RANGE = {**_array(_INTEGER), "minItems": 2, "maxItems": 2}
_WORD = _object(
    text=STRING,
    confidence={"anyOf": [_PROBABILITY, _NULL]},
    sentence={"anyOf": [_INTEGER, _NULL]},
    sources=_array(_RANGE),
)
_ANSWERS = {
    "/translate": _object(
        {
            "detectedLanguage": _or_array(_DETECTED),
            "alternatives": _or_array(_array(STRING)),
            "confidence": _or_array(_PROBABILITY),
            "warnings": _or_array(_array(STRING)),
        },
        translatedText=_or_array(STRING),
    ),
    "/detect": _array(_DETECTED),
    "/translate_file": {
        "anyOf": [
            _object({"detectedLanguage": _DETECTED}, translatedFileUrl={"type": "string", "format": "uri"}),
            _object(error=STRING),
        ]
    },
    "/words": _object(
        {"detectedLanguage": _DETECTED},
        sentences=_array(STRING),
        words=_array(_WORD),
        alternatives=_array(STRING),
        warnings=_array(STRING),
        hasChoices=_BOOLEAN,
    ),
    "/languages": _array(_object(code=STRING, name=STRING, targets=_array(STRING))),
    "/frontend/settings": _object(
        apiKeys=_BOOLEAN,
        charLimit=_INTEGER,
        sentenceLimit=_INTEGER,
        examples={"type": "object", "additionalProperties": _array(STRING)},
        filesTranslation=_BOOLEAN,
        frontendTimeout=_INTEGER,
        keyRequired=_BOOLEAN,
        language=_object(source=_LANGUAGE, target=_LANGUAGE),
        suggestions=_BOOLEAN,
        supportedFilesFormat=_array(STRING),
    ),
    "/health": _object(status={"const": "ok"}),
    "/download_file/{name}": {"type": "string", "format": "binary"},
    "/metrics": STRING,
}
_CONTENT_TYPES = {"/download_file/{name}": "application/octet-stream", "/metrics": "text/plain"}  # others are JSON
_ALWAYS = 400, 403, 408, 429, 500  # errors of every route
_OTHER_ERRORS = {
    "/translate": (413, 422, 503),
    "/translate_file": (413, 422, 503),
    "/detect": (413,),
    "/words": (413, 503),
    "/download_file/{name}": (404,),
    "/health": (503,),
}


def describe(routes: Sequence[Route], router: Router) -> Schema:
    """Return the description of the routes of an API for OpenAPI."""
    paths: dict[str, Schema] = {route.path: {} for route in routes}
    for route in routes:
        for method in (route.methods or set()) - {"HEAD"}:
            paths[route.path][method.lower()] = {
                "summary": route.name.replace("_", " ").title(),
                "description": route.endpoint.__doc__,
                "operationId": re.sub(r"\W", "_", f"{route.name}{route.path}_{method.lower()}"),
                **_operation(route.path, router),
            }
    return {"openapi": "3.1.0", "info": {"title": "relattn-mt", "version": "0.1.0"}, "paths": paths}


def _operation(path: str, router: Router) -> Schema:
    """Return the parameters, answers and errors of a route."""
    error = {"application/json": {"schema": _object(error=STRING)}}
    responses: dict[str, Schema] = {
        str(status): {"description": ERRORS[status], "content": error}
        for status in sorted({*_ALWAYS, *_OTHER_ERRORS.get(path, ())})
    }
    responses["429"]["headers"] = {"Retry-After": {"description": "seconds to wait", "schema": _INTEGER}}
    if path in _ANSWERS:
        content = {_CONTENT_TYPES.get(path, "application/json"): {"schema": _ANSWERS[path]}}
        if path == "/translate_file":  # with progress
            content[JSON_LINES] = {"schema": STRING}
        responses["200"] = {"description": "the result", "content": content}
    description: Schema = {"responses": responses}
    if "{name}" in path:
        description["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": STRING}]
    if body := PARAMETERS.get(path):
        properties = {**body["properties"]}
        for name, codes in (("source", [*router.sources, AUTO]), ("target", router.codes)):
            if name in properties:
                properties[name] = {**properties[name], "enum": codes}
        content_types = [MULTIPART] if "file" in properties else ["application/json", FORM]
        schema = {"schema": {**body, "properties": properties}}
        description["requestBody"] = {"required": True, "content": dict.fromkeys(content_types, schema)}
    return description
