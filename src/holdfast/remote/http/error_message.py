"""The bodies of answers that are not 2xx: errors as values, in one form for those who send them and those who read.

What comes is hostile until it is checked: what cannot be understood is Unavailable, and `Refusal` takes kinds and
fields from no place but `holdfast.errors`.
"""

from __future__ import annotations

import msgspec

from holdfast import errors
from holdfast.errors import Closed, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.journal.sessions.outcomes import Field, Refusal


class ErrorBody(msgspec.Struct, frozen=True):
    """What every answer holds that is not 2xx."""

    kind: str
    message: str = ""
    hint: str = ""
    fields: dict[str, Field] = {}
    request: str = ""
    """The server's number of the request."""


_decode = msgspec.json.Decoder(ErrorBody).decode


def error_of(status: int, body: bytes, where: str) -> HoldfastError:
    """What an answer that is not 2xx means."""
    try:
        found = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _by_status(status, where)
    if not isinstance(getattr(errors, found.kind, None), type):
        return _by_status(status, where)
    error = Refusal(found.kind, found.message, found.hint, found.fields).error()
    if isinstance(error, Closed):  # what is closed is the server's log, or the server; not what the caller holds
        return Unavailable(
            f"the log of the server at {where} is not open: {error.message}", hint="start the server again"
        )
    return error


def _by_status(status: int, where: str) -> HoldfastError:
    if status in (401, 403):
        return Invalid(f"the server at {where} does not allow this status={status}", hint="check the token")
    if status == 404:
        return NotFound(f"the server at {where} does not know this", hint="is this the address of a holdfast server?")
    if 400 <= status < 500:
        return Invalid(f"the server at {where} refused the request status={status}", hint="is it a holdfast server?")
    return Unavailable(f"the server at {where} failed status={status}", hint="its log says why; try again")
