"""A store's URL, taken apart: what kind of store it is, and where in it the root lies.

    /srv/log  file:///srv/log     a directory of this machine
    memory://name                 this process's memory
    s3://bucket/prefix            S3, and everything that speaks like it
    gs://bucket/prefix            Google Cloud Storage
    az://container/prefix         Azure; also abfss://container@account.dfs.core.windows.net/prefix

A URL names a place and no secret: one that carries a password or a query (where signatures travel) is refused, and the
refusal does not repeat it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

from holdfast.errors import Invalid
from holdfast.store.object_keys import check_key

Scheme = Literal["file", "memory", "s3", "gs", "az", "abfss"]

KNOWN = "file:///directory, memory://name, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix"
_HINT = f"a store is one of: {KNOWN}"


class StoreAddress(NamedTuple):
    """Where a store's root is."""

    scheme: Scheme
    place: str
    """The bucket, the container, the name in memory; for a directory its path."""
    prefix: str = ""
    """Below which everything lies, without slashes at the ends."""

    @property
    def url(self) -> str:
        """As a URL again, always spelled the same."""
        if self.scheme == "file":
            return f"file://{quote(self.place)}"
        return f"{self.scheme}://{self.place}" + (f"/{quote(self.prefix)}" if self.prefix else "")


def parse_url(url: str) -> StoreAddress:
    """A store's URL, or the absolute path of a directory; raises Invalid."""
    if url.startswith("/"):
        return StoreAddress("file", _directory(url))
    parts = _split(url)
    match parts.scheme:
        case "file" if parts.netloc in ("", "localhost"):
            return StoreAddress("file", _directory(unquote(parts.path)))
        case "memory" if parts.netloc and not parts.path.strip("/"):
            return StoreAddress("memory", parts.netloc)
        case "s3" | "gs" | "az" | "abfss" if parts.netloc:
            return StoreAddress(parts.scheme, parts.netloc, _prefix(unquote(parts.path)))
        case "http" | "https":
            raise Invalid(
                "this is a server's address, and no store", hint=f"its log is opened by holdfast.connect(…); {_HINT}"
            )
    raise Invalid("holdfast does not support this store", hint=_HINT)


def problem_with(url: str) -> str | None:
    """What is wrong with a URL, in words that do not repeat it; None when nothing is."""
    try:
        parse_url(url)
    except Invalid as error:
        return f"{error.message}; {error.hint}"
    return None


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise Invalid("this is not a URL", hint=_HINT) from None
    account_in_front = parts.scheme == "abfss" and parts.password is None
    if ("@" in parts.netloc and not account_in_front) or parts.query or parts.fragment:
        raise Invalid(
            "a store's URL must not carry a user, a password or a signature",
            hint="name the credentials in store.credentials: profile:NAME, env:PREFIX or file:PATH",
        )
    return parts


def _directory(path: str) -> str:
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise Invalid("a store's directory is an absolute path", hint="for example file:///srv/holdfast")
    return "/" + path.strip("/")


def _prefix(path: str) -> str:
    prefix = path.strip("/")
    return check_key(prefix) if prefix else ""
