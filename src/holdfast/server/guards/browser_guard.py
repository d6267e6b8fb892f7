"""Requests that a browser sends for another site's page, and names that lead here by a trick. Pure.

There are no cookies, so a page cannot borrow a token. A server without tokens trusts everything that reaches loopback,
and every page that a user looks at can make the browser reach it. So a request from another site is refused, whatever
it asks for: browsers say where it comes from (`Sec-Fetch-Site`, `Origin`), and pages cannot change that. And a name of
the page's own that leads to this machine (DNS rebinding) is refused by `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from holdfast.errors import Denied

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:@/, ]+))(?::[0-9]{0,5})?\Z")
_REMEMBERED = 100
_OWN_SITES = (None, "same-origin", "none")


class WrongHost(Denied):
    """The server does not answer to this name."""


class BrowserGuard:
    """What one server refuses."""

    def __init__(self, host: str, names: str, *, is_loopback: bool) -> None:
        own = {name.strip().lower() for name in names.split(",") if name.strip()}
        self._names: frozenset[str] | None = frozenset(own | _LOOPBACK | {host.lower()})
        if not is_loopback and not own:  # it needs tokens, and who could say by which names it is reached?
            self._names = None
        self._fine: set[tuple[bytes | None, ...]] = set()

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Denied for what must not be answered."""
        given = headers.get(b"host"), headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if given in self._fine:
            return
        self._check(*(None if value is None else value.decode("latin-1") for value in given))
        if len(self._fine) < _REMEMBERED:  # they are what clients make of them
            self._fine.add(given)

    def _check(self, host: str | None, origin: str | None, site: str | None) -> None:
        if self._names is not None and (host is None or name_of(host) not in self._names):
            raise WrongHost("the server does not answer to this Host", hint="name it in server.hosts, or with --host")
        if site not in _OWN_SITES:
            raise Denied("a page of another site asks", hint="no page but the server's own may send requests")
        if origin is not None and not _is_own(origin, host):
            raise Denied("a page of another origin asks", hint="no page but the server's own may send requests")


def _is_own(origin: str, host: str | None) -> bool:
    try:
        found = urlsplit(origin)
    except ValueError:
        return False
    return found.scheme in ("http", "https") and host is not None and found.netloc.lower() == host.lower()


def name_of(host: str) -> str:
    """The name in `Host`, without its port; empty where it is none."""
    found = _HOST.match(host.strip().lower())
    return "" if found is None else (found[1] or found[2]).rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether an address, or the name localhost, is this machine's own."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
