"""What an operation gives back of its step; and a word to those who wait on an event loop."""

from __future__ import annotations

import warnings
from asyncio.events import _get_running_loop

from holdfast.channels.steps import Received, Step


def warn_on_loop(stacklevel: int) -> None:
    """Say that this blocks, if a loop runs in this thread."""
    if _get_running_loop() is not None:
        warnings.warn("this blocks the event loop; use the operation's _async form", RuntimeWarning, stacklevel)


def data_of(effects: Step) -> bytes:
    """What is to be broadcast."""
    assert effects.data is not None
    return effects.data


def received_of(effects: Step) -> Received:
    """What became of a message."""
    assert effects.received is not None
    return effects.received
