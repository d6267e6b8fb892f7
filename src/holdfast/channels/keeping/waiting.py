"""Waiting until a step is kept, by threads and by coroutines: durable or refused, at most for the time-out; then tell.

That it could not be kept is noticed by the channel and does not fail the operation.
"""

from __future__ import annotations

import warnings

from holdfast.caller import in_coroutine
from holdfast.channels.channel import Channel, Flight
from holdfast.errors import HoldfastError


async def kept_async(channel: Channel, flight: Flight) -> None:
    """For coroutines."""
    if not flight.settled and flight.commit is not None:
        try:
            await flight.commit  # which has its own time-out
        except HoldfastError:
            pass  # noticed by the channel
        if not flight.settled:  # else the follower of this commit has settled it
            channel.settle(flight)
    flight.settled = True
    channel.tell()


def await_kept(channel: Channel, flight: Flight, timeout_s: float) -> None:
    """For threads."""
    if not flight.settled and flight.commit is not None:
        warn_on_loop(5)
        try:
            flight.commit.result(timeout_s)
        except HoldfastError:
            pass  # noticed by the channel
        channel.settle(flight)
    flight.settled = True
    channel.tell()


def warn_on_loop(stacklevel: int) -> None:
    """A blocking wait on an event loop blocks everything else there."""
    if in_coroutine():
        warnings.warn("this blocks the event loop; use the operation's _async form", RuntimeWarning, stacklevel)
