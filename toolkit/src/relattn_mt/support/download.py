"""Download over HTTP or HTTPS. A download that was cut short is continued.

The usual variables are obeyed: HTTPS_PROXY, HTTP_PROXY and NO_PROXY; SSL_CERT_FILE, a file with the certificates that
are trusted, which OpenSSL reads.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from relattn_mt.support.console import progress_bar, shows_progress
from relattn_mt.support.errors import InputError, one_line, reading, require, writing

_SECONDS = 30  # without data, after which a connection has failed
_BLOCK = 1 << 18  # bytes per read
# bytes per file
MOST = 1 << 30
_MOST_JSON = 1 << 26


class DownloadError(InputError):
    """A server cannot be reached, refuses the request, or ends its answer early."""


class ConnectionFailed(DownloadError):
    """A server cannot be reached, or ends its answer early."""


class _Redirects(HTTPRedirectHandler):
    """Follows redirects to HTTPS, or from HTTP to HTTP."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        if not newurl.startswith(("https:", f"{req.type}:")):
            raise HTTPError(newurl, code, f"must redirect to {req.type}, got {newurl}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch_json(url: str) -> Any:
    """Return the content of a JSON file. Raises InputError, or DownloadError if it cannot be had."""
    content = b"".join(_blocks(url, _open(url, 0), _MOST_JSON))
    with reading(url, "not JSON"):
        return json.loads(content)


def download(url: str, target: Path) -> None:
    """Append to a file what it lacks of the one at an address.

    Raises:
        InputError: The file cannot be written.
        DownloadError: As the class says. What arrived before is in the file.
    """
    begin = target.stat().st_size if target.exists() else 0
    response = _open(url, begin)
    if response.status != http.client.PARTIAL_CONTENT:
        begin = 0
    total = response.length and begin + response.length
    with (
        writing(target),
        target.open("ab" if begin else "wb") as file,
        progress_bar(total, "B", shown=shows_progress(), initial=begin) as advance,
    ):
        for block in _blocks(url, response, MOST):
            file.write(block)
            advance(len(block))


def _blocks(url: str, response: http.client.HTTPResponse, most: int) -> Iterator[bytes]:
    """Yield the content of an answer. Raises DownloadError if it ends early, and InputError if it is too long."""
    received = 0
    announced = response.length
    with response:
        while True:
            try:
                block = response.read(_BLOCK)
            except (OSError, http.client.HTTPException) as error:
                raise ConnectionFailed(f"{url}: the connection failed: {one_line(error)}") from error
            if not block:
                break
            received += len(block)
            require(received <= most, f"{url}: must have at most {most:,} bytes, got more")
            yield block
    if announced is not None and received < announced:
        raise ConnectionFailed(f"{url}: the answer ended after {received:,} of {announced:,} bytes; try again")


def _open(url: str, begin: int) -> http.client.HTTPResponse:
    """Ask for a file from a byte on. A server that cannot continue it, status 416, is asked for the whole file."""
    require(url.lower().startswith(("https:", "http:")), f"{url}: must begin with https: or http:")
    headers = {"User-Agent": "relattn-mt"} | ({"Range": f"bytes={begin}-"} if begin else {})
    opener = build_opener(_Redirects)
    try:
        response: http.client.HTTPResponse = opener.open(Request(url, headers=headers), timeout=_SECONDS)
    except HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and begin:
            return _open(url, 0)
        raise DownloadError(f"{url}: HTTP status {error.code}: {one_line(error.reason, 200)}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        is_untrusted = isinstance(cause, ssl.SSLCertVerificationError)
        advice = "; name a file with your company's certificates in SSL_CERT_FILE" if is_untrusted else ""
        raise ConnectionFailed(f"{url}: cannot be reached: {one_line(cause)}{advice}") from error
    return response
