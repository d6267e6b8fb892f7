"""What the answers of an S3 server mean: which failure they are, and what is written in them. Pure."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from email.utils import parsedate_to_datetime
from hashlib import sha256
from html import unescape

from holdfast.store.failures import judged
from holdfast.store.port import StoreRefused, StoreUnavailable
from holdfast.store.s3.http import Response

SKEWED = "RequestTimeTooSkewed"
WRONG_REGION = ("AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect")
REDIRECTS = (301, 302, 307, 308)

CHECKED_BYTES_MAX = 2**20
"""Up to this size the store's checksum is checked; what is larger (batches, segments) is hashed by who knows it."""

_CODE = re.compile(r"[A-Za-z0-9.]{1,64}")


def error_code(response: Response) -> str:
    """The code in an error's body; '' when there is none."""
    code = element(response, "Code")
    return code if _CODE.fullmatch(code) else ""


def failure(response: Response, key: str, now_us: int) -> StoreUnavailable | StoreRefused:
    """What an answer means that is neither success nor something learned."""
    return judged(response.status, error_code(response), key, _retry_after(response, now_us))


def is_missing(response: Response) -> bool:
    """Whether the store itself says that there is no such object; a 404 may also come from something before it."""
    return response.status == 404 and error_code(response) == "NoSuchKey"


def checked(response: Response, key: str) -> bytes:
    """A whole object's bytes, which must match the checksum that the store gave with them, if it gave one."""
    digest = _digest(response)
    is_checked = len(response.body) <= CHECKED_BYTES_MAX or not response.framed
    if digest and is_checked and sha256(response.body).digest() != digest:
        raise StoreUnavailable(f"the object does not match its checksum key={key}", cause="bad_digest")
    if not digest and not response.framed:
        raise StoreUnavailable(f"the store does not say how long the object is key={key}", cause="truncated")
    return response.body


def date_us(text: str) -> int:
    """An HTTP date in microseconds; 0 when it is none."""
    try:
        return round(parsedate_to_datetime(text).timestamp() * 1e6)
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0


def element(response: Response, name: str) -> str:
    """The text of an element in a short answer; '' when it is not there."""
    found = re.search(rb"<%b>([^<]{1,1024})</%b>" % (name.encode(), name.encode()), response.body)
    return unescape(found[1].decode("utf-8", "replace")).strip() if found else ""


def _retry_after(response: Response, now_us: int) -> float:
    """Seconds, or a date; 0 when the store says nothing that makes sense."""
    text = response.headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    until, since = date_us(text), date_us(response.headers.get("date", "")) or now_us
    return max(0.0, (until - since) / 1e6) if until else 0.0


def _digest(response: Response) -> bytes:
    """The sha256 that the store gives with an answer; empty when it gives none of the whole object."""
    try:
        digest = b64decode(response.headers.get("x-amz-checksum-sha256", ""), validate=True)
    except (NotBase64, ValueError):
        return b""  # of an object in parts it is a hash of hashes: "…-3"
    return digest if len(digest) == 32 else b""
