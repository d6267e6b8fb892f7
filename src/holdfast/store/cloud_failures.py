"""What went wrong at a cloud's store, read out of obstore's exceptions: pure, a text in and an error of ours out.

obstore has few exceptions, and most failures are one `GenericError`, to be classified by its text: the status and the
code that the server answered with, or what the network did. Two of its judgements are not ours: it calls a 409 *already
exists*, which on S3 means that nobody has won yet, and a missing bucket a missing object. Headers are not exposed, so
neither is `Retry-After`. What codes and statuses mean stands in `failures`.

The text is only read, never repeated: it holds the server's words, which may quote what it was sent.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from obstore import exceptions

from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound
from holdfast.store.failures import LASTING_CODES, judged, refused
from holdfast.store.port import AlreadyExists, Cause, StoreUnavailable

_STATUS = re.compile(r"\bstatus: ([0-9]{3})\b")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>|\bcode: \\?\"([A-Za-z0-9.]{1,64})")
# What we sent ourselves stands in the text as well, and a topic may be called "certificate".
_OURS = re.compile(r"\buri: Some\(\s*\S*\s*\)|\b(?:path|host): \"(?:[^\"\\]|\\.)*\"")

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


class _Answer(NamedTuple):
    status: int
    code: str
    text: str
    """What is left of it without what we sent."""


def translate(error: Exception, key: str, *, creating: bool = False) -> Exception:
    """The error to raise for one of obstore's, about one object."""
    answer = _read(str(error))
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        # To what was no creation it says nothing: work is going on there, or the answer was not meant for us.
        conflict = not creating or (answer.status == 409 and answer.code != "BlobAlreadyExists")
        return (
            StoreUnavailable(f"another write is under way key={key}", cause="conflict")
            if conflict
            else AlreadyExists(key)
        )
    if isinstance(error, exceptions.InvalidPathError | ValueError):
        return Invalid(f"the store does not take such a key key={key}")
    if isinstance(error, NotImplementedError | exceptions.NotSupportedError):
        return refused(f"the store refuses cause=unsupported key={key}", "unsupported")
    if isinstance(error, FileNotFoundError) and answer.code not in LASTING_CODES:
        missing = NotFound(f"there is no such object key={key}")
        return refused(f"there is no such bucket key={key}", "no_bucket") if creating else missing
    return _judge(error, answer, key)


def _judge(error: Exception, answer: _Answer, key: str) -> HoldfastError:
    if answer.status == 416:
        return Corrupt("the object is shorter than it should be", path=key)
    if answer.status or answer.code:
        return judged(answer.status, answer.code, key)
    if "BareRedirect" in answer.text:
        return refused(f"the store redirects in vain key={key}", "redirect")
    if isinstance(error, exceptions.UnauthenticatedError):
        return refused(f"there are no credentials for the store key={key}", "credentials")
    cause: Cause = next((cause for cause, pattern in _NETWORK.items() if pattern.search(answer.text)), "other")
    return StoreUnavailable(f"the store did not answer as it should cause={cause} key={key}", cause=cause)


def _read(text: str) -> _Answer:
    text = _OURS.sub("", text.partition("Debug source:")[2] or text)
    status, code = _STATUS.search(text), _CODE.search(text)
    return _Answer(int(status[1]) if status else 0, (code[1] or code[2]) if code else "", text)
