"""What members of a consumer in other processes and the owner of the log say to each other. Values, no I/O.

A member has a *token*, which it keeps over all owners, and the owner counts its *turns*: one more whenever it gets a
partition or has to let go of one. What a member commits says its token, and the last turn that it knew of (`scope_of`):
so the owner can tell a commit of something that the member has lost meanwhile, even if it got it back.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from holdfast.log.consumers.consumer_status import ConsumerStatus
from holdfast.log.consumers.stored_positions import StoredPosition

_SCOPE = "member:"
_TOKEN_BYTES = 16

Name = Annotated[str, msgspec.Meta(max_length=256)]
Token = Annotated[bytes, msgspec.Meta(min_length=_TOKEN_BYTES, max_length=_TOKEN_BYTES)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class JoinConsumer(msgspec.Struct, frozen=True, array_like=True):
    """A member comes, or comes back."""

    name: Name
    topic: Name
    token: Token
    named: tuple[Number, ...] | None
    """The partitions that it names; None for one that takes its share."""
    patience: Annotated[float, msgspec.Meta(ge=0)]
    begin: dict[Number, Offset]
    """Where partitions begin of which nothing was committed yet."""


class SyncMember(msgspec.Struct, frozen=True, array_like=True):
    """What do I have now?"""

    name: Name
    topic: Name
    token: Token
    offered: tuple[Number, ...]
    """Partitions that another member waits for, and of which this one has nothing under way."""
    gone: tuple[Token, ...] = ()
    """Members of the same process that nobody uses any more."""


class LeaveConsumer(msgspec.Struct, frozen=True, array_like=True):
    """A member goes."""

    name: Name
    topic: Name
    token: Token


class MemberPartition(msgspec.Struct, frozen=True, array_like=True):
    """A partition that a member has."""

    kept: StoredPosition
    """What is committed of it."""
    turn: int
    """The member's turn in which it got it."""


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """What a member has now."""

    is_member: bool
    """False: this owner does not know it; it must come again."""
    held: dict[int, MemberPartition] = {}
    wanted: tuple[int, ...] = ()
    """Those of them that another member waits for."""
    is_waiting: bool = False
    """Whether another member still has a partition that is to be this member's."""
    turn: int = 0


class AskConsumers(msgspec.Struct, frozen=True, array_like=True):
    """How far are the consumers, of one topic or of all?"""

    topic: Name | None


class ConsumersNow(msgspec.Struct, frozen=True):
    """How far they are."""

    consumers: tuple[ConsumerStatus, ...]


class ForgetConsumer(msgspec.Struct, frozen=True, array_like=True):
    """Let go of a consumer's position."""

    name: Name
    topic: Name


def scope_of(token: bytes, turn: int) -> str:
    """What a unit that commits positions says of the member that does."""
    return f"{_SCOPE}{token.hex()}:{turn}"


def members_of(scope: str | None) -> dict[bytes, int] | None:
    """Tokens and turns of the members that a unit's scope names; None where it names none."""
    if scope is None or not scope.startswith(_SCOPE):
        return None
    found: dict[bytes, int] = {}
    try:
        for one in scope.split(","):
            token, turn = one.removeprefix(_SCOPE).split(":")
            found[bytes.fromhex(token)] = int(turn)
    except ValueError:
        return {}
    return found
