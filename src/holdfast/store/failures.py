"""What went wrong at an object store, read out of obstore's exceptions: pure, a text in and an error of ours out.

obstore has few exceptions, and most failures are one `GenericError` whose text must tell: the status and the code that
the server answered with, or what the network did. Two of its judgements are not ours: it calls a 409 *already exists*,
which on S3 means that nobody has won yet, and a missing bucket a missing object. Headers are not told, so neither is
`Retry-After`.

The text is only read, never repeated: it holds the server's words, which may quote what it was sent.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from obstore import exceptions

from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound
from holdfast.store.port import AlreadyExists, Cause, StoreRefused, StoreUnavailable

_STATUS = re.compile(r"\bstatus: ([0-9]{3})\b")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>|\bcode: \\?\"([A-Za-z0-9.]{1,64})")
# What we sent ourselves stands in the text as well, and a topic may be called "certificate".
_OURS = re.compile(r"\buri: Some\(\s*\S*\s*\)|\b(?:path|host): \"(?:[^\"\\]|\\.)*\"")

_PASSING_CODES: dict[str, Cause] = {
    "SlowDown": "slow_down", "ServerBusy": "slow_down", "Throttling": "slow_down", "TooManyRequests": "slow_down",
    "InternalError": "server_error", "ServiceUnavailable": "slow_down", "OperationTimedOut": "timeout",
    "RequestTimeout": "timeout", "IncompleteBody": "truncated",
    "ConditionalRequestConflict": "conflict", "OperationAborted": "conflict",
    "BadDigest": "bad_digest", "XAmzContentSHA256Mismatch": "bad_digest", "XAmzContentChecksumMismatch": "bad_digest",
    "Md5Mismatch": "bad_digest",
    "ExpiredToken": "credentials", "InvalidToken": "credentials", "TokenRefreshRequired": "credentials",
}  # fmt: skip

_LASTING_CODES: dict[str, Cause] = {
    "NoSuchBucket": "no_bucket", "ContainerNotFound": "no_bucket",
    "InvalidAccessKeyId": "credentials", "SignatureDoesNotMatch": "credentials", "AuthenticationFailed": "credentials",
    "RequestTimeTooSkewed": "clock_skew",
    "PermanentRedirect": "redirect", "TemporaryRedirect": "redirect", "AuthorizationHeaderMalformed": "redirect",
    "AccessDenied": "forbidden", "AllAccessDisabled": "forbidden", "AccountProblem": "forbidden",
    "NotImplemented": "unsupported",
}  # fmt: skip

_LASTING_STATUS: dict[int, Cause] = {
    301: "redirect", 302: "redirect", 307: "redirect", 308: "redirect", 401: "credentials", 403: "forbidden",
    404: "no_bucket", 405: "unsupported", 501: "unsupported",
}  # fmt: skip

# In this order: a connection that was never made may also be called interrupted.
_NETWORK: dict[Cause, re.Pattern[str]] = {
    "timeout": re.compile(r"kind: Timeout|TimedOut"),
    "dns": re.compile(r"dns error|failed to lookup"),
    "tls": re.compile(r"(?i)certificate|InvalidMessage|AlertReceived|handshake|UnknownIssuer|\btls\b"),
    "refused": re.compile(r"ConnectionRefused|kind: Connect\b|Unreachable"),
    "truncated": re.compile(r"IncompleteBody|UnexpectedEof|kind: Body|kind: Decode"),
    "reset": re.compile(
        r"ConnectionReset|ConnectionAborted|BrokenPipe|IncompleteMessage|kind: Interrupted|SendRequest"
    ),
}

_HINTS: dict[Cause, str] = {
    "no_bucket": "create the bucket, or correct store.url",
    "forbidden": "these credentials may not do this: they need to put, get, list and delete below the root",
    "credentials": "correct what store.credentials refers to",
    "redirect": "set store.region to the bucket's region, or correct store.endpoint",
    "clock_skew": "set this machine's clock",
    "unsupported": "the service must know conditional writes (If-None-Match: *)",
}


class _Answer(NamedTuple):
    status: int
    code: str
    text: str
    """What is left of it without what we sent."""


def translate(error: Exception, key: str, *, creating: bool = False) -> Exception:
    """The error to raise for one of obstore's, about one object."""
    answer = _read(str(error))
    told = _told(answer, key)
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        # To what was no creation it says nothing: somebody is at work there, or the answer was not meant for us.
        conflict = not creating or (answer.status == 409 and answer.code != "BlobAlreadyExists")
        return (
            StoreUnavailable(f"another write is under way{told}", cause="conflict") if conflict else AlreadyExists(key)
        )
    if isinstance(error, exceptions.InvalidPathError | ValueError):
        return Invalid(f"the store does not take such a key{told}")
    if isinstance(error, NotImplementedError | exceptions.NotSupportedError):
        return _refused("unsupported", told)
    if isinstance(error, FileNotFoundError) and not creating and answer.code not in _LASTING_CODES:
        return NotFound(f"there is no such object key={key}")
    return _judge(error, answer, told, key)


def _judge(error: Exception, answer: _Answer, told: str, key: str) -> HoldfastError:
    if answer.code in _PASSING_CODES:
        return _passing(_PASSING_CODES[answer.code], told)
    if answer.code in _LASTING_CODES:
        return _refused(_LASTING_CODES[answer.code], told)
    if answer.status == 416:
        return Corrupt("the object is shorter than it should be", path=key)
    return _by_status(answer.status, told) if answer.status else _without_answer(error, answer.text, told)


def _without_answer(error: Exception, text: str, told: str) -> HoldfastError:
    if "BareRedirect" in text:
        return _refused("redirect", told)
    if isinstance(error, exceptions.UnauthenticatedError):
        return _refused("credentials", told)
    return _passing(next((cause for cause, pattern in _NETWORK.items() if pattern.search(text)), "other"), told)


def _by_status(status: int, told: str) -> HoldfastError:
    if status in _LASTING_STATUS:
        return _refused(_LASTING_STATUS[status], told)
    if status in (429, 503):
        return _passing("slow_down", told)
    if status == 408:
        return _passing("timeout", told)
    if status == 409:
        return _passing("conflict", told)
    if status >= 500:
        return _passing("server_error", told)
    return _passing("other", told) if status == 400 else _refused("other", told)


def _read(text: str) -> _Answer:
    text = _OURS.sub("", text.partition("Debug source:")[2] or text)
    status, code = _STATUS.search(text), _CODE.search(text)
    return _Answer(int(status[1]) if status else 0, (code[1] or code[2]) if code else "", text)


def _told(answer: _Answer, key: str) -> str:
    told = f" key={key}"
    if answer.status:
        told += f" status={answer.status}"
    return told + (f" code={answer.code}" if answer.code else "")


def _passing(cause: Cause, told: str) -> StoreUnavailable:
    return StoreUnavailable(f"the store did not answer as it should cause={cause}{told}", cause=cause)


def _refused(cause: Cause, told: str) -> StoreRefused:
    return StoreRefused(f"the store refuses cause={cause}{told}", cause=cause, hint=_HINTS.get(cause))
