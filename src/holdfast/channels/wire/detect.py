"""Which of the two wire formats some bytes are in, and the dialect of that name.

The formats agree on nothing but protobuf, and field 2 distinguishes them: in nim-sds it is the Lamport time, a number
that is always there; in LIP-109 it is the message's id, which is text. A message of nim-sds without it is none, and the
decoder of LIP-109 refuses it. So no bytes are a message in both formats, whatever they hold: there is no ambiguity, not
even for hostile ones.

Only the shape is checked. What is named here may still be refused by the decoder: for a limit, for damage after the
deciding field, or for an id that is missing. The reverse does not happen: what one of the decoders accepts is named.
"""

from __future__ import annotations

from holdfast.channels.wire.dialect import Dialect, DialectName
from holdfast.channels.wire.nim import NIM
from holdfast.channels.wire.protobuf import fields
from holdfast.channels.wire.rfc import RFC
from holdfast.errors import Invalid

_NIM_LAMPORT = 0x10
_RFC_LAMPORT, _RFC_CONTENT = 0x50, 0xA2


def detect(data: bytes) -> DialectName | None:
    """The format of a message; None when it is in neither."""
    is_rfc = False
    try:
        for tag, _, _ in fields(data, 0, len(data)):
            if tag == _NIM_LAMPORT:
                return "nim"
            is_rfc = is_rfc or tag in (_RFC_LAMPORT, _RFC_CONTENT)
    except Invalid:
        return None
    return "rfc" if is_rfc else None


def dialect(name: DialectName) -> Dialect:
    """The dialect of that name."""
    if name == "nim":
        return NIM
    if name == "rfc":
        return RFC
    raise Invalid(f"the dialect is unknown name={name!r}", hint='use "nim" or "rfc"')
