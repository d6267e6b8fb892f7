"""How to reach a root on S3, as far as it is known: server, region, the store's clock, credentials. And what was asked.

What an answer teaches is kept for the next request: another place or region (redirects), the difference between the
store's clock and ours (skew), credentials that are no longer good. Who taught something gets StoreUnavailable with the
cause `redirect` or `clock_skew`: the request was not done, and may be sent again at once.

Shared by all connections of one root, whether they belong to a loop or to threads, so that each thing is learned, and
logged, once. What a request goes by is one value, exchanged whole.
"""

from __future__ import annotations

import logging
from collections import Counter
from threading import Lock
from typing import Literal, NamedTuple

from holdfast.clock import Clock
from holdfast.store.credentials import Credentials, CredentialSource
from holdfast.store.failures import refused
from holdfast.store.port import StoreRefused, StoreUnavailable
from holdfast.store.s3.answers import REDIRECTS, SKEWED, WRONG_REGION, date_us, error_code, failure
from holdfast.store.s3.bucket_address import DEFAULT_REGION, BucketPlace, S3Address
from holdfast.store.s3.http import Response
from holdfast.store.s3.redirects import Elsewhere, redirected

logger = logging.getLogger("holdfast.store")

REDIRECTS_MAX = 5
SKEW_CORRECTED_US = 60_000_000
"""A request that was signed with a time this close to the store's, and refused for its time, will never be accepted."""

Request = Literal["put", "list", "get", "head", "delete"]


class Route(NamedTuple):
    """Where to ask and how to sign; exchanged whole when something is learned."""

    place: BucketPlace
    region: str
    offset_us: int
    """The store's clock less ours."""


class EndpointReply(NamedTuple):
    """A request's answer, with what it was asked with: others may have learned something meanwhile."""

    response: Response
    route: Route
    credentials: Credentials
    key: str


class EndpointState:
    """What is known about one root; used from any thread."""

    def __init__(self, address: S3Address, credentials: CredentialSource, clock: Clock) -> None:
        self.address = address
        self.credentials = credentials
        self.clock = clock
        region = address.region or DEFAULT_REGION
        self._home = self._route = Route(address.place(region), region, 0)
        self._is_settled = bool(address.region)
        self._redirects = 0
        self._is_skew_told = False
        self._requests: Counter[Request] = Counter()
        self._lock = Lock()

    @property
    def route(self) -> Route:
        """What the next request goes by."""
        return self._route

    @property
    def needs_region(self) -> bool:
        """Whether nobody has looked yet what the environment or the profile says."""
        return not self._is_settled

    def settle_region(self) -> None:
        """Look for the region where it was not set: in the environment, and in files."""
        region = self.credentials.region() or DEFAULT_REGION
        with self._lock:
            if not self._is_settled:
                self._is_settled = True
                self._home = self._route = Route(self.address.place(region), region, self._route.offset_us)

    def now_us(self, route: Route) -> int:
        """The store's time, as far as it is known."""
        return self.clock.now_us() + route.offset_us

    def count(self, request: Request) -> None:
        """A request is about to be sent."""
        with self._lock:
            self._requests[request] += 1

    def requests(self) -> dict[Request, int]:
        """All requests so far, by kind, also those that failed."""
        with self._lock:
            return dict(self._requests)

    # -- learning

    def succeeded(self) -> None:
        """The store answered as it should: it is where we think it is."""
        self._redirects = 0

    def go_home(self) -> None:
        """A place that a redirect named, and that does not answer, is no better than the one that was configured."""
        self._route = self._home

    def learn(self, reply: EndpointReply) -> StoreUnavailable | StoreRefused:
        """The error to raise for an answer; what it teaches is kept."""
        with self._lock:
            code = error_code(reply.response)
            if reply.response.status in REDIRECTS or code in WRONG_REGION:
                return self._learn_place(reply)
            if code == SKEWED:
                return self._learn_time(reply)
        error = failure(reply.response, reply.key, self.now_us(reply.route))
        if error.cause == "credentials":
            self.credentials.invalidate(reply.credentials)
        return error

    def _learn_place(self, reply: EndpointReply) -> StoreUnavailable | StoreRefused:
        moved = StoreUnavailable(f"the store is elsewhere key={reply.key}", cause="redirect")
        if reply.route != self._route:
            return moved  # another request learned it already
        at = reply.route
        found = redirected(self.address, self._home.place, at.place, at.region, reply.response)
        self._redirects += 1
        if found is None or found.refused or self._redirects > REDIRECTS_MAX:
            self._redirects = 0
            self.go_home()
            return _in_vain(found, reply)
        logger.warning(
            "the store redirects requests to %s, region %s; followed, since it belongs to what was configured",
            found.place.host_header,
            found.region,
            extra={"action": "store_redirect", "host": found.place.host_header, "region": found.region},
        )
        self._route = Route(found.place, found.region, at.offset_us)
        return moved

    def _learn_time(self, reply: EndpointReply) -> StoreUnavailable | StoreRefused:
        theirs = date_us(reply.response.headers.get("date", ""))
        offset_us = theirs - self.clock.now_us()
        if not theirs or abs(offset_us - reply.route.offset_us) < SKEW_CORRECTED_US:
            if reply.route.offset_us != self._route.offset_us:
                return _skewed(self._route.offset_us)  # another request learned it already
            return refused(f"the store refuses the time of the request key={reply.key}", "clock_skew")
        self._route = self._route._replace(offset_us=offset_us)
        self._home = self._home._replace(offset_us=offset_us)
        self._tell_skew(offset_us)
        return _skewed(offset_us)

    def _tell_skew(self, offset_us: int) -> None:
        if self._is_skew_told:
            return
        self._is_skew_told = True
        behind = "behind" if offset_us > 0 else "ahead of"
        logger.warning(
            "this machine's clock is %.0f s %s the store's; requests are signed with the store's time: set the clock",
            abs(offset_us) / 1e6,
            behind,
            extra={"action": "clock_skew", "seconds": round(offset_us / 1e6)},
        )


def _skewed(offset_us: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"this machine's clock differs from the store's seconds={offset_us / 1e6:.0f}", cause="clock_skew"
    )


def _in_vain(found: Elsewhere | None, reply: EndpointReply) -> StoreRefused:
    said = f"status={reply.response.status} key={reply.key}"
    if found is not None and found.refused:
        return refused(
            f"the store redirects requests to another server, which is refused host={found.refused} {said}",
            "redirect",
            "nothing was sent there; if that is where the bucket is, set store.endpoint to it",
        )
    return refused(f"the store redirects in vain {said}", "redirect")
