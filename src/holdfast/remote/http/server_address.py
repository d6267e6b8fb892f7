"""Where a server is: what a user gave as its address, checked. Pure.

A token travels only where nobody can listen: over TLS, or to this machine. Plain HTTP to anywhere else is refused
unless the caller says that the network is safe (`insecure=True`), for instance because it is a tunnel.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from holdfast.errors import Invalid

_EXAMPLE = "for instance holdfast.connect('http://127.0.0.1:7474', token='env:HOLDFAST_TOKEN')"


class ServerAddress(NamedTuple):
    """One server."""

    host: str
    port: int
    is_tls: bool
    prefix: str
    """The path before `/v1`, for servers behind a proxy; empty, or begins with a slash and ends without."""

    @classmethod
    def of(cls, url: object) -> ServerAddress:
        """The address that a URL names; Invalid where it is none. What was given is not shown: it may hold a secret."""
        if not isinstance(url, str):
            raise Invalid(f"a server's address is text, not {type(url).__name__}", hint=_EXAMPLE)
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise Invalid("a server's address is not a URL", hint=_EXAMPLE) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Invalid("a server's address begins with http:// or https:// and names a host", hint=_EXAMPLE)
        _check_bare(parts)
        is_tls = parts.scheme == "https"
        return cls(parts.hostname, (443 if is_tls else 80) if port is None else port, is_tls, parts.path.rstrip("/"))

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine, so that nobody between can listen."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def authority(self) -> str:
        """Host and port, as a request names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"http{'s' * self.is_tls}://{self.authority}{self.prefix}"

    def check_token_is_safe(self, *, insecure: bool) -> None:
        """Invalid where a token would travel in the clear."""
        if not (self.is_tls or self.is_loopback or insecure):
            raise Invalid(
                f"a token would travel unencrypted to {self.authority}",
                hint="use https://…, or say insecure=True where the network itself is safe (a tunnel, a VPN)",
            )


def _check_bare(parts: SplitResult) -> None:
    if parts.username is not None or parts.password is not None:
        raise Invalid("a server's address holds no user name or password", hint="give a token: token='env:NAME'")
    if parts.query or parts.fragment:
        raise Invalid("a server's address has no '?' or '#'", hint=_EXAMPLE)
    if not parts.path.isascii() or any(letter <= " " for letter in parts.path):
        raise Invalid("the path of a server's address is plain ASCII", hint=_EXAMPLE)
