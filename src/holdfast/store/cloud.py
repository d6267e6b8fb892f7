"""A store in another cloud: Google Cloud Storage or Azure, through obstore. S3 has a client of our own (`s3`).

Two clients stand side by side, because retrying is a property of a client there, not of a call: one never repeats
anything and creates, the other repeats what does no harm twice (obstore repeats a removal only if the service said that
it failed). A repeated create would do harm: the first attempt is done, its reply is lost, and the second one finds the
key taken, by us.

A create of any size is one request, so that the condition holds. Listings are ordered by the service. Credentials are
found by obstore's own chain, and looked for again after the service called them expired. Neither this object nor its
errors hold a secret.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError
from obstore.store import AzureStore, GCSStore

from holdfast.errors import Invalid, NotFound
from holdfast.store import object_limits
from holdfast.store.address import StoreAddress, parse_url
from holdfast.store.byte_ranges import check_range, require_length
from holdfast.store.cloud_failures import translate
from holdfast.store.object_keys import check_key, check_prefix
from holdfast.store.port import Body, ObjectInfo, StoreUnavailable
from holdfast.store.proven_body import proven_bytes
from holdfast.store.store_settings import StoreSettings

_LIST_PAGE = 1_000
_DELETE_PAGE = 1_000
_CONNECT_TIMEOUT_MS = 5_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Of obstore's errors some are Python's own.
_FAILURES = (BaseError, FileNotFoundError, NotImplementedError, ValueError)


class _Clients(NamedTuple):
    once: Any
    patient: Any


class ObjectStore:
    """Objects in a bucket, below a prefix."""

    def __init__(self, url: str, settings: StoreSettings) -> None:
        self._address = parse_url(url)
        self._settings = settings
        self._lock = threading.Lock()
        self._clients: _Clients | None = self._connect()

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"

    @property
    def url(self) -> str:
        """Scheme, bucket and prefix."""
        return self._address.url

    def create(self, key: str, body: Body) -> None:
        """Create an object, in one request that is never repeated."""
        check_key(key)
        data = proven_bytes(body)
        with self._typed(key, creating=True):
            obstore.put(self._open().once, key, data, mode="create", use_multipart=False)

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        """The whole object."""
        check_key(key)
        with self._typed(key):
            answer = obstore.get(self._open().patient, key)
            size = object_limits.require(key, answer.meta["size"], bytes_max)
            data = answer.bytes().to_bytes()
        if len(data) != size:
            raise StoreUnavailable(
                f"the object came incomplete key={key} size={size} got={len(data)}", cause="truncated"
            )
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object."""
        check_range(start, length)
        if length == 0:
            return self._nothing_of(key)
        with self._typed(check_key(key)):
            part = obstore.get_range(self._open().patient, key, start=start, length=length)
        return require_length(part.to_bytes(), key, length)

    def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""
        check_key(key)
        try:
            with self._typed(key):
                return _info(self._head(key))
        except NotFound:
            return None

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects below a prefix, page by page."""
        folder = check_prefix(prefix).removesuffix("/")
        return self._pages(folder, after)

    def folders(self, prefix: str) -> Sequence[str]:
        """Folders right below a prefix, in one listing that looks no deeper."""
        folder = check_prefix(prefix).removesuffix("/")
        with self._typed(folder):
            found = obstore.list_with_delimiter(self._open().patient, folder or None)["common_prefixes"]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects."""
        for start in range(0, len(keys), _DELETE_PAGE):
            page = [check_key(key) for key in keys[start : start + _DELETE_PAGE]]
            try:
                self._delete(page, page[0])
            except NotFound:
                # Where a service takes one removal at a time, the first object that is gone already ends the page.
                for key in page:
                    self._delete_one(key)

    def close(self) -> None:
        """Let go of the connections; the next request opens new ones."""
        self._clients = None

    # -- requests -----------------------------------------------------------------------------------------

    def _head(self, key: str) -> Any:
        client = self._open().patient
        try:
            return obstore.head(client, key)
        except PermissionDeniedError:
            # The answer to a HEAD has no body, so nothing tells expired credentials from missing rights: ask again.
            obstore.get(client, key)
            raise

    def _nothing_of(self, key: str) -> bytes:
        if self.head(key) is None:
            raise NotFound(f"there is no such object key={key}")
        return b""

    def _pages(self, folder: str, after: str | None) -> Iterator[ObjectInfo]:
        with self._typed(folder):
            pages = iter(obstore.list(self._open().patient, folder or None, offset=after, chunk_size=_LIST_PAGE))
        while True:
            with self._typed(folder):
                page = next(pages, None)
            if page is None:
                return
            yield from (_info(found) for found in page if after is None or found["path"] > after)

    def _delete(self, keys: Sequence[str], named: str) -> None:
        with self._typed(named):
            obstore.delete(self._open().patient, list(keys))

    def _delete_one(self, key: str) -> None:
        try:
            self._delete([key], key)
        except NotFound:
            pass

    @contextmanager
    def _typed(self, key: str, *, creating: bool = False) -> Iterator[None]:
        """Errors of obstore as errors of a store."""
        try:
            yield
        except _FAILURES as error:
            failure = translate(error, key, creating=creating)
            if getattr(failure, "cause", None) == "credentials":
                self._clients = None  # they keep the credentials they have; new ones ask anew
            raise failure from None

    # -- connecting ---------------------------------------------------------------------------------------

    def _open(self) -> _Clients:
        clients = self._clients
        if clients is None:
            with self._lock:
                clients = self._clients = self._clients or self._connect()
        return clients

    def _connect(self) -> _Clients:
        make = {"gs": _gs, "az": _azure, "abfss": _azure}.get(self._address.scheme)
        if make is None:
            raise Invalid(f"this is in no cloud that obstore serves here url={self.url}")
        options: dict[str, Any] = {"client_options": _client_options(self._settings)}
        try:
            return _Clients(
                *(
                    make(self._address, self._settings, retry_config=_retry_options(self._settings, retries), **options)
                    for retries in (0, self._settings.retries)
                )
            )
        except BaseError:
            raise Invalid(
                f"the store cannot be opened url={self.url}",
                hint="check its URL, store.endpoint, store.ca_file and, for Azure, the account",
            ) from None


def _gs(address: StoreAddress, settings: StoreSettings, **options: Any) -> GCSStore:
    if settings.endpoint:
        raise Invalid("store.endpoint has no meaning for gs://", hint="remove it")
    return GCSStore(address.place, prefix=address.prefix or None, **options)


def _azure(address: StoreAddress, settings: StoreSettings, **options: Any) -> AzureStore:
    container, _, host = address.place.partition("@")
    if host:
        options["account_name"] = host.partition(".")[0]
    if settings.endpoint:
        options["endpoint"] = settings.endpoint
    return AzureStore(container, prefix=address.prefix or None, **options)


def _client_options(settings: StoreSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "timeout": f"{max(1, round(settings.timeout_ms))}ms",
        "connect_timeout": f"{max(1, round(min(settings.timeout_ms, _CONNECT_TIMEOUT_MS)))}ms",
        "allow_http": urlsplit(settings.endpoint).scheme == "http",
    }
    if settings.ca_file:
        options["root_certificate"] = _read_certificates(Path(settings.ca_file))
    return options


def _retry_options(settings: StoreSettings, retries: int) -> dict[str, Any]:
    return {"max_retries": retries, "retry_timeout": timedelta(milliseconds=settings.timeout_ms * (retries + 1))}


def _read_certificates(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Invalid(f"cannot read the certificates path={path}: {error.strerror}", hint="see store.ca_file") from None


def _info(found: Any) -> ObjectInfo:
    return ObjectInfo(found["path"], found["size"], (found["last_modified"] - _EPOCH) // timedelta(microseconds=1))
