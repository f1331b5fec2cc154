"""Parameters of requests: JSON, a form, or the query of the URL. One schema per route describes and checks them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.requests import Request

from relattn_mt.support.errors import InputError, one_line, require
from relattn_mt.text.sentences import LONGEST

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
MOST_TERMS = 1000
MOST_PREFIX = 4 * LONGEST  # characters; a translation may be longer than its sentence
Schema = dict[str, Any]  # JSON schema
STRING: Schema = {"type": "string"}
_TYPES = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object", tuple: "file"}


def _optional(default: Any, description: str = "", **schema: Any) -> Schema:
    schema |= {"description": description} if description else {}
    return {"type": _TYPES[type(default)], "default": default, **schema}


def _parameters(path: str, **properties: Schema) -> Schema:
    properties["api_key"] = _optional("")
    required = [name for name, schema in properties.items() if "default" not in schema]
    description = f"Parameters of {path}."
    return {"type": "object", "description": description, "properties": properties, "required": required}


_LANGUAGES = {"source": STRING, "target": STRING}
_LITERALS = "copy placeholders, addresses, @names, hashtags, emoji, long numbers and identifiers unchanged"
PARAMETERS = {  # by path
    "/translate": _parameters(
        "/translate",
        q={"anyOf": [STRING, {"type": "array", "items": STRING}], "description": "text or list of texts"},
        source={**STRING, "description": "language of the text, or auto to detect it"},
        target={**STRING, "description": "language to translate into"},
        format=_optional("text", "format of the text; empty means text", enum=["text", "html", ""]),
        alternatives=_optional(0, "maximum number of other translations per text; none if negative", maximum=100),
        keep_literals=_optional(True, _LITERALS),
        warnings=_optional(False, "report what is implausible in the translation"),
        confidence=_optional(False, "report exp of the mean log-probability of the translation's tokens"),
        glossary=_optional({}, "terms and their translations", additionalProperties=STRING, maxProperties=MOST_TERMS),
    ),
    "/translate_file": _parameters(
        "/translate_file",
        **_LANGUAGES,
        keep_literals=_optional(True, _LITERALS),
        progress=_optional(False, "report progress: the answer is a JSON object per line"),
        file={**STRING, "format": "binary"},
    ),
    "/detect": _parameters("/detect", q=STRING),
    "/words": _parameters(
        "/words",
        q=STRING,
        **_LANGUAGES,
        alternatives=_optional(0, minimum=0, maximum=100),
        prefix=_optional("", "beginning of the translation; requires a text of one sentence", maxLength=MOST_PREFIX),
        choice=_optional("", "translation whose words are returned; one of those that `alternatives` allows"),
    ),
}


def check_parameters(parameters: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return all parameters of a route, with defaults. Raises InputError if one is missing or wrong."""
    for name in schema["required"]:
        require(name in parameters, f"{name} is missing")
    return {
        name: _convert(name, parameters[name], each) if name in parameters else each["default"]
        for name, each in schema["properties"].items()
    }


def _convert(name: str, value: Any, schema: Schema) -> Any:
    """Return a parameter in the type of its schema, a number or a boolean of a form too. Raises InputError."""
    schema = schema["anyOf"][isinstance(value, list)] if "anyOf" in schema else schema
    kind = "file" if "format" in schema else schema["type"]
    if kind in ("integer", "boolean") and isinstance(value, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(value.lower())
    limits = [schema[key] for key in ("maximum", "maxLength", "maxProperties") if key in schema]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    is_right = (
        _TYPES.get(type(value)) == kind
        and all(isinstance(each, str) for each in parts)
        and value in schema.get("enum", [value])
        and schema.get("minimum", -inf) <= (value if isinstance(value, int) else len(value)) <= min(limits, default=inf)
    )
    rule = ", ".join(f"{key} {each}" for key, each in schema.items() if key not in ("default", "description"))
    wrong = [json.dumps(each) for each in parts if not isinstance(each, str)]
    got = value if isinstance(value, str | int | float) else ", ".join(wrong) or _TYPES.get(type(value))
    require(is_right, f"{name} must have {rule}, got {one_line(got, 40)}")
    return value


async def read_parameters(request: Request) -> dict[str, Any]:
    """Return the parameters of a request by name, a file as (name, content). Raises InputError for another body."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    parameters: dict[str, Any] = _urlencoded(request.scope["query_string"])
    if content_type == FORM:
        parameters |= _urlencoded(await request.body())
    elif content_type == MULTIPART:
        async with request.form(max_files=1, max_fields=100, max_part_size=1 << 30) as form:
            for name in form:
                values = [
                    (each.filename or "", await each.read()) if isinstance(each, UploadFile) else each
                    for each in form.getlist(name)
                ]
                parameters[name] = values[0] if len(values) == 1 else values
    elif body := await request.body():
        try:
            content = json.loads(body)
            json.dumps(content, ensure_ascii=False).encode()  # refuse half of a surrogate pair
        except (ValueError, RecursionError) as error:
            raise InputError("the body must be JSON in UTF-8, or a form with its Content-Type") from error
        require(isinstance(content, dict), "the body must be a JSON object")
        parameters |= content
    return {name: value for name, value in parameters.items() if value is not None}


def _urlencoded(content: bytes) -> dict[str, Any]:
    """Return the parameters of a form or a query. Bytes that are not escaped are UTF-8, as curl sends them."""
    try:
        pairs = parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=100, errors="strict")
    except ValueError as error:
        raise InputError("a form must be UTF-8 and have at most 100 fields") from error
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: each[0] if len(each) == 1 else each for name, each in values.items()}
