"""Which requests a server answers: by the name in `Host`, and by the web page that sent them (`Origin`).

A web page of a stranger can send requests to a server on its reader's machine. If its own name resolves to that machine
(DNS rebinding), it can also read the answers: the browser takes the server for a part of the page's site. Such a
request has the name of that site as its `Host`. Any other request of a page that could do something has an `Origin`.
The command line imports this module, so it needs no package of the extra "serve".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from relattn_mt.support.errors import one_line, require

ANY = "*"
_HOST = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d{1,5})?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True)
class Access:
    """Requests that a server answers.

    Attributes:
        hosts: Names that `Host` may have besides addresses and localhost, in lower case; None for any. If it is empty,
            a proxy can use any name.
        origins: Origins of web pages that may use the server besides its own; "*" for all.
    """

    hosts: Sequence[str] | None = None
    origins: Sequence[str] = ()

    def refusal(self, method: str, headers: Mapping[str, str], port: int | None) -> str:
        """Return why a request to a port of the server, if it has one, is refused; empty if it is answered."""
        host = headers.get("host", "").lower()
        origin = headers.get("origin", "").lower()
        if self.hosts is not None and not (
            _is_local(name := _name(host))
            or name in self.hosts
            or (not self.hosts and _is_proxied(headers, host, port))
        ):
            return f"Host must be a name of the server, got {one_line(name, 100)}; --hosts allows other names"
        if method == "POST" and self._is_foreign(origin, host, headers.get("sec-fetch-site", "")):
            return f"Origin must be that of the server, got {one_line(origin, 100)}; --cors allows other web pages"
        return ""

    def _is_foreign(self, origin: str, host: str, site: str) -> bool:
        """Return whether a web page of another site sent a request.

        Programs, apps and extensions send no `Origin`, or one with another scheme. `Sec-Fetch-Site`, which pages cannot
        set, is right even if a proxy changes `Host`. Browsers leave it out of unencrypted requests to other machines.
        """
        scheme, _, place = origin.partition("://")
        if ANY in self.origins or origin in self.origins or scheme not in ("http", "https", "null"):
            return False
        return site not in ("same-origin", "none") if site else place != host


def _name(host: str) -> str:
    """Return a name or an address without its port."""
    return re.sub(r":\d*$", "", host).strip("[]").removesuffix(".")


def _is_local(name: str) -> bool:
    """Return whether nobody else can own a name: it is an address or localhost, or HTTP/1.0 left it out."""
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return name in ("", "localhost") or name.endswith(".localhost")


def _is_proxied(headers: Mapping[str, str], host: str, port: int | None) -> bool:
    """Return whether a proxy has sent a request.

    A page of a name that resolves to this machine can set any header except `Host`, which has the port of the server.
    """
    found = re.search(r":\d*?(\d{1,5})$", host)
    is_forwarded = "x-forwarded-for" in headers or "x-forwarded-proto" in headers
    return is_forwarded and int(found[1] if found else 80) != port


def is_loopback(address: str) -> bool:
    """Return whether only programs on this machine can connect to an address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def check_access(hosts: Sequence[str], origins: Sequence[str], proxies: Sequence[str]) -> None:
    """Raise an InputError if a value can match no request: a name, an origin of web pages, an address of a proxy."""
    for host in hosts:
        message = f"hosts must be names such as translate.example.org, or *, got {one_line(host, 100)!r}"
        require(host == ANY or _HOST.fullmatch(host), message)
    for origin in origins:
        found = _ORIGIN.fullmatch(origin)
        is_right = origin == ANY or (found is not None and found[3] != _DEFAULT_PORTS.get(found[1], ""))
        message = "origins such as https://example.org, in lower case, without a path and a standard port, or *"
        require(is_right, f"cors must be {message}, got {one_line(origin, 100)!r}")
    for proxy in proxies:
        try:
            ipaddress.ip_network(proxy)
        except ValueError:
            message = "addresses, networks such as 10.0.0.0/8, or only *"
            require(list(proxies) == [ANY], f"proxies must be {message}, got {one_line(proxy, 100)!r}")
