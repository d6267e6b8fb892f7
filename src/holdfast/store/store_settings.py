"""What can be set about the store: its address, and by what reference its credentials are found.

No setting holds a secret. Credentials are named, never given: what does not look like a name is refused, and the
refusal does not repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import Invalid
from holdfast.store.address import parse_url, problem_with

_REFERENCE = re.compile(r"(|profile:[\w.@+ -]{1,128}|env:[A-Za-z_][A-Za-z0-9_]{0,127}|file:.{1,4096})\Z")
_ACCESS_KEY = re.compile(r"\b(AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b")
_RETRIES_MAX = 20
_PREFETCH_REQUESTS_MAX = 32
"""As many connections as there are for threads."""


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where objects go, and how to speak to what is there.

    >>> StoreSettings(url="s3://logs/orders", endpoint="https://minio.example:9000").is_path_style
    True
    """

    url: str = ""
    """The store's root: `file:///directory`, `memory://name`, `s3://bucket/prefix`, `gs://…`, `az://…`; empty for
    none. `holdfast.open(store=…)` overrides it.
    """

    endpoint: str = ""
    """The URL of an S3-compatible service (or an Azure account); empty for `AWS_ENDPOINT_URL_S3` or
    `AWS_ENDPOINT_URL` (S3 only), then the cloud's own.
    """

    region: str = ""
    """The bucket's region; empty for `AWS_REGION` or `AWS_DEFAULT_REGION`, then us-east-1."""

    path_style: str = "auto"
    """Whether the bucket stands in the path (`yes`) or in the host name (`no`); `auto`: in the path at an endpoint.
    """

    credentials: str = ""
    """Where credentials of S3 are found: empty for the usual chain, `profile:NAME`, `env:PREFIX` or `file:PATH`."""

    ca_file: str = ""
    """A file with certificates (PEM) to trust besides the usual ones."""

    allow_http: bool = False
    """Whether an endpoint without TLS is allowed other than on this machine."""

    move: bool = False
    """Whether a log that was shipped elsewhere may be shipped to `url` from now on, in full."""

    retries: int = 3
    """How often a read that failed is repeated; a create is never."""

    timeout_ms: float = 30_000
    """How long one request of reading, listing and removing may take as a whole; on S3 plus what its bytes take at 64
    KiB/s.
    """

    read_bytes_max: int = 256 * 2**20
    """What reading may take into memory at once of untrusted objects: one row group, decoded, or one
    commit batch. Raise it if segments were sealed with larger row groups.
    """

    prefetch_requests: int = 16
    """How many requests for segments a reading may have under way at once, ahead of the rows that it is at; 0 for
    none: one part is fetched after the other then. At most 32. Directories are read in place.
    """

    prefetch_bytes: int = 64 * 2**20
    """How many bytes may be under way or waiting, ahead of the rows that a reading is at."""

    def __post_init__(self) -> None:
        problems = [problem for problem in self._problems() if problem]
        if problems:
            raise Invalid("; ".join(problems), hint="correct these settings; all problems found are listed")

    @property
    def is_path_style(self) -> bool:
        """Whether the bucket stands in the path."""
        return bool(self.endpoint) if self.path_style == "auto" else self.path_style == "yes"

    @property
    def directory(self) -> Path | None:
        """The store's root where it is a directory of this machine."""
        address = parse_url(self.url) if self.url else None
        return Path(address.place) if address is not None and address.scheme == "file" else None

    def with_environment(self, environment: Mapping[str, str]) -> StoreSettings:
        """With the endpoint that other tools for S3 take from the environment, where none is set."""
        if self.endpoint or environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
            return self
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
            if endpoint := environment.get(name):
                try:
                    return msgspec.structs.replace(self, endpoint=endpoint)
                except Invalid as error:
                    raise Invalid(f"{name}: {error.message}", hint=f"correct {name}, or set store.endpoint") from None
        return self

    def _problems(self) -> list[str | None]:
        url = problem_with(self.url) if self.url else None
        return [
            f"store.url: {url}" if url else None,
            self._endpoint_problem(),
            _credentials_problem(self.credentials),
            None if self.path_style in ("auto", "yes", "no") else "store.path_style must be auto, yes or no",
            None if 0 <= self.retries <= _RETRIES_MAX else f"store.retries must be 0 to {_RETRIES_MAX}",
            None if self.timeout_ms > 0 else f"store.timeout_ms must be above zero, got {self.timeout_ms}",
            None if self.read_bytes_max > 0 else f"store.read_bytes_max must be above zero, got {self.read_bytes_max}",
            None
            if 0 <= self.prefetch_requests <= _PREFETCH_REQUESTS_MAX
            else f"store.prefetch_requests must be 0 to {_PREFETCH_REQUESTS_MAX}",
            None if self.prefetch_bytes > 0 else f"store.prefetch_bytes must be above zero, got {self.prefetch_bytes}",
        ]

    def _endpoint_problem(self) -> str | None:
        if not self.endpoint:
            return None
        try:
            parts = urlsplit(self.endpoint)
            host, _ = parts.hostname or "", parts.port
        except ValueError:
            return "store.endpoint is not a URL"
        if "@" in parts.netloc or parts.query or parts.fragment:
            return "store.endpoint must not carry a user, a password or a signature"
        if parts.scheme not in ("https", "http") or not host:
            return "store.endpoint must begin with https:// (or http://) and name a host"
        if parts.scheme == "http" and not self.allow_http and not _is_loopback(host):
            return "store.endpoint is http:// on another machine, which needs store.allow_http = true"
        return None


def _credentials_problem(reference: str) -> str | None:
    if _REFERENCE.match(reference) and not _ACCESS_KEY.search(reference):
        return None
    return "store.credentials must be empty, profile:NAME, env:PREFIX or file:PATH; a secret does not belong here"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
