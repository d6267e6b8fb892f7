"""Waiting for a server's store: tickets that were durable there are asked about until they are shipped.

A log of this process hears from its shipper. Here a waiter makes the feeds of topics ask, as long as one
does.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable

from holdfast.journal.state.shipping_state import ShippingState
from holdfast.signals import Signal


class AskingSignal(Signal):
    """A signal that sees to it that news come while they are waited for."""

    __slots__ = ("listen",)

    def __init__(self) -> None:
        super().__init__()
        self.listen: Callable[[], None] = lambda: None

    def sleep(self, happened: Callable[[], bool], timeout: float) -> bool:
        """Block this thread until the next signal or the time-out; True when it has happened."""
        self.listen()
        return super().sleep(happened, timeout)

    def future(self, loop: AbstractEventLoop, timeout: float) -> Future[None]:
        """A future of this loop that is done at the next signal or after its own time-out."""
        self.listen()
        return super().future(loop, timeout)


def shipping_state_of(*, ships: bool, timeout: float) -> tuple[ShippingState, AskingSignal]:
    """What those who wait for the server's store see of it, and the signal that they sleep on."""
    state, signal = ShippingState(), AskingSignal()
    state.signal, state.ships, state.timeout = signal, ships, timeout
    return state, signal
