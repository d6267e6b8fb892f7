"""Signature version 4 for S3: a pure function from a request, credentials and a time to headers.

It is our own because botocore's signer reads the clock itself, so that a clock that is wrong could not be corrected,
and because it costs several times as much; in the tests botocore is the oracle. The payload's hash is an argument: the
shipper of an object knows it already.

What is signed cannot be dropped on the way: a proxy that strips `If-None-Match` breaks the signature, not the log.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from urllib.parse import quote

from holdfast.store.credentials import Credentials

EMPTY_SHA256 = sha256(b"").hexdigest()

_UNRESERVED = "-_.~"


def encode_path(key: str) -> str:
    """A key as it stands in a path: everything but unreserved characters and slashes percent-encoded."""
    return quote(key, safe="/" + _UNRESERVED)


def canonical_query(query: Sequence[tuple[str, str]]) -> str:
    """A query as it is signed, and as it must be sent."""
    pairs = sorted((quote(name, safe=_UNRESERVED), quote(value, safe=_UNRESERVED)) for name, value in query)
    return "&".join(f"{name}={value}" for name, value in pairs)


def sign(
    method: str,
    host: str,
    path: str,
    query: Sequence[tuple[str, str]],
    headers: Mapping[str, str],
    payload_sha256_hex: str,
    credentials: Credentials,
    region: str,
    now_us: int,
) -> dict[str, str]:
    """The headers to send: the given ones, all signed, and those that make up the signature.

    Names of headers are given in lower case, the path percent-encoded. What a proxy may change, such as the length,
    is added afterwards and not signed.
    """
    timestamp = _timestamp(now_us // 1_000_000)
    signed = {**headers, "host": host, "x-amz-content-sha256": payload_sha256_hex, "x-amz-date": timestamp}
    if credentials.token:
        signed["x-amz-security-token"] = credentials.token
    names = sorted(signed)
    lines = "".join([f"{name}:{' '.join(signed[name].split())}\n" for name in names])
    listed = ";".join(names)
    canonical = f"{method}\n{path}\n{canonical_query(query)}\n{lines}\n{listed}\n{payload_sha256_hex}"
    scope = f"{timestamp[:8]}/{region}/s3/aws4_request"
    message = f"AWS4-HMAC-SHA256\n{timestamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    signature = hmac.digest(_signing_key(credentials.secret_key, timestamp[:8], region), message.encode(), "sha256")
    signed["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={listed}, Signature={signature.hex()}"
    )
    return signed


@lru_cache(maxsize=4)
def _timestamp(second: int) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))


@lru_cache(maxsize=4)
def _signing_key(secret: str, date: str, region: str) -> bytes:
    key = b"AWS4" + secret.encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
