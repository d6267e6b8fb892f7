"""S3 as the shipper's loop sees it: three requests, each sent once, and what every answer means.

An answer is success, *not there*, *already exists*, or one of the two failures of the port; nothing is retried here.
What an answer teaches is kept for the next attempt: another place or region to ask (redirects), the difference between
the store's clock and ours (skew), credentials that are no longer good. A request that taught something fails with
StoreUnavailable all the same, so that only one place counts attempts.

Objects travel with their sha256, which the store checks before it keeps them, and which is checked here when they are
read. A redirect that would leave TLS is refused. Replies to HEAD have no body: when one does not explain itself, the
same is asked once more as a GET of one byte.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from email.utils import parsedate_to_datetime
from hashlib import sha256
from html import unescape
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec

from holdfast.clock import Clock
from holdfast.errors import Invalid
from holdfast.shipping.remote import PoolState
from holdfast.shipping.s3 import http
from holdfast.shipping.s3.connections import Connection, Endpoint
from holdfast.shipping.s3.http import Response
from holdfast.shipping.s3.pool import Pool
from holdfast.shipping.s3.signing import EMPTY_SHA256, encode_path, sign
from holdfast.store import layout
from holdfast.store.credentials import Credentials, CredentialSource
from holdfast.store.port import AlreadyExists, Body, Cause, ObjectInfo, StoreRefused, StoreUnavailable

REDIRECTS_MAX = 5
SKEW_CORRECTED_US = 60_000_000
"""A request that was signed with a time this close to the store's, and refused for its time, will never be accepted."""

_DEFAULT_REGION = "us-east-1"
_PORTS = {"http": 80, "https": 443}


# -- where things are -------------------------------------------------------------------------------------


class Place(NamedTuple):
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
    Place(scheme='https', host='logs.s3.eu-west-1.amazonaws.com', port=443, folder='/app')
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

    def place(self, region: str) -> Place:
        """Where requests go, in a region."""
        parts = _split(self.endpoint or f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}")
        # A certificate for *.s3.amazonaws.com is not good for names with one more dot.
        in_path = self.path_style or (parts.scheme == "https" and "." in self.bucket)
        folder = self._folder(parts.path.rstrip("/"), in_path=in_path)
        return _place(parts, "" if in_path else f"{self.bucket}.", folder)

    def named(self, host: str, like: Place) -> Place:
        """The place at another server, whose name may begin with the bucket's."""
        parts = _split(f"{like.scheme}://{host}")
        in_path = not host.startswith(f"{self.bucket}.")
        return _place(parts, "", self._folder("", in_path=in_path))

    def _folder(self, before: str, *, in_path: bool) -> str:
        names = ([self.bucket] if in_path else []) + ([self.prefix] if self.prefix else [])
        return before + "".join(f"/{encode_path(name)}" for name in names)


def _place(parts: SplitResult, before_host: str, folder: str) -> Place:
    return Place(parts.scheme, before_host + (parts.hostname or ""), parts.port or _PORTS[parts.scheme], folder)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        good = parts.scheme in _PORTS and bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:
        good = False
    if not good:  # it may hold a password: it must not reach a message
        raise Invalid("the store's endpoint is not understood", hint="write it like https://s3.example.org:9000")
    return parts


# -- what answers mean ------------------------------------------------------------------------------------

_TRANSIENT: dict[str, Cause] = {
    "SlowDown": "slow_down",
    "ServiceUnavailable": "slow_down",
    "TooManyRequests": "slow_down",
    "RequestLimitExceeded": "slow_down",
    "InternalError": "server_error",
    "ConditionalRequestConflict": "conflict",
    "OperationAborted": "conflict",
    "BadDigest": "bad_digest",
    "XAmzContentSHA256Mismatch": "bad_digest",
    "IncompleteBody": "truncated",
    "RequestTimeout": "timeout",
    "ExpiredToken": "credentials",
    "InvalidToken": "credentials",
    "TokenRefreshRequired": "credentials",
}
_PERMANENT: dict[str, Cause] = {
    "InvalidAccessKeyId": "credentials",
    "SignatureDoesNotMatch": "credentials",
    "NoSuchBucket": "no_bucket",
    "NotImplemented": "unsupported",
}
_TRANSIENT_STATUS: dict[int, Cause] = {
    408: "timeout",
    409: "conflict",
    416: "other",
    429: "slow_down",
    503: "slow_down",
}
_PERMANENT_STATUS: dict[int, Cause] = {401: "credentials", 403: "forbidden", 405: "unsupported", 501: "unsupported"}
_SKEWED = "RequestTimeTooSkewed"
_WRONG_REGION = ("AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect")
_HINTS: dict[Cause, str] = {
    "credentials": "the store does not know these credentials: see store.credentials",
    "no_bucket": "create the bucket, or correct the store's URL; holdfast creates no buckets",
    "forbidden": "allow s3:PutObject, s3:GetObject and s3:ListBucket; without the last, what is not there is forbidden",
    "unsupported": "the store must support conditional writes (If-None-Match: *)",
    "clock_skew": "set this machine's clock: the store refuses the time of its requests",
    "redirect": "the store sends requests elsewhere and back: see store.endpoint and store.region",
    "other": "see what the store says about this request",
}


def error_code(response: Response) -> str:
    """The code in an error's body; '' when there is none."""
    return _element(response, "Code")


def failure(response: Response, key: str, now_us: int) -> StoreUnavailable | StoreRefused:
    """What an answer means that is neither success nor something learned."""
    status, code = response.status, error_code(response)
    transient = _TRANSIENT.get(code)
    permanent = None if transient else _PERMANENT.get(code)
    if not transient and not permanent:
        transient, permanent = _TRANSIENT_STATUS.get(status), _PERMANENT_STATUS.get(status)
    if not transient and not permanent and status >= 500:
        transient = "server_error"
    said = f"status={status} code={code or '-'} key={key}"
    if permanent:
        return _refused(f"the store refuses the request {said}", permanent)
    if transient:
        return StoreUnavailable(
            f"the store could not do it {said}", cause=transient, retry_after=_retry_after(response, now_us)
        )
    if 400 <= status < 500 and code and status != 404:
        return _refused(f"the store refuses the request {said}", "other")
    return StoreUnavailable(f"the store gave an answer that is not understood {said}", cause="other")


def _refused(message: str, cause: Cause) -> StoreRefused:
    return StoreRefused(message, cause=cause, hint=_HINTS[cause])


def _retry_after(response: Response, now_us: int) -> float:
    """Seconds, or a date; 0 when the store says nothing that makes sense."""
    text = response.headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    until, since = _date_us(text), _date_us(response.headers.get("date", "")) or now_us
    return max(0.0, (until - since) / 1e6) if until else 0.0


def _date_us(text: str) -> int:
    """An HTTP date in microseconds; 0 when it is none."""
    try:
        return round(parsedate_to_datetime(text).timestamp() * 1e6)
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0


def _element(response: Response, name: str) -> str:
    found = re.search(rb"<%b>([^<]{1,1024})</%b>" % (name.encode(), name.encode()), response.body)
    return unescape(found[1].decode("utf-8", "replace")).strip() if found else ""


def _digest(response: Response) -> bytes:
    """The sha256 that the store gives with an answer; empty when it gives none of the whole object."""
    try:
        digest = b64decode(response.headers.get("x-amz-checksum-sha256", ""), validate=True)
    except (NotBase64, ValueError):
        return b""  # of an object in parts it is a hash of hashes: "…-3"
    return digest if len(digest) == 32 else b""


# -- the remote -------------------------------------------------------------------------------------------


class _Route(NamedTuple):
    """Where to ask and how to sign, as far as it is known; exchanged whole when something is learned."""

    place: Place
    region: str
    offset_us: int
    """The store's clock less ours."""


class _Asked(NamedTuple):
    """A request's answer, with what it was asked with: others may have learned something meanwhile."""

    response: Response
    route: _Route
    credentials: Credentials
    key: str


class S3Remote:
    """One root on S3, over a pool of connections on the running loop."""

    def __init__(
        self,
        address: S3Address,
        credentials: CredentialSource,
        *,
        pool_size: int,
        request_timeout: float,
        connect_timeout: float,
        heartbeat: float,
        clock: Clock,
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._request_timeout, self._connect_timeout = request_timeout, connect_timeout
        self._clock = clock
        self._home = self._route = _route(address, address.region or _DEFAULT_REGION)
        self._redirects = 0
        self._pool = Pool(
            self._route.place.endpoint,
            self._ask,
            target=pool_size,
            connect_timeout=connect_timeout,
            heartbeat=heartbeat,
            clock=clock,
            ca_file=address.ca_file,
        )

    async def start(self) -> None:
        """Begin to open connections."""
        if not self._address.region:  # files may say it: that is quick, but not for the loop
            region = await asyncio.to_thread(self._credentials.region)
            self._home = self._route = _route(self._address, region or _DEFAULT_REGION)
            self._pool.move(self._route.place.endpoint)
        self._pool.start()

    async def create(self, key: str, body: Body) -> None:
        """Create an object; raises AlreadyExists."""
        checksum = b64encode(body.sha256).decode()
        conditions = {"if-none-match": "*", "x-amz-checksum-sha256": checksum}
        asked = await self._request("PUT", key, conditions, body)
        if 200 <= asked.response.status < 300:
            if asked.response.headers.get("x-amz-checksum-sha256", checksum) != checksum:
                raise StoreUnavailable(f"the store kept other bytes than were sent key={key}", cause="bad_digest")
            return
        if asked.response.status == 412:
            raise AlreadyExists(key)
        raise self._learn(asked)

    async def read(self, key: str) -> bytes | None:
        """An object's bytes; None when it is not there."""
        asked = await self._request("GET", key, {"x-amz-checksum-mode": "ENABLED"})
        if asked.response.status == 200:
            return _checked(asked.response, key)
        if _is_missing(asked.response):
            return None
        raise self._learn(asked)

    async def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""
        asked = await self._request("HEAD", key, {})
        headers = asked.response.headers
        if asked.response.status == 200:
            return ObjectInfo(key, int(headers.get("content-length", "0")), _date_us(headers.get("last-modified", "")))
        if asked.response.status == 404 and "x-amz-request-id" in headers:
            return None
        if 400 <= asked.response.status < 500:
            # No body says why; and a 404 that is not S3's own may come from something between us and the store.
            asked = await self._request("GET", key, {"range": "bytes=0-0"})
            if _is_missing(asked.response):
                return None
        raise self._learn(asked)

    def pool(self) -> PoolState:
        """The connections; may be asked from any thread."""
        return self._pool.state()

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's sockets."""
        self._pool.abandon()

    # -- asking

    async def _request(self, method: str, key: str, headers: dict[str, str], body: Body | None = None) -> _Asked:
        credentials = await self._current_credentials()
        try:
            connection = await self._pool.acquire(self._connect_timeout)
        except StoreUnavailable:
            self._go_home()
            raise
        route = self._route
        try:
            response = await self._send(connection, method, key, headers, body, route, credentials)
        finally:
            self._pool.release(connection)
        if response.status in (200, 404, 412):
            self._redirects = 0
        return _Asked(response, route, credentials, key)

    async def _send(
        self,
        connection: Connection,
        method: str,
        key: str,
        headers: dict[str, str],
        body: Body | None,
        route: _Route,
        credentials: Credentials | None,
    ) -> Response:
        place = route.place
        path = f"{place.folder}/{encode_path(key)}"
        payload = EMPTY_SHA256 if body is None else body.sha256.hex()
        now_us = self._clock.now_us() + route.offset_us
        if credentials is None:
            signed = {**headers, "host": place.host_header}
        else:
            signed = sign(method, place.host_header, path, (), headers, payload, credentials, route.region, now_us)
        if body is not None:
            signed["content-length"] = str(body.size)
        signed["user-agent"] = "holdfast"
        return await http.request(connection, method, path, signed, body, timeout=self._request_timeout)

    async def _ask(self, connection: Connection) -> None:
        """The pool's question to a connection: any answer will do, so without credentials it goes unsigned."""
        credentials: Credentials | None
        try:
            credentials = await self._current_credentials()
        except (StoreRefused, StoreUnavailable):
            credentials = None
        await self._send(connection, "HEAD", layout.LOG, {}, None, self._route, credentials)

    async def _current_credentials(self) -> Credentials:
        found = self._credentials.cached()
        return found if found is not None else await asyncio.to_thread(self._credentials.get)

    # -- learning

    def _learn(self, asked: _Asked) -> StoreUnavailable | StoreRefused:
        """The error to raise for an answer; what it teaches is kept."""
        response, code = asked.response, error_code(asked.response)
        if response.status in (301, 302, 307, 308) or code in _WRONG_REGION:
            return self._learn_place(asked)
        if code == _SKEWED:
            return self._learn_time(asked)
        error = failure(response, asked.key, self._clock.now_us() + self._route.offset_us)
        if error.cause == "credentials":
            self._credentials.invalidate(asked.credentials)
        return error

    def _learn_place(self, asked: _Asked) -> StoreUnavailable | StoreRefused:
        moved = StoreUnavailable(f"the store is elsewhere key={asked.key}", cause="redirect")
        if asked.route != self._route:
            return moved  # somebody else learned it already
        found = redirected(self._address, asked.route.place, asked.route.region, asked.response, asked.key)
        self._redirects += 1
        if found is None or self._redirects > REDIRECTS_MAX:
            self._redirects = 0
            self._go_home()
            return _refused(f"the store redirects in vain status={asked.response.status} key={asked.key}", "redirect")
        self._turn_to(_Route(*found, asked.route.offset_us))
        return moved

    def _learn_time(self, asked: _Asked) -> StoreUnavailable | StoreRefused:
        theirs = _date_us(asked.response.headers.get("date", ""))
        offset_us = theirs - self._clock.now_us()
        if not theirs or abs(offset_us - asked.route.offset_us) < SKEW_CORRECTED_US:
            return _refused(f"the store refuses the time of the request key={asked.key}", "clock_skew")
        self._route = self._route._replace(offset_us=offset_us)
        self._home = self._home._replace(offset_us=offset_us)
        return StoreUnavailable(
            f"this machine's clock differs from the store's seconds={offset_us / 1e6:.0f}", cause="clock_skew"
        )

    def _turn_to(self, route: _Route) -> None:
        self._route = route
        self._pool.move(route.place.endpoint)

    def _go_home(self) -> None:
        """A place that a redirect named, and that does not answer, is no better than the one that was configured."""
        if self._route != self._home:
            self._turn_to(self._home)


def redirected(address: S3Address, place: Place, region: str, response: Response, key: str) -> tuple[Place, str] | None:
    """Where an answer says that the bucket is; None when it says nothing new. Never from TLS to plain text."""
    told = response.headers.get("x-amz-bucket-region", "") or _element(response, "Region")
    new_region = told if re.fullmatch(r"[a-z0-9-]{1,64}", told) else region
    location, host = response.headers.get("location", ""), _element(response, "Endpoint")
    try:
        if not address.endpoint and new_region != region:
            new_place = address.place(new_region)
        elif location:
            new_place = _located(location, place, key)
        else:
            new_place = address.named(host, place) if host else place
    except Invalid:
        return None
    if (new_place, new_region) == (place, region) or (place.scheme == "https" and new_place.scheme != "https"):
        return None
    return new_place, new_region


def _located(location: str, place: Place, key: str) -> Place:
    """The place in a Location header, which names the object itself."""
    parts = _split(location)
    tail = f"/{encode_path(key)}"
    folder = parts.path.removesuffix(tail) if parts.path.endswith(tail) else place.folder
    return _place(parts, "", folder)


def _route(address: S3Address, region: str) -> _Route:
    return _Route(address.place(region), region, 0)


def _is_missing(response: Response) -> bool:
    return response.status == 404 and error_code(response) == "NoSuchKey"


def _checked(response: Response, key: str) -> bytes:
    digest = _digest(response)
    if digest and sha256(response.body).digest() != digest:
        raise StoreUnavailable(f"the object does not match its checksum key={key}", cause="bad_digest")
    if not digest and not response.framed:
        raise StoreUnavailable(f"the store does not say how long the object is key={key}", cause="truncated")
    return response.body
