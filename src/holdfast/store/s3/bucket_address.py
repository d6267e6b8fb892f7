"""Where a root on S3 is: which server requests go to, and what stands before a key in their paths. Pure."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec

from holdfast.errors import Invalid
from holdfast.store.address import StoreAddress
from holdfast.store.s3.connections import Endpoint
from holdfast.store.s3.signature_v4 import encode_path
from holdfast.store.store_settings import StoreSettings

DEFAULT_REGION = "us-east-1"

_PORTS = {"http": 80, "https": 443}


class BucketPlace(NamedTuple):
    """A server, and what stands before a key in its paths."""

    scheme: str
    host: str
    port: int
    folder: str
    """Percent-encoded; '' or with a slash in front and none behind."""

    @property
    def host_header(self) -> str:
        """As the server is named in requests."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == _PORTS[self.scheme] else f"{name}:{self.port}"

    @property
    def endpoint(self) -> Endpoint:
        """Where to connect."""
        return Endpoint(self.host, self.port, self.scheme == "https")


class S3Address(msgspec.Struct, frozen=True):
    """Where a log's root is on S3 or something like it.

    >>> S3Address("logs", "app").place("eu-west-1")
    BucketPlace(scheme='https', host='logs.s3.eu-west-1.amazonaws.com', port=443, folder='/app')
    """

    bucket: str
    prefix: str = ""
    """Without slashes at its ends."""
    endpoint: str = ""
    """A URL; '' is AWS."""
    region: str = ""
    """'' is what the environment or the profile says, or us-east-1."""
    path_style: bool = False
    """The bucket in the path, not in the server's name."""
    ca_file: str = ""
    """Certificates to trust besides the system's."""

    @classmethod
    def of(cls, address: StoreAddress, settings: StoreSettings) -> S3Address:
        """What a store's URL and its settings say together."""
        return cls(
            address.place, address.prefix, settings.endpoint, settings.region, settings.is_path_style, settings.ca_file
        )

    def place(self, region: str) -> BucketPlace:
        """Where requests go, in a region."""
        parts = split(self.endpoint or f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}")
        # A certificate for *.s3.amazonaws.com is not good for names with one more dot.
        in_path = self.path_style or (parts.scheme == "https" and "." in self.bucket)
        folder = self._folder(parts.path.rstrip("/"), in_path=in_path)
        return _place(parts, "" if in_path else f"{self.bucket}.", folder)

    def named(self, host: str, like: BucketPlace) -> BucketPlace:
        """The place at another server, whose name may begin with the bucket's; raises Invalid."""
        parts = split(f"{like.scheme}://{host}")
        if parts.hostname == like.host:
            return like._replace(port=_port(parts))
        in_path = not (parts.hostname or "").startswith(f"{self.bucket}.")
        return _place(parts, "", self._folder("", in_path=in_path))

    def bucket_path(self, place: BucketPlace) -> str:
        """The path of the bucket itself there."""
        return place.folder.removesuffix(f"/{encode_path(self.prefix)}" if self.prefix else "") or "/"

    def _folder(self, before: str, *, in_path: bool) -> str:
        names = ([self.bucket] if in_path else []) + ([self.prefix] if self.prefix else [])
        return before + "".join(f"/{encode_path(name)}" for name in names)


def _place(parts: SplitResult, before_host: str, folder: str) -> BucketPlace:
    return BucketPlace(parts.scheme, before_host + (parts.hostname or ""), _port(parts), folder)


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS[parts.scheme]


def split(url: str) -> SplitResult:
    """A server's URL, taken apart; raises Invalid."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in _PORTS and bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:
        good = False
    if not good:  # it may hold a password: it must not reach a message
        raise Invalid("the store's endpoint is not understood", hint="write it like https://s3.example.org:9000")
    return parts
