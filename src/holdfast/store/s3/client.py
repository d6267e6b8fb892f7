"""The verbs of S3 over a pool of connections: each request is sent once, and every answer has one meaning.

An answer is success, *not there*, *already exists*, or one of the two failures of the port; nothing is retried here.
What an answer teaches is kept (`endpoint`); a request that taught something fails with StoreUnavailable all the same,
so that only one place counts attempts.

Objects travel with their sha256, which the store checks before it keeps them, and which is checked here when they are
read whole. Replies to HEAD have no body: when one does not explain itself, the request is repeated as a GET of one
byte. The pool may belong to a loop (`async_pool`) or to threads (`blocking_pool`); these verbs serve both.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import md5
from typing import Any, Protocol

from holdfast.errors import Corrupt
from holdfast.store import layout, object_limits
from holdfast.store.credentials import Credentials
from holdfast.store.failures import judged
from holdfast.store.port import AlreadyExists, Body, ObjectInfo, StoreRefused, StoreUnavailable
from holdfast.store.s3 import http, listing
from holdfast.store.s3.answers import checked, date_us, is_missing
from holdfast.store.s3.connections import Endpoint
from holdfast.store.s3.endpoint import EndpointReply, EndpointState, Request, Route
from holdfast.store.s3.http import ANSWER_BYTES_MAX, AnswerTooLarge, AnyConnection, Response
from holdfast.store.s3.off_loop import OffLoop
from holdfast.store.s3.signature_v4 import EMPTY_SHA256, canonical_query, encode_path, sign

_HASHED_AT_ONCE = 64 * 1024
"""More than this takes longer to hash than to hand to another thread."""
_FINE = (200, 204, 206, 404, 412)
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")

Query = Sequence[tuple[str, str]]


class ConnectionPool(OffLoop, Protocol):
    """A pool of connections, for a loop or for threads."""

    async def acquire(self, timeout: float) -> Any:
        """A connection that lives."""

    def release(self, connection: Any) -> None:
        """Take it back, whatever happened to it."""

    def move(self, endpoint: Endpoint) -> None:
        """Connect elsewhere from now on."""


class S3Client:
    """One root on S3."""

    def __init__(self, endpoint_state: EndpointState, *, request_timeout: float, connect_timeout: float) -> None:
        self._endpoint_state = endpoint_state
        self._request_timeout, self._connect_timeout = request_timeout, connect_timeout
        prefix = endpoint_state.address.prefix
        self._root = f"{prefix}/" if prefix else ""
        self._pool: ConnectionPool

    def use(self, pool: ConnectionPool) -> None:
        """Take the connections from here; a pool may want to ask through its client, so it comes second."""
        self._pool = pool

    async def create(self, key: str, body: Body) -> None:
        """Create an object; raises AlreadyExists."""
        body = await self._hashed(body)
        checksum = b64encode(body.sha256).decode()
        conditions = {"if-none-match": "*", "x-amz-checksum-sha256": checksum}
        reply = await self._request("put", "PUT", key, conditions, body)
        if 200 <= reply.response.status < 300:
            if reply.response.headers.get("x-amz-checksum-sha256", checksum) != checksum:
                raise StoreUnavailable(f"the store kept other bytes than were sent key={key}", cause="bad_digest")
            return
        if reply.response.status == 412:
            raise AlreadyExists(key)
        raise self._endpoint_state.learn(reply)

    async def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        """A whole object's bytes; None when it is not there. Raises Corrupt where it has more than it may have."""
        most = min(object_limits.largest(key) if bytes_max is None else bytes_max, ANSWER_BYTES_MAX)
        try:
            reply = await self._request("get", "GET", key, {"x-amz-checksum-mode": "ENABLED"}, limit=most)
        except AnswerTooLarge:
            object_limits.require(key, most + 1, most)
            raise
        if reply.response.status == 200:
            return await self._checked(reply.response, key)
        if is_missing(reply.response):
            return None
        raise self._endpoint_state.learn(reply)

    async def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """A part of an object, shorter where the object ends; None when it is not there."""
        reply = await self._request("get", "GET", key, {"range": f"bytes={start}-{start + length - 1}"}, limit=length)
        response = reply.response
        if response.status == 206:
            return _part(response, key, start)
        if response.status == 200 and start == 0 and response.framed:  # all of it, and no more than was asked for
            return response.body
        if response.status == 416:
            raise Corrupt("the object is shorter than it should be", path=key)
        if is_missing(response):
            return None
        raise self._endpoint_state.learn(reply)

    async def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""
        reply = await self._request("head", "HEAD", key, {})
        headers = reply.response.headers
        if reply.response.status == 200:
            return ObjectInfo(key, _size(headers, key), date_us(headers.get("last-modified", "")))
        if reply.response.status == 404 and "x-amz-request-id" in headers:
            return None
        if 300 <= reply.response.status < 500:
            # No body says why, or where to; and a 404 that is not S3's own may come from something before the store.
            reply = await self._request("get", "GET", key, {"range": "bytes=0-0"})
            if is_missing(reply.response):
                return None
        raise self._endpoint_state.learn(reply)

    async def page(
        self, prefix: str, after: str | None, token: str, *, folders_only: bool = False
    ) -> listing.ListingPage:
        """One page of a listing."""
        question = listing.query(self._root, prefix, after=after, token=token, folders_only=folders_only)
        reply = await self._request("list", "GET", None, {}, query=question, limit=listing.PAGE_BYTES_MAX, named=prefix)
        if reply.response.status != 200:
            raise self._endpoint_state.learn(reply)
        return listing.read_page(reply.response.body, self._root, after)

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, at most a page of them; a key that has none is ignored."""
        if len(keys) == 1:
            reply = await self._request("delete", "DELETE", keys[0], {})
            if reply.response.status in (200, 204) or is_missing(reply.response):
                return
            raise self._endpoint_state.learn(reply)
        body = Body.of(listing.removal(self._root, keys)).hashed()
        assert body.data is not None
        checksums = {
            "content-md5": b64encode(md5(body.data, usedforsecurity=False).digest()).decode(),
            "x-amz-checksum-sha256": b64encode(body.sha256).decode(),
        }
        reply = await self._request("delete", "POST", None, checksums, body, query=[("delete", "")], named=keys[0])
        if reply.response.status != 200:
            raise self._endpoint_state.learn(reply)
        for key, code in listing.not_removed(reply.response.body):
            raise judged(403 if code == "AccessDenied" else 400, code, key.removeprefix(self._root))

    async def ask(self, connection: AnyConnection) -> None:
        """A pool's question to a connection: any answer will do, so without credentials it goes unsigned."""
        credentials: Credentials | None
        try:
            credentials = await self._credentials()
        except (StoreRefused, StoreUnavailable):
            credentials = None
        await self._send(connection, "head", "HEAD", layout.LOG, (), {}, None, self._endpoint_state.route, credentials)

    # -- hashing: what is large is hashed off the loop

    async def _hashed(self, body: Body) -> Body:
        return body.hashed() if body.size <= _HASHED_AT_ONCE else await self._pool.off_loop(body.hashed)

    async def _checked(self, response: Response, key: str) -> bytes:
        if len(response.body) <= _HASHED_AT_ONCE:
            return checked(response, key)
        return await self._pool.off_loop(lambda: checked(response, key))

    # -- asking

    async def _request(
        self,
        kind: Request,
        method: str,
        key: str | None,
        headers: dict[str, str],
        body: Body | None = None,
        *,
        query: Query = (),
        limit: int = ANSWER_BYTES_MAX,
        named: str = "",
    ) -> EndpointReply:
        """Ask about an object, or about the bucket (no key); `named` is what an error then speaks of."""
        endpoint_state = self._endpoint_state
        if endpoint_state.needs_region:
            await self._pool.off_loop(endpoint_state.settle_region)
        credentials = await self._credentials()
        connection, route = await self._acquire()
        try:
            response = await self._send(connection, kind, method, key, query, headers, body, route, credentials, limit)
        finally:
            self._pool.release(connection)
        if response.status in _FINE:
            endpoint_state.succeeded()
        return EndpointReply(response, route, credentials, named if key is None else key)

    async def _acquire(self) -> tuple[AnyConnection, Route]:
        """A connection, and the route that it leads along: others may just have learned a new one."""
        while True:
            self._pool.move(self._endpoint_state.route.place.endpoint)
            try:
                connection = await self._pool.acquire(self._connect_timeout)
            except StoreUnavailable:
                self._endpoint_state.go_home()
                raise
            route = self._endpoint_state.route
            if connection.endpoint == route.place.endpoint:
                return connection, route
            self._pool.release(connection)

    async def _send(
        self,
        connection: AnyConnection,
        kind: Request,
        method: str,
        key: str | None,
        query: Query,
        headers: dict[str, str],
        body: Body | None,
        route: Route,
        credentials: Credentials | None,
        limit: int = ANSWER_BYTES_MAX,
    ) -> Response:
        place, address = route.place, self._endpoint_state.address
        host, now_us = place.host_header, self._endpoint_state.now_us(route)
        path = address.bucket_path(place) if key is None else f"{place.folder}/{encode_path(key)}"
        payload = EMPTY_SHA256 if body is None else body.sha256.hex()
        if credentials is None:
            signed = {**headers, "host": host}
        else:
            signed = sign(method, host, path, query, headers, payload, credentials, route.region, now_us)
        if body is not None:
            signed["content-length"] = str(body.size)
        signed["user-agent"] = "holdfast"
        self._endpoint_state.count(kind)
        target = f"{path}?{canonical_query(query)}" if query else path
        return await http.request(connection, method, target, signed, body, timeout=self._request_timeout, limit=limit)

    async def _credentials(self) -> Credentials:
        source = self._endpoint_state.credentials
        found = source.cached()
        return found if found is not None else await self._pool.off_loop(source.get)


def _part(response: Response, key: str, start: int) -> bytes:
    """The part that was asked for: an answer with another one is not ours."""
    found = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if found is None or int(found[1]) != start or int(found[2]) - start + 1 != len(response.body):
        raise StoreUnavailable(f"the store responded with another part than requested key={key}", cause="other")
    return response.body


def _size(headers: dict[str, str], key: str) -> int:
    size = headers.get("content-length", "0")
    if not size.isascii() or not size.isdigit() or len(size) > 18:
        raise StoreUnavailable(f"the store does not say how large the object is key={key}", cause="other")
    return int(size)
