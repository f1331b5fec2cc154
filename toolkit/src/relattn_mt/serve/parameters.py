"""Parameters of requests: JSON, a form, or the query of the URL, checked with the schemas of `openapi.yaml`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from importlib.resources import files
from math import inf
from typing import Any
from urllib.parse import parse_qsl

import yaml
from starlette.datastructures import UploadFile
from starlette.requests import Request

from relattn_mt.support.errors import InputError, one_line, require

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
Schema = dict[str, Any]  # JSON schema
Parameters = dict[str, Any]  # of a request, by name
_TYPES = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object", tuple: "file"}
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DESCRIPTION: Schema = yaml.load((files("relattn_mt.serve") / "openapi.yaml").read_bytes(), _LOADER)


def _request_schemas(description: Schema, path: str) -> list[Schema]:
    """Return the schemas of the parameters of a route, one per type of content; none if it has no parameters."""
    operation = description["paths"][path].get("post", {})
    contents = operation.get("requestBody", {"content": {}})["content"]
    return [content["schema"] for content in contents.values()]


def describe(languages: Mapping[str, Sequence[str]]) -> Schema:
    """Return the description of the API for OpenAPI, with the codes that the parameters `languages` may have."""
    description = deepcopy(_DESCRIPTION)
    for path in description["paths"]:
        for schema in _request_schemas(description, path):
            for name in languages.keys() & schema["properties"].keys():
                schema["properties"][name]["enum"] = languages[name]
    return description


def check_parameters(parameters: Mapping[str, Any], path: str) -> Parameters:
    """Return all parameters of a route, with defaults. Raises InputError if one is missing or wrong."""
    schema = _request_schemas(_DESCRIPTION, path)[0]
    for name in schema["required"]:
        require(name in parameters, f"{name} is missing")
    return {
        name: _convert(name, parameters[name], each) if name in parameters else each["default"]
        for name, each in schema["properties"].items()
    }


def _convert(name: str, value: Any, schema: Schema) -> Any:
    """Return a parameter in the type of its schema, also one that a form has as JSON. Raises InputError."""
    if "anyOf" in schema:
        schema = schema["anyOf"][isinstance(value, list)]
    kind = "file" if "format" in schema else schema["type"]
    if kind in ("integer", "boolean", "object") and isinstance(value, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(value if kind == "object" else value.lower())
    given_kind = _TYPES.get(type(value))
    is_right = given_kind == kind
    got = value if isinstance(value, str | int | float) else given_kind
    if is_right and isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        wrong = [json.dumps(part) for part in parts if not isinstance(part, str)]
        is_right = not wrong
        got = ", ".join(wrong) or given_kind
    rule = ", ".join(f"{key} {limit}" for key, limit in schema.items() if key not in ("default", "description"))
    is_right = is_right and _is_within(value, schema)
    require(is_right, f"{name} must have {rule}, got {one_line(got, 40)}")
    return value


def _is_within(value: Any, schema: Schema) -> bool:
    """Return whether a value of the right type has the values and the size that its schema allows."""
    size = value if isinstance(value, int) else len(value)
    most = min((schema[key] for key in ("maximum", "maxLength", "maxProperties") if key in schema), default=inf)
    return value in schema.get("enum", [value]) and schema.get("minimum", -inf) <= size <= most


async def read_parameters(request: Request) -> Parameters:
    """Return the parameters of a request by name, a file as (name, content). Raises InputError for another body."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    parameters: Parameters = _urlencoded(request.scope["query_string"])
    if content_type == FORM:
        parameters |= _urlencoded(await request.body())
    elif content_type == MULTIPART:
        async with request.form(max_files=1, max_fields=100, max_part_size=1 << 30) as form:
            pairs = [
                (name, (each.filename or "", await each.read()) if isinstance(each, UploadFile) else each)
                for name, each in form.multi_items()
            ]
        parameters |= _by_name(pairs)
    elif body := await request.body():
        try:
            content = json.loads(body)
            json.dumps(content, ensure_ascii=False).encode()  # refuse half of a surrogate pair
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise InputError(f"text must have whole surrogate pairs, got {half}") from error
        except (ValueError, RecursionError) as error:
            raise InputError("the body must be JSON in UTF-8, or a form with its Content-Type") from error
        require(isinstance(content, dict), "the body must be a JSON object")
        parameters |= content
    return {name: value for name, value in parameters.items() if value is not None}


def _urlencoded(content: bytes) -> Parameters:
    """Return the parameters of a form or a query. Bytes that are not escaped are UTF-8, as curl sends them."""
    try:
        pairs = parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=100, errors="strict")
    except ValueError as error:
        raise InputError("a form must be UTF-8 and have at most 100 fields") from error
    return _by_name(pairs)


def _by_name(pairs: Iterable[tuple[str, Any]]) -> Parameters:
    """Return parameters by name: a value, or a list of the values of a name that occurs several times."""
    values: dict[str, list[Any]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: each[0] if len(each) == 1 else each for name, each in values.items()}
