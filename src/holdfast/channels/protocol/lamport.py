"""How far ahead of the wall clock Lamport times may be: what is taken, what moves our clock, what we send.

Everything is measured against our own wall clock and nothing against the channel's clock, which others move: else each
message may move it a little further, and thirty of them put a member thirty days ahead, where all others refuse her.
With the allowance A (`channels.lamport_jump_max_ms`, a day):

- A message is taken if its time is at most A ahead.
- What is heard moves our clock to A/2 ahead at most.
- What we send is at most 3A/4 ahead. So all whose clocks are less than A/4 (six hours) behind ours take it, whatever
  was sent to us and however busy the channel is.

Times of `nim` are seconds, and each message moves every clock by one: a channel with more than one message a second
runs ahead of the wall until it is held there. From then on messages have equal times. That costs nothing: the order is
that of causal history, and Lamport times decide among concurrent messages only.

A larger allowance takes more and moves and sends no more than a day's does: it must not make others refuse us.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from holdfast.channels.channel_settings import ChannelSettings
from holdfast.channels.wire.dialect import Dialect
from holdfast.channels.wire.message import SdsMessage
from holdfast.errors import Invalid

_DAY_MS = 24 * 3600 * 1000


class LamportBounds(msgspec.Struct, frozen=True, gc=False):
    """The highest Lamport times at some moment."""

    taken: int
    heard: int
    sent: int


def bounds(dialect: Dialect, settings: ChannelSettings, now: int) -> LamportBounds:
    """What holds at this time (Unix, in milliseconds)."""
    unit = dialect.clock_unit_ms
    return _bounds(now // unit, unit, settings.lamport_jump_max_ms)


@lru_cache
def _bounds(wall: int, unit: int, jump: int) -> LamportBounds:
    """The same for all messages of one tick of the clock."""
    usual = min(jump, _DAY_MS) // unit
    return LamportBounds(wall + jump // unit, wall + usual // 2, wall + usual * 3 // 4)


def check(channel_id: str, lamport: int, most: LamportBounds) -> None:
    """Refuse a time that no honest clock shows; changes nothing."""
    if not 0 <= lamport <= most.taken:
        raise AheadOfClock(
            f"a message's Lamport time is absurd lamport={lamport} highest={most.taken} channel={channel_id}",
            hint="the sender's clock is wrong, or ours, or it means harm; see channels.lamport_jump_max_ms",
        )


class AheadOfClock(Invalid):
    """A message comes from the future, as our clock has it; distinguished so that it can be counted by itself."""


def after_hearing(own: int, lamport: int, most: LamportBounds, *, tick: int) -> int:
    """Our clock after a message with this time; what we sent may have moved it further than hearing does."""
    wanted = max(own, lamport) + tick
    if wanted <= most.heard:
        return wanted
    return max(min(own, most.sent), most.heard)


def for_sending(own: int, dialect: Dialect, most: LamportBounds, now: int) -> int:
    """The time of the next message that we send."""
    wall = now // dialect.clock_unit_ms
    wanted = max(wall, own) + 1 if dialect.ticks_on_receipt else max(wall, own + 1)
    return min(wanted, most.sent)


def sendable(message: SdsMessage, dialect: Dialect, settings: ChannelSettings, now: int) -> SdsMessage:
    """A message to be sent again, with a time that others take: ours may be from when our clock was wrong.

    Where ids are derived from what they name they cover the time, and it stays.
    """
    if message.lamport is None or settings.derived_ids:
        return message
    most = bounds(dialect, settings, now)
    return msgspec.structs.replace(message, lamport=most.sent) if message.lamport > most.taken else message
