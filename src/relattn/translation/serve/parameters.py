"""What a request says, however it says it: as JSON, as a form, or in its address."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile

from relattn.translation.errors import InputError

FORMS = "application/x-www-form-urlencoded", "multipart/form-data"


@dataclass(frozen=True)
class File:
    """A file of a form."""

    name: str
    content: bytes


async def parameters(request: Request) -> dict[str, Any]:
    """What a request says, by name. Raises InputError where it cannot be read."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    given: dict[str, Any] = dict(request.query_params)
    if kind in FORMS:
        async with request.form(max_files=1, max_fields=100, max_part_size=1 << 30) as form:
            for name in form:
                values = [
                    File(each.filename or "", await each.read()) if isinstance(each, UploadFile) else each
                    for each in form.getlist(name)
                ]
                given[name] = values[0] if len(values) == 1 else values
    elif body := await request.body():
        try:
            content = json.loads(body)
            json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        except (ValueError, RecursionError) as error:
            raise InputError("the request is not JSON in UTF-8, and not a form that says so") from error
        if not isinstance(content, dict):
            raise InputError("the request is JSON, but not an object of names and values")
        given |= content
    return {name: value for name, value in given.items() if value is not None}
