"""Where an answer sends us, and whether we go: never to a stranger.

A request carries a signature, perhaps a session token, and the data. An attacker who can forge a response could have
all of it sent to a server of his own. So a redirect is followed only within what was configured: the same scheme, the
same port, and as host the configured one, with or without the bucket in front, or, where the configured one is AWS's,
another of S3's own names there. The paths are ours, whatever a `Location` says. Everything else is refused by name, and
the next request goes where it was configured to go.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.errors import Invalid
from holdfast.store.s3.answers import element
from holdfast.store.s3.bucket_address import BucketPlace, S3Address, split
from holdfast.store.s3.http import Response

# S3's own names, which nobody else can have; under amazonaws.com alone there are also servers of other customers.
_AWS = re.compile(
    r"s3(?:-fips|-accelerate|-external-1)?(?:\.dualstack)?(?:[.-][a-z]{2}(?:-[a-z]+){1,3}-[0-9])?"
    r"\.(?P<domain>amazonaws\.com|amazonaws\.com\.cn)"
)
_REGION = re.compile(r"[a-z0-9-]{1,64}")
_HOST_SHOWN = re.compile(r"[A-Za-z0-9.:\[\]_-]{1,255}")


class Elsewhere(NamedTuple):
    """What a redirect leads to."""

    place: BucketPlace
    region: str
    refused: str = ""
    """The host that is not gone to; '' when the redirect may be followed."""


def redirected(
    address: S3Address, home: BucketPlace, at: BucketPlace, region: str, response: Response
) -> Elsewhere | None:
    """Where an answer says that the bucket is; None when it says nothing new. `home` is what was configured."""
    named = response.headers.get("x-amz-bucket-region", "") or element(response, "Region")
    new_region = named if _REGION.fullmatch(named) else region
    try:
        place = _named(address, at, region, new_region, response)
    except Invalid:
        return None
    if (place, new_region) == (at, region):
        return None
    refused = "" if may_follow(address, home, place) else _shown(place)
    return Elsewhere(place, new_region, refused)


def _named(address: S3Address, at: BucketPlace, region: str, new_region: str, response: Response) -> BucketPlace:
    location, host = response.headers.get("location", ""), element(response, "Endpoint")
    if not address.endpoint and new_region != region:
        return address.place(new_region)
    if not location:
        return address.named(host, at) if host else at
    if location.startswith("/") and not location.startswith("//"):
        return at
    parts = split(location)
    return address.named(parts.netloc, at._replace(scheme=parts.scheme))


def may_follow(address: S3Address, home: BucketPlace, to: BucketPlace) -> bool:
    """Whether requests that were meant for one place may go to another."""
    if (home.scheme, home.port) != (to.scheme, to.port):
        return False
    ours, theirs = _server(address, home.host), _server(address, to.host)
    if ours == theirs:
        return True
    known, named = _AWS.fullmatch(ours), _AWS.fullmatch(theirs)
    return known is not None and named is not None and known["domain"] == named["domain"]


def _server(address: S3Address, host: str) -> str:
    """A host without the bucket in front of it."""
    return host.removeprefix(f"{address.bucket}.")


def _shown(place: BucketPlace) -> str:
    """A host as it may be printed: it is untrusted text."""
    host = f"{place.scheme}://{place.host_header}"
    return host if _HOST_SHOWN.fullmatch(place.host_header) else "(unprintable)"
